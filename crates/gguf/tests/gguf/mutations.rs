//! Damaged files: whatever happens to the bytes, the reader answers, and a prefix never
//! contradicts the whole file.

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};
use signbit_gguf::{GgufWriter, Header, Parse, TensorType};

/// Seed of the cases; a failure prints the smallest failing input.
const SEED: u64 = 0x5160_b175;

fn base() -> Vec<u8> {
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", "qwen35").set("split.count", 1u16).set("f", 0.5f32);
    writer
        .set("tokens", vec!["a", "bc", "", "def"])
        .set("ints", vec![1, -2, 3])
        .set("flags", vec![true, false]);
    writer.tensor("a", &[128, 32], TensorType::Q2_0 { group: 128 }, vec![7; 1088]);
    writer.tensor("b", &[8], TensorType::F32, vec![0; 32]);
    writer.tensor("c", &[256, 2], TensorType::Q6_K, vec![3; 420]);
    writer.finish()
}

#[derive(Debug, Clone)]
enum Mutation {
    Byte { at: usize, value: u8 },
    Word { at: usize, value: u64 },
    Remove { at: usize, n_bytes: usize },
    Repeat { at: usize, n_bytes: usize },
    Truncate { at: usize },
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let at = 0usize..600;
    let word = prop_oneof![
        any::<u64>(),
        0u64..300,
        Just(u64::MAX),
        (0u32..64).prop_map(|bit| 1 << bit),
        (0u32..64).prop_map(|bit| (1 << bit) - 1),
    ];
    prop_oneof![
        4 => (at.clone(), any::<u8>()).prop_map(|(at, value)| Mutation::Byte { at, value }),
        4 => (at.clone(), word).prop_map(|(at, value)| Mutation::Word { at, value }),
        1 => (at.clone(), 0usize..40).prop_map(|(at, n_bytes)| Mutation::Remove { at, n_bytes }),
        1 => (at.clone(), 0usize..80).prop_map(|(at, n_bytes)| Mutation::Repeat { at, n_bytes }),
        1 => at.prop_map(|at| Mutation::Truncate { at }),
    ]
}

fn apply(file: &mut Vec<u8>, mutation: &Mutation) {
    let len = file.len();
    let range = |at: usize, n_bytes: usize| at.min(len)..(at + n_bytes).min(len);
    match *mutation {
        Mutation::Byte { at, value } => file[range(at, 1)].fill(value),
        Mutation::Word { at, value } => {
            let range = range(at, 8);
            let n_bytes = range.len();
            file[range].copy_from_slice(&value.to_le_bytes()[..n_bytes]);
        }
        Mutation::Remove { at, n_bytes } => drop(file.drain(range(at, n_bytes))),
        Mutation::Repeat { at, n_bytes } => {
            let copy = file[range(at, n_bytes)].to_vec();
            let start = at.min(len);
            file.splice(start..start, copy);
        }
        Mutation::Truncate { at } => file.truncate(at),
    }
}

/// The undamaged file is valid, so that the damage is what the cases are about.
#[test]
fn the_base_is_valid() {
    assert_eq!(Header::parse_file(&base()).unwrap().tensors.len(), 3);
}

proptest! {
    #![proptest_config(Config {
        cases: 8_000,
        rng_seed: RngSeed::Fixed(SEED),
        failure_persistence: None,
        ..Config::default()
    })]

    #[test]
    fn damaged_files_are_answered(mutations in prop::collection::vec(mutation(), 1..8), cut in 0usize..800) {
        let mut file = base();
        mutations.iter().for_each(|mutation| apply(&mut file, mutation));
        let file_bytes = file.len() as u64;
        let cut = cut.min(file.len());
        let whole = Header::parse(&file, Some(file_bytes));
        if let Ok(parse) = &whole {
            let Parse::Complete(header) = parse else { panic!("a whole file never needs more") };
            for tensor in &header.tensors {
                prop_assert!(header.data_start + tensor.offset + tensor.n_bytes <= file_bytes);
            }
        }
        match (Header::parse(&file[..cut], Some(file_bytes)), whole) {
            (Ok(Parse::NeedMore { at_least }), _) => {
                prop_assert!(at_least > cut as u64 && at_least <= file_bytes);
            }
            (early, late) => {
                // As text, because a damaged float may be NaN.
                prop_assert_eq!(format!("{:?}", early), format!("{:?}", late));
            }
        }
        let _ = Header::parse(&file[..cut], None);
    }
}
