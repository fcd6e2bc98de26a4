//! Cases of the kernel.

use super::{AttentionShape, attention};
use crate::case::{Case, CaseBuilder, Tolerance};
use crate::kernel::ShapeError;

/// Values are below 1. A score has up to 64 roundings of 2^-24 of `sum |q k| * scale`, below 4
/// for these cases: as a random walk 8 * 2.4e-7 = 2e-6 (1.5e-5 if all went one way). WGSL grants
/// `exp` 3 + 2|x| units in the last place, 4e-7 where a weight counts. An error that all weights
/// share cancels in the quotient, and independent ones average out.
const TOLERANCE: Tolerance = Tolerance { absolute: 3e-6, relative: 1e-6 };

struct Spec {
    rows: u32,
    n_tokens: u32,
    position: u32,
    context: u32,
    heads: AttentionShape,
    q_scale: f32,
}

/// One key, the last of a tile and the first of the next, several tiles, one to three query heads
/// per key head, head sizes that leave invocations over, scores around 1e4 (where the best key
/// takes all), and a full cache.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let spec = |rows, position, num_heads, num_kv_heads, head_dim| Spec {
        rows,
        n_tokens: rows,
        position,
        context: position + rows,
        heads: AttentionShape { num_heads, num_kv_heads, head_dim },
        q_scale: 1.0,
    };
    let specs = [
        spec(1, 0, 1, 1, 4),
        spec(1, 63, 1, 1, 64),
        spec(1, 64, 2, 2, 64),
        spec(5, 0, 6, 2, 64),
        spec(3, 254, 2, 1, 128),
        spec(2, 255, 3, 1, 256),
        spec(1, 256, 4, 2, 96),
        spec(2, 700, 6, 3, 20),
        spec(1, 1100, 6, 2, 64),
        spec(2, 1099, 2, 2, 256),
        spec(70, 3, 3, 1, 64),
        Spec { context: 50, ..spec(3, 20, 2, 1, 64) },
        Spec { n_tokens: 2, ..spec(6, 30, 2, 1, 64) },
        Spec { n_tokens: 0, ..spec(4, 3, 2, 1, 64) },
        Spec { n_tokens: 9, ..spec(2, 3, 2, 1, 8) },
        Spec { context: 12, ..spec(4, 10, 2, 1, 8) },
        // The largest that a probe may be: two tiles of keys at a real head size.
        spec(3, 310, 4, 2, 128),
        Spec { q_scale: 10_000.0, ..spec(3, 300, 2, 1, 64) },
    ];
    let mut cases = Vec::new();
    for (i, spec) in specs.into_iter().enumerate() {
        let Spec { rows, n_tokens, position, context, heads, q_scale } = spec;
        let AttentionShape { num_heads, num_kv_heads, head_dim } = heads;
        let mut c = CaseBuilder::new(400 + i as u32);
        c.state.n_tokens = n_tokens;
        c.state.position = position;
        let q = c.random(rows, num_heads * head_dim, q_scale);
        let k_cache = c.random(context, num_kv_heads * head_dim, 1.0);
        let v_cache = c.random(context, num_kv_heads * head_dim, 1.0);
        let out = c.output(rows, num_heads * head_dim);
        let scale = (1.0 / f64::from(head_dim).sqrt()) as f32;
        cases.push(c.finish(
            format!(
                "{num_heads}/{num_kv_heads} heads of {head_dim}, {n_tokens} of {rows} tokens from {position} of \
                 {context}, queries to {q_scale}"
            ),
            attention(q, k_cache, v_cache, out, heads, scale),
            TOLERANCE,
        )?);
    }
    Ok(cases)
}
