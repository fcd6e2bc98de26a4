//! The one layout in which matrices lie on the device, for decode and prefill alike.
//!
//! A matrix `[N, K]` is two arrays of words. `quants` holds the weights' own bits in the order of
//! the columns, first weight in the lowest bits; `scales` holds what a block of weights shares.
//! Each row starts at a word boundary of either array (an odd number of 16-bit scales is followed
//! by a zero half), so any run of rows is a contiguous range of both and can be packed on its own
//! while the file streams in. Nothing is rounded: every stored number survives bit for bit.
//!
//! | format | `quants` | `scales` |
//! |---|---|---|
//! | F32, F16, BF16 | the numbers, 1 or 2 per word | none: bind one word that is not read |
//! | Q1_0 | 1 bit per weight | a half per 128 weights |
//! | Q2_0 | 2 bits per weight | a half per 64 or 128 weights |
//! | Q4_0 | 4 bits per weight | a half per 32 weights |
//! | Q8_0 | 8 bits per weight | a half per 32 weights |
//! | Q4_K | 4 bits per weight | per 256: `d`, `dmin`, then the 12 bytes of 6-bit scales and minima |
//! | Q6_K | per 256: 32 words of low 4 bits, 16 of high 2 bits | per 256: 16 signed bytes, `d`, a zero half |
//!
//! What a newcomer gets wrong: the nibbles of the file's Q4 and Q6 blocks are interleaved, those
//! here are in order. Blocks are those of ggml (`ggml/src/ggml-common.h`).

use signbit_gguf::TensorType;
use thiserror::Error;

use crate::kernel::{BufferId, ShapeError, Tensor, require};

pub mod sample;

/// How the weights of a matrix are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the module's table describes them")]
pub enum Format {
    F32,
    F16,
    BF16,
    Q1_0,
    Q2_0G64,
    Q2_0G128,
    Q4_0,
    Q8_0,
    Q4K,
    Q6K,
}

/// What one block takes. A format without blocks is seen as blocks of eight weights.
struct Block {
    weights: u32,
    file_bytes: u32,
    quant_words: u32,
    scale_halves: u32,
}

impl Format {
    /// Every format, in the order of the enum.
    pub const ALL: [Self; 10] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q1_0,
        Self::Q2_0G64,
        Self::Q2_0G128,
        Self::Q4_0,
        Self::Q8_0,
        Self::Q4K,
        Self::Q6K,
    ];

    /// The layout for matrices of a GGUF type; `None` for types without one.
    pub fn from_tensor_type(ty: TensorType) -> Option<Self> {
        Some(match ty {
            TensorType::F32 => Self::F32,
            TensorType::F16 => Self::F16,
            TensorType::BF16 => Self::BF16,
            TensorType::Q1_0 => Self::Q1_0,
            TensorType::Q2_0 { group: 64 } => Self::Q2_0G64,
            TensorType::Q2_0 { group: 128 } => Self::Q2_0G128,
            TensorType::Q4_0 => Self::Q4_0,
            TensorType::Q8_0 => Self::Q8_0,
            TensorType::Q4_K => Self::Q4K,
            TensorType::Q6_K => Self::Q6K,
            _ => return None,
        })
    }

    /// The word that ends the names of this format's kernels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::Q1_0 => "q1_0",
            Self::Q2_0G64 => "q2_0_g64",
            Self::Q2_0G128 => "q2_0_g128",
            Self::Q4_0 => "q4_0",
            Self::Q8_0 => "q8_0",
            Self::Q4K => "q4_k",
            Self::Q6K => "q6_k",
        }
    }

    /// The WGSL that defines `unpack8` for this format.
    pub(crate) const fn wgsl(self) -> &'static str {
        match self {
            Self::F32 => include_str!("common/unpack_f32.wgsl"),
            Self::F16 => include_str!("common/unpack_f16.wgsl"),
            Self::BF16 => include_str!("common/unpack_bf16.wgsl"),
            Self::Q1_0 => include_str!("common/unpack_q1_0.wgsl"),
            Self::Q2_0G64 => concat!("const GROUP = 64u;\n", include_str!("common/unpack_q2_0.wgsl")),
            Self::Q2_0G128 => concat!("const GROUP = 128u;\n", include_str!("common/unpack_q2_0.wgsl")),
            Self::Q4_0 => include_str!("common/unpack_q4_0.wgsl"),
            Self::Q8_0 => include_str!("common/unpack_q8_0.wgsl"),
            Self::Q4K => include_str!("common/unpack_q4_k.wgsl"),
            Self::Q6K => include_str!("common/unpack_q6_k.wgsl"),
        }
    }

    /// `cols` of a matrix must be a multiple of this: the weights of a block, at least eight
    /// because kernels read eight at a time.
    pub fn block_weights(self) -> u32 {
        self.block().weights
    }

    /// Bytes of a row of `cols` weights in the file.
    pub fn file_row_bytes(self, cols: u32) -> usize {
        let block = self.block();
        (cols / block.weights) as usize * block.file_bytes as usize
    }

    fn block(self) -> Block {
        let (weights, file_bytes, quant_words, scale_halves) = match self {
            Self::F32 => (8, 32, 8, 0),
            Self::F16 | Self::BF16 => (8, 16, 4, 0),
            Self::Q1_0 => (128, 18, 4, 1),
            Self::Q2_0G64 => (64, 18, 4, 1),
            Self::Q2_0G128 => (128, 34, 8, 1),
            Self::Q4_0 => (32, 18, 4, 1),
            Self::Q8_0 => (32, 34, 8, 1),
            Self::Q4K => (256, 144, 32, 8),
            Self::Q6K => (256, 210, 48, 10),
        };
        Block { weights, file_bytes, quant_words, scale_halves }
    }
}

