//! Sampling on the device: what it draws follows the distribution that the settings describe, and is what
//! sorting on the host gives.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]

mod common;

use common::*;
use pollster::block_on;
use signbit_engine::device::{Device, Plan, Read};
use signbit_engine::engine::{Engine, TokenRequest};
use signbit_engine::model::MAX_STEPS_PER_SUBMIT;
use signbit_engine::sampler::{Sampler, Sampling};
use signbit_engine::session::TokenLogprobs;
use signbit_shaders::case::Rng;
use signbit_shaders::kernels::{
    sample_adjust, sample_draw, sample_dry, sample_final, sample_histogram, top_final, top_share,
};
use signbit_shaders::sampling::{
    Buffers, History, IN_PROMPT, MAX_TOP, SETTINGS_WORDS, STAT_COLS, Shares, set_words, settings_cols,
};
use signbit_shaders::{State, Tensor};

/// Positions that the history holds.
const CONTEXT: u32 = 64;

/// The sampling kernels over logits that stand in for a model's.
struct Bench {
    device: Device,
    buffers: Buffers,
    plan: Plan,
    top: Plan,
    logits: Vec<f32>,
}

impl Bench {
    fn new(mut device: Device, logits: Vec<f32>) -> Self {
        let n_valid = logits.len() as u32;
        let shares = Shares::of(n_valid);
        let mut tensor = |rows: u32, cols: u32| {
            let buffer = device.create_buffer("", u64::from(rows) * u64::from(cols)).unwrap();
            Tensor { buffer, rows, cols }
        };
        let n_generated = MAX_STEPS_PER_SUBMIT;
        let history = tensor(1, n_generated + n_valid + CONTEXT).buffer;
        let buffers = Buffers {
            n_valid,
            logits: tensor(2, n_valid),
            settings: tensor(1, settings_cols(n_valid)),
            bias: tensor(1, n_valid),
            repeats: tensor(1, n_valid),
            history: History { buffer: history, n_generated, vocab: n_valid, context: CONTEXT },
            stats: tensor(shares.n, STAT_COLS),
            tally: tensor(1, shares.tally_cols()),
            tokens: tensor(1, 1),
            candidates: tensor(shares.n, MAX_TOP),
            top_ids: tensor(n_generated, MAX_TOP),
            logprobs: tensor(n_generated, 1 + MAX_TOP),
        };
        let words: Vec<u32> = logits.iter().map(|l| l.to_bits()).collect();
        device.write(buffers.logits.buffer, 0, &words).unwrap();
        let kernels = [
            sample_dry::sample_dry,
            sample_adjust::sample_adjust,
            sample_histogram::sample_histogram,
            sample_draw::sample_draw,
            sample_final::sample_final,
        ];
        let dispatches = kernels.map(|kernel| kernel(&buffers).unwrap()).to_vec();
        let plan = device.prepare(dispatches).unwrap();
        let top = [sample_adjust::sample_adjust, top_share::top_share, top_final::top_final];
        let top = device.prepare(top.map(|kernel| kernel(&buffers).unwrap()).to_vec()).unwrap();
        Self { device, buffers, plan, top, logits }
    }

    /// Begins a generation behind `prompt`.
    fn start(&mut self, sampling: &Sampling, prompt: &[u32]) {
        let Buffers { settings, history, bias, n_valid, .. } = self.buffers;
        let vocab = n_valid as usize;
        let mut words = bytemuck::cast_slice(&[sampling.settings(prompt.len() as u32)]).to_vec();
        words.resize(settings.cols as usize, 0);
        for id in &sampling.dry_breakers {
            words[(SETTINGS_WORDS + set_words(n_valid) + id / 32) as usize] |= 1 << (id % 32);
        }
        self.device.write(settings.buffer, 0, &words).unwrap();
        let mut said = vec![0u32; history.tensor().cols as usize];
        for (i, &id) in prompt.iter().enumerate() {
            said[history.counts() as usize + id as usize] = IN_PROMPT;
            said[history.ledger() as usize + i] = id;
        }
        self.device.write(history.buffer, 0, &said).unwrap();
        let mut biases = vec![0f32; vocab];
        for (&id, &value) in &sampling.logit_bias {
            biases[id as usize] = value;
        }
        self.device.write(bias.buffer, 0, bytemuck::cast_slice(&biases)).unwrap();
        self.device.write_state(&State {
            position: prompt.len() as u32 - 1,
            n_tokens: 1,
            ..State::default()
        });
    }

