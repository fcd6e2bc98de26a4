use super::Params;
use crate::kernel::Args;
use crate::kernels::argmax_partial::order_key;
use crate::sampling::{BINS, Bounds, EXCLUDED, Settings, Summary, Weight, has_id, mass, reaching, weights};

pub(super) fn sample_final(args: &mut Args<'_>) {
    let p: Params = args.params();
    if args.state.n_tokens == 0 {
        return;
    }
    let settings = Settings::of(args.read_u32(0));
    let summary = Summary::of(args.read(2), &settings);
    if !summary.is_usable {
        args.state.refuse();
        return;
    }
    let position = args.state.position + args.state.n_tokens;
    let (logits, scores) = args.read(1).split_at(p.vocab as usize);
    let tally = args.read_u32(3);
    let distance = |id: u32| summary.top - scores[id as usize];
    let mut undecided: Vec<u32> = (0..p.shares * p.share / 32)
        .filter(|word| tally[(p.undecided + word) as usize] != 0)
        .flat_map(|word| word * 32..(word + 1) * 32)
        .filter(|&id| has_id(tally, p.undecided, id))
        .collect();
    if settings.has_cut() {
        undecided = kept(undecided, &settings, &summary, scores, &tally[..BINS as usize * 3]);
    }
    let winners = tally[p.winners as usize..][..p.shares as usize].iter().copied();
    let mut best = EXCLUDED;
    let mut token = u32::MAX;
    for id in winners.filter(|&id| id != u32::MAX).chain(undecided) {
        let value = settings.perturbed(distance(id), id, position);
        if value > best || (value == best && id < token) {
            best = value;
            token = id;
        }
    }
    let slot = args.state.step % p.n_generated;
    let logprob = logits[token as usize] - summary.log_sum;
    args.write_u32(0)[0] = token;
    let history = args.write_u32(1);
    history[slot as usize] = token;
    history[(p.counts + token) as usize] += 1;
    if position < p.context {
        history[(p.ledger + position) as usize] = token;
    }
    args.write(2)[(slot * p.logprob_cols) as usize] = logprob;
    args.state.advance(token);
}

/// Those of the undecided tokens that are kept.
fn kept(
    mut ids: Vec<u32>,
    settings: &Settings,
    summary: &Summary,
    scores: &[f32],
    histogram: &[u32],
) -> Vec<u32> {
    let bounds = Bounds::of(histogram, settings);
    let bins = weights(histogram);
    let distance = |id: u32| summary.top - scores[id as usize];
    let bin = |id: u32| summary.bin(distance(id));
    ids.sort_unstable_by_key(|&id| (!order_key(scores[id as usize].to_bits()), id));
    // Top-k: of its bin only the first few are left.
    let mut kept = bounds.above_k;
    ids.retain(|&id| {
        if bin(id) != bounds.k_bin {
            return bin(id) < bounds.k_bin;
        }
        let is_kept = kept.n < settings.top_k;
        if is_kept {
            kept = kept.plus(mass(distance(id)));
        }
        is_kept
    });
    if settings.top_p >= 1.0 {
        return ids;
    }
    // Top-p: in the bin in which the mass is reached.
    let goal = settings.top_p * kept.share();
    let last = reaching(&bins, goal).min(bounds.k_bin);
    let above = bins[..last as usize].iter().map(|w| w.mass).sum();
    let mut sum = Weight { n: 0, mass: above };
    ids.retain(|&id| {
        if bin(id) != last {
            return bin(id) < last;
        }
        let is_kept = sum.n == 0 || sum.share() < goal;
        sum = sum.plus(mass(distance(id)));
        is_kept
    });
    ids
}
