//! L2 norm of the query and key heads of a delta-rule layer, in place.
//!
//! A row of `y` holds `key_heads` queries, as many keys, and then values, which stay as they are.
//! For every head of `key_head_dim` elements:
//!
//! ```text
//! q[i] = q[i] / sqrt(sum_i(q[i]^2) + eps) / sqrt(key_head_dim)
//! k[i] = k[i] / sqrt(sum_i(k[i]^2) + eps)
//! ```
//!
//! `eps` is added to the sum of squares, inside the root; only queries get the last factor.

use bytemuck::{Pod, Zeroable};

use crate::kernel::{Binding, Dispatch, Kernel, ShapeError, StateAccess, Tensor, Workgroups, require};

pub mod cases;
mod reference;

/// Uniform of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    cols: u32,
    rows: u32,
    key_heads: u32,
    head_dim: u32,
    eps: f32,
    padding: [u32; 3],
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "l2_norm",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/workgroups.wgsl"),
        include_str!("../../common/sum.wgsl"),
        include_str!("l2_norm.wgsl"),
    ],
    bindings: &[Binding::write("y")],
    state: StateAccess::Uniform,
    workgroup_size: [64, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::l2_norm,
    cases: cases::cases,
};

/// Norms the first `2 * key_heads * key_head_dim` columns of `y` [T, C] in place.
pub fn l2_norm(y: Tensor, key_heads: u32, key_head_dim: u32, eps: f32) -> Result<Dispatch, ShapeError> {
    let name = KERNEL.name;
    require(name, "key_heads", key_heads, key_heads > 0, "at least 1")?;
    let normed = key_heads.saturating_mul(2).saturating_mul(key_head_dim);
    let fits = key_head_dim > 0 && normed <= y.cols;
    require(name, "key_head_dim", key_head_dim, fits, "at least 1, with all queries and keys in a row")?;
    let workgroups = Workgroups::linear(name, u64::from(y.rows) * u64::from(key_heads) * 2)?;
    let params =
        Params { cols: y.cols, rows: y.rows, key_heads, head_dim: key_head_dim, eps, padding: [0; 3] };
    let mut dispatch = Dispatch::new(&KERNEL, params, &[y], workgroups);
    dispatch.bytes_written = Tensor { cols: normed, ..y }.n_bytes();
    dispatch.bytes_read = dispatch.bytes_written;
    Ok(dispatch)
}
