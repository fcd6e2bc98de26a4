//! The gated delta rule (Yang et al. 2024, arXiv:2412.06464), chunk by chunk.
//!
//! A row of `y` holds the queries and keys of `Hk` heads of `dk` elements, L2-normed already, and
//! then the values of `Hv` heads of `dv`. For value head `j`, which reads key head `j % Hk`, and
//! its state `S` [dk, dv], the rule is, token by token:
//!
//! ```text
//! g    = ssm_a[j] * softplus(alpha[t, j] + dt_bias[j])
//! S    = e^g * S                                   decay
//! d    = sigmoid(beta[t, j]) * (v - S^T k)         what the decayed state gets wrong
//! S    = S + k d^T                                 write
//! out  = S^T q                                     read, after the write
//! ```
//!
//! For a chunk of up to 32 tokens at once, with the M, P and decays of
//! [`delta_chunk`](super::delta_chunk), in which `left_i` is what the state has decayed to at token `i`
//! and `rest_i` what is left of its writing at the end:
//!
//! ```text
//! R_i   = v_i - left_i * S^T k_i
//! U     = M R                                      the d of every token
//! out_i = left_i * S^T q_i + sum_l P_il U_l
//! S     = left_n * S + sum_i rest_i * k_i U_i^T
//! ```
//!
//! Results depend on where chunks begin by rounding alone. Value heads are tiled over the key heads:
//! `j % Hk`, not `j / (Hv / Hk)`.

use bytemuck::{Pod, Zeroable};

use super::delta_chunk::{CHUNK, DeltaChunks};
use crate::kernel::{
    Binding, Columns, Dispatch, Kernel, MAX_LOOP_ITERATIONS, ShapeError, StateAccess, Tensor, Workgroups,
    expect_shape, require,
};

pub mod cases;
mod fast;
mod reference;

/// Columns of a head's state that a workgroup moves on, as in the WGSL.
const COLUMNS: u32 = 32;

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

impl DeltaShape {
    /// Refuses heads that do not fit together; gives the columns of queries, keys and values.
    pub(in crate::kernels) fn check(self, kernel: &'static str) -> Result<u32, ShapeError> {
        let Self { num_key_heads, num_value_heads, key_head_dim, value_head_dim } = self;
        require(kernel, "num_key_heads", num_key_heads, num_key_heads > 0, "at least 1")?;
        let tiles = num_value_heads > 0 && num_value_heads.is_multiple_of(num_key_heads);
        require(kernel, "num_value_heads", num_value_heads, tiles, "a multiple of num_key_heads")?;
        require(kernel, "key_head_dim", key_head_dim, key_head_dim > 0, "at least 1")?;
        require(kernel, "value_head_dim", value_head_dim, value_head_dim > 0, "at least 1")?;
        let keys = num_key_heads.saturating_mul(2).saturating_mul(key_head_dim);
        Ok(keys.saturating_add(num_value_heads.saturating_mul(value_head_dim)))
    }

    /// Refuses heads that are not whole vectors of four.
    pub(in crate::kernels) fn check_vectors(self, kernel: &'static str) -> Result<(), ShapeError> {
        for (name, dim) in [("key_head_dim", self.key_head_dim), ("value_head_dim", self.value_head_dim)] {
            require(kernel, name, dim, dim.is_multiple_of(4), "a multiple of 4")?;
        }
        Ok(())
    }
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
    padding: [u32; 3],
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "delta_net",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/workgroups.wgsl"),
        include_str!("delta_net.wgsl"),
    ],
    bindings: &[
        Binding::read("y"),
        Binding::read("solve"),
        Binding::read("mixing"),
        Binding::read("decay"),
        Binding::write("s"),
        Binding::write("out"),
    ],
    state: StateAccess::Uniform,
    workgroup_size: [64, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::delta_net,
    fast: Some(|args, _| fast::delta_net(args)),
    cases: cases::cases,
};

/// Runs the step's tokens through the state `s` [Hv * dk, dv], which is replaced.
///
/// `y` [T, 2 * Hk * dk + Hv * dv], `out` [T, Hv * dv]; `dk` and `dv` are multiples of 4.
pub fn delta_net(
    y: Tensor,
    chunks: DeltaChunks,
    s: Tensor,
    out: Tensor,
    shape: DeltaShape,
) -> Result<Dispatch, ShapeError> {
    let DeltaShape { num_key_heads, num_value_heads, key_head_dim, value_head_dim } = shape;
    let name = KERNEL.name;
    expect_shape(name, "y", y, y.rows, shape.check(name)?)?;
    shape.check_vectors(name)?;
    chunks.check(name, y.rows, shape)?;
    expect_shape(name, "s", s, num_value_heads.saturating_mul(key_head_dim), value_head_dim)?;
    expect_shape(name, "out", out, y.rows, num_value_heads.saturating_mul(value_head_dim))?;
    // Reading the state, solving and mixing, and writing the state.
    let per_chunk =
        1 + 4 + key_head_dim / 4 + 2 * CHUNK + key_head_dim.div_ceil(32).saturating_mul(1 + CHUNK);
    let iterations = y.rows.div_ceil(CHUNK).saturating_mul(per_chunk);
    require(name, "loop iterations", iterations, iterations <= MAX_LOOP_ITERATIONS, "at most 65,535")?;
    let blocks = u64::from(num_value_heads) * u64::from(value_head_dim.div_ceil(COLUMNS));
    let workgroups = Workgroups::linear(name, blocks)?;
    let params = Params {
        rows: y.rows,
        key_heads: num_key_heads,
        value_heads: num_value_heads,
        key_dim: key_head_dim,
        value_dim: value_head_dim,
        padding: [0; 3],
    };
    let DeltaChunks { solve, mixing, decay } = chunks;
    let mut dispatch = Dispatch::new(&KERNEL, params, &[y, solve, mixing, decay, s, out], workgroups);
    dispatch.bytes_read += s.n_bytes();
    Ok(dispatch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wgsl_has_the_sizes_that_the_grid_assumes() {
        assert!(KERNEL.wgsl().contains(&format!("const CHUNK = {CHUNK}u;")));
        assert!(KERNEL.wgsl().contains(&format!("const QUADS = {}u;", COLUMNS / 4)));
        assert!(super::super::delta_chunk::KERNEL.wgsl().contains(&format!("const CHUNK = {CHUNK}u;")));
    }
}
