//! Cases of the kernels.

use super::matmul_with_height;
use crate::case::{Case, CaseBuilder};
use crate::kernel::ShapeError;
use crate::kernels::matvec::cases::tolerance;
use crate::weights::Format;
use crate::weights::sample::{Scales, random_weight};

/// Rows of `x`, tokens of the step, rows and columns of the matrix, where the shard begins,
/// whether to add, and the scales.
type Shape = (u32, u32, u32, u32, u32, bool, Scales);

/// Each format and height with one output and few tokens, a tile and one more in both directions,
/// steps shorter than the plan, odd numbers of blocks, shards; wide rows, subnormal scales and the
/// like once per format.
pub fn cases(format: Format, height: u32) -> Result<Vec<Case>, ShapeError> {
    let block = format.block_weights();
    let mut shapes: Vec<Shape> = vec![
        (2, 2, 1, block, 0, false, Scales::Usual),
        (height + 1, height + 1, 13, 3 * block, 0, true, Scales::Usual),
        (height, height - 5, 65, 768, 7, false, Scales::Usual),
    ];
    match height {
        8 => shapes.extend([
            (2, 2, 3, 2560, 0, false, Scales::Usual),
            (2, 2, 3, 4096, 0, false, Scales::Usual),
            (3, 2, 5, 5120, 0, false, Scales::Usual),
            (2, 1, 3, 17_408, 0, false, Scales::Usual),
            (5, 0, 5, block, 0, true, Scales::Usual),
        ]),
        32 => shapes.push((32, 32, 64, block, 0, false, Scales::Usual)),
        64 => shapes.extend([
            (65, 64, 65, block, 7, true, Scales::Usual),
            (65, 20, 13, 768, 3, false, Scales::Subnormal),
        ]),
        _ => {}
    }
    if block == 128 {
        if height == 8 {
            shapes.extend([384, 640].map(|cols| (7, 7, 66, cols, 0, false, Scales::Usual)));
        }
        // More tokens than the step's plan has rows.
        shapes.push((height - 2, 200, 70, 128, 0, false, Scales::Usual));
    }
    if block == 32 && height == 48 {
        // A shard that begins and ends inside a tile.
        shapes.push((40, 39, 130, 160, 61, true, Scales::Usual));
    }
    let mut cases = Vec::new();
    for (i, shape) in shapes.into_iter().enumerate() {
        cases.push(case(format, height, 1500 + 100 * height + i as u32, shape)?);
    }
    Ok(cases)
}

fn case(format: Format, height: u32, seed: u32, shape: Shape) -> Result<Case, ShapeError> {
    let (capacity, n_tokens, rows, cols, row_offset, accumulate, scales) = shape;
    let mut c = CaseBuilder::new(seed);
    c.state.n_tokens = n_tokens;
    let (weight, largest) = random_weight(&mut c, format, [rows, cols], row_offset, scales)?;
    let x = c.random(capacity, cols, 1.0);
    // Two more columns than the shard ends with, which must stay as they are.
    let y_cols = row_offset + rows + 2;
    let y = if accumulate { c.random(capacity, y_cols, largest) } else { c.output(capacity, y_cols) };
    let adding = if accumulate { ", added" } else { "" };
    let name = format!(
        "{capacity}x{cols} by {rows} rows at {row_offset}{adding}, {scales:?} scales, {n_tokens} tokens"
    );
    c.finish(name, matmul_with_height(height, x, weight, y, accumulate), tolerance(cols, largest))
}
