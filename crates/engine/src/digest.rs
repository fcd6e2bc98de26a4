//! The digest of a model: its hyperparameters and the stored values of its tensors, with their types.
//!
//! Equal digests mean equal models; models that compute the same may differ in it, since a value stored as
//! another type, or a key that nothing reads, counts. Whoever keeps a digest beside a file's own hash keeps
//! one of this encoding, whose version is the number in the first string below.
//!
//! It is the same for every file that holds the same model, however the file orders, aligns or splits
//! its tensors and whatever tokenizer, template or description lies beside them. It is another one
//! where a tensor is renamed, reshaped, stored as another type or changed by a bit, or where a
//! hyperparameter differs.
//!
//! The digest is BLAKE3 of these bytes, in hexadecimal. The encodings are those of GGUF version 3:
//! numbers are little-endian, a string is its length in bytes as u64 and then its UTF-8 bytes.
//!
//! | what | bytes |
//! |---|---|
//! | the string `signbit model 1` | string |
//! | number of hyperparameters | u64 |
//! | each hyperparameter, in the order of the keys' bytes | key: string; the number of the value's type: u32; the value |
//! | number of tensors | u64 |
//! | each tensor, in the order of the names' bytes | name: string; number of dimensions: u32; each dimension: u64, the contiguous one first; the number of the type: u32; BLAKE3 of its bytes in the file: 32 bytes |
//!
//! The hyperparameters are `general.architecture` and every key that begins with its value and a dot; of a
//! model in several files, those of the first. The tensors are those that the forward pass reads.

use std::collections::BTreeMap;

use signbit_gguf::{Metadata, TensorInfo, Value};

use crate::error::EngineError;

const TAG: &str = "signbit model 1";

/// Computes a model's digest while its tensors arrive one after the other, in any order.
#[derive(Debug)]
pub struct ModelDigest {
    /// Everything in front of the tensors.
    prefix: Vec<u8>,
    /// The entry of each tensor, by name.
    tensors: BTreeMap<String, Vec<u8>>,
    /// Of the tensor that is arriving.
    hasher: blake3::Hasher,
}

impl ModelDigest {
    /// A digest over the hyperparameters in `metadata` and no tensor yet.
    ///
    /// # Errors
    /// The metadata does not name its architecture.
    pub fn new(metadata: &Metadata) -> Result<Self, EngineError> {
        let arch = format!("{}.", metadata.require_str("general.architecture")?);
        let is_hyperparameter = |key: &str| key == "general.architecture" || key.starts_with(&arch);
        let values: BTreeMap<&str, &Value> =
            metadata.iter().filter(|(key, _)| is_hyperparameter(key)).collect();
        let mut prefix = Vec::new();
        put_str(&mut prefix, TAG);
        prefix.extend((values.len() as u64).to_le_bytes());
        for (key, value) in values {
            put_str(&mut prefix, key);
            value.encode(&mut prefix);
        }
        Ok(Self { prefix, tensors: BTreeMap::new(), hasher: blake3::Hasher::new() })
    }

    /// Takes the next bytes of the tensor that is arriving.
    pub fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    /// Forgets the bytes of a tensor that did not arrive whole.
    pub fn restart_tensor(&mut self) {
        self.hasher.reset();
    }

    /// Ends the tensor whose bytes were given; one that came before under this name counts no more.
    pub fn end_tensor(&mut self, info: &TensorInfo) {
        let mut entry = Vec::new();
        put_str(&mut entry, &info.name);
        entry.extend((info.shape.len() as u32).to_le_bytes());
        entry.extend(info.shape.iter().flat_map(|size| size.to_le_bytes()));
        entry.extend(info.ty.id().to_le_bytes());
        entry.extend(self.hasher.finalize().as_bytes());
        self.hasher.reset();
        self.tensors.insert(info.name.clone(), entry);
    }

    /// The digest as 64 lower-case hexadecimal digits.
    pub fn finish(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.prefix).update(&(self.tensors.len() as u64).to_le_bytes());
        for entry in self.tensors.values() {
            hasher.update(entry);
        }
        hasher.finalize().to_hex().to_string()
    }
}

