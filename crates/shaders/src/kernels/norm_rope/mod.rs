//! Per-head RMS norm, then rotary position embedding (Su et al. 2021, arXiv:2104.09864) with
//! split-half pairs, as queries and keys get it before attention.
//!
//! For token `t`, head `h`, with `P = n_rot / 2` pairs, the position `p = state.position + t` and
//! the angle `a` of pair `i` at that position:
//!
//! ```text
//! n[i]      = x[t, h, i] * weight[i] / sqrt(mean_i(x[t, h, i]^2) + eps)
//! out[i]    = n[i] * cos(a) - n[i + P] * sin(a)      0 <= i < P
//! out[i+P]  = n[i] * sin(a) + n[i + P] * cos(a)      0 <= i < P
//! out[i]    = n[i]                                   n_rot <= i < head_dim
//! ```
//!
//! The partner of dimension `i` is `i + n_rot / 2`: not `i + 1`, and not `i + head_dim / 2`.
//! Cosines and sines come from a table, because sines of large angles are not reliable on GPUs.

use bytemuck::{Pod, Zeroable};

use crate::kernel::{
    Binding, Columns, Dispatch, Kernel, ShapeError, StateAccess, Tensor, Workgroups, expect_columns,
    expect_shape, require,
};

pub mod cases;
mod reference;

/// How heads lie in a row of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadShape {
    /// Heads per row.
    pub heads: u32,
    /// Elements per head.
    pub head_dim: u32,
    /// Elements from the start of one head of the input to the next: `head_dim`, or
    /// `2 * head_dim` when each head's query is followed by its gate.
    pub stride: u32,
    /// How many leading dimensions of a head rotate; even.
    pub n_rot: u32,
}

/// Uniform of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    rows: u32,
    context: u32,
    heads: u32,
    head_dim: u32,
    stride: u32,
    n_rot: u32,
    eps: f32,
    at_position: u32,
    first: u32,
    x_cols: u32,
    padding: [u32; 2],
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "norm_rope",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/workgroups.wgsl"),
        include_str!("../../common/sum.wgsl"),
        include_str!("norm_rope.wgsl"),
    ],
    bindings: &[Binding::read("x"), Binding::read("weight"), Binding::read("rope"), Binding::write("out")],
    state: StateAccess::Uniform,
    workgroup_size: [64, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::norm_rope,
    cases: cases::cases,
};

/// Norm and rotation of every head.
///
/// * `x` [T, heads * stride], `weight` [1, head_dim];
/// * `rope` [context, n_rot]: row `p` holds the `n_rot / 2` cosines and then the `n_rot / 2` sines
///   of position `p`;
/// * `out` [T, heads * head_dim] or, with `at_position`, a cache [S, heads * head_dim] in which
///   token `t` fills row `state.position + t`.
///
/// A token whose position is past the table, or past the cache, is not written.
pub fn norm_rope(
    x: impl Into<Columns>,
    weight: Tensor,
    rope: Tensor,
    out: Tensor,
    shape: HeadShape,
    eps: f32,
    at_position: bool,
) -> Result<Dispatch, ShapeError> {
    let HeadShape { heads, head_dim, stride, n_rot } = shape;
    let (name, x) = (KERNEL.name, x.into());
    let rows = x.tensor.rows;
    require(name, "heads", heads, heads > 0, "at least 1")?;
    require(name, "stride", stride, stride >= head_dim, "at least head_dim")?;
    let rotates = n_rot > 0 && n_rot.is_multiple_of(2) && n_rot <= head_dim;
    require(name, "n_rot", n_rot, rotates, "even, at least 2 and at most head_dim")?;
    expect_columns(name, "x", x, rows, heads.saturating_mul(stride))?;
    expect_shape(name, "weight", weight, 1, head_dim)?;
    expect_shape(name, "rope", rope, rope.rows, n_rot)?;
    let out_rows = if at_position { out.rows } else { rows };
    expect_shape(name, "out", out, out_rows, heads.saturating_mul(head_dim))?;
    let context = if at_position { rope.rows.min(out.rows) } else { rope.rows };
    let workgroups = Workgroups::linear(name, u64::from(rows) * u64::from(heads))?;
    let params = Params {
        rows,
        context,
        heads,
        head_dim,
        stride,
        n_rot,
        eps,
        at_position: u32::from(at_position),
        first: x.first,
        x_cols: x.tensor.cols,
        padding: [0; 2],
    };
    let mut dispatch = Dispatch::new(&KERNEL, params, &[x.tensor, weight, rope, out], workgroups);
    let heads_bytes = Tensor { rows, ..out }.n_bytes();
    dispatch.bytes_read = heads_bytes + weight.n_bytes() + Tensor { rows, ..rope }.n_bytes();
    dispatch.bytes_written = heads_bytes;
    Ok(dispatch)
}
