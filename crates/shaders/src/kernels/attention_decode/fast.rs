use super::{Params, STATISTICS, tile_keys};
use crate::cpu::attention::{Attention, Block};
use crate::cpu::lanes;
use crate::kernel::Args;
use crate::kernels::qkv::norm_rope_f32;

pub(super) fn attention_decode(args: &mut Args<'_>) {
    let p: Params = args.params();
    let position = args.state.position as usize;
    if args.state.n_tokens == 0 || args.state.position >= p.context {
        return;
    }
    let (qkv, q_norm, k_norm, rope) = (args.read(0), args.read(1), args.read(2), args.read(3));
    let [k_cache, v_cache, scaled_queries, partials] = args.writes.as_mut_slice() else { return };
    let (k_cache, v_cache): (&mut [f32], &mut [f32]) =
        (bytemuck::cast_slice_mut(k_cache), bytemuck::cast_slice_mut(v_cache));
    let (scaled_queries, partials): (&mut [f32], &mut [f32]) =
        (bytemuck::cast_slice_mut(scaled_queries), bytemuck::cast_slice_mut(partials));
    let (num_kv_heads, group) = (p.num_kv_heads as usize, p.group as usize);
    let (head_dim, q_stride) = (p.head_dim as usize, p.q_stride as usize);
    let angles = &rope[position * p.n_rot as usize..][..p.n_rot as usize];
    let kv_cols = num_kv_heads * head_dim;
    let (queries, rest) = qkv.split_at(num_kv_heads * group * q_stride);
    let (keys, values) = rest.split_at(kv_cols);
    let new_keys = k_cache[position * kv_cols..][..kv_cols].chunks_exact_mut(head_dim);
    for (key, out) in keys.chunks_exact(head_dim).zip(new_keys) {
        norm_rope_f32(key, k_norm, angles, p.eps, out);
    }
    v_cache[position * kv_cols..][..kv_cols].copy_from_slice(&values[..kv_cols]);
    let (n_keys, n_splits, tile) = (position + 1, p.n_splits as usize, tile_keys(p.group) as usize);
    let cols = head_dim + STATISTICS as usize;
    let mut attention = Attention::new(head_dim);
    for kv_head in 0..num_kv_heads {
        let heads = kv_head * group..(kv_head + 1) * group;
        let rows = attention.begin(group).chunks_exact_mut(head_dim);
        for (head, query) in heads.clone().zip(rows) {
            norm_rope_f32(&queries[head * q_stride..][..head_dim], q_norm, angles, p.eps, query);
            lanes::scale(query, p.scale);
        }
        for split in 0..n_splits {
            attention.restart();
            for first in (split * tile..n_keys).step_by(n_splits * tile) {
                let at = first * kv_cols + kv_head * head_dim;
                let block = Block { keys: &k_cache[at..], values: &v_cache[at..], stride: kv_cols };
                attention.see(block, |_| tile.min(n_keys - first));
            }
            for (i, head) in heads.clone().enumerate() {
                let row = head * n_splits + split;
                let (sums, statistics) = attention.sums(i);
                let result = &mut partials[row * cols..][..cols];
                result[head_dim + 1] = statistics.total;
                if split * tile < n_keys {
                    result[..head_dim].copy_from_slice(sums);
                    result[head_dim] = statistics.top;
                    scaled_queries[row * head_dim..][..head_dim].copy_from_slice(attention.query(i));
                }
            }
        }
    }
}
