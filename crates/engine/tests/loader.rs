//! From bytes to a model: how they arrive must not matter, and what is missing must be noticed.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]

mod common;

use common::*;
use pollster::block_on;
use signbit_engine::device::{CpuDevice, CpuOptions, Device};
use signbit_engine::engine::Engine;
use signbit_engine::loader::Loader;
use signbit_engine::model::ModelOptions;
use signbit_gguf::{GgufWriter, Header, TensorInfo, TensorType, Value, dequantize, quantize};
use signbit_shaders::case::Rng;

const IDS: [u32; 7] = [5, 17, 301, 2, 44, 45, 99];

/// A file with the metadata of `bytes` and each tensor as `edit` gives it, in the same order.
fn rewrite(bytes: &[u8], edit: impl FnMut(&TensorInfo, &[u8]) -> Option<(TensorType, Vec<u8>)>) -> Vec<u8> {
    let header = Header::parse_file(bytes).unwrap();
    write_part(&header, bytes, true, &header.tensors, edit).finish()
}

fn write_part(
    header: &Header,
    bytes: &[u8],
    metadata: bool,
    tensors: &[TensorInfo],
    mut edit: impl FnMut(&TensorInfo, &[u8]) -> Option<(TensorType, Vec<u8>)>,
) -> GgufWriter {
    let mut writer = GgufWriter::new();
    for (key, value) in header.metadata.iter().filter(|_| metadata) {
        writer.set(key, value.clone());
    }
    for info in tensors {
        let start = (header.data_start + info.offset) as usize;
        let data = &bytes[start..start + info.n_bytes as usize];
        if let Some((ty, data)) = edit(info, data) {
            writer.tensor(&info.name, &info.shape, ty, data);
        }
    }
    writer
}

fn unchanged(info: &TensorInfo, data: &[u8]) -> Option<(TensorType, Vec<u8>)> {
    Some((info.ty, data.to_vec()))
}

fn values(info: &TensorInfo, ty: TensorType, data: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; info.n_elems() as usize];
    dequantize(ty, data, &mut values).unwrap();
    values
}

fn f32_bytes(values: &[f32]) -> Vec<u8> {
    bytemuck::cast_slice(values).to_vec()
}

fn load_error(bytes: &[&[u8]]) -> &'static str {
    let mut engine = Engine::new(cpu());
    let error = block_on(engine.load_parts(bytes, ModelOptions::default())).map(|_| ()).unwrap_err();
    assert_eq!(engine.counters().live_bytes, 0, "{error}");
    error.code()
}

#[test]
fn pieces_of_any_size_give_the_same_model() {
    let bytes = model_bytes("qwen35-mixed");
    let expected = score(&mut load(cpu(), "qwen35-mixed"), &IDS, 7);
    let mut rng = Rng::new(20);
    for most in [1_000, 100_000, 700_000] {
        let mut engine = Engine::new(cpu());
        let mut loader = Loader::new(ModelOptions::default());
        loader.begin_part(0, None).unwrap();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let (piece, tail) = rest.split_at(rest.len().min(1 + rng.next_u32() as usize % most));
            let progress = block_on(loader.push(engine.device_mut(), piece)).unwrap();
            rest = tail;
            assert_eq!(progress.bytes_seen as usize, bytes.len() - rest.len());
        }
        block_on(loader.end_part(engine.device_mut())).unwrap();
        block_on(engine.install(loader)).unwrap();
        assert!(score(&mut engine, &IDS, 7) == expected, "pieces of up to {most} bytes");
    }
}

