//! Takes the token and moves the session on.
//!
//! Top-k keeps the k best scores, top-p the fewest best of those whose mass together reaches p times the mass of
//! what top-k, top-n-sigma and min-p keep; the smaller id is the better of equals. Of all kept tokens the one with the largest
//! [perturbed score](crate::sampling::Settings::perturbed) is sampled, as in
//! [`argmax_final`](super::argmax_final): into `tokens`, the history (the ids sampled last, its count, the id at its position), and
//! its log-probability, logit - ln(sum of exp(logit)) over the logits as the model gave them. Logits that are not finite, all
//! equal or without an allowed token end the session without one.
//!
//! The references sort; the kernel narrows the cut down eight bits of score and id at a time.

use bytemuck::{Pod, Zeroable};

use crate::kernel::{Binding, Dispatch, Kernel, ShapeError, StateAccess, Workgroups};
use crate::sampling::{Buffers, Shares};

pub mod cases;
mod reference;

/// Uniform of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    n_valid: u32,
    vocab: u32,
    share: u32,
    shares: u32,
    winners: u32,
    undecided: u32,
    n_generated: u32,
    counts: u32,
    ledger: u32,
    context: u32,
    logprob_cols: u32,
    padding: u32,
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "sample_final",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/float_order.wgsl"),
        include_str!("../../common/sampling_settings.wgsl"),
        include_str!("../../common/sampling_summary.wgsl"),
        include_str!("../../common/sampling_bounds.wgsl"),
        include_str!("../../common/gumbel.wgsl"),
        include_str!("../../common/advance.wgsl"),
        include_str!("sample_final.wgsl"),
    ],
    bindings: &[
        Binding::read_u32("settings"),
        Binding::read("logits"),
        Binding::read("stats"),
        Binding::read_u32("tally"),
        Binding::write_u32("tokens"),
        Binding::write_u32("history"),
        Binding::write("logprobs"),
    ],
    state: StateAccess::ReadWrite,
    workgroup_size: [256, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::sample_final,
    fast: None,
    cases: cases::cases,
};

/// Samples a token from what the other sampling kernels found.
pub fn sample_final(buffers: &Buffers) -> Result<Dispatch, ShapeError> {
    let name = KERNEL.name;
    buffers.check(name)?;
    let Buffers { n_valid, logits, settings, history, stats, tally, tokens, logprobs, .. } = *buffers;
    let shares = buffers.shares();
    let params = Params {
        n_valid,
        vocab: logits.cols,
        share: shares.len,
        shares: shares.n,
        winners: Shares::WINNERS,
        undecided: Shares::UNDECIDED,
        n_generated: history.n_generated,
        counts: history.counts(),
        ledger: history.ledger(),
        context: history.context,
        logprob_cols: logprobs.cols,
        padding: 0,
    };
    let tensors = [settings, logits, stats, tally, tokens, history.tensor(), logprobs];
    let mut dispatch = Dispatch::new(&KERNEL, params, &tensors, Workgroups { x: 1, y: 1 });
    dispatch.bytes_read = tally.n_bytes() + stats.n_bytes() + settings.n_bytes();
    dispatch.bytes_written = 20;
    Ok(dispatch)
}
