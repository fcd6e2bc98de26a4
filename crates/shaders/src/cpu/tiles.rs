//! The layout of matrices with few bits per weight for the CPU: the device layout with the bytes of 32
//! rows interleaved.
//!
//! A row's quants are bytes and its scales are halves, as in [`crate::weights`]. Rows form tiles of
//! [`ROWS`], the last tile having what is left. In a tile of `h` rows, unit `j` of row `r` is unit
//! `j * h + r` of the tile: one load yields the next weights of 32 rows. A tile takes the words that
//! its rows take, so the arrays have the same size in both layouts.

use crate::weights::{
    Format, PackError, all_finite, nibbles_in_order, pack_rows as pack, whole_rows, words_per_row,
};

/// Rows of a tile.
pub const ROWS: usize = 32;

/// Whether matrices of this format lie in tiles.
pub fn has_tiles(format: Format) -> bool {
    matches!(format, Format::Q1_0 | Format::Q2_0G64 | Format::Q2_0G128 | Format::Q4_0)
}

/// Where the units of a row are: `first` and every `step`-th after it.
fn place(n_rows: usize, units_per_row: usize, row: usize) -> (usize, usize) {
    let start = row - row % ROWS;
    (start * units_per_row + row % ROWS, ROWS.min(n_rows - start))
}

/// Packs whole rows of `cols` weights from the file's blocks into rows `first_row..` of the arrays of a matrix
/// of `n_rows`, as packing into the device layout and [`write_rows`] would.
///
/// The format has tiles, the rows are inside the matrix, and the arrays have the lengths that [`words_per_row`]
/// tells.
///
/// # Errors
/// As [`crate::weights::pack_rows`].
pub fn pack_rows(
    format: Format,
    cols: u32,
    [n_rows, first_row]: [usize; 2],
    bytes: &[u8],
    [tiled_quants, tiled_scales]: [&mut [u32]; 2],
) -> Result<(), PackError> {
    let row_bytes = whole_rows(format, cols, bytes)?;
    let (q, s) = words_per_row(format, cols);
    let (q, s) = (q as usize, s as usize);
    let (mut quants, mut scales) = (vec![0; q], vec![0; s]);
    let (mut rest, mut row) = (bytes, first_row);
    while !rest.is_empty() {
        let is_tile = row.is_multiple_of(ROWS) && row + ROWS <= n_rows && rest.len() >= ROWS * row_bytes;
        let (head, tail) = rest.split_at(if is_tile { ROWS * row_bytes } else { row_bytes });
        let in_run = |e| match e {
            PackError::NotFinite { row: in_head } => PackError::NotFinite { row: row - first_row + in_head },
            other => other,
        };
        if is_tile {
            let tile = [&mut tiled_quants[row * q..][..ROWS * q], &mut tiled_scales[row * s..][..ROWS * s]];
            pack_tile(format, head, row_bytes, tile).map_err(in_run)?;
            row += ROWS;
        } else {
            pack(format, cols, head, &mut quants, &mut scales).map_err(in_run)?;
            write_rows([n_rows, row], [q, s], [&quants, &scales], [tiled_quants, tiled_scales]);
            row += 1;
        }
        rest = tail;
    }
    Ok(())
}

/// Packs the rows of one whole tile.
fn pack_tile(
    format: Format,
    bytes: &[u8],
    row_bytes: usize,
    [quants, scales]: [&mut [u32]; 2],
) -> Result<(), PackError> {
    let (quants, scales) = (bytemuck::cast_slice_mut(quants), bytemuck::cast_slice_mut(scales));
    match format {
        Format::Q4_0 => pack_blocks::<18, 16>(bytes, row_bytes, quants, scales, nibbles_in_order),
        Format::Q2_0G128 => pack_blocks::<34, 32>(bytes, row_bytes, quants, scales, |bytes| bytes),
        _ => pack_blocks::<18, 16>(bytes, row_bytes, quants, scales, |bytes| bytes),
    }
    if all_finite(scales) {
        return Ok(());
    }
    let rows = scales.iter().enumerate().filter(|(_, half)| !all_finite(&[**half])).map(|(i, _)| i % ROWS);
    Err(PackError::NotFinite { row: rows.min().unwrap_or_default() })
}

