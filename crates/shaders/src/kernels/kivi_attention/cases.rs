//! Cases of the kernel.

use super::kivi_attention;
use crate::case::{Case, CaseBuilder, Tolerance};
use crate::kernel::ShapeError;
use crate::kernels::kivi;
use crate::kernels::qkv::{self, AttentionShape};

/// Values are below 2. Queries have elements below 2 on average and keys below 1, so that a score of up
/// to 256 products is below 10; its roundings, the norm's included, add up to 1e-5 at most if half of
/// them went one way, and `exp` adds 3 + 2|x| units in the last place. An error that all
/// weights share cancels in the quotient, and independent ones average out.
const TOLERANCE: Tolerance = Tolerance { absolute: 2e-5, relative: 1e-5 };

/// One token, in and after the sink, the last before a flush and those after it, several blocks of
/// quantised rows, one to eight query heads per KV head with and without gates, all head sizes, pairs
/// that fill no workgroup, pieces over the end of the sink, fewer tokens than rows, none.
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
        (1, 1, 7, 200, heads(2, 2, 64, true)),
        (1, 1, 8, 200, heads(6, 1, 256, true)),
        (12, 12, 2, 200, heads(6, 2, 64, true)),
        (136, 136, 0, 140, small),
        (2, 2, 134, 140, heads(2, 1, 128, false)),
        (1, 1, 136, 300, heads(6, 1, 64, true)),
        (9, 9, 137, 300, heads(2, 2, 96, false)),
        (1, 1, 263, 300, heads(8, 1, 32, false)),
        (3, 3, 264, 600, heads(4, 2, 128, true)),
        (2, 2, 265, 600, heads(3, 1, 160, false)),
        (10, 10, 1032, 1100, heads(6, 2, 64, true)),
        (5, 5, 700, 800, heads(2, 1, 256, true)),
        (8, 3, 136, 300, heads(3, 1, 32, false)),
        (20, 20, 130, 300, small),
        (6, 6, 264, 268, small),
        (4, 0, 136, 300, small),
        (2, 2, 300, 300, small),
    ];
    let mut cases = Vec::new();
    for (i, (rows, n_tokens, position, context, shape)) in specs.into_iter().enumerate() {
        let mut c = CaseBuilder::new(2100 + i as u32);
        c.state.n_tokens = n_tokens;
        c.state.position = position;
        let layout = kivi::Layout::new(shape.num_kv_heads, shape.head_dim, context)?;
        let qkv = c.random(rows, shape.qkv_cols(), 1.0);
        let norm_rope = qkv::random::norm_rope(&mut c, shape.head_dim, context, shape.head_dim / 2, 2.0);
        let cache = kivi::random::cache(&mut c, layout);
        let out = c.output(rows, shape.q_cols());
        let scale = (1.0 / f64::from(shape.head_dim).sqrt()) as f32;
        cases.push(c.finish(
            format!(
                "{}/{} heads of {}, {n_tokens} of {rows} tokens from {position} of {context}, gated {}",
                shape.num_heads, shape.num_kv_heads, shape.head_dim, shape.gated
            ),
            kivi_attention(qkv, norm_rope, cache, out, shape, scale),
            TOLERANCE,
        )?);
    }
    Ok(cases)
}
