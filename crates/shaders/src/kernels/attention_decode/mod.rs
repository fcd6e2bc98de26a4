//! Causal attention of one token over a cache, the norms and rotations before it included
//! (Vaswani et al. 2017, arXiv:1706.03762; split over the keys as in Dao et al. 2023, Flash-Decoding).
//!
//! The new key, normed and rotated ([`NormRope`]), and the new value go to row `state.position` of the
//! caches. Then, for each query head `h` with its key head `g` and its query `q`, normed and rotated:
//!
//! ```text
//! s[u] = scale * sum_i q[h, i] * k_cache[u, g, i]      0 <= u <= state.position
//! ```
//!
//! The keys are dealt in tiles to a fixed number of splits, tile `i` to split `i % n_splits`, so that
//! any length is balanced while the dispatch stays the same. Row `h * n_splits + split` of the result is
//!
//! ```text
//! O[i] = sum_u e^(s[u] - m) * v_cache[u, g, i]         0 <= i < head_dim, u of the split
//! m    = max s[u]
//! l    = sum_u e^(s[u] - m)
//! ```
//!
//! A split without keys has `l = 0`, and its other numbers are not written. `attention_merge` puts
//! the splits together.

use bytemuck::{Pod, Zeroable};

use super::qkv::{AttentionShape, KvCache, NormRope};
use crate::kernel::{
    Binding, Dispatch, Kernel, MAX_LOOP_ITERATIONS, ShapeError, StateAccess, Tensor, Workgroups,
    expect_shape, require,
};

pub mod cases;
mod reference;

/// Elements of a row of partials beside a head's: the maximum and the sum.
pub const STATISTICS: u32 = 2;

/// Elements of the queries that fit the workgroup's memory.
const MAX_QUERY_ELEMENTS: u32 = 2048;

/// Invocations of a workgroup, each of which scores four keys of a tile.
const LANES: u32 = 64;

/// Workgroups that keep a large GPU busy.
const WORKGROUPS: u32 = 256;

/// Uniform of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    context: u32,
    num_kv_heads: u32,
    group: u32,
    heads: u32,
    head_dim: u32,
    q_stride: u32,
    n_rot: u32,
    n_splits: u32,
    scale: f32,
    eps: f32,
    padding: [u32; 2],
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "attention_decode",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/workgroups.wgsl"),
        include_str!("../../common/norm_rope.wgsl"),
        include_str!("attention_decode.wgsl"),
    ],
    bindings: &[
        Binding::read("qkv"),
        Binding::read("q_norm"),
        Binding::read("k_norm"),
        Binding::read("rope"),
        Binding::write("k_cache"),
        Binding::write("v_cache"),
        Binding::write("partials"),
    ],
    state: StateAccess::Uniform,
    workgroup_size: [LANES, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::attention_decode,
    cases: cases::cases,
};

/// Query heads that a workgroup takes at a time: as many of a key head's group as fit.
fn heads_at_a_time(shape: AttentionShape) -> u32 {
    let group = shape.group();
    let most = (MAX_QUERY_ELEMENTS / shape.head_dim).min(LANES / 4);
    (1..=most).rev().find(|&n| group.is_multiple_of(n)).unwrap_or(1)
}

/// Keys of a tile.
fn tile_keys(heads: u32) -> u32 {
    4 * (LANES / heads)
}

/// How many splits suit a cache of `context` positions.
pub fn n_splits(shape: AttentionShape, context: u32) -> u32 {
    let n_tiles = context.div_ceil(tile_keys(heads_at_a_time(shape)));
    (WORKGROUPS / shape.num_kv_heads.max(1)).clamp(1, n_tiles.max(1))
}

/// Attention of one token.
///
/// * `qkv` [1, `shape.qkv_cols()`]: the token's projections;
/// * `partials` [num_heads * splits, head_dim + 2], with any number of splits;
/// * `scale` is usually `1 / sqrt(head_dim)`.
///
/// A token whose position is past the rotation table, or past the cache, does nothing.
pub fn attention_decode(
    qkv: Tensor,
    norm_rope: NormRope,
    cache: KvCache,
    partials: Tensor,
    shape: AttentionShape,
    scale: f32,
) -> Result<Dispatch, ShapeError> {
    let name = KERNEL.name;
    shape.check(name)?;
    norm_rope.check(name, shape)?;
    cache.check(name, shape)?;
    expect_shape(name, "qkv", qkv, 1, shape.qkv_cols())?;
    let n_splits = partials.rows / shape.num_heads;
    require(name, "splits", n_splits, n_splits > 0, "at least 1")?;
    expect_shape(name, "partials", partials, shape.num_heads * n_splits, shape.head_dim + STATISTICS)?;
    let NormRope { q_norm, k_norm, rope, eps } = norm_rope;
    let context = rope.rows.min(cache.k.rows);
    let heads = heads_at_a_time(shape);
    let iterations = loop_iterations(shape, heads, context.div_ceil(tile_keys(heads)).div_ceil(n_splits));
    let few = iterations <= u64::from(MAX_LOOP_ITERATIONS);
    require(name, "context", context, few, "short enough for the loops of one invocation")?;
    let workgroups = Workgroups::linear(name, u64::from(shape.num_kv_heads) * u64::from(n_splits))?;
    let params = Params {
        context,
        num_kv_heads: shape.num_kv_heads,
        group: shape.group(),
        heads,
        head_dim: shape.head_dim,
        q_stride: shape.q_stride(),
        n_rot: rope.cols,
        n_splits,
        scale,
        eps,
        padding: [0; 2],
    };
    let tensors = [qkv, q_norm, k_norm, rope, cache.k, cache.v, partials];
    let mut dispatch = Dispatch::new(&KERNEL, params, &tensors, workgroups);
    let row = |tensor: Tensor| Tensor { rows: 1, ..tensor }.n_bytes();
    dispatch.bytes_read = qkv.n_bytes() + q_norm.n_bytes() + k_norm.n_bytes() + row(rope);
    dispatch.bytes_read += cache.k.n_bytes() + cache.v.n_bytes();
    dispatch.bytes_written = partials.n_bytes() + row(cache.k) + row(cache.v);
    Ok(dispatch)
}

/// Iterations of all loops of one invocation that goes through `tiles` tiles.
fn loop_iterations(shape: AttentionShape, heads: u32, tiles: u32) -> u64 {
    let (quads, slots) = (u64::from(shape.head_dim / 4), u64::from(LANES / heads));
    let own_quads = quads.div_ceil(slots);
    // Scores, maxima, and for each quad of values all keys.
    let per_tile = 1 + quads + slots + own_quads * (1 + slots);
    // Norms of query and key, rotation, sums; and the new row.
    let per_pass = 1 + 4 * own_quads + slots + own_quads + slots;
    let passes = u64::from(shape.group() / heads);
    let new_row = 3 * u64::from(shape.head_dim.div_ceil(LANES)) + u64::from(LANES);
    passes * (per_pass + per_tile * u64::from(tiles)) + new_row
}
