//! What the sampling kernels, their references and the host share: the settings as the device reads
//! them, the layout of the buffers, and the definitions that must agree everywhere.
//!
//! A token is drawn in up to five steps, each a kernel:
//!
//! 1. [`sample_dry`](crate::kernels::sample_dry), if asked for: how long a repetition each token would continue;
//! 2. [`sample_adjust`](crate::kernels::sample_adjust): logits to scores, and what is known of all of them;
//! 3. [`sample_histogram`](crate::kernels::sample_histogram): number and mass of the tokens by their
//!    distance from the best;
//! 4. [`sample_draw`](crate::kernels::sample_draw): the best of the perturbed scores that are certainly
//!    kept, and which tokens lie in the bins in which top-k and top-p cut;
//! 5. [`sample_final`](crate::kernels::sample_final): the exact cut among those, and the token.
//!
//! Whatever top-k, top-n-sigma, min-p and top-p keep is a beginning of all tokens in the order of
//! falling scores, the smaller id first among equals. So one cut decides, and nothing is sorted.
//!
//! Masses are integers in units of 2^-26 of the best token's, so that no sum depends on the order in which
//! invocations add.

use bytemuck::{Pod, Zeroable};

use crate::kernel::{BufferId, ShapeError, Tensor, expect_shape, require};

/// The most shares into which the vocabulary is split.
pub const MAX_SHARES: u32 = 64;

/// Invocations of a workgroup of every sampling kernel but `sample_dry`, and bins of the histogram.
pub const BINS: u32 = 256;

/// Numbers that `sample_adjust` leaves per share: largest and smallest logit, how many were not finite, sum
/// of exp(logit - largest), largest and smallest score, how many scores are allowed, their sum and
/// the sum of their squares.
pub const STAT_COLS: u32 = 9;

/// The most alternatives whose log-probabilities are reported.
pub const MAX_TOP: u32 = 20;

/// The longest repetition that DRY tells from longer ones.
pub const MAX_MATCH: u32 = 63;

/// Vocabularies are smaller: sums of half masses over one fit 32 bits, and 256 words of 32 bits each hold a
/// flag for every id of a share.
pub const MAX_VOCAB: u32 = 1 << 19;

/// The score of a token that must not be drawn. Scores are within +-1e37.
pub const EXCLUDED: f32 = -3.0e38;

/// Logits that differ by less are not usable: such a model says nothing.
pub const LEAST_SPREAD: f32 = 1e-6;

/// Distances from the best score that the bins resolve: beyond them a token has no mass.
pub const MAX_RANGE: f32 = 20.0;

/// Words of [`Settings`] before the sets of ids.
pub const SETTINGS_WORDS: u32 = size_of::<Settings>() as u32 / 4;

/// How tokens are drawn, as the device reads it; `common/sampling_settings.wgsl` names the words.
///
/// On the device two sets of ids follow, a bit per id: the allowed ones, and those across which DRY sees
/// no repetition.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Pod, Zeroable)]
pub struct Settings {
    /// Multiplies the logits.
    pub inverse_temperature: f32,
    /// 0 takes the best score, 1 draws.
    pub is_random: u32,
    /// Keep this many; 0 keeps all.
    pub top_k: u32,
    /// Keep scores within this many standard deviations of the best; 0 keeps all.
    pub top_n_sigma: f32,
    /// Keep scores within this distance of the best: -ln(min-p).
    pub min_p_reach: f32,
    /// Keep the best tokens that together reach this share; 1 or more keeps all.
    pub top_p: f32,
    /// Multiplies negative logits of tokens that occurred.
    pub repetition: f32,
    /// Multiplies positive logits of tokens that occurred.
    pub inverse_repetition: f32,
    /// Subtracted from logits of tokens that the reply has.
    pub presence: f32,
    /// Subtracted per occurrence in the reply.
    pub frequency: f32,
    /// Whether occurrences are counted: any of the four above does something.
    pub has_penalties: u32,
    /// Whether there is a bias per token.
    pub has_bias: u32,
    /// Whether only the ids of the first set may be drawn.
    pub has_allowed: u32,
    /// Key of the random numbers.
    pub seed: [u32; 2],
    /// Position of the first generated token.
    pub first_generated: u32,
    /// DRY looks at this many of the last tokens.
    pub dry_last_n: u32,
    /// Whether DRY does something.
    pub has_dry: u32,
    /// Keeps `dry_penalties` at word 32.
    pub padding: [u32; 14],
    /// What DRY subtracts from a token that would continue a repetition, by the repetition's length.
    pub dry_penalties: [f32; MAX_MATCH as usize + 1],
}

