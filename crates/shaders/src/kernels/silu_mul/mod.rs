//! The gated product of a feed-forward block (SwiGLU, Shazeer 2020, arXiv:2002.05202):
//! `out[t, i] = SiLU(gate[t, i]) * up[t, i]` with `SiLU(x) = x / (1 + e^-x)`.

use bytemuck::{Pod, Zeroable};

use crate::kernel::{Binding, Dispatch, Kernel, ShapeError, StateAccess, Tensor, Workgroups, expect_shape};

pub mod cases;
mod fast;
mod reference;

/// Uniform of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    cols: u32,
    rows: u32,
    padding: [u32; 2],
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "silu_mul",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/workgroups.wgsl"),
        include_str!("../../common/sigmoid.wgsl"),
        include_str!("silu_mul.wgsl"),
    ],
    bindings: &[Binding::read("gate_up"), Binding::write("out")],
    state: StateAccess::Uniform,
    workgroup_size: [64, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::silu_mul,
    fast: Some(|args, _| fast::silu_mul(args)),
    cases: cases::cases,
};

/// `gate_up` [T, 2 F]: the gates of a row and then its ups; `out` [T, F].
pub fn silu_mul(gate_up: Tensor, out: Tensor) -> Result<Dispatch, ShapeError> {
    expect_shape(KERNEL.name, "gate_up", gate_up, out.rows, out.cols.saturating_mul(2))?;
    let elements = u64::from(out.rows) * u64::from(out.cols);
    let workgroups = Workgroups::linear(KERNEL.name, elements.div_ceil(64))?;
    let params = Params { cols: out.cols, rows: out.rows, padding: [0; 2] };
    Ok(Dispatch::new(&KERNEL, params, &[gate_up, out], workgroups))
}
