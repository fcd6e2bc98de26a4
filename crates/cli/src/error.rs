//! What can go wrong in the tool, with a stable code for each kind.

use std::io;
use std::path::PathBuf;

use signbit_engine::EngineError;
use thiserror::Error;

/// Any failure of a command.
#[derive(Debug, Error)]
pub enum CliError {
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A JSON file does not hold what the command needs.
    #[error("{} does not hold {expected}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        expected: &'static str,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// Standard input failed.
    #[error("cannot read standard input: {0}")]
    Stdin(io::Error),
    /// Standard output failed.
    #[error("cannot write to standard output: {0}")]
    Stdout(io::Error),
    /// The engine refused or failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A model file is not the expected one.
    #[error("{} has the SHA-256 {found}, and {expected} is expected", path.display())]
    WrongSha256 {
        /// The file.
        path: PathBuf,
        /// As it should be.
        expected: String,
        /// As it is.
        found: String,
    },
    /// Files do not hold a whole snapshot of a session.
    #[error("{} does not hold a whole snapshot: {reason}", path.display())]
    NoSnapshot {
        /// The folder or archive.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Kernels disagree with their references.
    #[error("{failed} of {total} kernel cases failed")]
    KernelsDiffer {
        /// Cases that failed.
        failed: usize,
        /// Cases that ran.
        total: usize,
    },
    /// The GPU computed something else than the reference.
    #[error("the GPU differs from the reference first at {0}")]
    ModelDiffers(String),
    /// Fewer answers are right than asked for.
    #[error("{wrong} of {asked} answers are wrong")]
    AnswersWrong {
        /// Answers that are not the expected ones.
        wrong: usize,
        /// Questions.
        asked: usize,
    },
    /// The arguments make no sense together.
    #[error("{0}")]
    Usage(String),
}

impl CliError {
    /// A stable string for scripts to act on.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Read { .. } | Self::Write { .. } | Self::Stdin(_) | Self::Stdout(_) => "io",
            Self::Json { .. } => "json_invalid",
            Self::WrongSha256 { .. } => "weights_invalid",
            Self::NoSnapshot { .. } => "snapshot_corrupt",
            Self::Engine(error) => error.code(),
            Self::KernelsDiffer { .. } | Self::ModelDiffers(_) | Self::AnswersWrong { .. } => "mismatch",
            Self::Usage(_) => "usage",
        }
    }

    /// Whether the reader of standard output has left, which is how `| head` ends a command.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Stdout(e) if e.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Message and code in one line.
    pub fn line(&self) -> String {
        format!("error: {} [{}]", one_line(&self.to_string()), self.code())
    }
}

/// The text with every run of white space, line ends included, as one space.
pub fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

macro_rules! engine_errors {
    ($($source:ty),*) => {
        $(impl From<$source> for CliError {
            fn from(error: $source) -> Self {
                Self::Engine(error.into())
            }
        })*
    };
}

engine_errors!(
    signbit_gguf::GgufError,
    signbit_tokenizer::TokenizerError,
    signbit_engine::config::ConfigError
);
