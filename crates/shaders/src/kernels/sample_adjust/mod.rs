//! Logits to scores, and what is known of all of them.
//!
//! The score of a token is ((logit + bias) penalised - DRY) / temperature; see
//! [`Settings::score`](crate::sampling::Settings::score). Tokens outside the set of allowed ids, and logits
//! that are not finite, get [`EXCLUDED`](crate::sampling::EXCLUDED). `stats` holds per share what
//! [`STAT_COLS`](crate::sampling::STAT_COLS) lists; the histogram in the tally and the repetitions become empty.

use bytemuck::{Pod, Zeroable};

use crate::kernel::{Binding, Dispatch, Kernel, ShapeError, StateAccess, Workgroups};
use crate::sampling::{BINS, Buffers};

pub mod cases;
mod fast;
mod reference;

/// Uniform of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    n_valid: u32,
    vocab: u32,
    share: u32,
    counts: u32,
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "sample_adjust",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/workgroups.wgsl"),
        include_str!("../../common/float_order.wgsl"),
        include_str!("../../common/sampling_settings.wgsl"),
        include_str!("sample_adjust.wgsl"),
    ],
    bindings: &[
        Binding::read_u32("settings"),
        Binding::read("bias"),
        Binding::read_u32("history"),
        Binding::write("logits"),
        Binding::write_u32("repeats"),
        Binding::write("stats"),
        Binding::write_u32("tally"),
    ],
    state: StateAccess::Uniform,
    workgroup_size: [256, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::sample_adjust,
    fast: Some(|args, _| fast::sample_adjust(args)),
    cases: cases::cases,
};

/// Writes the second row of the logits and the statistics.
pub fn sample_adjust(buffers: &Buffers) -> Result<Dispatch, ShapeError> {
    let name = KERNEL.name;
    buffers.check(name)?;
    let Buffers { n_valid, logits, settings, bias, repeats, history, stats, tally, .. } = *buffers;
    let shares = buffers.shares();
    let params = Params { n_valid, vocab: logits.cols, share: shares.len, counts: history.counts() };
    let workgroups = Workgroups::linear(name, u64::from(shares.n))?;
    let tensors = [settings, bias, history.tensor(), logits, repeats, stats, tally];
    let mut dispatch = Dispatch::new(&KERNEL, params, &tensors, workgroups);
    dispatch.bytes_read = u64::from(n_valid) * 16;
    dispatch.bytes_written = u64::from(n_valid) * 8 + stats.n_bytes() + u64::from(BINS) * 12;
    Ok(dispatch)
}
