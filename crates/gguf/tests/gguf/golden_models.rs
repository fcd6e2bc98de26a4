//! The miniature models, and the published sizes of real ones.

use signbit_gguf::{Header, Parse, TensorType, Value, dequantize};

use crate::raw::Raw;
use crate::repository;

/// All model files of the repository with their names.
fn models() -> Vec<(String, Vec<u8>)> {
    let folder = repository("tests/golden/models");
    let mut models: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("model.gguf").exists())
        .map(|entry| {
            let file = std::fs::read(entry.path().join("model.gguf")).unwrap();
            (entry.file_name().into_string().unwrap(), file)
        })
        .collect();
    models.push(("tiny-geo".into(), std::fs::read(repository("tests/golden/tiny-geo/model.gguf")).unwrap()));
    models.sort_by(|a, b| a.0.cmp(&b.0));
    models
}

#[test]
fn every_model_parses_and_decodes() {
    let models = models();
    assert!(models.len() >= 14, "found only {} models", models.len());
    for (name, file) in &models {
        let header = Header::parse_file(file).unwrap();
        let architecture = header.metadata.require_str("general.architecture").unwrap();
        let expected = if name.starts_with("qwen3-") { "qwen3" } else { "qwen35" };
        assert_eq!(architecture, expected, "{name}");
        // The writer of these files leaves no gaps: the tensors fill the data section exactly.
        let end = header.tensors.iter().map(|tensor| tensor.offset + tensor.n_bytes).max().unwrap();
        assert_eq!((header.data_start + end).next_multiple_of(header.alignment), file.len() as u64, "{name}");
        for tensor in &header.tensors {
            let start = (header.data_start + tensor.offset) as usize;
            let bytes = &file[start..start + tensor.n_bytes as usize];
            let mut values = vec![0.0; tensor.n_elems() as usize];
            dequantize(tensor.ty, bytes, &mut values).unwrap();
            // A wrong place or layout shows as scales that are not finite or are out of scale.
            assert!(values.iter().all(|value| value.abs() < 100.0), "{name} {}", tensor.name);
        }
    }
}

/// The types stated in the notes of the file with one type per kind of tensor.
#[test]
fn mixed_types() {
    let models = models();
    let (_, file) = models.iter().find(|(name, _)| name == "qwen35-mixed").unwrap();
    let header = Header::parse_file(file).unwrap();
    for (name, ty) in [
        ("token_embd.weight", TensorType::Q8_0),
        ("output.weight", TensorType::Q4_0),
        ("output_norm.weight", TensorType::F32),
        ("blk.0.attn_qkv.weight", TensorType::Q1_0),
        ("blk.0.ffn_down.weight", TensorType::Q2_0 { group: 64 }),
        ("blk.0.ssm_a", TensorType::F32),
        ("blk.1.attn_v.weight", TensorType::F16),
    ] {
        assert_eq!(header.tensor(name).unwrap().ty, ty, "{name}");
    }
    assert_eq!(header.tensor("token_embd.weight").unwrap().shape, [256, 605]);
    let recurrent = header.metadata.get_bool_array("qwen35.attention.recurrent_layers").unwrap();
    assert_eq!(recurrent, Some(&[true, false, true, false][..]));
    assert_eq!(header.metadata.require_i32_array("qwen35.rope.dimension_sections").unwrap(), [11, 11, 10, 0]);
    assert_eq!(header.metadata.get("qwen35.block_count"), Some(&Value::U32(4)));
    assert_eq!(header.metadata.require_f32("qwen35.rope.freq_base"), Ok(1e7));
}

/// Cut points all over a real header, which is dominated by the vocabulary.
#[test]
fn prefixes_of_a_model() {
    let models = models();
    for name in ["qwen35-q2_0", "qwen35-tied-q1_0"] {
        let (_, file) = models.iter().find(|(found, _)| found == name).unwrap();
        let file_bytes = file.len() as u64;
        let whole = Header::parse_file(file).unwrap();
        let cuts = (0..whole.data_start as usize + 200).step_by(61).chain([file.len()]);
        let mut n_complete = 0;
        for cut in cuts {
            match Header::parse(&file[..cut], Some(file_bytes)).unwrap() {
                Parse::Complete(header) => {
                    assert_eq!(header, whole);
                    n_complete += 1;
                }
                Parse::NeedMore { at_least } => assert!(at_least > cut as u64 && at_least <= file_bytes),
            }
        }
        assert!((2..10).contains(&n_complete), "{n_complete}");
    }
}

/// The published Bonsai-27B-Q1_0.gguf has 3,803,452,480 bytes, of which 10,992,704 are the header;
/// its two largest matrices and one of each layer matrix have known sizes.
#[test]
fn sizes_of_a_large_model() {
    let matrices: [(&[u64], u64); 7] = [
        (&[5120, 248_320], 178_790_400),
        (&[5120, 12_288], 8_847_360),
        (&[5120, 1024], 737_280),
        (&[6144, 5120], 4_423_680),
        (&[5120, 10_240], 7_372_800),
        (&[5120, 48], 34_560),
        (&[17_408, 5120], 12_533_760),
    ];
    for (shape, n_bytes) in matrices {
        let file = Raw::tensors(&[("t", shape, 41, 0)]).0;
        let Parse::Complete(header) = Header::parse(&file, Some(3_803_452_480)).unwrap() else {
            panic!("the header is complete")
        };
        assert_eq!(header.tensors[0].n_bytes, n_bytes);
    }
}