    /// Lets only these ids be drawn.
    fn allow(&mut self, ids: &[u32]) {
        let mut words = vec![0u32; set_words(self.buffers.n_valid) as usize];
        ids.iter().for_each(|id| words[*id as usize / 32] |= 1 << (id % 32));
        let has_allowed = std::mem::offset_of!(signbit_shaders::sampling::Settings, has_allowed) as u64 / 4;
        self.device.write(self.buffers.settings.buffer, SETTINGS_WORDS.into(), &words).unwrap();
        self.device.write(self.buffers.settings.buffer, has_allowed, &[1]).unwrap();
    }

    /// Draws `n` tokens in one submit; the logits stay the same.
    fn draw(&mut self, n: u32) -> Vec<u32> {
        let history = self.buffers.history;
        let read = Read::Words(history.buffer, 0..history.n_generated.into());
        let results = block_on(self.device.run(&vec![&self.plan; n as usize], &[Read::State, read])).unwrap();
        let state: State = bytemuck::pod_read_unaligned(bytemuck::cast_slice(&results[0]));
        assert_eq!(state.done, State::RUNNING);
        (state.step - n..state.step).map(|step| results[1][(step % history.n_generated) as usize]).collect()
    }

    /// `n` draws that nothing but their positions tells apart.
    fn draws(&mut self, sampling: &Sampling, n: u32) -> Vec<u32> {
        self.start(sampling, &[0]);
        (0..n / 8).flat_map(|_| self.draw(8)).collect()
    }
}

fn bell(seed: u32, n: usize, center: f32, width: f32) -> Vec<f32> {
    let mut rng = Rng::new(seed);
    (0..n).map(|_| center + width * (0..12).map(|_| rng.uniform()).sum::<f32>() / 2.0).collect()
}

/// Every setting alone, and together.
fn settings() -> Vec<(&'static str, Sampling)> {
    let warm = Sampling { temperature: 1.0, seed: 5, ..Sampling::default() };
    let with = |name, change: fn(&mut Sampling)| {
        let mut sampling = warm.clone();
        change(&mut sampling);
        (name, sampling)
    };
    vec![
        with("temperature", |s| s.temperature = 0.7),
        with("hot", |s| s.temperature = 20.0),
        with("cold", |s| s.temperature = 0.05),
        with("zero", |s| s.temperature = 0.0),
        with("top-k", |s| s.top_k = 7),
        with("top-k of one", |s| s.top_k = 1),
        with("top-n-sigma", |s| s.top_n_sigma = 1.0),
        with("min-p", |s| s.min_p = 0.05),
        with("top-p", |s| s.top_p = 0.8),
        with("repetition", |s| s.repetition_penalty = 1.5),
        with("presence", |s| (s.presence_penalty, s.top_k) = (1.5, 20)),
        with("frequency", |s| (s.frequency_penalty, s.top_k) = (0.7, 20)),
        with("bias", |s| s.logit_bias = [(3, 9.0), (5, -4.0)].into()),
        with("dry", |s| {
            (s.dry_multiplier, s.dry_allowed_length, s.top_k) = (3.0, 1, 3);
            s.dry_breakers = vec![9];
        }),
        with("everything", |s| {
            (s.temperature, s.top_k, s.top_n_sigma, s.min_p, s.top_p) = (1.3, 60, 3.0, 0.01, 0.9);
            (s.repetition_penalty, s.presence_penalty, s.frequency_penalty) = (1.1, 0.2, 0.1);
            (s.dry_multiplier, s.dry_penalty_last_n) = (0.8, 20);
            s.logit_bias = [(3, 4.0)].into();
        }),
    ]
}

