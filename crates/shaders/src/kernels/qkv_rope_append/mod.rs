//! What attention does with a step's projections first: queries and keys are normed and rotated
//! ([`NormRope`]), keys and values appended to the caches. Token `t` has position and cache row
//! `state.position + t`.

use bytemuck::{Pod, Zeroable};

use super::qkv::{AttentionShape, KvCache, NormRope};
use crate::kernel::{
    Binding, Dispatch, Kernel, ShapeError, StateAccess, Tensor, Workgroups, expect_shape, require,
};

pub mod cases;
mod fast;
mod reference;

/// Heads that a workgroup takes, with as many invocations for each.
const HEADS_PER_GROUP: u32 = 8;

/// Uniform of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    rows: u32,
    context: u32,
    num_heads: u32,
    num_kv_heads: u32,
    head_dim: u32,
    q_stride: u32,
    n_rot: u32,
    eps: f32,
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "qkv_rope_append",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/workgroups.wgsl"),
        include_str!("../../common/norm_rope.wgsl"),
        include_str!("qkv_rope_append.wgsl"),
    ],
    bindings: &[
        Binding::read("qkv"),
        Binding::read("q_norm"),
        Binding::read("k_norm"),
        Binding::read("rope"),
        Binding::write("q"),
        Binding::write("k_cache"),
        Binding::write("v_cache"),
    ],
    state: StateAccess::Uniform,
    workgroup_size: [64, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::qkv_rope_append,
    fast: Some(|args, _| fast::qkv_rope_append(args)),
    cases: cases::cases,
};

/// Queries of `qkv` [T, `shape.qkv_cols()`] to `q` [T, num_heads * head_dim], keys and values to `cache`.
///
/// A token whose position is past the rotation table, or past the cache, is not written.
pub fn qkv_rope_append(
    qkv: Tensor,
    norm_rope: NormRope,
    q: Tensor,
    cache: KvCache,
    shape: AttentionShape,
) -> Result<Dispatch, ShapeError> {
    let name = KERNEL.name;
    shape.check(name)?;
    norm_rope.check(name, shape)?;
    cache.check(name, shape)?;
    expect_shape(name, "qkv", qkv, qkv.rows, shape.qkv_cols())?;
    expect_shape(name, "q", q, qkv.rows, shape.q_cols())?;
    let NormRope { q_norm, k_norm, rope, eps } = norm_rope;
    let heads = u64::from(shape.num_heads) + 2 * u64::from(shape.num_kv_heads);
    let heads = heads * u64::from(qkv.rows);
    require(name, "rows", qkv.rows, u32::try_from(heads).is_ok(), "few enough to count all heads")?;
    let workgroups = Workgroups::linear(name, heads.div_ceil(HEADS_PER_GROUP.into()))?;
    let params = Params {
        rows: qkv.rows,
        context: rope.rows.min(cache.k.rows),
        num_heads: shape.num_heads,
        num_kv_heads: shape.num_kv_heads,
        head_dim: shape.head_dim,
        q_stride: shape.q_stride(),
        n_rot: rope.cols,
        eps,
    };
    let tensors = [qkv, q_norm, k_norm, rope, q, cache.k, cache.v];
    let mut dispatch = Dispatch::new(&KERNEL, params, &tensors, workgroups);
    let step = |tensor: Tensor| Tensor { rows: qkv.rows, ..tensor }.n_bytes();
    dispatch.bytes_written = q.n_bytes() + step(cache.k) + step(cache.v);
    dispatch.bytes_read = dispatch.bytes_written + q_norm.n_bytes() + k_norm.n_bytes() + step(rope);
    Ok(dispatch)
}