/// A stream without a length that ends before the header is long enough to be parsed again.
#[test]
fn a_small_file_of_unknown_size_is_complete_when_it_ends() {
    let bytes = model_bytes("qwen3-q4_0");
    let header = Header::parse_file(&bytes).unwrap();
    let expected = score(&mut load(cpu(), "qwen3-q4_0"), &IDS, 7);
    let mut writer = write_part(&header, &bytes, true, &header.tensors, unchanged);
    writer.set("general.description", Value::String("x".repeat(1 << 20)));
    let bytes = writer.finish();
    let header = Header::parse_file(&bytes).unwrap();
    // After this piece the reader looks again at twice its length, which is beyond the end.
    let mut engine = Engine::new(cpu());
    let mut loader = Loader::new(ModelOptions::default());
    loader.begin_part(0, None).unwrap();
    let (head, tail) = bytes.split_at(header.data_start as usize * 9 / 10);
    assert!(head.len() * 2 > bytes.len());
    for piece in [head, tail] {
        block_on(loader.push(engine.device_mut(), piece)).unwrap();
    }
    block_on(loader.end_part(engine.device_mut())).unwrap();
    block_on(engine.install(loader)).unwrap();
    assert!(score(&mut engine, &IDS, 7) == expected);
}

#[test]
fn a_claim_of_countless_parts_costs_nothing() {
    let bytes = model_bytes("qwen3-q4_0");
    let header = Header::parse_file(&bytes).unwrap();
    let mut writer = write_part(&header, &bytes, true, &header.tensors[..1], unchanged);
    writer.set("split.no", 0u16).set("split.count", u32::MAX);
    assert_eq!(load_error(&[&writer.finish()]), "weights_invalid");
}

#[test]
fn a_split_model_equals_the_whole() {
    let bytes = model_bytes("qwen3-q4_0");
    let expected = score(&mut load(cpu(), "qwen3-q4_0"), &IDS, 7);
    let header = Header::parse_file(&bytes).unwrap();
    let n = header.tensors.len();
    let groups = [&header.tensors[..n / 3], &header.tensors[n / 3..n / 2], &header.tensors[n / 2..]];
    let part = |i: usize| {
        let mut writer = write_part(&header, &bytes, i == 0, groups[i], unchanged);
        writer.set("split.no", i as u16).set("split.count", 3u16).set("split.tensors.count", n as i32);
        writer.finish()
    };
    let parts = [part(0), part(1), part(2)];
    let slices = parts.each_ref().map(Vec::as_slice);
    let mut engine = Engine::new(cpu());
    block_on(engine.load_parts(&slices, ModelOptions::default())).unwrap();
    assert!(score(&mut engine, &IDS, 7) == expected);

    assert_eq!(load_error(&slices[..2]), "weights_invalid");
    assert_eq!(load_error(&[slices[0], slices[2], slices[1]]), "weights_invalid");
    assert_eq!(load_error(&[slices[0], slices[1], slices[1]]), "weights_invalid");
    assert_eq!(load_error(&[slices[1], slices[1], slices[2]]), "weights_invalid");
}

#[test]
fn a_truncated_file_is_an_error_wherever_it_ends() {
    let bytes = model_bytes("qwen3-q2_0");
    let header = Header::parse_file(&bytes).unwrap();
    let last = header.tensors.iter().map(|t| t.offset + t.n_bytes).max().unwrap() + header.data_start;
    let mut rng = Rng::new(21);
    let random = (0..40).map(|_| rng.next_u32() as usize % last as usize);
    for cut in
        [0, 1, 4, 23, 24, header.data_start as usize - 1, header.data_start as usize, last as usize - 1]
            .into_iter()
            .chain(random)
    {
        assert_eq!(load_error(&[&bytes[..cut]]), "weights_invalid", "cut at {cut}");
        // A stream whose length is not known ends early.
        let mut engine = Engine::new(cpu());
        let mut loader = Loader::new(ModelOptions::default());
        loader.begin_part(0, None).unwrap();
        let pushed = block_on(loader.push(engine.device_mut(), &bytes[..cut]));
        let error = pushed.err().or_else(|| block_on(loader.end_part(engine.device_mut())).err()).unwrap();
        assert_eq!(error.code(), "weights_invalid", "cut at {cut}");
    }
}

