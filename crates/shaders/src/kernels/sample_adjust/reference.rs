use super::Params;
use crate::kernel::Args;
use crate::sampling::{BINS, EXCLUDED, SETTINGS_WORDS, STAT_COLS, Settings, has_id};

pub(super) fn sample_adjust(args: &mut Args<'_>) {
    let p: Params = args.params();
    if args.state.n_tokens == 0 {
        return;
    }
    let words = args.read_u32(0);
    let settings = Settings::of(words);
    let (bias, history) = (args.read(1), args.read_u32(2));
    let vocab = p.vocab as usize;
    let mut scores = vec![EXCLUDED; p.n_valid as usize];
    for (id, score) in scores.iter_mut().enumerate() {
        let logit = args.write(0)[id];
        let allowed = settings.has_allowed == 0 || has_id(words, SETTINGS_WORDS, id as u32);
        if !logit.is_finite() {
            continue;
        }
        if allowed {
            let bias = if settings.has_bias == 0 { 0.0 } else { bias[id] };
            let count = history[p.counts as usize + id];
            *score = settings.score(logit, bias, count, args.write_u32(1)[id]);
        }
        if settings.has_dry != 0 {
            args.write_u32(1)[id] = 0;
        }
    }
    args.write(0)[vocab..][..scores.len()].copy_from_slice(&scores);
    let shares = scores.len().div_ceil(p.share as usize);
    for share in 0..shares {
        let ids = share * p.share as usize..scores.len().min((share + 1) * p.share as usize);
        let row = statistics(&args.write(0)[ids.clone()], &scores[ids]);
        args.write(2)[share * STAT_COLS as usize..][..STAT_COLS as usize].copy_from_slice(&row);
    }
    args.write_u32(3)[..BINS as usize * 3].fill(0);
}

fn statistics(logits: &[f32], scores: &[f32]) -> [f32; STAT_COLS as usize] {
    let finite = || logits.iter().copied().filter(|l| l.is_finite());
    let allowed = || scores.iter().copied().filter(|&s| s != EXCLUDED);
    let top = finite().fold(EXCLUDED, f32::max);
    let total: f64 = finite().map(|l| (f64::from(l) - f64::from(top)).exp()).sum();
    [
        top,
        finite().fold(-EXCLUDED, f32::min),
        logits.iter().filter(|l| !l.is_finite()).count() as f32,
        total as f32,
        allowed().fold(EXCLUDED, f32::max),
        allowed().fold(-EXCLUDED, f32::min),
        allowed().count() as f32,
        allowed().map(f64::from).sum::<f64>() as f32,
        allowed().map(|s| f64::from(s) * f64::from(s)).sum::<f64>() as f32,
    ]
}
