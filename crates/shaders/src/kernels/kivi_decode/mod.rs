//! Attention of one token over the 4-bit cache of [`super::kivi`], from its projections to sums that
//! `attention_merge` puts together: norm and rotation of the queries and the key as in [`NormRope`], the
//! flush of a full residual window, the append, and the softmax over the rows `u` of each split:
//!
//! ```text
//! s[h, u]            = scale * sum_i q[h, i] * k[u, g, i]
//! partials[h, split] = (sum_u e^(s[h, u] - m) * v[u, g], m = max_u s[h, u], l = sum_u e^(s[h, u] - m))
//! ```
//!
//! A split without rows has `l = 0`, and its other numbers are not written. The splits are in the order of the rows: sink, quantised,
//! residual. One workgroup serves all query heads of a KV head, so that a row is unpacked once.

use bytemuck::{Pod, Zeroable};

use super::attention_decode::{STATISTICS, WORKGROUPS};
use super::kivi::{CacheParams, CacheTensors, Cursors, GROUP, Layout, WINDOW};
use super::kivi_attention::tile_iterations;
use super::qkv::{AttentionShape, NormRope};
use crate::kernel::{
    Binding, Dispatch, Kernel, MAX_LOOP_ITERATIONS, ShapeError, StateAccess, Tensor, Workgroups,
    expect_shape, require,
};

pub mod cases;
mod fast;
mod reference;

/// Uniform of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    cache: CacheParams,
    num_heads: u32,
    n_splits: u32,
    stride: u32,
    n_rot: u32,
    eps: f32,
    scale: f32,
    padding: [u32; 2],
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "kivi_decode",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/workgroups.wgsl"),
        include_str!("../../common/norm_rope.wgsl"),
        include_str!("../../common/half.wgsl"),
        include_str!("../../common/kivi.wgsl"),
        include_str!("../../common/kivi_flush.wgsl"),
        include_str!("../../common/kivi_attend.wgsl"),
        include_str!("kivi_decode.wgsl"),
    ],
    bindings: &[
        Binding::read("qkv"),
        Binding::read("q_norm"),
        Binding::read("k_norm"),
        Binding::read("rope"),
        Binding::write("exact"),
        Binding::write_u32("codes"),
        Binding::write_u32("scales"),
        Binding::write("partials"),
    ],
    state: StateAccess::Uniform,
    workgroup_size: [128, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::kivi_decode,
    fast: Some(|args, _| fast::kivi_decode(args)),
    cases: cases::cases,
};

/// How many splits suit a cache: one for the residual window, and the others with two blocks of
/// quantised rows at least when it is full.
pub fn n_splits(layout: &Layout) -> u32 {
    let n_blocks = Cursors::at(layout.context).quantised / WINDOW;
    (WORKGROUPS / layout.num_kv_heads).clamp(1, n_blocks.div_ceil(2) + 1)
}

/// Attention of the token in `qkv` [1, `shape.qkv_cols()`]; `partials` [Hq * n_splits, Dh + 2]. `scale` is
/// usually `1 / sqrt(Dh)`.
pub fn kivi_decode(
    qkv: Tensor,
    norm_rope: NormRope,
    cache: CacheTensors,
    partials: Tensor,
    shape: AttentionShape,
    scale: f32,
) -> Result<Dispatch, ShapeError> {
    let name = KERNEL.name;
    let layout = cache.layout;
    let cache_params = cache.check(name, shape)?;
    norm_rope.check(name, shape)?;
    let NormRope { q_norm, k_norm, rope, eps } = norm_rope;
    let n_splits = partials.rows / shape.num_heads;
    require(name, "partials", partials.rows, n_splits > 0, "at least one row per query head")?;
    expect_shape(name, "partials", partials, shape.num_heads * n_splits, layout.head_dim + STATISTICS)?;
    expect_shape(name, "qkv", qkv, 1, shape.qkv_cols())?;
    require(name, "rope", rope.rows, rope.rows >= layout.context, "at least one row per position")?;
    let most = iterations(&layout, n_splits);
    require(name, "loop iterations", most, most <= MAX_LOOP_ITERATIONS, "at most 65535")?;
    let params = Params {
        cache: cache_params,
        num_heads: shape.num_heads,
        n_splits,
        stride: shape.q_stride(),
        n_rot: rope.cols,
        eps,
        scale,
        padding: [0; 2],
    };
    let workgroups = Workgroups::linear(name, u64::from(layout.num_kv_heads) * u64::from(n_splits))?;
    let tensors = [qkv, q_norm, k_norm, rope, cache.exact, cache.codes, cache.scales, partials];
    let mut dispatch = Dispatch::new(&KERNEL, params, &tensors, workgroups);
    let rope_row = Tensor { rows: 1, ..rope };
    let small = [qkv, q_norm, k_norm, rope_row].iter().map(Tensor::n_bytes).sum::<u64>();
    dispatch.bytes_read = small + layout.bytes_read(layout.context);
    dispatch.bytes_written = layout.bytes_per_exact_token() + partials.n_bytes();
    Ok(dispatch)
}

/// The most loop iterations of one invocation.
fn iterations(layout: &Layout, n_splits: u32) -> u32 {
    let dim = layout.head_dim;
    // The extremes of keys and of values, and codes; the sums of squares and the elements of queries.
    let flush = (dim / GROUP + 1) * GROUP + dim + 9 * dim / 8;
    let queries = 2 * (dim / 16 + 2) + 9 * 17 + 3 * 9;
    let n_older = Cursors::at(layout.context).quantised / WINDOW;
    // And sink, residual window and the block that is flushed.
    let n_tiles = n_older.div_ceil(n_splits.max(2) - 1) + 3;
    n_tiles.saturating_mul(tile_iterations(dim)).saturating_add(flush + queries)
}
