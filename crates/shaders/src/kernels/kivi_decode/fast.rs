use super::Params;
use super::reference::tokens_of;
use crate::cpu::attention::Attention;
use crate::cpu::lanes;
use crate::kernel::Args;
use crate::kernels::attention_decode::STATISTICS;
use crate::kernels::kivi::{Cache, Cursors, Part, Reader, WINDOW, blocks, finds_window_full};
use crate::kernels::qkv::norm_rope_f32;

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
    let (dim, stride, n_splits) = (layout.head_dim as usize, p.stride as usize, p.n_splits as usize);
    let angles = &rope[position as usize * p.n_rot as usize..][..p.n_rot as usize];
    let first_key = p.num_heads as usize * stride;
    let first_value = first_key + layout.num_kv_heads as usize * dim;
    let group = (p.num_heads / layout.num_kv_heads) as usize;
    let cols = dim + STATISTICS as usize;
    let (before, after) = (Cursors::at(position), Cursors::at(position + 1));
    let older = if finds_window_full(position) { after.quantised - WINDOW } else { before.quantised };
    let mut attention = Attention::new(dim);
    let mut reader = Reader::new(layout);
    let mut key = vec![0.0; dim];
    for kv_head in 0..layout.num_kv_heads {
        if finds_window_full(position) {
            cache.flush(kv_head, older);
        }
        let of_head = |first: usize| &qkv[first + kv_head as usize * dim..][..dim];
        let place = after.place(position);
        norm_rope_f32(of_head(first_key), k_norm, angles, p.eps, &mut key);
        cache.write(Part::Key, kv_head, place, &key);
        cache.write(Part::Value, kv_head, place, of_head(first_value));
        let buffers = (&*cache.exact, &*cache.codes, &*cache.scales);
        let first_head = kv_head as usize * group;
        for (i, query) in attention.begin(group).chunks_exact_mut(dim).enumerate() {
            norm_rope_f32(&qkv[(first_head + i) * stride..][..dim], q_norm, angles, p.eps, query);
            lanes::scale(query, p.scale);
        }
        for split in 0..n_splits {
            let tokens = tokens_of(split as u32, p.n_splits, position, older);
            attention.restart();
            for block in blocks(tokens.clone()) {
                let rows = reader.read(buffers, kv_head, &block, after);
                attention.see(rows, |_| block.len());
            }
            for i in 0..group {
                let (sums, statistics) = attention.sums(i);
                let result = &mut partials[((first_head + i) * n_splits + split) * cols..][..cols];
                result[dim + 1] = statistics.total;
                if !tokens.is_empty() {
                    result[..dim].copy_from_slice(sums);
                    result[dim] = statistics.top;
                }
            }
        }
    }
}
