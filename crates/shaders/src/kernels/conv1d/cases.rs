//! Cases of the kernel.

use super::conv1d;
use crate::case::{Case, CaseBuilder, Tolerance};
use crate::kernel::ShapeError;

/// Four products of numbers below `scale` and 1 round to 7 * 2^-24 * 4 * scale at most, 2e-6 for
/// every unit of `scale`; SiLU has a slope below 1.1, and its `exp` 43 * 2^-23 down to -20.
fn tolerance(scale: f32) -> Tolerance {
    Tolerance { absolute: 2e-6 * scale, relative: 6e-6 }
}

/// Two, three and four taps; fewer tokens than the state has rows, as many, and more; one
/// workgroup and one past it; large inputs.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let mut cases = Vec::new();
    for (i, (channels, taps, rows, n_tokens, scale)) in [
        (1, 4, 1, 1, 1.0),
        (64, 4, 2, 2, 1.0),
        (65, 4, 3, 3, 1.0),
        (100, 4, 9, 9, 1.0),
        (6144, 4, 1, 1, 1.0),
        (10_240, 4, 3, 2, 1.0),
        (70, 3, 1, 1, 1.0),
        (70, 3, 5, 5, 1.0),
        (70, 2, 1, 1, 1.0),
        (70, 2, 4, 4, 1.0),
        (96, 4, 8, 5, 1.0),
        (96, 4, 8, 0, 1.0),
        (96, 4, 2, 7, 1.0),
        (96, 4, 4, 4, 10_000.0),
    ]
    .into_iter()
    .enumerate()
    {
        let mut c = CaseBuilder::new(700 + i as u32);
        c.state.n_tokens = n_tokens;
        let u = c.random(rows, channels, scale);
        let weight = c.random(channels, taps, 1.0);
        let conv_state = c.random(taps - 1, channels, scale);
        let y = c.output(rows, channels);
        cases.push(c.finish(
            format!("{taps} taps, {channels} channels, {n_tokens} of {rows} tokens, inputs to {scale}"),
            conv1d(u, weight, conv_state, y),
            tolerance(scale),
        )?);
    }
    Ok(cases)
}
