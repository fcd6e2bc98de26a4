//! Cases of the kernel.

use super::attention_merge;
use crate::case::{Case, CaseBuilder, Tolerance};
use crate::kernel::{ShapeError, Tensor};
use crate::kernels::attention_decode::STATISTICS;
use crate::kernels::qkv::AttentionShape;

/// WGSL grants `exp` 3 + 2|x| units in the last place. Where a split or a gate counts (|x| below 8) that is
/// 2.3e-6 of a result below 2; the sums of up to 9 splits add 9 roundings of 6e-8 each. Gates below -8 let
/// through less than 4e-4, of which even 43 units (a gate of -20) are nothing.
const TOLERANCE: Tolerance = Tolerance { absolute: 6e-6, relative: 0.0 };

/// One split, the first or the last one empty, all but one empty, gates far beyond where `exp` overflows,
/// maxima that leave one split, and no token.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let mut cases = Vec::new();
    for (i, (num_heads, head_dim, gated, n_splits, empty, spread, gates, n_tokens)) in [
        (1, 4, false, 1, "", 1.0, 1.0, 1),
        (2, 64, false, 3, "0", 3.0, 1.0, 1),
        (3, 20, true, 3, "2", 3.0, 5.0, 1),
        (6, 256, true, 5, "01", 3.0, 10_000.0, 1),
        (8, 128, false, 9, "01245678", 3.0, 1.0, 1),
        (5, 68, true, 9, "", 3.0, 8.0, 1),
        (2, 128, false, 4, "3", 10_000.0, 1.0, 1),
        (2, 64, true, 2, "", 1.0, 1.0, 0),
    ]
    .into_iter()
    .enumerate()
    {
        let mut c = CaseBuilder::new(700 + i as u32);
        c.state.n_tokens = n_tokens;
        let shape = AttentionShape { num_heads, num_kv_heads: 1, head_dim, gated };
        let mut rows = Vec::new();
        // The buffers hold a head and a token more than there are.
        for row in 0..(num_heads + 1) * n_splits {
            let split = row % n_splits;
            let is_empty = empty.contains(&split.to_string());
            // A sum of weights that include e^0, and values below 1 times those weights.
            let l = if is_empty { 0.0 } else { 1.5 + 0.5 * c.rng.uniform() };
            rows.extend((0..head_dim).map(|_| if is_empty { 1e30 } else { l * c.rng.uniform() }));
            rows.extend([if is_empty { 1e30 } else { spread * c.rng.uniform() }, l]);
        }
        let partials = c.values((num_heads + 1) * n_splits, head_dim + STATISTICS, &rows);
        let partials = Tensor { rows: num_heads * n_splits, ..partials };
        let qkv = c.random(1, shape.qkv_cols(), gates);
        let out = Tensor { rows: 1, ..c.output(2, shape.q_cols()) };
        cases.push(c.finish(
            format!(
                "{num_heads} heads of {head_dim} in {n_splits} splits, empty {empty:?}, maxima to {spread}, {}, \
                 {n_tokens} token",
                if gated { format!("gates to {gates}") } else { "no gates".to_owned() },
            ),
            attention_merge(partials, qkv, out, shape),
            TOLERANCE,
        )?);
    }
    Ok(cases)
}
