//! Type 42: two layouts under one number.

use signbit_gguf::{GgufError as E, GgufWriter, Header, Parse, Q2Fit, TensorType, dequantize, quantize};

use crate::raw::{Info, Raw};

const G64: TensorType = TensorType::Q2_0 { group: 64 };
const G128: TensorType = TensorType::Q2_0 { group: 128 };

/// A file that holds the same ternary values (and +2) in the layout `ty`, in the middle and at
/// the end.
fn twin(ty: TensorType) -> (Vec<u8>, Vec<f32>) {
    let values: Vec<f32> = (0..4096).map(|j| [-0.5, 0.0, 0.5, 1.0][(j * 7 + j / 5) % 4]).collect();
    let packed: Vec<u8> = values
        .chunks(ty.block_len() as usize)
        .flat_map(|chunk| {
            // Codes 0 to 3 are -d, 0, d, 2d.
            let codes: Vec<u8> = chunk.iter().map(|value| (value / 0.5 + 1.0) as u8).collect();
            let bytes = codes.chunks(4).map(|c| c[0] | (c[1] << 2) | (c[2] << 4) | (c[3] << 6));
            [0x00, 0x38].into_iter().chain(bytes).collect::<Vec<u8>>()
        })
        .collect();
    let mut writer = GgufWriter::new();
    writer.tensor("first", &[256, 16], ty, packed.clone());
    writer.tensor("norm", &[8], TensorType::F32, vec![0; 32]);
    writer.tensor("last", &[128, 32], ty, packed);
    (writer.finish(), values)
}

#[test]
fn twins_are_told_apart_and_hold_the_same_values() {
    for ty in [G64, G128] {
        let (file, values) = twin(ty);
        let header = Header::parse_file(&file).unwrap();
        for name in ["first", "last"] {
            let tensor = header.tensor(name).unwrap();
            assert_eq!(tensor.ty, ty);
            let start = (header.data_start + tensor.offset) as usize;
            let mut decoded = vec![0.0; 4096];
            dequantize(tensor.ty, &file[start..start + tensor.n_bytes as usize], &mut decoded).unwrap();
            assert_eq!(decoded, values);
        }
    }
}

