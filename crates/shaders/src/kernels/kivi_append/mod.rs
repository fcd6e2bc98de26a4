//! Appends the keys and values of one step's tokens to the 4-bit cache of [`super::kivi`].
//!
//! For token `t` and KV head `g`, at the position `state.position + t`:
//!
//! ```text
//! key   = rotate(norm(k[t, g]) * k_norm, position)      as in [`NormRope`]
//! value = v[t, g]
//! ```
//!
//! Where the first token finds the residual window full, the window is quantised first. A step must
//! be a piece as [`super::kivi::piece`] cuts it: tokens past its end are not appended.

use bytemuck::{Pod, Zeroable};

use super::kivi::{CacheParams, CacheTensors};
use super::qkv::{AttentionShape, NormRope};
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
    cache: CacheParams,
    rows: u32,
    cols: u32,
    first_key: u32,
    n_rot: u32,
    eps: f32,
    padding: [u32; 3],
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "kivi_append",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/workgroups.wgsl"),
        include_str!("../../common/norm_rope.wgsl"),
        include_str!("../../common/half.wgsl"),
        include_str!("../../common/kivi.wgsl"),
        include_str!("../../common/kivi_flush.wgsl"),
        include_str!("kivi_append.wgsl"),
    ],
    bindings: &[
        Binding::read("qkv"),
        Binding::read("q_norm"),
        Binding::read("k_norm"),
        Binding::read("rope"),
        Binding::write("exact"),
        Binding::write_u32("codes"),
        Binding::write_u32("scales"),
    ],
    state: StateAccess::Uniform,
    workgroup_size: [128, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::kivi_append,
    fast: Some(|args, _| fast::kivi_append(args)),
    cases: cases::cases,
};

/// Appends keys and values of `qkv` [T, `shape.qkv_cols()`].
pub fn kivi_append(
    qkv: Tensor,
    norm_rope: NormRope,
    cache: CacheTensors,
    shape: AttentionShape,
) -> Result<Dispatch, ShapeError> {
    let name = KERNEL.name;
    let layout = cache.layout;
    let cache_params = cache.check(name, shape)?;
    norm_rope.check(name, shape)?;
    expect_shape(name, "qkv", qkv, qkv.rows, shape.qkv_cols())?;
    let NormRope { q_norm, k_norm, rope, eps } = norm_rope;
    require(name, "rope", rope.rows, rope.rows >= layout.context, "at least one row per position")?;
    let params = Params {
        cache: cache_params,
        rows: qkv.rows,
        cols: qkv.cols,
        first_key: shape.num_heads * shape.q_stride(),
        n_rot: rope.cols,
        eps,
        padding: [0; 3],
    };
    let workgroups = Workgroups::linear(name, u64::from(layout.num_kv_heads))?;
    let tensors = [qkv, q_norm, k_norm, rope, cache.exact, cache.codes, cache.scales];
    let mut dispatch = Dispatch::new(&KERNEL, params, &tensors, workgroups);
    let appended = u64::from(qkv.rows) * layout.bytes_per_exact_token();
    let rope_rows = Tensor { rows: qkv.rows.min(rope.rows), ..rope };
    dispatch.bytes_read = appended + k_norm.n_bytes() + rope_rows.n_bytes();
    dispatch.bytes_written = appended;
    Ok(dispatch)
}
