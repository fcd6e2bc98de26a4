//! The gated delta rule (Yang et al. 2024, arXiv:2412.06464), token by token.
//!
//! A row of `y` holds the queries and keys of `Hk` heads of `dk` elements, L2-normed already, and
//! then the values of `Hv` heads of `dv`. For value head `j`, which reads key head `j % Hk`, and
//! its state `S` [dk, dv]:
//!
//! ```text
//! g    = ssm_a[j] * softplus(alpha[t, j] + dt_bias[j])
//! S    = e^g * S                                   decay
//! d    = sigmoid(beta[t, j]) * (v - S^T k)         what the decayed state gets wrong
//! S    = S + k d^T                                 write
//! out  = S^T q                                     read, after the write
//! ```
//!
//! `ssm_a` is negative (the file stores `-exp(A_log)`), so that `e^g` is at most 1. Value heads
//! are tiled over the key heads: `j % Hk`, not `j / (Hv / Hk)`.

use bytemuck::{Pod, Zeroable};

use crate::kernel::{
    Binding, Columns, Dispatch, Kernel, MAX_LOOP_ITERATIONS, ShapeError, StateAccess, Tensor, Workgroups,
    expect_columns, expect_shape, require,
};

pub mod cases;
mod reference;

/// The heads of a delta-rule layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaShape {
    /// Query and key heads, `Hk`.
    pub num_key_heads: u32,
    /// Value heads, `Hv`; a multiple of `Hk`.
    pub num_value_heads: u32,
    /// Elements of a query or key head, `dk`.
    pub key_head_dim: u32,
    /// Elements of a value head, `dv`.
    pub value_head_dim: u32,
}

/// What decides decay and writing strength.
#[derive(Clone, Copy, Debug)]
pub struct DeltaGates {
    /// [T, Hv], before the bias and softplus.
    pub alpha: Columns,
    /// [T, Hv], before the sigmoid.
    pub beta: Columns,
    /// [1, Hv], negative.
    pub ssm_a: Tensor,
    /// [1, Hv].
    pub dt_bias: Tensor,
}

/// Uniform of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    rows: u32,
    key_heads: u32,
    value_heads: u32,
    key_dim: u32,
    value_dim: u32,
    gates_stride: u32,
    alpha_first: u32,
    beta_first: u32,
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "delta_net",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/workgroups.wgsl"),
        include_str!("../../common/sigmoid.wgsl"),
        include_str!("delta_net.wgsl"),
    ],
    bindings: &[
        Binding::read("y"),
        Binding::read("alpha"),
        Binding::read("beta"),
        Binding::read("ssm_a"),
        Binding::read("dt_bias"),
        Binding::write("s"),
        Binding::write("out"),
    ],
    state: StateAccess::Uniform,
    workgroup_size: [64, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::delta_net,
    cases: cases::cases,
};

/// Runs the step's tokens through the state `s` [Hv * dk, dv], which is replaced.
///
/// `y` [T, 2 * Hk * dk + Hv * dv], `out` [T, Hv * dv].
pub fn delta_net(
    y: Tensor,
    gates: DeltaGates,
    s: Tensor,
    out: Tensor,
    shape: DeltaShape,
) -> Result<Dispatch, ShapeError> {
    let DeltaShape { num_key_heads, num_value_heads, key_head_dim, value_head_dim } = shape;
    let DeltaGates { alpha, beta, ssm_a, dt_bias } = gates;
    let name = KERNEL.name;
    require(name, "num_key_heads", num_key_heads, num_key_heads > 0, "at least 1")?;
    let tiles = num_value_heads > 0 && num_value_heads.is_multiple_of(num_key_heads);
    require(name, "num_value_heads", num_value_heads, tiles, "a multiple of num_key_heads")?;
    require(name, "key_head_dim", key_head_dim, key_head_dim > 0, "at least 1")?;
    require(name, "value_head_dim", value_head_dim, value_head_dim > 0, "at least 1")?;
    let keys = num_key_heads.saturating_mul(2).saturating_mul(key_head_dim);
    let values = num_value_heads.saturating_mul(value_head_dim);
    expect_shape(name, "y", y, y.rows, keys.saturating_add(values))?;
    expect_columns(name, "alpha", alpha, y.rows, num_value_heads)?;
    expect_columns(name, "beta", beta, y.rows, num_value_heads)?;
    let same = beta.tensor.cols;
    require(name, "row length of beta", same, same == alpha.tensor.cols, "that of alpha")?;
    expect_shape(name, "ssm_a", ssm_a, 1, num_value_heads)?;
    expect_shape(name, "dt_bias", dt_bias, 1, num_value_heads)?;
    expect_shape(name, "s", s, num_value_heads.saturating_mul(key_head_dim), value_head_dim)?;
    expect_shape(name, "out", out, y.rows, values)?;
    let per_token = 1 + 2 * (key_head_dim / 8 + key_head_dim % 8);
    let iterations = y.rows.saturating_mul(per_token);
    require(name, "loop iterations", iterations, iterations <= MAX_LOOP_ITERATIONS, "at most 65,535")?;
    let workgroups = Workgroups::linear(name, u64::from(values).div_ceil(64))?;
    let params = Params {
        rows: y.rows,
        key_heads: num_key_heads,
        value_heads: num_value_heads,
        key_dim: key_head_dim,
        value_dim: value_head_dim,
        gates_stride: alpha.tensor.cols,
        alpha_first: alpha.first,
        beta_first: beta.first,
    };
    let mut dispatch =
        Dispatch::new(&KERNEL, params, &[y, alpha.tensor, beta.tensor, ssm_a, dt_bias, s, out], workgroups);
    dispatch.bytes_read =
        y.n_bytes() + alpha.n_bytes() + beta.n_bytes() + ssm_a.n_bytes() + dt_bias.n_bytes() + s.n_bytes();
    Ok(dispatch)
}
