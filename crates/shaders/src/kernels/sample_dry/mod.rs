//! How long a repetition each token would continue: what DRY ("don't repeat yourself") penalises.
//!
//! For every position p of the ledger, m is the length of the longest run of ids that ends before p and
//! equals the end of the ledger; `repeats[ledger[p]]` becomes the largest m of all such p. As in
//! llama.cpp's DRY sampler, a run does not go across a sequence breaker nor beyond the last `dry_last_n` ids.
//! In addition the run must contain a generated token (its last, since what follows a generated token
//! is generated): what the prompt alone repeats, such as a list or code to be continued, is not held against the reply.
//! Runs longer than [`MAX_MATCH`](crate::sampling::MAX_MATCH) count as that long.

use bytemuck::{Pod, Zeroable};

use crate::kernel::{Binding, Dispatch, Kernel, ShapeError, StateAccess, Workgroups};
use crate::sampling::{Buffers, SETTINGS_WORDS, set_words};

pub mod cases;
mod reference;

/// Uniform of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    ledger: u32,
    context: u32,
    breakers: u32,
    padding: u32,
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "sample_dry",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/workgroups.wgsl"),
        include_str!("../../common/sampling_settings.wgsl"),
        include_str!("sample_dry.wgsl"),
    ],
    bindings: &[Binding::read_u32("settings"), Binding::read_u32("history"), Binding::write_u32("repeats")],
    state: StateAccess::Uniform,
    workgroup_size: [64, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::sample_dry,
    fast: None,
    cases: cases::cases,
};

/// Adds the repetitions of this step to `repeats`.
pub fn sample_dry(buffers: &Buffers) -> Result<Dispatch, ShapeError> {
    let name = KERNEL.name;
    buffers.check(name)?;
    let Buffers { settings, history, repeats, n_valid, .. } = *buffers;
    let params = Params {
        ledger: history.ledger(),
        context: history.context,
        breakers: SETTINGS_WORDS + set_words(n_valid),
        padding: 0,
    };
    let workgroups = Workgroups::linear(name, u64::from(history.context.div_ceil(64)))?;
    let mut dispatch = Dispatch::new(&KERNEL, params, &[settings, history.tensor(), repeats], workgroups);
    dispatch.bytes_read = u64::from(history.context) * 4;
    dispatch.bytes_written = 0;
    Ok(dispatch)
}
