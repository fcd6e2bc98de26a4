//! The row that the projections of an attention layer give for a token, and what becomes of its
//! heads before attention.
//!
//! A row holds the query heads, each followed by its gate if the layer has gates, then the key
//! heads, then the value heads.

use crate::cpu::lanes;
use crate::kernel::{ShapeError, Tensor, expect_shape, require};

/// The heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Query heads.
    pub num_heads: u32,
    /// Key and value heads; divides `num_heads`.
    pub num_kv_heads: u32,
    /// Elements per head: a multiple of 4, at most 256.
    pub head_dim: u32,
    /// Whether each query head is followed by its gate.
    pub gated: bool,
}

impl AttentionShape {
    /// Query heads that share a key head.
    pub fn group(&self) -> u32 {
        self.num_heads / self.num_kv_heads.max(1)
    }

    /// Elements from one query head of a row to the next.
    pub fn q_stride(&self) -> u32 {
        self.head_dim * if self.gated { 2 } else { 1 }
    }

    /// Elements of a row: queries with their gates, keys, values.
    pub fn qkv_cols(&self) -> u32 {
        self.num_heads.saturating_mul(self.q_stride()).saturating_add(self.kv_cols().saturating_mul(2))
    }

    /// Elements of the queries, and of the result, of a token.
    pub fn q_cols(&self) -> u32 {
        self.num_heads.saturating_mul(self.head_dim)
    }

    /// Elements of the keys, or of the values, of a token.
    pub fn kv_cols(&self) -> u32 {
        self.num_kv_heads.saturating_mul(self.head_dim)
    }

    /// Refuses what the kernels of attention cannot handle.
    pub(super) fn check(&self, kernel: &'static str) -> Result<(), ShapeError> {
        let Self { num_heads, num_kv_heads, head_dim, .. } = *self;
        let fits = head_dim > 0 && head_dim.is_multiple_of(4) && head_dim <= 256;
        require(kernel, "head_dim", head_dim, fits, "a multiple of 4 from 4 to 256")?;
        require(kernel, "num_kv_heads", num_kv_heads, num_kv_heads > 0, "at least 1")?;
        let groups = num_heads > 0 && num_heads.is_multiple_of(num_kv_heads);
        require(kernel, "num_heads", num_heads, groups, "a multiple of num_kv_heads")
    }
}

/// Keys and values of every position, each [S, num_kv_heads * head_dim].
#[derive(Clone, Copy, Debug)]
pub struct KvCache {
    /// Keys, normed and rotated.
    pub k: Tensor,
    /// Values.
    pub v: Tensor,
}

impl KvCache {
    pub(super) fn check(&self, kernel: &'static str, shape: AttentionShape) -> Result<(), ShapeError> {
        require(kernel, "context", self.k.rows, self.k.rows > 0, "at least 1")?;
        expect_shape(kernel, "k_cache", self.k, self.k.rows, shape.kv_cols())?;
        expect_shape(kernel, "v_cache", self.v, self.k.rows, shape.kv_cols())
    }
}

/// What queries and keys get before attention: an RMS norm per head, then rotary position embedding
/// (Su et al. 2021, arXiv:2104.09864) with split-half pairs.
///
/// With `P = n_rot / 2` pairs and the angle `a` of pair `i` at the token's position:
///
/// ```text
/// n[i]      = x[i] * weight[i] / sqrt(mean_i(x[i]^2) + eps)
/// out[i]    = n[i] * cos(a) - n[i + P] * sin(a)      0 <= i < P
/// out[i+P]  = n[i] * sin(a) + n[i + P] * cos(a)      0 <= i < P
/// out[i]    = n[i]                                   n_rot <= i < head_dim
/// ```
///
/// The partner of dimension `i` is `i + n_rot / 2`: not `i + 1`, and not `i + head_dim / 2`.
/// Cosines and sines come from a table, because sines of large angles are not reliable on GPUs.
#[derive(Clone, Copy, Debug)]
pub struct NormRope {
    /// Weights of the norm of queries, [1, head_dim].
    pub q_norm: Tensor,
    /// Weights of the norm of keys, [1, head_dim].
    pub k_norm: Tensor,
    /// [S, n_rot]: row `p` holds the `n_rot / 2` cosines and then the `n_rot / 2` sines of position `p`.
    pub rope: Tensor,
    /// Added under the root.
    pub eps: f32,
}

impl NormRope {
    pub(super) fn check(&self, kernel: &'static str, shape: AttentionShape) -> Result<(), ShapeError> {
        expect_shape(kernel, "q_norm", self.q_norm, 1, shape.head_dim)?;
        expect_shape(kernel, "k_norm", self.k_norm, 1, shape.head_dim)?;
        let n_rot = self.rope.cols;
        let rotates = n_rot > 0 && n_rot.is_multiple_of(2) && n_rot <= shape.head_dim;
        require(kernel, "n_rot", n_rot, rotates, "even, at least 2 and at most head_dim")
    }
}

