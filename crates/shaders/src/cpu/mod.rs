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
/// that meet one scale of the weights share a scale too; each is written in digits of 8 bits, and every
/// digit takes the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activations {
    /// In three digits, which lose no more than the additions of f32 do.
    F32,
    /// Rounded to 16 bits, two digits: the divergence from f32 is below 1e-6.
    #[default]
    Int16,
    /// Rounded to 8 bits, one digit, which shows in the answers.
    Int8,
}

impl Activations {
    /// The word for it in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Int16 => "int16",
            Self::Int8 => "int8",
        }
    }

    fn n_digits(self) -> usize {
        match self {
            Self::F32 => 3,
            Self::Int16 => 2,
            Self::Int8 => 1,
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