/// The kernels of one operation, one per format in the order of [`Format::ALL`]: an array of
/// what `$kernel!("name", Format::VARIANT)` makes.
macro_rules! for_each_format {
    ($kernel:ident) => {
        [
            $kernel!("f32", $crate::weights::Format::F32),
            $kernel!("f16", $crate::weights::Format::F16),
            $kernel!("bf16", $crate::weights::Format::BF16),
            $kernel!("q1_0", $crate::weights::Format::Q1_0),
            $kernel!("q2_0_g64", $crate::weights::Format::Q2_0G64),
            $kernel!("q2_0_g128", $crate::weights::Format::Q2_0G128),
            $kernel!("q4_0", $crate::weights::Format::Q4_0),
            $kernel!("q8_0", $crate::weights::Format::Q8_0),
            $kernel!("q4_k", $crate::weights::Format::Q4K),
            $kernel!("q6_k", $crate::weights::Format::Q6K),
        ]
    };
}
pub(crate) use for_each_format;

/// A matrix on the device, or a run of its rows: a matrix too large for one buffer is sharded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weight {
    /// How the weights are stored.
    pub format: Format,
    /// Rows in this shard (N, outputs).
    pub rows: u32,
    /// Weights per row (K, inputs).
    pub cols: u32,
    /// The first row of this shard in the whole matrix.
    pub row_offset: u32,
    /// The `quants` words of the rows.
    pub quants: BufferId,
    /// The `scales` words of the rows; one word that is not read if the format has none.
    pub scales: BufferId,
}

impl Weight {
    /// The `quants` binding.
    pub(crate) fn quants_tensor(&self) -> Tensor {
        let (quants, _) = words_per_row(self.format, self.cols);
        Tensor { buffer: self.quants, rows: self.rows, cols: quants }
    }

    /// The `scales` binding.
    pub(crate) fn scales_tensor(&self) -> Tensor {
        let (_, scales) = words_per_row(self.format, self.cols);
        match scales {
            0 => Tensor { buffer: self.scales, rows: 1, cols: 1 },
            cols => Tensor { buffer: self.scales, rows: self.rows, cols },
        }
    }

    /// Bytes of one row in both arrays.
    pub fn row_bytes(&self) -> u64 {
        let (quants, scales) = words_per_row(self.format, self.cols);
        (u64::from(quants) + u64::from(scales)) * 4
    }

    /// Bytes of the shard's rows in both arrays.
    pub fn n_bytes(&self) -> u64 {
        u64::from(self.rows) * self.row_bytes()
    }

