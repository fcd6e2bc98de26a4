//! Cases of the kernel.

use super::sigmoid_gate;
use crate::case::{Case, CaseBuilder, Tolerance};
use crate::kernel::ShapeError;

/// WGSL grants `exp` 3 + 2|x| units in the last place. Relative to a sigmoid that counts (gates of
/// -20 and more) that is 43 * 2^-23; smaller ones are below 2e-9 of `x`, which is below 1.
const TOLERANCE: Tolerance = Tolerance { absolute: 1e-8, relative: 6e-6 };

/// One element, one workgroup, one past it, short steps, gates far beyond where `exp` overflows.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let mut cases = Vec::new();
    for (i, (rows, heads, head_dim, n_tokens, gates)) in [
        (1, 1, 1, 1, 2.0),
        (1, 1, 64, 1, 5.0),
        (1, 5, 13, 1, 20.0),
        (5, 3, 64, 3, 8.0),
        (2, 6, 256, 2, 10_000.0),
        (2, 2, 8, 9, 1.0),
        (3, 2, 8, 0, 1.0),
    ]
    .into_iter()
    .enumerate()
    {
        let mut c = CaseBuilder::new(500 + i as u32);
        c.state.n_tokens = n_tokens;
        let x = c.random(rows, heads * head_dim, 1.0);
        let qg = c.random(rows, heads * 2 * head_dim, gates);
        cases.push(c.finish(
            format!("{heads} heads of {head_dim}, {n_tokens} of {rows} tokens, gates to {gates}"),
            sigmoid_gate(x, qg, head_dim),
            TOLERANCE,
        )?);
    }
    Ok(cases)
}
