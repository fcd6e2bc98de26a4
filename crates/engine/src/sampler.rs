//! Choosing the next token from logits on the host.
//!
//! Greedy decoding happens on the device; this serves everything else.

use crate::error::EngineError;

/// How tokens are chosen.
#[derive(Clone, Copy, Debug, PartialEq, serde::Deserialize, serde::Serialize)]
#[serde(default)]
pub struct Sampling {
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f32,
    /// Keep this many most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the most likely tokens that together reach this probability.
    pub top_p: f32,
    /// Keep tokens at least this likely relative to the most likely one.
    pub min_p: f32,
    /// Subtracted from the logits of tokens that the reply already has.
    pub presence_penalty: f32,
    /// Subtracted from the logits once per occurrence in the reply.
    pub frequency_penalty: f32,
    /// The same seed gives the same tokens on the same device.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
        }
    }
}

impl Sampling {
    /// Whether the most likely token is always taken.
    pub fn is_greedy(&self) -> bool {
        self.temperature == 0.0 && self.presence_penalty == 0.0 && self.frequency_penalty == 0.0
    }

    /// Refuses settings that mean nothing.
    pub fn validate(&self) -> Result<(), EngineError> {
        let checks = [
            ("temperature", self.temperature, 0.0..=100.0),
            ("top_p", self.top_p, 0.0..=1.0),
            ("min_p", self.min_p, 0.0..=1.0),
            ("presence_penalty", self.presence_penalty, -2.0..=2.0),
            ("frequency_penalty", self.frequency_penalty, -2.0..=2.0),
        ];
        for (name, value, range) in checks {
            // A NaN is in no range.
            if !range.contains(&value) {
                let (low, high) = (range.start(), range.end());
                let reason = format!("{name} is {value}, which must be between {low} and {high}");
                return Err(EngineError::InvalidRequest { reason });
            }
        }
        Ok(())
    }
}

/// Draws tokens for one reply.
#[derive(Debug)]
pub struct Sampler {
    settings: Sampling,
    rng: SplitMix64,
    /// Sorted pairs of id and count.
    counts: std::collections::BTreeMap<u32, u32>,
}

impl Sampler {
    /// A sampler at the start of a reply.
    pub fn new(settings: Sampling) -> Self {
        Self { settings, rng: SplitMix64(settings.seed), counts: std::collections::BTreeMap::new() }
    }

    /// The next id among the first `n_valid` logits; `None` if they are no distribution: not all
    /// of them numbers, or all the same.
    ///
    /// Penalties, then temperature, top-k, top-p and min-p, in this order.
    pub fn sample(&mut self, logits: &[f32], n_valid: u32) -> Option<u32> {
        let s = self.settings;
        let valid = logits.get(..n_valid as usize).unwrap_or(logits);
        let (least, most) = valid.iter().fold((f32::MAX, f32::MIN), |(a, b), &l| (a.min(l), b.max(l)));
        // The spread below which the device's argmax gives up as well.
        if valid.iter().any(|l| !l.is_finite()) || most - least < 1e-6 {
            return None;
        }
        let mut candidates: Vec<(u32, f32)> = (0..).zip(valid.iter().copied()).collect();
        for (&id, &count) in &self.counts {
            if let Some((_, logit)) = candidates.get_mut(id as usize) {
                *logit -= s.presence_penalty + s.frequency_penalty * count as f32;
            }
        }
        // Ties go to the smaller id, as on the device.
        let by_logit = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        let id = if s.temperature == 0.0 {
            candidates.iter().min_by(|a, b| by_logit(a, b))?.0
        } else {
            let keep = if s.top_k == 0 { candidates.len() } else { s.top_k as usize };
            if keep < candidates.len() {
                candidates.select_nth_unstable_by(keep, by_logit);
                candidates.truncate(keep);
            }
            candidates.sort_unstable_by(by_logit);
            self.draw(&candidates)?
        };
        *self.counts.entry(id).or_default() += 1;
        Some(id)
    }

    /// Draws from candidates sorted by falling logit.
    fn draw(&mut self, candidates: &[(u32, f32)]) -> Option<u32> {
        let s = self.settings;
        let best = f64::from(candidates.first()?.1);
        let weight = |logit: f32| ((f64::from(logit) - best) / f64::from(s.temperature)).exp();
        let total: f64 = candidates.iter().map(|&(_, l)| weight(l)).sum();
        let mut kept = Vec::new();
        let mut mass = 0.0;
        for &(id, logit) in candidates {
            let w = weight(logit);
            if !kept.is_empty() && (mass >= f64::from(s.top_p) * total || w < f64::from(s.min_p)) {
                break;
            }
            mass += w;
            kept.push((id, w));
        }
        let mut point = self.rng.uniform() * mass;
        for &(id, w) in &kept {
            point -= w;
            if point < 0.0 {
                return Some(id);
            }
        }
        kept.last().map(|&(id, _)| id)
    }
}

