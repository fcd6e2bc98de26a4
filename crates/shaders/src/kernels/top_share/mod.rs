//! The largest logits of each share of the vocabulary: the first half of the log-probabilities of alternatives.
//!
//! Row s of `candidates` holds the ids of the 20 largest logits of share s in falling order, the smaller id first
//! among equals, and `u32::MAX` where the share has fewer.

use bytemuck::{Pod, Zeroable};

use crate::kernel::{Binding, Dispatch, Kernel, ShapeError, StateAccess, Workgroups};
use crate::sampling::Buffers;

pub mod cases;
mod fast;
mod reference;

/// Uniform of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub struct Params {
    n_valid: u32,
    share: u32,
    padding: [u32; 2],
}

/// The kernel.
pub static KERNEL: Kernel = Kernel {
    name: "top_share",
    sources: &[
        include_str!("../../common/state.wgsl"),
        include_str!("../../common/workgroups.wgsl"),
        include_str!("../../common/float_order.wgsl"),
        include_str!("top_share.wgsl"),
    ],
    bindings: &[Binding::read("logits"), Binding::write_u32("candidates")],
    state: StateAccess::Uniform,
    workgroup_size: [64, 1, 1],
    params_size: size_of::<Params>(),
    reference: reference::top_share,
    fast: Some(|args, _| fast::top_share(args)),
    cases: cases::cases,
};

/// Writes the candidates.
pub fn top_share(buffers: &Buffers) -> Result<Dispatch, ShapeError> {
    let name = KERNEL.name;
    buffers.check(name)?;
    let shares = buffers.shares();
    let params = Params { n_valid: buffers.n_valid, share: shares.len, padding: [0; 2] };
    let workgroups = Workgroups::linear(name, u64::from(shares.n))?;
    let mut dispatch = Dispatch::new(&KERNEL, params, &[buffers.logits, buffers.candidates], workgroups);
    dispatch.bytes_read = u64::from(buffers.n_valid) * 4;
    Ok(dispatch)
}
