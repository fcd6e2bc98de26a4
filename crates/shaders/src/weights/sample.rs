//! Random matrices in the file's formats, for the cases of the kernels that read matrices.

use half::{bf16, f16};

use super::{Format, Weight, pack_rows, unpack_row, words_per_row};
use crate::case::{CaseBuilder, Rng};
use crate::kernel::ShapeError;

/// Which scales the blocks of a random matrix get; in formats without scales, which weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scales {
    /// Of either sign and magnitudes up to 1/8, or weights up to 1.
    Usual,
    /// Subnormal halves of either sign, the smallest ones (5.96e-8) most often.
    Subnormal,
    /// Any finite half, among them zeros and subnormals.
    Any,
    /// All one.
    One,
}

impl Scales {
    fn half(self, rng: &mut Rng, largest: f32) -> f16 {
        let bits = rng.next_u32() >> 8;
        match self {
            Self::One => f16::ONE,
            Self::Usual => f16::from_f32(rng.uniform() * largest),
            Self::Subnormal => f16::from_bits(SUBNORMAL[(bits & 7) as usize] | (bits as u16 & 0x8000)),
            Self::Any if bits & 0x70000 == 0 => f16::from_bits([0, 1, 0x8000, 0x8001][(bits & 3) as usize]),
            Self::Any if bits & 0x7c00 == 0x7c00 => f16::from_bits(bits as u16 & 0xbfff),
            Self::Any => f16::from_bits(bits as u16),
        }
    }
}

const SUBNORMAL: [u16; 8] = [1, 1, 1, 2, 3, 0x1ff, 0x3fe, 0x3ff];

/// `rows` x `cols` random weights as the file would store them.
pub fn random_rows(format: Format, rows: u32, cols: u32, scales: Scales, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = vec![0; rows as usize * format.file_row_bytes(cols)];
    for block in bytes.chunks_exact_mut(format.block().file_bytes as usize) {
        match format {
            Format::F32 => {
                for weight in block.as_chunks_mut().0 {
                    *weight = scales.half(rng, 1.0).to_f32().to_le_bytes();
                }
                continue;
            }
            Format::F16 => {
                for weight in block.as_chunks_mut().0 {
                    *weight = scales.half(rng, 1.0).to_le_bytes();
                }
                continue;
            }
            Format::BF16 => {
                for weight in block.as_chunks_mut().0 {
                    *weight = bf16::from_f32(scales.half(rng, 1.0).to_f32()).to_le_bytes();
                }
                continue;
            }
            _ => {}
        }
        for byte in block.iter_mut() {
            *byte = (rng.next_u32() >> 24) as u8;
        }
        let scales_at: &[usize] = match format {
            Format::Q4K => &[0, 2],
            Format::Q6K => &[208],
            _ => &[0],
        };
        for &at in scales_at {
            block[at..at + 2].copy_from_slice(&scales.half(rng, 0.125).to_le_bytes());
        }
    }
    bytes
}

/// Adds a random matrix to a case, as rows `row_offset..` of a larger one. Also returns the
/// largest magnitude of its weights, from which tolerances follow.
///
/// # Errors
/// [`ShapeError::Dimension`] if `cols` is no multiple of the block.
pub fn random_weight(
    c: &mut CaseBuilder,
    format: Format,
    [rows, cols]: [u32; 2],
    row_offset: u32,
    scales: Scales,
) -> Result<(Weight, f32), ShapeError> {
    let bytes = random_rows(format, rows, cols, scales, &mut c.rng);
    let (quants_per_row, scales_per_row) = words_per_row(format, cols);
    let mut quants = vec![0; rows as usize * quants_per_row as usize];
    let mut scales = vec![0; rows as usize * scales_per_row as usize];
    pack_rows(format, cols, &bytes, &mut quants, &mut scales).map_err(|_| ShapeError::Dimension {
        kernel: format.name(),
        dimension: "columns of the matrix",
        actual: u64::from(cols),
        requirement: "a positive multiple of the block",
    })?;
    let mut row = vec![0.0f32; cols as usize];
    let mut largest = 0.0f32;
    for i in 0..rows as usize {
        unpack_row(format, cols, &quants, &scales, i, &mut row);
        largest = row.iter().fold(largest, |largest, w| largest.max(w.abs()));
    }
    let quants = c.words(rows, quants_per_row, quants).buffer;
    let scales = match scales_per_row {
        0 => c.words(1, 1, vec![0]).buffer,
        _ => c.words(rows, scales_per_row, scales).buffer,
    };
    Ok((Weight { format, rows, cols, row_offset, quants, scales }, largest))
}
