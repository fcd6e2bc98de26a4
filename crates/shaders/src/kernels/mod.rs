//! All kernels, in the order in which the forward pass uses them.

use crate::case::Case;
use crate::kernel::{Kernel, ShapeError};

pub mod rms_norm;

/// Every kernel.
pub fn all() -> Vec<&'static Kernel> {
    vec![&rms_norm::KERNEL]
}

/// The cases of every kernel.
pub fn cases() -> Result<Vec<Case>, ShapeError> {
    let mut cases = Vec::new();
    cases.extend(rms_norm::cases::cases()?);
    Ok(cases)
}
