//! Files that are wrong on purpose. Each must give its own error, without work or memory in
//! proportion to what the file merely claims.

use signbit_gguf::{GgufError as E, Header, MAX_HEADER_BYTES, Parse, TensorType};

use crate::raw::{Info, Raw};

fn error(file: &[u8]) -> E {
    Header::parse_file(file).expect_err("the file must be refused")
}

/// The error of a file with one tensor and `data` bytes of data.
fn tensor_error(info: Info<'_>, data: usize) -> E {
    error(&Raw::tensors(&[info]).data(32, data))
}

#[test]
fn magic_and_version() {
    let version = |version| error(&Raw::new(version, 0, 0).0);
    assert_eq!(error(b"GGML\x03\0\0\0"), E::NotGguf { found: *b"GGML" });
    assert_eq!(
        Header::parse(b"PK\x03\x04", None),
        Err(E::NotGguf { found: *b"PK\x03\x04" }),
        "at the fourth byte"
    );
    for unsupported in [0, 1, 4, 77] {
        assert_eq!(version(unsupported), E::UnsupportedVersion { version: unsupported });
    }
    assert_eq!(version(3u32.swap_bytes()), E::BigEndian);
    assert_eq!(version(2u32.swap_bytes()), E::BigEndian);
    for supported in [2, 3] {
        assert_eq!(Header::parse_file(&Raw::new(supported, 0, 0).0).unwrap().version, supported);
    }
}

