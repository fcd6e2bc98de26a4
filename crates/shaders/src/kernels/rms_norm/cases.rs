//! Cases of the kernel.

use super::rms_norm;
use crate::case::{Case, CaseBuilder, Tolerance};
use crate::kernel::ShapeError;

/// The GPU sums at most 8192 squares in f32: 64 chains of 128 and then 64 more, so about 192
/// roundings of 2^-24 in the sum, half of that in its root, and four more in the products.
const TOLERANCE: Tolerance = Tolerance { absolute: 0.0, relative: 1e-5 };

/// Widths around the 64 invocations, one row and many, a step shorter than the plan, large values.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let mut cases = Vec::new();
    for (i, (rows, cols, n_tokens, scale)) in [
        (1, 1, 1, 1.0),
        (1, 63, 1, 1.0),
        (1, 64, 1, 1.0),
        (3, 65, 3, 1.0),
        (8, 256, 5, 1.0),
        (2, 5120, 2, 800.0),
        (4, 128, 0, 1.0),
    ]
    .into_iter()
    .enumerate()
    {
        let mut c = CaseBuilder::new(100 + i as u32);
        c.state.n_tokens = n_tokens;
        let x = c.random(rows, cols, scale);
        let weight = c.random(1, cols, 2.0);
        let out = c.output(rows, cols);
        cases.push(c.finish(
            format!("{rows}x{cols}, {n_tokens} tokens"),
            rms_norm(x, weight, out, 1e-6),
            TOLERANCE,
        )?);
    }
    Ok(cases)
}
