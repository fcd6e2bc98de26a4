//! Cases of the kernels, and known answers for choosing among them.

use super::{Op, Variant, matvec, norm_matvec, norm_swiglu, with_variant};
use crate::case::{Case, CaseBuilder, Tolerance};
use crate::kernel::{Dispatch, ShapeError};
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

/// Widest subgroup that the cases are laid out for. Any width computes the right sums with it, the
/// narrower ones with subgroups that idle; a device's own width makes all of them work.
const SUBGROUP_WIDTH: u32 = 64;

/// The seven parts of a case: rows and columns of the matrix, where the shard begins, whether to add,
/// the scales, rows of x and tokens of the step.
type Shape = (u32, u32, u32, bool, Scales, u32, u32);

/// Each with one row, one workgroup and one more row, an odd number of blocks and tiles, shards,
/// subnormal scales, the widest rows of a 27B model, more rows than one axis has workgroups, the
/// last of many rows of x; and no token.
pub(super) fn cases(op: Op, variant: Variant, format: Format) -> Result<Vec<Case>, ShapeError> {
    let block = format.block_weights();
    let usual = Scales::Usual;
    let mut shapes: Vec<Shape> = match op {
        Op::Linear => vec![
            (1, block, 0, false, usual, 1, 1),
            (4, block, 0, true, usual, 1, 1),
            (5, 3 * block, 0, false, usual, 1, 1),
            (13, 768, 3, false, Scales::Subnormal, 1, 1),
            (65, 1280, 100, true, usual, 1, 1),
            (2, 2560, 0, false, usual, 1, 1),
            (2, 4096, 0, false, usual, 1, 1),
            (3, 5120, 0, false, usual, 1, 1),
            (2, 6144, 1, true, usual, 1, 1),
            (3, 17_408, 0, false, usual, 1, 1),
        ],
        Op::Norm => vec![
            (1, block, 0, false, usual, 1, 1),
            (67, 1280, 5, false, usual, 1, 1),
            (17, 5120, 0, false, usual, 4, 3),
        ],
        Op::Swiglu => vec![
            (2, block, 0, false, usual, 1, 1),
            (130, 768, 0, false, usual, 1, 1),
            (34, 5120, 0, false, usual, 4, 2),
        ],
    };
    if op == Op::Linear && block == 128 {
        shapes.extend([384, 640].map(|cols| (6, cols, 0, false, usual, 1, 1)));
    }
    if op == Op::Linear && variant == Variant::Lanes && format == Format::F16 {
        shapes.push((262_149, 8, 2, false, usual, 1, 1));
    }
    shapes.push((8, 256, 0, op == Op::Linear, usual, 1, 0));
    let mut cases = shapes
        .into_iter()
        .zip(1200..)
        .map(|(shape, seed)| case(op, variant, format, seed, shape))
        .collect::<Result<Vec<_>, _>>()?;
    let known = cases.iter().rev().find_map(|case| known_answer(&case.dispatch, SUBGROUP_WIDTH));
    cases.extend(known);
    Ok(cases)
}

