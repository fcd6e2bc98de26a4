//! Second half of greedy sampling: takes the largest logit's token and moves the session on.
//!
//! With the partial results of [`argmax_partial`](super::argmax_partial) over the logits of the
//! step's last token:
//!
//! * nothing happens if the step has no tokens (`state.n_tokens` is 0);
//! * if any logit was not finite, or the largest exceeds the smallest by less than 1e-6, the
//!   session ends with [`State::DONE_UNUSABLE_LOGITS`](crate::State::DONE_UNUSABLE_LOGITS) and no
//!   token: every weight or activation may be broken, and a token would hide it;
//! * else the token is appended to `generated`, becomes the only token of the next step, and
//!   `position` passes the rows of this step; a stop id ends the session with
//!   [`State::DONE_STOP`](crate::State::DONE_STOP) after it was appended.
//!
//! A session that ended has `n_tokens` 0, which makes every later kernel a no-op.

use bytemuck::{Pod, Zeroable};

use super::argmax_partial::PARTIAL_COLS;
use crate::kernel::{
    Binding, Dispatch, Kernel, ShapeError, StateAccess, Tensor, Workgroups, expect_shape, require,
};
use crate::sampling::LEAST_SPREAD;

pub mod cases;
mod reference;

/// Uniform of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    groups: u32,
    n_generated: u32,
    least_spread: f32,
    padding: u32,
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "argmax_final",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/float_order.wgsl"),
        include_str!("../../common/advance.wgsl"),
        include_str!("argmax_final.wgsl"),
    ],
    bindings: &[Binding::read_u32("partials"), Binding::write_u32("tokens"), Binding::write_u32("generated")],
    state: StateAccess::ReadWrite,
    workgroup_size: [64, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::argmax_final,
    fast: None,
    cases: cases::cases,
};

/// Samples from `partials` [groups, 4] (u32) into `tokens` [1, T] (u32), whose first element
/// becomes the token, and the ring `generated` [1, G] (u32), whose element `state.step % G` does.
pub fn argmax_final(partials: Tensor, tokens: Tensor, generated: Tensor) -> Result<Dispatch, ShapeError> {
    let name = KERNEL.name;
    expect_shape(name, "partials", partials, partials.rows, PARTIAL_COLS)?;
    expect_shape(name, "tokens", tokens, 1, tokens.cols)?;
    expect_shape(name, "generated", generated, 1, generated.cols)?;
    require(name, "groups", partials.rows, partials.rows > 0, "at least 1")?;
    require(name, "tokens", tokens.cols, tokens.cols > 0, "at least 1")?;
    require(name, "generated", generated.cols, generated.cols > 0, "at least 1")?;
    let params =
        Params { groups: partials.rows, n_generated: generated.cols, least_spread: LEAST_SPREAD, padding: 0 };
    let workgroups = Workgroups { x: 1, y: 1 };
    let mut dispatch = Dispatch::new(&KERNEL, params, &[partials, tokens, generated], workgroups);
    dispatch.bytes_written = 8;
    Ok(dispatch)
}