/// Packs a tile of blocks that are a half and `QUANTS` bytes, `BLOCK` together; `order` gives a block's bytes
/// in the order of the columns.
fn pack_blocks<const BLOCK: usize, const QUANTS: usize>(
    bytes: &[u8],
    row_bytes: usize,
    quants: &mut [u8],
    scales: &mut [u16],
    order: impl Fn([u8; QUANTS]) -> [u8; QUANTS],
) {
    let halves = scales.as_chunks_mut::<ROWS>().0;
    let n_blocks = row_bytes / BLOCK;
    for (k, (quants, halves)) in quants.chunks_exact_mut(ROWS * QUANTS).zip(&mut *halves).enumerate() {
        let mut blocks = [[0; QUANTS]; ROWS];
        for ((row, block), half) in bytes.chunks_exact(row_bytes).zip(&mut blocks).zip(halves) {
            let (stored_half, stored) = row[k * BLOCK..].split_at(2);
            *half = u16::from_le_bytes([stored_half[0], stored_half[1]]);
            *block = order(*stored.first_chunk().unwrap_or(&[0; QUANTS]));
        }
        for (at, units) in quants.as_chunks_mut::<{ ROWS * N }>().0.iter_mut().enumerate() {
            let columns =
                |rows: usize| transpose(std::array::from_fn(|i| blocks[rows + i].as_chunks().0[at]));
            let [upper, lower] = [columns(0), columns(N)];
            for ((unit, upper), lower) in units.as_chunks_mut::<ROWS>().0.iter_mut().zip(upper).zip(lower) {
                unit[..N].copy_from_slice(&upper);
                unit[N..].copy_from_slice(&lower);
            }
        }
    }
    // An odd number of halves is followed by a zero.
    halves[n_blocks..].as_flattened_mut().fill(0);
}

/// Half the rows of a tile, and as many bytes of a row.
const N: usize = ROWS / 2;

/// Transposes `N` x `N` bytes.
fn transpose(rows: [[u8; N]; N]) -> [[u8; N]; N] {
    #[cfg(target_arch = "wasm32")]
    {
        use core::arch::wasm32::{u8x16_shuffle, v128};
        let interleave = |a: v128, b: v128| {
            [
                u8x16_shuffle::<0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23>(a, b),
                u8x16_shuffle::<8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31>(a, b),
            ]
        };
        transpose_by(rows.map(bytemuck::cast), interleave).map(bytemuck::cast)
    }
    #[cfg(target_arch = "x86_64")]
    {
        use core::arch::x86_64::{__m128i, _mm_unpackhi_epi8, _mm_unpacklo_epi8};
        #[expect(unsafe_code, reason = "every x86-64 has SSE2")]
        let interleave =
            |a: __m128i, b: __m128i| unsafe { [_mm_unpacklo_epi8(a, b), _mm_unpackhi_epi8(a, b)] };
        transpose_by(rows.map(bytemuck::cast), interleave).map(bytemuck::cast)
    }
    #[cfg(not(any(target_arch = "wasm32", target_arch = "x86_64")))]
    std::array::from_fn(|column| rows.map(|row| row[column]))
}