/// A head after norm and rotation; the reference of [`NormRope`].
///
/// `angles` are the cosines and then the sines of the token's position.
pub(super) fn norm_rope(x: &[f32], weight: &[f32], angles: &[f32], eps: f32) -> Vec<f64> {
    let mean = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + f64::from(eps)).sqrt();
    let normed = |i: usize| f64::from(x[i]) * scale * f64::from(weight[i]);
    let n_pairs = angles.len() / 2;
    let mut out: Vec<f64> = (0..x.len()).map(normed).collect();
    for i in 0..n_pairs {
        let (cos, sin) = (f64::from(angles[i]), f64::from(angles[n_pairs + i]));
        let (a, b) = (normed(i), normed(n_pairs + i));
        out[i] = a * cos - b * sin;
        out[n_pairs + i] = a * sin + b * cos;
    }
    out
}

/// [`norm_rope`] in f32, to `out`.
pub(super) fn norm_rope_f32(x: &[f32], weight: &[f32], angles: &[f32], eps: f32, out: &mut [f32]) {
    let factor = lanes::rms_factor(x, eps);
    for ((out, x), weight) in out.iter_mut().zip(x).zip(weight) {
        *out = x * factor * weight;
    }
    let (cosines, sines) = angles.split_at(angles.len() / 2);
    let (firsts, seconds) = out.split_at_mut(cosines.len());
    for (((a, b), cos), sin) in firsts.iter_mut().zip(seconds).zip(cosines).zip(sines) {
        (*a, *b) = (*a * cos - *b * sin, *a * sin + *b * cos);
    }
}

/// Contents for cases.
pub(super) mod random {
    use super::NormRope;
    use crate::case::CaseBuilder;
    use crate::kernel::Tensor;

    /// Norms with weights up to `weight`, and the cosines and sines of every position with theta 1e6.
    pub fn norm_rope(c: &mut CaseBuilder, head_dim: u32, context: u32, n_rot: u32, weight: f32) -> NormRope {
        let (q_norm, k_norm) = (c.random(1, head_dim, weight), c.random(1, head_dim, weight));
        NormRope { q_norm, k_norm, rope: rope_table(c, context, n_rot), eps: 1e-6 }
    }

    fn rope_table(c: &mut CaseBuilder, context: u32, n_rot: u32) -> Tensor {
        let angle = |position: u32, pair: u32| {
            f64::from(position) * 1e6f64.powf(-2.0 * f64::from(pair) / f64::from(n_rot))
        };
        let mut table = Vec::with_capacity((context * n_rot) as usize);
        for position in 0..context {
            table.extend((0..n_rot / 2).map(|pair| angle(position, pair).cos() as f32));
            table.extend((0..n_rot / 2).map(|pair| angle(position, pair).sin() as f32));
        }
        c.values(context, n_rot, &table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Angles at position 5 of a model with 64 rotating dimensions of 256 and theta 1e7, computed
    /// apart from this code. A head whose only large element is dimension 0, 1, 10, 20 or 31 turns
    /// into (cos a, sin a) at that dimension and its partner 32 above.
    #[test]
    fn partners_and_angles_of_a_partly_rotated_head() {
        let spots =
            [(0, 5.0), (1, 3.021_481_951_190_664_5), (10, 0.032_469_081_577_8), (20, 2.108_482_517_14e-4)];
        for (pair, angle) in spots {
            let mut x = vec![0.0; 256];
            // With this the root mean square of the head is 1/16, so that the norm yields 16 / 16.
            x[pair] = 1.0;
            let theta = |i: i32| 5.0 * 1e7f64.powf(f64::from(-2 * i) / 64.0);
            let cosines = (0..32).map(|i| theta(i).cos() as f32);
            let angles: Vec<f32> = cosines.chain((0..32).map(|i| theta(i).sin() as f32)).collect();
            let angle: f64 = angle;
            for (i, actual) in norm_rope(&x, &[1.0 / 16.0; 256], &angles, 0.0).into_iter().enumerate() {
                let expected = match i {
                    _ if i == pair => angle.cos(),
                    _ if i == pair + 32 => angle.sin(),
                    _ => 0.0,
                };
                assert!(
                    (actual - expected).abs() < 1e-7,
                    "pair {pair}, element {i}: {actual} not {expected}"
                );
            }
        }
    }

    /// By hand: the head (3, 4, 0, 0) has mean square 25/4, so the norm with weights
    /// (1, 1, 1, 1) gives (1.2, 1.6, 0, 0); a quarter turn of the pair (0, 1) gives (-1.6, 1.2).
    #[test]
    fn a_quarter_turn_by_hand() {
        let out = norm_rope(&[3.0, 4.0, 0.0, 0.0], &[1.0; 4], &[0.0, 1.0], 0.0);
        for (actual, expected) in out.into_iter().zip([-1.6, 1.2, 0.0, 0.0]) {
            assert!((actual - expected).abs() < 1e-15, "{actual}, not {expected}");
        }
    }

    #[test]
    fn a_row_holds_queries_with_gates_then_keys_then_values() {
        let shape = AttentionShape { num_heads: 6, num_kv_heads: 2, head_dim: 8, gated: true };
        assert_eq!((shape.group(), shape.q_stride(), shape.qkv_cols()), (3, 16, 6 * 16 + 2 * 16));
        let shape = AttentionShape { gated: false, ..shape };
        assert_eq!((shape.q_stride(), shape.qkv_cols()), (8, 48 + 32));
    }
}
