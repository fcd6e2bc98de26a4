//! What the fast kernels of the CPU share.
//!
//! A kernel's `fast` function lies beside its reference. It computes the same within the tolerance of
//! the kernel's cases, in f32, written so that the compiler uses the vector unit or, for products with
//! few bits per weight, with its instructions by name.

pub mod lanes;
mod nibbles;
pub mod products;
pub mod tiles;

/// The precision in which fast products take their activations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activations {
    /// As they are.
    #[default]
    F32,
    /// Rounded to 8 bits, with a scale per block of weights: products of the formats in
    /// [`tiles`] take half the time.
    Int8,
}

impl Activations {
    /// The word for it in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Int8 => "int8",
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
