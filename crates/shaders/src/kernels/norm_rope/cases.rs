//! Cases of the kernel.

use super::{HeadShape, norm_rope};
use crate::case::{Case, CaseBuilder, Tolerance};
use crate::kernel::{ShapeError, Tensor};

/// A normed element is at most sqrt(3) times a weight below 2, and the sum under its root has at
/// most 4 + 64 roundings of 2^-24, of which the root halves the effect: 34 and 4 more in the
/// products, times 3.5 in each of two terms that may cancel, is 1.6e-5.
const TOLERANCE: Tolerance = Tolerance { absolute: 2e-5, relative: 0.0 };

/// Cosines and sines of every position with theta 1e6, as an engine makes them.
pub(crate) fn rope_table(c: &mut CaseBuilder, context: u32, n_rot: u32) -> Tensor {
    let angle = |position: u32, pair: u32| {
        f64::from(position) * 1e6f64.powf(-2.0 * f64::from(pair) / f64::from(n_rot))
    };
    let mut table = Vec::with_capacity((context * n_rot) as usize);
    for position in 0..context {
        table.extend((0..n_rot / 2).map(|pair| angle(position, pair).cos() as f32));
        table.extend((0..n_rot / 2).map(|pair| angle(position, pair).sin() as f32));
    }
    c.values(context, n_rot, &table)
}

struct Spec {
    rows: u32,
    n_tokens: u32,
    position: u32,
    context: u32,
    shape: HeadShape,
    at_position: bool,
    scale: f32,
}

/// Head sizes around the 64 invocations, partial rotation, interleaved gates, writing into a
/// cache up to and past its end, and more (token, head) pairs than one axis of a grid holds.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let head = |heads, head_dim, n_rot| HeadShape { heads, head_dim, stride: head_dim, n_rot };
    let gated = |heads, head_dim, n_rot| HeadShape { heads, head_dim, stride: 2 * head_dim, n_rot };
    let plain = |rows, n_tokens, position, shape| Spec {
        rows,
        n_tokens,
        position,
        context: position + rows,
        shape,
        at_position: false,
        scale: 1.0,
    };
    let specs = [
        plain(1, 1, 0, head(1, 2, 2)),
        plain(1, 1, 3, head(1, 64, 64)),
        plain(2, 2, 9, head(3, 66, 66)),
        plain(3, 3, 100, head(4, 128, 128)),
        plain(5, 5, 7, gated(6, 256, 64)),
        plain(4, 4, 0, gated(3, 64, 16)),
        plain(8, 3, 2, head(2, 128, 32)),
        plain(4, 0, 2, head(2, 8, 8)),
        plain(3, 9, 1, head(2, 12, 6)),
        Spec { at_position: true, context: 40, ..plain(4, 4, 30, head(2, 128, 128)) },
        Spec { at_position: true, context: 33, ..plain(4, 4, 30, head(1, 256, 64)) },
        Spec { context: 4, ..plain(4, 4, 2, head(2, 16, 4)) },
        Spec { scale: 10_000.0, ..plain(2, 2, 5, head(2, 128, 128)) },
        plain(1366, 690, 0, head(48, 4, 2)),
    ];
    let mut cases = Vec::new();
    for (i, spec) in specs.into_iter().enumerate() {
        let Spec { rows, n_tokens, position, context, shape, at_position, scale } = spec;
        let mut c = CaseBuilder::new(200 + i as u32);
        c.state.n_tokens = n_tokens;
        c.state.position = position;
        let x = c.random(rows, shape.heads * shape.stride, scale);
        let weight = c.random(1, shape.head_dim, 2.0);
        let rope = rope_table(&mut c, context, shape.n_rot);
        let out = c.output(if at_position { context } else { rows }, shape.heads * shape.head_dim);
        let place = if at_position { "cache" } else { "rows" };
        cases.push(c.finish(
            format!(
                "{} heads of {} by {}, {} rotate, {n_tokens} of {rows} tokens from {position} of {context}, to {place}",
                shape.heads, shape.head_dim, shape.stride, shape.n_rot
            ),
            norm_rope(x, weight, rope, out, shape, 1e-6, at_position),
            TOLERANCE,
        )?);
    }
    Ok(cases)
}