/// Whether `text` has the form of a digest.
pub fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

fn put_str(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use signbit_gguf::{GgufWriter, Header, TensorType};

    use super::*;

    const NAMES: [&str; 2] = ["blk.0.a", "blk.0.b"];

    fn tensor(name: &str, shape: &[u64], ty: TensorType) -> TensorInfo {
        TensorInfo { name: name.to_owned(), shape: shape.to_vec(), ty, offset: 0, n_bytes: 8 }
    }

    fn metadata(edit: impl Fn(&mut GgufWriter)) -> Metadata {
        let mut writer = GgufWriter::new();
        writer.set("general.architecture", "qwen3").set("qwen3.block_count", 2u32);
        edit(&mut writer);
        Header::parse_file(&writer.finish()).unwrap().metadata
    }

    fn digest(metadata: &Metadata, tensors: &[(TensorInfo, [u8; 8])]) -> String {
        let mut digest = ModelDigest::new(metadata).unwrap();
        for (info, bytes) in tensors {
            digest.update(&bytes[..3]);
            digest.update(&bytes[3..]);
            digest.end_tensor(info);
        }
        digest.finish()
    }

    #[test]
    fn whatever_the_forward_pass_depends_on_changes_it() {
        let plain = metadata(|_| {});
        let [first, second] = NAMES.map(|name| tensor(name, &[2, 1], TensorType::F32));
        let tensors = [(first.clone(), [1; 8]), (second.clone(), [2; 8])];
        let expected = digest(&plain, &tensors);
        assert!(is_digest(&expected), "{expected}");

        let with = |info: TensorInfo, bytes| digest(&plain, &[(info, bytes), tensors[1].clone()]);
        let changed = [
            with(tensor("blk.0.c", &[2, 1], TensorType::F32), [1; 8]),
            with(tensor("blk.0.a", &[1, 2], TensorType::F32), [1; 8]),
            with(tensor("blk.0.a", &[2], TensorType::F32), [1; 8]),
            with(tensor("blk.0.a", &[2, 1], TensorType::I32), [1; 8]),
            with(first.clone(), [1, 1, 1, 1, 1, 1, 1, 0]),
            digest(&plain, &[(first.clone(), [2; 8]), (second.clone(), [1; 8])]),
            digest(&plain, &tensors[..1]),
            digest(&metadata(|w| _ = w.set("qwen3.block_count", 3u32)), &tensors),
            digest(&metadata(|w| _ = w.set("qwen3.block_count", 2u64)), &tensors),
            digest(&metadata(|w| _ = w.set("qwen3.rope.freq_base", 1e6f32)), &tensors),
        ];
        let all: std::collections::BTreeSet<&String> = changed.iter().chain([&expected]).collect();
        assert_eq!(all.len(), changed.len() + 1, "{changed:#?} {expected}");
    }

    #[test]
    fn nothing_else_changes_it() {
        let plain = metadata(|_| {});
        let [first, second] = NAMES.map(|name| tensor(name, &[2, 1], TensorType::F32));
        let tensors = [(first, [1; 8]), (second, [2; 8])];
        let expected = digest(&plain, &tensors);
        let [a, b] = tensors.clone();
        assert_eq!(digest(&plain, &[b, a]), expected, "order in the file");
        let other = metadata(|w| {
            w.set("general.name", "x").set("tokenizer.ggml.model", "gpt2").alignment(64);
            w.set("qwen35.block_count", 9u32).unset("qwen3.block_count").set("qwen3.block_count", 2u32);
        });
        assert_eq!(digest(&other, &tensors), expected, "other metadata");

        let mut twice = ModelDigest::new(&plain).unwrap();
        twice.update(&[9; 5]);
        twice.restart_tensor();
        for (info, bytes) in tensors.iter().chain(&tensors) {
            twice.update(bytes);
            twice.end_tensor(info);
        }
        assert_eq!(twice.finish(), expected, "a part that was pushed again");
    }
}
