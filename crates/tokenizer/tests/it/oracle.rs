//! Random text against the Hugging Face library.

use crate::vocabularies::{golden, json, qwen3_path, vocabulary};
use serde_json::Value;
use signbit_tokenizer::Tokenizer;
use std::path::Path;

const QWEN35_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Ingredients of the random texts. All code points are older than Unicode 13, on which the
/// libraries' tables agree.
const FRAGMENTS: &[&str] = &[
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\n\n",
    "\r\n",
    "\r",
    "\u{a0}",
    "\u{3000}",
    "\u{2028}",
    "\u{85}",
    "\u{b}",
    "a",
    "the",
    "Hello",
    "WORLD",
    "camelCase",
    "x",
    "e",
    "o",
    "s",
    "'s",
    "'S",
    "'t",
    "'re",
    "'VE",
    "'ll",
    "'d",
    "'m",
    "'",
    "''",
    "'\u{17f}",
    "\u{17f}",
    "\u{212a}",
    "\u{130}",
    "0",
    "7",
    "42",
    "2026",
    "\u{bd}",
    "\u{2167}",
    "\u{663}",
    "\u{967}",
    "!",
    "?",
    "...",
    ".",
    ",",
    "_",
    "-",
    "--",
    "/",
    "//",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "<",
    ">",
    "|",
    "<|",
    "|>",
    "=",
    "==",
    "$",
    "\u{20ac}",
    "\u{e9}",
    "e\u{301}",
    "\u{301}",
    "\u{308}\u{301}",
    "\u{327}",
    "\u{338}",
    "\u{212b}",
    "\u{fb01}",
    "\u{f900}",
    "\u{1e9b}\u{323}",
    "\u{4f60}",
    "\u{597d}",
    "\u{65e5}\u{672c}",
    "\u{3042}",
    "\u{30ab}\u{3099}",
    "\u{d55c}",
    "\u{1112}\u{1161}\u{11ab}",
    "\u{43f}\u{440}",
    "\u{3b1}\u{345}",
    "\u{939}\u{93f}",
    "\u{94d}",
    "\u{e01}\u{e33}",
    "\u{5d0}\u{5b0}",
    "\u{627}\u{653}",
    "\u{1f600}",
    "\u{1f469}\u{200d}\u{1f467}",
    "\u{1f1e9}\u{1f1ea}",
    "\u{fe0f}",
    "\u{200d}",
    "\u{200b}",
    "\u{feff}",
    "\u{fffd}",
    "\0",
    "\u{1f}",
    "\u{7f}",
    "\u{ad}",
    "\u{e000}",
    "\u{ffff}",
    "\u{10ffff}",
    "<think>",
    "</think>",
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<tool_call>",
    "<|im_end",
    "<thi",
    "[PAD1]",
];

/// Pseudorandom numbers (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

fn compare(mut tokenizer_json: Value, pre: &str, n_texts: usize) {
    const SEED: u64 = 20_260_829;
    println!("seed {SEED}");
    if pre == "qwen35" {
        let pattern = &mut tokenizer_json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"];
        assert!(pattern.is_string());
        *pattern = Value::from(QWEN35_PATTERN);
    }
    let library = tokenizers::Tokenizer::from_bytes(tokenizer_json.to_string()).unwrap();
    let tokenizer = Tokenizer::new(vocabulary(&tokenizer_json, pre)).unwrap();
    let mut random = Random(SEED);
    for _ in 0..n_texts {
        let n_fragments = 1 + random.below(24);
        let text: String = (0..n_fragments).map(|_| FRAGMENTS[random.below(FRAGMENTS.len())]).collect();
        let expected = library.encode_fast(text.as_str(), false).unwrap();
        assert_eq!(tokenizer.encode(&text, true), expected.get_ids(), "{pre} {text:?} (seed {SEED})");
    }
}

fn mini(pre: &str) -> Value {
    json(Path::new(&golden(&format!("tokenizer/mini-{pre}/tokenizer.json"))))
}

#[test]
fn mini_vocabularies_agree_with_the_library() {
    compare(mini("qwen2"), "qwen2", 6000);
    compare(mini("qwen35"), "qwen35", 6000);
}

#[test]
fn qwen3_vocabulary_agrees_with_the_library() {
    let tokenizer_json = json(&qwen3_path());
    compare(tokenizer_json.clone(), "qwen2", 6000);
    compare(tokenizer_json, "qwen35", 6000);
}
