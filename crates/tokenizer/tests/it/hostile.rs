//! Vocabularies that are wrong in every way the crate names.

use crate::vocabularies::mini_vocabulary;
use signbit_tokenizer::{TokenType, Tokenizer, TokenizerError, Vocabulary};
use std::time::{Duration, Instant};

fn refused(change: impl FnOnce(&mut Vocabulary)) -> TokenizerError {
    let mut vocabulary = mini_vocabulary("qwen35");
    change(&mut vocabulary);
    Tokenizer::new(vocabulary).unwrap_err()
}

fn push(vocabulary: &mut Vocabulary, text: &str, token_type: i32) {
    vocabulary.tokens.push(text.to_owned());
    vocabulary.token_types.push(token_type);
}

#[test]
fn names() {
    use TokenizerError::{MissingPreTokenizer, UnsupportedModel, UnsupportedPreTokenizer};
    assert_eq!(refused(|v| v.model = "llama".to_owned()), UnsupportedModel { model: "llama".to_owned() });
    assert_eq!(refused(|v| v.pre = None), MissingPreTokenizer);
    for name in ["foo", "", "default", "Qwen2"] {
        let expected = UnsupportedPreTokenizer { name: name.to_owned() };
        assert_eq!(refused(|v| v.pre = Some(name.to_owned())), expected);
    }
}

#[test]
fn tokens() {
    use TokenizerError as E;
    assert_eq!(refused(|v| v.token_types.truncate(600)), E::TokenTypeCount { tokens: 605, token_types: 600 });
    assert_eq!(refused(|v| v.token_types.push(1)), E::TokenTypeCount { tokens: 605, token_types: 606 });
    for token_type in [0, 6, 7, -1, i32::MIN] {
        assert_eq!(refused(|v| v.token_types[3] = token_type), E::UnsupportedTokenType { id: 3, token_type });
    }
    assert_eq!(refused(|v| v.tokens[5].clear()), E::EmptyToken { id: 5 });
    assert_eq!(refused(|v| v.tokens[600].clear()), E::EmptyToken { id: 600 });
    assert_eq!(refused(|v| v.tokens[500] = "a b".to_owned()), E::NotByteLevel { id: 500, character: ' ' });
    assert_eq!(refused(|v| push(v, "!", 1)), E::DuplicateToken { first: 0, second: 605 });
    assert_eq!(refused(|v| push(v, "<|im_end|>", 4)), E::DuplicateToken { first: 598, second: 605 });
    assert_eq!(refused(|v| v.token_types[0] = 5), E::MissingByteToken { byte: b'!' });
    assert_eq!(
        refused(|v| v.tokens[600] = "x".repeat(5000)),
        E::TokenTooLong { id: 600, actual: 5000, limit: 4096 }
    );
    assert_eq!(refused(|v| push(v, "~", 3)), E::ControlTokenTooShort { id: 605, text: "~".to_owned() });
    assert!(matches!(
        refused(|v| *v =
            Vocabulary { model: "gpt2".to_owned(), pre: Some("qwen2".to_owned()), ..Vocabulary::default() }),
        E::MissingByteToken { byte: 0 }
    ));
}

#[test]
fn merges() {
    use TokenizerError as E;
    let malformed = |rule: &str| E::MalformedMerge { rank: 0, rule: rule.to_owned() };
    for rule in ["", "a", "a ", " ", " a", "ab"] {
        assert_eq!(refused(|v| v.merges[0] = rule.to_owned()), malformed(rule), "{rule:?}");
    }
    let missing = |token: &str| E::MergeOfMissingToken { rank: 0, token: token.to_owned() };
    let cases = [
        ("q zz", "zz"),
        ("zz q", "zz"),
        ("q q", "qq"),
        ("a b c", "b c"),
        ("\u{4f60} a", "\u{4f60}"),
        // Added tokens take no part in merges.
        ("<think> a", "<think>"),
    ];
    for (rule, token) in cases {
        assert_eq!(refused(|v| v.merges[0] = rule.to_owned()), missing(token), "{rule:?}");
    }
    assert_eq!(refused(|v| v.merges[9] = v.merges[2].clone()), E::DuplicateMerge { first: 2, second: 9 });
}

#[test]
fn special_ids() {
    use TokenizerError as E;
    let out_of_range = |key| E::IdOutOfRange { key, id: 605, n_tokens: 605 };
    assert_eq!(refused(|v| v.eos_id = Some(605)), out_of_range("eos"));
    assert_eq!(refused(|v| v.bos_id = Some(605)), out_of_range("bos"));
    assert_eq!(refused(|v| v.pad_id = Some(605)), out_of_range("pad"));
    assert_eq!(refused(|v| v.eos_id = Some(64)), E::EosNotControl { id: 64, text: "a".to_owned() });
    let without_ends = |v: &mut Vocabulary| {
        v.eos_id = None;
        v.tokens[596] = "<|x|>".to_owned();
        v.tokens[598] = "<|y|>".to_owned();
    };
    assert_eq!(refused(without_ends), E::NoStopToken);
    let mut vocabulary = mini_vocabulary("qwen35");
    vocabulary.eos_id = None;
    assert_eq!(Tokenizer::new(vocabulary).unwrap().stop_ids(), [598, 596]);
}

#[test]
fn too_many() {
    let error = refused(|v| {
        v.tokens.resize((1 << 22) + 1, String::new());
        v.token_types.resize((1 << 22) + 1, 5);
    });
    assert_eq!(error, TokenizerError::TooMany { what: "tokens", actual: (1 << 22) + 1, limit: 1 << 22 });
    let error = refused(|v| v.merges.resize((1 << 22) + 1, String::new()));
    assert_eq!(error, TokenizerError::TooMany { what: "merges", actual: (1 << 22) + 1, limit: 1 << 22 });
}

#[test]
fn unused_tokens_are_never_produced_and_decode_to_nothing() {
    let mut vocabulary = mini_vocabulary("qwen2");
    push(&mut vocabulary, "[PAD605]", 5);
    push(&mut vocabulary, "", 5);
    push(&mut vocabulary, "<unk>", 2);
    let tokenizer = Tokenizer::new(vocabulary).unwrap();
    assert_eq!(tokenizer.unused_ids(), [605, 606]);
    assert_eq!(tokenizer.vocab_size(), 608);
    assert_eq!(tokenizer.token_type(607), Some(TokenType::Unknown));
    for text in ["[PAD605]", "<unk>"] {
        let ids = tokenizer.encode(text, true);
        assert!(ids.iter().all(|&id| id < 596), "{ids:?}");
        assert_eq!(tokenizer.decode(&ids), text);
    }
    assert_eq!(tokenizer.decode(&[64, 605, 606, 607, 608, u32::MAX, 65]), "ab");
    assert_eq!(tokenizer.id_of("[PAD605]"), None);
}

/// 100,000 added tokens with a common beginning, and a text that matches it at every position:
/// a scan over the candidates would take 2 * 10^9 comparisons. The limit leaves room for a
/// busy machine and an unoptimised build.
#[test]
fn many_similar_added_tokens_stay_fast() {
    let mut vocabulary = mini_vocabulary("qwen2");
    for i in 0..100_000 {
        push(&mut vocabulary, &format!("<<<<<<<<{i:05}>"), 4);
    }
    let tokenizer = Tokenizer::new(vocabulary).unwrap();
    let start = Instant::now();
    let ids = tokenizer.encode(&format!("{}00007>", "<".repeat(20_000)), true);
    assert_eq!(ids.last(), Some(&(605 + 7)));
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}
