//! Causal attention over a cache (Vaswani et al. 2017, arXiv:1706.03762), with the running
//! softmax of Milakov and Gimelshein 2018 (arXiv:1805.02867).
//!
//! For token `t`, query head `h`, its key head `g = h / (num_heads / num_kv_heads)`:
//!
//! ```text
//! s[u]      = scale * sum_i q[t, h, i] * k_cache[u, g, i]      0 <= u <= state.position + t
//! out[t, h] = sum_u e^(s[u] - max s) * v_cache[u, g] / sum_u e^(s[u] - max s)
//! ```
//!
//! Keys are taken in tiles that begin at fixed cache rows, so that a token's result has the same
//! bits however the prompt was cut into steps.

use bytemuck::{Pod, Zeroable};

use crate::kernel::{
    Binding, Dispatch, Kernel, ShapeError, StateAccess, Tensor, Workgroups, expect_shape, require,
};

pub mod cases;
mod reference;

/// The heads of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttentionShape {
    /// Query heads.
    pub num_heads: u32,
    /// Key and value heads; divides `num_heads`.
    pub num_kv_heads: u32,
    /// Elements per head: a multiple of 4, at most 256.
    pub head_dim: u32,
}

/// Uniform of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    rows: u32,
    context: u32,
    num_heads: u32,
    num_kv_heads: u32,
    quads: u32,
    scale: f32,
    padding: [u32; 2],
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "attention",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/workgroups.wgsl"),
        include_str!("attention.wgsl"),
    ],
    bindings: &[
        Binding::read("q"),
        Binding::read("k_cache"),
        Binding::read("v_cache"),
        Binding::write("out"),
    ],
    state: StateAccess::Uniform,
    workgroup_size: [64, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::attention,
    cases: cases::cases,
};

/// Attention of the step's tokens, whose own keys and values are in the caches already.
///
/// `q` and `out` [T, num_heads * head_dim], `k_cache` and `v_cache` [S, num_kv_heads * head_dim].
/// `scale` is usually `1 / sqrt(head_dim)`.
pub fn attention(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    out: Tensor,
    heads: AttentionShape,
    scale: f32,
) -> Result<Dispatch, ShapeError> {
    let AttentionShape { num_heads, num_kv_heads, head_dim } = heads;
    let name = KERNEL.name;
    let fits = head_dim > 0 && head_dim.is_multiple_of(4) && head_dim <= 256;
    require(name, "head_dim", head_dim, fits, "a multiple of 4 from 4 to 256")?;
    require(name, "num_kv_heads", num_kv_heads, num_kv_heads > 0, "at least 1")?;
    let groups = num_heads > 0 && num_heads.is_multiple_of(num_kv_heads);
    require(name, "num_heads", num_heads, groups, "a multiple of num_kv_heads")?;
    require(name, "context", k_cache.rows, k_cache.rows > 0, "at least 1")?;
    expect_shape(name, "q", q, q.rows, num_heads.saturating_mul(head_dim))?;
    expect_shape(name, "k_cache", k_cache, k_cache.rows, num_kv_heads.saturating_mul(head_dim))?;
    expect_shape(name, "v_cache", v_cache, k_cache.rows, k_cache.cols)?;
    expect_shape(name, "out", out, q.rows, q.cols)?;
    let workgroups = Workgroups::linear(name, u64::from(q.rows) * u64::from(num_heads))?;
    let params = Params {
        rows: q.rows,
        context: k_cache.rows,
        num_heads,
        num_kv_heads,
        quads: head_dim / 4,
        scale,
        padding: [0; 2],
    };
    Ok(Dispatch::new(&KERNEL, params, &[q, k_cache, v_cache, out], workgroups))
}