impl Default for Settings {
    /// The best token, nothing adjusted.
    fn default() -> Self {
        Self {
            inverse_temperature: 1.0,
            is_random: 0,
            top_k: 0,
            top_n_sigma: 0.0,
            min_p_reach: f32::MAX,
            top_p: 1.0,
            repetition: 1.0,
            inverse_repetition: 1.0,
            presence: 0.0,
            frequency: 0.0,
            has_penalties: 0,
            has_bias: 0,
            has_allowed: 0,
            seed: [0; 2],
            first_generated: 0,
            dry_last_n: u32::MAX,
            has_dry: 0,
            padding: [0; 14],
            dry_penalties: [0.0; MAX_MATCH as usize + 1],
        }
    }
}

impl Settings {
    /// Reads the settings at the start of the device's buffer.
    pub fn of(words: &[u32]) -> Self {
        bytemuck::pod_read_unaligned(bytemuck::cast_slice(&words[..SETTINGS_WORDS as usize]))
    }

    /// Whether top-k or top-p cut, which takes a histogram.
    pub fn has_cut(&self) -> bool {
        self.is_random != 0 && (self.top_k > 0 || self.top_p < 1.0)
    }

    /// The score of a token: bias, repetition, presence and frequency penalty, DRY, temperature.
    ///
    /// `count` is a word of [`History`], `repeats` the length of the repetition that the token would continue.
    pub fn score(&self, logit: f32, bias: f32, count: u32, repeats: u32) -> f32 {
        let mut value = logit + bias;
        if self.has_penalties != 0 {
            value = self.penalised(value, count);
        }
        if self.has_dry != 0 {
            value -= self.dry_penalty(repeats);
        }
        self.tempered(value)
    }

    /// A biased logit after the penalties for occurrences.
    #[inline]
    pub(crate) fn penalised(&self, value: f32, count: u32) -> f32 {
        let scaled = value * if value > 0.0 { self.inverse_repetition } else { self.repetition };
        let in_reply = count & !IN_PROMPT;
        let reduced = scaled - (self.presence + self.frequency * in_reply as f32);
        match (count, in_reply) {
            (0, _) => value,
            (_, 0) => scaled,
            _ => reduced,
        }
    }

    /// What DRY subtracts.
    #[inline]
    pub(crate) fn dry_penalty(&self, repeats: u32) -> f32 {
        self.dry_penalties[repeats.min(MAX_MATCH) as usize]
    }

    /// The score for a penalised logit.
    #[inline]
    pub(crate) fn tempered(&self, value: f32) -> f32 {
        (value * self.inverse_temperature).clamp(-1e37, 1e37)
    }

    /// A score `distance` below the best, perturbed so that the largest is a draw from the softmax of
    /// the scores (Gumbel-max: Gumbel 1954; Maddison, Tarlow and Minka 2014).
    pub fn perturbed(&self, distance: f32, id: u32, position: u32) -> f32 {
        if self.is_random == 0 {
            return -distance;
        }
        gumbel(random_bits(id, position, self.seed)) - distance
    }
}

/// Bit of a count in [`History`]: the token is in the prompt.
pub const IN_PROMPT: u32 = 1 << 31;

/// Whether a set with a bit per id, starting at word `start`, has `id`.
pub fn has_id(words: &[u32], start: u32, id: u32) -> bool {
    words[(start + id / 32) as usize] >> (id % 32) & 1 == 1
}

/// Words of a set of ids.
pub fn set_words(n_ids: u32) -> u32 {
    n_ids.div_ceil(32)
}

/// Words of the device's settings for `n_valid` ids.
pub fn settings_cols(n_valid: u32) -> u32 {
    SETTINGS_WORDS + 2 * set_words(n_valid)
}

/// How the vocabulary is split: shares of a whole number of workgroups each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// How many shares.
    pub n: u32,
    /// Ids per share.
    pub len: u32,
}

impl Shares {
    /// Shares of `n_valid` ids.
    pub fn of(n_valid: u32) -> Self {
        let len = n_valid.div_ceil(MAX_SHARES).next_multiple_of(BINS).max(BINS);
        Self { n: n_valid.div_ceil(len).max(1), len }
    }

    /// Where the share's winners start in the tally: behind the histogram.
    pub const WINNERS: u32 = BINS * 3;

    /// Where the set of undecided ids starts in the tally.
    pub const UNDECIDED: u32 = Self::WINNERS + MAX_SHARES;

