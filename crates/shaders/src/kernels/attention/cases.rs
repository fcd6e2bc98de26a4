//! Cases of the kernel.

use super::attention;
use crate::case::{Case, CaseBuilder, Tolerance};
use crate::kernel::ShapeError;
use crate::kernels::qkv::{AttentionShape, KvCache};

/// Values are below 1. A score has up to 67 roundings of 2^-24 of `sum |q k| * scale`, below 4
/// for these cases: as a random walk 8 * 2.4e-7 = 2e-6 (1.6e-5 if all went one way). WGSL grants
/// `exp` 3 + 2|x| units in the last place, 4e-7 where a weight counts, and the sigmoid of a gate of up
/// to 8 as much as 2.3e-6. An error that all weights share cancels in the quotient, and independent
/// ones average out.
const TOLERANCE: Tolerance = Tolerance { absolute: 3e-6, relative: 3e-6 };

struct Spec {
    rows: u32,
    n_tokens: u32,
    position: u32,
    context: u32,
    shape: AttentionShape,
    q_scale: f32,
}

/// One key, the last of a tile and the first of the next, several tiles; groups of one to eight, whose
/// tokens fall into two workgroups, and one query past a workgroup; head sizes that leave invocations
/// over; gates; scores around 1e4 (where the best key takes all), and a full cache.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let spec = |rows, position, num_heads, num_kv_heads, head_dim| Spec {
        rows,
        n_tokens: rows,
        position,
        context: position + rows,
        shape: AttentionShape { num_heads, num_kv_heads, head_dim, gated: false },
        q_scale: 1.0,
    };
    let gated = |spec: Spec| Spec { shape: AttentionShape { gated: true, ..spec.shape }, ..spec };
    let specs = [
        spec(1, 0, 1, 1, 4),
        spec(1, 63, 1, 1, 64),
        spec(1, 64, 2, 2, 64),
        spec(5, 0, 6, 2, 64),
        spec(3, 254, 2, 1, 128),
        gated(spec(2, 255, 6, 1, 256)),
        spec(1, 256, 4, 2, 96),
        gated(spec(2, 700, 6, 3, 20)),
        spec(1, 1100, 6, 2, 64),
        gated(spec(2, 1099, 2, 2, 256)),
        spec(70, 3, 3, 1, 64),
        gated(spec(11, 60, 6, 1, 36)),
        gated(spec(8, 5, 8, 2, 128)),
        spec(33, 31, 1, 1, 32),
        Spec { context: 50, ..spec(3, 20, 2, 1, 64) },
        gated(Spec { n_tokens: 2, ..spec(6, 30, 2, 1, 64) }),
        Spec { n_tokens: 0, ..spec(4, 3, 2, 1, 64) },
        Spec { n_tokens: 9, ..spec(2, 3, 2, 1, 8) },
        Spec { context: 12, ..spec(4, 10, 2, 1, 8) },
        // The largest that a probe may be: several tiles of keys at a real head size.
        spec(3, 310, 4, 2, 128),
        Spec { q_scale: 10_000.0, ..spec(3, 300, 2, 1, 64) },
    ];
    let mut cases = Vec::new();
    for (i, spec) in specs.into_iter().enumerate() {
        let Spec { rows, n_tokens, position, context, shape, q_scale } = spec;
        let mut c = CaseBuilder::new(400 + i as u32);
        c.state.n_tokens = n_tokens;
        c.state.position = position;
        let q = c.random(rows, shape.q_cols(), q_scale);
        let qkv = c.random(rows, shape.qkv_cols(), 8.0);
        let cache = KvCache {
            k: c.random(context, shape.kv_cols(), 1.0),
            v: c.random(context, shape.kv_cols(), 1.0),
        };
        let out = c.output(rows, shape.q_cols());
        let scale = (1.0 / f64::from(shape.head_dim).sqrt()) as f32;
        cases.push(c.finish(
            format!(
                "{}/{} heads of {}{}, {n_tokens} of {rows} tokens from {position} of {context}, queries to {q_scale}",
                shape.num_heads,
                shape.num_kv_heads,
                shape.head_dim,
                if shape.gated { " with gates" } else { "" },
            ),
            attention(q, qkv, cache, out, shape, scale),
            TOLERANCE,
        )?);
    }
    Ok(cases)
}
