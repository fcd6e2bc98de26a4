//! Cases of the kernel.

use super::{DeltaGates, DeltaShape, delta_net};
use crate::case::{Case, CaseBuilder, Tolerance};
use crate::kernel::{ShapeError, Tensor};

/// States and values are below 1, keys have length 1. Each token rounds a sum of at most 128
/// products (a random walk of 11 * 2^-24 of numbers below 1) and a decay to the 3 units in the last
/// place that WGSL grants `exp`, 4e-7; what remains of that in the state adds up over the 1 / (1 - e^g)
/// tokens it lasts, ten in these cases except the slow one, where softplus is small and so is the
/// error it passes on.
const TOLERANCE: Tolerance = Tolerance { absolute: 5e-6, relative: 5e-6 };

struct Spec {
    rows: u32,
    n_tokens: u32,
    shape: DeltaShape,
    alpha: f32,
    beta: f32,
}

/// Rows of unit queries and keys and of values below 1.
fn rows(c: &mut CaseBuilder, rows: u32, shape: DeltaShape) -> Tensor {
    let DeltaShape { num_key_heads, num_value_heads, key_head_dim, value_head_dim } = shape;
    let mut y = Vec::new();
    for _ in 0..rows {
        for head in 0..2 * num_key_heads {
            let v: Vec<f32> = (0..key_head_dim).map(|_| c.rng.uniform()).collect();
            let mut norm = v.iter().map(|v| v * v).sum::<f32>().sqrt();
            if head < num_key_heads {
                norm *= (key_head_dim as f32).sqrt();
            }
            y.extend(v.iter().map(|v| v / norm));
        }
        y.extend((0..num_value_heads * value_head_dim).map(|_| c.rng.uniform()));
    }
    let cols = 2 * num_key_heads * key_head_dim + num_value_heads * value_head_dim;
    c.values(rows, cols, &y)
}

/// One to three value heads per key head, head sizes that share workgroups and that fill several,
/// one token and many, short steps, and gates at both ends.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let spec = |rows, num_key_heads, num_value_heads, key_head_dim, value_head_dim| Spec {
        rows,
        n_tokens: rows,
        shape: DeltaShape { num_key_heads, num_value_heads, key_head_dim, value_head_dim },
        alpha: 2.0,
        beta: 3.0,
    };
    let specs = [
        spec(1, 1, 1, 1, 1),
        spec(3, 1, 1, 2, 2),
        spec(1, 1, 1, 64, 64),
        spec(9, 1, 3, 16, 65),
        spec(40, 2, 6, 32, 32),
        spec(5, 4, 4, 128, 128),
        spec(2, 16, 48, 8, 16),
        spec(300, 1, 2, 12, 20),
        // More loop iterations than Mesa's software adapter counts, taken one row at a time.
        spec(512, 1, 1, 128, 64),
        Spec { n_tokens: 4, ..spec(7, 2, 4, 16, 16) },
        Spec { n_tokens: 0, ..spec(7, 2, 4, 16, 16) },
        Spec { n_tokens: 9, ..spec(2, 2, 4, 16, 16) },
        Spec { alpha: 10_000.0, beta: 10_000.0, ..spec(20, 2, 4, 16, 16) },
        // Softplus is below 2^-8 here, so that the state lasts for hundreds of tokens.
        Spec { alpha: -7.0, ..spec(200, 1, 2, 16, 16) },
    ];
    let mut cases = Vec::new();
    for (i, spec) in specs.into_iter().enumerate() {
        let Spec { rows: n_rows, n_tokens, shape, alpha, beta } = spec;
        let DeltaShape { num_key_heads, num_value_heads, key_head_dim, value_head_dim } = shape;
        let mut c = CaseBuilder::new(1000 + i as u32);
        c.state.n_tokens = n_tokens;
        let y = rows(&mut c, n_rows, shape);
        let n = (n_rows * num_value_heads) as usize;
        let alphas: Vec<f32> = if alpha < 0.0 {
            (0..n).map(|_| alpha + c.rng.uniform()).collect()
        } else {
            (0..n).map(|_| alpha * c.rng.uniform()).collect()
        };
        let decays: Vec<f32> = (0..num_value_heads).map(|_| -1.1 + c.rng.uniform()).collect();
        let gates = DeltaGates {
            alpha: c.values(n_rows, num_value_heads, &alphas).into(),
            beta: c.random(n_rows, num_value_heads, beta).into(),
            ssm_a: c.values(1, num_value_heads, &decays),
            dt_bias: c.random(1, num_value_heads, 1.0),
        };
        let s = c.random(num_value_heads * key_head_dim, value_head_dim, 1.0);
        let out = c.output(n_rows, num_value_heads * value_head_dim);
        cases.push(c.finish(
            format!(
                "{num_key_heads}/{num_value_heads} heads of {key_head_dim} x {value_head_dim}, {n_tokens} of \
                 {n_rows} tokens, alpha to {alpha}, beta to {beta}"
            ),
            delta_net(y, gates, s, out, shape),
            TOLERANCE,
        )?);
    }
    Ok(cases)
}
