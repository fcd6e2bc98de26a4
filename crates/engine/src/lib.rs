//! The engine: loads a GGUF model, records its forward pass as a static plan, and runs that plan
//! on a GPU or on the CPU.
//!
//! Bytes go in through [`loader::Loader`], tokens come out of [`session::Session`]; the module
//! [`chat`] puts text around both. The crate touches neither storage nor the network.

pub mod bisect;
pub mod chat;
pub mod check;
mod clock;
pub mod config;
pub mod device;
pub mod digest;
pub mod engine;
pub mod error;
pub mod loader;
pub mod memory;
pub mod model;
pub mod placement;
pub mod planner;
pub mod profile;
pub mod reuse;
pub mod sampler;
pub mod session;
pub mod snapshot;
pub mod transcript;
pub mod tuning;

pub use error::EngineError;

#[cfg(target_arch = "wasm32")]
pub mod web;
