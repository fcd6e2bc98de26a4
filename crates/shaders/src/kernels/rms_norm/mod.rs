//! Root-mean-square norm (Zhang and Sennrich 2019, arXiv:1910.07467):
//! `out[t, i] = x[t, i] * weight[i] / sqrt(mean_i(x[t, i]^2) + eps)`.
//!
//! The stored weights are used as they are: the file already holds `1 + w` where the checkpoint
//! stores `w`.

use bytemuck::{Pod, Zeroable};

use crate::kernel::{Binding, Dispatch, Kernel, ShapeError, StateAccess, Tensor, Workgroups, expect_shape};

pub mod cases;
mod reference;

/// Uniform of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    cols: u32,
    rows: u32,
    eps: f32,
    padding: u32,
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "rms_norm",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/workgroups.wgsl"),
        include_str!("../../common/sum.wgsl"),
        include_str!("rms_norm.wgsl"),
    ],
    bindings: &[Binding::read("x"), Binding::read("weight"), Binding::write("out")],
    state: StateAccess::Uniform,
    workgroup_size: [64, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::rms_norm,
    fast: None,
    cases: cases::cases,
};

/// Norm of every row: `x` and `out` [T, D], `weight` [1, D].
pub fn rms_norm(x: Tensor, weight: Tensor, out: Tensor, eps: f32) -> Result<Dispatch, ShapeError> {
    expect_shape(KERNEL.name, "weight", weight, 1, x.cols)?;
    expect_shape(KERNEL.name, "out", out, x.rows, x.cols)?;
    let workgroups = Workgroups::linear(KERNEL.name, u64::from(x.rows))?;
    let params = Params { cols: x.cols, rows: x.rows, eps, padding: 0 };
    Ok(Dispatch::new(&KERNEL, params, &[x, weight, out], workgroups))
}
