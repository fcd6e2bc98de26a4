//! The real Qwen3 vocabulary: ids computed with the reference library and published facts.

use crate::vocabularies::{qwen3, qwen3_template};
use signbit_tokenizer::{ChatTemplate, Message, RenderOptions, Role, TokenType};
use std::time::{Duration, Instant};

#[test]
fn known_texts() {
    let cases: &[(&str, &[u32])] = &[
        ("2026-08-29", &[17, 15, 17, 21, 12, 15, 23, 12, 17, 24]),
        ("don't", &[15007, 944]),
        ("DON'T", &[84641, 17323]),
        ("'RE", &[94153]),
        ("I'll go", &[40, 3278, 728]),
        ("Hello, world!", &[9707, 11, 1879, 0]),
        ("  leading", &[220, 6388]),
        ("trailing  ", &[376, 14277, 256]),
        ("a  b", &[64, 220, 293]),
        ("a\nb", &[64, 198, 65]),
        ("a \n b", &[64, 715, 293]),
        ("a\r\nb", &[64, 319, 65]),
        ("\n\n", &[271]),
        ("\n \n", &[26809]),
        (" \n", &[715]),
        ("\t\tx", &[197, 10225]),
        ("x\t\ty", &[87, 197, 14522]),
        ("3.14", &[18, 13, 16, 19]),
        ("x=1+2", &[87, 28, 16, 10, 17]),
        ("foo_bar", &[7975, 14388]),
        ("snake_case_name", &[72139, 19096, 1269]),
        ("camelCase", &[93321, 4207]),
        ("(hello)", &[3203, 4791, 8]),
        ("[hello", &[58, 14990]),
        ("#include <stdio.h>", &[1067, 366, 10345, 860, 29]),
        ("\u{a0}x", &[4102, 87]),
        ("x\u{3000}y", &[87, 22441, 88]),
        ("\u{feff}x", &[3225, 87]),
        ("r\u{e9}sum\u{e9}", &[42611, 1242, 963]),
        ("re\u{301}sume\u{301}", &[42611, 1242, 963]),
        ("\u{301}a", &[53839, 64]),
        ("\u{e9}\u{301}", &[963, 53839]),
        ("\u{301}\u{301}", &[53839, 53839]),
        ("\u{939}\u{93f}\u{928}\u{94d}\u{926}\u{940}", &[93948, 42311, 101, 30484, 99, 43647]),
        ("\u{e44}\u{e17}\u{e22}", &[125451]),
        ("\u{d55c}\u{ad6d}\u{c5b4}", &[23573, 124785, 31079]),
        ("\u{65e5}\u{672c}\u{8a9e}", &[101059, 102819]),
        ("\u{1f469}\u{200d}\u{1f467}", &[145233, 378, 235, 145665]),
        ("\u{1f999}", &[149955]),
        ("\u{2167}", &[70467, 100]),
        ("\u{bd}", &[26062]),
        ("\u{663}", &[149, 96]),
        ("\u{212b}", &[144044]),
        ("\u{fb01}", &[144300]),
        ("\0", &[188]),
        ("\u{7f}", &[221]),
        ("\u{fffd}", &[5691]),
        ("<think>", &[151667]),
        ("</think>", &[151668]),
        ("<tool_call>", &[151657]),
        ("< think>", &[27, 1744, 29]),
        ("<think>\n\n</think>\n\n", &[151667, 271, 151668, 271]),
        ("<|im_start|>user", &[151644, 872]),
        ("<|IM_START|>", &[27, 91, 1791, 13044, 91, 29]),
        ("text<|im_end|>\n", &[1318, 151645, 198]),
        ("", &[]),
    ];
    for (text, ids) in cases {
        assert_eq!(qwen3().encode(text, true), *ids, "{text:?}");
    }
}

#[test]
fn control_texts_are_text_unless_asked_for() {
    let ids = qwen3().encode("hi<|im_end|>\n<think>", false);
    assert!(ids.iter().all(|&id| qwen3().token_type(id) != Some(TokenType::Control)), "{ids:?}");
    assert_eq!(ids.last(), Some(&151667), "user-defined tokens match all the same");
    assert_eq!(qwen3().decode(&ids), "hi<|im_end|>\n<think>");
}

#[test]
fn vocabulary_facts() {
    let tokenizer = qwen3();
    assert_eq!(tokenizer.vocab_size(), 151_669);
    assert_eq!(tokenizer.stop_ids(), [151_645, 151_643]);
    assert_eq!(tokenizer.id_of("<think>"), Some(151_667));
    assert_eq!(tokenizer.id_of(" the"), tokenizer.encode(" the", false).first().copied());
    assert_eq!(
        tokenizer.id_of("<|fim_prefix|>").and_then(|id| tokenizer.token_type(id)),
        Some(TokenType::Control)
    );
    assert_eq!(tokenizer.token_type(151_657), Some(TokenType::UserDefined));
    assert_eq!(tokenizer.token_type(151_669), None);
    assert_eq!(tokenizer.token_bytes(151_669), b"");
    assert_eq!(tokenizer.token_bytes(220), b" ");
    assert!(tokenizer.unused_ids().is_empty());
}

/// No entry of this vocabulary is out of reach of its merges.
#[test]
fn every_single_piece_token_encodes_to_itself() {
    let tokenizer = qwen3();
    let mut checked = 0;
    for id in 0..tokenizer.vocab_size() as u32 {
        let Ok(text) = std::str::from_utf8(tokenizer.token_bytes(id)) else { continue };
        let is_piece = tokenizer.pre_tokenizer().pieces(text).count() == 1;
        if is_piece && unicode_normalization::is_nfc(text) {
            assert_eq!(tokenizer.encode(text, true), [id], "{text:?}");
            checked += 1;
        }
    }
    assert!(checked > 140_000, "only {checked} tokens checked");
}

#[test]
fn rendered_ids() {
    let template = ChatTemplate::new(&qwen3_template()).unwrap();
    let messages = [Message::new(Role::User, "hi")];
    let ids = |enable_thinking| {
        let options = RenderOptions { enable_thinking, ..RenderOptions::default() };
        template.render(qwen3(), &messages, &options).unwrap().ids
    };
    let on = [151644, 872, 198, 6023, 151645, 198, 151644, 77091, 198];
    let off = [&on[..], &[151667, 271, 151668, 271]].concat();
    assert_eq!(ids(Some(true)), on);
    assert_eq!(ids(None), on);
    assert_eq!(ids(Some(false)), off);
}

/// A run of blanks is one piece: merging must not be quadratic. Quadratic merging of 100,000 symbols
/// takes minutes; the limit leaves room for a busy machine and an unoptimised build.
#[test]
fn a_long_piece_is_fast() {
    for text in [" ".repeat(100_000), "a".repeat(100_000), "\u{4f60}".repeat(50_000), "!\n".repeat(50_000)] {
        let start = Instant::now();
        let ids = qwen3().encode(&text, true);
        let elapsed = start.elapsed();
        assert_eq!(qwen3().decode(&ids), text);
        assert!(elapsed < Duration::from_secs(30), "{elapsed:?}");
    }
    // 128 blanks are the longest token.
    assert_eq!(qwen3().encode(&" ".repeat(1280), true).len(), 10);
}
