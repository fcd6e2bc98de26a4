//! Matrix product, for prefill: `y[t, row_offset + o] (+)= sum_k W[o, k] x[t, k]` for the step's
//! tokens.
//!
//! `K` is a multiple of 8 and of the format's block. There is a kernel for each height of the tile,
//! that is, number of tokens of a workgroup, so that a short prompt does not pay for a long one. The
//! result of a token has the same bits in whichever row, tile and chunk it is computed. A shard of the
//! matrix writes its columns of `y`.

use bytemuck::{Pod, Zeroable};

use crate::kernel::{
    Binding, Dispatch, Kernel, MAX_LOOP_ITERATIONS, ShapeError, StateAccess, Tensor, Workgroups,
    expect_shape, require,
};
use crate::weights::{Format, Weight, for_each_format, words_per_row};

pub mod cases;
mod fast;
mod reference;

pub(in crate::kernels) use fast::store;

/// Tokens that a workgroup computes, in the order of [`KERNELS`]' second index.
pub const HEIGHTS: [u32; 6] = [8, 16, 24, 32, 48, 64];

/// Outputs that a workgroup computes, as in the WGSL.
const OUTPUTS: u32 = 64;

/// Uniform of the kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    rows: u32,
    cols: u32,
    row_offset: u32,
    y_cols: u32,
    /// Rows of `x` and `y`.
    capacity: u32,
    accumulate: u32,
    quants_per_row: u32,
    scales_per_row: u32,
}

macro_rules! kernel {
    ($format_name:literal, $format:expr) => {
        [
            kernel!($format_name, $format, 8),
            kernel!($format_name, $format, 16),
            kernel!($format_name, $format, 24),
            kernel!($format_name, $format, 32),
            kernel!($format_name, $format, 48),
            kernel!($format_name, $format, 64),
        ]
    };
    ($format_name:literal, $format:expr, $height:literal) => {
        Kernel {
            name: concat!("matmul_", $format_name, "_t", $height),
            sources: &[
                concat!("const TOKENS = ", $height, "u;"),
                include_str!("../../common/state.wgsl"),
                include_str!("../../common/workgroups.wgsl"),
                include_str!("../../common/half.wgsl"),
                include_str!("../../common/unpack_common.wgsl"),
                $format.wgsl(),
                unpack16($format),
                include_str!("matmul.wgsl"),
            ],
            bindings: &[
                Binding::read("x"),
                Binding::read_u32("quants"),
                Binding::read_u32("scales"),
                Binding::write("y"),
            ],
            state: StateAccess::Uniform,
            workgroup_size: [64, 1, 1],
            params_size: size_of::<Params>(),
            reference: |args| reference::matmul(args, $format),
            fast: Some(|args, activations| fast::matmul(args, $format, activations)),
            cases: || cases::cases($format, $height),
        }
    };
}

/// The kernels, by format and by height of the tile.
pub static KERNELS: [[Kernel; HEIGHTS.len()]; 10] = for_each_format!(kernel);

/// What defines `unpack16`, unless the format's own file does.
const fn unpack16(format: Format) -> &'static str {
    match format {
        Format::Q1_0 | Format::Q2_0G64 | Format::Q2_0G128 => "",
        _ => include_str!("../../common/unpack16_by_eight.wgsl"),
    }
}

/// The lowest tile that covers `rows`, or the highest one there is.
fn height_for(rows: u32) -> u32 {
    HEIGHTS.into_iter().find(|&height| height >= rows).unwrap_or(HEIGHTS[HEIGHTS.len() - 1])
}

/// `y (+)= x W^T`: `x` [T, K], `y` [T, N of the whole matrix]. With `accumulate` the products are
/// added to `y`, else they replace it. `T` is the plan's number of rows: the tile is the lowest that
/// covers it.
pub fn matmul(x: Tensor, weight: Weight, y: Tensor, accumulate: bool) -> Result<Dispatch, ShapeError> {
    matmul_with_height(height_for(x.rows), x, weight, y, accumulate)
}