    /// Words of the tally: histogram [BINS, 3] (number, mass / 2^13, mass % 2^13), the best id of each
    /// share, and a bit per id that is undecided.
    pub fn tally_cols(&self) -> u32 {
        Self::UNDECIDED + self.n * self.len / 32
    }
}

/// What was said: one buffer of ids sampled last, [G], by step modulo G; counts per id, [V]; and ids
/// by position, [S].
#[derive(Clone, Copy, Debug)]
pub struct History {
    /// Where it is.
    pub buffer: BufferId,
    /// G.
    pub n_generated: u32,
    /// V.
    pub vocab: u32,
    /// S.
    pub context: u32,
}

impl History {
    /// Where the counts start. A count is the occurrences in the reply, and [`IN_PROMPT`].
    pub fn counts(&self) -> u32 {
        self.n_generated
    }

    /// Where the ids by position start.
    pub fn ledger(&self) -> u32 {
        self.n_generated + self.vocab
    }

    /// The whole buffer, [1, G + V + S].
    pub fn tensor(&self) -> Tensor {
        Tensor { buffer: self.buffer, rows: 1, cols: self.n_generated + self.vocab + self.context }
    }

    /// The ids sampled last, [1, G].
    pub fn generated(&self) -> Tensor {
        Tensor { buffer: self.buffer, rows: 1, cols: self.n_generated }
    }
}

/// The buffers of the sampling kernels. [G] stands for the results kept, V for the vocabulary.
#[derive(Clone, Copy, Debug)]
pub struct Buffers {
    /// Ids below this can be drawn; the logits behind are padding.
    pub n_valid: u32,
    /// Logits in the first row, scores in the second, [2, V].
    pub logits: Tensor,
    /// [`Settings`] and the two sets of ids (u32), [1, `settings_cols`].
    pub settings: Tensor,
    /// Added to the logits, [1, V].
    pub bias: Tensor,
    /// Length of the repetition that each token would continue (u32), [1, V]; zero between steps.
    pub repeats: Tensor,
    /// What was said.
    pub history: History,
    /// Statistics per share, [shares, STAT_COLS].
    pub stats: Tensor,
    /// See [`Shares::tally_cols`] (u32).
    pub tally: Tensor,
    /// The first element is the next step's token (u32), [1, T].
    pub tokens: Tensor,
    /// Ids of each share's largest logits (u32), [shares, MAX_TOP].
    pub candidates: Tensor,
    /// Ids of the largest logits (u32), `u32::MAX` where there are fewer, [G, MAX_TOP].
    pub top_ids: Tensor,
    /// Log-probability of the token, then of `top_ids`, [G, 1 + MAX_TOP].
    pub logprobs: Tensor,
}

impl Buffers {
    /// Shares of the vocabulary.
    pub fn shares(&self) -> Shares {
        Shares::of(self.n_valid)
    }

    /// Refuses buffers that do not fit each other.
    pub(crate) fn check(&self, kernel: &'static str) -> Result<(), ShapeError> {
        let (vocab, shares, n_kept) = (self.logits.cols, self.shares(), self.history.n_generated);
        let fits = self.n_valid > 0 && self.n_valid <= vocab;
        require(kernel, "n_valid", self.n_valid, fits, "at least 1 and at most the vocabulary")?;
        require(kernel, "vocabulary", vocab, vocab < MAX_VOCAB, "below 524,288")?;
        require(kernel, "history", self.history.vocab, self.history.vocab == vocab, "the vocabulary")?;
        require(kernel, "results", n_kept, n_kept > 0, "at least 1")?;
        for (name, tensor, rows, cols) in [
            ("logits", self.logits, 2, vocab),
            ("settings", self.settings, 1, settings_cols(self.n_valid)),
            ("bias", self.bias, 1, vocab),
            ("repeats", self.repeats, 1, vocab),
            ("stats", self.stats, shares.n, STAT_COLS),
            ("tally", self.tally, 1, shares.tally_cols()),
            ("tokens", self.tokens, 1, self.tokens.cols.max(1)),
            ("candidates", self.candidates, shares.n, MAX_TOP),
            ("top_ids", self.top_ids, n_kept, MAX_TOP),
            ("logprobs", self.logprobs, n_kept, 1 + MAX_TOP),
        ] {
            expect_shape(kernel, name, tensor, rows, cols)?;
        }
        Ok(())
    }
}

