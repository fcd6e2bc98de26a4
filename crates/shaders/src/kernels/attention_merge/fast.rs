use super::Params;
use crate::cpu::{attention, lanes};
use crate::kernel::Args;
use crate::kernels::attention_decode::STATISTICS;

pub(super) fn attention_merge(args: &mut Args<'_>) {
    let p: Params = args.params();
    if args.state.n_tokens == 0 {
        return;
    }
    let (partials, qkv) = (args.read(0), args.read(1));
    let (head_dim, n_splits) = (p.head_dim as usize, p.n_splits as usize);
    let cols = head_dim + STATISTICS as usize;
    let mut sums = vec![0.0; head_dim];
    let heads = partials.chunks_exact(n_splits * cols).zip(args.write(0).chunks_exact_mut(head_dim));
    for (head, (splits, out)) in heads.take(p.num_heads as usize).enumerate() {
        let used = splits.chunks_exact(cols).filter(|row| row[head_dim + 1] != 0.0);
        let top = used.clone().fold(f32::MIN, |top, row| top.max(row[head_dim]));
        sums.fill(0.0);
        let mut total = 0.0;
        for row in used {
            let shrink = lanes::exp(row[head_dim] - top);
            total += shrink * row[head_dim + 1];
            lanes::add_scaled(&mut sums, shrink, row);
        }
        let gates = (p.gated != 0).then(|| &qkv[(2 * head + 1) * head_dim..][..head_dim]);
        attention::finish(out, &sums, total, gates);
    }
}
