//! The gated product of a feed-forward block (SwiGLU, Shazeer 2020, arXiv:2002.05202):
//! `out[t, i] = SiLU(gate[t, i]) * up[t, i]` with `SiLU(x) = x / (1 + e^-x)`.

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
    bindings: &[Binding::read("gate"), Binding::read("up"), Binding::write("out")],
    state: StateAccess::Uniform,
    workgroup_size: [64, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::silu_mul,
    cases: cases::cases,
};

/// `gate`, `up` and `out` are [T, F].
pub fn silu_mul(gate: Tensor, up: Tensor, out: Tensor) -> Result<Dispatch, ShapeError> {
    expect_shape(KERNEL.name, "up", up, gate.rows, gate.cols)?;
    expect_shape(KERNEL.name, "out", out, gate.rows, gate.cols)?;
    let elements = u64::from(gate.rows) * u64::from(gate.cols);
    let workgroups = Workgroups::linear(KERNEL.name, elements.div_ceil(64))?;
    let params = Params { cols: gate.cols, rows: gate.rows, padding: [0; 2] };
    Ok(Dispatch::new(&KERNEL, params, &[gate, up, out], workgroups))
}