fn case(op: Op, variant: Variant, format: Format, seed: u32, shape: Shape) -> Result<Case, ShapeError> {
    let (rows, cols, row_offset, accumulate, scales, x_rows, n_tokens) = shape;
    let mut c = CaseBuilder::new(seed);
    c.state.n_tokens = n_tokens;
    let (weight, largest) = random_weight(&mut c, format, [rows, cols], row_offset, scales)?;
    let x = c.random(x_rows, cols, 1.0);
    let adding = if accumulate { ", added" } else { "" };
    let name = format!("{rows}x{cols} at {row_offset}{adding}, {scales:?} scales, {n_tokens} tokens");
    // Two more columns than the shard ends with, which must stay as they are.
    let y_cols = row_offset + rows + 2;
    // RMSNorm divides by the root mean square of [-1, 1), 0.577 and at least half of it in the
    // shortest row; the norm's weights are up to 2: inputs up to 7. The squares are summed up as
    // in `rms_norm`, which gives the relative part.
    let Tolerance { absolute, relative } = tolerance(cols, largest);
    let normed = Tolerance { absolute: 7.0 * absolute, relative: relative + 1e-5 };
    let (dispatch, tolerance) = match op {
        Op::Linear => {
            let y = if accumulate { c.random(1, y_cols, largest) } else { c.output(1, y_cols) };
            (matvec(x, weight, y, accumulate), Tolerance { absolute, relative })
        }
        Op::Norm => {
            let norm = c.random(1, cols, 2.0);
            let y = c.output(1, y_cols);
            (norm_matvec(x, norm, weight, y, 1e-6), normed)
        }
        Op::Swiglu => {
            let norm = c.random(1, cols, 2.0);
            let y = c.output(1, rows / 2);
            // Both factors stay below seven standard deviations of a sum, each of sqrt(K) products
            // of 1.15 (the norm's weights) and 0.6 `largest`; SiLU has a slope below 1.1 and its
            // exponential the error that silu_mul states.
            let most = 7.0 * 1.15 * 0.6 * largest * (cols as f32).sqrt();
            let both = 2.1 * most.max(1.0) * normed.absolute + 5e-8 * most;
            (norm_swiglu(x, norm, weight, y, 1e-6), Tolerance { absolute: both, relative: 4e-5 })
        }
    };
    c.finish(name, dispatch.map(|d| in_variant(d, variant)), tolerance)
}

fn in_variant(dispatch: Dispatch, variant: Variant) -> Dispatch {
    with_variant(&dispatch, variant, SUBGROUP_WIDTH).unwrap_or(dispatch)
}

/// A product of the same operation, format and variant as `dispatch` with as many columns and up
/// to 256 of its rows, whose sums are exact: integer inputs of magnitude one or two, scales of one.
/// Whatever the order of additions, a right kernel gives these very sums, and a sign or a column
/// that it gets wrong moves them by one at least.
pub fn known_answer(dispatch: &Dispatch, subgroup_width: u32) -> Option<Case> {
    let (op, variant, format) = super::identify(dispatch.kernel)?;
    let p: super::Params = bytemuck::try_pod_read_unaligned(&dispatch.params).ok()?;
    let mut c = CaseBuilder::new(p.cols);
    let (weight, _) =
        random_weight(&mut c, format, [p.rows.clamp(2, 256) & !1, p.cols], 0, Scales::One).ok()?;
    let mut integers = |rows, n: u32, choices: [f32; 4]| {
        let values: Vec<f32> =
            (0..n).map(|_| choices[(c.rng.next_u32() >> 8) as usize % choices.len()]).collect();
        c.values(rows, n, &values)
    };
    // Squares of one keep the norm's factor at one.
    let x =
        integers(1, p.cols, if op == Op::Linear { [1.0, -1.0, 2.0, -2.0] } else { [1.0, -1.0, 1.0, -1.0] });
    let norm = integers(1, p.cols, [1.0, -1.0, 2.0, 1.0]);
    let y = c.output(1, if op == Op::Swiglu { weight.rows / 2 } else { weight.rows });
    let built = match op {
        Op::Linear => matvec(x, weight, y, false),
        Op::Norm => norm_matvec(x, norm, weight, y, 0.0),
        Op::Swiglu => norm_swiglu(x, norm, weight, y, 0.0),
    };
    // The factor of one may come out a few units in the last place off, and SiLU as silu_mul says.
    let relative = match op {
        Op::Linear => 0.0,
        Op::Norm => 1e-6,
        Op::Swiglu => 1e-5,
    };
    let absolute = if op == Op::Swiglu { 1e-3 } else { 0.0 };
    let dispatch = with_variant(&built.ok()?, variant, subgroup_width)?;
    c.finish("known answer", Ok(dispatch), Tolerance { absolute, relative }).ok()
}
