//! How tokens are chosen: the settings, and a sampler on the host that defines what the device must choose.
//!
//! A token is chosen in this order, which `docs/sampling.md` explains with the sources:
//!
//! 1. only the allowed ids count (a grammar's mask), and the logit bias is added;
//! 2. repetition penalty over prompt and reply, then presence and frequency penalty over the reply;
//! 3. DRY, for repetitions that contain generated tokens;
//! 4. temperature divides; below [`LEAST_TEMPERATURE`] the best score is taken and nothing below applies;
//! 5. top-k; 6. top-n-sigma; 7. min-p; 8. top-p, of the mass that is left;
//! 9. the draw: the largest sum of score and Gumbel noise, whose random bits follow from seed, position
//!    and id alone.
//!
//! Generation does all this on the device, on the CPU through the kernels' references. [`Sampler`] does the
//! same by sorting, and serves as the oracle in tests.

use std::collections::BTreeMap;

use signbit_shaders::sampling::{IN_PROMPT, MAX_MATCH, Settings, Weight, mass};

use crate::error::EngineError;

/// A lower temperature takes the best score: dividing by it would leave no second token a chance.
pub const LEAST_TEMPERATURE: f32 = 1e-3;

/// What DRY subtracts at most: no logit is that large.
const MOST_DRY_PENALTY: f64 = 1e6;

/// How tokens are chosen. The default takes the most likely one.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f32,
    /// Keep this many most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep tokens within this many standard deviations of the best score; 0 keeps all.
    pub top_n_sigma: f32,
    /// Keep tokens at least this likely relative to the most likely one.
    pub min_p: f32,
    /// Keep the most likely tokens that together reach this probability.
    pub top_p: f32,
    /// Divides positive logits of tokens in prompt and reply, and multiplies negative ones; 1 does nothing.
    pub repetition_penalty: f32,
    /// Subtracted from the logits of tokens that the reply already has.
    pub presence_penalty: f32,
    /// Subtracted from the logits once per occurrence in the reply.
    pub frequency_penalty: f32,
    /// Added to the logits of these ids.
    pub logit_bias: BTreeMap<u32, f32>,
    /// What DRY subtracts from a token that would continue a repetition of the allowed length; 0 turns it off.
    pub dry_multiplier: f32,
    /// By how much that grows with each token that the repetition is longer.
    pub dry_base: f32,
    /// The shortest repetition that is penalised.
    pub dry_allowed_length: u32,
    /// How many of the last tokens DRY looks at; -1 takes all.
    pub dry_penalty_last_n: i32,
    /// Ids across which DRY sees no repetition.
    pub dry_breakers: Vec<u32>,
    /// The same seed gives the same tokens on the same device.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_n_sigma: 0.0,
            min_p: 0.0,
            top_p: 1.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: BTreeMap::new(),
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last_n: -1,
            dry_breakers: Vec::new(),
            seed: 0,
        }
    }
}

impl Sampling {
    /// Whether the most likely token is taken as the model gives it.
    pub fn is_greedy(&self) -> bool {
        self.temperature < LEAST_TEMPERATURE
            && !self.has_penalties()
            && !self.has_dry()
            && self.logit_bias.is_empty()
    }

    /// Whether it matters which tokens occurred.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }

    /// Whether repetitions are looked for.
    pub fn has_dry(&self) -> bool {
        self.dry_multiplier > 0.0 && self.dry_penalty_last_n != 0
    }

    /// Refuses settings that mean nothing, for a model with `n_valid` ids.
    pub fn validate(&self, n_valid: u32) -> Result<(), EngineError> {
        let checks = [
            ("temperature", self.temperature, 0.0..=100.0),
            ("top_n_sigma", self.top_n_sigma, 0.0..=100.0),
            ("min_p", self.min_p, 0.0..=1.0),
            ("top_p", self.top_p, 0.0..=1.0),
            ("repetition_penalty", self.repetition_penalty, 0.01..=100.0),
            ("presence_penalty", self.presence_penalty, -2.0..=2.0),
            ("frequency_penalty", self.frequency_penalty, -2.0..=2.0),
            ("dry_multiplier", self.dry_multiplier, 0.0..=100.0),
            ("dry_base", self.dry_base, 1.0..=100.0),
        ];
        let biases = self.logit_bias.values().map(|&bias| ("logit_bias", bias, -100.0..=100.0));
        for (name, value, range) in checks.into_iter().chain(biases) {
            // A NaN is in no range.
            if !range.contains(&value) {
                let (low, high) = (range.start(), range.end());
                let reason = format!("{name} is {value}, which must be between {low} and {high}");
                return Err(EngineError::InvalidRequest { reason });
            }
        }
        let invalid = |reason| Err(EngineError::InvalidRequest { reason });
        if let Some(id) = self.logit_bias.keys().find(|&&id| id >= n_valid) {
            return invalid(format!(
                "logit_bias has the token id {id}, and this model's ids end at {n_valid}"
            ));
        }
        if !(1..=MAX_MATCH).contains(&self.dry_allowed_length) {
            let length = self.dry_allowed_length;
            return invalid(format!(
                "dry_allowed_length is {length}, which must be between 1 and {MAX_MATCH}"
            ));
        }
        if self.dry_penalty_last_n < -1 {
            let n = self.dry_penalty_last_n;
            return invalid(format!(
                "dry_penalty_last_n is {n}; give a number of tokens, or -1 for all of them"
            ));
        }
        Ok(())
    }

