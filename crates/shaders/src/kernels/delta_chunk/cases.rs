//! Cases of the kernel, from which those of the rule follow.

use super::{CHUNK, DeltaChunks, delta_chunk};
use crate::case::{Case, CaseBuilder, Tolerance};
use crate::kernel::{ShapeError, Tensor};
use crate::kernels::delta_net::{DeltaGates, DeltaShape};

/// A product of unit vectors of up to 128 elements rounds like a random walk of 11 * 2^-24, and
/// WGSL grants the exponential of x 3 + 2 |x| units in the last place, at most 3.3 * 2^-23 once it is
/// multiplied by e^x: together below 2e-6 for an element of A and P. An error in A comes out of the
/// inverse multiplied by it from both sides; the magnitudes in a column of the inverse sum to less
/// than five in these cases.
const TOLERANCE: Tolerance = Tolerance { absolute: 1e-5, relative: 2e-6 };

/// Buffers of a case by what they hold.
pub(in crate::kernels) struct Buffers {
    pub y: Tensor,
    pub gates: DeltaGates,
    pub chunks: DeltaChunks,
}

/// A step.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct Spec {
    pub rows: u32,
    pub n_tokens: u32,
    pub shape: DeltaShape,
    /// Decay logits go up to this, or lie around it where it is negative.
    pub alpha: f32,
    pub beta: f32,
    /// All tokens write to the same key, with full strength.
    pub repeats: bool,
}

impl Spec {
    /// Contents of the buffers.
    pub fn build(&self, c: &mut CaseBuilder) -> Buffers {
        let Self { rows, shape, alpha, beta, repeats, .. } = *self;
        let DeltaShape { num_key_heads, num_value_heads, key_head_dim, value_head_dim } = shape;
        c.state.n_tokens = self.n_tokens;
        let mut y: Vec<f32> = Vec::new();
        let cols = 2 * num_key_heads * key_head_dim + num_value_heads * value_head_dim;
        for t in 0..rows {
            for head in 0..2 * num_key_heads {
                let is_query = head < num_key_heads;
                if repeats && t > 0 && !is_query {
                    let first = (head * key_head_dim) as usize;
                    y.extend_from_within(first..first + key_head_dim as usize);
                    continue;
                }
                let v: Vec<f32> = (0..key_head_dim).map(|_| c.rng.uniform()).collect();
                let mut norm = v.iter().map(|v| v * v).sum::<f32>().sqrt();
                if is_query {
                    norm *= (key_head_dim as f32).sqrt();
                }
                y.extend(v.iter().map(|v| v / norm));
            }
            y.extend((0..num_value_heads * value_head_dim).map(|_| c.rng.uniform()));
        }
        let y = c.values(rows, cols, &y);
        // A column, alpha, beta, and another column.
        let mut gates = Vec::new();
        for _ in 0..rows {
            gates.push(9.0);
            let mut logit = |around: f32| {
                let x = c.rng.uniform();
                if around < 0.0 { around + x } else { around * x }
            };
            gates.extend((0..num_value_heads).map(|_| logit(alpha)));
            gates.extend((0..num_value_heads).map(|_| if repeats { 100.0 } else { logit(beta) }));
            gates.push(9.0);
        }
        let gates = c.values(rows, 2 * num_value_heads + 2, &gates);
        let decays: Vec<f32> = (0..num_value_heads).map(|_| -1.1 + c.rng.uniform()).collect();
        let gates = DeltaGates {
            alpha: gates.columns(1, num_value_heads),
            beta: gates.columns(1 + num_value_heads, num_value_heads),
            ssm_a: c.values(1, num_value_heads, &decays),
            dt_bias: c.random(1, num_value_heads, 1.0),
        };
        let matrix_rows = DeltaChunks::matrix_rows(rows, shape);
        let chunks = DeltaChunks {
            solve: c.output(matrix_rows, CHUNK),
            mixing: c.output(matrix_rows, CHUNK),
            decay: c.output(rows, 2 * num_value_heads),
        };
        Buffers { y, gates, chunks }
    }

    /// What is special about it.
    pub fn name(&self) -> String {
        let Self { rows, n_tokens, shape, alpha, beta, repeats } = *self;
        let DeltaShape { num_key_heads, num_value_heads, key_head_dim, value_head_dim } = shape;
        format!(
            "{num_key_heads}/{num_value_heads} heads of {key_head_dim} x {value_head_dim}, {n_tokens} of {rows} \
             tokens, alpha to {alpha}, beta to {beta}{}",
            if repeats { ", one key" } else { "" }
        )
    }
}

/// One token and many, around one, two and three chunks; one to three value heads per key head;
/// head sizes below and above what workgroups share; short steps; gates at both ends; repeated keys.
pub(in crate::kernels) fn specs() -> Vec<Spec> {
    let spec = |rows, num_key_heads, num_value_heads, key_head_dim, value_head_dim| Spec {
        rows,
        n_tokens: rows,
        shape: DeltaShape { num_key_heads, num_value_heads, key_head_dim, value_head_dim },
        alpha: 2.0,
        beta: 3.0,
        repeats: false,
    };
    vec![
        spec(1, 1, 1, 4, 4),
        spec(2, 1, 1, 4, 4),
        spec(3, 16, 48, 8, 16),
        spec(15, 2, 6, 16, 20),
        spec(16, 1, 1, 36, 32),
        spec(17, 1, 3, 16, 36),
        spec(31, 2, 2, 12, 64),
        spec(32, 2, 6, 32, 32),
        spec(33, 2, 4, 16, 16),
        spec(63, 1, 2, 20, 12),
        spec(64, 1, 1, 16, 16),
        spec(65, 1, 2, 128, 128),
        spec(5, 4, 4, 128, 128),
        Spec { n_tokens: 70, ..spec(512, 1, 1, 16, 16) },
        Spec { n_tokens: 6, ..spec(7, 2, 4, 16, 16) },
        Spec { n_tokens: 0, ..spec(7, 2, 4, 16, 16) },
        Spec { n_tokens: 9, ..spec(2, 2, 4, 16, 16) },
        Spec { alpha: 10_000.0, beta: 10_000.0, ..spec(40, 2, 4, 16, 16) },
        // Softplus is below 2^-8 here, so that the state lasts for hundreds of tokens.
        Spec { alpha: -7.0, ..spec(200, 1, 2, 16, 16) },
        Spec { alpha: -7.0, repeats: true, ..spec(64, 1, 2, 16, 16) },
    ]
}

/// The cases.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let mut cases = Vec::new();
    for (i, spec) in specs().into_iter().enumerate() {
        let mut c = CaseBuilder::new(1000 + i as u32);
        let Buffers { y, gates, chunks } = spec.build(&mut c);
        cases.push(c.finish(spec.name(), delta_chunk(y, gates, chunks, spec.shape), TOLERANCE)?);
    }
    Ok(cases)
}
