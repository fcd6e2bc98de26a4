//! All kernels, in the order in which the forward pass uses them.

use crate::case::{Case, run_reference};
use crate::kernel::{Kernel, ShapeError};

mod activation;
pub mod argmax_final;
pub mod argmax_partial;
pub mod attention;
pub mod attention_decode;
pub mod attention_merge;
pub mod delta_chunk;
pub mod delta_conv;
pub mod delta_net;
pub mod delta_step;
pub mod embed;
pub mod gated_norm;
pub mod kivi;
pub mod kivi_append;
pub mod kivi_attention;
pub mod kivi_decode;
pub mod linear;
pub mod matmul;
pub mod matvec;
pub mod qkv;
pub mod qkv_rope_append;
pub mod rms_norm;
pub mod sample_adjust;
pub mod sample_draw;
pub mod sample_dry;
pub mod sample_final;
pub mod sample_histogram;
pub(crate) mod sampling_scene;
pub mod silu_mul;
pub mod top_final;
pub mod top_share;

/// Every kernel.
pub fn all() -> Vec<&'static Kernel> {
    let mut all = vec![&rms_norm::KERNEL];
    all.extend(&embed::KERNELS);
    all.extend(matvec::kernels());
    all.extend(matmul::KERNELS.iter().flatten());
    all.extend([
        &delta_conv::KERNEL,
        &delta_chunk::KERNEL,
        &delta_net::KERNEL,
        &delta_step::KERNEL,
        &gated_norm::KERNEL,
        &qkv_rope_append::KERNEL,
        &attention::KERNEL,
        &attention_decode::KERNEL,
        &attention_merge::KERNEL,
        &kivi_decode::KERNEL,
        &kivi_append::KERNEL,
        &kivi_attention::KERNEL,
        &silu_mul::KERNEL,
        &argmax_partial::KERNEL,
        &argmax_final::KERNEL,
        &sample_dry::KERNEL,
        &sample_adjust::KERNEL,
        &top_share::KERNEL,
        &top_final::KERNEL,
        &sample_histogram::KERNEL,
        &sample_draw::KERNEL,
        &sample_final::KERNEL,
    ]);
    all
}

/// The cases of every kernel.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let cases = all().into_iter().map(|kernel| (kernel.cases)()).collect::<Result<Vec<_>, _>>()?;
    Ok(cases.concat())
}

/// The most 32-bit words in the buffers of a probe, and the most workgroups.
const MAX_PROBE_WORDS: usize = 200_000;
const MAX_PROBE_WORKGROUPS: u64 = 4096;

/// The largest case that is small enough to run at every load, whose buffers hold at most
/// `max_buffer_words` each, and whose result shows that the kernel ran.
pub fn probe(kernel: &'static Kernel, max_buffer_words: u64) -> Result<Option<Case>, ShapeError> {
    let n_words = |case: &Case| case.buffers.iter().map(Vec::len).sum::<usize>();
    let fits = |case: &Case| case.buffers.iter().all(|buffer| buffer.len() as u64 <= max_buffer_words);
    let n_workgroups = |case: &Case| {
        let workgroups = case.dispatch.workgroups;
        u64::from(workgroups.x) * u64::from(workgroups.y)
    };
    let mut small: Vec<Case> = (kernel.cases)()?
        .into_iter()
        .filter(|case| n_words(case) <= MAX_PROBE_WORDS && n_workgroups(case) <= MAX_PROBE_WORKGROUPS)
        .filter(fits)
        .collect();
    small.sort_by_key(|case| std::cmp::Reverse(n_words(case)));
    Ok(small.into_iter().find(|case| run_reference(case) != (case.buffers.clone(), case.state)))
}
