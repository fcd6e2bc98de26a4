//! Writes files byte by byte, independently of the crate's own writer.

/// Bytes of a file in the making.
#[derive(Clone)]
pub struct Raw(pub Vec<u8>);

/// A tensor info: name, shape, type number, offset.
pub type Info<'a> = (&'a str, &'a [u64], u32, u64);

impl Raw {
    pub fn new(version: u32, n_tensors: u64, n_keys: u64) -> Self {
        Self(b"GGUF".to_vec()).u32(version).u64(n_tensors).u64(n_keys)
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    pub fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn str(self, text: &str) -> Self {
        self.u64(text.len() as u64).bytes(text.as_bytes())
    }

    pub fn key_u32(self, key: &str, value: u32) -> Self {
        self.str(key).u32(4).u32(value)
    }

    pub fn key_str(self, key: &str, value: &str) -> Self {
        self.str(key).u32(8).str(value)
    }

    pub fn info(self, (name, shape, type_id, offset): Info<'_>) -> Self {
        let with_dims = self.str(name).u32(shape.len() as u32);
        shape.iter().fold(with_dims, |raw, &size| raw.u64(size)).u32(type_id).u64(offset)
    }

    /// Pads to the alignment and adds `n_bytes` of data.
    pub fn data(mut self, alignment: usize, n_bytes: usize) -> Vec<u8> {
        let start = self.0.len().next_multiple_of(alignment);
        self.0.resize(start + n_bytes, 0);
        self.0
    }

    /// A file of version 3 without metadata.
    pub fn tensors(infos: &[Info<'_>]) -> Self {
        infos.iter().fold(Self::new(3, infos.len() as u64, 0), |raw, &info| raw.info(info))
    }
}