    /// Refuses a matrix that kernels cannot read.
    pub(crate) fn check(&self, kernel: &'static str) -> Result<(), ShapeError> {
        require(kernel, "rows of the matrix", self.rows, self.rows > 0, "at least 1")?;
        let whole = self.cols > 0 && self.cols.is_multiple_of(self.format.block_weights());
        let requirement = match self.format.block_weights() {
            8 => "a positive multiple of 8",
            32 => "a positive multiple of 32",
            64 => "a positive multiple of 64",
            128 => "a positive multiple of 128",
            _ => "a positive multiple of 256",
        };
        require(kernel, "columns of the matrix", self.cols, whole, requirement)
    }
}

/// Bytes that cannot become a matrix.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PackError {
    /// The row length is no positive multiple of the block's.
    #[error("a row of {cols} weights is no positive number of {} blocks of {} weights", format.name(), format.block_weights())]
    Columns {
        /// The format.
        format: Format,
        /// Weights per row.
        cols: u32,
    },
    /// The bytes are not whole rows.
    #[error("{bytes} bytes are not a whole number of rows of {row_bytes} bytes")]
    Bytes {
        /// Bytes given.
        bytes: usize,
        /// Bytes of a row in the file.
        row_bytes: usize,
    },
    /// An array has not the length that the rows take.
    #[error("the {array} array has {actual} words where the rows take {needed}")]
    Words {
        /// `quants` or `scales`.
        array: &'static str,
        /// Words needed.
        needed: usize,
        /// Words given.
        actual: usize,
    },
    /// A scale, or a weight stored as a float, is infinite or not a number.
    #[error("row {row} holds a number that is not finite")]
    NotFinite {
        /// The row, counted from the first one given.
        row: usize,
    },
}

/// Words that a row of `cols` weights takes in `quants` and in `scales`. `cols` is a multiple of
/// [`Format::block_weights`].
pub fn words_per_row(format: Format, cols: u32) -> (u32, u32) {
    let block = format.block();
    let n_blocks = cols / block.weights;
    (n_blocks * block.quant_words, (n_blocks * block.scale_halves).div_ceil(2))
}

/// Packs whole rows of `cols` weights from the file's blocks into the device layout.
///
/// `quants` and `scales` are exactly the words of these rows, so that a run of rows in the middle
/// of a matrix packs into sub-slices.
///
/// # Errors
/// Every [`PackError`]; the arrays are then partly written.
pub fn pack_rows(
    format: Format,
    cols: u32,
    bytes: &[u8],
    quants: &mut [u32],
    scales: &mut [u32],
) -> Result<(), PackError> {
    let row_bytes = whole_rows(format, cols, bytes)?;
    let n_rows = bytes.len() / row_bytes;
    let (quants_per_row, scales_per_row) = words_per_row(format, cols);
    let (quants_per_row, scales_per_row) = (quants_per_row as usize, scales_per_row as usize);
    for (array, words, per_row) in
        [("quants", &*quants, quants_per_row), ("scales", &*scales, scales_per_row)]
    {
        let needed = n_rows * per_row;
        if words.len() != needed {
            return Err(PackError::Words { array, needed, actual: words.len() });
        }
    }
    for (row, bytes) in bytes.chunks_exact(row_bytes).enumerate() {
        let quants = &mut quants[row * quants_per_row..(row + 1) * quants_per_row];
        let scales = &mut scales[row * scales_per_row..(row + 1) * scales_per_row];
        pack_row(format, bytes, quants, scales);
        if !is_finite(format, quants, scales) {
            return Err(PackError::NotFinite { row });
        }
    }
    Ok(())
}

/// The bytes of a row in the file, if `bytes` are whole rows of `cols` weights.
pub(crate) fn whole_rows(format: Format, cols: u32, bytes: &[u8]) -> Result<usize, PackError> {
    if cols == 0 || !cols.is_multiple_of(format.block_weights()) {
        return Err(PackError::Columns { format, cols });
    }
    let row_bytes = format.file_row_bytes(cols);
    match bytes.len().is_multiple_of(row_bytes) {
        true => Ok(row_bytes),
        false => Err(PackError::Bytes { bytes: bytes.len(), row_bytes }),
    }
}

