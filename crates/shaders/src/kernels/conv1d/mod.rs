//! Causal depthwise convolution over tokens, then SiLU, with its state moved on in place.
//!
//! With `K` taps and the window `win`, the rows of `conv_state` (oldest first) followed by those
//! of `u`:
//!
//! ```text
//! y[t, c]    = SiLU(sum_j weight[c, j] * win[t + j, c])      0 <= j < K
//! conv_state = the last K - 1 rows of win
//! ```
//!
//! The last tap multiplies the current token. The state holds raw inputs: neither convolved nor
//! through SiLU.

use bytemuck::{Pod, Zeroable};

use crate::kernel::{
    Binding, Columns, Dispatch, Kernel, ShapeError, StateAccess, Tensor, Workgroups, expect_columns,
    expect_shape, require,
};

pub mod cases;
mod reference;

/// Uniform of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    channels: u32,
    rows: u32,
    taps: u32,
    first: u32,
    stride: u32,
    padding: [u32; 3],
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "conv1d",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/workgroups.wgsl"),
        include_str!("../../common/sigmoid.wgsl"),
        include_str!("conv1d.wgsl"),
    ],
    bindings: &[
        Binding::read("u"),
        Binding::read("weight"),
        Binding::write("conv_state"),
        Binding::write("y"),
    ],
    state: StateAccess::Uniform,
    workgroup_size: [64, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::conv1d,
    cases: cases::cases,
};

/// Convolution of `u` [T, C] into `y` [T, C] with `weight` [C, K], the taps of a channel together,
/// 2 <= K <= 4. `conv_state` [K - 1, C] is read and replaced.
pub fn conv1d(
    u: impl Into<Columns>,
    weight: Tensor,
    conv_state: Tensor,
    y: Tensor,
) -> Result<Dispatch, ShapeError> {
    let u = u.into();
    expect_columns(KERNEL.name, "u", u, y.rows, y.cols)?;
    let taps = weight.cols;
    require(KERNEL.name, "taps", taps, (2..=4).contains(&taps), "2, 3 or 4")?;
    expect_shape(KERNEL.name, "weight", weight, u.cols, taps)?;
    expect_shape(KERNEL.name, "conv_state", conv_state, taps - 1, u.cols)?;
    let workgroups = Workgroups::linear(KERNEL.name, u64::from(u.cols).div_ceil(64))?;
    let params = Params {
        channels: u.cols,
        rows: y.rows,
        taps,
        first: u.first,
        stride: u.tensor.cols,
        padding: [0; 3],
    };
    let mut dispatch = Dispatch::new(&KERNEL, params, &[u.tensor, weight, conv_state, y], workgroups);
    dispatch.bytes_read = u.n_bytes() + weight.n_bytes() + conv_state.n_bytes();
    Ok(dispatch)
}
