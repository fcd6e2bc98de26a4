use super::{CHUNK, Params};
use crate::kernel::Args;

pub(super) fn delta_net(args: &mut Args<'_>) {
    let p: Params = args.params();
    let n_tokens = args.state.n_tokens.min(p.rows) as usize;
    let (y, solve, mixing, decay) = (args.read(0), args.read(1), args.read(2), args.read(3));
    let (key_heads, value_heads) = (p.key_heads as usize, p.value_heads as usize);
    let (dk, dv) = (p.key_dim as usize, p.value_dim as usize);
    let (n_keys, n_values) = (key_heads * dk, value_heads * dv);
    const N: usize = CHUNK as usize;
    for first in (0..n_tokens).step_by(N) {
        let n = (n_tokens - first).min(N);
        for head in 0..value_heads {
            let matrices = (first / N * value_heads + head) * N * N;
            let row = |i: usize| &y[(first + i) * (2 * n_keys + n_values)..];
            let key_head = head % key_heads;
            let query = |i: usize| &row(i)[key_head * dk..(key_head + 1) * dk];
            let key = |i: usize| &row(i)[n_keys + key_head * dk..n_keys + (key_head + 1) * dk];
            let left = |i: usize| f64::from(decay[(first + i) * 2 * value_heads + head]);
            let rest = |i: usize| f64::from(decay[((first + i) * 2 + 1) * value_heads + head]);
            for c in 0..dv {
                let s = |i: usize| (head * dk + i) * dv + c;
                let column: Vec<f64> = (0..dk).map(|i| f64::from(args.write(0)[s(i)])).collect();
                let times = |x: &[f32]| -> f64 {
                    let mut sum = 0.0;
                    for i in 0..dk {
                        sum += column[i] * f64::from(x[i]);
                    }
                    sum
                };
                let value = |i: usize| f64::from(row(i)[2 * n_keys + head * dv + c]);
                let r: Vec<f64> = (0..n).map(|i| value(i) - left(i) * times(key(i))).collect();
                let mut u = vec![0.0; n];
                for i in 0..n {
                    for l in 0..=i {
                        u[i] += f64::from(solve[matrices + l * N + i]) * r[l];
                    }
                }
                for i in 0..n {
                    let mut sum = left(i) * times(query(i));
                    for l in 0..=i {
                        sum += f64::from(mixing[matrices + l * N + i]) * u[l];
                    }
                    args.write(1)[(first + i) * n_values + head * dv + c] = sum as f32;
                }
                for (e, before) in column.iter().enumerate() {
                    let mut sum = left(n - 1) * before;
                    for (i, u) in u.iter().enumerate() {
                        sum += rest(i) * f64::from(key(i)[e]) * u;
                    }
                    args.write(0)[s(e)] = sum as f32;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::case::{CaseBuilder, Rng, Tolerance, run_reference};
    use crate::cpu::CpuKernels;
    use crate::kernel::Tensor;
    use crate::kernels::activation::{sigmoid, softplus};
    use crate::kernels::delta_chunk::cases::{Buffers, Spec, specs};
    use crate::kernels::delta_chunk::{CHUNK, DeltaChunks, delta_chunk};
    use crate::kernels::delta_net::{DeltaGates, DeltaShape, delta_net};

    const EXACT: Tolerance = Tolerance { absolute: 0.0, relative: 0.0 };

    /// Both kernels of the rule, one after the other: what `out` and the state are then.
    fn run(
        mut c: CaseBuilder,
        step: Buffers,
        s: &[f32],
        shape: DeltaShape,
    ) -> (Vec<f32>, Vec<f32>, Vec<Vec<u32>>) {
        let Buffers { y, gates, chunks } = step;
        let state = c.state;
        let values = shape.num_value_heads * shape.value_head_dim;
        let s = c.values(shape.num_value_heads * shape.key_head_dim, shape.value_head_dim, s);
        let out = c.output(y.rows, values);
        let first = c.finish("chunk", delta_chunk(y, gates, chunks, shape), EXACT).unwrap();
        let (mut buffers, _) = run_reference(&first);
        delta_net(y, chunks, s, out, shape).unwrap().run(
            CpuKernels::Reference,
            &mut buffers,
            &mut state.clone(),
        );
        let floats = |t: Tensor| buffers[t.buffer.0 as usize].iter().map(|&b| f32::from_bits(b)).collect();
        (floats(out), floats(s), buffers.clone())
    }

    /// The rule token by token in f64, as its formula reads: `out` and the state.
    fn recurrence(
        step: &Buffers,
        buffers: &[Vec<u32>],
        n_tokens: usize,
        s: &[f32],
        shape: DeltaShape,
    ) -> (Vec<f64>, Vec<f64>) {
        let (hk, hv) = (shape.num_key_heads as usize, shape.num_value_heads as usize);
        let (dk, dv) = (shape.key_head_dim as usize, shape.value_head_dim as usize);
        let at = |t: Tensor, i: usize| f64::from(f32::from_bits(buffers[t.buffer.0 as usize][i]));
        let mut s: Vec<f64> = s.iter().map(|&s| f64::from(s)).collect();
        let mut out = vec![0.0; n_tokens * hv * dv];
        for t in 0..n_tokens {
            let row = t * (2 * hk * dk + hv * dv);
            for j in 0..hv {
                let DeltaGates { alpha, beta, ssm_a, dt_bias } = step.gates;
                let gate = t * alpha.tensor.cols as usize + j;
                let x = at(alpha.tensor, gate + alpha.first as usize) + at(dt_bias, j);
                let decay = (at(ssm_a, j) * softplus(x)).exp();
                let strength = sigmoid(at(beta.tensor, gate + beta.first as usize));
                let q = |i: usize| at(step.y, row + j % hk * dk + i);
                let k = |i: usize| at(step.y, row + (hk + j % hk) * dk + i);
                for c in 0..dv {
                    let cell = |i: usize| (j * dk + i) * dv + c;
                    let mut recalled = 0.0;
                    for i in 0..dk {
                        s[cell(i)] *= decay;
                        recalled += s[cell(i)] * k(i);
                    }
                    let d = strength * (at(step.y, row + 2 * hk * dk + j * dv + c) - recalled);
                    for i in 0..dk {
                        s[cell(i)] += k(i) * d;
                        out[(t * hv + j) * dv + c] += s[cell(i)] * q(i);
                    }
                }
            }
        }
        (out, s)
    }

    /// Chunks against the recurrence. M, P, decays and the state between chunks are rounded to f32,
    /// 2^-24 each; sums of up to 128 such products of numbers below 1 stay within 2e-6.
    #[test]
    fn chunks_give_what_the_recurrence_gives() {
        for (i, spec) in specs().into_iter().enumerate() {
            let shape = spec.shape;
            let mut rng = Rng::new(1200 + i as u32);
            let n = shape.num_value_heads * shape.key_head_dim * shape.value_head_dim;
            let before: Vec<f32> = (0..n).map(|_| rng.uniform()).collect();
            let mut c = CaseBuilder::new(1000 + i as u32);
            let step = spec.build(&mut c);
            let (y, gates, chunks) = (step.y, step.gates, step.chunks);
            let (out, s, buffers) = run(c, step, &before, shape);
            let n_tokens = spec.n_tokens.min(spec.rows) as usize;
            let step = Buffers { y, gates, chunks };
            let (expected_out, expected_s) = recurrence(&step, &buffers, n_tokens, &before, shape);
            for (what, actual, expected) in [("out", out, expected_out), ("state", s, expected_s)] {
                for (i, (a, e)) in actual.iter().zip(&expected).enumerate() {
                    let difference = (f64::from(*a) - e).abs();
                    assert!(difference <= 2e-6 + 2e-6 * e.abs(), "{}: {what}[{i}] {a}, not {e}", spec.name());
                }
            }
        }
    }

    /// Three tokens with 2 x 2 states, computed apart from this code, in value head 2 of 4 with 2 key
    /// heads, hence key head 0, padded to 4 x 4 with zeros: g = -0.1, -0.5, -0.02 and beta = 0.5, 0.9,
    /// 0.25.
    #[test]
    fn golden_chunk() {
        const KEYS: [[f32; 2]; 3] = [[0.6, 0.8], [1.0, 0.0], [0.28, 0.96]];
        const QUERIES: [[f32; 2]; 3] = [[0.5, 0.5], [0.25, -0.5], [0.7, 0.1]];
        const VALUES: [[f32; 2]; 3] = [[1.0, -2.0], [0.5, 3.0], [-1.0, 0.25]];
        const OUT: [[f64; 2]; 3] = [
            [0.412_433_781_8, -0.666_521_015_5],
            [0.001_670_013_7, 0.843_836_852_7],
            [0.251_313_569_9, 1.776_299_120_1],
        ];
        const STATE: [[f64; 2]; 2] =
            [[0.372_471_965_9, 2.592_789_511_4], [-0.094_168_062_3, -0.386_535_378_5]];
        // With ssm_a = -2 and a bias of 0.25: softplus(alpha + 0.25) = -g / 2.
        let alpha = [-0.1, -0.5, -0.02].map(|g: f64| ((-g / 2.0).exp_m1().ln() - 0.25) as f32);
        let beta = [0.5, 0.9, 0.25].map(|b: f64| (b / (1.0 - b)).ln() as f32);
        let shape = DeltaShape { num_key_heads: 2, num_value_heads: 4, key_head_dim: 4, value_head_dim: 4 };
        let mut c = CaseBuilder::new(1);
        c.state.n_tokens = 3;
        let (mut y, mut gates) = (Vec::new(), Vec::new());
        for t in 0..3 {
            let mut row = [0.0; 32];
            row[..2].copy_from_slice(&QUERIES[t]);
            row[8..10].copy_from_slice(&KEYS[t]);
            row[24..26].copy_from_slice(&VALUES[t]);
            y.extend(row);
            gates.extend([9.0, 9.0, alpha[t], 9.0, 9.0, 9.0, beta[t], 9.0]);
        }
        let y = c.values(3, 32, &y);
        let gates = c.values(3, 8, &gates);
        let gates = DeltaGates {
            alpha: gates.columns(0, 4),
            beta: gates.columns(4, 4),
            ssm_a: c.values(1, 4, &[-9.0, -9.0, -2.0, -9.0]),
            dt_bias: c.values(1, 4, &[9.0, 9.0, 0.25, 9.0]),
        };
        let chunks =
            DeltaChunks { solve: c.output(128, CHUNK), mixing: c.output(128, CHUNK), decay: c.output(3, 8) };
        let mut s = [0.0; 64];
        s[32..34].copy_from_slice(&[0.2, -0.1]);
        s[36..38].copy_from_slice(&[0.05, 0.3]);
        let (out, s, buffers) = run(c, Buffers { y, gates, chunks }, &s, shape);
        let close = |actual: f32, expected: f64, what: &str| {
            assert!((f64::from(actual) - expected).abs() < 1e-6, "{what}: {actual}, not {expected}");
        };
        for t in 0..3 {
            for c in 0..16 {
                let expected = if (8..10).contains(&c) { OUT[t][c - 8] } else { 0.0 };
                close(out[t * 16 + c], expected, &format!("out [{t}, {c}]"));
            }
        }
        for (i, &s) in s.iter().enumerate() {
            let (row, c) = (i / 4, i % 4);
            let expected = if (8..10).contains(&row) && c < 2 { STATE[row - 8][c] } else { 0.0 };
            close(s, expected, &format!("state [{row}, {c}]"));
        }
        // M = (I + A)^-1 diag(b), so that M_10 = -A_10 b_0, and M_20 = (A_21 A_10 - A_20) b_0.
        let (a10, a20, a21) = (0.327_526_556_2, 0.139_117_808_2, 0.068_613_907_1);
        let m = |i: usize, l: usize| {
            f32::from_bits(buffers[chunks.solve.buffer.0 as usize][(2 * 32 + l) * 32 + i])
        };
        close(m(0, 0), 0.5, "M_00");
        close(m(1, 0), -a10 * 0.5, "M_10");
        close(m(2, 0), (a21 * a10 - a20) * 0.5, "M_20");
        close(m(2, 1), -a21 * 0.9, "M_21");
        close(m(0, 2), 0.0, "M_02");
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let shape = DeltaShape { num_key_heads: 2, num_value_heads: 4, key_head_dim: 4, value_head_dim: 8 };
        let spec = Spec { rows: 2, n_tokens: 2, shape, alpha: 1.0, beta: 1.0, repeats: false };
        let mut c = CaseBuilder::new(1);
        let Buffers { y, gates, chunks } = spec.build(&mut c);
        let (s, out) = (c.output(16, 8), c.output(2, 32));
        assert!(delta_chunk(y, gates, chunks, shape).is_ok());
        assert!(delta_net(y, chunks, s, out, shape).is_ok());
        for bad in [
            DeltaShape { num_key_heads: 3, key_head_dim: 2, ..shape },
            DeltaShape { num_key_heads: 0, ..shape },
            DeltaShape { num_value_heads: 0, ..shape },
            DeltaShape { key_head_dim: 8, ..shape },
            DeltaShape { value_head_dim: 4, ..shape },
        ] {
            assert!(delta_chunk(y, gates, chunks, bad).is_err(), "{bad:?}");
            assert!(delta_net(y, chunks, s, out, bad).is_err(), "{bad:?}");
        }
        // Heads that are not whole vectors.
        let odd = DeltaShape { num_key_heads: 1, num_value_heads: 1, key_head_dim: 4, value_head_dim: 6 };
        let (y_odd, s_odd, out_odd) = (c.output(2, 14), c.output(4, 6), c.output(2, 6));
        assert!(delta_net(y_odd, chunks, s_odd, out_odd, odd).is_err());
        let other = c.output(1, 5);
        let refused = [
            DeltaGates { alpha: other.columns(0, 4), ..gates },
            DeltaGates { beta: other.columns(0, 4), ..gates },
            DeltaGates { beta: c.output(2, 4).into(), ..gates },
            DeltaGates { ssm_a: other, ..gates },
            DeltaGates { dt_bias: other, ..gates },
        ];
        for (i, gates) in refused.into_iter().enumerate() {
            assert!(delta_chunk(y, gates, chunks, shape).is_err(), "gates {i}");
        }
        for (i, chunks) in [
            DeltaChunks { solve: other, ..chunks },
            DeltaChunks { mixing: other, ..chunks },
            DeltaChunks { decay: other, ..chunks },
        ]
        .into_iter()
        .enumerate()
        {
            assert!(delta_chunk(y, gates, chunks, shape).is_err(), "chunks {i}");
            assert!(delta_net(y, chunks, s, out, shape).is_err(), "chunks {i}");
        }
        assert!(delta_net(y, chunks, out, out, shape).is_err());
        assert!(delta_net(y, chunks, s, s, shape).is_err());
    }
}