/// SplitMix64 (Steele, Lea and Flood 2014): enough for drawing tokens, and reproducible.
#[derive(Debug)]
struct SplitMix64(u64);

impl SplitMix64 {
    /// Uniform in `[0, 1)` with 53 random bits.
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [0.0, 2.0, 1.0, 3.0, -1.0];

    fn frequencies(settings: Sampling, n: u32) -> Vec<f64> {
        let mut counts = vec![0u32; LOGITS.len()];
        for seed in 0..n {
            // The seeds 0..n are the randomness of this test.
            let id = Sampler::new(Sampling { seed: u64::from(seed), ..settings }).sample(&LOGITS, 5).unwrap();
            counts[id as usize] += 1;
        }
        counts.into_iter().map(|c| f64::from(c) / f64::from(n)).collect()
    }

    /// Five standard deviations of a binomial share over `n` draws.
    fn assert_close(measured: &[f64], expected: &[f64], n: u32) {
        for (m, e) in measured.iter().zip(expected) {
            let bound = 5.0 * (e * (1.0 - e) / f64::from(n)).sqrt();
            assert!((m - e).abs() <= bound, "{measured:?} against {expected:?}");
        }
    }

    #[test]
    fn draws_follow_the_softmax() {
        let n = 20_000;
        // exp(l) / sum exp(l) and exp(l / 2) / sum, computed by hand to six digits.
        let t1 = [0.031685, 0.234122, 0.086129, 0.636409, 0.011656];
        let t2 = [0.095646, 0.259993, 0.157694, 0.428656, 0.058012];
        assert_close(&frequencies(Sampling { temperature: 1.0, ..Sampling::default() }, n), &t1, n);
        assert_close(&frequencies(Sampling { temperature: 2.0, ..Sampling::default() }, n), &t2, n);
    }

    #[test]
    fn filters_keep_what_they_say() {
        let n = 5_000;
        let base = Sampling { temperature: 1.0, ..Sampling::default() };
        // exp(3), exp(2) alone: 0.731059 and 0.268941.
        let two = [0.0, 0.268941, 0.0, 0.731059, 0.0];
        assert_close(&frequencies(Sampling { top_k: 2, ..base }, n), &two, n);
        assert_close(&frequencies(Sampling { top_p: 0.8, ..base }, n), &two, n);
        assert_close(&frequencies(Sampling { min_p: 0.3, ..base }, n), &two, n);
        assert_close(&frequencies(Sampling { top_p: 0.0, ..base }, n), &[0.0, 0.0, 0.0, 1.0, 0.0], n);
    }

    #[test]
    fn greedy_ties_padding_and_penalties() {
        let mut greedy = Sampler::new(Sampling::default());
        assert_eq!(greedy.sample(&[1.0, 3.0, 3.0, 9.0], 3), Some(1));
        assert_eq!(greedy.sample(&[1.0, f32::NAN], 2), None);
        assert_eq!(greedy.sample(&[1.0, 0.0, f32::NAN], 2), Some(0));
        assert_eq!(greedy.sample(&[1.0, 1.0], 2), None);
        let mut penalised = Sampler::new(Sampling { presence_penalty: 1.5, ..Sampling::default() });
        assert_eq!(penalised.sample(&LOGITS, 5), Some(3));
        assert_eq!(penalised.sample(&LOGITS, 5), Some(1));
        assert_eq!(penalised.sample(&LOGITS, 5), Some(3));
    }

    #[test]
    fn the_same_seed_gives_the_same_tokens() {
        let run = |seed| {
            let mut s = Sampler::new(Sampling { temperature: 1.5, seed, ..Sampling::default() });
            (0..50).map(|_| s.sample(&LOGITS, 5).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [
            Sampling { temperature: -1.0, ..Sampling::default() },
            Sampling { temperature: f32::NAN, ..Sampling::default() },
            Sampling { top_p: 1.5, ..Sampling::default() },
            Sampling { min_p: -0.1, ..Sampling::default() },
        ] {
            assert_eq!(bad.validate().unwrap_err().code(), "invalid_request");
        }
        Sampling::default().validate().unwrap();
    }
}
