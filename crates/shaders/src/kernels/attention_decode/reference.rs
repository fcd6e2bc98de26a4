use super::{Params, STATISTICS, tile_keys};
use crate::kernel::Args;
use crate::kernels::qkv::norm_rope;

pub(super) fn attention_decode(args: &mut Args<'_>) {
    let p: Params = args.params();
    let (position, n_rot) = (args.state.position as usize, p.n_rot as usize);
    if args.state.n_tokens == 0 || position >= p.context as usize {
        return;
    }
    let (qkv, q_norm, k_norm, rope) = (args.read(0), args.read(1), args.read(2), args.read(3));
    let (num_kv_heads, group) = (p.num_kv_heads as usize, p.group as usize);
    let (head_dim, q_stride) = (p.head_dim as usize, p.q_stride as usize);
    let angles = &rope[position * n_rot..(position + 1) * n_rot];
    let first_key = num_kv_heads * group * q_stride;
    let first_value = first_key + num_kv_heads * head_dim;
    let row = |u: usize, kv_head: usize| (u * num_kv_heads + kv_head) * head_dim;
    for kv_head in 0..num_kv_heads {
        let key = norm_rope(&qkv[first_key + kv_head * head_dim..][..head_dim], k_norm, angles, p.eps);
        for (i, v) in key.into_iter().enumerate() {
            args.write(0)[row(position, kv_head) + i] = v as f32;
        }
        let value = &qkv[first_value + kv_head * head_dim..][..head_dim];
        args.write(1)[row(position, kv_head)..][..head_dim].copy_from_slice(value);
    }
    let (k_cache, v_cache) = (args.write(0).to_vec(), args.write(1).to_vec());
    let (tile, n_splits) = (tile_keys(p.group) as usize, p.n_splits as usize);
    for head in 0..num_kv_heads * group {
        let kv_head = head / group;
        let q = norm_rope(&qkv[head * q_stride..][..head_dim], q_norm, angles, p.eps);
        for split in 0..n_splits {
            let cols = head_dim + STATISTICS as usize;
            let row_of_split = head * n_splits + split;
            let keys: Vec<usize> = (0..=position).filter(|u| u / tile % n_splits == split).collect();
            let score = |&u: &usize| {
                let key = &k_cache[row(u, kv_head)..][..head_dim];
                q.iter().zip(key).map(|(q, &k)| q * f64::from(k)).sum::<f64>() * f64::from(p.scale)
            };
            let scores: Vec<f64> = keys.iter().map(score).collect();
            let Some(mut top) = scores.first().copied() else {
                args.write(3)[row_of_split * cols + head_dim + 1] = 0.0;
                continue;
            };
            for (i, &q) in q.iter().enumerate() {
                args.write(2)[row_of_split * head_dim + i] = (q * f64::from(p.scale)) as f32;
            }
            for &score in &scores {
                top = top.max(score);
            }
            let mut total = 0.0;
            let mut sums = vec![0.0; head_dim];
            for (&u, &score) in keys.iter().zip(&scores) {
                let weight = (score - top).exp();
                total += weight;
                for i in 0..head_dim {
                    sums[i] += weight * f64::from(v_cache[row(u, kv_head) + i]);
                }
            }
            let result = &mut args.write(3)[row_of_split * cols..][..cols];
            for i in 0..head_dim {
                result[i] = sums[i] as f32;
            }
            result[head_dim] = top as f32;
            result[head_dim + 1] = total as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::case::{CaseBuilder, Tolerance, run_reference};
    use crate::kernel::Tensor;
    use crate::kernels::attention_decode::{attention_decode, n_splits, tile_keys};
    use crate::kernels::qkv::{AttentionShape, KvCache, NormRope};

    const TOLERANCE: Tolerance = Tolerance { absolute: 0.0, relative: 0.0 };

    /// By hand: at position 2 the query (1, 1, 1, 1), which the norm leaves alone, meets keys with scores
    /// ln 2, ln 4 and 4, the last one the new key (1, 1, 1, 1), in one split; the other one is empty.
    #[test]
    fn three_keys_by_hand() {
        let mut c = CaseBuilder::new(1);
        c.state.position = 2;
        let one = [1.0; 4];
        let qkv = c.values(1, 12, &[one, one, [8.0, 0.0, 4.0, -8.0]].concat());
        let norm = c.values(1, 4, &one);
        let rope = c.values(4, 2, &[1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]);
        let key = |s: f32| [s, 0.0, 0.0, 0.0];
        let old = |a: [f32; 4], b: [f32; 4]| [a, b, [9.0; 4], [9.0; 4]].concat();
        let k = c.values(4, 4, &old(key(2f32.ln()), key(4f32.ln())));
        let v = c.values(4, 4, &old([1.0, 0.0, 0.0, 2.0], [0.0, 1.0, 0.0, 3.0]));
        let (queries, partials) = (c.output(2, 4), c.output(2, 6));
        let shape = AttentionShape { num_heads: 1, num_kv_heads: 1, head_dim: 4, gated: false };
        let norm_rope = NormRope { q_norm: norm, k_norm: norm, rope, eps: 0.0 };
        let dispatch = attention_decode(qkv, norm_rope, KvCache { k, v }, queries, partials, shape, 1.0);
        let (buffers, _) = run_reference(&c.finish("hand", dispatch, TOLERANCE).unwrap());
        let floats = |i: usize| buffers[i].iter().map(|&b| f32::from_bits(b)).collect::<Vec<_>>();
        assert_eq!(floats(3)[8..], [1.0, 1.0, 1.0, 1.0, 9.0, 9.0, 9.0, 9.0]);
        assert_eq!(floats(4)[8..], [8.0, 0.0, 4.0, -8.0, 9.0, 9.0, 9.0, 9.0]);
        let e4 = (-4f32).exp();
        let expected = [8.0 + 2.0 * e4, 4.0 * e4, 4.0, 16.0 * e4 - 8.0, 4.0, 1.0 + 6.0 * e4];
        for (i, (actual, expected)) in floats(6).into_iter().zip(expected).enumerate() {
            assert!((actual - expected).abs() < 1e-6, "{i}: {actual}, not {expected}");
        }
        assert_eq!(floats(6)[11], 0.0);
        assert_eq!(floats(5), [1.0, 1.0, 1.0, 1.0, -12345.0, -12345.0, -12345.0, -12345.0]);
    }

    #[test]
    fn splits_by_hand() {
        let shape = |group: u32, head_dim| AttentionShape {
            num_heads: 2 * group,
            num_kv_heads: 2,
            head_dim,
            gated: false,
        };
        assert_eq!([1, 2, 6, 8, 64].map(tile_keys), [256, 128, 40, 32, 4]);
        // Tiles of 128 keys.
        for (context, splits) in [(1, 1), (512, 1), (513, 2), (4096, 8), (1 << 20, 64)] {
            assert_eq!(n_splits(shape(2, 128), context), splits, "{context}");
        }
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let mut c = CaseBuilder::new(1);
        let shape = AttentionShape { num_heads: 4, num_kv_heads: 2, head_dim: 8, gated: true };
        let (qkv, partials) = (c.output(1, 96), c.output(12, 10));
        let queries = |partials: Tensor| Tensor { cols: 8, ..partials };
        let cache = KvCache { k: c.output(5, 16), v: c.output(5, 16) };
        let norm = c.output(1, 8);
        let norm_rope = NormRope { q_norm: norm, k_norm: norm, rope: c.output(5, 4), eps: 0.0 };
        let dispatch = |qkv, cache, partials, shape| {
            attention_decode(qkv, norm_rope, cache, queries(partials), partials, shape, 1.0)
        };
        assert!(dispatch(qkv, cache, partials, shape).is_ok());
        assert!(dispatch(qkv, cache, partials, AttentionShape { gated: false, ..shape }).is_err());
        assert!(dispatch(Tensor { rows: 2, ..qkv }, cache, partials, shape).is_err());
        assert!(dispatch(qkv, KvCache { v: qkv, ..cache }, partials, shape).is_err());
        for (rows, cols) in [(3, 10), (13, 10), (12, 8)] {
            assert!(dispatch(qkv, cache, Tensor { rows, cols, ..partials }, shape).is_err(), "{rows} {cols}");
        }
        // One split cannot go through any number of keys.
        let long = |tensor: Tensor| Tensor { rows: 2_000_000, ..tensor };
        let cache = KvCache { k: long(cache.k), v: long(cache.v) };
        let norm_rope = NormRope { rope: long(norm_rope.rope), ..norm_rope };
        for (rows, fits) in [(4, false), (512, true)] {
            let partials = Tensor { rows, ..partials };
            let dispatch = attention_decode(qkv, norm_rope, cache, queries(partials), partials, shape, 1.0);
            assert_eq!(dispatch.is_ok(), fits, "{rows}");
        }
    }
}
