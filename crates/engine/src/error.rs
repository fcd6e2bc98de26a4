//! What can go wrong, with a stable code for each kind.

use signbit_gguf::GgufError;
use signbit_shaders::ShapeError;
use signbit_shaders::weights::PackError;
use signbit_tokenizer::TokenizerError;
use thiserror::Error;

use crate::config::ConfigError;

/// Why there is no GPU to compute on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoGpu {
    /// There is no adapter.
    NoAdapter,
    /// The adapter is software, and a real one was wanted.
    SoftwareAdapter,
    /// The adapter gives no device.
    AdapterRefused,
}

impl NoGpu {
    /// A stable string for callers to act on.
    pub fn code(self) -> &'static str {
        match self {
            Self::NoAdapter => "no_adapter",
            Self::SoftwareAdapter => "software_adapter",
            Self::AdapterRefused => "adapter_refused",
        }
    }
}

/// Any failure of the engine.
#[derive(Debug, Error)]
pub enum EngineError {
    /// There is no GPU to compute on.
    #[error("WebGPU cannot be used: {reason}")]
    WebGpuUnavailable {
        /// How far the search came.
        cause: NoGpu,
        /// What the platform said.
        reason: String,
    },
    /// The device cannot hold something the model needs.
    #[error("{what} needs {needed} bytes and this device allows {limit}")]
    LimitTooSmall {
        /// What did not fit.
        what: String,
        /// Bytes needed.
        needed: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// A loop over the context would not end on the device.
    #[error("the context has {asked} positions and the loops of this software adapter end after {limit}")]
    ContextTooLong {
        /// Positions of the plan.
        asked: u32,
        /// Positions that loops go through.
        limit: u32,
    },
    /// The plan takes more than the device may hold.
    #[error(
        "the model with {context_length} positions of context needs {needed} bytes, and the budget is {budget}"
    )]
    OverBudget {
        /// Positions of the plan.
        context_length: u32,
        /// Bytes needed.
        needed: u64,
        /// Bytes allowed.
        budget: u64,
    },
    /// The device ran out of memory.
    #[error("the device ran out of memory: {reason}")]
    OutOfMemory {
        /// What the device said.
        reason: String,
    },
    /// The device is gone.
    #[error("the device was lost: {reason}")]
    DeviceLost {
        /// What the device said.
        reason: String,
    },
    /// The file is not a valid model file.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The file's bytes did not arrive as its header promises.
    #[error("part {part} of the model ended after {seen} bytes, and its header needs {needed}")]
    Truncated {
        /// Index of the part.
        part: usize,
        /// Bytes that arrived.
        seen: u64,
        /// Bytes needed.
        needed: u64,
    },
    /// A tensor's blocks cannot be right.
    #[error("tensor {tensor}: {source}")]
    Weights {
        /// The tensor.
        tensor: String,
        /// What is wrong.
        source: PackError,
    },
    /// A small tensor holds a number that is none.
    #[error("tensor {tensor} holds a value that is not finite at element {element}")]
    NonFiniteWeight {
        /// The tensor.
        tensor: String,
        /// Index of the value.
        element: usize,
    },
    /// The model is one this engine does not run.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The model's geometry does not fit a kernel.
    #[error(transparent)]
    Shape(#[from] ShapeError),
    /// The tokenizer or the chat template.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The prompt does not fit.
    #[error("the prompt has {prompt_tokens} tokens and the context holds {context_length}")]
    ContextFull {
        /// Tokens of the prompt.
        prompt_tokens: usize,
        /// Tokens the context holds.
        context_length: usize,
    },
    /// A snapshot is not of what runs here.
    #[error("the snapshot's {what} is {snapshot}, and here it is {here}")]
    SnapshotMismatch {
        /// What differs.
        what: &'static str,
        /// Of the snapshot.
        snapshot: String,
        /// Of what runs here.
        here: String,
    },
    /// A snapshot is not as it was written.
    #[error("the snapshot is damaged: {reason}")]
    SnapshotCorrupt {
        /// What is wrong.
        reason: String,
    },
    /// The caller asked for something that makes no sense.
    #[error("{reason}")]
    InvalidRequest {
        /// What is wrong with the request.
        reason: String,
    },
    /// The model's output is not a distribution.
    #[error("the logits after position {position} are not finite or all equal")]
    UnusableLogits {
        /// Position of the last token read.
        position: u32,
    },
    /// The device computes something else than its kernels say.
    #[error("{kernel} gives wrong results on this device: {detail}")]
    WrongResults {
        /// The kernel.
        kernel: &'static str,
        /// Where it differs from its reference.
        detail: String,
    },
    /// The device refused something that should be valid.
    #[error("the device reported: {reason}")]
    Device {
        /// What the device said.
        reason: String,
    },
}

impl EngineError {
    /// A stable string for callers to act on.
    pub fn code(&self) -> &'static str {
        match self {
            Self::WebGpuUnavailable { .. } => "webgpu_unavailable",
            Self::LimitTooSmall { .. } | Self::ContextTooLong { .. } => "limit_too_small",
            Self::OverBudget { .. } | Self::OutOfMemory { .. } => "out_of_memory",
            Self::DeviceLost { .. } => "device_lost",
            Self::Gguf(_)
            | Self::Config(ConfigError::Gguf(_))
            | Self::Truncated { .. }
            | Self::Weights { .. }
            | Self::NonFiniteWeight { .. } => "weights_invalid",
            Self::Config(_) | Self::Shape(_) => "model_unsupported",
            Self::Tokenizer(
                TokenizerError::TemplateTooLong { .. }
                | TokenizerError::TemplateSyntax { .. }
                | TokenizerError::TemplateRaised { .. }
                | TokenizerError::TemplateBudget { .. }
                | TokenizerError::TemplateOutputTooLong { .. }
                | TokenizerError::TemplateFailed { .. },
            ) => "template_invalid",
            Self::Tokenizer(_) => "tokenizer_invalid",
            Self::ContextFull { .. } => "context_full",
            Self::SnapshotMismatch { .. } => "snapshot_mismatch",
            Self::SnapshotCorrupt { .. } => "snapshot_corrupt",
            Self::InvalidRequest { .. } => "invalid_request",
            Self::UnusableLogits { .. } => "non_finite",
            Self::WrongResults { .. } => "device_unreliable",
            Self::Device { .. } => "internal",
        }
    }
}
