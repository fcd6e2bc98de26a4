use super::Params;
use crate::kernel::Args;
use crate::kernels::activation::{sigmoid, softplus};

pub(super) fn delta_net(args: &mut Args<'_>) {
    let p: Params = args.params();
    let n_tokens = args.state.n_tokens.min(p.rows) as usize;
    let (y, alpha, beta) = (args.read(0), args.read(1), args.read(2));
    let (ssm_a, dt_bias) = (args.read(3), args.read(4));
    let (key_heads, value_heads) = (p.key_heads as usize, p.value_heads as usize);
    let (dk, dv) = (p.key_dim as usize, p.value_dim as usize);
    let (n_keys, n_values) = (key_heads * dk, value_heads * dv);
    for head in 0..value_heads {
        let s = &mut args.write(0)[head * dk * dv..(head + 1) * dk * dv];
        let mut outs = vec![0.0; n_tokens * dv];
        for t in 0..n_tokens {
            let row = &y[t * (2 * n_keys + n_values)..];
            let key_head = head % key_heads;
            let q = &row[key_head * dk..(key_head + 1) * dk];
            let k = &row[n_keys + key_head * dk..n_keys + (key_head + 1) * dk];
            let v = &row[2 * n_keys + head * dv..2 * n_keys + (head + 1) * dv];
            let gate = t * p.gates_stride as usize + head;
            let bias = f64::from(alpha[gate + p.alpha_first as usize]) + f64::from(dt_bias[head]);
            let decay = (f64::from(ssm_a[head]) * softplus(bias)).exp();
            let strength = sigmoid(f64::from(beta[gate + p.beta_first as usize]));
            for c in 0..dv {
                let mut recalled = 0.0;
                for i in 0..dk {
                    recalled += decay * f64::from(s[i * dv + c]) * f64::from(k[i]);
                }
                let d = strength * (f64::from(v[c]) - recalled);
                let mut sum = 0.0;
                for i in 0..dk {
                    let element = decay * f64::from(s[i * dv + c]) + f64::from(k[i]) * d;
                    s[i * dv + c] = element as f32;
                    sum += element * f64::from(q[i]);
                }
                outs[t * dv + c] = sum as f32;
            }
        }
        let out = args.write(1);
        for t in 0..n_tokens {
            out[t * n_values + head * dv..t * n_values + (head + 1) * dv]
                .copy_from_slice(&outs[t * dv..(t + 1) * dv]);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::case::{CaseBuilder, Tolerance, run_reference};
    use crate::kernels::activation::softplus;
    use crate::kernels::delta_net::{DeltaGates, DeltaShape, delta_net};

    const EXACT: Tolerance = Tolerance { absolute: 0.0, relative: 0.0 };

    const KEYS: [[f32; 2]; 3] = [[0.6, 0.8], [1.0, 0.0], [0.28, 0.96]];
    const QUERIES: [[f32; 2]; 3] = [[0.5, 0.5], [0.25, -0.5], [0.7, 0.1]];
    const VALUES: [[f32; 2]; 3] = [[1.0, -2.0], [0.5, 3.0], [-1.0, 0.25]];
    const STATE: [f32; 4] = [0.2, -0.1, 0.05, 0.3];

    /// Three tokens with 2 x 2 states, computed apart from this code:
    /// g = -0.1, -0.5, -0.02 and beta = 0.5, 0.9, 0.25.
    const OUT: [f64; 6] = [
        0.412_433_781_8,
        -0.666_521_015_5,
        0.001_670_013_7,
        0.843_836_852_7,
        0.251_313_569_9,
        1.776_299_120_1,
    ];
    const STATE_AFTER: [f64; 4] = [0.372_471_965_9, 2.592_789_511_4, -0.094_168_062_3, -0.386_535_378_5];

    /// The logits that give the golden case its decay and strength, with ssm_a = -2 and a bias of
    /// 0.25: softplus(alpha + 0.25) = -g / 2.
    fn gate_logits() -> ([f32; 3], [f32; 3]) {
        let alpha = [-0.1, -0.5, -0.02].map(|g: f64| ((-g / 2.0).exp_m1().ln() - 0.25) as f32);
        let beta = [0.5, 0.9, 0.25].map(|b: f64| (b / (1.0 - b)).ln() as f32);
        (alpha, beta)
    }

    fn assert_close(bits: &[u32], expected: &[f64], what: &str) {
        assert_eq!(bits.len(), expected.len(), "{what}");
        for (i, (&bits, &expected)) in bits.iter().zip(expected).enumerate() {
            let actual = f64::from(f32::from_bits(bits));
            assert!((actual - expected).abs() < 1e-6, "{what}[{i}]: {actual}, not {expected}");
        }
    }

    #[test]
    fn golden_recurrence() {
        let (alpha, beta) = gate_logits();
        let mut c = CaseBuilder::new(1);
        c.state.n_tokens = 3;
        let rows: Vec<f32> = (0..3).flat_map(|t| [QUERIES[t], KEYS[t], VALUES[t]].concat()).collect();
        let y = c.values(3, 6, &rows);
        let gates = DeltaGates {
            alpha: c.values(3, 1, &alpha).into(),
            beta: c.values(3, 1, &beta).into(),
            ssm_a: c.values(1, 1, &[-2.0]),
            dt_bias: c.values(1, 1, &[0.25]),
        };
        let s = c.values(2, 2, &STATE);
        let out = c.output(3, 2);
        let shape = DeltaShape { num_key_heads: 1, num_value_heads: 1, key_head_dim: 2, value_head_dim: 2 };
        let case = c.finish("golden", delta_net(y, gates, s, out, shape), EXACT).unwrap();
        let (buffers, _) = run_reference(&case);
        assert_close(&buffers[6], &OUT, "out");
        assert_close(&buffers[5], &STATE_AFTER, "state");
    }

    /// The same numbers in value head 2 of 4 with 2 key heads, hence key head 0, while all other
    /// heads hold zeros; one token per step.
    #[test]
    fn golden_recurrence_in_a_tiled_head_token_by_token() {
        let (alpha, beta) = gate_logits();
        let mut state = vec![0.0; 16];
        state[8..12].copy_from_slice(&STATE);
        for t in 0..3 {
            let mut c = CaseBuilder::new(1);
            let nil = [0.0; 2];
            let row = [QUERIES[t], nil, KEYS[t], nil, nil, nil, VALUES[t], nil];
            let y = c.values(1, 16, &row.concat());
            let gates = DeltaGates {
                alpha: c.values(1, 4, &[9.0, 9.0, alpha[t], 9.0]).into(),
                beta: c.values(1, 4, &[9.0, 9.0, beta[t], 9.0]).into(),
                ssm_a: c.values(1, 4, &[-9.0, -9.0, -2.0, -9.0]),
                dt_bias: c.values(1, 4, &[9.0, 9.0, 0.25, 9.0]),
            };
            let s = c.values(8, 2, &state);
            let out = c.output(1, 8);
            let shape =
                DeltaShape { num_key_heads: 2, num_value_heads: 4, key_head_dim: 2, value_head_dim: 2 };
            let case = c.finish("golden", delta_net(y, gates, s, out, shape), EXACT).unwrap();
            let (buffers, _) = run_reference(&case);
            let expected = [&[0.0; 4][..], &OUT[2 * t..2 * t + 2], &[0.0; 2]].concat();
            assert_close(&buffers[6], &expected, &format!("out of token {t}"));
            state = buffers[5].iter().map(|&b| f32::from_bits(b)).collect();
        }
        let bits: Vec<u32> = state[8..12].iter().map(|v| v.to_bits()).collect();
        assert_close(&bits, &STATE_AFTER, "state");
        assert_eq!((&state[..8], &state[12..]), (&[0.0; 8][..], &[0.0; 4][..]));
    }

    #[test]
    fn softplus_at_its_ends() {
        assert!((softplus(0.0) - std::f64::consts::LN_2).abs() < 1e-16);
        // ln(1 + 3) and, from the series, e^-30.
        assert!((softplus(3f64.ln()) - 4f64.ln()).abs() < 1e-15);
        assert!((softplus(-30.0) / 9.357_622_968_840_175e-14 - 1.0).abs() < 1e-12);
        assert_eq!(softplus(1e4), 1e4);
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let mut c = CaseBuilder::new(1);
        let y = c.output(2, 2 * 2 * 3 + 4 * 5);
        let gates = DeltaGates {
            alpha: c.output(2, 4).into(),
            beta: c.output(2, 4).into(),
            ssm_a: c.output(1, 4),
            dt_bias: c.output(1, 4),
        };
        let (s, out) = (c.output(12, 5), c.output(2, 20));
        let shape = DeltaShape { num_key_heads: 2, num_value_heads: 4, key_head_dim: 3, value_head_dim: 5 };
        assert!(delta_net(y, gates, s, out, shape).is_ok());
        for bad in [
            DeltaShape { num_key_heads: 3, key_head_dim: 2, ..shape },
            DeltaShape { num_key_heads: 0, ..shape },
            DeltaShape { num_value_heads: 0, ..shape },
            DeltaShape { key_head_dim: 4, ..shape },
            DeltaShape { value_head_dim: 4, ..shape },
        ] {
            assert!(delta_net(y, gates, s, out, bad).is_err(), "{bad:?}");
        }
        let other = c.output(1, 5);
        assert!(delta_net(y, DeltaGates { alpha: other.into(), ..gates }, s, out, shape).is_err());
        assert!(delta_net(y, DeltaGates { beta: other.into(), ..gates }, s, out, shape).is_err());
        assert!(delta_net(y, DeltaGates { ssm_a: other, ..gates }, s, out, shape).is_err());
        assert!(delta_net(y, DeltaGates { dt_bias: other, ..gates }, s, out, shape).is_err());
        assert!(delta_net(y, gates, out, out, shape).is_err());
        assert!(delta_net(y, gates, s, s, shape).is_err());
    }
}
