use super::Params;
use crate::kernel::Args;
use crate::kernels::argmax_partial::order_key;
use crate::sampling::MAX_TOP;

pub(super) fn top_share(args: &mut Args<'_>) {
    let p: Params = args.params();
    if args.state.n_tokens == 0 {
        return;
    }
    let logits = args.read(0);
    for (share, row) in
        (0..p.n_valid.div_ceil(p.share)).zip(args.write_u32(0).chunks_exact_mut(MAX_TOP as usize))
    {
        let mut ids: Vec<u32> = (share * p.share..p.n_valid.min((share + 1) * p.share)).collect();
        ids.sort_unstable_by_key(|&id| (!order_key(logits[id as usize].to_bits()), id));
        ids.resize(ids.len().max(row.len()), u32::MAX);
        row.copy_from_slice(&ids[..row.len()]);
    }
}
