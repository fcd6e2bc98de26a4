//! Writes small GGUF files into a folder, as a seed corpus for the fuzz target `header`.
//!
//! Each seed starts with the two bytes that the target reads as the place of the cut.

use std::path::Path;

use signbit_gguf::{GgufWriter, TensorType, Value};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: fuzz_seeds FOLDER")?;
    let folder = Path::new(&folder);
    std::fs::create_dir_all(folder)?;
    for (name, writer) in seeds() {
        let file = writer.finish();
        let cut = u16::try_from(file.len() / 2)?;
        std::fs::write(folder.join(name), [&cut.to_le_bytes(), file.as_slice()].concat())?;
    }
    Ok(())
}

fn seeds() -> Vec<(&'static str, GgufWriter)> {
    let empty = GgufWriter::new();

    let mut values = GgufWriter::new();
    values.version(2).set("u8", 1u8).set("i8", Value::I8(-1)).set("u16", 2u16).set("i16", Value::I16(-2));
    values.set("u32", 3u32).set("i32", -3i32).set("u64", 4u64).set("i64", -4i64);
    values.set("f32", 0.5f32).set("f64", 0.25f64).set("bool", true).set("string", "text");

    let mut arrays = GgufWriter::new();
    arrays.set("tokens", vec!["a", "b", "", "cd"]).set("u32s", vec![1u32, 2, 3]).set("i32s", vec![-1, 1]);
    arrays.set("f32s", vec![0.5f32]).set("bools", vec![true, false]);

    let mut tensors = GgufWriter::new();
    tensors.alignment(64).set("general.architecture", "qwen3");
    tensors.tensor("f32", &[3], TensorType::F32, vec![0; 12]);
    tensors.tensor("q1_0", &[128, 2], TensorType::Q1_0, vec![0; 36]);
    tensors.tensor("q4_k", &[256, 1, 1, 1], TensorType::Q4_K, vec![0; 144]);

    let mut groups_64 = GgufWriter::new();
    groups_64.tensor("first", &[128, 32], TensorType::Q2_0 { group: 64 }, vec![0; 1152]);
    groups_64.tensor("last", &[1], TensorType::F32, vec![0; 4]);

    let mut groups_128 = GgufWriter::new();
    groups_128.tensor("first", &[1], TensorType::F32, vec![0; 4]);
    groups_128.tensor("last", &[128, 32], TensorType::Q2_0 { group: 128 }, vec![0; 1088]);

    let mut part = GgufWriter::new();
    part.set("split.no", 0u16).set("split.count", 2u16).set("split.tensors.count", 2i32);
    part.tensor("t", &[4], TensorType::F16, vec![0; 8]);

    vec![
        ("empty", empty),
        ("values", values),
        ("arrays", arrays),
        ("tensors", tensors),
        ("groups_64", groups_64),
        ("groups_128", groups_128),
        ("part", part),
    ]
}
