use super::{Params, order_key};
use crate::cpu::lanes;
use crate::kernel::Args;

/// Neighbouring logits of a share, as in the reference.
const RUN: usize = 64;

pub(super) fn argmax_partial(args: &mut Args<'_>) {
    let p: Params = args.params();
    if args.state.n_tokens == 0 {
        return;
    }
    let logits = args.read(0);
    let partials = args.write_u32(0);
    let groups = p.groups as usize;
    for row in partials[..groups * 4].chunks_exact_mut(4) {
        row.copy_from_slice(&[0, u32::MAX, u32::MAX, 0]);
    }
    let mut finite = Vec::with_capacity(RUN);
    for (i, run) in logits[..p.n_valid as usize].chunks(RUN).enumerate() {
        let row = &mut partials[i % groups * 4..][..4];
        let mut compared = run;
        if !lanes::all_finite(run) {
            finite.clear();
            finite.extend(run.iter().copied().filter(|logit| logit.is_finite()));
            row[3] += (run.len() - finite.len()) as u32;
            compared = &finite;
        }
        if compared.is_empty() {
            continue;
        }
        let largest = lanes::max(compared);
        let key = order_key(largest.to_bits());
        if key > row[0] {
            row[0] = key;
            row[1] = (i * RUN + run.iter().take_while(|&&logit| logit != largest).count()) as u32;
        }
        row[2] = row[2].min(order_key(lanes::min(compared).to_bits()));
    }
}
