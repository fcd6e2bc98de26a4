use super::Params;
use crate::kernel::Args;
use crate::kernels::argmax_partial::order_key;
use crate::sampling::MAX_TOP;

pub(super) fn top_share(args: &mut Args<'_>) {
    let p: Params = args.params();
    if args.state.n_tokens == 0 {
        return;
    }
    let logits = &args.read(0)[..p.n_valid as usize];
    let rows = args.write_u32(0).chunks_exact_mut(MAX_TOP as usize);
    for ((first, logits), row) in
        (0..).step_by(p.share as usize).zip(logits.chunks(p.share as usize)).zip(rows)
    {
        // The largest so far as (key, id), in falling order; ids rise, so that equals go behind.
        let mut largest = Vec::with_capacity(MAX_TOP as usize + 1);
        let mut least = 0;
        for (id, logit) in (first..).zip(logits) {
            let key = order_key(logit.to_bits());
            if largest.len() < MAX_TOP as usize || key > least {
                let at = largest.partition_point(|&(other, _)| other >= key);
                largest.insert(at, (key, id));
                largest.truncate(MAX_TOP as usize);
                least = largest[largest.len() - 1].0;
            }
        }
        row.fill(u32::MAX);
        row.iter_mut().zip(&largest).for_each(|(id, found)| *id = found.1);
    }
}
