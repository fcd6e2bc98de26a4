//! Cases of the kernel.

use super::gated_norm;
use crate::case::{Case, CaseBuilder, Tolerance};
use crate::kernel::ShapeError;

/// 34 * 2^-24 from the sum of squares as in `rms_norm`, and the 43 * 2^-23 that WGSL grants the
/// exponential of gates down to -20, below which SiLU is under 5e-8; a normed element is under 8.
const TOLERANCE: Tolerance = Tolerance { absolute: 5e-7, relative: 8e-6 };

/// Heads around the 64 invocations, short steps, gates far beyond where `exp` overflows, and more
/// (token, head) pairs than one axis of a grid holds.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let mut cases = Vec::new();
    for (i, (rows, n_tokens, num_heads, head_dim, o_scale, z_scale)) in [
        (1, 1, 1, 1, 1.0, 1.0),
        (1, 1, 1, 64, 1.0, 4.0),
        (2, 2, 3, 65, 1.0, 4.0),
        (1, 1, 48, 128, 1.0, 8.0),
        (5, 3, 6, 128, 1e-3, 8.0),
        (2, 2, 2, 128, 10_000.0, 10_000.0),
        (3, 0, 2, 16, 1.0, 1.0),
        (2, 7, 2, 16, 1.0, 1.0),
        (1366, 690, 48, 2, 1.0, 1.0),
    ]
    .into_iter()
    .enumerate()
    {
        let mut c = CaseBuilder::new(900 + i as u32);
        c.state.n_tokens = n_tokens;
        let o = c.random(rows, num_heads * head_dim, o_scale);
        let z = c.random(rows, num_heads * head_dim, z_scale);
        let weight = c.random(1, head_dim, 2.0);
        let out = c.output(rows, num_heads * head_dim);
        cases.push(c.finish(
            format!("{num_heads} heads of {head_dim}, {n_tokens} of {rows} tokens to {o_scale}, gates to {z_scale}"),
            gated_norm(o, z, weight, out, num_heads, 1e-6),
            TOLERANCE,
        )?);
    }
    Ok(cases)
}
