//! Any bytes as a file, read at once and as a prefix that is cut anywhere.
#![no_main]

use libfuzzer_sys::fuzz_target;
use signbit_gguf::{Header, Parse, split};

fuzz_target!(|data: &[u8]| {
    let Some((cut, file)) = data.split_first_chunk() else { return };
    let cut = usize::from(u16::from_le_bytes(*cut)).min(file.len());
    let prefix = &file[..cut];
    let file_bytes = file.len() as u64;

    let whole = Header::parse(file, Some(file_bytes));
    match &whole {
        Ok(Parse::NeedMore { .. }) => panic!("a whole file can never need more"),
        Ok(Parse::Complete(header)) => check(header, file_bytes),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match (Header::parse(prefix, Some(file_bytes)), whole) {
        (Ok(Parse::NeedMore { at_least }), _) => {
            assert!(at_least > prefix.len() as u64 && at_least <= file_bytes);
        }
        (Ok(Parse::Complete(early)), Ok(Parse::Complete(late))) => {
            assert_eq!((early.data_start, &early.tensors), (late.data_start, &late.tensors));
            assert_eq!(early.metadata.len(), late.metadata.len());
        }
        (Err(early), Err(late)) => assert_eq!(early, late),
        (early, late) => panic!("the prefix gives {early:?}, the file {late:?}"),
    }
    // A stream of unknown length, and a part of a split model.
    if let Ok(Parse::Complete(header)) = Header::parse(prefix, None) {
        let _ = split::check_parts(&[header.clone(), header]);
    }
});

/// What a caller may rely on in a header that was accepted.
fn check(header: &Header, file_bytes: u64) {
    for (key, value) in header.metadata.iter() {
        assert_eq!(header.metadata.get(key).map(|found| found.type_name()), Some(value.type_name()));
        let _ = header.metadata.get_u32_array(key);
        if let Ok(Some(strings)) = header.metadata.get_str_array(key) {
            assert_eq!(strings.iter().count(), strings.len());
        }
    }
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for tensor in &header.tensors {
        let n_blocks = tensor.n_elems() / u64::from(tensor.ty.block_len());
        assert_eq!(tensor.n_bytes, n_blocks * u64::from(tensor.ty.block_bytes()));
        assert!(header.data_start + tensor.offset + tensor.n_bytes <= file_bytes);
        ranges.push((tensor.offset, tensor.offset + tensor.n_bytes));
    }
    ranges.sort_unstable();
    assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0));
}
