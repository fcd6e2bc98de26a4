//! Output gate of attention, in place: `x[t, h, i] *= sigmoid(qg[t, h, head_dim + i])`.
//!
//! `qg` is the projection whose heads hold the query and then its gate.

use bytemuck::{Pod, Zeroable};

use crate::kernel::{
    Binding, Columns, Dispatch, Kernel, ShapeError, StateAccess, Tensor, Workgroups, expect_columns, require,
};

pub mod cases;
mod reference;

/// Uniform of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    cols: u32,
    rows: u32,
    head_dim: u32,
    first: u32,
    stride: u32,
    padding: [u32; 3],
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "sigmoid_gate",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/workgroups.wgsl"),
        include_str!("../../common/sigmoid.wgsl"),
        include_str!("sigmoid_gate.wgsl"),
    ],
    bindings: &[Binding::read("qg"), Binding::write("x")],
    state: StateAccess::Uniform,
    workgroup_size: [64, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::sigmoid_gate,
    cases: cases::cases,
};

/// Gates `x` [T, heads * head_dim] in place with the gates in `qg` [T, heads * 2 * head_dim].
pub fn sigmoid_gate(x: Tensor, qg: impl Into<Columns>, head_dim: u32) -> Result<Dispatch, ShapeError> {
    let qg = qg.into();
    let divides = head_dim > 0 && x.cols.is_multiple_of(head_dim);
    require(KERNEL.name, "head_dim", head_dim, divides, "a divisor of the row length")?;
    expect_columns(KERNEL.name, "qg", qg, x.rows, x.cols.saturating_mul(2))?;
    let elements = u64::from(x.rows) * u64::from(x.cols);
    let workgroups = Workgroups::linear(KERNEL.name, elements.div_ceil(64))?;
    let params = Params {
        cols: x.cols,
        rows: x.rows,
        head_dim,
        first: qg.first,
        stride: qg.tensor.cols,
        padding: [0; 3],
    };
    let mut dispatch = Dispatch::new(&KERNEL, params, &[qg.tensor, x], workgroups);
    dispatch.bytes_read = 2 * x.n_bytes();
    Ok(dispatch)
}