fn pack_row(format: Format, bytes: &[u8], quants: &mut [u32], scales: &mut [u32]) {
    match format {
        Format::F32 | Format::F16 | Format::BF16 => copy_words(bytes, quants),
        Format::Q1_0 | Format::Q2_0G64 => pack_scaled::<18, 16>(bytes, quants, scales, |bytes| bytes),
        Format::Q2_0G128 | Format::Q8_0 => pack_scaled::<34, 32>(bytes, quants, scales, |bytes| bytes),
        Format::Q4_0 => pack_scaled::<18, 16>(bytes, quants, scales, nibbles_in_order),
        Format::Q4K => {
            let blocks = bytes.as_chunks::<144>().0.iter().zip(quants.as_chunks_mut::<32>().0);
            for ((bytes, quants), scales) in blocks.zip(scales.as_chunks_mut::<4>().0) {
                pack_q4_k(bytes, quants, scales);
            }
        }
        Format::Q6K => {
            let blocks = bytes.as_chunks::<210>().0.iter().zip(quants.as_chunks_mut::<48>().0);
            for ((bytes, quants), scales) in blocks.zip(scales.as_chunks_mut::<5>().0) {
                pack_q6_k(bytes, quants, scales);
            }
        }
    }
}

/// Whether every float of a packed row is finite. Nothing ends early, so that it takes few instructions.
fn is_finite(format: Format, quants: &[u32], scales: &[u32]) -> bool {
    match format {
        Format::F32 => quants.iter().fold(true, |all, bits| all & (bits & 0x7f80_0000 != 0x7f80_0000)),
        Format::F16 => all_finite(bytemuck::cast_slice(quants)),
        Format::BF16 => bytemuck::cast_slice::<_, u16>(quants)
            .iter()
            .fold(true, |all, half| all & (half & 0x7f80 != 0x7f80)),
        Format::Q4K => scales.iter().step_by(4).all(|&d| all_finite(&[d as u16, (d >> 16) as u16])),
        Format::Q6K => scales.iter().skip(4).step_by(5).all(|&d| all_finite(&[d as u16])),
        Format::Q1_0 | Format::Q2_0G64 | Format::Q2_0G128 | Format::Q4_0 | Format::Q8_0 => {
            all_finite(bytemuck::cast_slice(scales))
        }
    }
}

/// Packs a row of blocks that are a half and `QUANTS` bytes, `BLOCK` together; `order` gives a block's bytes
/// in the order of the columns.
fn pack_scaled<const BLOCK: usize, const QUANTS: usize>(
    bytes: &[u8],
    quants: &mut [u32],
    scales: &mut [u32],
    order: impl Fn([u8; QUANTS]) -> [u8; QUANTS],
) {
    let blocks = bytes.as_chunks::<BLOCK>().0;
    let halves: &mut [u16] = bytemuck::cast_slice_mut(scales);
    for (half, block) in halves.iter_mut().zip(blocks) {
        *half = u16::from_le_bytes([block[0], block[1]]);
    }
    halves[blocks.len()..].fill(0);
    let quants = bytemuck::cast_slice_mut::<_, u8>(quants).as_chunks_mut::<QUANTS>().0;
    for (quants, block) in quants.iter_mut().zip(blocks) {
        *quants = order(std::array::from_fn(|i| block[i + 2]));
    }
}

/// Whether none of the halves is infinite or not a number.
pub(crate) fn all_finite(halves: &[u16]) -> bool {
    halves.iter().fold(0, |largest, half| (half & 0x7c00).max(largest)) != 0x7c00
}

/// Byte j of a Q4_0 block has weight j in the low nibble and weight j + 16 in the high one: here the
/// weights lie in their order.
pub(crate) fn nibbles_in_order(bytes: [u8; 16]) -> [u8; 16] {
    std::array::from_fn(|i| {
        let (j, shift) = (2 * (i % 8), 4 * (i / 8));
        ((bytes[j] >> shift) & 15) | ((bytes[j + 1] >> shift) << 4)
    })
}

