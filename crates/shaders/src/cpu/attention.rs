//! Softmax attention over keys that come in blocks: the running softmax of Milakov and Gimelshein 2018
//! (arXiv:1805.02867).
//!
//! Several queries go through a block together, so that it is fetched once for all of them. A query's
//! result has the same bits whichever queries are with it, as long as the blocks are the same.

use super::lanes;

/// Keys whose scores are held at once.
pub const KEYS: usize = 64;

/// Queries that see the keys together, at least. More gain little, and what is kept of each of them should stay
/// in the processor's cache.
pub const QUERIES: usize = 128;

/// Keys and values of one head: row `u` of either begins at element `u * stride`.
#[derive(Clone, Copy, Debug)]
pub struct Block<'a> {
    /// Keys, from the first row of the block on.
    pub keys: &'a [f32],
    /// Values, in the same places.
    pub values: &'a [f32],
    /// Elements from a row to the next.
    pub stride: usize,
}

/// The running softmax of one query.
#[derive(Clone, Copy, Debug)]
pub struct Statistics {
    /// The largest score.
    pub top: f32,
    /// Sum of e^(score - top).
    pub total: f32,
}

impl Statistics {
    /// Of no keys.
    const NONE: Self = Self { top: f32::MIN, total: 0.0 };
}

/// Queries with what they have gathered from the blocks so far.
#[derive(Debug)]
pub struct Attention {
    head_dim: usize,
    queries: Vec<f32>,
    sums: Vec<f32>,
    statistics: Vec<Statistics>,
}

impl Attention {
    /// Without queries, for heads of `head_dim` elements.
    pub fn new(head_dim: usize) -> Self {
        Self { head_dim, queries: Vec::new(), sums: Vec::new(), statistics: Vec::new() }
    }

    /// Begins anew with `n` queries and returns their elements [n, head_dim], which are to be set. Scores
    /// are products with keys, so that a scale is the queries'.
    pub fn begin(&mut self, n: usize) -> &mut [f32] {
        self.queries.resize(n * self.head_dim, 0.0);
        self.restart();
        &mut self.queries
    }

    /// The elements of query `i`, [head_dim].
    pub fn query(&self, i: usize) -> &[f32] {
        &self.queries[i * self.head_dim..][..self.head_dim]
    }

    /// Begins anew with the same queries.
    pub fn restart(&mut self) {
        self.sums.clear();
        self.sums.resize(self.queries.len(), 0.0);
        self.statistics.clear();
        self.statistics.resize(self.queries.len() / self.head_dim, Statistics::NONE);
    }

    /// Lets query `i` see the first `n_keys(i)` rows of a block.
    pub fn see(&mut self, block: Block<'_>, n_keys: impl Fn(usize) -> usize) {
        let n_queries = self.statistics.len();
        let mut i = 0;
        while i < n_queries {
            let n = n_keys(i);
            if i + 1 < n_queries && n_keys(i + 1) == n {
                self.see_together::<2>(i, block, n);
                i += 2;
            } else {
                self.see_together::<1>(i, block, n);
                i += 1;
            }
        }
    }

    /// Sums of e^(score - top) * value of query `i`, [head_dim], and its statistics.
    pub fn sums(&self, i: usize) -> (&[f32], Statistics) {
        (&self.sums[i * self.head_dim..][..self.head_dim], self.statistics[i])
    }

    fn see_together<const Q: usize>(&mut self, first: usize, block: Block<'_>, n_keys: usize) {
        let dim = self.head_dim;
        let mut weights = [[0.0; KEYS]; Q];
        let queries: [&[f32]; Q] = std::array::from_fn(|q| &self.queries[(first + q) * dim..][..dim]);
        let sums = &mut self.sums[first * dim..][..Q * dim];
        for start in (0..n_keys).step_by(KEYS) {
            let n = KEYS.min(n_keys - start);
            let at = |u| (start + u) * block.stride;
            let key = |u| &block.keys[at(u)..][..dim];
            let value = |u| &block.values[at(u)..][..dim];
            for u in (0..n - n % 2).step_by(2) {
                let scores = dots(queries, [key(u), key(u + 1)]);
                for (weights, scores) in weights.iter_mut().zip(scores) {
                    weights[u..u + 2].copy_from_slice(&scores);
                }
            }
            if n % 2 == 1 {
                let scores = dots(queries, [key(n - 1)]);
                for (weights, [score]) in weights.iter_mut().zip(scores) {
                    weights[n - 1] = score;
                }
            }
            for (q, weights) in weights.iter_mut().enumerate() {
                let shrink = self.statistics[first + q].take(&mut weights[..n]);
                if shrink != 1.0 {
                    lanes::scale(&mut sums[q * dim..][..dim], shrink);
                }
            }
            for u in (0..n - n % 4).step_by(4) {
                let values = [0, 1, 2, 3].map(|i| value(u + i));
                add_rows(sums, weights.each_ref().map(|w| [w[u], w[u + 1], w[u + 2], w[u + 3]]), values);
            }
            for u in n - n % 4..n {
                add_rows(sums, weights.each_ref().map(|w| [w[u]]), [value(u)]);
            }
        }
    }
}

