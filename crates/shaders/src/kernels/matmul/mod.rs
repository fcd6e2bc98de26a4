//! Matrix product, for prefill: `y[t, row_offset + o] (+)= sum_k W[o, k] x[t, k]` for the step's
//! tokens.
//!
//! `K` is a multiple of 8 and of the format's block. The result of a token has the same bits in
//! whichever row and chunk it is computed. A shard of the matrix writes its columns of `y`.

use bytemuck::{Pod, Zeroable};

use crate::kernel::{
    Binding, Dispatch, Kernel, MAX_LOOP_ITERATIONS, ShapeError, StateAccess, Tensor, Workgroups,
    expect_shape, require,
};
use crate::weights::{Weight, for_each_format, words_per_row};

pub mod cases;
mod reference;

/// Tokens and outputs that a workgroup computes, as in the WGSL.
const TILE: [u32; 2] = [32, 64];

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
        Kernel {
            name: concat!("matmul_", $format_name),
            sources: &[
                include_str!("../../common/state.wgsl"),
                include_str!("../../common/workgroups.wgsl"),
                include_str!("../../common/unpack_common.wgsl"),
                $format.wgsl(),
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
            cases: || cases::cases($format),
        }
    };
}

/// The kernels, by format.
pub static KERNELS: [Kernel; 10] = for_each_format!(kernel);

/// `y (+)= x W^T`: `x` [T, K], `y` [T, N of the whole matrix]. With `accumulate` the products are
/// added to `y`, else they replace it.
pub fn matmul(x: Tensor, weight: Weight, y: Tensor, accumulate: bool) -> Result<Dispatch, ShapeError> {
    let kernel = &KERNELS[weight.format as usize];
    weight.check(kernel.name)?;
    require(kernel.name, "rows of x", x.rows, x.rows > 0, "at least 1")?;
    expect_shape(kernel.name, "x", x, x.rows, weight.cols)?;
    expect_shape(kernel.name, "y", y, x.rows, y.cols)?;
    let end = weight.row_offset.saturating_add(weight.rows);
    require(kernel.name, "end of the shard", end, end <= y.cols, "at most the columns of y")?;
    // A step of 16 columns is 17 iterations.
    let iterations = weight.cols.saturating_add(weight.cols.div_ceil(16));
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
    let tiles = u64::from(x.rows.div_ceil(TILE[0])) * u64::from(weight.rows.div_ceil(TILE[1]));
    let workgroups = Workgroups::linear(kernel.name, tiles)?;
    let tensors = [x, weight.quants_tensor(), weight.scales_tensor(), y];
    let mut dispatch = Dispatch::new(kernel, params, &tensors, workgroups);
    dispatch.bytes_written = u64::from(x.rows) * u64::from(weight.rows) * 4;
    dispatch.bytes_read =
        x.n_bytes() + weight.n_bytes() + if accumulate { dispatch.bytes_written } else { 0 };
    Ok(dispatch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wgsl_has_the_tile_that_the_grid_assumes() {
        let wgsl = KERNELS[0].wgsl();
        assert!(wgsl.contains(&format!("const TOKENS = {}u;", TILE[0])));
        assert!(wgsl.contains(&format!("const OUTPUTS = {}u;", TILE[1])));
    }
}
