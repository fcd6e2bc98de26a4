//! Cases of the kernel.

use super::l2_norm;
use crate::case::{Case, CaseBuilder, Tolerance};
use crate::kernel::ShapeError;

/// A sum of squares rounds at most 4 + 64 times (2^-24 each, halved by the root), and two roots, a
/// product and a division follow at up to 2.5 units in the last place each: 44 * 2^-24.
const TOLERANCE: Tolerance = Tolerance { absolute: 0.0, relative: 5e-6 };

/// Heads around the 64 invocations, short steps, tiny and large heads, and more (token, head)
/// pairs than one axis of a grid holds.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let mut cases = Vec::new();
    for (i, (rows, n_tokens, key_heads, head_dim, values, scale)) in [
        (1, 1, 1, 1, 0, 1.0),
        (1, 1, 1, 64, 64, 1.0),
        (2, 2, 2, 65, 7, 1.0),
        (5, 3, 4, 128, 512, 1.0),
        (1, 1, 16, 128, 6144, 1.0),
        (2, 2, 2, 128, 3, 1e-4),
        (2, 2, 2, 128, 3, 10_000.0),
        (3, 0, 2, 16, 8, 1.0),
        (2, 6, 2, 16, 8, 1.0),
        (2049, 1030, 16, 2, 1, 1.0),
    ]
    .into_iter()
    .enumerate()
    {
        let mut c = CaseBuilder::new(800 + i as u32);
        c.state.n_tokens = n_tokens;
        let y = c.random(rows, 2 * key_heads * head_dim + values, scale);
        cases.push(c.finish(
            format!("2x{key_heads} heads of {head_dim} and {values} values, {n_tokens} of {rows} tokens to {scale}"),
            l2_norm(y, key_heads, head_dim, 1e-6),
            TOLERANCE,
        )?);
    }
    Ok(cases)
}
