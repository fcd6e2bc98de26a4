//! Embedding: `out[t, i] = W[tokens[t], i]` for the step's tokens.
//!
//! Large vocabularies are sharded by rows; each shard is a dispatch of its own that writes the
//! rows whose id it holds. A row whose id no shard holds stays as it was.

use bytemuck::{Pod, Zeroable};

use crate::kernel::{Binding, Dispatch, Kernel, ShapeError, StateAccess, Tensor, Workgroups, expect_shape};
use crate::weights::{Weight, for_each_format, words_per_row};

pub mod cases;
mod fast;
mod reference;

/// Uniform of the kernels.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    rows: u32,
    cols: u32,
    row_offset: u32,
    /// Rows of `tokens` and `out`.
    capacity: u32,
    quants_per_row: u32,
    scales_per_row: u32,
    padding: [u32; 2],
}

macro_rules! kernel {
    ($format_name:literal, $format:expr) => {
        Kernel {
            name: concat!("embed_", $format_name),
            sources: &[
                include_str!("../../common/state.wgsl"),
                include_str!("../../common/workgroups.wgsl"),
                include_str!("../../common/half.wgsl"),
                include_str!("../../common/unpack_common.wgsl"),
                $format.wgsl(),
                include_str!("embed.wgsl"),
            ],
            bindings: &[
                Binding::read_u32("tokens"),
                Binding::read_u32("quants"),
                Binding::read_u32("scales"),
                Binding::write("out"),
            ],
            state: StateAccess::Uniform,
            workgroup_size: [64, 1, 1],
            params_size: size_of::<Params>(),
            reference: |args| reference::embed(args, $format),
            fast: Some(|args, _| fast::embed(args, $format)),
            cases: || cases::cases($format),
        }
    };
}

/// The kernels, by format.
pub static KERNELS: [Kernel; 10] = for_each_format!(kernel);

/// Rows of `weight` by id: `tokens` [1, T] u32, `out` [T, D].
pub fn embed(tokens: Tensor, weight: Weight, out: Tensor) -> Result<Dispatch, ShapeError> {
    let kernel = &KERNELS[weight.format as usize];
    weight.check(kernel.name)?;
    expect_shape(kernel.name, "tokens", tokens, 1, tokens.cols)?;
    expect_shape(kernel.name, "out", out, tokens.cols, weight.cols)?;
    let (quants_per_row, scales_per_row) = words_per_row(weight.format, weight.cols);
    let params = Params {
        rows: weight.rows,
        cols: weight.cols,
        row_offset: weight.row_offset,
        capacity: tokens.cols,
        quants_per_row,
        scales_per_row,
        padding: [0; 2],
    };
    let workgroups = Workgroups::linear(kernel.name, u64::from(tokens.cols))?;
    let tensors = [tokens, weight.quants_tensor(), weight.scales_tensor(), out];
    let mut dispatch = Dispatch::new(kernel, params, &tensors, workgroups);
    dispatch.weight = Some(weight);
    dispatch.bytes_read = tokens.n_bytes() + u64::from(tokens.cols) * weight.row_bytes();
    Ok(dispatch)
}
