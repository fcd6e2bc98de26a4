//! Block formats against vectors of the reference implementation.

use signbit_gguf::{GgufError as E, TensorType, dequantize, quantize};

use crate::repository;

const Q2_64: TensorType = TensorType::Q2_0 { group: 64 };
const Q2_128: TensorType = TensorType::Q2_0 { group: 128 };

/// Type, first four values, two at the middle, last two, sum, sum weighted by position from one.
type Golden = (TensorType, [f64; 4], [f64; 2], [f64; 2], f64, f64);

/// Decoded by the reference implementation from blocks whose byte `k` is `37 k + 11 mod 256`,
/// except that the scale is 0.5 and the minimum scale 0.25. The sums are exact in f64.
const DEQUANTIZED: [Golden; 6] = [
    (TensorType::Q1_0, [0.5, -0.5, 0.5, -0.5], [0.5, -0.5], [-0.5, 0.5], 0.0, -266.0),
    (Q2_64, [0.0, 0.0, 0.0, 0.0], [0.0, 1.0], [-0.5, 0.5], 15.0, 406.5),
    (TensorType::Q4_0, [-1.5, 1.0, 3.5, -2.0], [-1.5, -0.5], [-1.5, 0.0], -10.5, -259.0),
    (TensorType::Q8_0, [42.5, 61.0, -48.5, -30.0], [-45.5, -27.0], [-42.5, -24.0], -88.0, -4040.0),
    (TensorType::Q4_K, [157.75, -12.75, 64.75, 142.25], [211.5, -3.0], [18.25, 24.25], 27220.0, 3_786_420.0),
    (TensorType::Q6_K, [-715.5, 848.0, 291.5, -265.0], [-175.5, 208.0], [-20.0, -30.0], 2306.0, 392_210.0),
];

#[test]
fn golden_dequantize() {
    for (ty, first, middle, last, sum, weighted) in DEQUANTIZED {
        let mut block: Vec<u8> = (0..ty.block_bytes()).map(|k| (37 * k + 11) as u8).collect();
        let scale = if ty == TensorType::Q6_K { 208 } else { 0 };
        block[scale..scale + 2].copy_from_slice(&[0x00, 0x38]);
        if ty == TensorType::Q4_K {
            block[2..4].copy_from_slice(&[0x00, 0x34]);
        }
        let mut values = vec![0.0; ty.block_len() as usize];
        dequantize(ty, &block, &mut values).unwrap();
        let values: Vec<f64> = values.into_iter().map(f64::from).collect();
        let n = values.len();
        assert_eq!(values[..4], first, "{ty}");
        assert_eq!(values[n / 2..n / 2 + 2], middle, "{ty}");
        assert_eq!(values[n - 2..], last, "{ty}");
        assert_eq!(values.iter().sum::<f64>(), sum, "{ty}");
        let found: f64 = values.iter().zip(1..).map(|(value, j)| value * f64::from(j)).sum();
        assert_eq!(found, weighted, "{ty}");
    }
}

fn hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

#[test]
fn golden_quantize() {
    let values: Vec<f32> = (0..128).map(|j| (((29 * j + 7) % 64) as f32 - 32.0) / 16.0).collect();
    assert_eq!(values[..3], [-1.5625, 0.25, -1.9375]);
    for (ty, expected) in [
        (TensorType::Q1_0, "003c5295aa55ad6a55aa5295aa55ad6a55aa"),
        (Q2_64, "004044661191594466129199446426119949"),
        (TensorType::Q4_0, "003462d940c83fa61d95fc73ea62d940b73f"),
        (TensorType::Q8_0, "08249d1085f86be053c83cb124990c81f467dc4fc438ad2095087bf063d84bc034a9"),
    ] {
        assert_eq!(quantize(ty, &values[..ty.block_len() as usize]).unwrap(), hex(expected), "{ty}");
    }
    // t = j mod 3, scale 1, in groups of 128: the published vector of the model maker's layout.
    let ternary: Vec<f32> = (0..128).map(|j| (j % 3) as f32 - 1.0).collect();
    let packed = quantize(Q2_128, &ternary).unwrap();
    assert_eq!(packed, hex("003c2449922449922449922449922449922449922449922449922449922449922449"));
    let mut decoded = [0.0; 128];
    dequantize(Q2_128, &packed, &mut decoded).unwrap();
    assert_eq!(decoded[..], ternary);
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|chunk| f32::from_le_bytes(chunk.try_into().unwrap())).collect()
}

