//! Cases of the kernel.

use super::kivi_append;
use crate::case::{Case, CaseBuilder, Tolerance};
use crate::kernel::ShapeError;
use crate::kernels::kivi;
use crate::kernels::qkv::{self, AttentionShape};

/// Elements after the norm are at most 2 * 16. One has a dozen roundings of 2^-24 behind it, and its
/// sum of squares at most 256 more; the rotation may cancel, so part of the error is absolute. Codes
/// and scales are equal: the values are clear of rounding edges.
const TOLERANCE: Tolerance = Tolerance { absolute: 1e-5, relative: 1e-5 };

/// An empty cache, the sink's last slot, a piece over the end of the sink, one that fills the
/// window, one that finds it full, with and without gates, several KV heads, a step that the window's
/// or the context's end cuts, fewer tokens than rows, none.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let heads = |num_heads, num_kv_heads, head_dim, gated| AttentionShape {
        num_heads,
        num_kv_heads,
        head_dim,
        gated,
    };
    let small = heads(1, 1, 32, false);
    let specs = [
        (1, 1, 0, 200, small),
        (1, 1, 7, 200, small),
        (12, 12, 2, 200, heads(6, 2, 64, true)),
        (136, 136, 0, 140, small),
        (20, 20, 116, 140, heads(2, 1, 256, true)),
        (3, 3, 136, 300, heads(6, 1, 64, true)),
        (1, 1, 264, 600, heads(2, 2, 128, false)),
        (128, 128, 264, 400, small),
        (5, 5, 390, 400, heads(4, 2, 96, false)),
        (8, 3, 136, 145, heads(8, 1, 32, false)),
        (20, 20, 130, 300, small),
        (6, 6, 264, 268, small),
        (4, 0, 136, 300, small),
        (2, 2, 300, 300, small),
    ];
    let mut cases = Vec::new();
    for (i, (rows, n_tokens, position, context, shape)) in specs.into_iter().enumerate() {
        let mut c = CaseBuilder::new(2000 + i as u32);
        c.state.n_tokens = n_tokens;
        c.state.position = position;
        let layout = kivi::Layout::new(shape.num_kv_heads, shape.head_dim, context)?;
        let qkv = c.random(rows, shape.qkv_cols(), 1.0);
        let norm_rope = qkv::random::norm_rope(&mut c, shape.head_dim, context, shape.head_dim / 2, 2.0);
        let cache = kivi::random::cache(&mut c, layout);
        cases.push(c.finish(
            format!(
                "{} heads of {}, {n_tokens} of {rows} tokens from {position} of {context}, gated {}",
                shape.num_kv_heads, shape.head_dim, shape.gated
            ),
            kivi_append(qkv, norm_rope, cache, shape),
            TOLERANCE,
        )?);
    }
    Ok(cases)
}
