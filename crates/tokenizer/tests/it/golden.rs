//! Vectors of the Hugging Face library: every text to its ids, and back.

use crate::vocabularies::{golden, json, mini, qwen3};
use signbit_tokenizer::{Detokenizer, TokenType, Tokenizer};
use unicode_normalization::UnicodeNormalization;

fn check(tokenizer: &Tokenizer, name: &str) {
    let vectors = json(&golden(&format!("tokenizer/{name}/vectors.json")));
    let vectors = vectors["vectors"].as_array().unwrap();
    assert!(vectors.len() >= 280, "{name} has only {} vectors", vectors.len());
    let mut failures = Vec::new();
    for vector in vectors {
        let text = vector["text"].as_str().unwrap();
        let ids: Vec<u32> =
            vector["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
        let encoded = tokenizer.encode(text, true);
        if encoded != ids {
            failures.push(format!("{text:?}: {encoded:?}, expected {ids:?}"));
        }
        let decoded = tokenizer.decode(&ids);
        if vector["decoded_equals_nfc_text"] == true && decoded != text.nfc().collect::<String>() {
            failures.push(format!("{ids:?} decode to {decoded:?}, expected {text:?}"));
        }
        let mut detokenizer = Detokenizer::new();
        let mut streamed: String = ids.iter().map(|&id| detokenizer.push(tokenizer, id)).collect();
        streamed.push_str(&detokenizer.finish());
        let visible: Vec<u32> =
            ids.iter().copied().filter(|&id| tokenizer.token_type(id) != Some(TokenType::Control)).collect();
        if streamed != tokenizer.decode(&visible) {
            failures.push(format!("{ids:?} stream to {streamed:?}"));
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn mini_qwen2_vectors() {
    check(mini("qwen2"), "mini-qwen2");
}

#[test]
fn mini_qwen35_vectors() {
    check(mini("qwen35"), "mini-qwen35");
}

#[test]
fn qwen3_vectors() {
    check(qwen3(), "qwen3");
}
