//! Writes GGUF files, for tests and tools.

use crate::metadata::{Array, Value};
use crate::{DEFAULT_ALIGNMENT, TensorType};

struct Entry {
    name: String,
    shape: Vec<u64>,
    type_id: u32,
    n_bytes: u64,
    data: Vec<u8>,
}

/// Builds a GGUF file in memory.
///
/// It writes what it is given and checks nothing, so that wrong files can be made on purpose;
/// [`Header::parse_file`](crate::Header::parse_file) tells whether the result is valid. Tensors
/// are placed one after the other in the order in which they are added, each padded to the
/// alignment.
///
/// ```
/// use signbit_gguf::{GgufWriter, Header, TensorType};
///
/// let mut writer = GgufWriter::new();
/// writer.set("general.architecture", "qwen3").set("qwen3.block_count", 1u32);
/// writer.tensor("output_norm.weight", &[2], TensorType::F32, vec![0; 8]);
/// let header = Header::parse_file(&writer.finish())?;
/// assert_eq!(header.metadata.require_u32("qwen3.block_count")?, 1);
/// assert_eq!(header.tensors[0].shape, [2]);
/// # Ok::<(), signbit_gguf::GgufError>(())
/// ```
pub struct GgufWriter {
    version: u32,
    alignment: u64,
    metadata: Vec<(String, Value)>,
    tensors: Vec<Entry>,
}

impl Default for GgufWriter {
    fn default() -> Self {
        Self::new()
    }
}

impl GgufWriter {
    /// An empty file of version 3 with the default alignment.
    #[must_use]
    pub fn new() -> Self {
        Self { version: 3, alignment: DEFAULT_ALIGNMENT, metadata: Vec::new(), tensors: Vec::new() }
    }

    /// Sets the version number; versions 2 and 3 have the same layout.
    pub fn version(&mut self, version: u32) -> &mut Self {
        self.version = version;
        self
    }

    /// Sets the alignment of the data and writes `general.alignment`.
    pub fn alignment(&mut self, alignment: u32) -> &mut Self {
        self.alignment = u64::from(alignment).max(1);
        self.set("general.alignment", alignment)
    }

    /// Sets a metadata key; a key that is already set keeps its place and gets the new value.
    pub fn set(&mut self, key: &str, value: impl Into<Value>) -> &mut Self {
        let value = value.into();
        match self.metadata.iter_mut().find(|(name, _)| name == key) {
            Some(entry) => entry.1 = value,
            None => self.metadata.push((key.into(), value)),
        }
        self
    }

    /// Removes a metadata key.
    pub fn unset(&mut self, key: &str) -> &mut Self {
        self.metadata.retain(|(name, _)| name != key);
        self
    }

    /// Adds a tensor; `shape[0]` is the contiguous dimension, `data` are the packed blocks.
    pub fn tensor(&mut self, name: &str, shape: &[u64], ty: TensorType, data: Vec<u8>) -> &mut Self {
        self.tensor_with_id(name, shape, ty.id(), data)
    }

    /// Adds a tensor of any type number.
    pub fn tensor_with_id(&mut self, name: &str, shape: &[u64], type_id: u32, data: Vec<u8>) -> &mut Self {
        let n_bytes = data.len() as u64;
        self.tensors.push(Entry { name: name.into(), shape: shape.into(), type_id, n_bytes, data });
        self
    }

    /// Adds a tensor whose data the caller writes behind [`GgufWriter::header`], for files that are too large
    /// to be held; returns the bytes that the data takes with its padding. The shape is one of
    /// whole blocks: a rest that fills none is not counted.
    pub fn declare(&mut self, name: &str, shape: &[u64], ty: TensorType) -> u64 {
        let n_bytes = shape.iter().product::<u64>() / u64::from(ty.block_len()) * u64::from(ty.block_bytes());
        let (name, shape, type_id) = (name.into(), shape.into(), ty.id());
        self.tensors.push(Entry { name, shape, type_id, n_bytes, data: Vec::new() });
        n_bytes.next_multiple_of(self.alignment)
    }

