//! Block formats: packed bytes to numbers and back.
//!
//! In the formulas `B[k]` is byte `k` of a block, `d` its scale (a little-endian half at the
//! place stated), `j` the index of a value in the block. Every product is rounded to `f32` in the
//! order written, so that the results are the same bits as those of ggml
//! (`dequantize_row_*` in `ggml/src/ggml-quants.c`).

use half::{bf16, f16};

use crate::{GgufError, Result, TensorType};

/// Decodes whole blocks of `ty` into `out`.
///
/// `bytes` holds exactly `out.len() / block_len` blocks. Subnormal halves are honoured.
///
/// # Errors
/// [`GgufError::CannotDecode`], [`GgufError::NotWholeBlocks`], [`GgufError::BlockLength`].
pub fn dequantize(ty: TensorType, bytes: &[u8], out: &mut [f32]) -> Result<()> {
    if !ty.is_supported() {
        return Err(GgufError::CannotDecode { ty });
    }
    let n_blocks = whole_blocks(ty, out.len())?;
    if bytes.len() != n_blocks * ty.block_bytes() as usize {
        return Err(GgufError::BlockLength { ty, bytes: bytes.len() as u64, values: out.len() as u64 });
    }
    match ty {
        TensorType::F32 => each(bytes, out, |b: &[u8; 4], w: &mut [f32; 1]| *w = [f32::from_le_bytes(*b)]),
        TensorType::F16 => each(bytes, out, |b: &[u8; 2], w: &mut [f32; 1]| *w = [half_at(b, 0)]),
        TensorType::BF16 => {
            each(bytes, out, |b: &[u8; 2], w: &mut [f32; 1]| *w = [bf16::from_le_bytes(*b).to_f32()])
        }
        TensorType::Q1_0 => each(bytes, out, q1_0),
        TensorType::Q2_0 { group: 64 } => each(bytes, out, q2_0::<18, 64>),
        TensorType::Q2_0 { .. } => each(bytes, out, q2_0::<34, 128>),
        TensorType::Q4_0 => each(bytes, out, q4_0),
        TensorType::Q8_0 => each(bytes, out, q8_0),
        TensorType::Q4_K => each(bytes, out, q4_k),
        TensorType::Q6_K => each(bytes, out, q6_k),
        _ => return Err(GgufError::CannotDecode { ty }),
    }
    Ok(())
}

/// Encodes `values` as blocks of `ty`, for tests and tools.
///
/// Q1_0 keeps only the signs and the mean magnitude of a block: it is meant for values that
/// already are plus or minus one magnitude per block. Rounding follows `quantize_row_*_ref` in
/// `ggml/src/ggml-quants.c`.
///
/// # Errors
/// [`GgufError::CannotEncode`] for types other than F32, F16, BF16, Q1_0, Q2_0, Q4_0 and Q8_0,
/// [`GgufError::NotWholeBlocks`], [`GgufError::ScaleOutOfRange`].
pub fn quantize(ty: TensorType, values: &[f32]) -> Result<Vec<u8>> {
    let encode: fn(&[f32], &mut Vec<u8>) -> f16 = match ty {
        TensorType::F32 => return Ok(values.iter().flat_map(|x| x.to_le_bytes()).collect()),
        TensorType::F16 => return Ok(values.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect()),
        TensorType::BF16 => {
            return Ok(values.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect());
        }
        TensorType::Q1_0 => encode_q1_0,
        TensorType::Q2_0 { group: 64 | 128 } => encode_q2_0,
        TensorType::Q4_0 => encode_q4_0,
        TensorType::Q8_0 => encode_q8_0,
        _ => return Err(GgufError::CannotEncode { ty }),
    };
    let n_blocks = whole_blocks(ty, values.len())?;
    let mut out = Vec::with_capacity(n_blocks * ty.block_bytes() as usize);
    for (block, chunk) in (0u64..).zip(values.chunks_exact(ty.block_len() as usize)) {
        if !encode(chunk, &mut out).is_finite() {
            return Err(GgufError::ScaleOutOfRange { ty, block });
        }
    }
    Ok(out)
}

fn whole_blocks(ty: TensorType, n_values: usize) -> Result<usize> {
    let block_len = ty.block_len();
    if !n_values.is_multiple_of(block_len as usize) {
        return Err(GgufError::NotWholeBlocks { ty, values: n_values as u64, block_len });
    }
    Ok(n_values / block_len as usize)
}

/// Calls `decode` for each block of `BYTES` bytes and `LEN` values.
fn each<const BYTES: usize, const LEN: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; BYTES], &mut [f32; LEN]),
) {
    for (block, values) in bytes.as_chunks().0.iter().zip(out.as_chunks_mut().0) {
        decode(block, values);
    }
}

/// The little-endian half at byte `k`, widened exactly.
fn half_at<const BYTES: usize>(block: &[u8; BYTES], k: usize) -> f32 {
    f16::from_le_bytes([block[k], block[k + 1]]).to_f32()
}

/// `d` at 0; bit `j mod 8` of `B[2 + j/8]`: set is `+d`, clear is `-d`.
fn q1_0(block: &[u8; 18], out: &mut [f32; 128]) {
    let d = half_at(block, 0);
    for (j, w) in out.iter_mut().enumerate() {
        *w = if (block[2 + j / 8] >> (j % 8)) & 1 == 1 { d } else { -d };
    }
}

