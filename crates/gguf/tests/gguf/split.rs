//! Models in several files.

use signbit_gguf::split::{SplitInfo, check_parts, parse_part_name, part_name};
use signbit_gguf::{GgufError as E, GgufWriter, Header, TensorType};

/// A part with one tensor per name.
fn part(index: u16, count: u16, n_tensors: i32, names: &[&str]) -> Header {
    let mut writer = GgufWriter::new();
    writer.set("split.no", index).set("split.count", count).set("split.tensors.count", n_tensors);
    for name in names {
        writer.tensor(name, &[1], TensorType::F32, vec![0; 4]);
    }
    Header::parse_file(&writer.finish()).unwrap()
}

#[test]
fn names() {
    assert_eq!(part_name("models/m", 0, 3), "models/m-00001-of-00003.gguf");
    assert_eq!(part_name("m", 11, 12345), "m-00012-of-12345.gguf");
    assert_eq!(parse_part_name("models/m-a-00002-of-00003.gguf"), Some(("models/m-a", 1, 3)));
    for wrong in [
        "m.gguf",
        "m-00000-of-00003.gguf",
        "m-00004-of-00003.gguf",
        "m-1-of-3.gguf",
        "m-00001-of-00003.bin",
        "m-+0001-of-00003.gguf",
        "m-00001-of-00000.gguf",
    ] {
        assert_eq!(parse_part_name(wrong), None, "{wrong}");
    }
}

#[test]
fn whole_models() {
    let plain = Header::parse_file(&GgufWriter::new().finish()).unwrap();
    assert_eq!(SplitInfo::from_metadata(&plain.metadata), Ok(None));
    assert_eq!(check_parts(std::slice::from_ref(&plain)), Ok(()));
    assert_eq!(check_parts(&[part(0, 1, 1, &["a"])]), Ok(()));
    assert_eq!(check_parts(&[]), Err(E::NoParts));
    assert_eq!(check_parts(&[plain.clone(), plain]), Err(E::WrongPartCount { declared: 1, given: 2 }));
}

#[test]
fn sets_of_parts() {
    let a = part(0, 3, 3, &[]);
    let (b, c) = (part(1, 3, 3, &["x", "y"]), part(2, 3, 3, &["z"]));
    let check = |parts: &[&Header]| check_parts(&parts.iter().map(|&part| part.clone()).collect::<Vec<_>>());
    assert_eq!(
        SplitInfo::from_metadata(&b.metadata),
        Ok(Some(SplitInfo { index: 1, count: 3, n_tensors: Some(3) }))
    );
    assert_eq!(check(&[&a, &b, &c]), Ok(()));
    assert_eq!(check(&[&a, &b]), Err(E::WrongPartCount { declared: 3, given: 2 }));
    assert_eq!(check(&[&b]), Err(E::WrongPartNumber { index: 0, found: 1 }));
    assert_eq!(check(&[&a, &c, &b]), Err(E::WrongPartNumber { index: 1, found: 2 }));
    let other = part(1, 4, 3, &["x", "y"]);
    assert_eq!(check(&[&a, &other, &c]), Err(E::PartCountDiffers { index: 1, found: 4, expected: 3 }));
    let twice = part(2, 3, 3, &["x"]);
    assert_eq!(check(&[&a, &b, &twice]), Err(E::DuplicateTensor { tensor: "x".into() }));
    let more = part(2, 3, 3, &["z", "w"]);
    assert_eq!(check(&[&a, &b, &more]), Err(E::WrongTensorCount { found: 4, expected: 3 }));
    let unnumbered = Header::parse_file(&GgufWriter::new().set("split.count", 3u16).finish()).unwrap();
    assert_eq!(check(&[&a, &b, &unnumbered]), Err(E::MissingKey { key: "split.no".into() }));
    let whole = Header::parse_file(&GgufWriter::new().finish()).unwrap();
    assert_eq!(check(&[&a, &b, &whole]), Err(E::PartCountDiffers { index: 2, found: 1, expected: 3 }));
}
