//! Number and mass of the tokens that min-p and top-n-sigma keep, by their distance from the best score.
//!
//! With the distance d = best score - score and the [`Summary`](crate::sampling::Summary) of the statistics: row
//! `min(d * scale, 255)` of the histogram [BINS, 3] counts the tokens and adds up
//! [`mass`](crate::sampling::mass)(d), its part above and below 2^13 apart. A vocabulary's worth of either fits 32
//! bits. Nothing happens if neither top-k nor top-p cuts.

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
    shares: u32,
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "sample_histogram",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/workgroups.wgsl"),
        include_str!("../../common/sampling_settings.wgsl"),
        include_str!("../../common/sampling_summary.wgsl"),
        include_str!("sample_histogram.wgsl"),
    ],
    bindings: &[
        Binding::read_u32("settings"),
        Binding::read("logits"),
        Binding::read("stats"),
        Binding::write_u32("tally"),
    ],
    state: StateAccess::Uniform,
    workgroup_size: [256, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::sample_histogram,
    fast: Some(|args, _| fast::sample_histogram(args)),
    cases: cases::cases,
};

/// Adds to the histogram, which must be empty.
pub fn sample_histogram(buffers: &Buffers) -> Result<Dispatch, ShapeError> {
    let name = KERNEL.name;
    buffers.check(name)?;
    let Buffers { n_valid, logits, settings, stats, tally, .. } = *buffers;
    let shares = buffers.shares();
    let params = Params { n_valid, vocab: logits.cols, share: shares.len, shares: shares.n };
    let workgroups = Workgroups::linear(name, u64::from(shares.n))?;
    let mut dispatch = Dispatch::new(&KERNEL, params, &[settings, logits, stats, tally], workgroups);
    dispatch.bytes_read = u64::from(n_valid) * 4 + stats.n_bytes() * u64::from(shares.n);
    dispatch.bytes_written = u64::from(BINS) * 12;
    Ok(dispatch)
}