impl Statistics {
    /// Turns the scores of further keys into weights e^(score - top), and returns what earlier weights
    /// shrink by.
    fn take(&mut self, scores: &mut [f32]) -> f32 {
        let top = self.top.max(lanes::max(scores));
        let shrink = lanes::exp(self.top - top);
        for score in &mut *scores {
            *score = lanes::exp(*score - top);
        }
        *self = Self { top, total: self.total * shrink + lanes::sum(scores) };
        shrink
    }
}

/// The rest of attention: `sums / total`, and `* sigmoid(gates)` with gates.
pub fn finish(out: &mut [f32], sums: &[f32], total: f32, gates: Option<&[f32]>) {
    let share = 1.0 / total;
    for (out, sum) in out.iter_mut().zip(sums) {
        *out = sum * share;
    }
    for (out, &gate) in out.iter_mut().zip(gates.unwrap_or_default()) {
        *out *= lanes::sigmoid(gate);
    }
}

/// Elements that are computed at once: few, so that four products and what they are made of fit the
/// registers.
const LANES: usize = 8;

/// The product of each query with each key, all of the same length.
#[inline(always)]
fn dots<const Q: usize, const K: usize>(queries: [&[f32]; Q], keys: [&[f32]; K]) -> [[f32; K]; Q] {
    let n = queries[0].len() / LANES;
    let queries = queries.map(|row| row.as_chunks::<LANES>());
    let keys = keys.map(|row| row.as_chunks::<LANES>());
    let (query_lanes, key_lanes) = (queries.map(|row| &row.0[..n]), keys.map(|row| &row.0[..n]));
    let mut sums = [[[0.0f32; LANES]; K]; Q];
    for c in 0..n {
        let keys = key_lanes.map(|row| row[c]);
        for q in 0..Q {
            let query = query_lanes[q][c];
            for k in 0..K {
                for i in 0..LANES {
                    sums[q][k][i] += query[i] * keys[k][i];
                }
            }
        }
    }
    let mut products = sums_of_lanes(&sums);
    for (products, query) in products.iter_mut().zip(queries) {
        for (product, key) in products.iter_mut().zip(keys) {
            *product += query.1.iter().zip(key.1).map(|(a, b)| a * b).sum::<f32>();
        }
    }
    products
}

/// Apart from its caller, so that the way in which this adds does not decide which numbers share a vector there.
#[inline(never)]
fn sums_of_lanes<const Q: usize, const K: usize>(sums: &[[[f32; LANES]; K]; Q]) -> [[f32; K]; Q] {
    sums.map(|sums| sums.map(|[a, b, c, d, e, f, g, h]| ((a + e) + (c + g)) + ((b + f) + (d + h))))
}

/// `sums[q] += sum_i weights[q][i] * values[i]`, term by term, for `Q` rows of sums.
#[inline(always)]
fn add_rows<const Q: usize, const K: usize>(sums: &mut [f32], weights: [[f32; K]; Q], values: [&[f32]; K]) {
    let dim = values[0].len();
    let n = dim / LANES;
    let values = values.map(|row| row.as_chunks::<LANES>());
    let value_lanes = values.map(|row| &row.0[..n]);
    let mut rows = sums.chunks_exact_mut(dim);
    let mut sums: [_; Q] = std::array::from_fn(|_| rows.next().unwrap_or_default().as_chunks_mut::<LANES>());
    for c in 0..n {
        let values = value_lanes.map(|row| row[c]);
        let mut new: [[f32; LANES]; Q] = std::array::from_fn(|q| sums[q].0[c]);
        for q in 0..Q {
            for k in 0..K {
                for i in 0..LANES {
                    new[q][i] += weights[q][k] * values[k][i];
                }
            }
        }
        for q in 0..Q {
            sums[q].0[c] = new[q];
        }
    }
    for (sums, weights) in sums.iter_mut().zip(weights) {
        for (weight, values) in weights.into_iter().zip(values) {
            lanes::add_scaled(sums.1, weight, values.1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Rng;

    /// Pairs, single queries and some that see nothing, over more keys than are scored at once. The last
    /// row is not a number, and only the last query sees it.
    #[test]
    fn a_query_does_not_feel_the_others() {
        let (dim, stride, n_rows) = (20, 24, KEYS + 7);
        let mut rng = Rng::new(7);
        let mut random = |n| -> Vec<f32> { (0..n).map(|_| rng.uniform()).collect() };
        let (queries, mut keys, mut values) =
            (random(7 * dim), random(n_rows * stride), random(n_rows * stride));
        for rows in [&mut keys, &mut values] {
            rows[(n_rows - 1) * stride..].fill(f32::NAN);
        }
        let block = Block { keys: &keys, values: &values, stride };
        let n_keys = [0, 3, 3, 4, n_rows - 1, n_rows - 1, n_rows];
        let mut together = Attention::new(dim);
        together.begin(7).copy_from_slice(&queries);
        together.see(block, |i| n_keys[i]);
        for i in 0..7 {
            let mut alone = Attention::new(dim);
            alone.begin(1).copy_from_slice(&queries[i * dim..][..dim]);
            alone.see(block, |_| n_keys[i]);
            let bits = |(sums, statistics): (&[f32], Statistics)| {
                let numbers = sums.iter().chain([&statistics.top, &statistics.total]);
                numbers.map(|v| v.to_bits()).collect::<Vec<_>>()
            };
            assert_eq!(bits(together.sums(i)), bits(alone.sums(0)), "{i}");
            assert_eq!(together.sums(i).1.total.is_finite(), i < 6, "{i}");
        }
    }
}
