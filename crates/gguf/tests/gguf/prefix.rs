//! A header that arrives in pieces.

use signbit_gguf::{Header, MAX_HEADER_BYTES, Parse};

use crate::raw::Raw;

/// A file with values, arrays, tensors and both ends of a type-42 decision, and the length of its
/// header.
fn file() -> (Vec<u8>, usize) {
    let header = Raw::new(3, 3, 4)
        .key_str("general.architecture", "qwen35")
        .key_u32("general.alignment", 64)
        .str("tokens")
        .u32(9)
        .u32(8)
        .u64(3)
        .str("a")
        .str("")
        .str("cd")
        .str("sections")
        .u32(9)
        .u32(5)
        .u64(2)
        .u32(11)
        .u32(10)
        .info(("a", &[128, 32], 42, 0))
        .info(("b", &[3], 0, 1152))
        .info(("c", &[128, 2], 41, 1216));
    let header_bytes = header.0.len();
    (header.data(64, 1280), header_bytes)
}

#[test]
fn every_cut_gives_the_same_header_or_asks_for_more() {
    let (file, header_bytes) = file();
    let file_bytes = file.len() as u64;
    let Parse::Complete(whole) = Header::parse(&file, Some(file_bytes)).unwrap() else {
        panic!("incomplete")
    };
    assert_eq!(whole.tensors.len(), 3);
    assert_eq!(whole.data_start, header_bytes.next_multiple_of(64) as u64);
    for cut in 0..=file.len() {
        for known in [Some(file_bytes), None] {
            match Header::parse(&file[..cut], known).unwrap() {
                Parse::Complete(header) => {
                    assert!(cut >= header_bytes, "complete at {cut}");
                    assert_eq!(header, whole);
                }
                Parse::NeedMore { at_least } => {
                    assert!(cut < header_bytes, "needs more at {cut}");
                    assert!(at_least > cut as u64);
                    assert!(at_least <= known.unwrap_or(MAX_HEADER_BYTES));
                }
            }
        }
    }
}

/// Following `at_least` reads a header of megabytes in a few steps, whose sizes sum to less than
/// three times the last one.
#[test]
fn growing_prefixes_cost_no_more_than_a_few_reads() {
    let n_tokens = 300_000u32;
    let tokens = Raw::new(3, 1, 1).str("tokens").u32(9).u32(8).u64(n_tokens.into());
    let file = (0..n_tokens).fold(tokens, |raw, token| raw.str(&token.to_string()));
    let file = file.info(("t", &[1 << 20], 0, 0)).data(32, 4 << 20);
    for known in [Some(file.len() as u64), None] {
        let (mut cut, mut read, mut steps) = (0, 0, 0);
        let header = loop {
            match Header::parse(&file[..cut], known).unwrap() {
                Parse::Complete(header) => break header,
                Parse::NeedMore { at_least } => cut = (at_least as usize).min(file.len()),
            }
            read += cut;
            steps += 1;
        };
        assert_eq!(header.metadata.require_str_array("tokens").unwrap().get(299_999), Some("299999"));
        assert!(steps <= 9, "{steps} steps");
        assert!(read <= 3 * cut, "read {read} bytes for a prefix of {cut}");
    }
}
