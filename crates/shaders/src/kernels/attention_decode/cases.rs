//! Cases of the kernel.

use super::{STATISTICS, attention_decode, tile_keys};
use crate::case::{Case, CaseBuilder, Tolerance};
use crate::kernel::ShapeError;
use crate::kernels::qkv::{AttentionShape, KvCache, random};

/// Of a score, a maximum or an element of the new key. Norm weights are below 1, so that a query has at
/// most the length sqrt(head_dim), and cached keys are below 1: a score is a sum of 256 products with
/// a magnitude below 16 in all, mostly around 5. As a random walk its 67 roundings of 2^-24 and the
/// 24 of the norm (see `qkv_rope_append`) come to 5 * (8 + 24) * 6e-8 = 1e-5.
const SCORE: f32 = 1e-5;

/// WGSL grants `exp` 3 + 2|x| units in the last place: 4e-7 where a weight counts.
const EXP: f32 = 4e-7;

struct Spec {
    position: u32,
    context: u32,
    n_splits: u32,
    shape: AttentionShape,
    n_rot: u32,
    n_tokens: u32,
    old_keys: f32,
}

/// The first position, the last and the first of a tile, of a split and of a round of all splits, the
/// cache's end and past it, groups of 1 to 64, gates, partial rotation, head
/// sizes that leave invocations over, more splits than keys, and scores around 1e4.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let spec = |position, num_heads, num_kv_heads, head_dim, n_splits| Spec {
        position,
        context: position + 1,
        n_splits,
        shape: AttentionShape { num_heads, num_kv_heads, head_dim, gated: false },
        n_rot: head_dim,
        n_tokens: 1,
        old_keys: 1.0,
    };
    let gated =
        |n_rot, spec: Spec| Spec { n_rot, shape: AttentionShape { gated: true, ..spec.shape }, ..spec };
    let specs = [
        spec(0, 1, 1, 4, 1),
        Spec { context: 40, ..spec(0, 2, 1, 64, 4) },
        // Tiles of 256 keys.
        spec(255, 1, 1, 64, 2),
        spec(256, 2, 2, 64, 2),
        spec(600, 1, 1, 12, 2),
        // Tiles of 128.
        Spec { context: 140, ..spec(127, 4, 2, 128, 3) },
        spec(128, 4, 2, 128, 3),
        spec(383, 4, 2, 128, 3),
        spec(384, 4, 2, 128, 3),
        Spec { context: 900, ..spec(777, 2, 1, 20, 3) },
        // Tiles of 40, 32, 84, 48, 16 and 4.
        gated(64, spec(39, 6, 1, 256, 3)),
        gated(64, spec(40, 12, 2, 256, 3)),
        gated(64, Spec { context: 300, ..spec(250, 6, 1, 256, 3) }),
        spec(100, 8, 1, 128, 2),
        gated(16, spec(95, 8, 1, 256, 3)),
        gated(6, spec(170, 3, 1, 12, 8)),
        gated(2, spec(33, 5, 1, 8, 5)),
        gated(64, spec(70, 16, 1, 256, 2)),
        spec(9, 64, 1, 8, 2),
        Spec { n_tokens: 0, ..spec(5, 2, 1, 8, 2) },
        Spec { context: 5, ..spec(5, 2, 1, 8, 2) },
        Spec { old_keys: 10_000.0, ..spec(300, 4, 2, 64, 2) },
    ];
    let mut cases = Vec::new();
    for (i, spec) in specs.into_iter().enumerate() {
        let Spec { position, context, n_splits, shape, n_rot, n_tokens, old_keys } = spec;
        let AttentionShape { num_heads, num_kv_heads, head_dim, gated } = shape;
        let mut c = CaseBuilder::new(600 + i as u32);
        c.state.n_tokens = n_tokens;
        c.state.position = position;
        let qkv = c.random(1, shape.qkv_cols(), 1.0);
        let norm_rope = random::norm_rope(&mut c, head_dim, context, n_rot, 1.0);
        let k = c.random(context, shape.kv_cols(), old_keys);
        let v = c.random(context, shape.kv_cols(), 1.0);
        let queries = c.output(num_heads * n_splits, head_dim);
        let partials = c.output(num_heads * n_splits, head_dim + STATISTICS);
        let scale = (1.0 / f64::from(head_dim).sqrt()) as f32;
        // Each weight of the sums carries the error of its score and of the maximum. Scores that grow
        // with the keys leave one weight of 1, but their own error grows as well.
        let tile = tile_keys(shape.group());
        let most_keys = (position / (tile * n_splits) + 1) * tile.min(position + 1);
        let sums = most_keys as f32 * (2.0 * SCORE + EXP);
        let tolerance = Tolerance { absolute: sums.max(SCORE), relative: SCORE };
        cases.push(c.finish(
            format!(
                "{num_heads}/{num_kv_heads} heads of {head_dim}{}, {n_rot} rotate, {n_tokens} token at {position} of \
                 {context} in {n_splits} splits, keys to {old_keys}",
                if gated { " with gates" } else { "" },
            ),
            attention_decode(qkv, norm_rope, KvCache { k, v }, queries, partials, shape, scale),
            tolerance,
        )?);
    }
    Ok(cases)
}
