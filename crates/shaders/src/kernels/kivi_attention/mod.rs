//! Causal attention over the 4-bit cache of [`super::kivi`], for tokens whose own keys and values
//! are in it already.
//!
//! With the queries `q` normed and rotated as in [`NormRope`]:
//!
//! ```text
//! s[u]      = scale * sum_i q[t, h, i] * k[u, g, i]      0 <= u <= state.position + t
//! o[t, h]   = sum_u e^(s[u] - max s) * v[u, g] / sum_u e^(s[u] - max s)
//! out[t, h] = o[t, h] * sigmoid(gate[t, h]), or o[t, h] without gates
//! ```
//!
//! and the rows `k` and `v` as the cache holds them, in the order sink, quantised, residual and in tiles
//! that begin at fixed rows, so that a token's result has the same bits in any step. A step must be a
//! piece as [`super::kivi::piece`] cuts it.

use bytemuck::{Pod, Zeroable};

use super::kivi::{CacheParams, CacheTensors, MAX_QUERIES, WINDOW};
use super::qkv::{AttentionShape, NormRope};
use crate::kernel::{
    Binding, Dispatch, Kernel, MAX_LOOP_ITERATIONS, ShapeError, StateAccess, Tensor, Workgroups,
    expect_shape, require,
};

pub mod cases;
mod fast;
pub(crate) mod reference;

/// Uniform of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    cache: CacheParams,
    rows: u32,
    num_heads: u32,
    stride: u32,
    cols: u32,
    n_rot: u32,
    eps: f32,
    scale: f32,
    gated: u32,
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "kivi_attention",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/workgroups.wgsl"),
        include_str!("../../common/sigmoid.wgsl"),
        include_str!("../../common/norm_rope.wgsl"),
        include_str!("../../common/half.wgsl"),
        include_str!("../../common/kivi.wgsl"),
        include_str!("../../common/kivi_attend.wgsl"),
        include_str!("kivi_attention.wgsl"),
    ],
    bindings: &[
        Binding::read("qkv"),
        Binding::read("q_norm"),
        Binding::read("k_norm"),
        Binding::read("rope"),
        Binding::read("exact"),
        Binding::read_u32("codes"),
        Binding::read_u32("scales"),
        Binding::write("out"),
    ],
    state: StateAccess::Uniform,
    workgroup_size: [128, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::kivi_attention,
    fast: Some(|args, _| fast::kivi_attention(args)),
    cases: cases::cases,
};

/// Attention of the tokens in `qkv` [T, `shape.qkv_cols()`]; `out` [T, Hq * Dh]. `scale` is usually
/// `1 / sqrt(Dh)`.
pub fn kivi_attention(
    qkv: Tensor,
    norm_rope: NormRope,
    cache: CacheTensors,
    out: Tensor,
    shape: AttentionShape,
    scale: f32,
) -> Result<Dispatch, ShapeError> {
    let name = KERNEL.name;
    let layout = cache.layout;
    let cache_params = cache.check(name, shape)?;
    norm_rope.check(name, shape)?;
    let NormRope { q_norm, k_norm, rope, eps } = norm_rope;
    require(name, "rope", rope.rows, rope.rows >= layout.context, "at least one row per position")?;
    expect_shape(name, "qkv", qkv, qkv.rows, shape.qkv_cols())?;
    expect_shape(name, "out", out, qkv.rows, shape.q_cols())?;
    let params = Params {
        cache: cache_params,
        rows: qkv.rows,
        num_heads: shape.num_heads,
        stride: shape.q_stride(),
        cols: qkv.cols,
        n_rot: rope.cols,
        eps,
        scale,
        gated: u32::from(shape.gated),
    };
    let pairs = u64::from(qkv.rows) * u64::from(shape.group());
    let n_workgroups = pairs.div_ceil(MAX_QUERIES.into()) * u64::from(shape.num_kv_heads);
    let workgroups = Workgroups::linear(name, n_workgroups)?;
    let tensors = [qkv, q_norm, k_norm, rope, cache.exact, cache.codes, cache.scales, out];
    let mut dispatch = Dispatch::new(&KERNEL, params, &tensors, workgroups);
    let queries = Tensor { cols: shape.num_heads * shape.q_stride(), ..qkv };
    let rope_rows = Tensor { rows: qkv.rows.min(rope.rows), ..rope };
    let small = [queries, q_norm, rope_rows].iter().map(Tensor::n_bytes).sum::<u64>();
    dispatch.bytes_read = small + layout.bytes_read(layout.context);
    Ok(dispatch)
}

/// The longest context whose loops an adapter that counts their iterations runs to the end.
pub fn max_counted_context(shape: AttentionShape) -> u32 {
    let most = MAX_LOOP_ITERATIONS.saturating_sub(3 * tile_iterations(shape.head_dim) + shape.head_dim);
    most / tile_iterations(shape.head_dim) * WINDOW
}

/// Loop iterations of an invocation per tile, that of sink and residual window included: scores, by
/// words and codes, the largest score, the values.
pub(super) fn tile_iterations(head_dim: u32) -> u32 {
    head_dim / 8 + head_dim + 24 + WINDOW
}
