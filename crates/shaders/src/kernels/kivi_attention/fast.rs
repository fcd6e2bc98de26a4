use super::Params;
use crate::cpu::attention::{Attention, QUERIES, finish};
use crate::cpu::lanes;
use crate::kernel::Args;
use crate::kernels::kivi::{Cursors, Reader, blocks, piece};
use crate::kernels::qkv::norm_rope_f32;

pub(super) fn kivi_attention(args: &mut Args<'_>) {
    let p: Params = args.params();
    let layout = p.cache.layout();
    if args.state.n_tokens == 0 || args.state.position >= layout.context {
        return;
    }
    let position = args.state.position;
    let n_tokens = args.state.n_tokens.min(p.rows).min(piece(position)).min(layout.context - position);
    let (qkv, q_norm, rope) = (args.read(0), args.read(1), args.read(3));
    let buffers = (args.read(4), args.read_u32(5), args.read_u32(6));
    let out = args.write(0);
    let (dim, n_rot, stride) = (layout.head_dim as usize, p.n_rot as usize, p.stride as usize);
    let group = (p.num_heads / layout.num_kv_heads) as usize;
    let cursors = Cursors::at(position + n_tokens);
    let tile = QUERIES.div_ceil(group);
    let mut attention = Attention::new(dim);
    let mut reader = Reader::new(layout);
    for start in (0..n_tokens as usize).step_by(tile) {
        let tokens = start..(start + tile).min(n_tokens as usize);
        let n_keys = |token: usize| position as usize + token + 1;
        for kv_head in 0..layout.num_kv_heads {
            let first_head = kv_head as usize * group;
            let head_row = |token: usize, i: usize| {
                &qkv[token * p.cols as usize + (first_head + i) * stride..][..stride]
            };
            let queries = attention.begin(tokens.len() * group).chunks_exact_mut(dim);
            for (i, query) in queries.enumerate() {
                let token = start + i / group;
                let angles = &rope[(position as usize + token) * n_rot..][..n_rot];
                norm_rope_f32(&head_row(token, i % group)[..dim], q_norm, angles, p.eps, query);
                lanes::scale(query, p.scale);
            }
            for block in blocks(0..n_keys(tokens.end - 1) as u32) {
                let rows = reader.read(buffers, kv_head, &block, cursors);
                attention.see(rows, |i| {
                    n_keys(start + i / group).saturating_sub(block.start as usize).min(block.len())
                });
            }
            for i in 0..tokens.len() * group {
                let (token, head) = (start + i / group, first_head + i % group);
                let (sums, statistics) = attention.sums(i);
                let out = &mut out[(token * p.num_heads as usize + head) * dim..][..dim];
                let gates = (p.gated != 0).then(|| &head_row(token, i % group)[dim..]);
                finish(out, sums, statistics.total, gates);
            }
        }
    }
}
