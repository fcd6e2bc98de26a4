//! Output norm of a delta-rule layer: per-head RMS norm, then a SiLU gate.
//!
//! For token `t`, head `h` of `dv` elements:
//! `out[t, h, i] = o[t, h, i] * weight[i] / sqrt(mean_i(o[t, h, i]^2) + eps) * SiLU(z[t, h, i])`.
//! The norm comes first, and its weights are shared by the heads.

use bytemuck::{Pod, Zeroable};

use crate::kernel::{
    Binding, Columns, Dispatch, Kernel, ShapeError, StateAccess, Tensor, Workgroups, expect_columns,
    expect_shape, require,
};

pub mod cases;
pub(in crate::kernels) mod fast;
mod reference;

/// Uniform of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    rows: u32,
    num_heads: u32,
    head_dim: u32,
    eps: f32,
    z_first: u32,
    z_stride: u32,
    padding: [u32; 2],
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "gated_norm",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/workgroups.wgsl"),
        include_str!("../../common/sum.wgsl"),
        include_str!("../../common/sigmoid.wgsl"),
        include_str!("gated_norm.wgsl"),
    ],
    bindings: &[Binding::read("o"), Binding::read("z"), Binding::read("weight"), Binding::write("out")],
    state: StateAccess::Uniform,
    workgroup_size: [64, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::gated_norm,
    fast: Some(|args, _| fast::gated_norm(args)),
    cases: cases::cases,
};

/// `o`, `z` and `out` [T, num_heads * dv], `weight` [1, dv].
pub fn gated_norm(
    o: Tensor,
    z: impl Into<Columns>,
    weight: Tensor,
    out: Tensor,
    num_heads: u32,
    eps: f32,
) -> Result<Dispatch, ShapeError> {
    let (name, z) = (KERNEL.name, z.into());
    require(name, "num_heads", num_heads, num_heads > 0, "at least 1")?;
    let head_dim = weight.cols;
    require(name, "head_dim", head_dim, head_dim > 0, "at least 1")?;
    expect_shape(name, "weight", weight, 1, head_dim)?;
    expect_shape(name, "o", o, o.rows, num_heads.saturating_mul(head_dim))?;
    expect_columns(name, "z", z, o.rows, o.cols)?;
    expect_shape(name, "out", out, o.rows, o.cols)?;
    let workgroups = Workgroups::linear(name, u64::from(o.rows) * u64::from(num_heads))?;
    let params = Params {
        rows: o.rows,
        num_heads,
        head_dim,
        eps,
        z_first: z.first,
        z_stride: z.tensor.cols,
        padding: [0; 2],
    };
    let mut dispatch = Dispatch::new(&KERNEL, params, &[o, z.tensor, weight, out], workgroups);
    dispatch.bytes_read = o.n_bytes() + z.n_bytes() + weight.n_bytes();
    Ok(dispatch)
}
