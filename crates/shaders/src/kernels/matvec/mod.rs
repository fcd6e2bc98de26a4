//! Matrix times vector, for decode: `y[row_offset + o] (+)= sum_k W[o, k] x[k]`.
//!
//! `K` is a multiple of 8 and of the format's block. A shard of the matrix writes its rows of
//! `y`; together the shards write all of it.

use bytemuck::{Pod, Zeroable};

use crate::kernel::{
    Binding, Dispatch, Kernel, ShapeError, StateAccess, Tensor, Workgroups, expect_shape, require,
};
use crate::weights::{Weight, for_each_format, words_per_row};

pub mod cases;
mod reference;

/// Rows that a workgroup computes, as in the WGSL.
const ROWS: u32 = 4;

/// Uniform of the kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    rows: u32,
    cols: u32,
    row_offset: u32,
    accumulate: u32,
    quants_per_row: u32,
    scales_per_row: u32,
    padding: [u32; 2],
}

macro_rules! kernel {
    ($format_name:literal, $format:expr) => {
        Kernel {
            name: concat!("matvec_", $format_name),
            sources: &[
                include_str!("../../common/state.wgsl"),
                include_str!("../../common/workgroups.wgsl"),
                include_str!("../../common/unpack_common.wgsl"),
                $format.wgsl(),
                include_str!("matvec.wgsl"),
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
            reference: |args| reference::matvec(args, $format),
            cases: || cases::cases($format),
        }
    };
}

/// The kernels, by format.
pub static KERNELS: [Kernel; 10] = for_each_format!(kernel);

/// `y (+)= W x`: `x` [1, K], `y` [1, N of the whole matrix]. With `accumulate` the products are
/// added to `y`, else they replace it.
pub fn matvec(x: Tensor, weight: Weight, y: Tensor, accumulate: bool) -> Result<Dispatch, ShapeError> {
    let kernel = &KERNELS[weight.format as usize];
    weight.check(kernel.name)?;
    expect_shape(kernel.name, "x", x, 1, weight.cols)?;
    expect_shape(kernel.name, "y", y, 1, y.cols)?;
    let end = weight.row_offset.saturating_add(weight.rows);
    require(kernel.name, "end of the shard", end, end <= y.cols, "at most the columns of y")?;
    let (quants_per_row, scales_per_row) = words_per_row(weight.format, weight.cols);
    let params = Params {
        rows: weight.rows,
        cols: weight.cols,
        row_offset: weight.row_offset,
        accumulate: u32::from(accumulate),
        quants_per_row,
        scales_per_row,
        padding: [0; 2],
    };
    let workgroups = Workgroups::linear(kernel.name, u64::from(weight.rows.div_ceil(ROWS)))?;
    let tensors = [x, weight.quants_tensor(), weight.scales_tensor(), y];
    let mut dispatch = Dispatch::new(kernel, params, &tensors, workgroups);
    dispatch.bytes_written = u64::from(weight.rows) * 4;
    dispatch.bytes_read =
        x.n_bytes() + weight.n_bytes() + if accumulate { dispatch.bytes_written } else { 0 };
    Ok(dispatch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wgsl_computes_as_many_rows_as_the_grid_assumes() {
        assert!(KERNELS[0].wgsl().contains(&format!("const ROWS = {ROWS}u;")));
    }
}
