use super::Params;
use crate::kernel::Args;
use crate::kernels::kivi::{Cache, Cursors, Part, WINDOW, finds_window_full, piece};
use crate::kernels::qkv::norm_rope_f32;

pub(super) fn kivi_append(args: &mut Args<'_>) {
    let p: Params = args.params();
    let layout = p.cache.layout();
    let position = args.state.position;
    if args.state.n_tokens == 0 || position >= layout.context {
        return;
    }
    let n_tokens = args.state.n_tokens.min(p.rows).min(piece(position)).min(layout.context - position);
    let (qkv, k_norm, rope) = (args.read(0), args.read(2), args.read(3));
    let [exact, codes, scales] = args.writes.as_mut_slice() else { return };
    let mut cache = Cache::of([exact, codes, scales], layout);
    let (dim, n_rot) = (layout.head_dim as usize, p.n_rot as usize);
    let first_value = p.first_key as usize + layout.num_kv_heads as usize * dim;
    let cursors = Cursors::at(position + 1);
    let mut key = vec![0.0; dim];
    for head in 0..layout.num_kv_heads {
        if finds_window_full(position) {
            cache.flush(head, cursors.quantised - WINDOW);
        }
        for token in 0..n_tokens {
            let row = &qkv[token as usize * p.cols as usize..][..p.cols as usize];
            let of_head = |first: usize| &row[first + head as usize * dim..][..dim];
            let angles = &rope[(position + token) as usize * n_rot..][..n_rot];
            let place = cursors.place(position + token);
            norm_rope_f32(of_head(p.first_key as usize), k_norm, angles, p.eps, &mut key);
            cache.write(Part::Key, head, place, &key);
            cache.write(Part::Value, head, place, of_head(first_value));
        }
    }
}
