use super::Params;
use crate::kernel::Args;
use crate::sampling::{Settings, Summary, mass};

pub(super) fn sample_histogram(args: &mut Args<'_>) {
    let p: Params = args.params();
    let settings = Settings::of(args.read_u32(0));
    if args.state.n_tokens == 0 || !settings.has_cut() {
        return;
    }
    let summary = Summary::of(args.read(2), &settings);
    let scores = &args.read(1)[p.vocab as usize..][..p.n_valid as usize];
    let tally = args.write_u32(0);
    for distance in scores.iter().filter_map(|&score| summary.distance(score)) {
        let row = &mut tally[summary.bin(distance) as usize * 3..][..3];
        let mass = mass(distance);
        row[0] += 1;
        row[1] += mass >> 13;
        row[2] += mass & 8191;
    }
}