/// The device's tokens are the oracle's: same logits, same random numbers.
fn tokens_equal(mut bench: Bench, n_submits: usize) {
    let prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5];
    let logits = bench.logits.clone();
    for (name, sampling) in settings() {
        let mut oracle = Sampler::new(sampling.clone(), &prompt);
        bench.start(&sampling, &prompt);
        for submit in 0..n_submits {
            // One submit of eight, then single steps: the same stream of tokens.
            let ids = if submit == 0 { bench.draw(8) } else { bench.draw(1) };
            for id in ids {
                assert_eq!(oracle.sample(&logits, |_| true), Some(id), "{name}, submit {submit}");
                oracle.accept(id);
            }
        }
    }
}

#[test]
fn the_device_draws_what_sorting_on_the_host_draws() {
    let _gpu = one_at_a_time();
    tokens_equal(Bench::new(gpu(), bell(1, 300, 2.0, 2.0)), 20);
    tokens_equal(Bench::new(gpu(), bell(2, 5_000, 2.0, 2.5)), 3);
    tokens_equal(Bench::new(cpu(), bell(1, 300, 2.0, 2.0)), 20);
    // A vocabulary of full size.
    tokens_equal(Bench::new(gpu(), bell(3, 151_936, 2.0, 2.5)), 1);
}

#[test]
fn masked_tokens_are_never_drawn() {
    let _gpu = one_at_a_time();
    let mut bench = Bench::new(gpu(), bell(4, 1_000, 0.0, 2.0));
    let allowed = [0, 31, 32, 511, 999];
    let logits = bench.logits.clone();
    for (name, sampling) in settings().into_iter().filter(|(_, s)| s.logit_bias.is_empty()) {
        bench.start(&sampling, &[0]);
        bench.allow(&allowed);
        let mut oracle = Sampler::new(sampling, &[0]);
        for id in bench.draw(8) {
            assert!(allowed.contains(&id), "{name}: {id}");
            assert_eq!(oracle.sample(&logits, |id| allowed.contains(&id)), Some(id), "{name}");
            oracle.accept(id);
        }
    }
}

/// Probabilities of the tokens that are kept, by the formulas, in f64.
fn distribution(logits: &[f32], s: &Sampling) -> Vec<f64> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    let score = |id: usize| f64::from(logits[id]) / f64::from(s.temperature);
    let top = score(order[0]);
    if s.top_k > 0 {
        order.truncate(s.top_k as usize);
    }
    if s.top_n_sigma > 0.0 {
        let n = logits.len() as f64;
        let mean = (0..logits.len()).map(score).sum::<f64>() / n;
        let sigma = ((0..logits.len()).map(|id| (score(id) - mean).powi(2)).sum::<f64>() / n).sqrt();
        order.retain(|&id| score(id) >= top - f64::from(s.top_n_sigma) * sigma);
    }
    order.retain(|&id| (score(id) - top).exp() >= f64::from(s.min_p));
    let weight = |id: usize| (score(id) - top).exp();
    let total: f64 = order.iter().map(|&id| weight(id)).sum();
    let mut kept = vec![0.0; logits.len()];
    let mut sum = 0.0;
    for id in order {
        if sum > 0.0 && sum >= f64::from(s.top_p) * total {
            break;
        }
        sum += weight(id);
        kept[id] = weight(id);
    }
    kept.into_iter().map(|w| w / sum).collect()
}

/// Pearson's statistic over cells of at least `least` expected draws: tokens in the order of their ids, rare ones
/// together. Returns it with the degrees of freedom.
fn chi_square(ids: &[u32], probabilities: &[f64], least: f64) -> (f64, f64) {
    let mut counts = vec![0.0; probabilities.len()];
    ids.iter().for_each(|&id| counts[id as usize] += 1.0);
    let n = ids.len() as f64;
    let (mut statistic, mut cells) = (0.0, 0.0);
    let (mut expected, mut observed) = (0.0, 0.0);
    let mut left: f64 = n;
    for (&p, &count) in probabilities.iter().zip(&counts) {
        assert!(p > 0.0 || count == 0.0, "a token that is not kept was drawn");
        expected += p * n;
        observed += count;
        left -= p * n;
        // The last cell takes what is left.
        if expected >= least && left >= least {
            statistic += (observed - expected).powi(2) / expected;
            cells += 1.0;
            (expected, observed) = (0.0, 0.0);
        }
    }
    if expected > 0.0 {
        statistic += (observed - expected).powi(2) / expected;
        cells += 1.0;
    }
    (statistic, cells - 1.0)
}

