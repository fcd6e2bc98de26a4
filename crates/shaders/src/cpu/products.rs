//! Products of a matrix with the vectors of some tokens.

use super::nibbles::{Nibbles, Tile};
use super::tiles::ROWS;
use super::{Activations, lanes};
use crate::weights::{Format, f16_to_f32, unpack_row, words_per_row};

/// Bytes of tables that are kept at a time, small enough for a second-level cache.
const MAX_TABLE_BYTES: usize = 256 << 10;

/// Rows that are unpacked at a time.
const UNPACKED_ROWS: usize = 4;

/// A matrix [N, K] in the layout of the CPU's fast kernels.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a> {
    /// How the weights are stored.
    pub format: Format,
    /// Rows (N, outputs).
    pub rows: usize,
    /// Weights per row (K, inputs).
    pub cols: usize,
    /// The `quants` words.
    pub quants: &'a [u32],
    /// The `scales` words.
    pub scales: &'a [u32],
}

impl Matrix<'_> {
    /// Computes `W x` for each row of `x` [T, K]. `sink` gets a token's number, that of a row of the
    /// matrix, and the results of the rows from there on, at most 32.
    ///
    /// A token's results have the same bits whichever tokens come with it.
    pub fn multiply(&self, x: &[f32], activations: Activations, mut sink: impl FnMut(usize, usize, &[f32])) {
        if x.is_empty() {
            return;
        }
        match Nibbles::of(self.format, activations) {
            Some(nibbles) => self.look_up(nibbles, x, &mut sink),
            None => self.unpack(x, &mut sink),
        }
    }

    fn look_up(&self, nibbles: Nibbles, x: &[f32], sink: &mut impl FnMut(usize, usize, &[f32])) {
        let n_groups = self.cols / nibbles.group;
        let token_bytes = n_groups * nibbles.table_bytes();
        let block = (MAX_TABLE_BYTES / token_bytes.max(1)).max(1);
        let quants: &[u8] = bytemuck::cast_slice(self.quants);
        let halves: &[u16] = bytemuck::cast_slice(self.scales);
        let (quant_words, scale_words) = words_per_row(self.format, self.cols as u32);
        let (row_bytes, row_halves) = (quant_words as usize * 4, scale_words as usize * 2);
        let block = block.min(x.len() / self.cols.max(1));
        let mut tables = vec![0; block * token_bytes];
        let mut token_scales = vec![0.0; block * n_groups];
        let mut scales = vec![[0.0f32; ROWS]; n_groups];
        let mut padded = Vec::new();
        for (i, x) in x.chunks(block * self.cols).enumerate() {
            let groups = x.chunks_exact(nibbles.group).zip(tables.chunks_exact_mut(nibbles.table_bytes()));
            for ((group, tables), scale) in groups.zip(&mut token_scales) {
                *scale = nibbles.tabulate(group, tables);
            }
            for first in (0..self.rows).step_by(ROWS) {
                let height = ROWS.min(self.rows - first);
                let mut tile = &quants[first * row_bytes..(first + height) * row_bytes];
                if height < ROWS {
                    pad(tile, height, &mut padded);
                    tile = &padded;
                }
                let halves = &halves[first * row_halves..(first + height) * row_halves];
                for (scales, halves) in scales.iter_mut().zip(halves.chunks_exact(height)) {
                    for (scale, half) in scales.iter_mut().zip(halves) {
                        *scale = f16_to_f32(*half);
                    }
                }
                let by_token = tables.chunks_exact(token_bytes).zip(token_scales.chunks_exact(n_groups));
                let n_tokens = x.len() / self.cols;
                for (token, (tables, token_scales)) in (i * block..).zip(by_token.take(n_tokens)) {
                    let tile = Tile { quants: tile, scales: &scales, tables, token_scales };
                    sink(token, first, &tile.products(&nibbles)[..height]);
                }
            }
        }
    }

    fn unpack(&self, x: &[f32], sink: &mut impl FnMut(usize, usize, &[f32])) {
        let cols = self.cols;
        let mut weights = vec![0.0; UNPACKED_ROWS * cols];
        for first in (0..self.rows).step_by(UNPACKED_ROWS) {
            let height = UNPACKED_ROWS.min(self.rows - first);
            for (i, weights) in weights.chunks_exact_mut(cols).enumerate().take(height) {
                unpack_row(self.format, cols as u32, self.quants, self.scales, first + i, weights);
            }
            for (token, x) in x.chunks_exact(cols).enumerate() {
                let mut sums = [0.0; UNPACKED_ROWS];
                for (sum, weights) in sums.iter_mut().zip(weights.chunks_exact(cols)) {
                    *sum = lanes::dot(weights, x);
                }
                sink(token, first, &sums[..height]);
            }
        }
    }
}

