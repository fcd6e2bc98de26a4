use super::Params;
use crate::kernel::Args;
use crate::kernels::kivi::{Cache, Cursors, Part, WINDOW, finds_window_full, narrow, piece};
use crate::kernels::qkv::norm_rope;

pub(super) fn kivi_append(args: &mut Args<'_>) {
    append(args, |key, norm, angles, eps, out| {
        out.copy_from_slice(&narrow(norm_rope(key, norm, angles, eps)));
    });
}

/// The kernel with norm and rotation of a key, given its norm's weights, angles and epsilon, as a parameter.
pub(super) fn append(args: &mut Args<'_>, norm_rope: impl Fn(&[f32], &[f32], &[f32], f32, &mut [f32])) {
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
    let mut rotated = vec![0.0; dim];
    for head in 0..layout.num_kv_heads {
        if finds_window_full(position) {
            cache.flush(head, cursors.quantised - WINDOW);
        }
        for token in 0..n_tokens {
            let row = &qkv[token as usize * p.cols as usize..][..p.cols as usize];
            let key = &row[p.first_key as usize + head as usize * dim..][..dim];
            let value = &row[first_value + head as usize * dim..][..dim];
            let angles = &rope[(position + token) as usize * n_rot..][..n_rot];
            let place = cursors.place(position + token);
            norm_rope(key, k_norm, angles, p.eps, &mut rotated);
            cache.write(Part::Key, head, place, &rotated);
            cache.write(Part::Value, head, place, value);
        }
    }
}
