//! Values of every type, read back through the getters.

use signbit_gguf::{Array, GgufError as E, GgufWriter, Header, Value};

use crate::raw::Raw;

/// One key of each scalar type, byte by byte.
fn scalars() -> Vec<u8> {
    let scalar = |raw: Raw, key: &str, id: u32, bytes: &[u8]| raw.str(key).u32(id).bytes(bytes);
    let mut raw = Raw::new(3, 0, 13);
    raw = scalar(raw, "u8", 0, &[200]);
    raw = scalar(raw, "i8", 1, &[0xff]);
    raw = scalar(raw, "u16", 2, &[0x34, 0x12]);
    raw = scalar(raw, "i16", 3, &[0xfe, 0xff]);
    raw = scalar(raw, "u32", 4, &[0x78, 0x56, 0x34, 0x12]);
    raw = scalar(raw, "i32", 5, &[0xfd, 0xff, 0xff, 0xff]);
    raw = scalar(raw, "f32", 6, &[0, 0, 0x80, 0x3f]);
    raw = scalar(raw, "bool", 7, &[2]);
    raw = raw.key_str("string", "grüß");
    raw = scalar(raw, "u64", 10, &[0, 0, 0, 0, 1, 0, 0, 0]);
    raw = scalar(raw, "i64", 11, &[0xfc, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    raw = scalar(raw, "f64", 12, &[0, 0, 0, 0, 0, 0, 0xe0, 0x3f]);
    raw.key_u32("last", 7).0
}

#[test]
fn every_scalar_type() {
    let metadata = Header::parse_file(&scalars()).unwrap().metadata;
    let expected = [
        ("u8", Value::U8(200)),
        ("i8", Value::I8(-1)),
        ("u16", Value::U16(0x1234)),
        ("i16", Value::I16(-2)),
        ("u32", Value::U32(0x1234_5678)),
        ("i32", Value::I32(-3)),
        ("f32", Value::F32(1.0)),
        ("bool", Value::Bool(true)),
        ("string", Value::String("grüß".into())),
        ("u64", Value::U64(1 << 32)),
        ("i64", Value::I64(-4)),
        ("f64", Value::F64(0.5)),
        ("last", Value::U32(7)),
    ];
    let found: Vec<(&str, Value)> = metadata.iter().map(|(key, value)| (key, value.clone())).collect();
    assert_eq!(found, expected, "in file order");
    for (key, value) in expected {
        assert_eq!(metadata.get(key), Some(&value));
    }
    assert_eq!(metadata.get("absent"), None);
}

#[test]
fn integers_of_any_width() {
    let metadata = Header::parse_file(&scalars()).unwrap().metadata;
    for (key, value) in [("u8", 200), ("u16", 0x1234), ("u32", 0x1234_5678), ("last", 7)] {
        assert_eq!(metadata.get_u32(key), Ok(Some(value)));
    }
    for (key, value) in [("i8", -1), ("i16", -2), ("i32", -3), ("i64", -4), ("u8", 200)] {
        assert_eq!(metadata.get_i32(key), Ok(Some(value)));
    }
    let out_of_range = |key: &str, value, expected| E::ValueOutOfRange { key: key.into(), value, expected };
    assert_eq!(metadata.get_u32("i8"), Err(out_of_range("i8", -1, "u32")));
    assert_eq!(metadata.get_u32("u64"), Err(out_of_range("u64", 1 << 32, "u32")));
    assert_eq!(metadata.get_i32("u64"), Err(out_of_range("u64", 1 << 32, "i32")));
}

#[test]
fn wrong_types_and_missing_keys() {
    let metadata = Header::parse_file(&scalars()).unwrap().metadata;
    let wrong = |key: &str, expected, found| E::WrongValueType { key: key.into(), expected, found };
    assert_eq!(metadata.get_u32("f32"), Err(wrong("f32", "an integer", "f32")));
    assert_eq!(metadata.get_f32("u8"), Err(wrong("u8", "f32", "u8")));
    assert_eq!(metadata.get_bool("u8"), Err(wrong("u8", "bool", "u8")));
    assert_eq!(metadata.get_str("bool"), Err(wrong("bool", "string", "bool")));
    assert_eq!(metadata.get_str_array("string"), Err(wrong("string", "an array of strings", "string")));
    assert_eq!(metadata.get_f32("f64"), Ok(Some(0.5)));
    let missing = E::MissingKey { key: "absent".into() };
    assert_eq!(metadata.get_u32("absent"), Ok(None));
    assert_eq!(metadata.require_u32("absent"), Err(missing.clone()));
    assert_eq!(metadata.require_f32("absent"), Err(missing.clone()));
    assert_eq!(metadata.require_str("absent"), Err(missing.clone()));
    assert_eq!(metadata.require_bool("absent"), Err(missing.clone()));
    assert_eq!(metadata.require_str_array("absent"), Err(missing.clone()));
    assert_eq!(metadata.require_i32_array("absent"), Err(missing));
}

#[test]
fn every_array_type() {
    let array = |raw: Raw, key: &str, id: u32, count: u64, bytes: &[u8]| {
        raw.str(key).u32(9).u32(id).u64(count).bytes(bytes)
    };
    let mut raw = Raw::new(2, 0, 13);
    raw = array(raw, "u8", 0, 2, &[1, 255]);
    raw = array(raw, "i8", 1, 2, &[1, 255]);
    raw = array(raw, "u16", 2, 1, &[1, 2]);
    raw = array(raw, "i16", 3, 1, &[0xff, 0xff]);
    raw = array(raw, "u32", 4, 2, &[1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    raw = array(raw, "i32", 5, 2, &[1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    raw = array(raw, "f32", 6, 1, &[0, 0, 0, 0x40]);
    raw = array(raw, "bool", 7, 3, &[0, 1, 9]);
    raw = array(raw, "u64", 10, 1, &[5, 0, 0, 0, 0, 0, 0, 0]);
    raw = array(raw, "i64", 11, 1, &[0xff; 8]);
    raw = array(raw, "f64", 12, 1, &[0, 0, 0, 0, 0, 0, 0, 0x40]);
    raw = array(raw, "empty", 8, 0, &[]);
    raw = array(raw, "string", 8, 3, &[]).str("ab").str("").str("é");
    let metadata = Header::parse_file(&raw.0).unwrap().metadata;
    let expected = [
        ("u8", Array::U8(vec![1, 255])),
        ("i8", Array::I8(vec![1, -1])),
        ("u16", Array::U16(vec![0x0201])),
        ("i16", Array::I16(vec![-1])),
        ("u32", Array::U32(vec![1, u32::MAX])),
        ("i32", Array::I32(vec![1, -1])),
        ("f32", Array::F32(vec![2.0])),
        ("bool", Array::Bool(vec![false, true, true])),
        ("u64", Array::U64(vec![5])),
        ("i64", Array::I64(vec![-1])),
        ("f64", Array::F64(vec![2.0])),
    ];
    for (key, array) in expected {
        assert_eq!(metadata.get(key), Some(&Value::Array(array)));
    }
    let strings = metadata.require_str_array("string").unwrap();
    assert_eq!(strings.iter().collect::<Vec<_>>(), ["ab", "", "é"]);
    assert_eq!((strings.len(), strings.get(2), strings.get(3)), (3, Some("é"), None));
    assert!(metadata.require_str_array("empty").unwrap().is_empty());
    assert_eq!(metadata.get_i32_array("u8"), Ok(Some(vec![1, 255])));
    assert_eq!(metadata.get_i32_array("i64"), Ok(Some(vec![-1])));
    assert!(matches!(metadata.get_i32_array("u32"), Err(E::ValueOutOfRange { .. })));
    assert!(matches!(metadata.get_u32_array("i32"), Err(E::ValueOutOfRange { .. })));
    assert!(matches!(metadata.get_i32_array("bool"), Err(E::WrongValueType { .. })));
    assert_eq!(metadata.get_bool_array("bool"), Ok(Some(&[false, true, true][..])));
    assert_eq!(metadata.get_f32_array("f32"), Ok(Some(&[2.0][..])));
}

/// The writer's bytes are those of the format's description.
#[test]
fn writer_writes_the_format() {
    let mut writer = GgufWriter::new();
    writer.version(2).set("a", 1u32).set("b", "x").alignment(64).set("a", 9u32);
    writer.tensor("t", &[2, 1], signbit_gguf::TensorType::F32, vec![1, 2, 3, 4, 5, 6, 7, 8]);
    writer.tensor("u", &[1], signbit_gguf::TensorType::F16, vec![9, 10]);
    let header = Raw::new(2, 2, 3)
        .key_u32("a", 9)
        .key_str("b", "x")
        .key_u32("general.alignment", 64)
        .info(("t", &[2, 1], 0, 0))
        .info(("u", &[1], 1, 64));
    let mut expected = header.data(64, 128);
    let start = expected.len() - 128;
    expected[start..start + 8].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
    expected[start + 64..start + 66].copy_from_slice(&[9, 10]);
    assert_eq!(writer.finish(), expected);
}