/// Rows packed and decoded by the reference implementation, bit for bit.
#[test]
fn golden_rows() {
    for (name, ty) in [
        ("F32", TensorType::F32),
        ("F16", TensorType::F16),
        ("Q4_0", TensorType::Q4_0),
        ("Q8_0", TensorType::Q8_0),
        ("Q1_0", TensorType::Q1_0),
        ("Q2_0", Q2_64),
    ] {
        let read = |what: &str| {
            std::fs::read(repository(&format!("tests/golden/quant-blocks/{name}.{what}.bin"))).unwrap()
        };
        let (packed, expected) = (read("blocks"), f32s(&read("values")));
        let mut decoded = vec![0.0; 13 * 384];
        dequantize(ty, &packed, &mut decoded).unwrap();
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&decoded), bits(&expected), "{name}");
        // Values that a format holds exactly survive being packed again. The scale of a Q2_0, Q4_0
        // or Q8_0 block is rounded, or not reached by any of its codes.
        match ty {
            TensorType::F32 | TensorType::F16 => {
                assert_eq!(quantize(ty, &expected).unwrap(), packed, "{name}")
            }
            TensorType::Q1_0 => {
                let mut again = vec![0.0; expected.len()];
                dequantize(ty, &quantize(ty, &expected).unwrap(), &mut again).unwrap();
                assert_eq!(again, expected);
            }
            _ => {}
        }
    }
}

#[test]
fn subnormal_and_negative_scales() {
    let smallest = 2f32.powi(-24);
    for (ty, block, expected) in [
        (TensorType::Q1_0, [&[1, 0][..], &[0x01; 16]].concat(), [smallest, -smallest]),
        (TensorType::Q1_0, [&[1, 0x80][..], &[0x01; 16]].concat(), [-smallest, smallest]),
        (Q2_64, [&[1, 0][..], &[0xe4; 16]].concat(), [-smallest, 0.0]),
        (TensorType::Q8_0, [&[1, 0][..], &[2; 32]].concat(), [2.0 * smallest; 2]),
        (TensorType::F16, vec![1, 0, 1, 0x80], [smallest, -smallest]),
        (TensorType::F16, vec![0xff, 0x03, 0x00, 0x04], [1023.0 * smallest, 1024.0 * smallest]),
    ] {
        let n_blocks = block.len() / ty.block_bytes() as usize;
        let mut values = vec![0.0; n_blocks * ty.block_len() as usize];
        dequantize(ty, &block, &mut values).unwrap();
        assert_eq!(values[..2], expected, "{ty}");
    }
}

#[test]
fn code_three_is_plus_two() {
    for (ty, n_codes) in [(Q2_64, 16), (Q2_128, 32)] {
        let block = [vec![0x00, 0x3c], vec![0xe4; n_codes]].concat();
        let mut values = vec![0.0; ty.block_len() as usize];
        dequantize(ty, &block, &mut values).unwrap();
        assert!(values.chunks(4).all(|chunk| chunk == [-1.0, 0.0, 1.0, 2.0]), "{ty}");
    }
}

#[test]
fn sixteen_bit_floats_round_to_nearest_even() {
    let encode = |ty, bits: u32| {
        let bytes = quantize(ty, &[f32::from_bits(bits)]).unwrap();
        u16::from_le_bytes(bytes.try_into().unwrap())
    };
    for (bits, expected) in [
        (0x3f80_8000, 0x3f80), // halfway, down to even
        (0x3f81_8000, 0x3f82), // halfway, up to even
        (0x3f80_8001, 0x3f81),
        (0x7f80_0000, 0x7f80), // infinity
        (0x7f80_0001, 0x7fc0), // a signalling NaN becomes quiet
        (0xffc1_2345, 0xffc1),
        (0x7f7f_ffff, 0x7f80), // overflow
        (0x0000_0001, 0x0000),
        (0x8000_0000, 0x8000),
    ] {
        assert_eq!(encode(TensorType::BF16, bits), expected, "{bits:08x}");
        let mut decoded = [0.0];
        dequantize(TensorType::BF16, &expected.to_le_bytes(), &mut decoded).unwrap();
        assert_eq!(decoded[0].to_bits(), u32::from(expected) << 16);
    }
    for (value, expected) in
        [(1.0 + 2f32.powi(-11), 0x3c00), (1.0 + 3.0 * 2f32.powi(-11), 0x3c02), (65520.0, 0x7c00)]
    {
        assert_eq!(encode(TensorType::F16, value.to_bits()), expected, "{value}");
    }
}

