use super::{CHUNK, Params};
use crate::cpu::lanes;
use crate::kernel::Args;
use crate::kernels::delta_chunk::fast::rows_of;

const N: usize = CHUNK as usize;

/// Rows of the state that all tokens of a chunk read one after the other, while they are in the nearest cache.
const STATE_ROWS: usize = 4;

pub(super) fn delta_net(args: &mut Args<'_>) {
    let p: Params = args.params();
    let n_tokens = args.state.n_tokens.min(p.rows) as usize;
    let (y, solve, mixing, decay) = (args.read(0), args.read(1), args.read(2), args.read(3));
    let (key_heads, value_heads) = (p.key_heads as usize, p.value_heads as usize);
    let (dk, dv) = (p.key_dim as usize, p.value_dim as usize);
    let (n_keys, n_values) = (key_heads * dk, value_heads * dv);
    let y_cols = 2 * n_keys + n_values;
    // The states of a key head stay in a cache from chunk to chunk.
    for key_head in 0..key_heads {
        for first in (0..n_tokens).step_by(N) {
            let n = (n_tokens - first).min(N);
            let queries = rows_of(y, y_cols, first, n, key_head * dk, dk);
            let keys = rows_of(y, y_cols, first, n, n_keys + key_head * dk, dk);
            for head in (key_head..value_heads).step_by(key_heads) {
                let matrices = (first / N * value_heads + head) * N * N;
                let left = |i: usize| decay[(first + i) * 2 * value_heads + head];
                let rest = |i: usize| decay[((first + i) * 2 + 1) * value_heads + head];
                let s = &mut args.write(0)[head * dk * dv..][..dk * dv];

                // S^T k and S^T q of every token.
                let (mut r, mut outputs) = (vec![0.0; n * dv], vec![0.0; n * dv]);
                for (e, rows) in (0..dk).step_by(STATE_ROWS).zip(s.chunks(STATE_ROWS * dv)) {
                    let factors = e..dk.min(e + STATE_ROWS);
                    for i in 0..n {
                        lanes::add_rows(&mut r[i * dv..][..dv], &keys[i * dk..][factors.clone()], rows);
                        lanes::add_rows(
                            &mut outputs[i * dv..][..dv],
                            &queries[i * dk..][factors.clone()],
                            rows,
                        );
                    }
                }
                let values = rows_of(y, y_cols, first, n, 2 * n_keys + head * dv, dv);
                let mut u = vec![0.0; n * dv];
                for i in 0..n {
                    let token = i * dv..(i + 1) * dv;
                    for (r, v) in r[token.clone()].iter_mut().zip(&values[token.clone()]) {
                        *r = v - left(i) * *r;
                    }
                    lanes::add_rows(&mut u[token.clone()], &column(&solve[matrices..], N, i)[..=i], &r);
                    lanes::scale(&mut outputs[token.clone()], left(i));
                    lanes::add_rows(&mut outputs[token], &column(&mixing[matrices..], N, i)[..=i], &u);
                }
                for (i, u) in u.chunks_exact_mut(dv).enumerate() {
                    lanes::scale(u, rest(i));
                }
                for (e, s) in s.chunks_exact_mut(dv).enumerate() {
                    lanes::scale(s, left(n - 1));
                    lanes::add_rows(s, &column(&keys, dk, e)[..n], &u);
                }
                let out = args.write(1)[first * n_values..].chunks_exact_mut(n_values);
                for (out, outputs) in out.zip(outputs.chunks_exact(dv)) {
                    out[head * dv..][..dv].copy_from_slice(outputs);
                }
            }
        }
    }
}

/// Element `index` of the first rows of a matrix.
fn column(matrix: &[f32], cols: usize, index: usize) -> [f32; N] {
    let mut column = [0.0; N];
    for (element, row) in column.iter_mut().zip(matrix.chunks_exact(cols)) {
        *element = row[index];
    }
    column
}