/// A public report of a ternary 27B file: the second tensor at 337,715,200 = 248320 * 40 * 34,
/// where groups of 64 would put it at 357,580,800.
#[test]
fn published_offsets() {
    let header = |second| {
        let infos: [Info<'_>; 2] =
            [("output.weight", &[5120, 248_320], 42, 0), ("output_norm.weight", &[5120], 0, second)];
        match Header::parse(&Raw::tensors(&infos).0, None)? {
            Parse::Complete(header) => Ok(header.tensors[0].ty),
            Parse::NeedMore { .. } => panic!("the header is complete"),
        }
    };
    assert_eq!(header(337_715_200), Ok(G128));
    assert_eq!(header(357_580_800), Ok(G64));
    let neither = E::UndecidedQ2Layout { tensor: "output.weight".into(), fit: Q2Fit::Neither };
    assert_eq!(header(347_648_000), Err(neither));
}

#[test]
fn neither_layout_fits() {
    // Between 72 and 68 bytes of blocks there is nothing at 128.
    let file = Raw::tensors(&[("a", &[128, 2], 42, 0), ("b", &[8], 0, 128)]).data(32, 160);
    let error = Header::parse_file(&file).unwrap_err();
    assert_eq!(error, E::UndecidedQ2Layout { tensor: "a".into(), fit: Q2Fit::Neither });
    let message = error.to_string();
    assert!(
        message.contains("64 values in 18 bytes") && message.contains("128 values in 34 bytes"),
        "{message}"
    );
    // Rows that are whole groups of neither.
    let file = Raw::tensors(&[("a", &[96, 2], 42, 0)]).data(32, 64);
    assert!(matches!(Header::parse_file(&file), Err(E::UndecidedQ2Layout { fit: Q2Fit::Neither, .. })));
}

/// Rows of 64 values can only be groups of 64.
#[test]
fn row_length_decides() {
    let file = Raw::tensors(&[("a", &[64, 2], 42, 0)]).data(32, 36);
    assert_eq!(Header::parse_file(&file).unwrap().tensors[0].ty, G64);
}

#[test]
fn padding_can_hide_the_difference() {
    // One block pair: 36 or 34 bytes, both padded to 64.
    let padded = |bytes| Raw::tensors(&[("a", &[128], 42, 0), ("b", &[8], 0, 64)]).data(32, bytes);
    let both = |fit| E::UndecidedQ2Layout { tensor: "a".into(), fit };
    assert_eq!(Header::parse_file(&padded(96)), Err(both(Q2Fit::Both)));
    assert_eq!(Header::parse(&padded(0), None), Err(both(Q2Fit::BothWithoutFileSize)));
}

#[test]
fn the_file_size_decides_about_a_last_tensor() {
    // 1024 values: 288 bytes in groups of 64, 272 in groups of 128, padded to 288.
    let single = |data: usize| Raw::tensors(&[("a", &[128, 8], 42, 0)]).data(32, data);
    let ty = |file: &[u8]| Header::parse_file(file).map(|header| header.tensors[0].ty);
    assert_eq!(ty(&single(272)), Ok(G128), "unpadded");
    assert!(matches!(ty(&single(288)), Err(E::UndecidedQ2Layout { fit: Q2Fit::Both, .. })));
    // 4096 values: 1152 or 1088 bytes, both multiples of 32.
    let single = |data: usize| Raw::tensors(&[("a", &[128, 32], 42, 0)]).data(32, data);
    assert_eq!(ty(&single(1152)), Ok(G64));
    assert_eq!(ty(&single(1088)), Ok(G128));
    for wrong in [1056, 1120, 1184, 4096] {
        assert!(
            matches!(ty(&single(wrong)), Err(E::UndecidedQ2Layout { fit: Q2Fit::Neither, .. })),
            "{wrong}"
        );
    }
    let unknown = Header::parse(&single(1152), None);
    assert!(matches!(unknown, Err(E::UndecidedQ2Layout { fit: Q2Fit::BothWithoutFileSize, .. })));
}

#[test]
fn a_cut_file_is_told_from_its_header() {
    let (file, _) = twin(G128);
    let error = Header::parse(&file[..400], Some(file.len() as u64 - 64)).unwrap_err();
    assert!(matches!(error, E::OutOfFile { .. }), "{error}");
}

#[test]
fn scale_last_layout_is_refused_by_its_marks() {
    for key in ["general.quantization_version", "oxibonsai.quant_format"] {
        let file = |type_id| {
            let raw = Raw::new(3, 2, 1).key_str(key, "TQ2_0_G128");
            raw.info(("a", &[128, 32], type_id, 0)).info(("b", &[8], 0, 1088)).data(32, 1120)
        };
        let error = Header::parse_file(&file(42)).unwrap_err();
        let expected = E::ForeignQ2Layout { tensor: "a".into(), key, mark: "TQ2_0_G128".into() };
        assert_eq!(error, expected);
        // The mark says nothing about other types.
        assert!(Header::parse_file(&file(41)).is_ok());
    }
    let official = Raw::new(3, 1, 1).key_u32("general.quantization_version", 2);
    let file = official.info(("a", &[128, 32], 42, 0)).data(32, 1088);
    assert_eq!(Header::parse_file(&file).unwrap().tensors[0].ty, G128);
}

/// A block of 128 is two blocks of 64 with one scale.
#[test]
fn groups_of_128_split_into_groups_of_64() {
    let block: Vec<u8> = [0x00, 0x3c].into_iter().chain((0..32u8).map(|k| k.wrapping_mul(37))).collect();
    let halves = [&block[..18], &block[..2], &block[18..]].concat();
    let (mut whole, mut split) = ([0.0; 128], [0.0; 128]);
    dequantize(G128, &block, &mut whole).unwrap();
    dequantize(G64, &halves, &mut split).unwrap();
    assert_eq!(whole, split);
    assert_eq!(quantize(G128, &whole.map(|value| value.min(1.0))).unwrap().len(), 34);
}
