//! Cases of the kernel.

use super::qkv_rope_append;
use crate::case::{Case, CaseBuilder, Tolerance};
use crate::kernel::ShapeError;
use crate::kernels::qkv::{AttentionShape, KvCache, random};

/// A normed element is at most sqrt(3) times a weight below 2, and the sum under its root has at
/// most 32 + 8 roundings of 2^-24, of which the root halves the effect: 20 and 4 more in the
/// products, times 3.5 in each of two terms that may cancel, is 1e-5.
const TOLERANCE: Tolerance = Tolerance { absolute: 1e-5, relative: 0.0 };

struct Spec {
    rows: u32,
    n_tokens: u32,
    position: u32,
    context: u32,
    shape: AttentionShape,
    n_rot: u32,
    scale: f32,
}

/// One workgroup of heads and one head past it, head sizes around the 8 invocations, partial rotation,
/// gates, appending up to and past the cache's end, and more workgroups than one axis of a grid holds.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let heads = |num_heads, num_kv_heads, head_dim| AttentionShape {
        num_heads,
        num_kv_heads,
        head_dim,
        gated: false,
    };
    let gated = |num_heads, num_kv_heads, head_dim| AttentionShape {
        gated: true,
        ..heads(num_heads, num_kv_heads, head_dim)
    };
    let plain = |rows, position, shape, n_rot| Spec {
        rows,
        n_tokens: rows,
        position,
        context: position + rows,
        shape,
        n_rot,
        scale: 1.0,
    };
    let specs = [
        plain(1, 0, heads(1, 1, 4), 2),
        plain(1, 3, heads(4, 2, 64), 64),
        plain(1, 2, heads(7, 1, 12), 6),
        plain(2, 9, heads(3, 3, 68), 68),
        plain(3, 100, heads(4, 2, 128), 128),
        plain(5, 7, gated(6, 1, 256), 64),
        plain(4, 0, gated(3, 1, 64), 16),
        Spec { n_tokens: 3, ..plain(8, 2, heads(2, 1, 128), 32) },
        Spec { n_tokens: 0, ..plain(4, 2, heads(2, 1, 8), 8) },
        Spec { n_tokens: 9, ..plain(3, 1, heads(2, 2, 12), 6) },
        Spec { context: 40, ..plain(4, 30, heads(2, 2, 128), 128) },
        Spec { context: 33, ..plain(4, 30, gated(2, 1, 256), 64) },
        Spec { context: 4, ..plain(4, 4, heads(2, 1, 16), 4) },
        Spec { scale: 10_000.0, ..plain(2, 5, heads(2, 1, 128), 128) },
        Spec { n_tokens: 600, ..plain(1311, 0, heads(398, 1, 4), 2) },
    ];
    let mut cases = Vec::new();
    for (i, spec) in specs.into_iter().enumerate() {
        let Spec { rows, n_tokens, position, context, shape, n_rot, scale } = spec;
        let mut c = CaseBuilder::new(200 + i as u32);
        c.state.n_tokens = n_tokens;
        c.state.position = position;
        let qkv = c.random(rows, shape.qkv_cols(), scale);
        let norm_rope = random::norm_rope(&mut c, shape.head_dim, context, n_rot, 2.0);
        let q = c.output(rows, shape.q_cols());
        let cache = KvCache { k: c.output(context, shape.kv_cols()), v: c.output(context, shape.kv_cols()) };
        cases.push(c.finish(
            format!(
                "{}/{} heads of {}{}, {n_rot} rotate, {n_tokens} of {rows} tokens from {position} of {context}",
                shape.num_heads,
                shape.num_kv_heads,
                shape.head_dim,
                if shape.gated { " with gates" } else { "" },
            ),
            qkv_rope_append(qkv, norm_rope, q, cache, shape),
            TOLERANCE,
        )?);
    }
    Ok(cases)
}
