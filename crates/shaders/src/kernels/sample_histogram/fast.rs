use super::Params;
use crate::cpu::lanes;
use crate::kernel::Args;
use crate::sampling::{BINS, EXCLUDED, MAX_RANGE, Settings, Summary, mass};

/// Scores whose bins and masses are computed together.
const RUN: usize = 64;

pub(super) fn sample_histogram(args: &mut Args<'_>) {
    let p: Params = args.params();
    let settings = Settings::of(args.read_u32(0));
    if args.state.n_tokens == 0 || !settings.has_cut() {
        return;
    }
    let summary = Summary::of(args.read(2), &settings);
    let scores = &args.read(1)[p.vocab as usize..][..p.n_valid as usize];
    // With a bin behind the last for what is dropped.
    let mut rows = [[0u32; 4]; BINS as usize + 1];
    // Beyond this distance the mass no longer falls.
    let far = mass(MAX_RANGE);
    let (mut bins, mut masses) = ([BINS; RUN], [0; RUN]);
    for run in scores.chunks(RUN) {
        let nearest = summary.top - lanes::max(run);
        if nearest > summary.reach {
            continue;
        }
        for (bin, &score) in bins.iter_mut().zip(run) {
            let distance = summary.top - score;
            let is_kept = (score != EXCLUDED) & (distance <= summary.reach);
            *bin = if is_kept { summary.bin(distance) } else { BINS };
        }
        if nearest < MAX_RANGE {
            masses.iter_mut().zip(run).for_each(|(mass_of, score)| *mass_of = mass(summary.top - score));
        } else {
            masses.fill(far);
        }
        for (&bin, &mass) in bins.iter().zip(&masses).take(run.len()) {
            let row = &mut rows[bin.min(BINS) as usize];
            let terms = [1, mass >> 13, mass & 8191, 0];
            *row = std::array::from_fn(|i| row[i].wrapping_add(terms[i]));
        }
    }
    for (tally, row) in args.write_u32(0).chunks_exact_mut(3).zip(&rows[..BINS as usize]) {
        tally.iter_mut().zip(row).for_each(|(tally, n)| *tally += n);
    }
}
