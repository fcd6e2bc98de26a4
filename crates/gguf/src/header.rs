//! The header: everything in front of the tensor data.

use crate::cursor::{Cursor, Stop};
use crate::metadata::{Metadata, Value};
use crate::tensor_type::{Q2_0_ID, TensorType};
use crate::{GgufError, Result, q2_layout};

/// Largest header that is read. The largest published ones have 11 MB, most of it vocabulary.
pub const MAX_HEADER_BYTES: u64 = 256 << 20;
/// Largest number of metadata keys; real files have about fifty.
pub const MAX_KEYS: u64 = 1 << 16;
/// Largest number of tensors; real files have about a thousand.
pub const MAX_TENSORS: u64 = 1 << 16;
/// Longest tensor name, as in ggml (`GGML_MAX_NAME` less the terminator).
pub const MAX_NAME_BYTES: u64 = 63;
/// Alignment of the data section and of each tensor, unless the file says otherwise.
pub const DEFAULT_ALIGNMENT: u64 = 32;

/// Smallest prefix that is asked for, so that the first requests are not a few bytes each.
const FIRST_PREFIX_BYTES: u64 = 64 << 10;

/// One entry of the tensor list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, unique in the file.
    pub name: String,
    /// One to four sizes; `shape[0]` is the contiguous dimension, along which the blocks run.
    pub shape: Vec<u64>,
    /// Element type.
    pub ty: TensorType,
    /// Start of the data in bytes, relative to [`Header::data_start`].
    pub offset: u64,
    /// Size of the data in bytes.
    pub n_bytes: u64,
}

impl TensorInfo {
    /// Number of rows: the product of all dimensions but the contiguous one.
    #[must_use]
    pub fn n_rows(&self) -> u64 {
        self.shape.iter().skip(1).fold(1, |product, &size| product.saturating_mul(size))
    }

    /// Number of values. The product fits, because it was checked when the header was parsed.
    #[must_use]
    pub fn n_elems(&self) -> u64 {
        self.shape.iter().fold(1, |product, &size| product.saturating_mul(size))
    }
}

/// The parsed header of one file.
#[derive(Debug, Clone, PartialEq)]
pub struct Header {
    /// Container version, 2 or 3.
    pub version: u32,
    /// Metadata in file order.
    pub metadata: Metadata,
    /// Tensors in file order.
    pub tensors: Vec<TensorInfo>,
    /// Start of the data section in bytes from the start of the file.
    pub data_start: u64,
    /// Alignment of the data section and of each tensor, in bytes.
    pub alignment: u64,
}

/// Outcome of reading a prefix of a file.
#[derive(Debug, Clone, PartialEq)]
pub enum Parse {
    /// The prefix ends inside the header.
    NeedMore {
        /// Call again with the first `at_least` bytes, or with the whole file if it is shorter
        /// (and then with its size). The number at least doubles from one call to the next, so
        /// that reading a header in steps costs no more than twice reading it at once; it never
        /// exceeds the file size or [`MAX_HEADER_BYTES`].
        at_least: u64,
    },
    /// The header is complete.
    Complete(Header),
}

impl Header {
    /// Parses the header from the first bytes of a file.
    ///
    /// `prefix` may reach into the tensor data. `file_bytes` is the size of the whole file if it
    /// is known; with it, a file that is cut off is found before its data is fetched, and the
    /// layout of a last tensor of type 42 can be told.
    ///
    /// Time and memory are bounded by a small multiple of the length of `prefix`.
    ///
    /// # Errors
    /// Everything that can be wrong with the header or with the place of a tensor in the file.
    pub fn parse(prefix: &[u8], file_bytes: Option<u64>) -> Result<Parse> {
        let prefix_bytes = prefix.len() as u64;
        if let Some(file_bytes) = file_bytes
            && prefix_bytes > file_bytes
        {
            return Err(GgufError::PrefixLongerThanFile { prefix_bytes, file_bytes });
        }
        match read(prefix, file_bytes) {
            Ok(header) => Ok(Parse::Complete(header)),
            Err(Stop::Invalid(error)) => Err(error),
            Err(Stop::NeedMore(needed)) => {
                let wanted = needed.max(prefix_bytes.saturating_mul(2)).max(FIRST_PREFIX_BYTES);
                let limit = file_bytes.unwrap_or(u64::MAX).min(MAX_HEADER_BYTES);
                Ok(Parse::NeedMore { at_least: wanted.min(limit) })
            }
        }
    }

