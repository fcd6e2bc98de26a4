use super::Params;
use crate::kernel::Args;
use crate::kernels::attention_decode::STATISTICS;
use crate::kernels::kivi::{Cache, Cursors, Part, SINK, WINDOW, finds_window_full, narrow, row};
use crate::kernels::kivi_attention::reference::attend;
use crate::kernels::qkv::norm_rope;

pub(super) fn kivi_decode(args: &mut Args<'_>) {
    let p: Params = args.params();
    let layout = p.cache.layout();
    let position = args.state.position;
    if args.state.n_tokens == 0 || position >= layout.context {
        return;
    }
    let (qkv, q_norm, k_norm, rope) = (args.read(0), args.read(1), args.read(2), args.read(3));
    let [exact, codes, scales, partials] = args.writes.as_mut_slice() else { return };
    let mut cache = Cache::of([exact, codes, scales], layout);
    let partials: &mut [f32] = bytemuck::cast_slice_mut(partials);
    let dim = layout.head_dim as usize;
    let angles = &rope[position as usize * p.n_rot as usize..][..p.n_rot as usize];
    let first_key = p.num_heads as usize * p.stride as usize;
    let first_value = first_key + layout.num_kv_heads as usize * dim;
    let heads_per_kv = p.num_heads / layout.num_kv_heads;
    let (before, after) = (Cursors::at(position), Cursors::at(position + 1));
    let older = if finds_window_full(position) { after.quantised - WINDOW } else { before.quantised };
    for kv_head in 0..layout.num_kv_heads {
        if finds_window_full(position) {
            cache.flush(kv_head, older);
        }
        let at = |first: usize| first + kv_head as usize * dim;
        let place = after.place(position);
        let key = narrow(norm_rope(&qkv[at(first_key)..][..dim], k_norm, angles, p.eps));
        cache.write(Part::Key, kv_head, place, &key);
        cache.write(Part::Value, kv_head, place, &qkv[at(first_value)..][..dim]);
        for split in 0..p.n_splits {
            let tokens = tokens_of(split, p.n_splits, position, older);
            let is_empty = tokens.is_empty();
            let rows = |part| -> Vec<Vec<f32>> {
                let buffers = (&*cache.exact, &*cache.codes, &*cache.scales);
                tokens.clone().map(|u| row(&layout, buffers, part, kv_head, after.place(u))).collect()
            };
            let (keys, values) = (rows(Part::Key), rows(Part::Value));
            for head in kv_head * heads_per_kv..(kv_head + 1) * heads_per_kv {
                let q = &qkv[head as usize * p.stride as usize..][..dim];
                let q = narrow(norm_rope(q, q_norm, angles, p.eps));
                let sums = attend(&q, &keys, &values, p.scale);
                let at = (head * p.n_splits + split) as usize * (dim + STATISTICS as usize);
                partials[at + dim + 1] = sums.weight as f32;
                if is_empty {
                    continue;
                }
                for i in 0..dim {
                    partials[at + i] = sums.values[i] as f32;
                }
                partials[at + dim] = sums.top as f32;
            }
        }
    }
}

/// The tokens whose rows a split has: the last those after the `older` quantised rows, the others
/// equal shares of these in blocks of 128, the first the sink as well, once it is full.
pub(super) fn tokens_of(split: u32, n_splits: u32, position: u32, older: u32) -> std::ops::Range<u32> {
    let n_sharing = (n_splits - 1).max(1);
    let end = if split + 1 == n_splits { position + 1 } else { share(split + 1, n_sharing, older) };
    let start = if split == 0 && (position >= SINK || n_splits == 1) {
        0
    } else if position < SINK {
        if split + 1 == n_splits { 0 } else { return 0..0 }
    } else {
        share(split, n_sharing, older)
    };
    start..end
}

/// Where the share of a split begins.
fn share(split: u32, n_sharing: u32, older: u32) -> u32 {
    SINK + split * (older / WINDOW) / n_sharing * WINDOW
}
