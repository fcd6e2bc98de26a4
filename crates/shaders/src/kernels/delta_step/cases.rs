//! Cases of the kernel.

use super::{DeltaWeights, RING_ROWS, delta_step};
use crate::case::{Case, CaseBuilder, Tolerance};
use crate::kernel::ShapeError;
use crate::kernels::delta_net::DeltaShape;

/// Inputs and taps are below 1, so that SiLU gets at most 4 in magnitude, where WGSL grants `exp`
/// 11 units in the last place, 1.3e-6 of its result: values are off by 5e-6 at most, and keys,
/// being of length one, by less. The state takes that over once, and an output is a sum with a
/// query of length one, divided by the root mean square of its head: a factor of two for `norm`,
/// and two more for outputs above the mean.
const TOLERANCE: Tolerance = Tolerance { absolute: 2e-5, relative: 2e-5 };

struct Spec {
    shape: DeltaShape,
    taps: u32,
    position: u32,
    n_tokens: u32,
    gates: f32,
}

/// One to three value heads per key head, heads from one element to more than the 64 invocations,
/// two to four taps, every row of the ring, gates at both ends, and no token.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let spec = |num_key_heads, num_value_heads, key_head_dim, value_head_dim, taps, position| Spec {
        shape: DeltaShape { num_key_heads, num_value_heads, key_head_dim, value_head_dim },
        taps,
        position,
        n_tokens: 1,
        gates: 3.0,
    };
    let specs = [
        spec(1, 1, 2, 2, 4, 0),
        spec(1, 3, 16, 65, 4, 1),
        spec(2, 4, 32, 32, 4, 2),
        spec(2, 2, 64, 64, 3, 3),
        spec(2, 6, 33, 70, 2, 4),
        spec(16, 48, 8, 16, 4, 1001),
        spec(2, 4, 128, 128, 4, 7),
        spec(1, 2, 130, 200, 4, 6),
        Spec { gates: 10_000.0, ..spec(2, 4, 16, 16, 4, 5) },
        Spec { n_tokens: 0, ..spec(2, 4, 16, 16, 4, 5) },
    ];
    let mut cases = Vec::new();
    for (spec, seed) in specs.into_iter().zip(1600..) {
        let Spec { shape, taps, position, n_tokens, gates } = spec;
        let DeltaShape { num_key_heads, num_value_heads, key_head_dim, value_head_dim } = shape;
        let mut c = CaseBuilder::new(seed);
        (c.state.n_tokens, c.state.position) = (n_tokens, position);
        let values = num_value_heads * value_head_dim;
        let channels = 2 * num_key_heads * key_head_dim + values;
        let n_inputs = channels + values;
        let row: Vec<f32> = (0..n_inputs + 2 * num_value_heads)
            .map(|i| if i < n_inputs { c.rng.uniform() } else { gates * c.rng.uniform() })
            .collect();
        let projected = c.values(1, row.len() as u32, &row);
        let decays: Vec<f32> = (0..num_value_heads).map(|_| -1.1 + c.rng.uniform()).collect();
        let weights = DeltaWeights {
            conv: c.random(channels, taps, 1.0),
            ssm_a: c.values(1, num_value_heads, &decays),
            dt_bias: c.random(1, num_value_heads, 1.0),
            norm: c.random(1, value_head_dim, 2.0),
        };
        let ring = c.random(RING_ROWS, channels, 1.0);
        let s = c.random(num_value_heads * key_head_dim, value_head_dim, 1.0);
        let out = c.output(1, values);
        cases.push(c.finish(
            format!(
                "{num_key_heads}/{num_value_heads} heads of {key_head_dim} x {value_head_dim}, {taps} taps, \
                 position {position}, {n_tokens} tokens, gates to {gates}"
            ),
            delta_step(projected, weights, ring, s, out, shape, 1e-6),
            TOLERANCE,
        )?);
    }
    Ok(cases)
}
