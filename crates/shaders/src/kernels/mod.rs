//! All kernels, in the order in which the forward pass uses them.

use crate::case::Case;
use crate::kernel::{Kernel, ShapeError};

mod activation;
pub mod append_rows;
pub mod argmax_final;
pub mod argmax_partial;
pub mod attention;
pub mod conv1d;
pub mod delta_net;
pub mod embed;
pub mod gated_norm;
pub mod l2_norm;
pub mod linear;
pub mod matmul;
pub mod matvec;
pub mod norm_rope;
pub mod rms_norm;
pub mod sigmoid_gate;
pub mod silu_mul;

/// Every kernel.
pub fn all() -> Vec<&'static Kernel> {
    let mut all = vec![&rms_norm::KERNEL];
    all.extend(&embed::KERNELS);
    all.extend(&matvec::KERNELS);
    all.extend(&matmul::KERNELS);
    all.extend([
        &conv1d::KERNEL,
        &l2_norm::KERNEL,
        &delta_net::KERNEL,
        &gated_norm::KERNEL,
        &norm_rope::KERNEL,
        &append_rows::KERNEL,
        &attention::KERNEL,
        &sigmoid_gate::KERNEL,
        &silu_mul::KERNEL,
        &argmax_partial::KERNEL,
        &argmax_final::KERNEL,
    ]);
    all
}

/// The cases of every kernel.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let mut cases = Vec::new();
    cases.extend(rms_norm::cases::cases()?);
    cases.extend(embed::cases::cases()?);
    cases.extend(matvec::cases::cases()?);
    cases.extend(matmul::cases::cases()?);
    cases.extend(conv1d::cases::cases()?);
    cases.extend(l2_norm::cases::cases()?);
    cases.extend(delta_net::cases::cases()?);
    cases.extend(gated_norm::cases::cases()?);
    cases.extend(norm_rope::cases::cases()?);
    cases.extend(append_rows::cases::cases()?);
    cases.extend(attention::cases::cases()?);
    cases.extend(sigmoid_gate::cases::cases()?);
    cases.extend(silu_mul::cases::cases()?);
    cases.extend(argmax_partial::cases::cases()?);
    cases.extend(argmax_final::cases::cases()?);
    Ok(cases)
}
