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
    let partials = args.write(2);
    let (tile, n_splits) = (tile_keys(p.heads) as usize, p.n_splits as usize);
    for head in 0..num_kv_heads * group {
        let kv_head = head / group;
        let q = norm_rope(&qkv[head * q_stride..][..head_dim], q_norm, angles, p.eps);
        for split in 0..n_splits {
            let cols = head_dim + STATISTICS as usize;
            let result = &mut partials[(head * n_splits + split) * cols..][..cols];
            let keys: Vec<usize> = (0..=position).filter(|u| u / tile % n_splits == split).collect();
            let score = |&u: &usize| {
                let key = &k_cache[row(u, kv_head)..][..head_dim];
                q.iter().zip(key).map(|(q, &k)| q * f64::from(k)).sum::<f64>() * f64::from(p.scale)
            };
            let scores: Vec<f64> = keys.iter().map(score).collect();
            let Some(mut top) = scores.first().copied() else {
                result[head_dim + 1] = 0.0;
                continue;
            };
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
    use crate::kernels::attention_decode::{attention_decode, heads_at_a_time, n_splits, tile_keys};
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
        let partials = c.output(2, 6);
        let shape = AttentionShape { num_heads: 1, num_kv_heads: 1, head_dim: 4, gated: false };
        let norm_rope = NormRope { q_norm: norm, k_norm: norm, rope, eps: 0.0 };
        let dispatch = attention_decode(qkv, norm_rope, KvCache { k, v }, partials, shape, 1.0);
        let (buffers, _) = run_reference(&c.finish("hand", dispatch, TOLERANCE).unwrap());
        let floats = |i: usize| buffers[i].iter().map(|&b| f32::from_bits(b)).collect::<Vec<_>>();
        assert_eq!(floats(3)[8..], [1.0, 1.0, 1.0, 1.0, 9.0, 9.0, 9.0, 9.0]);
        assert_eq!(floats(4)[8..], [8.0, 0.0, 4.0, -8.0, 9.0, 9.0, 9.0, 9.0]);
        let e4 = (-4f32).exp();
        let expected = [8.0 + 2.0 * e4, 4.0 * e4, 4.0, 16.0 * e4 - 8.0, 4.0, 1.0 + 6.0 * e4];
        for (i, (actual, expected)) in floats(5).into_iter().zip(expected).enumerate() {
            assert!((actual - expected).abs() < 1e-6, "{i}: {actual}, not {expected}");
        }
        assert_eq!(floats(5)[11], 0.0);
    }

    #[test]
    fn groups_are_served_whole_if_they_fit() {
        let shape = |group: u32, head_dim| AttentionShape {
            num_heads: 2 * group,
            num_kv_heads: 2,
            head_dim,
            gated: false,
        };
        for (group, head_dim, heads) in [
            (1, 64, 1),
            (2, 128, 2),
            (6, 256, 6),
            (8, 256, 8),
            (8, 128, 8),
            (16, 256, 8),
            (11, 256, 1),
            (20, 8, 10),
        ] {
            assert_eq!(heads_at_a_time(shape(group, head_dim)), heads, "{group} {head_dim}");
            assert!(tile_keys(heads) >= 16);
        }
        assert_eq!(n_splits(shape(2, 128), 4096), 32);
        assert_eq!(n_splits(shape(2, 128), 1), 1);
        assert_eq!(n_splits(shape(2, 128), 129), 2);
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let mut c = CaseBuilder::new(1);
        let shape = AttentionShape { num_heads: 4, num_kv_heads: 2, head_dim: 8, gated: true };
        let (qkv, partials) = (c.output(1, 96), c.output(12, 10));
        let cache = KvCache { k: c.output(5, 16), v: c.output(5, 16) };
        let norm = c.output(1, 8);
        let norm_rope = NormRope { q_norm: norm, k_norm: norm, rope: c.output(5, 4), eps: 0.0 };
        let dispatch =
            |qkv, cache, partials, shape| attention_decode(qkv, norm_rope, cache, partials, shape, 1.0);
        assert!(dispatch(qkv, cache, partials, shape).is_ok());
        assert!(dispatch(qkv, cache, partials, AttentionShape { gated: false, ..shape }).is_err());
        assert!(dispatch(Tensor { rows: 2, ..qkv }, cache, partials, shape).is_err());
        assert!(dispatch(qkv, KvCache { v: qkv, ..cache }, partials, shape).is_err());
        for (rows, cols) in [(3, 10), (13, 10), (12, 8)] {
            assert!(dispatch(qkv, cache, Tensor { rows, cols, ..partials }, shape).is_err(), "{rows} {cols}");
        }
        // One split cannot go through any number of keys.
        let rows = 2_000_000;
        let long = |tensor: Tensor| Tensor { rows, ..tensor };
        let cache = KvCache { k: long(cache.k), v: long(cache.v) };
        let norm_rope = NormRope { rope: long(norm_rope.rope), ..norm_rope };
        assert!(attention_decode(qkv, norm_rope, cache, Tensor { rows: 4, ..partials }, shape, 1.0).is_err());
        assert!(
            attention_decode(qkv, norm_rope, cache, Tensor { rows: 512, ..partials }, shape, 1.0).is_ok()
        );
    }
}