/// The value that chi-square exceeds with the probability 1e-4 (Wilson and Hilferty 1931; 3.719 is that quantile of the
/// normal distribution).
fn critical(freedom: f64) -> f64 {
    let a = 2.0 / (9.0 * freedom);
    freedom * (1.0 - a + 3.719 * a.sqrt()).powi(3)
}

fn draws_are_distributed(mut bench: Bench, cases: &[(Sampling, u32)]) {
    let logits = bench.logits.clone();
    for (sampling, n) in cases {
        let probabilities = distribution(&logits, sampling);
        let (statistic, freedom) = chi_square(&bench.draws(sampling, *n), &probabilities, 5.0);
        println!("seed {}: chi-square {statistic:.1} with {freedom} degrees of freedom", sampling.seed);
        assert!(freedom >= 3.0);
        assert!(
            statistic <= critical(freedom),
            "{statistic} with {freedom} degrees of freedom: {sampling:?}"
        );
    }
}

/// At the level 1e-4 for each of the settings.
#[test]
fn draws_follow_the_filtered_softmax() {
    let _gpu = one_at_a_time();
    let base = Sampling { temperature: 1.0, seed: 1_000, ..Sampling::default() };
    let cases = [
        (base.clone(), 2_000),
        (Sampling { temperature: 3.0, seed: 2_000, ..base.clone() }, 2_000),
        (Sampling { temperature: 0.5, seed: 3_000, ..base.clone() }, 2_000),
        (Sampling { top_k: 8, seed: 4_000, ..base.clone() }, 2_000),
        (Sampling { top_p: 0.7, seed: 5_000, ..base.clone() }, 2_000),
        (Sampling { min_p: 0.1, seed: 6_000, ..base.clone() }, 2_000),
        (Sampling { top_n_sigma: 1.0, seed: 7_000, ..base.clone() }, 2_000),
        (
            Sampling {
                temperature: 1.5,
                top_k: 20,
                top_p: 0.9,
                min_p: 0.02,
                top_n_sigma: 2.0,
                seed: 8_000,
                ..base
            },
            2_000,
        ),
    ];
    draws_are_distributed(Bench::new(gpu(), bell(5, 50, 0.0, 1.0)), &cases);
}

#[test]
fn draws_from_a_whole_vocabulary_follow_the_filtered_softmax() {
    let _gpu = one_at_a_time();
    let base = Sampling { temperature: 1.0, seed: 9_000, ..Sampling::default() };
    let cases = [
        (base.clone(), 400),
        (Sampling { temperature: 0.6, top_k: 20, top_p: 0.95, seed: 10_000, ..base }, 400),
    ];
    draws_are_distributed(Bench::new(gpu(), bell(6, 151_936, 2.0, 2.5)), &cases);
}

#[test]
fn log_probabilities_are_exact() {
    let _gpu = one_at_a_time();
    for n in [5, 700, 151_936] {
        let mut bench = Bench::new(gpu(), bell(7, n, -3.0, 4.0));
        // Adjustments must not show.
        let adjusted =
            Sampling { temperature: 0.5, top_k: 3, logit_bias: [(1, 20.0)].into(), ..Sampling::default() };
        bench.start(&adjusted, &[0]);
        let Buffers { logprobs, top_ids, .. } = bench.buffers;
        let reads = [
            Read::Words(logprobs.buffer, 0..(1 + MAX_TOP).into()),
            Read::Words(top_ids.buffer, 0..MAX_TOP.into()),
            Read::Words(bench.buffers.history.buffer, 0..1),
        ];
        let results = block_on(bench.device.run(&[&bench.top, &bench.plan], &reads)).unwrap();
        let exact = Sampler::log_probabilities(&bench.logits);
        let mut order: Vec<u32> = (0..n as u32).collect();
        order.sort_by(|&a, &b| bench.logits[b as usize].total_cmp(&bench.logits[a as usize]).then(a.cmp(&b)));
        order.resize(order.len().max(MAX_TOP as usize), u32::MAX);
        assert_eq!(results[1], order[..MAX_TOP as usize]);
        let ids = results[2].iter().chain(&results[1]).filter(|&&id| id != u32::MAX);
        for (&found, &id) in results[0].iter().zip(ids) {
            let error = (f64::from(f32::from_bits(found)) - exact[id as usize]).abs();
            // Differences of numbers below 32 (2^-20 each), and the logarithm of a sum to a few 2^-24.
            assert!(error <= 4e-6, "{n}: off by {error}");
        }
    }
}

