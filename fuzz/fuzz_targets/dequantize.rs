//! Any bytes as blocks of any type.
#![no_main]

use libfuzzer_sys::fuzz_target;
use signbit_gguf::{TensorType, dequantize, quantize};

fuzz_target!(|data: &[u8]| {
    let Some((&[id, extra], bytes)) = data.split_first_chunk() else { return };
    let ty = match TensorType::from_id(u32::from(id) % 48) {
        Some(ty) => ty,
        None => TensorType::Q2_0 { group: [0, 64, 128, u32::MAX][usize::from(extra % 4)] },
    };
    let block_bytes = ty.block_bytes() as usize;
    let n_values = (bytes.len() / block_bytes).saturating_mul(ty.block_len() as usize);
    // Mostly a length that fits, sometimes one that does not.
    let mut values = vec![0.0; n_values.min(1 << 16) + usize::from(extra / 128)];
    let whole = bytes.len() / block_bytes * block_bytes;
    if dequantize(ty, &bytes[..whole], &mut values).is_ok() {
        assert!(ty.is_supported());
        if let Ok(packed) = quantize(ty, &values) {
            assert_eq!(packed.len(), whole);
        }
    }
});