/// 32 random bits for an id at a position: the first word of pcg4d (Jarzynski and Olano, Hash Functions for
/// GPU Rendering, JCGT 9(3), 2020) of id, position and seed.
pub fn random_bits(id: u32, position: u32, seed: [u32; 2]) -> u32 {
    let mut v = [id, position, seed[0], seed[1]];
    for x in &mut v {
        *x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
    }
    let mix = |v: &mut [u32; 4]| {
        v[0] = v[0].wrapping_add(v[1].wrapping_mul(v[3]));
        v[1] = v[1].wrapping_add(v[2].wrapping_mul(v[0]));
        v[2] = v[2].wrapping_add(v[0].wrapping_mul(v[1]));
        v[3] = v[3].wrapping_add(v[1].wrapping_mul(v[2]));
    };
    mix(&mut v);
    for x in &mut v {
        *x ^= *x >> 16;
    }
    mix(&mut v);
    v[0]
}

/// A Gumbel variate, -ln(-ln(1 - u)), for u uniform in (0, 1).
///
/// u keeps 24 significant bits at any size, since its small values decide among unlikely tokens.
pub fn gumbel(bits: u32) -> f32 {
    // Exact in f32.
    let kept = if bits < 1 << 24 { bits } else { bits & 0xffff_ff00 };
    let u = (kept as f32 + 0.5) * 2f32.powi(-32);
    let exponential = -(-f64::from(u)).ln_1p();
    -exponential.ln() as f32
}

/// The mass of a token `distance` below the best score, exp(-distance), in units of 2^-26.
///
/// In integers, for every device gives the same: 2^-x for the fraction x by a polynomial through the
/// Chebyshev nodes of [0, 1] (within 2e-9), then a shift.
#[inline]
pub fn mass(distance: f32) -> u32 {
    const COEFFICIENTS: [u32; 7] =
        [2_147_483_648, 1_488_521_945, 515_877_823, 119_165_869, 20_572_593, 2_739_202, 234_782];
    // 2^20 / ln(2).
    let steps = (distance.min(MAX_RANGE) * 1_512_775.4) as u32;
    let fraction = u64::from(steps % (1 << 20)) << 12;
    let mut value = COEFFICIENTS[6];
    for coefficient in COEFFICIENTS[..6].iter().rev() {
        value = coefficient.wrapping_sub(((u64::from(value) * fraction) >> 32) as u32);
    }
    value >> (5 + (steps >> 20)).min(31)
}

/// What all scores have in common.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The best score.
    pub top: f32,
    /// Scores further below the best are dropped, by min-p or top-n-sigma.
    pub reach: f32,
    /// Bins per unit of distance, a power of two.
    pub scale: f32,
    /// ln(sum of exp(logit)) over all logits before any adjustment.
    pub log_sum: f32,
    /// False if a logit was not finite, all are equal, or none is allowed.
    pub is_usable: bool,
}

impl Summary {
    /// Sums up the shares' rows of statistics, [shares, STAT_COLS].
    pub fn of(stats: &[f32], settings: &Settings) -> Self {
        let rows = || stats.chunks_exact(STAT_COLS as usize);
        let most = |col: usize| rows().fold(EXCLUDED, |a, row| a.max(row[col]));
        let least = |col: usize| rows().fold(-EXCLUDED, |a, row| a.min(row[col]));
        let sum = |col: usize| rows().map(|row| f64::from(row[col])).sum::<f64>();
        let (raw_top, top) = (most(0), most(4));
        let total: f64 = rows().map(|r| f64::from(r[3]) * (f64::from(r[0]) - f64::from(raw_top)).exp()).sum();
        let n = sum(6).max(1.0);
        let mean = sum(7) / n;
        let sigma = (sum(8) / n - mean * mean).max(0.0).sqrt() as f32;
        let mut reach = settings.min_p_reach;
        if settings.top_n_sigma > 0.0 {
            reach = reach.min(settings.top_n_sigma * sigma);
        }
        let range = (top - least(5)).min(reach).min(MAX_RANGE);
        Self {
            top,
            reach,
            scale: bin_scale(range),
            log_sum: (f64::from(raw_top) + total.ln()) as f32,
            is_usable: sum(2) == 0.0 && 0.5 * raw_top - 0.5 * least(1) >= 0.5 * LEAST_SPREAD && sum(6) > 0.0,
        }
    }

    /// How far the score is below the best; `None` if min-p, top-n-sigma or a mask drops it.
    pub fn distance(&self, score: f32) -> Option<f32> {
        let distance = self.top - score;
        (score != EXCLUDED && distance <= self.reach).then_some(distance)
    }

