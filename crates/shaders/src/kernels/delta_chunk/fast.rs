use super::{CHUNK, Params};
use crate::cpu::lanes;
use crate::kernel::Args;
use crate::kernels::activation::{sigmoid, softplus};

const N: usize = CHUNK as usize;

/// [i, l].
type Matrix = [[f32; N]; N];

pub(super) fn delta_chunk(args: &mut Args<'_>) {
    let p: Params = args.params();
    let n_tokens = args.state.n_tokens.min(p.rows) as usize;
    let (y, alpha, beta) = (args.read(0), args.read(1), args.read(2));
    let (ssm_a, dt_bias) = (args.read(3), args.read(4));
    let (key_heads, value_heads, dk) = (p.key_heads as usize, p.value_heads as usize, p.key_dim as usize);
    for key_head in 0..key_heads {
        for first in (0..n_tokens).step_by(N) {
            let n = (n_tokens - first).min(N);
            let queries = rows_of(y, p.y_cols as usize, first, n, key_head * dk, dk);
            let keys = rows_of(y, p.y_cols as usize, first, n, (key_heads + key_head) * dk, dk);
            let (from_queries, from_keys) = (products(&queries, &keys, dk), products(&keys, &keys, dk));
            for head in (key_head..value_heads).step_by(key_heads) {
                let gate = |x: &[f32], i: usize, column: u32| {
                    f64::from(x[(first + i) * p.gates_stride as usize + column as usize + head])
                };
                let (mut g, mut b) = ([0.0; N], [0.0; N]);
                for i in 0..n {
                    let rate = softplus(gate(alpha, i, p.alpha_first) + f64::from(dt_bias[head]));
                    g[i] = ssm_a[head] * rate as f32;
                    b[i] = sigmoid(gate(beta, i, p.beta_first)) as f32;
                }
                let (mut inverse, mut mixing) = ([[0.0; N]; N], [[0.0; N]; N]);
                // g_(l+1) + ... + g_i of the token i.
                let mut between = [0.0; N];
                let mut since_start = 0.0;
                for i in 0..n {
                    between[..i].iter_mut().for_each(|sum| *sum += g[i]);
                    since_start += g[i];
                    args.write(2)[(first + i) * 2 * value_heads + head] = lanes::exp(since_start);
                    let mut decays = between;
                    decays.iter_mut().for_each(|sum| *sum = lanes::exp(*sum));
                    let mut a = [0.0; N];
                    for l in 0..N {
                        mixing[i][l] = from_queries[i][l] * decays[l];
                        a[l] = -b[i] * from_keys[i][l] * decays[l];
                    }
                    let (earlier, row) = inverse.split_at_mut(i);
                    row[0][i] = 1.0;
                    lanes::add_rows(&mut row[0], &a[..i], earlier.as_flattened());
                }
                for (i, sum) in between.iter().enumerate().take(n) {
                    args.write(2)[((first + i) * 2 + 1) * value_heads + head] = lanes::exp(*sum);
                }
                let base = (first / N * value_heads + head) * N * N;
                write_transposed(&inverse, &b, &mut args.write(0)[base..]);
                write_transposed(&mixing, &[1.0; N], &mut args.write(1)[base..]);
            }
        }
    }
}

/// Some columns of `n` rows, without what lies between them: rows a power of two apart would displace
/// each other in the cache.
pub(in crate::kernels) fn rows_of(
    y: &[f32],
    stride: usize,
    first: usize,
    n: usize,
    column: usize,
    cols: usize,
) -> Vec<f32> {
    let mut columns = Vec::with_capacity(n * cols);
    for row in y[first * stride..].chunks(stride).take(n) {
        columns.extend_from_slice(&row[column..column + cols]);
    }
    columns
}

/// Products of every row with the keys up to its own; zero with those behind.
fn products(rows: &[f32], keys: &[f32], dk: usize) -> Matrix {
    let mut products = [[0.0; N]; N];
    for (i, (row, products)) in rows.chunks_exact(dk).zip(&mut products).enumerate() {
        for (product, key) in products.iter_mut().zip(keys.chunks_exact(dk)).take(i + 1) {
            *product = lanes::dot(row, key);
        }
    }
    products
}

/// Writes [l, i], multiplied by the factor of `l`.
fn write_transposed(matrix: &Matrix, factors: &[f32; N], out: &mut [f32]) {
    for (l, (out, factor)) in out.chunks_exact_mut(N).zip(factors).enumerate() {
        for (out, row) in out.iter_mut().zip(matrix) {
            *out = row[l] * factor;
        }
    }
}