/// The same numbers, packed and as F32, must give the same logits: the F32 path is held to an
/// independent implementation by the golden tests, and decoding to known vectors by the gguf crate.
#[test]
fn every_type_equals_its_values_in_f32() {
    let _gpu = one_at_a_time();
    // Both layouts of type 42 cannot stand in one file: the fixture's own become F32.
    let bytes = rewrite(&model_bytes("qwen35-mixed"), |info, data| match info.ty {
        TensorType::Q2_0 { .. } => Some((TensorType::F32, f32_bytes(&values(info, info.ty, data)))),
        ty => Some((ty, data.to_vec())),
    });
    let q2 = |group| TensorType::Q2_0 { group };
    let types = [
        TensorType::Q1_0,
        q2(64),
        q2(128),
        TensorType::Q4_0,
        TensorType::Q8_0,
        TensorType::Q4_K,
        TensorType::Q6_K,
        TensorType::BF16,
    ];
    for ty in types {
        // Embedding, head and the first layer's matrices, as ordinary quantisers mix types.
        let changes = |info: &TensorInfo| {
            let name = info.name.as_str();
            info.shape.len() == 2
                && info.shape[0].is_multiple_of(256)
                && (name == "token_embd.weight" || name == "output.weight" || name.starts_with("blk.0."))
        };
        let mut packed = std::collections::HashMap::new();
        let twin = rewrite(&bytes, |info, data| {
            if !changes(info) {
                return Some((info.ty, data.to_vec()));
            }
            let blocks = pack(ty, &values(info, info.ty, data));
            packed.insert(info.name.clone(), blocks.clone());
            Some((ty, blocks))
        });
        let plain = rewrite(&bytes, |info, data| match packed.get(&info.name) {
            Some(blocks) => Some((TensorType::F32, f32_bytes(&values(info, ty, blocks)))),
            None => Some((info.ty, data.to_vec())),
        });
        let expected = score(&mut load_bytes(gpu(), &plain), &IDS, 7);
        let mut engine = load_bytes(gpu(), &twin);
        let difference = max_difference(&score(&mut engine, &IDS, 7), &expected);
        // Both add the same products; only the order and where a scale is applied differ.
        let scale = expected.iter().fold(1.0f32, |m, v| m.max(v.abs()));
        assert!(difference <= 2e-5 * scale, "{}: differs by {difference} of {scale}", ty.name());
        let name = ty.name();
        assert!(engine.loaded().unwrap().info.tensor_types.contains_key(name), "{name}");
    }
}

/// Packs values; for the K types, which are only read, the nearest codes under fixed scales.
fn pack(ty: TensorType, values: &[f32]) -> Vec<u8> {
    let half = |v: f32| half::f16::from_f32(v).to_le_bytes();
    let blocks = values.chunks_exact(256);
    match ty {
        TensorType::Q4_K => blocks
            .flat_map(|block| {
                let largest = block.iter().fold(1e-6f32, |m, v| m.max(v.abs()));
                // Scale 32 and minimum 32 in every sub-block: w = 32 d q - 32 dmin.
                let (d, dmin) = (largest * 2.0 / 15.0 / 32.0, largest / 32.0);
                let code = |v: f32| ((v + largest) / (largest * 2.0 / 15.0)).round().clamp(0.0, 15.0) as u8;
                let mut out = [half(d), half(dmin)].concat();
                out.extend([32, 32, 32, 32, 32, 32, 32, 32, 0, 0, 0, 0]);
                // The upper two bits of scales 4 to 7 sit in the first bytes' top bits; 32 is 0b10_0000.
                for i in 0..4 {
                    out[4 + i] |= 0b1000_0000;
                    out[8 + i] |= 0b1000_0000;
                }
                for pair in block.chunks_exact(64) {
                    out.extend((0..32).map(|l| code(pair[l]) | (code(pair[l + 32]) << 4)));
                }
                out
            })
            .collect(),
        TensorType::Q6_K => blocks
            .flat_map(|block| {
                let largest = block.iter().fold(1e-6f32, |m, v| m.max(v.abs()));
                let d = largest / 31.0 / 16.0;
                let code = |v: f32| ((v / (d * 16.0)).round().clamp(-32.0, 31.0) as i32 + 32) as u8;
                let (mut low, mut high) = (vec![0; 128], vec![0; 64]);
                for (j, &v) in block.iter().enumerate() {
                    let (n, g, l) = (j >> 7, (j & 127) >> 5, j & 31);
                    let q = code(v);
                    low[64 * n + l + if g & 1 == 1 { 32 } else { 0 }] |=
                        (q & 15) << if g >= 2 { 4 } else { 0 };
                    high[32 * n + l] |= (q >> 4) << (2 * g);
                }
                [low, high, vec![16; 16], half(d).to_vec()].concat()
            })
            .collect(),
        _ => quantize(ty, values).unwrap(),
    }
}

