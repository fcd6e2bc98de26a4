use super::Params;
use crate::kernel::Args;
use crate::kernels::argmax_partial::order_key;
use crate::sampling::{MAX_TOP, Settings, Summary};

pub(super) fn top_final(args: &mut Args<'_>) {
    let p: Params = args.params();
    if args.state.n_tokens == 0 {
        return;
    }
    let summary = Summary::of(args.read(2), &Settings::of(args.read_u32(0)));
    let logits = args.read(1);
    let mut ids = args.read_u32(3).to_vec();
    ids.retain(|&id| id != u32::MAX);
    ids.sort_unstable_by_key(|&id| (!order_key(logits[id as usize].to_bits()), id));
    let slot = (args.state.step % p.n_generated) as usize;
    for i in 0..MAX_TOP as usize {
        let id = ids.get(i).copied();
        args.write_u32(0)[slot * MAX_TOP as usize + i] = id.unwrap_or(u32::MAX);
        if let Some(id) = id {
            args.write(1)[slot * (1 + MAX_TOP as usize) + 1 + i] = logits[id as usize] - summary.log_sum;
        }
    }
}
