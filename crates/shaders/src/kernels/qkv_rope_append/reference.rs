use super::Params;
use crate::kernel::Args;
use crate::kernels::qkv::norm_rope;

pub(super) fn qkv_rope_append(args: &mut Args<'_>) {
    let p: Params = args.params();
    let (n_tokens, first_position) = (args.state.n_tokens.min(p.rows) as usize, args.state.position as usize);
    let (qkv, q_norm, k_norm, rope) = (args.read(0), args.read(1), args.read(2), args.read(3));
    let (num_heads, num_kv_heads) = (p.num_heads as usize, p.num_kv_heads as usize);
    let (head_dim, q_stride, n_rot) = (p.head_dim as usize, p.q_stride as usize, p.n_rot as usize);
    let first_key = num_heads * q_stride;
    let first_value = first_key + num_kv_heads * head_dim;
    let cols = first_value + num_kv_heads * head_dim;
    for token in 0..n_tokens {
        let position = first_position + token;
        if position >= p.context as usize {
            continue;
        }
        let row = &qkv[token * cols..(token + 1) * cols];
        let angles = &rope[position * n_rot..(position + 1) * n_rot];
        for head in 0..num_heads {
            let x = &row[head * q_stride..head * q_stride + head_dim];
            let dest = (token * num_heads + head) * head_dim;
            for (i, v) in norm_rope(x, q_norm, angles, p.eps).into_iter().enumerate() {
                args.write(0)[dest + i] = v as f32;
            }
        }
        for head in 0..num_kv_heads {
            let key = &row[first_key + head * head_dim..first_key + (head + 1) * head_dim];
            let value = &row[first_value + head * head_dim..first_value + (head + 1) * head_dim];
            let dest = (position * num_kv_heads + head) * head_dim;
            for (i, v) in norm_rope(key, k_norm, angles, p.eps).into_iter().enumerate() {
                args.write(1)[dest + i] = v as f32;
            }
            args.write(2)[dest..dest + head_dim].copy_from_slice(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::case::{CaseBuilder, Tolerance, run_reference};
    use crate::kernels::qkv::{AttentionShape, KvCache, NormRope};
    use crate::kernels::qkv_rope_append::qkv_rope_append;

    /// By hand: the head (3, 4, 0, 0) has root mean square 5/2; position 1 turns by a quarter, so the
    /// query becomes (-1.6, 1.2, 0, 0); keys have norm weights of 10. Gates are left alone.
    #[test]
    fn one_token_by_hand() {
        let mut c = CaseBuilder::new(1);
        c.state.position = 1;
        let head = [3.0, 4.0, 0.0, 0.0];
        let qkv = c.values(1, 16, &[head, [9.0; 4], head, [5.0, 6.0, 7.0, 8.0]].concat());
        let q_norm = c.values(1, 4, &[1.0; 4]);
        let k_norm = c.values(1, 4, &[10.0; 4]);
        let rope = c.values(3, 2, &[1.0, 0.0, 0.0, 1.0, 0.5, 0.5]);
        let q = c.output(1, 4);
        let cache = KvCache { k: c.values(3, 4, &[7.0; 12]), v: c.values(3, 4, &[7.0; 12]) };
        let shape = AttentionShape { num_heads: 1, num_kv_heads: 1, head_dim: 4, gated: true };
        let norm_rope = NormRope { q_norm, k_norm, rope, eps: 0.0 };
        let exact = Tolerance { absolute: 0.0, relative: 0.0 };
        let case = c.finish("hand", qkv_rope_append(qkv, norm_rope, q, cache, shape), exact).unwrap();
        let (buffers, _) = run_reference(&case);
        let floats = |i: usize| buffers[i].iter().map(|&b| f32::from_bits(b)).collect::<Vec<_>>();
        assert_eq!(floats(4), [-1.6, 1.2, 0.0, 0.0]);
        assert_eq!(floats(5), [7.0, 7.0, 7.0, 7.0, -16.0, 12.0, 0.0, 0.0, 7.0, 7.0, 7.0, 7.0]);
        assert_eq!(floats(6), [7.0, 7.0, 7.0, 7.0, 5.0, 6.0, 7.0, 8.0, 7.0, 7.0, 7.0, 7.0]);
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let mut c = CaseBuilder::new(1);
        let shape = AttentionShape { num_heads: 2, num_kv_heads: 1, head_dim: 12, gated: false };
        let (qkv, q) = (c.output(2, 48), c.output(2, 24));
        let cache = KvCache { k: c.output(9, 12), v: c.output(9, 12) };
        let norm = c.random(1, 12, 1.0);
        let rope = |c: &mut CaseBuilder, n_rot| NormRope {
            q_norm: norm,
            k_norm: norm,
            rope: c.random(9, n_rot, 1.0),
            eps: 0.0,
        };
        let good = rope(&mut c, 6);
        assert!(qkv_rope_append(qkv, good, q, cache, shape).is_ok());
        for n_rot in [0, 5, 14] {
            let bad = rope(&mut c, n_rot);
            assert!(qkv_rope_append(qkv, bad, q, cache, shape).is_err(), "{n_rot}");
        }
        for bad in [
            AttentionShape { num_heads: 3, ..shape },
            AttentionShape { num_kv_heads: 0, ..shape },
            AttentionShape { num_kv_heads: 2, ..shape },
            AttentionShape { head_dim: 11, ..shape },
            AttentionShape { gated: true, ..shape },
        ] {
            assert!(qkv_rope_append(qkv, good, q, cache, bad).is_err(), "{bad:?}");
        }
        assert!(qkv_rope_append(qkv, good, qkv, cache, shape).is_err());
        let short = KvCache { v: c.output(8, 12), ..cache };
        assert!(qkv_rope_append(qkv, good, q, short, shape).is_err());
    }
}
