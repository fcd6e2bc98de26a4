//! Puts the splits of one token's attention together (Dao et al. 2023, Flash-Decoding), and applies the
//! layer's output gate.
//!
//! With the numbers `O`, `m` and `l` of each split of a head, over the splits whose `l` is not 0, in order:
//!
//! ```text
//! top    = max m
//! out[i] = sum e^(m - top) * O[i] / sum e^(m - top) * l
//! out[i] = out[i] * sigmoid(gate[i])      with gates
//! ```

use bytemuck::{Pod, Zeroable};

use super::attention_decode::STATISTICS;
use super::qkv::AttentionShape;
use crate::kernel::{
    Binding, Dispatch, Kernel, ShapeError, StateAccess, Tensor, Workgroups, expect_shape, require,
};

pub mod cases;
mod fast;
mod reference;

/// Uniform of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    num_heads: u32,
    head_dim: u32,
    n_splits: u32,
    gated: u32,
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "attention_merge",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/workgroups.wgsl"),
        include_str!("../../common/sigmoid.wgsl"),
        include_str!("attention_merge.wgsl"),
    ],
    bindings: &[Binding::read("partials"), Binding::read("qkv"), Binding::write("out")],
    state: StateAccess::Uniform,
    workgroup_size: [64, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::attention_merge,
    fast: Some(|args, _| fast::attention_merge(args)),
    cases: cases::cases,
};

/// The result of one token's attention.
///
/// * `partials` [num_heads * splits, head_dim + 2]: a row per head and split with `O`, `m` and `l`;
/// * `qkv` [1, `shape.qkv_cols()`], which has the gates;
/// * `out` [1, num_heads * head_dim].
pub fn attention_merge(
    partials: Tensor,
    qkv: Tensor,
    out: Tensor,
    shape: AttentionShape,
) -> Result<Dispatch, ShapeError> {
    let name = KERNEL.name;
    shape.check(name)?;
    let n_splits = partials.rows / shape.num_heads;
    require(name, "splits", n_splits, n_splits > 0, "at least 1")?;
    expect_shape(name, "partials", partials, shape.num_heads * n_splits, shape.head_dim + STATISTICS)?;
    expect_shape(name, "qkv", qkv, 1, shape.qkv_cols())?;
    expect_shape(name, "out", out, 1, shape.q_cols())?;
    let workgroups = Workgroups::linear(name, u64::from(out.cols).div_ceil(64))?;
    let params = Params {
        num_heads: shape.num_heads,
        head_dim: shape.head_dim,
        n_splits,
        gated: u32::from(shape.gated),
    };
    let mut dispatch = Dispatch::new(&KERNEL, params, &[partials, qkv, out], workgroups);
    let gate_bytes = if shape.gated { out.n_bytes() } else { 0 };
    dispatch.bytes_read = partials.n_bytes() + gate_bytes;
    Ok(dispatch)
}