fn pack_q4_k(bytes: &[u8; 144], quants: &mut [u32; 32], scales: &mut [u32; 4]) {
    copy_words(&bytes[..16], scales);
    // 32 bytes of the file: 32 weights in the low nibbles, the next 32 in the high ones.
    for (bytes, quants) in bytes[16..].chunks_exact(32).zip(quants.chunks_exact_mut(8)) {
        let (first, last) = quants.split_at_mut(4);
        nibbles(bytes, 0, first);
        nibbles(bytes, 4, last);
    }
}

fn pack_q6_k(bytes: &[u8; 210], quants: &mut [u32; 48], scales: &mut [u32; 5]) {
    copy_words(&bytes[192..208], &mut scales[..4]);
    scales[4] = u32::from(u16::from_le_bytes([bytes[208], bytes[209]]));
    let (low, high) = quants.split_at_mut(32);
    // 64 bytes of the file: 64 weights in the low nibbles, the next 64 in the high ones.
    for (bytes, low) in bytes[..128].chunks_exact(64).zip(low.chunks_exact_mut(16)) {
        let (first, last) = low.split_at_mut(8);
        nibbles(bytes, 0, first);
        nibbles(bytes, 4, last);
    }
    // 32 bytes of the file: the lowest two bits belong to 32 weights, and so on upwards.
    for (bytes, high) in bytes[128..192].chunks_exact(32).zip(high.chunks_exact_mut(8)) {
        for (part, high) in (0..).zip(high.chunks_exact_mut(2)) {
            for (bytes, word) in bytes.chunks_exact(16).zip(high) {
                let codes = bytes.iter().map(|b| u32::from((b >> (2 * part)) & 3));
                *word = (0..).zip(codes).fold(0, |word, (i, code)| word | (code << (2 * i)));
            }
        }
    }
}

fn copy_words(bytes: &[u8], words: &mut [u32]) {
    bytemuck::cast_slice_mut(words).copy_from_slice(bytes);
}

/// Collects the low (`shift` 0) or high (4) nibbles of eight bytes per word.
fn nibbles(bytes: &[u8], shift: u32, words: &mut [u32]) {
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = (0..).zip(bytes).fold(0, |word, (i, b)| word | (((u32::from(*b) >> shift) & 15) << (4 * i)));
    }
}

