//! A linear layer without bias: the kernel for one token or the one for many.

use super::{matmul, matvec};
use crate::kernel::{Dispatch, ShapeError, Tensor};
use crate::weights::Weight;

/// `y (+)= x W^T`: `x` [T, K], `y` [T, N of the whole matrix]. With `accumulate` the products are
/// added to `y`, else they replace it. `T` is the plan's number of rows; a plan for one row is
/// computed by `matvec`, any other by `matmul`.
pub fn linear(x: Tensor, weight: Weight, y: Tensor, accumulate: bool) -> Result<Dispatch, ShapeError> {
    match x.rows {
        1 => matvec::matvec(x, weight, y, accumulate),
        _ => matmul::matmul(x, weight, y, accumulate),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::case::{Case, CaseBuilder, Tolerance, run_reference};
    use crate::kernels::embed::embed;
    use crate::weights::{Format, pack_rows, words_per_row};

    const NO_TOLERANCE: Tolerance = Tolerance { absolute: 0.0, relative: 0.0 };

    fn weight(c: &mut CaseBuilder, format: Format, cols: u32, row_offset: u32, bytes: &[u8]) -> Weight {
        let rows = (bytes.len() / format.file_row_bytes(cols)) as u32;
        let (q, s) = words_per_row(format, cols);
        let (mut quants, mut scales) = (vec![0; (rows * q) as usize], vec![0; (rows * s) as usize]);
        pack_rows(format, cols, bytes, &mut quants, &mut scales).unwrap();
        let quants = c.words(rows, q, quants).buffer;
        let scales = if s == 0 { c.words(1, 1, vec![0]) } else { c.words(rows, s, scales) }.buffer;
        Weight { format, rows, cols, row_offset, quants, scales }
    }

    fn run(c: CaseBuilder, dispatch: Result<Dispatch, ShapeError>, out: Tensor) -> Vec<f32> {
        let case: Case = c.finish("test", dispatch, NO_TOLERANCE).unwrap();
        let (buffers, _) = run_reference(&case);
        buffers[out.buffer.0 as usize].iter().map(|&bits| f32::from_bits(bits)).collect()
    }

    /// The packed blocks of each type, their values and their products with three vectors, all
    /// from another implementation; the products were accumulated in f64 and rounded once.
    #[test]
    fn packed_blocks_give_the_recorded_products() {
        let (rows, cols, n) = (13, 384, 3);
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/quant-blocks");
        let bytes = |name: &str| std::fs::read(folder.join(name)).unwrap();
        let floats = |name: &str| -> Vec<f32> {
            bytes(name).as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
        };
        let x = floats("x.bin");
        for (name, format) in [
            ("F32", Format::F32),
            ("F16", Format::F16),
            ("Q1_0", Format::Q1_0),
            ("Q2_0", Format::Q2_0G64),
            ("Q4_0", Format::Q4_0),
            ("Q8_0", Format::Q8_0),
        ] {
            let blocks = bytes(&format!("{name}.blocks.bin"));
            let expected = floats(&format!("{name}.product.bin"));
            // A sum of f64 in another order differs by 1e-13; rounded to f32, by one unit at most.
            let check = |actual: &[f32], expected: &[f32], op: &str| {
                assert_eq!(actual.len(), expected.len(), "{name} {op}");
                for (i, (a, e)) in actual.iter().zip(expected).enumerate() {
                    assert!(
                        (a - e).abs() <= 1.2e-7 * e.abs() + 1e-12,
                        "{name} {op} [{i}]: {a} instead of {e}"
                    );
                }
            };

            let mut c = CaseBuilder::new(1);
            c.state.n_tokens = n;
            let w = weight(&mut c, format, cols, 0, &blocks);
            let (x_tensor, y) = (c.values(n, cols, &x), c.output(n, rows));
            check(&run(c, linear(x_tensor, w, y, false), y), &expected, "matmul");

            for t in 0..n as usize {
                let mut c = CaseBuilder::new(1);
                let w = weight(&mut c, format, cols, 0, &blocks);
                let x = c.values(1, cols, &x[t * cols as usize..(t + 1) * cols as usize]);
                let y = c.output(1, rows);
                let expected = &expected[t * rows as usize..(t + 1) * rows as usize];
                check(&run(c, linear(x, w, y, false), y), expected, "matvec");
            }

            let mut c = CaseBuilder::new(1);
            c.state.n_tokens = rows;
            let w = weight(&mut c, format, cols, 0, &blocks);
            let (tokens, out) = (c.words(1, rows, (0..rows).collect()), c.output(rows, cols));
            assert_eq!(
                run(c, embed(tokens, w, out), out),
                floats(&format!("{name}.values.bin")),
                "{name} embed"
            );
        }
    }

    /// Two rows of Q1_0: all +2, and -0.5 but for weight 9.
    fn two_rows() -> Vec<u8> {
        let mut bytes = vec![0x00, 0x40];
        bytes.extend([0xff; 16]);
        bytes.extend([0x00, 0x38, 0, 2]);
        bytes.extend([0; 14]);
        bytes
    }

    #[test]
    fn products_by_hand_go_to_the_shards_columns_of_the_steps_rows() {
        // Row 0 of x has 1 at column 9 and 3 at column 127, row 1 is all ones, row 2 not computed.
        let mut x = vec![0.0; 3 * 128];
        (x[9], x[127]) = (1.0, 3.0);
        x[128..].fill(1.0);
        for (accumulate, expected) in [
            (false, [10.0, 8.0, -1.0, 10.0, 10.0, 256.0, -63.0, 10.0, 10.0, 10.0, 10.0, 10.0]),
            (true, [10.0, 18.0, 9.0, 10.0, 10.0, 266.0, -53.0, 10.0, 10.0, 10.0, 10.0, 10.0]),
        ] {
            let mut c = CaseBuilder::new(1);
            c.state.n_tokens = 2;
            let w = weight(&mut c, Format::Q1_0, 128, 1, &two_rows());
            let (x_tensor, y) = (c.values(3, 128, &x), c.values(3, 4, &[10.0; 12]));
            assert_eq!(run(c, linear(x_tensor, w, y, accumulate), y), expected, "matmul");

            let mut c = CaseBuilder::new(1);
            let w = weight(&mut c, Format::Q1_0, 128, 1, &two_rows());
            let (x_tensor, y) = (c.values(1, 128, &x[..128]), c.values(1, 4, &[10.0; 4]));
            assert_eq!(run(c, linear(x_tensor, w, y, accumulate), y), expected[..4], "matvec");
        }
        let mut c = CaseBuilder::new(1);
        c.state.n_tokens = 0;
        let w = weight(&mut c, Format::Q1_0, 128, 0, &two_rows());
        let (x_tensor, y) = (c.values(1, 128, &x[..128]), c.values(1, 2, &[10.0; 2]));
        assert_eq!(run(c, linear(x_tensor, w, y, true), y), [10.0, 10.0], "no tokens");
    }

    #[test]
    fn a_shard_writes_the_ids_it_holds() {
        let mut c = CaseBuilder::new(1);
        c.state.n_tokens = 4;
        let w = weight(&mut c, Format::Q1_0, 128, 100, &two_rows());
        let tokens = c.words(1, 5, vec![99, 101, 102, 100, 100]);
        let out = c.values(5, 128, &[7.0; 640]);
        let out = run(c, embed(tokens, w, out), out);
        let mut second = [-0.5; 128];
        second[9] = 0.5;
        assert_eq!(out[..128], [7.0; 128]);
        assert_eq!(out[128..256], second);
        assert_eq!(out[256..384], [7.0; 128]);
        assert_eq!(out[384..512], [2.0; 128]);
        assert_eq!(out[512..], [7.0; 128]);
    }

    #[test]
    fn dispatches_say_what_they_run_and_read() {
        let mut c = CaseBuilder::new(1);
        let w = weight(&mut c, Format::Q1_0, 128, 1, &two_rows());
        let (x1, x33) = (c.random(1, 128, 1.0), c.random(33, 128, 1.0));
        let (y1, y33) = (c.output(1, 3), c.output(33, 3));
        // A row is four words of bits and one of scale.
        let one = linear(x1, w, y1, false).unwrap();
        assert_eq!(
            (one.kernel.name, one.bytes_read, one.bytes_written),
            ("matvec_lanes_q1_0", 2 * 20 + 512, 8)
        );
        assert_eq!((one.workgroups.x, one.workgroups.y), (1, 1));
        let many = linear(x33, w, y33, true).unwrap();
        assert_eq!(many.kernel.name, "matmul_q1_0_t48");
        assert_eq!((many.bytes_read, many.bytes_written), (40 + 33 * 512 + 33 * 8, 33 * 8));
        assert_eq!((many.workgroups.x, many.workgroups.y), (1, 1));
        let (tokens, out) = (c.words(1, 3, vec![0; 3]), c.output(3, 128));
        let rows = embed(tokens, w, out).unwrap();
        assert_eq!((rows.kernel.name, rows.bytes_read, rows.bytes_written), ("embed_q1_0", 12 + 60, 3 * 512));
        // The output matrix of a 27B model in one piece, and one that folds.
        let y = Tensor { cols: 1_000_000, ..y1 };
        let workgroups = |rows| matvec::matvec(x1, Weight { rows, ..w }, y, false).unwrap().workgroups;
        assert_eq!((workgroups(248_320).x, workgroups(248_320).y), (62_080, 1));
        assert_eq!((workgroups(262_141).x, workgroups(262_141).y), (32_768, 2));
    }

    #[test]
    fn every_format_runs_its_own_kernel() {
        for format in Format::ALL {
            let mut c = CaseBuilder::new(1);
            let cols = format.block_weights();
            let w = weight(&mut c, format, cols, 0, &vec![0; format.file_row_bytes(cols)]);
            let (x, y) = (c.random(1, cols, 1.0), c.output(1, 1));
            let (x2, y2) = (c.random(2, cols, 1.0), c.output(2, 1));
            let (tokens, out) = (c.words(1, 1, vec![0]), c.output(1, cols));
            let name = |dispatch: Result<Dispatch, ShapeError>| dispatch.unwrap().kernel.name;
            assert_eq!(name(linear(x, w, y, false)), format!("matvec_lanes_{}", format.name()));
            assert_eq!(name(linear(x2, w, y2, false)), format!("matmul_{}_t8", format.name()));
            assert_eq!(name(embed(tokens, w, out)), format!("embed_{}", format.name()));
        }
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let mut c = CaseBuilder::new(1);
        let w = weight(&mut c, Format::Q1_0, 128, 1, &two_rows());
        for t in [1, 2] {
            let (x, y) = (c.random(t, 128, 1.0), c.output(t, 3));
            assert!(linear(x, w, y, false).is_ok());
            let refused = [
                linear(Tensor { cols: 256, ..x }, w, y, false),
                linear(x, w, Tensor { rows: t + 1, ..y }, false),
                linear(x, w, Tensor { cols: 2, ..y }, false),
                linear(x, Weight { row_offset: u32::MAX, ..w }, y, false),
                linear(x, Weight { rows: 0, ..w }, y, false),
                linear(Tensor { cols: 64, ..x }, Weight { cols: 64, ..w }, y, false),
                linear(Tensor { cols: 0, ..x }, Weight { cols: 0, ..w }, y, false),
            ];
            for (i, result) in refused.into_iter().enumerate() {
                assert!(result.is_err(), "{t} rows, mistake {i}");
            }
        }
        let (tokens, out) = (c.words(1, 2, vec![0, 0]), c.output(2, 128));
        assert!(embed(tokens, w, out).is_ok());
        assert!(embed(Tensor { rows: 2, cols: 1, ..tokens }, w, out).is_err());
        assert!(embed(tokens, w, Tensor { rows: 3, ..out }).is_err());
        assert!(embed(tokens, w, Tensor { cols: 64, ..out }).is_err());
        let error = embed(tokens, Weight { cols: 64, ..w }, Tensor { cols: 64, ..out }).unwrap_err();
        assert_eq!(
            error.to_string(),
            "embed_q1_0: columns of the matrix is 64, which must be a positive multiple of 128"
        );
    }
}
