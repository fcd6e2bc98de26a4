use super::Params;
use crate::kernel::Args;
use crate::sampling::{BINS, Bounds, EXCLUDED, Settings, Summary};

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
    let n_words = p.shares as usize * p.share as usize / 32;
    tally[p.undecided as usize..][..n_words].fill(0);
    for share in 0..p.shares {
        let mut best = EXCLUDED;
        let mut winner = u32::MAX;
        for id in share * p.share..p.n_valid.min((share + 1) * p.share) {
            let Some(distance) = summary.distance(scores[id as usize]) else { continue };
            let bin = summary.bin(distance);
            if bounds.is_some_and(|b| b.is_undecided(bin)) {
                tally[(p.undecided + id / 32) as usize] |= 1 << (id % 32);
            } else if bounds.is_none_or(|b| bin < b.first) {
                let value = settings.perturbed(distance, id, position);
                if value > best {
                    best = value;
                    winner = id;
                }
            }
        }
        tally[(p.winners + share) as usize] = winner;
    }
}
