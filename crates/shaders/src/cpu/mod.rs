//! What the fast kernels of the CPU share.
//!
//! A kernel's `fast` function lies beside its reference. It computes the same within the tolerance of
//! the kernel's cases, in f32, written so that the compiler uses the vector unit or, for products with
//! few bits per weight, with its instructions by name.

pub mod attention;
pub mod lanes;
mod nibbles;
pub mod products;
pub mod tiles;

/// The precision in which fast products take their activations, for the formats in [`tiles`]. Activations
/// that meet one scale of the weights share a scale too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activations {
    /// As exactly as sums of f32 are.
    F32,
    /// Rounded to integers of up to 511 (255 for Q4_0), which takes less than half the time.
    #[default]
    Int10,
}

impl Activations {
    /// The word for it in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Int10 => "int10",
        }
    }
}

/// How the CPU runs dispatches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuKernels {
    /// By the definitions, over matrices in the layout of GPUs.
    Reference,
    /// By the fast kernels, over matrices in [`tiles`].
    Fast(Activations),
}

/// What the fast kernels use of the processor.
pub fn vector_unit() -> &'static str {
    nibbles::vector_unit()
}
