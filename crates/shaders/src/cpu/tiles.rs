//! The layout of matrices with few bits per weight for the CPU: the device layout with the bytes of 32
//! rows interleaved.
//!
//! A row's quants are bytes and its scales are halves, as in [`crate::weights`]. Rows form tiles of
//! [`ROWS`], the last tile having what is left. In a tile of `h` rows, unit `j` of row `r` is unit
//! `j * h + r` of the tile: one load yields the next weights of 32 rows. A tile takes the words that
//! its rows take, so the arrays have the same size in both layouts.

use crate::weights::{Format, words_per_row};

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
    use crate::weights::pack_rows;
    use crate::weights::sample::{Scales, random_rows};

    /// Rows written in uneven runs come back, whatever the last tile's height.
    #[test]
    fn rows_survive() {
        for (format, n_rows, cols) in [
            (Format::Q1_0, 1, 128),
            (Format::Q1_0, 77, 384),
            (Format::Q2_0G64, 64, 192),
            (Format::Q4_0, 33, 96),
        ] {
            let bytes = random_rows(format, n_rows, cols, Scales::Any, &mut Rng::new(9));
            let (q, s) = words_per_row(format, cols);
            let (q, s) = (q as usize, s as usize);
            let n = n_rows as usize;
            let (mut quants, mut scales) = (vec![0; n * q], vec![0; n * s]);
            pack_rows(format, cols, &bytes, &mut quants, &mut scales).unwrap();
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
            for row in 0..n {
                let read = read_row(format, cols, [n, row], [&tiled_quants, &tiled_scales]);
                assert_eq!(read, [&quants[row * q..][..q], &scales[row * s..][..s]], "{format:?} row {row}");
            }
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
