use super::Params;
use crate::cpu::lanes;
use crate::kernel::Args;
use crate::sampling::{BINS, Bounds, EXCLUDED, Settings, Summary, random_bits};

/// Scores that are passed over together where the best of them is too far from the best of all.
const RUN: u32 = 64;

pub(super) fn sample_draw(args: &mut Args<'_>) {
    let p: Params = args.params();
    if args.state.n_tokens == 0 {
        return;
    }
    let settings = Settings::of(args.read_u32(0));
    let summary = Summary::of(args.read(2), &settings);
    let scores = &args.read(1)[p.vocab as usize..][..p.n_valid as usize];
    let position = args.state.position + args.state.n_tokens;
    let tally = args.write_u32(0);
    let bounds = settings.has_cut().then(|| Bounds::of(&tally[..BINS as usize * 3], &settings));
    // Nothing in this bin or a later one is kept.
    let is_behind = |bin: u32| bounds.is_some_and(|b| bin > b.last && (bin > b.k_bin || b.k_bin == BINS));
    let n_words = p.shares as usize * p.share as usize / 32;
    tally[p.undecided as usize..][..n_words].fill(0);
    for (share, ids) in scores.chunks(p.share as usize).enumerate() {
        let mut best = EXCLUDED;
        let mut winner = u32::MAX;
        for (first, run) in (share as u32 * p.share..).step_by(RUN as usize).zip(ids.chunks(RUN as usize)) {
            let nearest = summary.top - lanes::max(run);
            if nearest > summary.reach || is_behind(summary.bin(nearest)) {
                continue;
            }
            for (id, &score) in (first..).zip(run) {
                let Some(distance) = summary.distance(score) else { continue };
                let bin = summary.bin(distance);
                if bounds.is_some_and(|b| b.is_undecided(bin)) {
                    tally[(p.undecided + id / 32) as usize] |= 1 << (id % 32);
                } else if bounds.is_none_or(|b| bin < b.first)
                    && (settings.is_random == 0
                        || can_beat(best, distance, random_bits(id, position, settings.seed)))
                {
                    let value = settings.perturbed(distance, id, position);
                    if value > best {
                        best = value;
                        winner = id;
                    }
                }
            }
        }
        tally[(p.winners as usize) + share] = winner;
    }
}

/// Whether a perturbed score may be above `best`; false only where it is certainly not, which spares most tokens
/// their logarithms.
///
/// The uniform number u is at least 2^-(z + 1) for z leading zeros of its bits, and -ln(-ln(1 - u)) is below -ln(u).
fn can_beat(best: f32, distance: f32, bits: u32) -> bool {
    // More than what is compared can round.
    let slack = 0.01 + 1e-6 * distance;
    (bits.leading_zeros() + 1) as f32 * std::f32::consts::LN_2 - distance + slack > best
}
