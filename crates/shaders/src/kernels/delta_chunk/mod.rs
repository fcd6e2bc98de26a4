//! What the tokens of a chunk do to each other under the gated delta rule, for every chunk at once.
//!
//! The rule (see [`delta_net`](super::delta_net)) runs over chunks of [`CHUNK`] tokens in the WY form
//! (Yang et al. 2024, arXiv:2412.06464). For value head `j`, which reads key head `j % Hk`, and tokens
//! `i`, `l` of a chunk:
//!
//! ```text
//! g_i  = ssm_a[j] * softplus(alpha[i, j] + dt_bias[j])
//! b_i  = sigmoid(beta[i, j])
//! D_il = e^(g_(l+1) + ... + g_i)         l <= i, else 0
//! A_il = b_i * (k_i . k_l) * D_il        l < i, else 0
//! M    = (I + A)^-1 diag(b)              by forward substitution
//! P_il = (q_i . k_l) * D_il              l <= i, else 0
//! ```
//!
//! `solve` gets M and `mixing` P, transposed: [chunk, value head, l, i], and zeros where a chunk has no
//! token. `decay` gets for each token what the state before the chunk has decayed to, e^(g_1 + ... + g_i),
//! and, `Hv` columns further on, what of its own writing is left at the end of the chunk,
//! e^(g_(i+1) + ... + g_n). Exponents are sums over what lies between, never differences of sums from
//! the start: those would lose the small ones beside the large.
//!
//! `ssm_a` is negative (the file stores `-exp(A_log)`), so that every exponent is at most 0.
//! Forward substitution and not doubling, whose intermediates grow without bound when keys repeat.

use bytemuck::{Pod, Zeroable};

use super::delta_net::{DeltaGates, DeltaShape};
use crate::kernel::{
    Binding, Dispatch, Kernel, ShapeError, StateAccess, Tensor, Workgroups, expect_columns, expect_shape,
    require,
};

pub mod cases;
pub(in crate::kernels) mod fast;
pub(in crate::kernels) mod reference;

/// Tokens of a chunk, as in the WGSL of this kernel and of the rule.
pub const CHUNK: u32 = 32;

/// Where the results go.
#[derive(Clone, Copy, Debug)]
pub struct DeltaChunks {
    /// [chunks * Hv * 32, 32].
    pub solve: Tensor,
    /// [chunks * Hv * 32, 32].
    pub mixing: Tensor,
    /// [T, 2 * Hv].
    pub decay: Tensor,
}

impl DeltaChunks {
    /// Rows of `solve` and `mixing` for steps of `rows` tokens.
    pub fn matrix_rows(rows: u32, shape: DeltaShape) -> u32 {
        rows.div_ceil(CHUNK).saturating_mul(shape.num_value_heads).saturating_mul(CHUNK)
    }

    pub(in crate::kernels) fn check(
        &self,
        kernel: &'static str,
        rows: u32,
        shape: DeltaShape,
    ) -> Result<(), ShapeError> {
        let matrix_rows = Self::matrix_rows(rows, shape);
        expect_shape(kernel, "solve", self.solve, matrix_rows, CHUNK)?;
        expect_shape(kernel, "mixing", self.mixing, matrix_rows, CHUNK)?;
        expect_shape(kernel, "decay", self.decay, rows, shape.num_value_heads.saturating_mul(2))
    }
}

/// Uniform of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    rows: u32,
    key_heads: u32,
    value_heads: u32,
    key_dim: u32,
    y_cols: u32,
    gates_stride: u32,
    alpha_first: u32,
    beta_first: u32,
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "delta_chunk",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/workgroups.wgsl"),
        include_str!("../../common/sigmoid.wgsl"),
        include_str!("../../common/softplus.wgsl"),
        include_str!("delta_chunk.wgsl"),
    ],
    bindings: &[
        Binding::read("y"),
        Binding::read("alpha"),
        Binding::read("beta"),
        Binding::read("ssm_a"),
        Binding::read("dt_bias"),
        Binding::write("solve"),
        Binding::write("mixing"),
        Binding::write("decay"),
    ],
    state: StateAccess::Uniform,
    workgroup_size: [64, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::delta_chunk,
    fast: Some(|args, _| fast::delta_chunk(args)),
    cases: cases::cases,
};

/// `y` [T, 2 * Hk * dk + Hv * dv] holds queries, keys and values, `dk` and `dv` being multiples of 4.
pub fn delta_chunk(
    y: Tensor,
    gates: DeltaGates,
    chunks: DeltaChunks,
    shape: DeltaShape,
) -> Result<Dispatch, ShapeError> {
    let name = KERNEL.name;
    let DeltaShape { num_key_heads, num_value_heads, key_head_dim, .. } = shape;
    let DeltaGates { alpha, beta, ssm_a, dt_bias } = gates;
    expect_shape(name, "y", y, y.rows, shape.check(name)?)?;
    shape.check_vectors(name)?;
    expect_columns(name, "alpha", alpha, y.rows, num_value_heads)?;
    expect_columns(name, "beta", beta, y.rows, num_value_heads)?;
    let same = beta.tensor.cols;
    require(name, "row length of beta", same, same == alpha.tensor.cols, "that of alpha")?;
    expect_shape(name, "ssm_a", ssm_a, 1, num_value_heads)?;
    expect_shape(name, "dt_bias", dt_bias, 1, num_value_heads)?;
    chunks.check(name, y.rows, shape)?;
    require(name, "key_head_dim", key_head_dim, key_head_dim <= 65_536, "at most 65,536")?;
    let n_chunks = u64::from(y.rows.div_ceil(CHUNK));
    let workgroups = Workgroups::linear(name, n_chunks * u64::from(num_value_heads))?;
    let params = Params {
        rows: y.rows,
        key_heads: num_key_heads,
        value_heads: num_value_heads,
        key_dim: key_head_dim,
        y_cols: y.cols,
        gates_stride: alpha.tensor.cols,
        alpha_first: alpha.first,
        beta_first: beta.first,
    };
    let tensors = [y, alpha.tensor, beta.tensor, ssm_a, dt_bias, chunks.solve, chunks.mixing, chunks.decay];
    let mut dispatch = Dispatch::new(&KERNEL, params, &tensors, workgroups);
    let keys = Tensor { cols: 2 * num_key_heads * key_head_dim, ..y };
    dispatch.bytes_read =
        keys.n_bytes() + alpha.n_bytes() + beta.n_bytes() + ssm_a.n_bytes() + dt_bias.n_bytes();
    Ok(dispatch)
}