/// [`matmul`] with tiles of one of the [`HEIGHTS`].
pub fn matmul_with_height(
    height: u32,
    x: Tensor,
    weight: Weight,
    y: Tensor,
    accumulate: bool,
) -> Result<Dispatch, ShapeError> {
    let kernels = &KERNELS[weight.format as usize];
    let kernel = kernels.iter().zip(HEIGHTS).find(|&(_, h)| h == height).map(|(kernel, _)| kernel);
    let kernel = kernel.ok_or(ShapeError::Dimension {
        kernel: "matmul",
        dimension: "height of the tile",
        actual: height.into(),
        requirement: "8, 16, 24, 32, 48 or 64",
    })?;
    weight.check(kernel.name)?;
    require(kernel.name, "rows of x", x.rows, x.rows > 0, "at least 1")?;
    expect_shape(kernel.name, "x", x, x.rows, weight.cols)?;
    expect_shape(kernel.name, "y", y, x.rows, y.cols)?;
    let end = weight.row_offset.saturating_add(weight.rows);
    require(kernel.name, "end of the shard", end, end <= y.cols, "at most the columns of y")?;
    // A step of 32 columns is eight iterations of products, and up to 16 that copy inputs.
    let iterations = weight.cols.div_ceil(32).saturating_mul(25);
    require(kernel.name, "loop iterations", iterations, iterations <= MAX_LOOP_ITERATIONS, "at most 65,535")?;
    let (quants_per_row, scales_per_row) = words_per_row(weight.format, weight.cols);
    let params = Params {
        rows: weight.rows,
        cols: weight.cols,
        row_offset: weight.row_offset,
        y_cols: y.cols,
        capacity: x.rows,
        accumulate: u32::from(accumulate),
        quants_per_row,
        scales_per_row,
    };
    let tiles = u64::from(x.rows.div_ceil(height)) * u64::from(weight.rows.div_ceil(OUTPUTS));
    let workgroups = Workgroups::linear(kernel.name, tiles)?;
    let tensors = [x, weight.quants_tensor(), weight.scales_tensor(), y];
    let mut dispatch = Dispatch::new(kernel, params, &tensors, workgroups);
    dispatch.weight = Some(weight);
    dispatch.bytes_written = u64::from(x.rows) * u64::from(weight.rows) * 4;
    dispatch.bytes_read =
        x.n_bytes() + weight.n_bytes() + if accumulate { dispatch.bytes_written } else { 0 };
    Ok(dispatch)
}

/// Format and height of the tile of one of these dispatches.
fn identify(dispatch: &Dispatch) -> Option<(Format, u32)> {
    let height = |kernels: &[Kernel]| {
        kernels.iter().zip(HEIGHTS).find(|(kernel, _)| std::ptr::eq(*kernel, dispatch.kernel)).map(|(_, h)| h)
    };
    Format::ALL.into_iter().find_map(|format| Some((format, height(&KERNELS[format as usize])?)))
}

/// The height of the tile that a dispatch of these kernels uses.
pub fn height_of(dispatch: &Dispatch) -> Option<u32> {
    identify(dispatch).map(|(_, height)| height)
}

/// Format and shape of the matrix, and the first `outputs` rows of it alone as a dispatch, for
/// measuring.
pub fn with_outputs(dispatch: &Dispatch, outputs: u32) -> Option<(String, Dispatch)> {
    let (format, height) = identify(dispatch)?;
    let mut params: Params = bytemuck::try_pod_read_unaligned(&dispatch.params).ok()?;
    let matrix = format!("matmul {} {}x{}", format.name(), params.rows, params.cols);
    params.rows = params.rows.min(outputs.max(1));
    let part = Dispatch { params: bytemuck::bytes_of(&params).to_vec(), ..dispatch.clone() };
    Some((matrix, with_height(&part, height)?))
}

/// The same product, bit for bit, with tiles of another of the [`HEIGHTS`].
pub fn with_height(dispatch: &Dispatch, height: u32) -> Option<Dispatch> {
    let (format, _) = identify(dispatch)?;
    let kernels = KERNELS[format as usize].iter().zip(HEIGHTS);
    let (kernel, _) = kernels.into_iter().find(|&(_, h)| h == height)?;
    let params: Params = bytemuck::try_pod_read_unaligned(&dispatch.params).ok()?;
    let tiles = u64::from(params.capacity.div_ceil(height)) * u64::from(params.rows.div_ceil(OUTPUTS));
    let workgroups = Workgroups::linear(kernel.name, tiles).ok()?;
    Some(Dispatch { kernel, workgroups, ..dispatch.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wgsl_has_the_tile_that_the_grid_assumes() {
        for kernels in &KERNELS {
            for (kernel, height) in kernels.iter().zip(HEIGHTS) {
                assert!(kernel.name.ends_with(&format!("_t{height}")));
                assert!(kernel.wgsl().contains(&format!("const TOKENS = {height}u;")));
                assert!(kernel.wgsl().contains(&format!("const OUTPUTS = {OUTPUTS}u;")));
            }
        }
    }

    #[test]
    fn the_lowest_tile_that_covers_the_rows() {
        let heights = [1, 8, 9, 16, 17, 24, 25, 32, 33, 48, 49, 64, 65, 512].map(height_for);
        assert_eq!(heights, [8, 8, 16, 16, 24, 24, 32, 32, 48, 48, 64, 64, 64, 64]);
    }
}
