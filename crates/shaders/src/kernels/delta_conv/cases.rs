//! Cases of the kernel.

use super::delta_conv;
use crate::case::{Case, CaseBuilder, Tolerance};
use crate::kernel::ShapeError;
use crate::kernels::delta_net::DeltaShape;
use crate::kernels::delta_step::RING_ROWS;

/// Four products of numbers below `scale` and 1 round to 7 * 2^-24 * 4 * scale at most, 2e-6 for
/// every unit of `scale`; SiLU has a slope below 1.1, and its `exp` 43 * 2^-23 down to -20. The norm
/// divides errors by the root of the sum of squares and eps, and adds those of the other elements: ten
/// times the error at most, since the elements of a head have a root mean square above 0.1, eps
/// included. The sum of squares rounds at most 66 times, halved by the root, and two roots, a product
/// and a division follow at up to 2.5 units in the last place each: 44 * 2^-24, 3e-6.
fn tolerance(scale: f32) -> Tolerance {
    Tolerance { absolute: 2e-5 * scale, relative: 9e-6 }
}

struct Spec {
    rows: u32,
    n_tokens: u32,
    position: u32,
    taps: u32,
    shape: DeltaShape,
    scale: f32,
}

/// Two, three and four taps; fewer tokens than the ring has rows, as many, and more; one block of
/// tokens and one more token; heads around the 64 invocations; values that are no whole heads; every
/// place in the ring; large inputs.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let spec = |rows, position, num_key_heads, num_value_heads, key_head_dim, value_head_dim| Spec {
        rows,
        n_tokens: rows,
        position,
        taps: 4,
        shape: DeltaShape { num_key_heads, num_value_heads, key_head_dim, value_head_dim },
        scale: 1.0,
    };
    let specs = [
        spec(1, 0, 1, 1, 1, 1),
        spec(1, 5, 2, 2, 64, 64),
        spec(2, 6, 1, 3, 65, 7),
        spec(3, 7, 2, 6, 16, 20),
        spec(4, 1, 2, 4, 16, 16),
        spec(5, 2, 2, 4, 16, 16),
        spec(8, 3, 1, 2, 128, 128),
        spec(9, 4, 1, 2, 128, 128),
        spec(70, 0, 2, 4, 32, 32),
        spec(1, 9, 16, 48, 128, 128),
        Spec { taps: 3, ..spec(1, 3, 2, 4, 12, 12) },
        Spec { taps: 3, ..spec(5, 3, 2, 4, 12, 12) },
        Spec { taps: 2, ..spec(1, 2, 2, 4, 12, 12) },
        Spec { taps: 2, ..spec(10, 2, 2, 4, 12, 12) },
        Spec { n_tokens: 11, ..spec(24, 2, 2, 4, 16, 16) },
        Spec { n_tokens: 0, ..spec(8, 2, 2, 4, 16, 16) },
        Spec { n_tokens: 7, ..spec(2, 2, 2, 4, 16, 16) },
        Spec { scale: 10_000.0, ..spec(4, 2, 2, 4, 16, 16) },
    ];
    let mut cases = Vec::new();
    for (i, spec) in specs.into_iter().enumerate() {
        let Spec { rows, n_tokens, position, taps, shape, scale } = spec;
        let DeltaShape { num_key_heads, num_value_heads, key_head_dim, value_head_dim } = shape;
        let mut c = CaseBuilder::new(700 + i as u32);
        (c.state.n_tokens, c.state.position) = (n_tokens, position);
        let channels = 2 * num_key_heads * key_head_dim + num_value_heads * value_head_dim;
        // A column on either side.
        let u = c.random(rows, channels + 2, scale).columns(1, channels);
        let weight = c.random(channels, taps, 1.0);
        let ring = c.random(RING_ROWS, channels, scale);
        let y = c.output(rows, channels);
        cases.push(c.finish(
            format!(
                "{taps} taps, {num_key_heads}/{num_value_heads} heads of {key_head_dim} and {value_head_dim}, \
                 {n_tokens} of {rows} tokens from {position}, inputs to {scale}"
            ),
            delta_conv(u, weight, ring, y, shape, 0.01),
            tolerance(scale),
        )?);
    }
    Ok(cases)
}
