use super::Params;
use crate::kernel::Args;
use crate::kernels::activation::sigmoid;
use crate::kernels::kivi::{Cursors, Part, narrow, piece, row};
use crate::kernels::qkv::norm_rope;

pub(super) fn kivi_attention(args: &mut Args<'_>) {
    let p: Params = args.params();
    let layout = p.cache.layout();
    let position = args.state.position;
    if args.state.n_tokens == 0 || position >= layout.context {
        return;
    }
    let n_tokens = args.state.n_tokens.min(p.rows).min(piece(position)).min(layout.context - position);
    let (qkv, q_norm, rope) = (args.read(0), args.read(1), args.read(3));
    let buffers = (args.read(4), args.read_u32(5), args.read_u32(6));
    let out = args.write(0);
    let dim = layout.head_dim as usize;
    let heads_per_kv = p.num_heads / layout.num_kv_heads;
    let cursors = Cursors::at(position + n_tokens);
    for kv_head in 0..layout.num_kv_heads {
        let rows = |part| -> Vec<Vec<f32>> {
            (0..position + n_tokens).map(|u| row(&layout, buffers, part, kv_head, cursors.place(u))).collect()
        };
        let (keys, values) = (rows(Part::Key), rows(Part::Value));
        for token in 0..n_tokens {
            let angles = &rope[((position + token) * p.n_rot) as usize..][..p.n_rot as usize];
            for head in kv_head * heads_per_kv..(kv_head + 1) * heads_per_kv {
                let head_row = &qkv[(token * p.cols + head * p.stride) as usize..][..p.stride as usize];
                let q = narrow(norm_rope(&head_row[..dim], q_norm, angles, p.eps));
                let seen = (position + token + 1) as usize;
                let sums = attend(&q, &keys[..seen], &values[..seen], p.scale);
                let at = (token * p.num_heads + head) as usize * dim;
                for i in 0..dim {
                    let gate = if p.gated == 0 { 1.0 } else { sigmoid(head_row[dim + i].into()) };
                    out[at + i] = (sums.values[i] / sums.weight * gate) as f32;
                }
            }
        }
    }
}

/// Softmax attention of one query before the division.
pub(crate) struct Sums {
    /// The largest score, of no rows the lowest number that the kernels know.
    pub top: f64,
    /// Sum of e^(score - top).
    pub weight: f64,
    /// Sum of e^(score - top) * value.
    pub values: Vec<f64>,
}

/// Attention of query `q` over `keys` and `values`.
pub(crate) fn attend(q: &[f32], keys: &[Vec<f32>], values: &[Vec<f32>], scale: f32) -> Sums {
    let score = |key: &Vec<f32>| {
        let mut dot = 0.0;
        for i in 0..q.len() {
            dot += f64::from(q[i]) * f64::from(key[i]);
        }
        dot * f64::from(scale)
    };
    let scores: Vec<f64> = keys.iter().map(score).collect();
    let top = scores.iter().copied().fold(f64::from(LOWEST), f64::max);
    let mut sums = Sums { top, weight: 0.0, values: vec![0.0; q.len()] };
    for (score, value) in scores.iter().zip(values) {
        let weight = (score - top).exp();
        sums.weight += weight;
        for (sum, &v) in sums.values.iter_mut().zip(value) {
            *sum += weight * f64::from(v);
        }
    }
    sums
}

/// The largest score of no rows.
const LOWEST: f32 = -1e38;