#[test]
fn counts_beyond_the_file() {
    let truncated = |error: E| matches!(error, E::Truncated { .. });
    // Within the limits, but more than the bytes can hold.
    assert!(truncated(error(&Raw::new(3, 2, 0).bytes(&[0; 65]).0)));
    assert!(truncated(error(&Raw::new(3, 0, 1000).bytes(&[0; 100]).0)));
    for count in [u64::MAX, 1 << 63, 1 << 60, 1 << 17] {
        let (too_many_tensors, too_many_keys) =
            (error(&Raw::new(3, count, 0).0), error(&Raw::new(3, 0, count).0));
        assert!(matches!(too_many_tensors, E::TooMany { what: "tensors", .. }), "{too_many_tensors}");
        assert!(matches!(too_many_keys, E::TooMany { what: "metadata keys", .. }), "{too_many_keys}");
    }
    for claimed in [u64::MAX, 1 << 60, 1000] {
        let file = |raw: Raw| raw.bytes(&[0; 64]).0;
        let key = Raw::new(3, 0, 1).u64(claimed);
        let string = Raw::new(3, 0, 1).str("k").u32(8).u64(claimed);
        let strings = Raw::new(3, 0, 1).str("k").u32(9).u32(8).u64(claimed);
        let doubles = Raw::new(3, 0, 1).str("k").u32(9).u32(12).u64(claimed);
        for raw in [key, string, strings, doubles] {
            assert!(truncated(error(&file(raw.clone()))), "{claimed}");
            // Without a file size the header limit is what bounds a claim.
            match Header::parse(&file(raw), None) {
                Ok(Parse::NeedMore { at_least }) => assert!(claimed == 1000 && at_least <= MAX_HEADER_BYTES),
                Err(E::HeaderTooLarge { limit, .. }) => assert!(claimed > limit),
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn metadata_faults() {
    let one = || Raw::new(3, 0, 1);
    assert_eq!(
        error(&one().str("").u32(4).u32(1).bytes(&[0; 8]).0),
        E::EmptyName { what: "a metadata key", position: 24 }
    );
    assert_eq!(
        error(&Raw::new(3, 0, 3).key_u32("a", 1).key_u32("b", 2).key_u32("a", 1).0),
        E::DuplicateKey { key: "a".into() }
    );
    for id in [13, 255, u32::MAX] {
        let unknown = E::UnknownValueType { key: "k".into(), id };
        assert_eq!(error(&one().str("k").u32(id).u64(0).0), unknown);
        assert_eq!(error(&one().str("k").u32(9).u32(id).u64(0).0), unknown);
    }
    assert_eq!(error(&one().str("k").u32(9).u32(9).u64(0).0), E::NestedArray { key: "k".into() });
    let bad_utf8 = |raw: Raw| matches!(error(&raw.0), E::InvalidUtf8 { .. });
    assert!(bad_utf8(one().u64(2).bytes(b"\xff\xfe").u32(4).u32(0)));
    assert!(bad_utf8(one().str("k").u32(8).u64(1).bytes(b"\x80")));
    assert!(bad_utf8(one().str("k").u32(9).u32(8).u64(1).u64(1).bytes(b"\xc3")));
}

#[test]
fn alignment_faults() {
    for value in [0, 3, 33, u32::MAX] {
        let file = Raw::new(3, 0, 1).key_u32("general.alignment", value).0;
        assert_eq!(error(&file), E::InvalidAlignment { value });
    }
    let file = Raw::new(3, 0, 1).key_str("general.alignment", "32").0;
    assert!(matches!(error(&file), E::WrongValueType { .. }));
    // The largest power of two only moves the data out of the file.
    let file =
        Raw::new(3, 1, 1).key_u32("general.alignment", 1 << 31).info(("t", &[1], 0, 0)).bytes(&[0; 64]).0;
    assert_eq!(
        error(&file),
        E::OutOfFile { tensor: "t".into(), end: (1 << 31) + 4, file_bytes: file.len() as u64 }
    );
}

#[test]
fn dimension_faults() {
    for n_dims in [0, 5, 9, u32::MAX] {
        let file = Raw::new(3, 1, 0).str("t").u32(n_dims).bytes(&[1; 128]).0;
        assert_eq!(error(&file), E::InvalidDimensionCount { tensor: "t".into(), n_dims });
    }
    assert_eq!(
        tensor_error(("t", &[4, 0], 0, 0), 64),
        E::InvalidDimension { tensor: "t".into(), shape: vec![4, 0] }
    );
    for shape in [&[1 << 63, 2][..], &[u64::MAX], &[2, 1 << 63]] {
        let signed = shape.iter().map(|&size| size as i64).collect();
        assert_eq!(
            tensor_error(("t", shape, 0, 0), 64),
            E::InvalidDimension { tensor: "t".into(), shape: signed }
        );
    }
    // Products that wrap to something small.
    for shape in
        [&[1 << 32, 1 << 32][..], &[(1 << 62) + 128, 4], &[128, 1 << 57, 2], &[1 << 62, 1 << 2, 1, 1]]
    {
        for type_id in [0, 8, 41] {
            let found = tensor_error(("t", shape, type_id, 0), 64);
            assert_eq!(found, E::SizeOverflow { tensor: "t".into(), shape: shape.into() }, "type {type_id}");
        }
    }
    let large = tensor_error(("t", &[(1 << 42) + 1, 1024], 0, 0), 64);
    assert!(matches!(large, E::SizeOverflow { .. } | E::OutOfFile { .. }), "{large}");
    let odd_row = tensor_error(("t", &[127], 41, 0), 64);
    assert_eq!(
        odd_row,
        E::PartialBlock { tensor: "t".into(), ty: TensorType::Q1_0, row: 127, block_len: 128 }
    );
}

#[test]
fn unsupported_types_name_tensor_number_and_alternatives() {
    for id in [4, 5, 31, 33, 36, 38, 40, 43, 142, 143, 199, u32::MAX] {
        let found = tensor_error(("blk.0.ffn_up.weight", &[256], id, 0), 1024);
        assert_eq!(found, E::UnsupportedType { tensor: "blk.0.ffn_up.weight".into(), id });
        let message = found.to_string();
        assert!(
            message.contains("blk.0.ffn_up.weight") && message.contains(&format!("type {id} ")),
            "{message}"
        );
        assert!(message.contains("Q1_0, Q2_0, Q4_0, Q8_0, Q4_K, Q6_K"), "{message}");
    }
}

#[test]
fn tensor_names() {
    let name_of = |n| "n".repeat(n);
    assert!(Header::parse_file(&Raw::tensors(&[(&name_of(63), &[1], 0, 0)]).data(32, 4)).is_ok());
    assert_eq!(
        tensor_error((&name_of(64), &[1], 0, 0), 4),
        E::NameTooLong { position: 24, bytes: 64, limit: 63 }
    );
    assert_eq!(tensor_error(("", &[1], 0, 0), 4), E::EmptyName { what: "a tensor name", position: 24 });
    let twice = Raw::tensors(&[("t", &[1], 0, 0), ("u", &[1], 0, 32), ("t", &[1], 0, 64)]).data(32, 96);
    assert_eq!(error(&twice), E::DuplicateTensor { tensor: "t".into() });
    let file = Raw::new(3, 1, 0).u64(1).bytes(b"\xff").u32(1).u64(1).u32(0).u64(0).data(32, 4);
    assert!(matches!(error(&file), E::InvalidUtf8 { .. }));
}

#[test]
fn tensor_places() {
    assert_eq!(
        tensor_error(("t", &[1], 0, 4), 64),
        E::MisalignedOffset { tensor: "t".into(), offset: 4, alignment: 32 }
    );
    // Info of 33 bytes behind 24: the data starts at 64.
    assert_eq!(
        tensor_error(("t", &[2], 0, 0), 7),
        E::OutOfFile { tensor: "t".into(), end: 72, file_bytes: 71 }
    );
    assert_eq!(
        tensor_error(("t", &[2], 0, 0), 8 - 8),
        E::OutOfFile { tensor: "t".into(), end: 72, file_bytes: 64 }
    );
    assert!(Header::parse_file(&Raw::tensors(&[("t", &[2], 0, 0)]).data(32, 8)).is_ok());
    let far = u64::MAX - 31;
    let found = tensor_error(("t", &[2], 0, far), 64);
    assert_eq!(found, E::SizeOverflow { tensor: "t".into(), shape: vec![2] });
    // Order and gaps are free, overlaps are not.
    let two = |first, second| Raw::tensors(&[("a", &[9], 0, first), ("b", &[8], 0, second)]).data(32, 256);
    assert!(Header::parse_file(&two(128, 0)).is_ok());
    assert_eq!(error(&two(0, 32)), E::Overlap { first: "a".into(), second: "b".into() });
    assert_eq!(error(&two(0, 0)), E::Overlap { first: "a".into(), second: "b".into() });
    assert!(Header::parse_file(&two(32, 0)).is_ok(), "neighbours touch");
    // One byte too many, in a type of single bytes.
    let bytes = |n| Raw::tensors(&[("a", &[n], 24, 0), ("b", &[1], 24, 32)]).data(32, 64);
    assert!(Header::parse_file(&bytes(32)).is_ok());
    assert_eq!(error(&bytes(33)), E::Overlap { first: "a".into(), second: "b".into() });
}

/// Every truncation of a good file is refused, and with the file's real size it is already known
/// to be refused from the header alone.
#[test]
fn truncation_anywhere() {
    let file = Raw::new(3, 2, 2)
        .key_str("general.architecture", "qwen3")
        .str("tokens")
        .u32(9)
        .u32(8)
        .u64(2)
        .str("a")
        .str("bc")
        .info(("a", &[128, 2], 41, 0))
        .info(("b", &[3], 0, 64))
        .data(32, 76);
    assert!(Header::parse_file(&file).is_ok());
    for cut in 0..file.len() {
        let found = error(&file[..cut]);
        assert!(matches!(found, E::Truncated { .. } | E::OutOfFile { .. }), "cut at {cut}: {found}");
    }
}

#[test]
fn a_prefix_cannot_be_longer_than_its_file() {
    let file = Raw::new(3, 0, 0).0;
    let found = Header::parse(&file, Some(23));
    assert_eq!(found, Err(E::PrefixLongerThanFile { prefix_bytes: 24, file_bytes: 23 }));
}