/// Widens the units of a tile of `height` rows to 32 rows.
fn pad(tile: &[u8], height: usize, padded: &mut Vec<u8>) {
    padded.clear();
    for bytes in tile.chunks_exact(height) {
        padded.extend_from_slice(bytes);
        padded.resize(padded.len() + ROWS - height, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Rng;
    use crate::cpu::tiles;
    use crate::weights::pack_rows;
    use crate::weights::sample::{Scales, random_rows};

    /// An activation is off by half a unit of its last digit, whatever the others are, and no more.
    #[test]
    fn rounded_activations_cost_what_they_must() {
        const ROWS: usize = 45;
        for format in [Format::Q1_0, Format::Q2_0G64, Format::Q2_0G128, Format::Q4_0] {
            let group = Nibbles::of(format, Activations::Int10).unwrap().group;
            // Half of one in so many.
            let half_a_unit = if format == Format::Q4_0 { 1.0 / 510.0 } else { 1.0 / 1022.0 };
            let cols = 3 * format.block_weights();
            let mut rng = Rng::new(41);
            let bytes = random_rows(format, ROWS as u32, cols, Scales::Usual, &mut rng);
            let row_words @ [q, s] = <[u32; 2]>::from(words_per_row(format, cols)).map(|n| n as usize);
            let (mut quants, mut scales) = (vec![0; ROWS * q], vec![0; ROWS * s]);
            pack_rows(format, cols, &bytes, &mut quants, &mut scales).unwrap();
            let (mut tiled_quants, mut tiled_scales) = (quants.clone(), scales.clone());
            let tiled = [tiled_quants.as_mut_slice(), tiled_scales.as_mut_slice()];
            tiles::write_rows([ROWS, 0], row_words, [&quants, &scales], tiled);
            let matrix = Matrix {
                format,
                rows: ROWS,
                cols: cols as usize,
                quants: &tiled_quants,
                scales: &tiled_scales,
            };
            let x: Vec<f32> = (0..2 * cols).map(|_| rng.uniform() * 3.0).collect();
            for (activations, unit) in [(Activations::Int10, half_a_unit), (Activations::F32, 0.0)] {
                let mut worst = 0.0f64;
                matrix.multiply(&x, activations, |token, first, sums| {
                    for (row, sum) in (first..).zip(sums) {
                        let mut weights = vec![0.0; cols as usize];
                        unpack_row(format, cols, &quants, &scales, row, &mut weights);
                        let groups = weights.chunks(group).zip(x[token * cols as usize..].chunks(group));
                        let (mut exact, mut bound, mut largest_product) = (0.0, 0.0, 0.0f32);
                        for (weights, x) in groups {
                            let largest = x.iter().fold(0.0, |m: f32, x| m.max(x.abs()));
                            for (w, x) in weights.iter().zip(x) {
                                exact += f64::from(*w) * f64::from(*x);
                                largest_product = largest_product.max((w * largest).abs());
                                bound += f64::from(w.abs() * largest) * unit;
                            }
                        }
                        // And what sums in f32 round; see the tolerance of the kernels' cases.
                        bound += f64::from(4.0 * cols as f32 * largest_product) / 16_777_216.0;
                        let error = (f64::from(*sum) - exact).abs() / bound;
                        worst = worst.max(error);
                    }
                });
                assert!(worst <= 1.0 && worst > 0.01, "{format:?}, {activations:?}: {worst}");
            }
        }
    }
}
