//! The error type of this crate.

use crate::tensor_type::{SUPPORTED_TYPES, TensorType};

/// Which of the two layouts of type 42 agree with a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Q2Fit {
    /// Neither layout explains the offsets.
    Neither,
    /// Both layouts explain the offsets and the file size.
    Both,
    /// Both layouts explain the offsets, and the file size that would decide was not given.
    BothWithoutFileSize,
}

impl std::fmt::Display for Q2Fit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Neither => "neither fits the tensor offsets",
            Self::Both => "both fit the tensor offsets and the file size",
            Self::BothWithoutFileSize => "both fit the tensor offsets and the file size is not known",
        })
    }
}

/// Everything that can be wrong with a GGUF file, or with a call of this crate.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "the message of each variant explains its fields")]
#[non_exhaustive]
pub enum GgufError {
    #[error("not a GGUF file: it starts with bytes {found:02x?}")]
    NotGguf { found: [u8; 4] },
    #[error("the file is big-endian; only little-endian GGUF files can be read")]
    BigEndian,
    #[error("GGUF version {version} is not supported, only 2 and 3 are")]
    UnsupportedVersion { version: u32 },
    #[error("the file is cut off: {what} needs {needed} bytes, the file has {file_bytes}")]
    Truncated { what: &'static str, needed: u64, file_bytes: u64 },
    #[error("the header is too large: {what} would end at byte {needed}, the limit is {limit}")]
    HeaderTooLarge { what: &'static str, needed: u64, limit: u64 },
    #[error("{prefix_bytes} bytes were given of a file of {file_bytes} bytes")]
    PrefixLongerThanFile { prefix_bytes: u64, file_bytes: u64 },
    #[error("the header claims {count} {what}, the limit is {limit}")]
    TooMany { what: &'static str, count: i64, limit: u64 },
    #[error("{what} at byte {position} is not valid UTF-8")]
    InvalidUtf8 { what: &'static str, position: u64 },
    #[error("{what} at byte {position} is empty")]
    EmptyName { what: &'static str, position: u64 },
    #[error("metadata key {key:?} appears twice")]
    DuplicateKey { key: String },
    #[error("metadata key {key:?} has the unknown value type {id}")]
    UnknownValueType { key: String, id: u32 },
    #[error("metadata key {key:?} is an array of arrays, which the format does not allow")]
    NestedArray { key: String },
    #[error("general.alignment is {value}, not a power of two")]
    InvalidAlignment { value: u32 },
    #[error("a tensor name at byte {position} has {bytes} bytes, the limit is {limit}")]
    NameTooLong { position: u64, bytes: u64, limit: u64 },
    #[error("tensor {tensor:?} appears twice")]
    DuplicateTensor { tensor: String },
    #[error("tensor {tensor:?} has {n_dims} dimensions, only 1 to 4 are possible")]
    InvalidDimensionCount { tensor: String, n_dims: u32 },
    #[error("tensor {tensor:?} has a dimension that is zero or negative: {shape:?}")]
    InvalidDimension { tensor: String, shape: Vec<i64> },
    #[error("the size of tensor {tensor:?} with shape {shape:?} is beyond the address space")]
    SizeOverflow { tensor: String, shape: Vec<u64> },
    #[error(
        "tensor {tensor:?} has rows of {row} values, not a multiple of the {block_len} values of a {ty} block"
    )]
    PartialBlock { tensor: String, ty: TensorType, row: u64, block_len: u32 },
    #[error("unsupported type {id} in tensor {tensor:?}; supported types are {SUPPORTED_TYPES}")]
    UnsupportedType { tensor: String, id: u32 },
    #[error("tensor {tensor:?} starts at offset {offset}, not a multiple of the alignment {alignment}")]
    MisalignedOffset { tensor: String, offset: u64, alignment: u64 },
    #[error("tensor {tensor:?} ends at byte {end}, beyond the end of the file at {file_bytes}")]
    OutOfFile { tensor: String, end: u64, file_bytes: u64 },
    #[error("tensors {first:?} and {second:?} overlap")]
    Overlap { first: String, second: String },
    #[error(
        "cannot tell the layout of tensor {tensor:?} (type 42): of the two layouts, 64 values in 18 bytes \
         and 128 values in 34 bytes, {fit}"
    )]
    UndecidedQ2Layout { tensor: String, fit: Q2Fit },
    #[error(
        "unsupported layout of tensor {tensor:?} (type 42): {key} = {mark:?} says that the scale comes last; \
         supported are 64 values in 18 bytes and 128 values in 34 bytes, scale first"
    )]
    ForeignQ2Layout { tensor: String, key: &'static str, mark: String },

    #[error("metadata key {key:?} is missing")]
    MissingKey { key: String },
    #[error("metadata key {key:?} has type {found}, expected {expected}")]
    WrongValueType { key: String, expected: &'static str, found: &'static str },
    #[error("metadata key {key:?} has the value {value}, which does not fit {expected}")]
    ValueOutOfRange { key: String, value: i128, expected: &'static str },

    #[error("the model claims to be split into {count} parts, {most} is the most there can be")]
    TooManyParts { count: u32, most: u32 },
    #[error("a split model needs at least one part")]
    NoParts,
    #[error("the model is split into {declared} parts, {given} were given")]
    WrongPartCount { declared: u32, given: u64 },
    #[error("part {index} says split.count = {found}, part 0 says {expected}")]
    PartCountDiffers { index: u64, found: u32, expected: u32 },
    #[error("part {index} says split.no = {found}")]
    WrongPartNumber { index: u64, found: u32 },
    #[error("the parts hold {found} tensors, split.tensors.count says {expected}")]
    WrongTensorCount { found: u64, expected: u64 },

    #[error("{bytes} bytes of {ty} do not hold {values} values")]
    BlockLength { ty: TensorType, bytes: u64, values: u64 },
    #[error("{ty} cannot be decoded; supported types are {SUPPORTED_TYPES}")]
    CannotDecode { ty: TensorType },
    #[error("{ty} cannot be encoded")]
    CannotEncode { ty: TensorType },
    #[error("{values} values are not whole blocks of {block_len}, as {ty} needs")]
    NotWholeBlocks { ty: TensorType, values: u64, block_len: u32 },
    #[error("the scale of {ty} block {block} is not a finite 16-bit number")]
    ScaleOutOfRange { ty: TensorType, block: u64 },
}
