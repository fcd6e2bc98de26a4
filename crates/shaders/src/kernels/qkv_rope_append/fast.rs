use super::Params;
use crate::kernel::Args;
use crate::kernels::qkv::norm_rope_f32;

pub(super) fn qkv_rope_append(args: &mut Args<'_>) {
    let p: Params = args.params();
    let (qkv, q_norm, k_norm, rope) = (args.read(0), args.read(1), args.read(2), args.read(3));
    let (num_kv_heads, head_dim, q_stride) =
        (p.num_kv_heads as usize, p.head_dim as usize, p.q_stride as usize);
    let (q_cols, kv_cols) = (p.num_heads as usize * head_dim, num_kv_heads * head_dim);
    let q_end = p.num_heads as usize * q_stride;
    let position = args.state.position;
    let n_tokens = args.state.n_tokens.min(p.rows).min(p.context.saturating_sub(position)) as usize;
    for token in 0..n_tokens {
        let cached = position as usize + token;
        let (queries, rest) = qkv[token * (q_end + 2 * kv_cols)..][..q_end + 2 * kv_cols].split_at(q_end);
        let (keys, values) = rest.split_at(kv_cols);
        let angles = &rope[cached * p.n_rot as usize..][..p.n_rot as usize];
        let out = args.write(0)[token * q_cols..][..q_cols].chunks_exact_mut(head_dim);
        for (query, out) in queries.chunks_exact(q_stride).zip(out) {
            norm_rope_f32(&query[..head_dim], q_norm, angles, p.eps, out);
        }
        let out = args.write(1)[cached * kv_cols..][..kv_cols].chunks_exact_mut(head_dim);
        for (key, out) in keys.chunks_exact(head_dim).zip(out) {
            norm_rope_f32(key, k_norm, angles, p.eps, out);
        }
        args.write(2)[cached * kv_cols..][..kv_cols].copy_from_slice(values);
    }
}
