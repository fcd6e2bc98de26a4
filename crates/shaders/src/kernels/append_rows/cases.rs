//! Cases of the kernel.

use super::append_rows;
use crate::case::{Case, CaseBuilder, Tolerance};
use crate::kernel::ShapeError;

/// A copy is exact.
const TOLERANCE: Tolerance = Tolerance { absolute: 0.0, relative: 0.0 };

/// One element, one workgroup, one past it, short steps, the cache's end, more than 65,535 groups.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let mut cases = Vec::new();
    for (i, (rows, cols, context, n_tokens, position)) in [
        (1, 1, 1, 1, 0),
        (1, 64, 5, 1, 4),
        (1, 65, 5, 1, 2),
        (4, 48, 9, 3, 5),
        (4, 48, 9, 4, 7),
        (4, 48, 9, 4, 9),
        (4, 48, 9, 0, 3),
        (2, 16, 9, 5, 3),
        (9, 466_040, 10, 9, 1),
    ]
    .into_iter()
    .enumerate()
    {
        let mut c = CaseBuilder::new(300 + i as u32);
        c.state.n_tokens = n_tokens;
        c.state.position = position;
        let x = c.random(rows, cols, 1.0);
        let cache = c.output(context, cols);
        cases.push(c.finish(
            format!("{n_tokens} of {rows} rows of {cols} at {position} of {context}"),
            append_rows(x, cache),
            TOLERANCE,
        )?);
    }
    Ok(cases)
}