/// Two incompatible layouts share type 42; the offsets tell them apart.
#[test]
fn both_layouts_of_type_42_give_the_same_logits() {
    let bytes = model_bytes("qwen3-q2_0");
    // By the references: in the fast kernels the activations that meet one scale share one too.
    let expected = score(&mut load(reference(), "qwen3-q2_0"), &IDS, 7);
    let wide = TensorType::Q2_0 { group: 128 };
    // A block of 128 needs one scale for both of its halves; the second half takes the first's.
    let equalised = |info: &TensorInfo, data: &[u8]| -> (Vec<u8>, Vec<u8>) {
        let (mut narrow, mut packed) = (Vec::new(), Vec::new());
        for pair in data.chunks_exact(36) {
            narrow.extend([&pair[..18], &pair[..2], &pair[20..]].concat());
            packed.extend([&pair[..18], &pair[20..]].concat());
        }
        assert_eq!(values(info, TensorType::Q2_0 { group: 64 }, &narrow), values(info, wide, &packed));
        (narrow, packed)
    };
    let is_q2 = |info: &TensorInfo| matches!(info.ty, TensorType::Q2_0 { .. });
    let narrow = rewrite(&bytes, |info, data| {
        Some((info.ty, if is_q2(info) { equalised(info, data).0 } else { data.to_vec() }))
    });
    let packed = rewrite(&bytes, |info, data| {
        Some(if is_q2(info) { (wide, equalised(info, data).1) } else { (info.ty, data.to_vec()) })
    });
    let a = score(&mut load_bytes(reference(), &narrow), &IDS, 7);
    let b = score(&mut load_bytes(reference(), &packed), &IDS, 7);
    assert!(a == b);
    assert!(a != expected, "the fixture's halves have scales of their own");
}