/// Decodes row `row` of a matrix in the device layout into `out`, which holds `cols` numbers.
///
/// The results are the exact values of the file's blocks; see the formulas of
/// [`signbit_gguf::dequantize`]. `quants` and `scales` hold at least `row + 1` rows.
pub fn unpack_row(format: Format, cols: u32, quants: &[u32], scales: &[u32], row: usize, out: &mut [f32]) {
    let (quants_per_row, scales_per_row) = words_per_row(format, cols);
    let (quants_per_row, scales_per_row) = (quants_per_row as usize, scales_per_row as usize);
    let words = &quants[row * quants_per_row..(row + 1) * quants_per_row];
    let bytes: &[u8] = bytemuck::cast_slice(words);
    // Formats without scales have one word that is not read.
    let scales = scales.get(row * scales_per_row..(row + 1) * scales_per_row).unwrap_or_default();
    let halves: &[u16] = bytemuck::cast_slice(scales);
    match format {
        Format::F32 => out.copy_from_slice(bytemuck::cast_slice(words)),
        Format::F16 => {
            for (w, half) in out.iter_mut().zip(bytemuck::cast_slice::<_, u16>(words)) {
                *w = f16_to_f32(*half);
            }
        }
        Format::BF16 => {
            for (w, half) in out.iter_mut().zip(bytemuck::cast_slice::<_, u16>(words)) {
                *w = f32::from_bits(u32::from(*half) << 16);
            }
        }
        Format::Q1_0 => {
            for ((out, bytes), half) in out.chunks_exact_mut(128).zip(bytes.chunks_exact(16)).zip(halves) {
                let scale = f16_to_f32(*half);
                for (out, byte) in out.chunks_exact_mut(8).zip(bytes) {
                    for (i, w) in out.iter_mut().enumerate() {
                        *w = if (byte >> i) & 1 == 1 { scale } else { -scale };
                    }
                }
            }
        }
        Format::Q2_0G64 | Format::Q2_0G128 => {
            let group = format.block_weights() as usize;
            let groups = out.chunks_exact_mut(group).zip(bytes.chunks_exact(group / 4));
            for ((out, bytes), half) in groups.zip(halves) {
                let scale = f16_to_f32(*half);
                for (out, byte) in out.chunks_exact_mut(4).zip(bytes) {
                    for (i, w) in out.iter_mut().enumerate() {
                        *w = (f32::from((byte >> (2 * i)) & 3) - 1.0) * scale;
                    }
                }
            }
        }
        Format::Q4_0 => {
            for ((out, bytes), half) in out.chunks_exact_mut(32).zip(bytes.chunks_exact(16)).zip(halves) {
                let scale = f16_to_f32(*half);
                for_each_nibble(out, bytes, |code| (code - 8.0) * scale);
            }
        }
        Format::Q8_0 => {
            for ((out, bytes), half) in out.chunks_exact_mut(32).zip(bytes.chunks_exact(32)).zip(halves) {
                let scale = f16_to_f32(*half);
                for (w, byte) in out.iter_mut().zip(bytes) {
                    *w = f32::from(*byte as i8) * scale;
                }
            }
        }
        Format::Q4K => {
            let blocks = out.chunks_exact_mut(256).zip(bytes.chunks_exact(128));
            for ((out, bytes), scales) in blocks.zip(scales.chunks_exact(4)) {
                let (d, d_min) = (f16_to_f32(scales[0] as u16), f16_to_f32((scales[0] >> 16) as u16));
                for (part, (out, bytes)) in out.chunks_exact_mut(32).zip(bytes.chunks_exact(16)).enumerate() {
                    let (scale, min) = q4_k_scale(&scales[1..], part);
                    let (scale, min) = (d * scale, d_min * min);
                    for_each_nibble(out, bytes, |code| scale * code - min);
                }
            }
        }
        Format::Q6K => {
            let blocks = out.chunks_exact_mut(256).zip(bytes.chunks_exact(192));
            for ((out, bytes), scales) in blocks.zip(halves.chunks_exact(10)) {
                let (low, high) = bytes.split_at(128);
                let d = f16_to_f32(scales[8]);
                let scales: &[i8] = bytemuck::cast_slice(&scales[..8]);
                let parts = out.chunks_exact_mut(16).zip(low.chunks_exact(8)).zip(high.chunks_exact(4));
                for (((out, low), high), scale) in parts.zip(scales) {
                    let scale = d * f32::from(*scale);
                    for ((out, low), high) in out.chunks_exact_mut(4).zip(low.chunks_exact(2)).zip(high) {
                        let codes = [low[0] & 15, low[0] >> 4, low[1] & 15, low[1] >> 4];
                        for (i, (w, code)) in out.iter_mut().zip(codes).enumerate() {
                            *w = scale * (f32::from(code | (((high >> (2 * i)) & 3) << 4)) - 32.0);
                        }
                    }
                }
            }
        }
    }
}

/// Scale and minimum of 32 weights from the twelve bytes of a Q4_K block.
fn q4_k_scale(words: &[u32], part: usize) -> (f32, f32) {
    let byte = |i: usize| (words[i / 4] >> (8 * (i % 4))) & 255;
    let (scale, min) = if part < 4 {
        (byte(part) & 63, byte(part + 4) & 63)
    } else {
        ((byte(part + 4) & 15) | (byte(part - 4) >> 6 << 4), (byte(part + 4) >> 4) | (byte(part) >> 6 << 4))
    };
    (scale as f32, min as f32)
}

fn for_each_nibble(out: &mut [f32], bytes: &[u8], value: impl Fn(f32) -> f32) {
    for (out, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
        *out = [value(f32::from(byte & 15)), value(f32::from(byte >> 4))];
    }
}