/// `d` at 0; code `c` is two bits of `B[2 + j/4]`, `w = (c - 1) d`: -1, 0, 1 and 2.
fn q2_0<const BYTES: usize, const LEN: usize>(block: &[u8; BYTES], out: &mut [f32; LEN]) {
    let d = half_at(block, 0);
    for (j, w) in out.iter_mut().enumerate() {
        let code = (block[2 + j / 4] >> (2 * (j % 4))) & 3;
        *w = (f32::from(code) - 1.0) * d;
    }
}

/// `d` at 0; low nibbles of `B[2..18]` are the first 16 values, high nibbles the others;
/// `w = (nibble - 8) d`.
fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    for (j, w) in out.iter_mut().enumerate() {
        let nibble = (block[2 + j % 16] >> (4 * (j / 16))) & 15;
        *w = (f32::from(nibble) - 8.0) * d;
    }
}

/// `d` at 0; `w = i8(B[2 + j]) d`.
fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let d = half_at(block, 0);
    for (j, w) in out.iter_mut().enumerate() {
        *w = f32::from(block[2 + j] as i8) * d;
    }
}

/// `d` at 0, `dmin` at 2, packed six-bit scales at 4..16, nibbles at 16. Sub-block `i = j / 32`
/// has scale `s` and minimum `m`: `w = (d s) nibble - (dmin m)`.
fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let s = |i: usize| block[4 + i];
    for (j, w) in out.iter_mut().enumerate() {
        let i = j / 32;
        let (scale, min) = if i < 4 {
            (s(i) & 63, s(i + 4) & 63)
        } else {
            ((s(i + 4) & 15) | ((s(i - 4) >> 6) << 4), (s(i + 4) >> 4) | ((s(i) >> 6) << 4))
        };
        let nibble = (block[16 + 32 * (j / 64) + j % 32] >> (4 * (i % 2))) & 15;
        *w = (d * f32::from(scale)) * f32::from(nibble) - dmin * f32::from(min);
    }
}

/// Low nibbles at 0..128, two high bits at 128..192, signed scales at 192..208, `d` at 208.
/// With `n = j / 128`, `g = (j mod 128) / 32`, `l = j mod 32`:
/// `w = (d scale[8n + 2g + l/16]) (q - 32)`.
fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let d = half_at(block, 208);
    for (j, w) in out.iter_mut().enumerate() {
        let (n, g, l) = (j / 128, (j % 128) / 32, j % 32);
        let low = (block[64 * n + 32 * (g % 2) + l] >> (4 * (g / 2))) & 15;
        let high = (block[128 + 32 * n + l] >> (2 * g)) & 3;
        let scale = block[192 + 8 * n + 2 * g + l / 16] as i8;
        *w = (d * f32::from(scale)) * (f32::from(low | (high << 4)) - 32.0);
    }
}

/// Packs `codes` of `bits` bits each, first code in the lowest bits.
fn pack(codes: impl Iterator<Item = u8>, bits: usize, out: &mut Vec<u8>) {
    let codes: Vec<u8> = codes.collect();
    out.extend(
        codes.chunks(8 / bits).map(|byte| byte.iter().rev().fold(0, |packed, code| (packed << bits) | code)),
    );
}

/// The largest magnitude; zero if all are zero.
fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |largest, x| x.abs().max(largest))
}

fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

fn encode_q1_0(values: &[f32], out: &mut Vec<u8>) -> f16 {
    let sum = values.iter().fold(0.0f32, |sum, x| sum + x.abs());
    let d = f16::from_f32(sum / values.len() as f32);
    out.extend(d.to_le_bytes());
    pack(values.iter().map(|&x| u8::from(x >= 0.0)), 1, out);
    d
}

fn encode_q2_0(values: &[f32], out: &mut Vec<u8>) -> f16 {
    // The inverse is that of the scale before it is rounded to a half.
    let scale = largest(values);
    let inverse = inverse(scale);
    let d = f16::from_f32(scale);
    out.extend(d.to_le_bytes());
    pack(values.iter().map(|x| ((x * inverse).round() + 1.0).clamp(0.0, 3.0) as u8), 2, out);
    d
}

fn encode_q4_0(values: &[f32], out: &mut Vec<u8>) -> f16 {
    // The value of largest magnitude, with its sign, becomes code 0; the first one on ties.
    let extreme = values.iter().fold(0.0f32, |best, &x| if x.abs() > best.abs() { x } else { best });
    let scale = extreme / -8.0;
    let inverse = inverse(scale);
    let d = f16::from_f32(scale);
    out.extend(d.to_le_bytes());
    let code = |x: f32| (x * inverse + 8.5).clamp(0.0, 15.0) as u8;
    let (low, high) = values.split_at(values.len() / 2);
    out.extend(low.iter().zip(high).map(|(&low, &high)| code(low) | (code(high) << 4)));
    d
}

fn encode_q8_0(values: &[f32], out: &mut Vec<u8>) -> f16 {
    let scale = largest(values) / 127.0;
    let inverse = inverse(scale);
    let d = f16::from_f32(scale);
    out.extend(d.to_le_bytes());
    out.extend(values.iter().map(|x| (x * inverse).round() as i8 as u8));
    d
}
