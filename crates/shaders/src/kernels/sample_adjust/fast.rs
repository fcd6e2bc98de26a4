use std::borrow::Cow;

use super::Params;
use crate::cpu::lanes;
use crate::kernel::Args;
use crate::sampling::{BINS, EXCLUDED, SETTINGS_WORDS, STAT_COLS, Settings, has_id};

/// Terms that are summed in f32: 16 roundings in each lane and 4 more. Sums of those are in f64.
const RUN: usize = 256;

pub(super) fn sample_adjust(args: &mut Args<'_>) {
    let p: Params = args.params();
    if args.state.n_tokens == 0 {
        return;
    }
    let words = args.read_u32(0);
    let settings = Settings::of(words);
    let (bias, history) = (args.read(1), args.read_u32(2));
    let n_valid = p.n_valid as usize;
    for (share, first) in (0..n_valid).step_by(p.share as usize).enumerate() {
        let ids = first..n_valid.min(first + p.share as usize);
        let logits = args.write(0)[ids.clone()].to_vec();
        let repeats = &mut args.write_u32(1)[ids.clone()];
        // The steps of `Settings::score`, each for all scores.
        let mut scores = logits.clone();
        if settings.has_bias != 0 {
            scores.iter_mut().zip(&bias[ids.clone()]).for_each(|(score, bias)| *score += bias);
        }
        if settings.has_penalties != 0 {
            let counts = &history[p.counts as usize..][ids.clone()];
            scores.iter_mut().zip(counts).for_each(|(score, &n)| *score = settings.penalised(*score, n));
        }
        if settings.has_dry != 0 {
            scores.iter_mut().zip(&*repeats).for_each(|(score, &n)| *score -= settings.dry_penalty(n));
        }
        scores.iter_mut().for_each(|score| *score = settings.tempered(*score));
        if settings.has_allowed != 0 || !lanes::all_finite(&logits) {
            for ((score, logit), id) in scores.iter_mut().zip(&logits).zip(first as u32..) {
                let allowed = settings.has_allowed == 0 || has_id(words, SETTINGS_WORDS, id);
                if !allowed || !logit.is_finite() {
                    *score = EXCLUDED;
                }
            }
        }
        if settings.has_dry != 0 {
            for (repeats, logit) in repeats.iter_mut().zip(&logits) {
                *repeats = if logit.is_finite() { 0 } else { *repeats };
            }
        }
        args.write(0)[p.vocab as usize..][ids].copy_from_slice(&scores);
        let row = statistics(&logits, &scores);
        args.write(2)[share * STAT_COLS as usize..][..STAT_COLS as usize].copy_from_slice(&row);
    }
    args.write_u32(3)[..BINS as usize * 3].fill(0);
}

fn statistics(logits: &[f32], scores: &[f32]) -> [f32; STAT_COLS as usize] {
    let finite = only(logits, |l| l.is_finite());
    let allowed = only(scores, |s| s != EXCLUDED);
    let top = lanes::max(&finite).max(EXCLUDED);
    let sum_of = |values: &[f32], sum: fn(&[f32]) -> f32| -> f32 {
        values.chunks(RUN).map(|run| f64::from(sum(run))).sum::<f64>() as f32
    };
    let mut exponentials = finite.clone().into_owned();
    exponentials.iter_mut().for_each(|l| *l = lanes::exp(*l - top));
    [
        top,
        lanes::min(&finite).min(-EXCLUDED),
        (logits.len() - finite.len()) as f32,
        sum_of(&exponentials, lanes::sum),
        lanes::max(&allowed).max(EXCLUDED),
        lanes::min(&allowed).min(-EXCLUDED),
        allowed.len() as f32,
        sum_of(&allowed, lanes::sum),
        sum_of(&allowed, |run| lanes::dot(run, run)),
    ]
}

/// The values for which it holds; the same slice if it does for all.
fn only(values: &[f32], holds: fn(f32) -> bool) -> Cow<'_, [f32]> {
    if values.iter().fold(true, |all, &v| all & holds(v)) {
        return Cow::Borrowed(values);
    }
    Cow::Owned(values.iter().copied().filter(|&v| holds(v)).collect())
}
