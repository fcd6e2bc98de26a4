//! Cases of the kernel.

use super::silu_mul;
use crate::case::{Case, CaseBuilder, Tolerance};
use crate::kernel::ShapeError;

/// WGSL grants `exp` 3 + 2|x| units in the last place: relative to the result 43 * 2^-23 for gates
/// down to -20, and an absolute 2e-9 * 20 * |up| below them, with `up` below 1.
const TOLERANCE: Tolerance = Tolerance { absolute: 5e-8, relative: 6e-6 };

/// One element, one workgroup, one past it, short steps, gates far beyond where `exp` overflows.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let mut cases = Vec::new();
    for (i, (rows, cols, n_tokens, gates)) in [
        (1, 1, 1, 1.0),
        (1, 64, 1, 5.0),
        (1, 65, 1, 20.0),
        (7, 100, 4, 90.0),
        (2, 3584, 2, 10_000.0),
        (2, 64, 2, 1e30),
        (2, 8, 9, 1.0),
        (3, 8, 0, 1.0),
    ]
    .into_iter()
    .enumerate()
    {
        let mut c = CaseBuilder::new(600 + i as u32);
        c.state.n_tokens = n_tokens;
        let mut values = Vec::new();
        for _ in 0..rows {
            values.extend((0..cols).map(|_| c.rng.uniform() * gates));
            values.extend((0..cols).map(|_| c.rng.uniform()));
        }
        let gate_up = c.values(rows, 2 * cols, &values);
        let out = c.output(rows, cols);
        cases.push(c.finish(
            format!("{n_tokens} of {rows} rows of {cols}, gates to {gates}"),
            silu_mul(gate_up, out),
            TOLERANCE,
        )?);
    }
    Ok(cases)
}
