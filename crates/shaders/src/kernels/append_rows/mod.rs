//! Appends the step's rows to a cache: `cache[state.position + t, i] = x[t, i]`.

use bytemuck::{Pod, Zeroable};

use crate::kernel::{
    Binding, Columns, Dispatch, Kernel, ShapeError, StateAccess, Tensor, Workgroups, expect_columns,
    expect_shape,
};

pub mod cases;
mod reference;

/// Uniform of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    cols: u32,
    rows: u32,
    context: u32,
    first: u32,
    stride: u32,
    padding: [u32; 3],
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "append_rows",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/workgroups.wgsl"),
        include_str!("append_rows.wgsl"),
    ],
    bindings: &[Binding::read("x"), Binding::write("cache")],
    state: StateAccess::Uniform,
    workgroup_size: [64, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::append_rows,
    cases: cases::cases,
};

/// Copies the columns `x` [T, C] into `cache` [S, C] from row `state.position` on. Rows that would lie past
/// the cache are not written.
pub fn append_rows(x: impl Into<Columns>, cache: Tensor) -> Result<Dispatch, ShapeError> {
    let x = x.into();
    let rows = x.tensor.rows;
    expect_columns(KERNEL.name, "x", x, rows, x.cols)?;
    expect_shape(KERNEL.name, "cache", cache, cache.rows, x.cols)?;
    let elements = u64::from(rows) * u64::from(x.cols);
    let workgroups = Workgroups::linear(KERNEL.name, elements.div_ceil(64))?;
    let params = Params {
        cols: x.cols,
        rows,
        context: cache.rows,
        first: x.first,
        stride: x.tensor.cols,
        padding: [0; 3],
    };
    let mut dispatch = Dispatch::new(&KERNEL, params, &[x.tensor, cache], workgroups);
    dispatch.bytes_read = x.n_bytes();
    dispatch.bytes_written = x.n_bytes();
    Ok(dispatch)
}