/// A hybrid with random weights; its greedy tokens are those of a golden model.
const MODEL: &str = "qwen35-q1_0";

/// The prompt is read in one piece on any device.
fn request(sampling: Sampling) -> TokenRequest {
    TokenRequest { prompt: (5..20).collect(), max_tokens: Some(24), sampling, ..TokenRequest::default() }
}

/// All ids and log-probabilities of a generation with at most `most` steps per submit.
fn run(engine: &mut Engine, request: TokenRequest, most: u32) -> (Vec<u32>, Vec<TokenLogprobs>) {
    let mut generation = engine.start(request).unwrap();
    generation.limit_steps(most);
    let (mut ids, mut logprobs) = (Vec::new(), Vec::new());
    while generation.finished().is_none() {
        ids.extend(block_on(engine.step(&mut generation)).unwrap());
        logprobs.extend_from_slice(generation.logprobs());
    }
    (ids, logprobs)
}

#[test]
fn a_seed_gives_its_tokens_however_the_work_is_cut() {
    let _gpu = one_at_a_time();
    let mut engine = load(gpu(), MODEL);
    let all = Sampling { dry_breakers: vec![7], ..settings().pop().unwrap().1 };
    let hot = Sampling { temperature: 3.0, ..Sampling::default() };
    for sampling in [hot, all] {
        let mut with = |seed, most| {
            let request = request(Sampling { seed, ..sampling.clone() });
            run(&mut engine, TokenRequest { logprobs: Some(5), ..request }, most)
        };
        let together = with(1, 8);
        assert_eq!(together.0.len(), 24);
        assert_eq!(together, with(1, 1));
        assert_eq!(together, with(1, 3));
        assert_ne!(together.0, with(2, 8).0);
        assert_eq!(together.1.iter().map(|found| found.id).collect::<Vec<_>>(), together.0);
        // Nor does it matter whether the beginning was generated here or elsewhere.
        for n in [1, 11, 24] {
            let (generated, rest) = together.0.split_at(n);
            engine.reset().unwrap();
            let request = request(Sampling { seed: 1, ..sampling.clone() });
            let request = TokenRequest { generated: generated.to_vec(), ..request };
            assert_eq!(run(&mut engine, request, 8).0, rest, "behind {n} tokens");
        }
    }
}

#[test]
fn sampling_with_one_candidate_is_greedy() {
    let _gpu = one_at_a_time();
    let mut engine = load(gpu(), MODEL);
    let greedy = run(&mut engine, request(Sampling::default()), 8).0;
    let base = Sampling { temperature: 1.0, ..Sampling::default() };
    for sampling in [
        Sampling { top_k: 1, ..base.clone() },
        Sampling { top_p: 0.0, ..base.clone() },
        Sampling { min_p: 1.0, ..base },
    ] {
        assert_eq!(run(&mut engine, request(sampling), 8).0, greedy);
    }
    // Log-probabilities take the same path at temperature 0.
    let (ids, logprobs) =
        run(&mut engine, TokenRequest { logprobs: Some(2), ..request(Sampling::default()) }, 8);
    assert_eq!(ids, greedy);
    for (found, id) in logprobs.iter().zip(&ids) {
        assert_eq!((found.id, found.top.len()), (*id, 2));
        assert_eq!(found.top[0], (*id, found.logprob));
        assert!(found.logprob < 0.0 && found.top[1].1 <= found.logprob);
    }
}

