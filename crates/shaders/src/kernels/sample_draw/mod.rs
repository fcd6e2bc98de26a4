//! Draws among the tokens that are certainly kept, and marks those that perhaps are.
//!
//! The [`Bounds`](crate::sampling::Bounds) of the histogram tell the bins in which top-k and top-p cut. Of the
//! tokens in the bins before, each share's one with the largest
//! [perturbed score](crate::sampling::Settings::perturbed) becomes its winner in the tally (`u32::MAX` if it has none);
//! the set of undecided ids in the tally becomes the tokens of the bins with the cuts.

use bytemuck::{Pod, Zeroable};

use crate::kernel::{Binding, Dispatch, Kernel, ShapeError, StateAccess, Workgroups};
use crate::sampling::{BINS, Buffers, Shares};

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
    winners: u32,
    undecided: u32,
    padding: [u32; 2],
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "sample_draw",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/workgroups.wgsl"),
        include_str!("../../common/sampling_settings.wgsl"),
        include_str!("../../common/sampling_summary.wgsl"),
        include_str!("../../common/sampling_bounds.wgsl"),
        include_str!("../../common/gumbel.wgsl"),
        include_str!("sample_draw.wgsl"),
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
    reference: reference::sample_draw,
    fast: Some(|args, _| fast::sample_draw(args)),
    cases: cases::cases,
};

/// Writes winners and undecided ids.
pub fn sample_draw(buffers: &Buffers) -> Result<Dispatch, ShapeError> {
    let name = KERNEL.name;
    buffers.check(name)?;
    let Buffers { n_valid, logits, settings, stats, tally, .. } = *buffers;
    let shares = buffers.shares();
    let params = Params {
        n_valid,
        vocab: logits.cols,
        share: shares.len,
        shares: shares.n,
        winners: Shares::WINNERS,
        undecided: Shares::UNDECIDED,
        padding: [0; 2],
    };
    let workgroups = Workgroups::linear(name, u64::from(shares.n))?;
    let mut dispatch = Dispatch::new(&KERNEL, params, &[settings, logits, stats, tally], workgroups);
    let per_share = stats.n_bytes() + u64::from(BINS) * 12;
    dispatch.bytes_read = u64::from(n_valid) * 4 + per_share * u64::from(shares.n);
    dispatch.bytes_written = u64::from(tally.cols - Shares::WINNERS) * 4;
    Ok(dispatch)
}