    /// The bin of a distance.
    #[inline]
    pub fn bin(&self, distance: f32) -> u32 {
        // Rounding down in arithmetic that vector units have: an f32 from 2^23 on has no fraction.
        const WHOLE: f32 = 8_388_608.0;
        let exact = (distance * self.scale).min((BINS - 1) as f32);
        let nearest = (exact + WHOLE) - WHOLE;
        let floor = if nearest > exact { nearest - 1.0 } else { nearest };
        (floor + WHOLE).to_bits() & (BINS - 1)
    }
}

/// The power of two that spreads distances up to `range` over 128 to 256 bins.
fn bin_scale(range: f32) -> f32 {
    if range < 1e-30 {
        return 1.0;
    }
    f32::from_bits((261 - (range.to_bits() >> 23)) << 23)
}

/// Number and mass of some tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weight {
    /// How many.
    pub n: u32,
    /// Their mass, in units of 2^-26.
    pub mass: u64,
}

impl Weight {
    /// With one token more.
    pub fn plus(self, mass: u32) -> Self {
        Self { n: self.n + 1, mass: self.mass + u64::from(mass) }
    }

    /// The mass as the device compares it.
    pub fn share(self) -> f32 {
        // Two steps, as the device has them: its integers have 32 bits.
        ((self.mass >> 13) as f32) * 8192.0 + (self.mass & 8191) as f32
    }
}

/// Between which bins the cuts of top-k and top-p are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// The bin in which top-k cuts; [`BINS`] if it cuts nothing.
    pub k_bin: u32,
    /// What is in the bins before `k_bin`.
    pub above_k: Weight,
    /// The first bin in which the cut can be: what is before is kept.
    pub first: u32,
    /// The last bin in which the cut can be.
    pub last: u32,
}

impl Bounds {
    /// The bounds for a histogram [BINS, 3].
    pub fn of(histogram: &[u32], settings: &Settings) -> Self {
        let bins: Vec<Weight> = weights(histogram);
        let mut above_k = Weight::default();
        let mut k_bin = BINS;
        for (bin, w) in (0..).zip(&bins) {
            if settings.top_k > 0 && above_k.n + w.n >= settings.top_k {
                k_bin = bin;
                break;
            }
            above_k = Weight { n: above_k.n + w.n, mass: above_k.mass + w.mass };
        }
        if settings.top_p >= 1.0 {
            return Self { k_bin, above_k, first: k_bin, last: k_bin };
        }
        let of_k_bin = bins.get(k_bin as usize).map_or(0, |w| w.mass);
        let through_k = Weight { mass: above_k.mass + of_k_bin, ..above_k };
        let first = reaching(&bins, settings.top_p * above_k.share()).min(k_bin);
        let last = reaching(&bins, settings.top_p * through_k.share()).min(k_bin);
        Self { k_bin, above_k, first, last }
    }

    /// Whether only the exact cut tells if tokens of this bin are kept, or how much they weigh.
    pub fn is_undecided(&self, bin: u32) -> bool {
        (self.first <= bin && bin <= self.last) || bin == self.k_bin
    }
}

/// The rows of a histogram.
pub(crate) fn weights(histogram: &[u32]) -> Vec<Weight> {
    let rows = histogram.chunks_exact(3).take(BINS as usize);
    rows.map(|row| Weight { n: row[0], mass: (u64::from(row[1]) << 13) + u64::from(row[2]) }).collect()
}

/// The first bin with which the mass reaches `target`; [`BINS`] if none does.
pub(crate) fn reaching(bins: &[Weight], target: f32) -> u32 {
    let mut sum = Weight::default();
    for (bin, w) in (0..).zip(bins) {
        sum.mass += w.mass;
        if sum.share() >= target {
            return bin;
        }
    }
    BINS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Rng;

    #[test]
    fn bins_round_down() {
        let mut rng = Rng::new(3);
        let summary = Summary { top: 0.0, reach: 0.0, scale: 8.0, log_sum: 0.0, is_usable: true };
        let near = |bin: u32| {
            let edge = bin as f32 / 8.0;
            [edge.next_down().max(0.0), edge, edge.next_up()]
        };
        let random = (0..10_000).map(|_| (rng.uniform() + 1.0) * 20.0);
        for distance in (0..300).flat_map(near).chain(random).chain([1e9, 1e37]) {
            assert_eq!(summary.bin(distance), ((distance * 8.0) as u32).min(BINS - 1), "{distance}");
        }
    }
}
