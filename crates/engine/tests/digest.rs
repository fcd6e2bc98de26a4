//! The digest of a model, computed again from the bytes of its files alone, and what it does not depend on.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]

mod common;

use std::collections::BTreeMap;

use common::*;
use pollster::block_on;
use signbit_engine::EngineError;
use signbit_engine::engine::{Engine, TokenRequest};
use signbit_engine::loader::Loader;
use signbit_engine::model::ModelOptions;
use signbit_gguf::{GgufWriter, Header, TensorInfo};

/// Of the smallest models of both architectures, so that the encoding cannot change unnoticed.
const GOLDEN: [(&str, &str); 2] = [
    ("qwen3-q1_0", "ceea85cd1cda8c62ab6a2f34ac505819a15af2b736d98c18a4d752830034c7a3"),
    ("qwen35-mixed", "bec7e5181a0f8a8c3c89254c253fb10c333c744580d0e7c75259cf158b32a2da"),
];

fn digest_of(parts: &[&[u8]]) -> String {
    let mut engine = Engine::new(cpu());
    block_on(engine.load_parts(parts, ModelOptions::default())).unwrap().digest.clone()
}

/// Reads a file without the help of the crate that parses it.
struct Raw<'f> {
    file: &'f [u8],
    at: usize,
}

impl<'f> Raw<'f> {
    fn take(&mut self, n: usize) -> &'f [u8] {
        self.at += n;
        &self.file[self.at - n..self.at]
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().unwrap())
    }

    /// A string with its length.
    fn string(&mut self) -> &'f [u8] {
        let start = self.at;
        let n = self.u64() as usize;
        self.take(n);
        &self.file[start..self.at]
    }

    fn skip_value(&mut self, ty: u32) {
        match ty {
            8 => _ = self.string(),
            9 => {
                let element = self.u32();
                for _ in 0..self.u64() {
                    self.skip_value(element);
                }
            }
            0 | 1 | 7 => _ = self.take(1),
            2 | 3 => _ = self.take(2),
            4..=6 => _ = self.take(4),
            _ => _ = self.take(8),
        }
    }
}

/// The digest by its definition, for a file without tensors that the forward pass does not read.
fn by_definition(file: &[u8], arch: &str, block_bytes: impl Fn(u32) -> (usize, usize)) -> String {
    let mut raw = Raw { file, at: 8 };
    let (n_tensors, n_keys) = (raw.u64(), raw.u64());
    let mut keys = BTreeMap::new();
    for _ in 0..n_keys {
        let key = raw.string();
        let start = raw.at;
        let ty = raw.u32();
        raw.skip_value(ty);
        let name = std::str::from_utf8(&key[8..]).unwrap();
        if name == "general.architecture" || name.starts_with(&format!("{arch}.")) {
            keys.insert(name, [key, &file[start..raw.at]].concat());
        }
    }
    let mut infos = Vec::new();
    for _ in 0..n_tensors {
        let start = raw.at;
        let name = raw.string();
        let sizes: Vec<usize> = (0..raw.u32()).map(|_| raw.u64() as usize).collect();
        let ty = raw.u32();
        let entry = &file[start..raw.at];
        let (weights, bytes) = block_bytes(ty);
        infos.push((name, entry, raw.u64() as usize, sizes.iter().product::<usize>() / weights * bytes));
    }
    let data = raw.at.next_multiple_of(32);
    let tensors: BTreeMap<&[u8], Vec<u8>> = infos
        .into_iter()
        .map(|(name, entry, offset, n)| {
            let hash = blake3::hash(&file[data + offset..data + offset + n]);
            (&name[8..], [entry, hash.as_bytes()].concat())
        })
        .collect();
    let mut all = [&15u64.to_le_bytes()[..], b"signbit model 1"].concat();
    all.extend((keys.len() as u64).to_le_bytes());
    all.extend(keys.into_values().flatten());
    all.extend((tensors.len() as u64).to_le_bytes());
    all.extend(tensors.into_values().flatten());
    blake3::hash(&all).to_string()
}