/// A model's own logits, penalties and repetitions: generation is the oracle on the logits of each position.
#[test]
fn generations_are_what_the_oracle_draws_from_the_models_logits() {
    let _gpu = one_at_a_time();
    let mut engine = load(gpu(), MODEL);
    for (name, sampling) in settings().into_iter().skip(8) {
        let request = request(sampling.clone());
        let ids = run(&mut engine, request.clone(), 8).0;
        let read = [&request.prompt[..], &ids].concat();
        let logits = score(&mut engine, &read, 64);
        let vocab = logits.len() / read.len();
        let n_valid = engine.loaded().unwrap().model.n_valid() as usize;
        let mut oracle = Sampler::new(sampling, &request.prompt);
        for (i, &id) in ids.iter().enumerate() {
            let row = &logits[(request.prompt.len() - 1 + i) * vocab..][..n_valid];
            assert_eq!(oracle.sample(row, |_| true), Some(id), "{name}, token {i}");
            oracle.accept(id);
        }
    }
}

#[test]
fn a_set_of_allowed_ids_holds_for_the_next_tokens() {
    let _gpu = one_at_a_time();
    let mut engine = load(gpu(), MODEL);
    let n_valid = engine.loaded().unwrap().model.n_valid();
    let free = run(&mut engine, request(Sampling::default()), 8).0;
    for sampling in [Sampling::default(), Sampling { temperature: 2.0, ..Sampling::default() }] {
        let mut generation = engine.start(request(sampling)).unwrap();
        let mut ids = Vec::new();
        for wanted in [n_valid - 1, 3, 64, 31] {
            let mut set = vec![0u32; set_words(n_valid) as usize];
            set[wanted as usize / 32] = 1 << (wanted % 32);
            engine.set_allowed(&mut generation, Some(&set)).unwrap();
            let before = ids.len();
            while ids.len() == before {
                ids.extend(block_on(engine.step(&mut generation)).unwrap());
            }
            assert_eq!(ids[before..], [wanted]);
        }
        let empty = vec![0; set_words(n_valid) as usize];
        assert_eq!(engine.set_allowed(&mut generation, Some(&empty)).unwrap_err().code(), "invalid_request");
        assert_eq!(engine.set_allowed(&mut generation, Some(&[1])).unwrap_err().code(), "invalid_request");
        engine.set_allowed(&mut generation, None).unwrap();
        block_on(engine.step(&mut generation)).unwrap();
        // The set is gone with its generation.
        assert_eq!(run(&mut engine, request(Sampling::default()), 8).0, free);
        assert!(engine.set_allowed(&mut generation, None).is_err());
    }
}

/// What is put into a reply counts as generated, for penalties and for repetitions.
#[test]
fn forced_tokens_count() {
    let _gpu = one_at_a_time();
    let mut engine = load(gpu(), MODEL);
    // The ids that are put in are likely, but for what they are penalised.
    let sampling = Sampling {
        temperature: 1.0,
        seed: 5,
        presence_penalty: 1.0,
        frequency_penalty: 2.0,
        dry_multiplier: 2.0,
        dry_allowed_length: 1,
        logit_bias: [11, 12, 13, 100].map(|id| (id, 15.0)).into(),
        ..Sampling::default()
    };
    let mut generation = engine.start(request(sampling.clone())).unwrap();
    let mut ids = Vec::new();
    while ids.len() < 4 {
        ids.extend(block_on(engine.step(&mut generation)).unwrap());
    }
    let forced = [11, 12, 13, 11, 12, 100, 100];
    engine.force(&mut generation, &forced).unwrap();
    ids.extend(forced);
    while generation.finished().is_none() {
        ids.extend(block_on(engine.step(&mut generation)).unwrap());
    }
    let prompt = request(sampling.clone()).prompt;
    let read = [&prompt[..], &ids].concat();
    let logits = score(&mut engine, &read, 64);
    let vocab = logits.len() / read.len();
    let n_valid = engine.loaded().unwrap().model.n_valid() as usize;
    let mut oracle = Sampler::new(sampling, &prompt);
    let first_free = ids.windows(7).position(|w| w == forced).unwrap() + 7;
    for (i, &id) in ids.iter().enumerate() {
        if i >= first_free {
            let row = &logits[(prompt.len() - 1 + i) * vocab..][..n_valid];
            assert_eq!(oracle.sample(row, |_| true), Some(id), "token {i}");
        }
        oracle.accept(id);
    }
}