/// Transposes rows of `N` bytes: four times the first half of the rows is interleaved with the second.
/// `interleave` gives the two halves of the bytes of two rows in turn. Written out, for vectors to stay in registers.
#[cfg(any(target_arch = "wasm32", target_arch = "x86_64"))]
#[inline(always)]
fn transpose_by<V: Copy>(rows: [V; N], interleave: impl Fn(V, V) -> [V; 2]) -> [V; N] {
    let round = |[a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]: [V; N]| {
        let first = [interleave(a, i), interleave(b, j), interleave(c, k), interleave(d, l)];
        let last = [interleave(e, m), interleave(f, n), interleave(g, o), interleave(h, p)];
        let ([[a, b], [c, d], [e, f], [g, h]], [[i, j], [k, l], [m, n], [o, p]]) = (first, last);
        [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
    };
    round(round(round(round(rows))))
}

/// Writes whole rows in the device layout to rows `first_row..` of the arrays of a matrix of `n_rows`.
///
/// The rows are inside the matrix, and the arrays have the lengths that [`words_per_row`] tells.
pub fn write_rows(
    [n_rows, first_row]: [usize; 2],
    row_words: [usize; 2],
    [quants, scales]: [&[u32]; 2],
    [tiled_quants, tiled_scales]: [&mut [u32]; 2],
) {
    let [quant_words, scale_words] = row_words;
    for (i, words) in quants.chunks_exact(quant_words.max(1)).enumerate() {
        let (first, step) = place(n_rows, quant_words * 4, first_row + i);
        interleave::<u8>(words, tiled_quants, first, step);
    }
    for (i, words) in scales.chunks_exact(scale_words.max(1)).enumerate() {
        let (first, step) = place(n_rows, scale_words * 2, first_row + i);
        interleave::<u16>(words, tiled_scales, first, step);
    }
}

fn interleave<U: bytemuck::Pod>(row: &[u32], tiled: &mut [u32], first: usize, step: usize) {
    let units = bytemuck::cast_slice_mut::<u32, U>(tiled).iter_mut().skip(first).step_by(step);
    for (target, unit) in units.zip(bytemuck::cast_slice::<u32, U>(row)) {
        *target = *unit;
    }
}

/// Reads row `row` of a matrix of `n_rows` back into the device layout: `quants` and `scales` of one row.
pub fn read_row(
    format: Format,
    cols: u32,
    [n_rows, row]: [usize; 2],
    [tiled_quants, tiled_scales]: [&[u32]; 2],
) -> [Vec<u32>; 2] {
    let (quant_words, scale_words) = words_per_row(format, cols);
    let mut quants = vec![0; quant_words as usize];
    let mut scales = vec![0; scale_words as usize];
    let (first, step) = place(n_rows, quants.len() * 4, row);
    collect::<u8>(tiled_quants, &mut quants, first, step);
    let (first, step) = place(n_rows, scales.len() * 2, row);
    collect::<u16>(tiled_scales, &mut scales, first, step);
    [quants, scales]
}

fn collect<U: bytemuck::Pod>(tiled: &[u32], row: &mut [u32], first: usize, step: usize) {
    let units = bytemuck::cast_slice::<u32, U>(tiled).iter().skip(first).step_by(step);
    for (target, unit) in bytemuck::cast_slice_mut::<u32, U>(row).iter_mut().zip(units) {
        *target = *unit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Rng;
    use crate::weights::sample::{Scales, random_rows};

    /// Rows written in uneven runs come back, whatever the last tile's height.
    #[test]
    fn rows_survive() {
        for (format, n_rows, cols) in [
            (Format::Q1_0, 1, 128),
            (Format::Q1_0, 77, 384),
            (Format::Q2_0G64, 64, 192),
            (Format::Q2_0G128, 70, 128),
            (Format::Q2_0G128, 40, 384),
            (Format::Q4_0, 33, 96),
            (Format::Q4_0, 96, 64),
        ] {
            let bytes = random_rows(format, n_rows, cols, Scales::Any, &mut Rng::new(9));
            let (q, s) = words_per_row(format, cols);
            let (q, s) = (q as usize, s as usize);
            let n = n_rows as usize;
            let (mut quants, mut scales) = (vec![0; n * q], vec![0; n * s]);
            pack(format, cols, &bytes, &mut quants, &mut scales).unwrap();
            let (mut tiled_quants, mut tiled_scales) = (vec![0; n * q], vec![0; n * s]);
            let mut row = 0;
            for height in [1, 7, 30, 32, 100] {
                let end = (row + height).min(n);
                write_rows(
                    [n, row],
                    [q, s],
                    [&quants[row * q..end * q], &scales[row * s..end * s]],
                    [&mut tiled_quants, &mut tiled_scales],
                );
                row = end;
            }
            let expected = [tiled_quants, tiled_scales];
            // Heights that begin and end inside of tiles and at their bounds.
            for heights in [[1, 7, 30, 32, 100], [32, 32, 1, 100, 0], [100, 0, 0, 0, 0], [16, 64, 3, 100, 0]]
            {
                let row_bytes = format.file_row_bytes(cols);
                let (mut packed_quants, mut packed_scales) = (vec![!0; n * q], vec![!0; n * s]);
                let mut row = 0;
                for height in heights {
                    let end = (row + height).min(n);
                    let run = &bytes[row * row_bytes..end * row_bytes];
                    pack_rows(format, cols, [n, row], run, [&mut packed_quants, &mut packed_scales]).unwrap();
                    row = end;
                }
                assert!(
                    [packed_quants, packed_scales] == expected,
                    "{format:?} {n_rows} rows by {heights:?}"
                );
            }
            let [tiled_quants, tiled_scales] = expected;
            for row in 0..n {
                let read = read_row(format, cols, [n, row], [&tiled_quants, &tiled_scales]);
                assert_eq!(read, [&quants[row * q..][..q], &scales[row * s..][..s]], "{format:?} row {row}");
            }
        }
    }

    #[test]
    fn packing_refuses_what_packing_in_rows_refuses() {
        let mut bytes = random_rows(Format::Q1_0, 70, 256, Scales::Usual, &mut Rng::new(10));
        let mut arrays = (vec![0; 70 * 8], vec![0; 70]);
        let mut pack_from = |row: usize, bytes: &[u8]| {
            pack_rows(Format::Q1_0, 256, [70, row], bytes, [&mut arrays.0, &mut arrays.1])
        };
        assert_eq!(pack_from(0, &bytes), Ok(()));
        assert_eq!(pack_from(0, &bytes[1..]), Err(PackError::Bytes { bytes: 70 * 36 - 1, row_bytes: 36 }));
        // The first is in the second block of a row in a whole tile, the last one in a row behind the tiles.
        for row in [66, 45, 37] {
            bytes[row * 36 + 18 + 1] = 0x7c;
            assert_eq!(pack_from(0, &bytes), Err(PackError::NotFinite { row }));
            assert_eq!(pack_from(3, &bytes[3 * 36..]), Err(PackError::NotFinite { row: row - 3 }));
        }
    }

    /// Byte 1 of row 33 of 40: the second tile has 8 rows.
    #[test]
    fn the_layout_by_hand() {
        let mut quants = vec![0u32; 40 * 4];
        let mut scales = vec![0u32; 40];
        write_rows([40, 33], [4, 1], [&[0x0000_ab00, 0, 0, 0], &[0x1234]], [&mut quants, &mut scales]);
        let bytes: &[u8] = bytemuck::cast_slice(&quants);
        assert_eq!(bytes.iter().position(|&b| b == 0xab), Some(32 * 16 + 8 + 1));
        let halves: &[u16] = bytemuck::cast_slice(&scales);
        assert_eq!(halves.iter().position(|&h| h == 0x1234), Some(32 * 2 + 1));
    }
}