/// The number that a finite half stands for, subnormal ones too, without branches.
pub(crate) fn f16_to_f32(half: u16) -> f32 {
    // The sign ends up where it belongs, its copies between it and the exponent are cleared.
    let bits = (i32::from(half as i16) << 13) as u32 & 0x8fff_e000;
    // The exponent's bias is 112 less.
    f32::from_bits(bits) * f32::from_bits((127 + 112) << 23)
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::sample::{Scales, random_rows};
    use super::*;
    use crate::case::Rng;

    fn tensor_type(format: Format) -> TensorType {
        match format {
            Format::F32 => TensorType::F32,
            Format::F16 => TensorType::F16,
            Format::BF16 => TensorType::BF16,
            Format::Q1_0 => TensorType::Q1_0,
            Format::Q2_0G64 => TensorType::Q2_0 { group: 64 },
            Format::Q2_0G128 => TensorType::Q2_0 { group: 128 },
            Format::Q4_0 => TensorType::Q4_0,
            Format::Q8_0 => TensorType::Q8_0,
            Format::Q4K => TensorType::Q4_K,
            Format::Q6K => TensorType::Q6_K,
        }
    }

    fn packed(format: Format, cols: u32, bytes: &[u8]) -> Result<(Vec<u32>, Vec<u32>), PackError> {
        let n_rows = bytes.len() / format.file_row_bytes(cols);
        let (quants, scales) = words_per_row(format, cols);
        let mut quants = vec![0xdead_beef; n_rows * quants as usize];
        let mut scales = vec![0xdead_beef; n_rows * scales as usize];
        pack_rows(format, cols, bytes, &mut quants, &mut scales)?;
        Ok((quants, scales))
    }

    #[test]
    fn formats_agree_with_the_file_types() {
        for (i, format) in Format::ALL.into_iter().enumerate() {
            let ty = tensor_type(format);
            assert_eq!(format as usize, i);
            assert_eq!(Format::from_tensor_type(ty), Some(format));
            assert_eq!(format.block_weights(), ty.block_len().max(8), "{format:?}");
            let blocks = 512 / ty.block_len();
            assert_eq!(format.file_row_bytes(512), (blocks * ty.block_bytes()) as usize, "{format:?}");
        }
        for other in [TensorType::Q4_1, TensorType::TQ2_0, TensorType::I32, TensorType::Q2_0 { group: 32 }] {
            assert_eq!(Format::from_tensor_type(other), None, "{other}");
        }
    }

    /// The bits of a weight take no more room than in the file, but for the padding of rows.
    #[test]
    fn words_per_row_by_hand() {
        for (format, cols, words) in [
            (Format::F32, 8, (8, 0)),
            (Format::F16, 24, (12, 0)),
            (Format::BF16, 24, (12, 0)),
            (Format::Q1_0, 128, (4, 1)),
            (Format::Q1_0, 384, (12, 2)),
            (Format::Q1_0, 5120, (160, 20)),
            (Format::Q2_0G64, 192, (12, 2)),
            (Format::Q2_0G128, 384, (24, 2)),
            (Format::Q4_0, 96, (12, 2)),
            (Format::Q8_0, 32, (8, 1)),
            (Format::Q4K, 512, (64, 8)),
            (Format::Q6K, 512, (96, 10)),
        ] {
            assert_eq!(words_per_row(format, cols), words, "{format:?} {cols}");
        }
    }

    #[test]
    fn halves() {
        for bits in (0..=u16::MAX).filter(|bits| bits & 0x7c00 != 0x7c00) {
            assert_eq!(f16_to_f32(bits).to_bits(), f16::from_bits(bits).to_f32().to_bits(), "{bits:#x}");
        }
    }

    #[test]
    fn unpacked_rows_are_the_files_numbers() {
        for format in Format::ALL {
            for (seed, scales) in [(1, Scales::Usual), (2, Scales::Subnormal), (3, Scales::Any)] {
                // An odd number of blocks, so that rows of halves need padding.
                let (rows, cols) = (7, 3 * format.block_weights());
                let bytes = random_rows(format, rows, cols, scales, &mut Rng::new(seed));
                let mut expected = vec![0.0; (rows * cols) as usize];
                signbit_gguf::dequantize(tensor_type(format), &bytes, &mut expected).unwrap();
                let (quants, scales) = packed(format, cols, &bytes).unwrap();
                let mut actual = vec![f32::NAN; cols as usize];
                for (row, expected) in expected.chunks_exact(cols as usize).enumerate() {
                    unpack_row(format, cols, &quants, &scales, row, &mut actual);
                    for (k, (a, e)) in actual.iter().zip(expected).enumerate() {
                        assert_eq!(a.to_bits(), e.to_bits(), "{format:?} seed {seed} [{row}, {k}]: {a} {e}");
                    }
                }
            }
        }
    }

    #[test]
    fn random_rows_cover_the_scales_that_models_have() {
        let smallest = f16::from_bits(1).to_f32();
        let mut values = vec![0.0; 128 * 256];
        let bytes = random_rows(Format::Q1_0, 256, 128, Scales::Any, &mut Rng::new(3));
        signbit_gguf::dequantize(TensorType::Q1_0, &bytes, &mut values).unwrap();
        assert!(values.contains(&smallest) && values.contains(&0.0), "no smallest or zero scale");
        assert!(bytes.chunks_exact(18).any(|block| block[1] & 0x80 != 0), "no negative scale");
    }

    #[test]
    fn packing_in_runs_is_packing_at_once() {
        for format in Format::ALL {
            let (rows, cols) = (9, 3 * format.block_weights());
            let bytes = random_rows(format, rows, cols, Scales::Any, &mut Rng::new(4));
            let (quants, scales) = packed(format, cols, &bytes).unwrap();
            let mut by_runs = (Vec::new(), Vec::new());
            for run in [0..1, 1..3, 3..9] {
                let row_bytes = format.file_row_bytes(cols);
                let (q, s) =
                    packed(format, cols, &bytes[run.start * row_bytes..run.end * row_bytes]).unwrap();
                by_runs.0.extend(q);
                by_runs.1.extend(s);
            }
            assert_eq!(by_runs, (quants, scales), "{format:?}");
        }
    }

    #[test]
    fn wrong_lengths_are_refused() {
        let pack = |cols, bytes: usize, quants: usize, scales: usize| {
            pack_rows(Format::Q1_0, cols, &vec![0; bytes], &mut vec![0; quants], &mut vec![0; scales])
        };
        assert_eq!(pack(128, 36, 8, 2), Ok(()));
        assert_eq!(pack(128, 0, 0, 0), Ok(()));
        assert_eq!(pack(64, 36, 8, 2), Err(PackError::Columns { format: Format::Q1_0, cols: 64 }));
        assert_eq!(pack(0, 36, 8, 2), Err(PackError::Columns { format: Format::Q1_0, cols: 0 }));
        assert_eq!(pack(128, 35, 8, 2), Err(PackError::Bytes { bytes: 35, row_bytes: 18 }));
        assert_eq!(pack(128, 36, 7, 2), Err(PackError::Words { array: "quants", needed: 8, actual: 7 }));
        assert_eq!(pack(128, 36, 8, 1), Err(PackError::Words { array: "scales", needed: 2, actual: 1 }));
        assert_eq!(
            PackError::Columns { format: Format::Q1_0, cols: 64 }.to_string(),
            "a row of 64 weights is no positive number of q1_0 blocks of 128 weights"
        );
    }

    #[test]
    fn numbers_that_are_not_finite_name_their_row() {
        for format in Format::ALL {
            let (rows, cols) = (3, 2 * format.block_weights());
            let good = random_rows(format, rows, cols, Scales::Usual, &mut Rng::new(5));
            let row_bytes = format.file_row_bytes(cols);
            let block_bytes = row_bytes / 2;
            // The last byte of each float in a block, and of its exponent's upper part.
            let (at, high): (&[usize], [u8; 2]) = match format {
                Format::F32 => (&[2, 14, 30], [0x80, 0x7f]),
                Format::BF16 => (&[0, 6, 14], [0x80, 0xff]),
                Format::F16 => (&[0, 6, 14], [0x00, 0xfc]),
                Format::Q4K => (&[0, 2], [0x01, 0x7c]),
                Format::Q6K => (&[208], [0x00, 0x7c]),
                _ => (&[0], [0x01, 0xfe]),
            };
            assert!(packed(format, cols, &good).is_ok(), "{format:?}");
            for at in at {
                let mut bad = good.clone();
                let at = row_bytes + block_bytes + at;
                bad[at..at + 2].copy_from_slice(&high);
                assert_eq!(
                    packed(format, cols, &bad),
                    Err(PackError::NotFinite { row: 1 }),
                    "{format:?} {at}"
                );
            }
        }
    }
}
