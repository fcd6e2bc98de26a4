//! Causal attention of a step's tokens over a cache (Vaswani et al. 2017, arXiv:1706.03762), with the
//! running softmax of Milakov and Gimelshein 2018 (arXiv:1805.02867), and the layer's output gate.
//!
//! For token `t`, query head `h`, its key head `g = h / (num_heads / num_kv_heads)`:
//!
//! ```text
//! s[u]      = scale * sum_i q[t, h, i] * k_cache[u, g, i]      0 <= u <= state.position + t
//! out[t, h] = sum_u e^(s[u] - max s) * v_cache[u, g] / sum_u e^(s[u] - max s)
//! out[t, h] = out[t, h] * sigmoid(gate[t, h])                  with gates
//! ```
//!
//! Keys are taken in tiles that begin at fixed cache rows, so that a token's result has the same
//! bits however the prompt was cut into steps.

use bytemuck::{Pod, Zeroable};

use super::qkv::{AttentionShape, KvCache};
use crate::kernel::{
    Binding, Dispatch, Kernel, MAX_LOOP_ITERATIONS, ShapeError, StateAccess, Tensor, Workgroups, expect_shape,
};

pub mod cases;
mod fast;
mod reference;

/// Queries of a workgroup, which are pairs of a token and a head of the key head's group.
const TILE_QUERIES: u32 = 32;

/// Keys of a tile.
const TILE_KEYS: u32 = 64;

/// Invocations that share four queries, in a tile eight keys each.
const SLOTS: u32 = 8;

/// Uniform of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    rows: u32,
    context: u32,
    num_kv_heads: u32,
    group: u32,
    quads: u32,
    qkv_quads: u32,
    gated: u32,
    scale: f32,
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "attention",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/workgroups.wgsl"),
        include_str!("../../common/sigmoid.wgsl"),
        include_str!("attention.wgsl"),
    ],
    bindings: &[
        Binding::read("q"),
        Binding::read("qkv"),
        Binding::read("k_cache"),
        Binding::read("v_cache"),
        Binding::write("out"),
    ],
    state: StateAccess::Uniform,
    workgroup_size: [64, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::attention,
    fast: Some(|args, _| fast::attention(args)),
    cases: cases::cases,
};

/// Attention of the step's tokens, whose own keys and values are in the cache already.
///
/// * `q` and `out` [T, num_heads * head_dim]: queries, normed and rotated, and the result;
/// * `qkv` [T, `shape.qkv_cols()`], which has the gates;
/// * `scale` is usually `1 / sqrt(head_dim)`.
pub fn attention(
    q: Tensor,
    qkv: Tensor,
    cache: KvCache,
    out: Tensor,
    shape: AttentionShape,
    scale: f32,
) -> Result<Dispatch, ShapeError> {
    let name = KERNEL.name;
    shape.check(name)?;
    cache.check(name, shape)?;
    expect_shape(name, "q", q, q.rows, shape.q_cols())?;
    expect_shape(name, "qkv", qkv, q.rows, shape.qkv_cols())?;
    expect_shape(name, "out", out, q.rows, shape.q_cols())?;
    let queries = u64::from(q.rows) * u64::from(shape.group());
    let workgroups =
        Workgroups::linear(name, queries.div_ceil(TILE_QUERIES.into()) * u64::from(shape.num_kv_heads))?;
    let params = Params {
        rows: q.rows,
        context: cache.k.rows,
        num_kv_heads: shape.num_kv_heads,
        group: shape.group(),
        quads: shape.head_dim / 4,
        qkv_quads: shape.qkv_cols() / 4,
        gated: u32::from(shape.gated),
        scale,
    };
    let mut dispatch = Dispatch::new(&KERNEL, params, &[q, qkv, cache.k, cache.v, out], workgroups);
    let gate_bytes = if shape.gated { q.n_bytes() } else { 0 };
    dispatch.bytes_read = q.n_bytes() + gate_bytes + cache.k.n_bytes() + cache.v.n_bytes();
    Ok(dispatch)
}

/// The longest context that a device can go through which counts no more than [`MAX_LOOP_ITERATIONS`].
pub fn max_counted_context(shape: AttentionShape) -> u32 {
    let quads = shape.head_dim / 4;
    let own_quads = quads.div_ceil(SLOTS);
    // Scores, maxima, and for each quad of values all keys, four at a time.
    let per_tile = 1 + quads + SLOTS + own_quads * (1 + TILE_KEYS / 4);
    let at_the_end = SLOTS + own_quads;
    MAX_LOOP_ITERATIONS.saturating_sub(at_the_end) / per_tile * TILE_KEYS
}