    /// The bytes of the file, if all tensors came with their data.
    #[must_use]
    pub fn finish(&self) -> Vec<u8> {
        let mut out = self.header();
        for tensor in &self.tensors {
            out.extend(&tensor.data);
            self.pad(&mut out);
        }
        out
    }

    /// The bytes in front of the data, padded to the alignment if there are tensors.
    #[must_use]
    pub fn header(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            put_str(&mut out, key);
            put_value(&mut out, value);
        }
        let mut offset = 0u64;
        for tensor in &self.tensors {
            put_str(&mut out, &tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            put_all(&mut out, &tensor.shape, |size| size.to_le_bytes());
            out.extend(tensor.type_id.to_le_bytes());
            out.extend(offset.to_le_bytes());
            offset = (offset + tensor.n_bytes).next_multiple_of(self.alignment);
        }
        if !self.tensors.is_empty() {
            self.pad(&mut out);
        }
        out
    }

    fn pad(&self, out: &mut Vec<u8>) {
        let padded = (out.len() as u64).next_multiple_of(self.alignment);
        out.resize(padded as usize, 0);
    }
}

impl Value {
    /// Appends the value as a file holds it: the number of its type, then the value.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_value(out, self);
    }
}

fn put_str(out: &mut Vec<u8>, string: &str) {
    out.extend((string.len() as u64).to_le_bytes());
    out.extend(string.as_bytes());
}

fn put_all<T: Copy, const N: usize>(out: &mut Vec<u8>, values: &[T], encode: impl Fn(T) -> [u8; N]) {
    out.extend(values.iter().flat_map(|&value| encode(value)));
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    let mut put = |id: u32, bytes: &[u8]| {
        out.extend(id.to_le_bytes());
        out.extend(bytes);
    };
    match value {
        Value::U8(x) => put(0, &[*x]),
        Value::I8(x) => put(1, &x.to_le_bytes()),
        Value::U16(x) => put(2, &x.to_le_bytes()),
        Value::I16(x) => put(3, &x.to_le_bytes()),
        Value::U32(x) => put(4, &x.to_le_bytes()),
        Value::I32(x) => put(5, &x.to_le_bytes()),
        Value::F32(x) => put(6, &x.to_le_bytes()),
        Value::Bool(x) => put(7, &[u8::from(*x)]),
        Value::String(x) => {
            put(8, &[]);
            put_str(out, x);
        }
        Value::Array(x) => {
            put(9, &[]);
            put_array(out, x);
        }
        Value::U64(x) => put(10, &x.to_le_bytes()),
        Value::I64(x) => put(11, &x.to_le_bytes()),
        Value::F64(x) => put(12, &x.to_le_bytes()),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    let id: u32 = match array {
        Array::U8(_) => 0,
        Array::I8(_) => 1,
        Array::U16(_) => 2,
        Array::I16(_) => 3,
        Array::U32(_) => 4,
        Array::I32(_) => 5,
        Array::F32(_) => 6,
        Array::Bool(_) => 7,
        Array::String(_) => 8,
        Array::U64(_) => 10,
        Array::I64(_) => 11,
        Array::F64(_) => 12,
    };
    out.extend(id.to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    match array {
        Array::U8(v) => out.extend(v),
        Array::I8(v) => put_all(out, v, i8::to_le_bytes),
        Array::U16(v) => put_all(out, v, u16::to_le_bytes),
        Array::I16(v) => put_all(out, v, i16::to_le_bytes),
        Array::U32(v) => put_all(out, v, u32::to_le_bytes),
        Array::I32(v) => put_all(out, v, i32::to_le_bytes),
        Array::F32(v) => put_all(out, v, f32::to_le_bytes),
        Array::Bool(v) => put_all(out, v, |x| [u8::from(x)]),
        Array::String(v) => v.iter().for_each(|string| put_str(out, string)),
        Array::U64(v) => put_all(out, v, u64::to_le_bytes),
        Array::I64(v) => put_all(out, v, i64::to_le_bytes),
        Array::F64(v) => put_all(out, v, f64::to_le_bytes),
    }
}