#[test]
fn scales_that_are_no_numbers_are_refused_with_the_tensor_named() {
    let bytes = model_bytes("qwen35-q1_0");
    let broken = rewrite(&bytes, |info, data| {
        let mut data = data.to_vec();
        if info.name == "blk.2.ffn_up.weight" {
            data[18 * 40..18 * 40 + 2].copy_from_slice(&half::f16::NAN.to_le_bytes());
        }
        Some((info.ty, data))
    });
    let mut engine = Engine::new(cpu());
    let error = block_on(engine.load_parts(&[&broken], ModelOptions::default())).map(|_| ()).unwrap_err();
    assert!(error.to_string().contains("blk.2.ffn_up.weight"), "{error}");
    assert_eq!(error.code(), "weights_invalid");
    let broken = rewrite(&bytes, |info, data| {
        let mut data = data.to_vec();
        if info.name == "blk.1.ssm_a" {
            data[..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
        }
        Some((info.ty, data))
    });
    assert_eq!(load_error(&[&broken]), "weights_invalid");
}

/// Refusals come from the header alone: no weight has been pushed.
#[test]
fn unsupported_models_are_refused_before_their_weights() {
    let bytes = model_bytes("qwen35-q2_0");
    let refusal = |file: &[u8]| {
        let data_start = match Header::parse_file(file) {
            Ok(header) => header.data_start as usize,
            Err(_) => file.len(),
        };
        let mut engine = Engine::new(cpu());
        let mut loader = Loader::new(ModelOptions::default());
        loader.begin_part(0, Some(file.len() as u64)).unwrap();
        let error = block_on(loader.push(engine.device_mut(), &file[..data_start])).unwrap_err();
        (error.code(), error.to_string())
    };
    let header = Header::parse_file(&bytes).unwrap();
    let mut rotated = write_part(&header, &bytes, true, &header.tensors, unchanged);
    rotated.set("prism.hadamard.version", 1u32);
    let (code, text) = refusal(&rotated.finish());
    assert_eq!(code, "model_unsupported");
    assert!(text.contains("prism.hadamard.version"), "{text}");

    let mut renamed = GgufWriter::new();
    for (key, value) in header.metadata.iter() {
        renamed.set(key, value.clone());
    }
    for info in &header.tensors {
        let start = (header.data_start + info.offset) as usize;
        let name = if info.name == "token_embd.weight" { "token_embedding.weight" } else { &info.name };
        renamed.tensor(name, &info.shape, info.ty, bytes[start..start + info.n_bytes as usize].to_vec());
    }
    let (code, text) = refusal(&renamed.finish());
    assert_eq!(code, "model_unsupported");
    assert!(text.contains("token_embd.weight"), "{text}");

    for id in [40, 142, 143, 199] {
        let mut unknown = write_part(&header, &bytes, true, &header.tensors[1..], unchanged);
        unknown.tensor_with_id(&header.tensors[0].name, &header.tensors[0].shape, id, vec![0; 1 << 16]);
        let (code, text) = refusal(&unknown.finish());
        assert_eq!(code, "weights_invalid", "{text}");
        assert!(text.contains(&header.tensors[0].name) && text.contains(&id.to_string()), "{text}");
        assert!(text.contains("Q1_0"), "the supported types are listed: {text}");
    }
    let mut foreign = write_part(&header, &bytes, true, &header.tensors, unchanged);
    foreign.set("tokenizer.ggml.pre", Value::String("foo".into()));
    let (code, text) = refusal(&foreign.finish());
    assert_eq!(code, "tokenizer_invalid");
    assert!(text.contains("foo"), "{text}");
}

/// A load that has failed takes nothing more, wherever it failed, and a refusal leaves nothing allocated.
#[test]
fn a_failed_load_stays_failed() {
    let bytes = model_bytes("qwen35-q1_0");
    let data_start = Header::parse_file(&bytes).unwrap().data_start as usize;
    let within = |bytes: u64| {
        let options = CpuOptions { fail_allocation_above_bytes: Some(bytes), ..CpuOptions::default() };
        Device::Cpu(Box::new(CpuDevice::new(options)))
    };
    let mut invalid = bytes.clone();
    invalid[0] = b'X';
    for (mut device, bytes, code) in
        [(within(1000), &bytes, "out_of_memory"), (cpu(), &invalid, "weights_invalid")]
    {
        let mut loader = Loader::new(ModelOptions::default());
        loader.begin_part(0, Some(bytes.len() as u64)).unwrap();
        let (head, tail) = bytes.split_at(data_start + 10);
        assert_eq!(block_on(loader.push(&mut device, head)).unwrap_err().code(), code);
        assert_eq!(block_on(loader.push(&mut device, tail)).unwrap_err().code(), "invalid_request");
        assert_eq!(block_on(loader.end_part(&mut device)).unwrap_err().code(), "invalid_request");
        assert_eq!(block_on(loader.finish(&mut device)).unwrap_err().code(), "weights_invalid");
        assert_eq!(device.counters().live_bytes, 0, "{code}");
    }
}

/// YaRN is part of the model: it changes logits at every position, and can be switched off.
#[test]
fn yarn_is_applied_when_the_file_declares_it() {
    let bytes = model_bytes("qwen3-q8_0");
    let header = Header::parse_file(&bytes).unwrap();
    let mut writer = write_part(&header, &bytes, true, &header.tensors, unchanged);
    writer.set("qwen3.rope.scaling.type", Value::String("yarn".into()));
    writer.set("qwen3.rope.scaling.factor", 4.0f32);
    writer.set("qwen3.rope.scaling.original_context_length", 1024u32);
    let yarn = writer.finish();
    let plain = score(&mut load_bytes(cpu(), &bytes), &IDS, 7);
    let scaled = score(&mut load_bytes(cpu(), &yarn), &IDS, 7);
    assert!(max_difference(&plain, &scaled) > 0.1);
    let mut engine = Engine::new(cpu());
    let options = ModelOptions { ignore_yarn: true, ..ModelOptions::default() };
    block_on(engine.load_parts(&[&yarn], options)).unwrap();
    assert!(score(&mut engine, &IDS, 7) == plain);
}
