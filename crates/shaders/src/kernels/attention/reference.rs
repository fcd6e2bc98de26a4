use super::Params;
use crate::kernel::Args;
use crate::kernels::activation::sigmoid;

pub(super) fn attention(args: &mut Args<'_>) {
    let p: Params = args.params();
    let (n_tokens, position) = (args.state.n_tokens.min(p.rows) as usize, args.state.position as usize);
    let (q, qkv, k_cache, v_cache) = (args.read(0), args.read(1), args.read(2), args.read(3));
    let out = args.write(0);
    let (num_kv_heads, group) = (p.num_kv_heads as usize, p.group as usize);
    let num_heads = num_kv_heads * group;
    let (head_dim, qkv_cols) = (p.quads as usize * 4, p.qkv_quads as usize * 4);
    for token in 0..n_tokens {
        let n_keys = (position + token + 1).min(p.context as usize);
        for head in 0..num_heads {
            let kv_head = head / group;
            let row = (token * num_heads + head) * head_dim;
            let cached = |u: usize| (u * num_kv_heads + kv_head) * head_dim;
            let mut scores = vec![0.0; n_keys];
            for (u, score) in scores.iter_mut().enumerate() {
                let mut dot = 0.0;
                for i in 0..head_dim {
                    dot += f64::from(q[row + i]) * f64::from(k_cache[cached(u) + i]);
                }
                *score = dot * f64::from(p.scale);
            }
            let mut top = scores[0];
            for &score in &scores {
                top = top.max(score);
            }
            let mut total = 0.0;
            let mut sums = vec![0.0; head_dim];
            for (u, &score) in scores.iter().enumerate() {
                let weight = (score - top).exp();
                total += weight;
                for i in 0..head_dim {
                    sums[i] += weight * f64::from(v_cache[cached(u) + i]);
                }
            }
            let gates = token * qkv_cols + (2 * head + 1) * head_dim;
            for i in 0..head_dim {
                let gate = if p.gated != 0 { sigmoid(qkv[gates + i].into()) } else { 1.0 };
                out[row + i] = (sums[i] / total * gate) as f32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::case::{CaseBuilder, Tolerance, run_reference};
    use crate::kernels::attention::{attention, max_counted_context};
    use crate::kernels::qkv::{AttentionShape, KvCache};

    const TOLERANCE: Tolerance = Tolerance { absolute: 0.0, relative: 0.0 };

    /// By hand: scores 0, ln 2 and ln 5 weigh values 1/8, 2/8 and 5/8. The second query head of
    /// each pair is zero and so weighs its keys equally. Row 3 of the cache is in the future. The gates
    /// let 3/4, 1/4, 1/2 and all of the four elements through.
    #[test]
    fn softmax_by_hand_with_two_query_heads_per_key_head() {
        let (ln2, ln5) = (2f32.ln(), 5f32.ln());
        let mut c = CaseBuilder::new(1);
        c.state.position = 1;
        c.state.n_tokens = 2;
        let one = [1.0, 0.0, 0.0, 0.0];
        let nil = [0.0; 4];
        let q = c.values(2, 16, &[one, nil, one, nil, one, nil, one, nil].concat());
        let key = |s: f32| [s, 7.0, 7.0, 7.0];
        let keys = [[key(0.0), key(ln5)], [key(ln2), key(ln2)], [key(ln5), key(0.0)], [key(50.0), key(50.0)]];
        let k_cache = c.values(4, 8, &keys.concat().concat());
        let value = |v: f32| [v, 1.0, 0.0, -v];
        let values: Vec<_> = [8.0, 16.0, -24.0, 1e9].map(|v| [value(v), value(10.0 * v)]).concat();
        let v_cache = c.values(4, 8, &values.concat());
        let out = c.output(2, 16);
        let ln3 = 3f32.ln();
        let row = [[[9.0; 4], [ln3, -ln3, 0.0, 1e4]].concat().repeat(4), vec![9.0; 16]].concat();
        let qkv = c.values(2, 48, &row.repeat(2));
        let shape = AttentionShape { num_heads: 4, num_kv_heads: 2, head_dim: 4, gated: true };
        let cache = KvCache { k: k_cache, v: v_cache };
        let case = c.finish("hand", attention(q, qkv, cache, out, shape, 1.0), TOLERANCE).unwrap();
        let (buffers, _) = run_reference(&case);
        // Token 0 sees two keys (weights 1 and 2; 5 and 2 in the other key head), token 1 three.
        let first = [
            [(8.0 + 2.0 * 16.0) / 3.0, 12.0, (5.0 * 80.0 + 2.0 * 160.0) / 7.0, 120.0],
            [(8.0 + 2.0 * 16.0 - 5.0 * 24.0) / 8.0, 0.0, (5.0 * 80.0 + 2.0 * 160.0 - 240.0) / 8.0, 0.0],
        ];
        for (row, heads) in first.iter().enumerate() {
            for (head, &v) in heads.iter().enumerate() {
                for (i, expected) in [0.75 * v, 0.25, 0.0, -v].into_iter().enumerate() {
                    let actual = f32::from_bits(buffers[3][row * 16 + head * 4 + i]);
                    assert!((actual - expected).abs() < 2e-5, "{row} {head} {i}: {actual}, not {expected}");
                }
            }
        }
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let mut c = CaseBuilder::new(1);
        let (q, out, qkv) = (c.output(2, 24), c.output(2, 24), c.output(2, 40));
        let (k, v, short) = (c.output(5, 8), c.output(5, 8), c.output(4, 8));
        let cache = KvCache { k, v };
        let shape = AttentionShape { num_heads: 6, num_kv_heads: 2, head_dim: 4, gated: false };
        assert!(attention(q, qkv, cache, out, shape, 1.0).is_ok());
        assert!(attention(q, qkv, KvCache { v: short, ..cache }, out, shape, 1.0).is_err());
        assert!(attention(q, qkv, cache, k, shape, 1.0).is_err());
        assert!(attention(q, out, cache, out, shape, 1.0).is_err());
        let other = AttentionShape { num_heads: 3, num_kv_heads: 1, head_dim: 8, gated: false };
        assert!(attention(q, qkv, cache, out, other, 1.0).is_ok());
        for bad in [
            AttentionShape { num_heads: 2, ..other },
            AttentionShape { num_heads: 4, num_kv_heads: 3, head_dim: 6, gated: false },
            AttentionShape { gated: true, ..shape },
            AttentionShape { num_kv_heads: 0, ..shape },
            AttentionShape { num_heads: 0, ..shape },
            AttentionShape { head_dim: 0, ..shape },
            AttentionShape { head_dim: 260, ..shape },
        ] {
            assert!(attention(q, qkv, cache, out, bad, 1.0).is_err(), "{bad:?}");
        }
    }

    /// 65,535 iterations: 65,519 of them for tiles of 64 keys that take 1 + 64 + 8 + 8 * 17 each.
    #[test]
    fn the_counted_context_by_hand() {
        let shape = AttentionShape { num_heads: 6, num_kv_heads: 1, head_dim: 256, gated: true };
        assert_eq!(max_counted_context(shape), 313 * 64);
    }
}
