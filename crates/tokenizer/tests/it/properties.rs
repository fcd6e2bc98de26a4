//! Round trips for arbitrary input. The runner is deterministic; it prints the smallest failing input.

use crate::vocabularies::mini;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use signbit_tokenizer::{Detokenizer, PreTokenizer, TokenType};
use unicode_normalization::UnicodeNormalization;

const PATTERNS: [&str; 2] = ["qwen2", "qwen35"];

#[test]
fn encoding_then_decoding_gives_the_normalised_text() {
    TestRunner::deterministic()
        .run(&any::<String>(), |text| {
            for pre in PATTERNS {
                let ids = mini(pre).encode(&text, false);
                prop_assert_eq!(mini(pre).decode(&ids), text.nfc().collect::<String>());
                let is_produced = |id: &u32| {
                    matches!(mini(pre).token_type(*id), Some(TokenType::Normal | TokenType::UserDefined))
                };
                prop_assert!(ids.iter().all(is_produced));
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn pieces_are_the_whole_text() {
    TestRunner::deterministic()
        .run(&any::<String>(), |text| {
            for pattern in [PreTokenizer::Qwen2, PreTokenizer::Qwen35] {
                let pieces: Vec<&str> = pattern.pieces(&text).collect();
                prop_assert!(pieces.iter().all(|piece| !piece.is_empty()));
                prop_assert_eq!(pieces.concat(), text.as_str());
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn streaming_any_ids_gives_the_text_of_all() {
    TestRunner::deterministic()
        .run(&vec(0u32..700, 0..40), |ids| {
            let tokenizer = mini("qwen2");
            let mut detokenizer = Detokenizer::new();
            let mut streamed = String::new();
            for &id in &ids {
                streamed.push_str(&detokenizer.push(tokenizer, id));
            }
            streamed.push_str(&detokenizer.finish());
            let visible: Vec<u32> =
                ids.into_iter().filter(|&id| tokenizer.token_type(id) != Some(TokenType::Control)).collect();
            prop_assert_eq!(streamed, tokenizer.decode(&visible));
            Ok(())
        })
        .unwrap();
}

#[test]
fn streaming_bytes_one_by_one_decodes_like_the_whole() {
    // Bytes that begin and continue characters, valid and not.
    let byte = prop_oneof![any::<u8>(), 0x80u8..=0xBF, 0xE0u8..=0xF5, Just(0xED), Just(0xF0)];
    TestRunner::deterministic()
        .run(&vec(byte, 0..24), |bytes| {
            let mut detokenizer = Detokenizer::new();
            let mut streamed: String = bytes.iter().map(|&byte| detokenizer.push_bytes(&[byte])).collect();
            streamed.push_str(&detokenizer.finish());
            prop_assert_eq!(streamed, String::from_utf8_lossy(&bytes));
            Ok(())
        })
        .unwrap();
}
