//! Cases of the kernels.

use super::embed;
use crate::case::{Case, CaseBuilder, Tolerance};
use crate::kernel::ShapeError;
use crate::weights::sample::{Scales, random_weight};
use crate::weights::{Format, Weight};

/// Every product of a decoded weight fits the 24 bits of an f32, so nothing is rounded.
const EXACT: Tolerance = Tolerance { absolute: 0.0, relative: 0.0 };

/// Each format with ids at both edges of a shard and outside it, scales of every kind, fewer
/// tokens than rows; and more tokens than one axis has workgroups.
pub fn cases(format: Format) -> Result<Vec<Case>, ShapeError> {
    let mut cases = Vec::new();
    let block = format.block_weights();
    for (i, (rows, cols, row_offset, scales)) in [
        (1, block, 0, Scales::Usual),
        (5, 3 * block, 1000, Scales::Usual),
        (9, 768, 7, Scales::Subnormal),
        (33, 1280, 248_000, Scales::Usual),
    ]
    .into_iter()
    .enumerate()
    {
        let mut c = CaseBuilder::new(1000 + i as u32);
        let (weight, _) = random_weight(&mut c, format, [rows, cols], row_offset, scales)?;
        let end = row_offset + rows;
        let ids = [
            row_offset,
            end - 1,
            end,
            row_offset.wrapping_sub(1),
            row_offset + rows / 2,
            0,
            u32::MAX,
            row_offset,
            end - 1,
        ];
        // The last two ids stand beyond the step's tokens.
        c.state.n_tokens = 7;
        let tokens = c.words(1, 9, ids.to_vec());
        let out = c.output(9, cols);
        let name = format!("rows {row_offset}..{end} of {cols}, {scales:?} scales");
        cases.push(c.finish(name, embed(tokens, weight, out), EXACT)?);
    }
    let many: &[u32] = if format == Format::F16 { &[0, 65_537] } else { &[] };
    for &n_tokens in many {
        let mut c = CaseBuilder::new(1100);
        c.state.n_tokens = n_tokens;
        let (weight, _): (Weight, f32) = random_weight(&mut c, format, [3, 8], 0, Scales::Usual)?;
        let ids = (0..65_600).map(|_| c.rng.next_u32() % 4).collect();
        let tokens = c.words(1, 65_600, ids);
        let out = c.output(65_600, 8);
        cases.push(c.finish(format!("{n_tokens} of 65600 tokens"), embed(tokens, weight, out), EXACT)?);
    }
    Ok(cases)
}