    /// Parses the header of a file that is held in memory.
    ///
    /// # Errors
    /// As [`Header::parse`]; a file that ends inside the header is [`GgufError::Truncated`].
    pub fn parse_file(file: &[u8]) -> Result<Self> {
        let file_bytes = file.len() as u64;
        match Self::parse(file, Some(file_bytes))? {
            Parse::Complete(header) => Ok(header),
            Parse::NeedMore { at_least } => {
                Err(GgufError::Truncated { what: "the header", needed: at_least, file_bytes })
            }
        }
    }

    /// The tensor called `name`. This is a linear search.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}

/// A tensor info as it stands in the file.
pub(crate) struct RawTensor {
    pub(crate) name: String,
    pub(crate) shape: Vec<u64>,
    pub(crate) type_id: u32,
    pub(crate) offset: u64,
}

impl RawTensor {
    /// Size in bytes if stored as `ty`.
    pub(crate) fn n_bytes(&self, ty: TensorType, address_limit: u64) -> Result<u64> {
        let too_large = || GgufError::SizeOverflow { tensor: self.name.clone(), shape: self.shape.clone() };
        let row = self.shape.first().copied().unwrap_or(0);
        let block_len = ty.block_len();
        if !row.is_multiple_of(block_len.into()) {
            return Err(GgufError::PartialBlock { tensor: self.name.clone(), ty, row, block_len });
        }
        let n_elems = self.shape.iter().try_fold(1u64, |product, &size| product.checked_mul(size));
        let n_elems = n_elems.filter(|&n| n <= address_limit).ok_or_else(too_large)?;
        let n_bytes = (n_elems / u64::from(block_len)).checked_mul(ty.block_bytes().into());
        n_bytes.filter(|&n| n <= address_limit).ok_or_else(too_large)
    }
}

fn read(prefix: &[u8], file_bytes: Option<u64>) -> Result<Header, Stop> {
    let mut cursor = Cursor::new(prefix, file_bytes);
    let found = cursor.array("the magic number")?;
    if found != *b"GGUF" {
        return Err(GgufError::NotGguf { found }.into());
    }
    let version = cursor.u32("the version")?;
    if version & 0xffff == 0 && version != 0 {
        return Err(GgufError::BigEndian.into());
    }
    if !(2..=3).contains(&version) {
        return Err(GgufError::UnsupportedVersion { version }.into());
    }
    let n_tensors = count(cursor.i64("the tensor count")?, "tensors", MAX_TENSORS)?;
    let n_keys = count(cursor.i64("the key count")?, "metadata keys", MAX_KEYS)?;
    // The shortest key has a length, one byte, a type and one byte of value; the shortest tensor
    // info a length, one byte, a dimension count, one dimension, a type and an offset.
    cursor.can_follow(n_keys * 14 + n_tensors * 33, "the list of keys and tensors")?;

    let metadata = read_metadata(&mut cursor, n_keys)?;
    let alignment = match metadata.get_u32("general.alignment")? {
        None => DEFAULT_ALIGNMENT,
        Some(value) if value.is_power_of_two() => value.into(),
        Some(value) => return Err(GgufError::InvalidAlignment { value }.into()),
    };
    let raw_tensors = read_tensors(&mut cursor, n_tensors)?;
    let data_start = cursor.position().next_multiple_of(alignment);
    let place = Place { data_start, alignment, file_bytes, address_limit: usize::MAX as u64 };
    let tensors = place.resolve(&metadata, raw_tensors)?;
    Ok(Header { version, metadata, tensors, data_start, alignment })
}

fn count(count: i64, what: &'static str, limit: u64) -> Result<u64> {
    u64::try_from(count).ok().filter(|&n| n <= limit).ok_or(GgufError::TooMany { what, count, limit })
}

fn read_metadata(cursor: &mut Cursor<'_>, n_keys: u64) -> Result<Metadata, Stop> {
    let mut entries = Vec::new();
    for _ in 0..n_keys {
        let position = cursor.position();
        let key = cursor.str("a metadata key")?;
        if key.is_empty() {
            return Err(GgufError::EmptyName { what: "a metadata key", position }.into());
        }
        let value = Value::read(cursor, key)?;
        entries.push((key.to_owned(), value));
    }
    Ok(Metadata::new(entries)?)
}

fn read_tensors(cursor: &mut Cursor<'_>, n_tensors: u64) -> Result<Vec<RawTensor>, Stop> {
    const WHAT: &str = "a tensor info";
    let mut tensors = Vec::new();
    for _ in 0..n_tensors {
        let position = cursor.position();
        let bytes = cursor.u64("a tensor name")?;
        if bytes > MAX_NAME_BYTES {
            return Err(GgufError::NameTooLong { position, bytes, limit: MAX_NAME_BYTES }.into());
        }
        let name = cursor.take(bytes, "a tensor name")?;
        let name =
            str::from_utf8(name).map_err(|_| GgufError::InvalidUtf8 { what: "a tensor name", position })?;
        if name.is_empty() {
            return Err(GgufError::EmptyName { what: "a tensor name", position }.into());
        }
        let name = name.to_owned();
        let n_dims = cursor.u32(WHAT)?;
        if !(1..=4).contains(&n_dims) {
            return Err(GgufError::InvalidDimensionCount { tensor: name, n_dims }.into());
        }
        let mut signed = Vec::with_capacity(4);
        for _ in 0..n_dims {
            signed.push(cursor.i64(WHAT)?);
        }
        if signed.iter().any(|&size| size <= 0) {
            return Err(GgufError::InvalidDimension { tensor: name, shape: signed }.into());
        }
        let shape = signed.iter().map(|size| size.unsigned_abs()).collect();
        let type_id = cursor.u32(WHAT)?;
        if type_id != Q2_0_ID && TensorType::from_id(type_id).is_none() {
            return Err(GgufError::UnsupportedType { tensor: name, id: type_id }.into());
        }
        let offset = cursor.u64(WHAT)?;
        tensors.push(RawTensor { name, shape, type_id, offset });
    }
    Ok(tensors)
}

/// Where the data section lies, and what bounds it.
pub(crate) struct Place {
    pub(crate) data_start: u64,
    pub(crate) alignment: u64,
    pub(crate) file_bytes: Option<u64>,
    /// Largest tensor that can be addressed; `usize::MAX` of the machine.
    pub(crate) address_limit: u64,
}

impl Place {
    /// Gives each tensor its type and size, and checks that it lies in the file and apart from
    /// the others.
    fn resolve(&self, metadata: &Metadata, raw_tensors: Vec<RawTensor>) -> Result<Vec<TensorInfo>> {
        let q2_group = q2_layout::decide(metadata, &raw_tensors, self)?;
        let mut tensors = Vec::with_capacity(raw_tensors.len());
        for raw in raw_tensors {
            let ty = q2_layout::resolve(raw.type_id, q2_group)
                .ok_or_else(|| GgufError::UnsupportedType { tensor: raw.name.clone(), id: raw.type_id })?;
            let n_bytes = raw.n_bytes(ty, self.address_limit)?;
            let RawTensor { name, shape, offset, .. } = raw;
            if !offset.is_multiple_of(self.alignment) {
                return Err(GgufError::MisalignedOffset { tensor: name, offset, alignment: self.alignment });
            }
            let end = self.data_start.checked_add(offset).and_then(|start| start.checked_add(n_bytes));
            let Some(end) = end else { return Err(GgufError::SizeOverflow { tensor: name, shape }) };
            if let Some(file_bytes) = self.file_bytes
                && end > file_bytes
            {
                return Err(GgufError::OutOfFile { tensor: name, end, file_bytes });
            }
            tensors.push(TensorInfo { name, shape, ty, offset, n_bytes });
        }
        let mut by_offset: Vec<&TensorInfo> = tensors.iter().collect();
        by_offset.sort_by_key(|tensor| tensor.offset);
        for [first, second] in by_offset.array_windows() {
            if second.offset - first.offset < first.n_bytes {
                return Err(GgufError::Overlap { first: first.name.clone(), second: second.name.clone() });
            }
        }
        let mut names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        names.sort_unstable();
        if let Some([first, _]) = names.array_windows().find(|[first, second]| first == second) {
            return Err(GgufError::DuplicateTensor { tensor: (*first).into() });
        }
        Ok(tensors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A 32-bit address space is checked on every machine.
    #[test]
    fn sizes_are_checked_against_the_address_space() {
        let raw = |shape: &[u64]| RawTensor { name: "t".into(), shape: shape.into(), type_id: 0, offset: 0 };
        let limit = u64::from(u32::MAX);
        let too_large = |shape: &[u64], limit| {
            raw(shape).n_bytes(TensorType::F32, limit)
                == Err(GgufError::SizeOverflow { tensor: "t".into(), shape: shape.into() })
        };
        assert_eq!(raw(&[1 << 15, 1 << 14]).n_bytes(TensorType::F32, limit), Ok(1 << 31));
        assert!(too_large(&[1 << 15, 1 << 15], limit), "bytes beyond 32 bits");
        assert!(too_large(&[1 << 16, 1 << 16], limit), "elements beyond 32 bits");
        assert!(too_large(&[(1 << 42) + 1, 1024, 4096], u64::MAX), "elements beyond 64 bits");
        assert!(too_large(&[1 << 62], u64::MAX), "bytes beyond 64 bits");
        assert_eq!(raw(&[1 << 16, 1 << 16]).n_bytes(TensorType::F32, u64::MAX), Ok(1 << 34));
    }
}