#[test]
fn quantize_edge_cases() {
    // Zeros of both signs count as positive, and a block of zeros has scale zero.
    let zeros: Vec<f32> = (0..128).map(|j| if j % 2 == 0 { 0.0 } else { -0.0 }).collect();
    assert_eq!(quantize(TensorType::Q1_0, &zeros).unwrap(), [vec![0, 0], vec![0xff; 16]].concat());
    assert_eq!(quantize(Q2_128, &zeros).unwrap(), [vec![0, 0], vec![0x55; 32]].concat());
    assert_eq!(quantize(TensorType::Q4_0, &zeros[..32]).unwrap(), [vec![0, 0x80], vec![0x88; 16]].concat());
    assert_eq!(quantize(TensorType::Q8_0, &zeros[..32]).unwrap(), vec![0; 34]);
    // The first of two equal magnitudes sets the sign of the scale.
    let mut ties = [0.0; 32];
    (ties[3], ties[9]) = (-8.0, 8.0);
    assert_eq!(quantize(TensorType::Q4_0, &ties).unwrap()[..2], [0x00, 0x3c], "d = 1");
    (ties[3], ties[9]) = (8.0, -8.0);
    assert_eq!(quantize(TensorType::Q4_0, &ties).unwrap()[..2], [0x00, 0xbc], "d = -1");
    let huge = [1e6; 128];
    assert_eq!(quantize(TensorType::Q1_0, &huge), Err(E::ScaleOutOfRange { ty: TensorType::Q1_0, block: 0 }));
    let mut nan = [1.0; 64];
    nan[40] = f32::INFINITY;
    assert_eq!(quantize(TensorType::Q8_0, &nan), Err(E::ScaleOutOfRange { ty: TensorType::Q8_0, block: 1 }));
}

#[test]
fn wrong_lengths_and_types() {
    let mut out = [0.0; 256];
    let q1_0 = TensorType::Q1_0;
    assert_eq!(
        dequantize(q1_0, &[0; 35], &mut out),
        Err(E::BlockLength { ty: q1_0, bytes: 35, values: 256 })
    );
    assert_eq!(
        dequantize(q1_0, &[0; 36], &mut out[..255]),
        Err(E::NotWholeBlocks { ty: q1_0, values: 255, block_len: 128 })
    );
    assert_eq!(dequantize(q1_0, &[], &mut []), Ok(()));
    for ty in [TensorType::Q5_K, TensorType::TQ2_0, TensorType::I32, TensorType::Q2_0 { group: 0 }] {
        assert!(!ty.is_supported());
        assert_eq!(dequantize(ty, &[], &mut []), Err(E::CannotDecode { ty }));
        assert_eq!(quantize(ty, &[]), Err(E::CannotEncode { ty }));
    }
    assert_eq!(quantize(q1_0, &[1.0; 100]), Err(E::NotWholeBlocks { ty: q1_0, values: 100, block_len: 128 }));
}

/// Numbers, block lengths and block sizes of the format's table.
#[test]
fn type_table() {
    for (id, name, block_len, block_bytes) in [
        (0, "F32", 1, 4),
        (1, "F16", 1, 2),
        (2, "Q4_0", 32, 18),
        (3, "Q4_1", 32, 20),
        (6, "Q5_0", 32, 22),
        (7, "Q5_1", 32, 24),
        (8, "Q8_0", 32, 34),
        (10, "Q2_K", 256, 84),
        (11, "Q3_K", 256, 110),
        (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176),
        (14, "Q6_K", 256, 210),
        (30, "BF16", 1, 2),
        (34, "TQ1_0", 256, 54),
        (35, "TQ2_0", 256, 66),
        (41, "Q1_0", 128, 18),
    ] {
        let ty = TensorType::from_id(id).unwrap();
        assert_eq!(
            (ty.id(), ty.name(), ty.block_len(), ty.block_bytes()),
            (id, name, block_len, block_bytes)
        );
        let decodes = dequantize(ty, &[], &mut []).is_ok();
        assert_eq!(decodes, ty.is_supported(), "{name}");
        assert_eq!(signbit_gguf::SUPPORTED_TYPES.split(", ").any(|listed| listed == name), decodes, "{name}");
    }
    assert_eq!((Q2_64.id(), Q2_64.block_bytes(), Q2_128.block_bytes()), (42, 18, 34));
    assert_eq!(TensorType::from_id(42), None, "two layouts");
}
