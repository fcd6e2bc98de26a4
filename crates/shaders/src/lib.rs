//! The kernels of the engine: WGSL programs, each with a plain Rust twin.
//!
//! A kernel is a folder under [`kernels`] with its WGSL, its parameters and constructor, its CPU
//! reference and its test cases. A constructor checks shapes and returns a [`Dispatch`], which is
//! plain data: the engine runs it on a GPU or, through the reference, on the CPU. This crate knows
//! neither wgpu nor the browser.
//!
//! What a newcomer gets wrong: matrices are `[out, in]` row-major (`y = W x`), and every kernel
//! works on the first `state.n_tokens` rows only, which is how a finished generation turns the
//! rest of a submit into no-ops.

pub mod case;
pub mod cpu;
pub mod kernel;
pub mod kernels;
pub mod sampling;
pub mod weights;

pub use kernel::{
    Access, Args, Binding, BufferId, Columns, Dispatch, Element, Kernel, MAX_LOOP_ITERATIONS, MAX_STOP_IDS,
    ShapeError, State, StateAccess, Tensor, Workgroups,
};
