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
mod fast;
mod reference;

/// Elements of a row of partials beside a head's: the maximum and the sum.
pub const STATISTICS: u32 = 2;

/// Invocations of a workgroup, each of which scores four keys of a tile for one query head.
const LANES: u32 = 64;

/// Workgroups that keep a GPU busy, and the tiles that a split has when the cache is full: software
/// adapters take long to start a workgroup, even if it finds no keys.
pub(super) const WORKGROUPS: u32 = 128;
const TILES_PER_SPLIT: u32 = 4;

/// Uniform of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    context: u32,
    num_kv_heads: u32,
    group: u32,
    head_dim: u32,
    q_stride: u32,
    n_rot: u32,
    n_splits: u32,
    scale: f32,
    eps: f32,
    padding: [u32; 3],
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
        Binding::write("queries"),
        Binding::write("partials"),
    ],
    state: StateAccess::Uniform,
    workgroup_size: [LANES, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::attention_decode,
    fast: Some(|args, _| fast::attention_decode(args)),
    cases: cases::cases,
};

/// Keys of a tile.
fn tile_keys(group: u32) -> u32 {
    4 * (LANES / group)
}

/// How many splits suit a cache of `context` positions.
pub fn n_splits(shape: AttentionShape, context: u32) -> u32 {
    let n_tiles = context.div_ceil(tile_keys(shape.group().clamp(1, LANES)));
    (WORKGROUPS / shape.num_kv_heads.max(1)).clamp(1, n_tiles.div_ceil(TILES_PER_SPLIT).max(1))
}

/// Attention of one token.
///
/// * `qkv` [1, `shape.qkv_cols()`]: the token's projections;
/// * `partials` [num_heads * splits, head_dim + 2], with any number of splits;
/// * `queries` [num_heads * splits, head_dim]: scratch, a row for each row of `partials` with keys. It is
///   not the workgroup's memory because browsers zero that at the start of each workgroup;
/// * `scale` is usually `1 / sqrt(head_dim)`.
///
/// A token whose position is past the rotation table, or past the cache, does nothing.
pub fn attention_decode(
    qkv: Tensor,
    norm_rope: NormRope,
    cache: KvCache,
    queries: Tensor,
    partials: Tensor,
    shape: AttentionShape,
    scale: f32,
) -> Result<Dispatch, ShapeError> {
    let name = KERNEL.name;
    shape.check(name)?;
    norm_rope.check(name, shape)?;
    cache.check(name, shape)?;
    expect_shape(name, "qkv", qkv, 1, shape.qkv_cols())?;
    let group = shape.group();
    require(name, "num_heads", shape.num_heads, group <= LANES, "at most 64 per key head")?;
    let n_splits = partials.rows / shape.num_heads;
    require(name, "splits", n_splits, n_splits > 0, "at least 1")?;
    expect_shape(name, "partials", partials, shape.num_heads * n_splits, shape.head_dim + STATISTICS)?;
    expect_shape(name, "queries", queries, partials.rows, shape.head_dim)?;
    let NormRope { q_norm, k_norm, rope, eps } = norm_rope;
    let context = rope.rows.min(cache.k.rows);
    let iterations = loop_iterations(shape, context.div_ceil(tile_keys(group)).div_ceil(n_splits));
    let few = iterations <= u64::from(MAX_LOOP_ITERATIONS);
    require(name, "context", context, few, "short enough for the loops of one invocation")?;
    let workgroups = Workgroups::linear(name, u64::from(shape.num_kv_heads) * u64::from(n_splits))?;
    let params = Params {
        context,
        num_kv_heads: shape.num_kv_heads,
        group,
        head_dim: shape.head_dim,
        q_stride: shape.q_stride(),
        n_rot: rope.cols,
        n_splits,
        scale,
        eps,
        padding: [0; 3],
    };
    let tensors = [qkv, q_norm, k_norm, rope, cache.k, cache.v, queries, partials];
    let mut dispatch = Dispatch::new(&KERNEL, params, &tensors, workgroups);
    let row = |tensor: Tensor| Tensor { rows: 1, ..tensor }.n_bytes();
    dispatch.bytes_read = qkv.n_bytes() + q_norm.n_bytes() + k_norm.n_bytes() + row(rope);
    dispatch.bytes_read += cache.k.n_bytes() + cache.v.n_bytes();
    dispatch.bytes_written = queries.n_bytes() + partials.n_bytes() + row(cache.k) + row(cache.v);
    Ok(dispatch)
}

/// Iterations of all loops of one invocation that goes through `tiles` tiles.
fn loop_iterations(shape: AttentionShape, tiles: u32) -> u64 {
    let (quads, slots) = (u64::from(shape.head_dim / 4), u64::from(LANES / shape.group()));
    let own_quads = quads.div_ceil(slots);
    // Scores, maxima, and for each quad of values all keys.
    let per_tile = 1 + quads + slots + own_quads * (1 + slots);
    // The norm and rotation of the query, that of the new key, and the sum of weights.
    let once = 4 * own_quads + slots + own_quads + 4 * u64::from(LANES) + slots;
    once + per_tile * u64::from(tiles)
}
