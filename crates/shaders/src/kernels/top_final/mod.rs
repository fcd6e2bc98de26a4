//! The tokens with the largest logits and their log-probabilities.
//!
//! Row `state.step % G` of `top_ids` gets the ids of the 20 largest logits among the
//! [candidates](super::top_share), the same row of `logprobs`, from its second element on, their logit -
//! ln(sum of exp(logit)): the model's distribution, before bias, penalties, temperature and filters.

use bytemuck::{Pod, Zeroable};

use crate::kernel::{Binding, Dispatch, Kernel, ShapeError, StateAccess, Workgroups};
use crate::sampling::{Buffers, MAX_TOP};

pub mod cases;
mod reference;

/// Uniform of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    shares: u32,
    n_generated: u32,
    padding: [u32; 2],
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "top_final",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/float_order.wgsl"),
        include_str!("../../common/sampling_settings.wgsl"),
        include_str!("../../common/sampling_summary.wgsl"),
        include_str!("top_final.wgsl"),
    ],
    bindings: &[
        Binding::read_u32("settings"),
        Binding::read("logits"),
        Binding::read("stats"),
        Binding::read_u32("candidates"),
        Binding::write_u32("top_ids"),
        Binding::write("logprobs"),
    ],
    state: StateAccess::Uniform,
    workgroup_size: [256, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::top_final,
    fast: None,
    cases: cases::cases,
};

/// Writes a row of `top_ids` and of `logprobs`, given statistics and candidates.
pub fn top_final(buffers: &Buffers) -> Result<Dispatch, ShapeError> {
    let name = KERNEL.name;
    buffers.check(name)?;
    let Buffers { logits, settings, stats, candidates, top_ids, logprobs, history, .. } = *buffers;
    let params = Params { shares: candidates.rows, n_generated: history.n_generated, padding: [0; 2] };
    let tensors = [settings, logits, stats, candidates, top_ids, logprobs];
    let mut dispatch = Dispatch::new(&KERNEL, params, &tensors, Workgroups { x: 1, y: 1 });
    dispatch.bytes_read = candidates.n_bytes() * 2 + stats.n_bytes();
    dispatch.bytes_written = u64::from(MAX_TOP) * 8;
    Ok(dispatch)
}
