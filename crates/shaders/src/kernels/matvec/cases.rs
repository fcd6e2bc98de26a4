//! Cases of the kernels.

use super::matvec;
use crate::case::{Case, CaseBuilder, Tolerance};
use crate::kernel::ShapeError;
use crate::weights::Format;
use crate::weights::sample::{Scales, random_weight};

/// Bound for a sum of `cols` products of weights up to `largest` and inputs in [-1, 1), whatever
/// the order of the additions.
///
/// A partial sum of k products has the standard deviation s sqrt(k), where s is that of a product;
/// it is rounded with an error of at most 2^-24 of it, evenly spread. Even one chain of K
/// additions ends with an error of standard deviation 2^-24 s K / sqrt(6). With s below 0.6 of the
/// largest product, four times 2^-24 K `largest` is more than sixteen standard deviations, and still
/// far below the weight of a single product. The relative part is the rounding of the result
/// when it is added to what `y` held.
pub(in crate::kernels) fn tolerance(cols: u32, largest: f32) -> Tolerance {
    Tolerance { absolute: 4.0 * cols as f32 * largest / 16_777_216.0, relative: 1.2e-7 }
}

/// A row count, a column count, where the shard begins, whether to add, and the scales.
type Shape = (u32, u32, u32, bool, Scales);

/// Each format with one row, one workgroup and one more row, an odd number of blocks, shards,
/// subnormal scales, the widest rows of a 27B model; and more rows than one axis has workgroups.
pub fn cases(format: Format) -> Result<Vec<Case>, ShapeError> {
    let block = format.block_weights();
    let mut shapes: Vec<Shape> = vec![
        (1, block, 0, false, Scales::Usual),
        (4, block, 0, true, Scales::Usual),
        (5, 3 * block, 0, false, Scales::Usual),
        (13, 768, 3, false, Scales::Subnormal),
        (65, 1280, 100, true, Scales::Usual),
        (2, 2560, 0, false, Scales::Usual),
        (2, 4096, 0, false, Scales::Usual),
        (3, 5120, 0, false, Scales::Usual),
        (2, 6144, 1, true, Scales::Usual),
        (3, 17_408, 0, false, Scales::Usual),
    ];
    if block == 128 {
        shapes.extend([384, 640].map(|cols| (6, cols, 0, false, Scales::Usual)));
    }
    if format == Format::F16 {
        shapes.push((262_149, 8, 2, false, Scales::Usual));
    }
    let mut cases = Vec::new();
    for (i, shape) in shapes.into_iter().enumerate() {
        cases.push(case(format, 1200 + i as u32, shape, 1)?);
    }
    cases.push(case(format, 1400, (7, 256, 0, true, Scales::Usual), 0)?);
    Ok(cases)
}

fn case(format: Format, seed: u32, shape: Shape, n_tokens: u32) -> Result<Case, ShapeError> {
    let (rows, cols, row_offset, accumulate, scales) = shape;
    let mut c = CaseBuilder::new(seed);
    c.state.n_tokens = n_tokens;
    let (weight, largest) = random_weight(&mut c, format, [rows, cols], row_offset, scales)?;
    let x = c.random(1, cols, 1.0);
    // Two more columns than the shard ends with, which must stay as they are.
    let y_cols = row_offset + rows + 2;
    let y = if accumulate { c.random(1, y_cols, largest) } else { c.output(1, y_cols) };
    let adding = if accumulate { ", added" } else { "" };
    let name = format!("{rows}x{cols} at {row_offset}{adding}, {scales:?} scales, {n_tokens} tokens");
    c.finish(name, matvec(x, weight, y, accumulate), tolerance(cols, largest))
}
