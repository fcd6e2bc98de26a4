use super::Params;
use crate::cpu::attention::{Attention, Block, KEYS, QUERIES, finish};
use crate::kernel::Args;

pub(super) fn attention(args: &mut Args<'_>) {
    let p: Params = args.params();
    let (n_tokens, position) = (args.state.n_tokens.min(p.rows) as usize, args.state.position as usize);
    let (q, qkv, k_cache, v_cache) = (args.read(0), args.read(1), args.read(2), args.read(3));
    let out = args.write(0);
    let (num_kv_heads, group) = (p.num_kv_heads as usize, p.group as usize);
    let (head_dim, qkv_cols) = (p.quads as usize * 4, p.qkv_quads as usize * 4);
    let (q_cols, kv_cols) = (num_kv_heads * group * head_dim, num_kv_heads * head_dim);
    let n_keys = |token: usize| (position + token + 1).min(p.context as usize);
    let tile = QUERIES.div_ceil(group);
    let mut attention = Attention::new(head_dim);
    for start in (0..n_tokens).step_by(tile) {
        let tokens = start..(start + tile).min(n_tokens);
        for kv_head in 0..num_kv_heads {
            let first_head = kv_head * group;
            let queries = attention.begin(tokens.len() * group).chunks_exact_mut(group * head_dim);
            for (token, queries) in tokens.clone().zip(queries) {
                let q = &q[token * q_cols + first_head * head_dim..][..group * head_dim];
                for (query, q) in queries.iter_mut().zip(q) {
                    *query = q * p.scale;
                }
            }
            for first in (0..n_keys(tokens.end - 1)).step_by(KEYS) {
                let at = first * kv_cols + kv_head * head_dim;
                let block = Block { keys: &k_cache[at..], values: &v_cache[at..], stride: kv_cols };
                attention.see(block, |i| n_keys(start + i / group).saturating_sub(first).min(KEYS));
            }
            for token in tokens.clone() {
                for head in first_head..first_head + group {
                    let (sums, statistics) = attention.sums((token - start) * group + head - first_head);
                    let out = &mut out[token * q_cols + head * head_dim..][..head_dim];
                    let gates = token * qkv_cols + (2 * head + 1) * head_dim;
                    let gates = (p.gated != 0).then(|| &qkv[gates..][..head_dim]);
                    finish(out, sums, statistics.total, gates);
                }
            }
        }
    }
}