    /// The settings as the device reads them. The prompt has `first_generated` tokens.
    pub fn settings(&self, first_generated: u32) -> Settings {
        let is_random = self.temperature >= LEAST_TEMPERATURE;
        let mut settings = Settings {
            inverse_temperature: if is_random { 1.0 / self.temperature } else { 1.0 },
            is_random: u32::from(is_random),
            top_k: self.top_k,
            top_n_sigma: self.top_n_sigma,
            min_p_reach: if self.min_p > 0.0 { -self.min_p.ln() } else { f32::MAX },
            top_p: self.top_p,
            repetition: self.repetition_penalty,
            inverse_repetition: 1.0 / self.repetition_penalty,
            presence: self.presence_penalty,
            frequency: self.frequency_penalty,
            has_penalties: u32::from(self.has_penalties()),
            has_bias: u32::from(!self.logit_bias.is_empty()),
            seed: [self.seed as u32, (self.seed >> 32) as u32],
            first_generated,
            dry_last_n: u32::try_from(self.dry_penalty_last_n).unwrap_or(u32::MAX),
            has_dry: u32::from(self.has_dry()),
            ..Settings::default()
        };
        let lengths = (0..).zip(&mut settings.dry_penalties).skip(self.dry_allowed_length as usize);
        for (length, penalty) in lengths {
            let longer = length - self.dry_allowed_length as i32;
            let grown = f64::from(self.dry_multiplier) * f64::from(self.dry_base).powi(longer);
            *penalty = grown.min(MOST_DRY_PENALTY) as f32;
        }
        settings
    }
}

/// Chooses tokens for one reply by sorting all of them: what the device must choose as well.
#[derive(Clone, Debug)]
pub struct Sampler {
    sampling: Sampling,
    settings: Settings,
    /// Prompt and reply.
    ids: Vec<u32>,
    prompt_len: usize,
}

impl Sampler {
    /// A sampler behind a prompt.
    pub fn new(sampling: Sampling, prompt: &[u32]) -> Self {
        let settings = sampling.settings(prompt.len() as u32);
        Self { sampling, settings, ids: prompt.to_vec(), prompt_len: prompt.len() }
    }

    /// Goes on from `id`, however it was chosen.
    pub fn accept(&mut self, id: u32) {
        self.ids.push(id);
    }

    /// The next id, among those that `allowed` holds for; `None` if the logits are no distribution: not all
    /// of them numbers, or all the same.
    pub fn sample(&self, logits: &[f32], allowed: impl Fn(u32) -> bool) -> Option<u32> {
        let (least, most) = logits.iter().fold((f32::MAX, f32::MIN), |(a, b), &l| (a.min(l), b.max(l)));
        let is_flat = 0.5 * most - 0.5 * least < 0.5 * signbit_shaders::sampling::LEAST_SPREAD;
        if logits.iter().any(|l| !l.is_finite()) || is_flat {
            return None;
        }
        let mut tokens = self.scores(logits);
        tokens.retain(|&(id, _)| allowed(id));
        // Ties go to the smaller id.
        tokens.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        if self.settings.is_random == 0 {
            return tokens.first().map(|&(id, _)| id);
        }
        self.draw(&tokens)
    }

    /// Log-probability of every token in the model's own distribution.
    pub fn log_probabilities(logits: &[f32]) -> Vec<f64> {
        let top = logits.iter().fold(f64::MIN, |a, &l| a.max(l.into()));
        let sum: f64 = logits.iter().map(|&l| (f64::from(l) - top).exp()).sum();
        logits.iter().map(|&l| f64::from(l) - top - sum.ln()).collect()
    }

    /// Every id with its score.
    fn scores(&self, logits: &[f32]) -> Vec<(u32, f32)> {
        let mut counts = vec![0u32; logits.len()];
        let (prompt, reply) = self.ids.split_at(self.prompt_len);
        for &id in prompt {
            counts[id as usize] |= IN_PROMPT;
        }
        for &id in reply {
            counts[id as usize] += 1;
        }
        let repeats = self.repeats(logits.len());
        let bias = |id| self.sampling.logit_bias.get(&id).copied().unwrap_or_default();
        let score = |(id, &logit): (u32, &f32)| {
            let score = self.settings.score(logit, bias(id), counts[id as usize], repeats[id as usize]);
            (id, score)
        };
        (0..).zip(logits).map(score).collect()
    }

