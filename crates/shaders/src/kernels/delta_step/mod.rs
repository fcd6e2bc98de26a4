//! One token of a gated DeltaNet layer (Yang et al. 2024, arXiv:2412.06464), for decode: all that
//! lies between the layer's first and last projection.
//!
//! The token's row of projections holds the channels `u` of the queries and keys of `Hk` heads of
//! `dk` and of the values of `Hv` heads of `dv`, then `z` [Hv * dv], `alpha` [Hv] and `beta` [Hv].
//! With `K` taps, for value head `j`, which reads key head `j % Hk`, and its state `S` [dk, dv]:
//!
//! ```text
//! a[c] = SiLU(sum_i conv[c, i] * u[p - K + 1 + i, c])       convolution over positions
//! q    = a_q / sqrt(sum(a_q^2) + eps) / sqrt(dk)
//! k    = a_k / sqrt(sum(a_k^2) + eps),   v = a_v
//! S    = e^g S,   g = ssm_a[j] * softplus(alpha[j] + dt_bias[j])
//! S    = S + k d^T,   d = sigmoid(beta[j]) * (v - S^T k)
//! o    = S^T q
//! out  = o * norm / sqrt(mean(o^2) + eps) * SiLU(z)
//! ```
//!
//! The inputs of earlier positions are in a ring of four rows, position `p` in row `p % 4`, whatever
//! the number of taps: raw, neither convolved nor through SiLU.

use bytemuck::{Pod, Zeroable};

use super::delta_net::DeltaShape;
use crate::kernel::{
    Binding, Dispatch, Kernel, ShapeError, StateAccess, Tensor, Workgroups, expect_shape, require,
};

pub mod cases;
mod fast;
mod reference;

/// Rows of the ring of inputs.
pub const RING_ROWS: u32 = 4;

/// The widest head, as in the WGSL.
const MAX_HEAD_DIM: u32 = 512;

/// Uniform of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    key_heads: u32,
    value_heads: u32,
    key_dim: u32,
    value_dim: u32,
    taps: u32,
    channels: u32,
    eps: f32,
    padding: u32,
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "delta_step",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/workgroups.wgsl"),
        include_str!("../../common/sigmoid.wgsl"),
        include_str!("../../common/softplus.wgsl"),
        include_str!("delta_step.wgsl"),
    ],
    bindings: &[
        Binding::read("projected"),
        Binding::read("conv"),
        Binding::read("ssm_a"),
        Binding::read("dt_bias"),
        Binding::read("norm"),
        Binding::write("ring"),
        Binding::write("s"),
        Binding::write("out"),
    ],
    state: StateAccess::Uniform,
    workgroup_size: [64, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::delta_step,
    fast: Some(|args, _| fast::delta_step(args)),
    cases: cases::cases,
};

/// The layer's weights that the step reads.
#[derive(Clone, Copy, Debug)]
pub struct DeltaWeights {
    /// [C, K], the taps of a channel together, 2 <= K <= 4.
    pub conv: Tensor,
    /// [1, Hv], negative.
    pub ssm_a: Tensor,
    /// [1, Hv].
    pub dt_bias: Tensor,
    /// [1, dv].
    pub norm: Tensor,
}

/// `projected` [1, C + Hv * dv + 2 * Hv] with C = 2 * Hk * dk + Hv * dv, `out` [1, Hv * dv]. The
/// ring [4, C] and the state `s` [Hv * dk, dv] are read and moved on.
pub fn delta_step(
    projected: Tensor,
    weights: DeltaWeights,
    ring: Tensor,
    s: Tensor,
    out: Tensor,
    shape: DeltaShape,
    eps: f32,
) -> Result<Dispatch, ShapeError> {
    let DeltaShape { num_key_heads, num_value_heads, key_head_dim, value_head_dim } = shape;
    let DeltaWeights { conv, ssm_a, dt_bias, norm } = weights;
    let name = KERNEL.name;
    require(name, "num_key_heads", num_key_heads, num_key_heads > 0, "at least 1")?;
    let tiles = num_value_heads > 0 && num_value_heads.is_multiple_of(num_key_heads);
    require(name, "num_value_heads", num_value_heads, tiles, "a multiple of num_key_heads")?;
    let fits = |dim: u32| (1..=MAX_HEAD_DIM).contains(&dim);
    require(name, "key_head_dim", key_head_dim, fits(key_head_dim), "1 to 512")?;
    require(name, "value_head_dim", value_head_dim, fits(value_head_dim), "1 to 512")?;
    let values = num_value_heads.saturating_mul(value_head_dim);
    let channels = num_key_heads.saturating_mul(2).saturating_mul(key_head_dim).saturating_add(values);
    let taps = conv.cols;
    require(name, "taps", taps, (2..=4).contains(&taps), "2, 3 or 4")?;
    let width = channels.saturating_add(values).saturating_add(num_value_heads.saturating_mul(2));
    expect_shape(name, "projected", projected, 1, width)?;
    expect_shape(name, "conv", conv, channels, taps)?;
    expect_shape(name, "ssm_a", ssm_a, 1, num_value_heads)?;
    expect_shape(name, "dt_bias", dt_bias, 1, num_value_heads)?;
    expect_shape(name, "norm", norm, 1, value_head_dim)?;
    expect_shape(name, "ring", ring, RING_ROWS, channels)?;
    expect_shape(name, "s", s, num_value_heads.saturating_mul(key_head_dim), value_head_dim)?;
    expect_shape(name, "out", out, 1, values)?;
    let workgroups = Workgroups::linear(name, u64::from(num_value_heads))?;
    let params = Params {
        key_heads: num_key_heads,
        value_heads: num_value_heads,
        key_dim: key_head_dim,
        value_dim: value_head_dim,
        taps,
        channels,
        eps,
        padding: 0,
    };
    let tensors = [projected, conv, ssm_a, dt_bias, norm, ring, s, out];
    let mut dispatch = Dispatch::new(&KERNEL, params, &tensors, workgroups);
    // Of the ring, a row per earlier tap is read and one is written.
    let row = Tensor { rows: 1, ..ring }.n_bytes();
    dispatch.bytes_read += u64::from(taps - 1) * row + s.n_bytes();
    dispatch.bytes_written = row + s.n_bytes() + out.n_bytes();
    Ok(dispatch)
}