#[test]
fn it_is_what_its_definition_says() {
    for (name, golden) in GOLDEN {
        let bytes = model_bytes(name);
        let header = Header::parse_file(&bytes).unwrap();
        let arch = header.metadata.require_str("general.architecture").unwrap();
        let blocks: BTreeMap<u32, (usize, usize)> = header
            .tensors
            .iter()
            .map(|t| (t.ty.id(), (t.ty.block_len() as usize, t.ty.block_bytes() as usize)))
            .collect();
        let digest = digest_of(&[&bytes]);
        assert_eq!(digest, by_definition(&bytes, arch, |ty| blocks[&ty]), "{name}");
        assert_eq!(digest, golden, "{name}");
    }
}

/// A file with the metadata of `bytes` and these tensors, under the names that `name` gives.
fn write(
    bytes: &[u8],
    tensors: &[TensorInfo],
    alignment: Option<u32>,
    name: impl Fn(&str) -> String,
) -> GgufWriter {
    let header = Header::parse_file(bytes).unwrap();
    let mut writer = GgufWriter::new();
    for (key, value) in header.metadata.iter() {
        writer.set(key, value.clone());
    }
    if let Some(alignment) = alignment {
        writer.alignment(alignment).version(2);
    }
    for info in tensors {
        let start = (header.data_start + info.offset) as usize;
        let data = bytes[start..start + info.n_bytes as usize].to_vec();
        writer.tensor(&name(&info.name), &info.shape, info.ty, data);
    }
    writer
}

#[test]
fn the_same_tensors_in_other_files_have_the_same_digest() {
    let bytes = model_bytes("qwen35-mixed");
    let expected = digest_of(&[&bytes]);
    let mut tensors = Header::parse_file(&bytes).unwrap().tensors;
    let n = tensors.len();
    let part = |i: u16, tensors: &[TensorInfo]| {
        let mut writer = write(&bytes, tensors, None, str::to_owned);
        writer.set("split.no", i).set("split.count", 2u16).set("split.tensors.count", n as i32);
        writer.finish()
    };
    let parts = [part(0, &tensors[n / 3..]), part(1, &tensors[..n / 3])];
    assert_eq!(digest_of(&[&parts[0], &parts[1]]), expected, "in two parts");

    tensors.reverse();
    let mut reversed = write(&bytes, &tensors, Some(256), str::to_owned);
    reversed.set("general.name", "another name").set("general.description", "x".repeat(1000));
    assert_eq!(digest_of(&[&reversed.finish()]), expected, "in another order");

    // A tensor that the forward pass does not read.
    let mut more = write(&bytes, &tensors, None, str::to_owned);
    more.tensor("not.part.of.it", &[2], signbit_gguf::TensorType::F32, vec![1; 8]);
    assert_eq!(digest_of(&[&more.finish()]), expected, "with one tensor more");
}

#[test]
fn another_model_has_another_digest() {
    let bytes = model_bytes("qwen3-q1_0");
    let expected = digest_of(&[&bytes]);
    let tensors = Header::parse_file(&bytes).unwrap().tensors;
    let up_and_gate = |name: &str| match name {
        "blk.0.ffn_up.weight" => "blk.0.ffn_gate.weight".to_owned(),
        "blk.0.ffn_gate.weight" => "blk.0.ffn_up.weight".to_owned(),
        other => other.to_owned(),
    };
    assert_ne!(digest_of(&[&write(&bytes, &tensors, None, up_and_gate).finish()]), expected, "two exchanged");
    let mut damaged = bytes.clone();
    // The last byte belongs to the weights of the last tensor.
    let header = Header::parse_file(&bytes).unwrap();
    let last = header.tensors.iter().map(|t| header.data_start + t.offset + t.n_bytes).max().unwrap();
    damaged[last as usize - 1] ^= 1;
    assert_ne!(digest_of(&[&damaged]), expected, "one bit");
    let mut epsilon = write(&bytes, &tensors, None, str::to_owned);
    epsilon.set("qwen3.attention.layer_norm_rms_epsilon", 2e-6f32);
    assert_ne!(digest_of(&[&epsilon.finish()]), expected, "a hyperparameter");
}