    /// How long a repetition each id would continue.
    fn repeats(&self, n: usize) -> Vec<u32> {
        let mut repeats = vec![0; n];
        if !self.sampling.has_dry() {
            return repeats;
        }
        let start = self.ids.len() - (self.settings.dry_last_n as usize).min(self.ids.len());
        let window = &self.ids[start..];
        for next in 1..window.len() {
            // The run before must end with a generated token.
            if start + next - 1 < self.prompt_len {
                continue;
            }
            let run = window[..next].iter().rev().zip(window.iter().rev());
            let length = run
                .take(MAX_MATCH as usize)
                .take_while(|(a, b)| a == b && !self.sampling.dry_breakers.contains(a))
                .count() as u32;
            let longest = &mut repeats[window[next] as usize];
            *longest = length.max(*longest);
        }
        repeats
    }

    /// Draws from tokens in the order of falling scores.
    fn draw(&self, tokens: &[(u32, f32)]) -> Option<u32> {
        let s = &self.settings;
        let top = tokens.first()?.1;
        let n = tokens.len() as f64;
        let mean = tokens.iter().map(|&(_, score)| f64::from(score)).sum::<f64>() / n;
        let variance = tokens.iter().map(|&(_, score)| (f64::from(score) - mean).powi(2)).sum::<f64>() / n;
        let sigma = variance.sqrt() as f32;
        let wanted = if s.top_k == 0 { tokens.len() } else { s.top_k as usize };
        let kept: Vec<(u32, f32)> = tokens
            .iter()
            .map(|&(id, score)| (id, top - score))
            .take(wanted)
            .filter(|&(_, distance)| s.top_n_sigma == 0.0 || distance <= s.top_n_sigma * sigma)
            .filter(|&(_, distance)| distance <= s.min_p_reach)
            .collect();
        let add = |sum: Weight, &(_, distance): &(u32, f32)| sum.plus(mass(distance));
        let goal = s.top_p * kept.iter().fold(Weight::default(), add).share();
        let position = self.ids.len() as u32;
        let mut best = None;
        let mut sum = Weight::default();
        for token in &kept {
            if s.top_p < 1.0 && sum.n > 0 && sum.share() >= goal {
                break;
            }
            sum = add(sum, token);
            let value = s.perturbed(token.1, token.0, position);
            if best.is_none_or(|(_, most)| value > most) {
                best = Some((token.0, value));
            }
        }
        best.map(|(id, _)| id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOGITS: [f32; 5] = [0.0, 2.0, 1.0, 3.0, -1.0];

    fn any(_: u32) -> bool {
        true
    }

    fn sample(sampling: Sampling, logits: &[f32]) -> Option<u32> {
        Sampler::new(sampling, &[]).sample(logits, any)
    }

    fn frequencies(sampling: &Sampling, n: u32) -> Vec<f64> {
        let mut counts = vec![0u32; LOGITS.len()];
        for seed in 0..n {
            // The seeds 0..n are the randomness of this test.
            let id = sample(Sampling { seed: u64::from(seed), ..sampling.clone() }, &LOGITS).unwrap();
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
        assert_close(&frequencies(&Sampling { temperature: 1.0, ..Sampling::default() }, n), &t1, n);
        assert_close(&frequencies(&Sampling { temperature: 2.0, ..Sampling::default() }, n), &t2, n);
    }

    #[test]
    fn filters_keep_what_they_say() {
        let n = 5_000;
        let base = Sampling { temperature: 1.0, ..Sampling::default() };
        // exp(3), exp(2) alone: 0.731059 and 0.268941.
        let two = [0.0, 0.268941, 0.0, 0.731059, 0.0];
        let one = [0.0, 0.0, 0.0, 1.0, 0.0];
        assert_close(&frequencies(&Sampling { top_k: 2, ..base.clone() }, n), &two, n);
        assert_close(&frequencies(&Sampling { top_p: 0.8, ..base.clone() }, n), &two, n);
        assert_close(&frequencies(&Sampling { min_p: 0.3, ..base.clone() }, n), &two, n);
        assert_close(&frequencies(&Sampling { top_p: 0.0, ..base.clone() }, n), &one, n);
        // The standard deviation of the five is the root of 2.
        assert_close(&frequencies(&Sampling { top_n_sigma: 0.71, ..base.clone() }, n), &two, n);
        assert_close(&frequencies(&Sampling { top_n_sigma: 0.7, ..base.clone() }, n), &one, n);
        // Top-p counts the mass of what the others leave: 0.73 of it is the best token's.
        assert_close(&frequencies(&Sampling { top_k: 2, top_p: 0.73, ..base.clone() }, n), &one, n);
        assert_close(&frequencies(&Sampling { top_k: 2, top_p: 0.74, ..base }, n), &two, n);
    }

    #[test]
    fn greedy_ties_penalties_and_masks() {
        assert_eq!(sample(Sampling::default(), &[1.0, 3.0, 3.0]), Some(1));
        assert_eq!(sample(Sampling::default(), &[1.0, f32::NAN]), None);
        assert_eq!(sample(Sampling::default(), &[1.0, 1.0]), None);
        let mut penalised = Sampler::new(Sampling { presence_penalty: 1.5, ..Sampling::default() }, &[3]);
        // What the prompt has is no repetition.
        for expected in [3, 1, 3] {
            assert_eq!(penalised.sample(&LOGITS, any), Some(expected));
            penalised.accept(expected);
        }
        let repeated = Sampler::new(Sampling { repetition_penalty: 2.0, ..Sampling::default() }, &[3]);
        assert_eq!(repeated.sample(&LOGITS, any), Some(1));
        assert_eq!(repeated.sample(&LOGITS, |id| id != 1), Some(3));
        let biased = Sampling { logit_bias: [(4, 5.0)].into(), ..Sampling::default() };
        assert_eq!(sample(biased, &LOGITS), Some(4));
    }

    #[test]
    fn dry_by_hand() {
        let dry = Sampling { dry_multiplier: 1.0, dry_base: 2.0, ..Sampling::default() };
        // 1 2 was followed by 3; both are generated.
        let sampler = |prompt: &[u32], reply: &[u32], dry: &Sampling| {
            let mut sampler = Sampler::new(dry.clone(), prompt);
            reply.iter().for_each(|&id| sampler.accept(id));
            sampler.sample(&[0.0, 0.0, 0.0, 0.9, 0.5], any)
        };
        assert_eq!(sampler(&[], &[1, 2, 3, 0, 1, 2], &dry), Some(4));
        // In the prompt alone it does not count.
        assert_eq!(sampler(&[1, 2, 3, 0], &[1, 2], &dry), Some(3));
        // Nor does one token, a run across a breaker, or one beyond the window.
        assert_eq!(sampler(&[], &[0, 2, 3, 0, 1, 2], &dry), Some(3));
        assert_eq!(
            sampler(&[], &[1, 2, 3, 0, 1, 2], &Sampling { dry_breakers: vec![1], ..dry.clone() }),
            Some(3)
        );
        assert_eq!(
            sampler(&[], &[1, 2, 3, 0, 1, 2], &Sampling { dry_penalty_last_n: 5, ..dry.clone() }),
            Some(3)
        );
        // A longer run costs twice as much per token: 0.25 for two, 0.5 for three.
        let mild = Sampling { dry_multiplier: 0.25, ..dry };
        assert_eq!(sampler(&[], &[1, 2, 3, 0, 1, 2], &mild), Some(3));
        assert_eq!(sampler(&[], &[0, 1, 2, 3, 0, 1, 2], &mild), Some(4));
        assert_eq!(mild.settings(0).dry_penalties[..5], [0.0, 0.0, 0.25, 0.5, 1.0]);
    }

    #[test]
    fn the_same_seed_gives_the_same_tokens() {
        let run = |seed| {
            let mut s = Sampler::new(Sampling { temperature: 1.5, seed, ..Sampling::default() }, &[]);
            (0..50)
                .map(|_| {
                    let id = s.sample(&LOGITS, any).unwrap();
                    s.accept(id);
                    id
                })
                .collect::<Vec<_>>()
        };
        assert_eq!(run(7), run(7));
        assert_ne!(run(7), run(8));
        assert_ne!(run(7), run(7 + (1 << 32)));
    }

    #[test]
    fn nonsense_is_refused() {
        let fine = Sampling::default();
        for bad in [
            Sampling { temperature: -1.0, ..fine.clone() },
            Sampling { temperature: f32::NAN, ..fine.clone() },
            Sampling { top_p: 1.5, ..fine.clone() },
            Sampling { min_p: -0.1, ..fine.clone() },
            Sampling { top_n_sigma: -1.0, ..fine.clone() },
            Sampling { repetition_penalty: 0.0, ..fine.clone() },
            Sampling { logit_bias: [(3, f32::INFINITY)].into(), ..fine.clone() },
            Sampling { logit_bias: [(100, 1.0)].into(), ..fine.clone() },
            Sampling { dry_allowed_length: 0, ..fine.clone() },
            Sampling { dry_base: 0.5, ..fine.clone() },
            Sampling { dry_penalty_last_n: -2, ..fine.clone() },
        ] {
            assert_eq!(bad.validate(100).unwrap_err().code(), "invalid_request");
        }
        Sampling { logit_bias: [(99, -100.0)].into(), ..fine }.validate(100).unwrap();
    }
}
