//! GGUF files: the container, its metadata and tensor list, and the block formats of the weights.
//!
//! The flow of a load is: fetch a prefix of the file, call [`Header::parse`] until it is
//! [`Parse::Complete`], look at [`Header::metadata`] and [`Header::tensors`], then fetch each
//! tensor's bytes from `data_start + offset` and give them to [`dequantize`] or to a kernel.
//!
//! A model file is hostile input. Every count and length is compared with the bytes that can
//! still follow before anything is allocated for it, and no input makes this crate panic.
//!
//! The one thing a newcomer gets wrong: shapes are in the file's order. `shape[0]` is the
//! contiguous dimension, so a matrix with `out` rows and `in` columns has shape `[in, out]`.
//!
//! Format source: `docs/gguf.md` and `src/gguf.cpp` of ggml (<https://github.com/ggml-org/ggml>).

mod blocks;
mod cursor;
mod error;
mod header;
mod metadata;
mod q2_layout;
pub mod split;
mod tensor_type;
mod writer;

pub use blocks::{dequantize, quantize};
pub use error::{GgufError, Q2Fit};
pub use header::{
    DEFAULT_ALIGNMENT, Header, MAX_HEADER_BYTES, MAX_KEYS, MAX_NAME_BYTES, MAX_TENSORS, Parse, TensorInfo,
};
pub use metadata::{Array, Metadata, StringArray, Value};
pub use tensor_type::{SUPPORTED_TYPES, TensorType};
pub use writer::GgufWriter;

/// Result of this crate's operations.
pub type Result<T, E = GgufError> = std::result::Result<T, E>;