#[test]
fn pieces_and_a_part_that_is_pushed_again_change_nothing() {
    let bytes = model_bytes("qwen3-q1_0");
    let expected = digest_of(&[&bytes]);
    for size in [997, 65_536, 2_000_003] {
        let mut engine = Engine::new(cpu());
        let mut loader = Loader::new(ModelOptions::default());
        for until in [bytes.len() / 2, bytes.len()] {
            loader.begin_part(0, Some(bytes.len() as u64)).unwrap();
            for piece in bytes[..until].chunks(size) {
                block_on(loader.push(engine.device_mut(), piece)).unwrap();
            }
        }
        block_on(loader.end_part(engine.device_mut())).unwrap();
        let loaded = block_on(engine.install(loader)).unwrap();
        assert_eq!(loaded.digest, expected, "pieces of {size}");
    }
}

#[test]
fn a_known_digest_is_taken_over_and_nothing_is_hashed() {
    let bytes = model_bytes("qwen3-q1_0");
    let known = "0123456789abcdef".repeat(4);
    let mut engine = Engine::new(cpu());
    let mut loader = Loader::new(ModelOptions::default()).with_digest(known.clone()).unwrap();
    loader.begin_part(0, Some(bytes.len() as u64)).unwrap();
    block_on(loader.push(engine.device_mut(), &bytes)).unwrap();
    block_on(loader.end_part(engine.device_mut())).unwrap();
    let loaded = block_on(engine.install(loader)).unwrap();
    assert_eq!((&loaded.digest, loaded.load.digest_ms), (&known, 0.0));
    let header = Header::parse_file(&bytes).unwrap();
    assert_eq!(loaded.load.bytes, header.tensors.iter().map(|t| t.n_bytes).sum::<u64>());

    for wrong in ["", "0123", &known.to_uppercase(), &"g".repeat(64)] {
        let error = Loader::new(ModelOptions::default()).with_digest(wrong.to_owned()).map(|_| ());
        assert_eq!(error.unwrap_err().code(), "invalid_request", "{wrong}");
    }
}

/// A model of which the last byte is missing does not generate, and is gone.
#[test]
fn what_is_not_complete_does_not_generate() {
    let bytes = model_bytes("qwen3-q1_0");
    let header = Header::parse_file(&bytes).unwrap();
    let last = header.tensors.iter().map(|t| header.data_start + t.offset + t.n_bytes).max().unwrap();
    let mut engine = Engine::new(cpu());
    let mut loader = Loader::new(ModelOptions::default());
    loader.begin_part(0, Some(bytes.len() as u64)).unwrap();
    block_on(loader.push(engine.device_mut(), &bytes[..last as usize - 1])).unwrap();
    let start = |engine: &mut Engine| {
        engine.start(TokenRequest { prompt: vec![1], ..TokenRequest::default() }).map(|_| ()).unwrap_err()
    };
    assert_eq!(start(&mut engine).code(), "invalid_request");
    let error = block_on(engine.install(loader)).map(|_| ()).unwrap_err();
    assert!(matches!(error, EngineError::Truncated { .. }), "{error}");
    assert_eq!(start(&mut engine).code(), "invalid_request");
    assert_eq!(engine.counters().live_bytes, 0);
    // All of it, and then a part of it again.
    let mut loader = Loader::new(ModelOptions::default());
    loader.begin_part(0, Some(bytes.len() as u64)).unwrap();
    block_on(loader.push(engine.device_mut(), &bytes)).unwrap();
    block_on(loader.end_part(engine.device_mut())).unwrap();
    loader.begin_part(0, Some(bytes.len() as u64)).unwrap();
    block_on(loader.push(engine.device_mut(), &bytes[..last as usize - 1])).unwrap();
    let error = block_on(engine.install(loader)).map(|_| ()).unwrap_err();
    assert!(matches!(error, EngineError::Truncated { .. }), "{error}");
    assert_eq!(start(&mut engine).code(), "invalid_request");
}
