//! The inputs of a delta-rule layer over a whole step: causal depthwise convolution over tokens,
//! SiLU, and the L2 norm of queries and keys.
//!
//! With `K` taps, `u[t]` the channels of token `t` and, for `t < 0`, those of earlier steps:
//!
//! ```text
//! a[t, c] = SiLU(sum_j weight[c, j] * u[t - K + 1 + j, c])      0 <= j < K
//! q[t, h] = a[t, h] / sqrt(sum(a[t, h]^2) + eps) / sqrt(dk)     heads h of queries
//! k[t, h] = a[t, h] / sqrt(sum(a[t, h]^2) + eps)                heads h of keys
//! v[t]    = a[t]                                                values
//! ```
//!
//! `eps` is added to the sum of squares, inside the root; only queries get the last factor. The last
//! tap multiplies the current token.
//!
//! What a newcomer gets wrong: the state is a ring of four rows whatever the number of taps. It holds
//! raw inputs, neither convolved nor through SiLU; the token at position `p` is in row `p % 4`.

use bytemuck::{Pod, Zeroable};

use super::delta_net::DeltaShape;
use super::delta_step::RING_ROWS;
use crate::kernel::{
    Binding, Columns, Dispatch, Kernel, ShapeError, StateAccess, Tensor, Workgroups, expect_columns,
    expect_shape, require,
};

pub mod cases;
pub(in crate::kernels) mod fast;
mod reference;

/// Tokens of a workgroup, as in the WGSL.
const TOKENS: u32 = 8;

/// Uniform of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    rows: u32,
    channels: u32,
    taps: u32,
    key_heads: u32,
    head_dim: u32,
    u_first: u32,
    u_stride: u32,
    eps: f32,
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "delta_conv",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/workgroups.wgsl"),
        include_str!("../../common/sigmoid.wgsl"),
        include_str!("delta_conv.wgsl"),
    ],
    bindings: &[Binding::read("u"), Binding::read("weight"), Binding::write("ring"), Binding::write("y")],
    state: StateAccess::Uniform,
    workgroup_size: [64, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::delta_conv,
    fast: Some(|args, _| fast::delta_conv(args)),
    cases: cases::cases,
};

/// `u` and `y` [T, C] with C = 2 * Hk * dk + Hv * dv: queries, keys, values. `weight` [C, K], the
/// taps of a channel together, 2 <= K <= 4. `ring` [4, C] is read and moved on.
pub fn delta_conv(
    u: impl Into<Columns>,
    weight: Tensor,
    ring: Tensor,
    y: Tensor,
    shape: DeltaShape,
    eps: f32,
) -> Result<Dispatch, ShapeError> {
    let (name, u) = (KERNEL.name, u.into());
    let channels = shape.check(name)?;
    let taps = weight.cols;
    require(name, "taps", taps, (2..=4).contains(&taps), "2, 3 or 4")?;
    expect_shape(name, "y", y, y.rows, channels)?;
    expect_columns(name, "u", u, y.rows, channels)?;
    expect_shape(name, "weight", weight, channels, taps)?;
    expect_shape(name, "ring", ring, RING_ROWS, channels)?;
    let head_dim = shape.key_head_dim;
    let blocks = u64::from(channels.div_ceil(head_dim)) * u64::from(y.rows.div_ceil(TOKENS));
    let workgroups = Workgroups::linear(name, blocks)?;
    let params = Params {
        rows: y.rows,
        channels,
        taps,
        key_heads: shape.num_key_heads,
        head_dim,
        u_first: u.first,
        u_stride: u.tensor.cols,
        eps,
    };
    let mut dispatch = Dispatch::new(&KERNEL, params, &[u.tensor, weight, ring, y], workgroups);
    let row = Tensor { rows: 1, ..ring }.n_bytes();
    dispatch.bytes_read = u.n_bytes() + weight.n_bytes() + u64::from(taps - 1) * row;
    Ok(dispatch)
}
