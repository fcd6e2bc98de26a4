//! Cases of the kernel.

use super::kivi_decode;
use crate::case::{Case, CaseBuilder, Tolerance};
use crate::kernel::ShapeError;
use crate::kernels::kivi;
use crate::kernels::qkv::{self, AttentionShape};

/// As for `kivi_attention`, where the sums are divided by the sum of weights. Here a shared error is
/// one of 1e-5 of each sum, and the independent ones of `n_rows` weights, each at most 1, of 1e-5, with
/// values below 2 add up like a random walk. Codes and scales are equal: the values are clear
/// of rounding edges.
fn tolerance(n_rows: u32) -> Tolerance {
    Tolerance { absolute: 2e-5 * (n_rows as f32).sqrt(), relative: 2e-5 }
}

/// The first tokens, which the sink takes, the last before a flush, the flush, the token after it,
/// the same for later flushes, more and fewer splits than blocks of quantised rows, one
/// split, one to eight query heads per KV head with and without gates, all head sizes, the context's
/// end, no tokens.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let heads = |num_heads, num_kv_heads, head_dim, gated| AttentionShape {
        num_heads,
        num_kv_heads,
        head_dim,
        gated,
    };
    let small = heads(1, 1, 32, false);
    let specs = [
        (1, 0, 200, 3, small),
        (1, 0, 200, 1, small),
        (1, 7, 200, 4, heads(6, 2, 64, true)),
        (1, 8, 200, 4, heads(6, 2, 64, true)),
        (1, 9, 200, 2, heads(1, 1, 256, false)),
        (1, 135, 200, 3, heads(2, 1, 128, false)),
        (1, 136, 300, 3, heads(6, 1, 64, true)),
        (1, 136, 300, 1, heads(2, 2, 32, true)),
        (1, 137, 300, 2, heads(6, 1, 64, false)),
        (1, 263, 600, 4, heads(8, 1, 32, true)),
        (1, 264, 600, 4, heads(3, 1, 96, false)),
        (1, 265, 600, 3, heads(4, 2, 128, true)),
        (1, 1032, 1100, 4, heads(6, 2, 64, true)),
        (1, 1033, 1100, 32, heads(2, 1, 64, false)),
        (1, 1034, 1100, 1, heads(1, 1, 32, false)),
        (1, 648, 700, 4, heads(6, 1, 256, true)),
        (9, 200, 600, 2, small),
        (0, 136, 300, 2, small),
        (1, 300, 300, 2, small),
    ];
    let mut cases = Vec::new();
    for (i, (n_tokens, position, context, n_splits, shape)) in specs.into_iter().enumerate() {
        let mut c = CaseBuilder::new(2200 + i as u32);
        c.state.n_tokens = n_tokens;
        c.state.position = position;
        let layout = kivi::Layout::new(shape.num_kv_heads, shape.head_dim, context)?;
        let qkv = c.random(1, shape.qkv_cols(), 1.0);
        let norm_rope = qkv::random::norm_rope(&mut c, shape.head_dim, context, shape.head_dim / 2, 2.0);
        let cache = kivi::random::cache(&mut c, layout);
        let partials = c.output(shape.num_heads * n_splits, shape.head_dim + 2);
        let scale = (1.0 / f64::from(shape.head_dim).sqrt()) as f32;
        cases.push(c.finish(
            format!(
                "{}/{} heads of {}, {n_tokens} tokens at {position} of {context}, {n_splits} splits, gated {}",
                shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.gated
            ),
            kivi_decode(qkv, norm_rope, cache, partials, shape, scale),
            tolerance(position + 1),
        )?);
    }
    Ok(cases)
}
