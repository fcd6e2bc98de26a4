//! Whole models against an independent implementation in float32, the embedded one against two.
//!
//! The reference's own rounding noise is 1e-4 on short and 7e-4 on long sequences, and its logits
//! have a standard deviation of 4.2 (random weights). The bounds are 5e-3 before position 128 and 1e-2 beyond: room
//! for another order of additions, and a hundred times less than any known mistake moves them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]

mod common;

use common::*;
use signbit_engine::device::{Device, Read};
use signbit_engine::engine::Engine;
use signbit_engine::tuning::{Choose, Variant};

const SHORT_BOUND: f32 = 5e-3;
const LONG_BOUND: f32 = 1e-2;

/// Where the reference's best two tokens are closer than this, either may come first.
const DECISIVE_GAP: f32 = 0.02;

#[derive(Default)]
struct Figures {
    short: f32,
    long: f32,
    rows: usize,
    undecided: usize,
    greedy_ids: usize,
    llamacpp_rows: usize,
}

fn check_prompt(engine: &mut Engine, fixture: &Fixture, prompt: &Prompt, figures: &mut Figures) {
    let vocab = fixture.golden.model.vocab;
    let name = &prompt.name;
    let logits = score(engine, &prompt.forced(), 512);
    assert_eq!(logits.len(), prompt.rows * vocab, "{name}");
    for (i, &position) in prompt.logit_positions.iter().enumerate() {
        let row = &logits[position * vocab..][..vocab];
        let difference = max_difference(row, fixture.logits_at(prompt, i));
        let (bound, worst) =
            if position < 128 { (SHORT_BOUND, &mut figures.short) } else { (LONG_BOUND, &mut figures.long) };
        assert!(difference <= bound, "{name}, position {position}: logits differ by {difference}");
        *worst = worst.max(difference);
    }
    for (&position, expected) in prompt.llamacpp_logit_positions.iter().zip(fixture.llamacpp_logits(prompt)) {
        let difference = max_difference(&logits[position * vocab..][..vocab], expected);
        let bound = if position < 128 { SHORT_BOUND } else { LONG_BOUND };
        assert!(
            difference <= bound,
            "{name}, position {position}: llama.cpp's logits differ by {difference}"
        );
        figures.llamacpp_rows += 1;
    }
    for row in 0..prompt.rows {
        let (best, gap) = fixture.best(prompt, row);
        figures.rows += 1;
        if gap <= DECISIVE_GAP {
            figures.undecided += 1;
            continue;
        }
        let ours = argmax(&logits[row * vocab..][..vocab]);
        assert_eq!(ours, best, "{name}, position {row}: best token, decided by {gap}");
    }
}

fn check_greedy(engine: &mut Engine, fixture: &Fixture, prompt: &Prompt, figures: &mut Figures) {
    engine.reset().unwrap();
    let ids = greedy(engine, &prompt.ids, prompt.continuation.len() as u32);
    assert_eq!(ids.len(), prompt.continuation.len());
    for (k, (ours, reference)) in ids.iter().zip(&prompt.continuation).enumerate() {
        let (_, gap) = fixture.best(prompt, (prompt.ids.len() - 1 + k).min(prompt.rows - 1));
        if gap <= DECISIVE_GAP {
            // From here on the two may read different texts.
            break;
        }
        assert_eq!(ours, reference, "{}: token {k} of the continuation, decided by {gap}", prompt.name);
        figures.greedy_ids += 1;
    }
}

/// What is compared of a model.
#[derive(Clone, Copy)]
struct Scope {
    /// Prompts whose logits are compared at every position.
    prompts: &'static [&'static str],
    /// Prompts whose greedy continuation is generated.
    greedy: &'static [&'static str],
}

/// Short, past positions 64 and 128, a chat.
const USUAL: Scope = Scope {
    prompts: &["len-001", "len-005", "len-065", "len-200", "chat"],
    greedy: &["len-001", "len-065", "len-200"],
};

/// For a model that differs from one of [`LAYER_MODELS`] in the format of the weights alone, whose
/// kernels the software adapter runs on every shape elsewhere.
const BRIEF: Scope = Scope { prompts: &["len-005"], greedy: &["len-005"] };

/// With SIGNBIT_FULL set, every prompt and every continuation of every fixture.
fn runs_all() -> bool {
    std::env::var_os("SIGNBIT_FULL").is_some()
}

fn check_model(device: Device, name: &str, scope: Scope) {
    let fixture = Fixture::open(name);
    let mut engine = load(device, name);
    let mut figures = Figures::default();
    for prompt in &fixture.golden.prompts {
        let prompt_name = prompt.name.as_str();
        if runs_all() || scope.prompts.contains(&prompt_name) {
            check_prompt(&mut engine, &fixture, prompt, &mut figures);
        }
        if runs_all() || scope.greedy.contains(&prompt_name) {
            check_greedy(&mut engine, &fixture, prompt, &mut figures);
        }
    }
    let Figures { short, long, rows, undecided, greedy_ids, llamacpp_rows } = figures;
    println!(
        "{name} on {}: logits within {short:.1e} before position 128 and {long:.1e} beyond, \
         best token right on {} rows ({undecided} undecided), {greedy_ids} greedy tokens equal",
        engine.device_info().backend,
        rows - undecided,
    );
    assert!(rows > 0 && greedy_ids > 0);
    assert_eq!(llamacpp_rows > 0, name == EMBEDDED, "{name}");
}

#[test]
fn every_fixture_on_the_gpu() {
    let _gpu = one_at_a_time();
    for name in MODELS {
        check_model(gpu(), name, if LAYER_MODELS.contains(&name) { USUAL } else { BRIEF });
    }
}

/// However the products of decode are computed, the continuation is the reference's.
#[test]
fn every_variant_continues_as_the_reference() {
    let _gpu = one_at_a_time();
    for name in ["qwen35-q1_0", "qwen3-q2_0"] {
        let fixture = Fixture::open(name);
        let bytes = model_bytes(name);
        let prompt = fixture.golden.prompts.iter().find(|p| p.name == "len-065").unwrap();
        for variant in Variant::ALL {
            // The plain variants read every format in the same way.
            if !name.ends_with("q1_0") && matches!(variant, Variant::Lanes | Variant::Lanes4) && !runs_all() {
                continue;
            }
            let mut engine = load_with(gpu(), &bytes, Choose::Fixed(variant));
            for product in &engine.tuning().unwrap().products {
                assert_eq!(product.variant, variant.name(), "{name}: {product:?}");
            }
            let mut figures = Figures::default();
            check_greedy(&mut engine, &fixture, prompt, &mut figures);
            println!("{name}, {}: {} greedy tokens equal", variant.name(), figures.greedy_ids);
            assert!(figures.greedy_ids > 0);
        }
    }
}

#[test]
fn every_fixture_on_the_cpu() {
    for name in MODELS {
        check_model(cpu(), name, USUAL);
    }
}

/// Models of both architectures and of every kind of layer and format; all with `SIGNBIT_FULL`.
const LAYER_MODELS: [&str; 5] = ["qwen3-q1_0", "qwen3-q2_0", "qwen35-q1_0", "qwen35-mixed", EMBEDDED];

/// The residual stream after every layer: a mistake shows where it is made.
#[test]
fn every_layer_of_every_fixture() {
    let _gpu = one_at_a_time();
    for name in MODELS.into_iter().filter(|name| runs_all() || LAYER_MODELS.contains(name)) {
        let fixture = Fixture::open(name);
        let prompt = fixture.golden.prompts.iter().find(|p| p.name == "len-005").unwrap();
        let (n, hidden, layers) =
            (prompt.ids.len(), fixture.golden.model.hidden, fixture.golden.model.layers);
        let mut engine = load(gpu(), name);
        let streams = residual_streams(&mut engine, &prompt.ids);
        // The reference's last entry is taken behind the final norm.
        assert_eq!(streams.len(), layers + 1);
        for (i, stream) in streams.iter().enumerate().take(layers) {
            let expected = &fixture.hidden[i * n * hidden..][..n * hidden];
            let scale = expected.iter().fold(0.0f32, |m, v| m.max(v.abs()));
            let difference = max_difference(&stream[..n * hidden], expected);
            // Rounding of f32 sums of a few hundred terms, a few times per layer.
            assert!(
                difference <= 2e-5 * scale.max(1.0),
                "{name}, layer {i}: differs by {difference} of {scale}"
            );
        }
    }
}

/// The embedding and the residual stream after each layer, [T, D] each.
fn residual_streams(engine: &mut Engine, ids: &[u32]) -> Vec<Vec<f32>> {
    use signbit_engine::session::Want;
    engine.reset().unwrap();
    let (device, loaded, session) = engine.parts_mut().unwrap();
    let model = &loaded.model;
    let (io, plan) = (*model.io(), model.prefill_plan(ids.len() as u32).unwrap());
    // A whole step first, so that tokens and state are on the device; then the same step again,
    // piece by piece, from a cleared session whose state is still that of the first token.
    pollster::block_on(session.prefill(device, model, ids, &[], Want::Nothing)).unwrap();
    session.reset(device, model).unwrap();
    let mut ends = vec![];
    for (i, dispatch) in plan.dispatches.iter().enumerate() {
        if dispatch.label == "embed" || dispatch.label.ends_with("mlp.down") {
            ends.push(i + 1);
        }
    }
    let mut streams = Vec::new();
    let mut start = 0;
    for end in ends {
        let words = u64::from(io.hidden.cols) * ids.len() as u64;
        let read = [Read::Words(io.hidden.buffer, 0..words)];
        let mut results = pollster::block_on(device.run_range(plan, start..end, &read)).unwrap();
        streams.push(bytemuck::cast_vec(results.remove(0)));
        start = end;
    }
    streams
}

#[derive(serde::Deserialize)]
struct Answers {
    eos: u32,
    cases: Vec<Answer>,
}

#[derive(serde::Deserialize)]
struct Answer {
    turns: Vec<String>,
    prompt_ids: Vec<u32>,
    answer_ids: Vec<u32>,
    answer: String,
    smallest_gap: f32,
}

/// A small trained model gives the answers that a float64 program gives.
#[test]
fn tiny_geo_answers() {
    use signbit_engine::engine::TokenRequest;
    let _gpu = one_at_a_time();
    let path = root().join("tests/golden/tiny-geo/answers.json");
    let answers: Answers = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    for device in [gpu(), cpu()] {
        let mut engine = load(device, "tiny-geo");
        for case in &answers.cases {
            let request = TokenRequest {
                prompt: case.prompt_ids.clone(),
                stop_ids: vec![answers.eos],
                max_tokens: Some(64),
                ..TokenRequest::default()
            };
            let ids = generate(&mut engine, request);
            // Rounding moves logits by less than 1e-3; every gap here is far wider.
            assert!(case.smallest_gap > 0.1);
            assert_eq!(ids, case.answer_ids, "{:?}", case.turns);
            let text = engine.loaded().unwrap().tokenizer.decode(&ids[..ids.len() - 1]);
            assert_eq!(text.trim(), case.answer, "{:?}", case.turns);
        }
    }
}

/// Questions to the embedded model with what the reference makes of them.
#[derive(serde::Deserialize)]
struct Questions {
    eos: u32,
    cases: Vec<Question>,
    /// Chats beyond 2,048 tokens: one ends with a fact, the other with something told at its start.
    long: Vec<Question>,
}

#[derive(serde::Deserialize)]
struct Question {
    kind: String,
    prompt_ids: Vec<u32>,
    answer_ids: Vec<u32>,
    answer: String,
    expected: String,
    smallest_gap: f32,
}

impl Questions {
    fn read() -> Self {
        let path = root().join("tests/golden/signbit-mini/answers.json");
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    /// Whether the engine's greedy answer has the reference's ids; a near-tie on the way excuses another.
    fn check(&self, engine: &mut Engine, question: &Question) -> bool {
        use signbit_engine::engine::TokenRequest;
        let request = TokenRequest {
            prompt: question.prompt_ids.clone(),
            stop_ids: vec![self.eos],
            max_tokens: Some(question.answer_ids.len() as u32),
            ..TokenRequest::default()
        };
        let ids = generate(engine, request);
        let is_same = ids == question.answer_ids;
        assert!(
            is_same || question.smallest_gap <= DECISIVE_GAP,
            "{}: {ids:?}, not {:?} ({}), decided by {}",
            question.kind,
            question.answer_ids,
            question.answer,
            question.smallest_gap
        );
        is_same
    }
}

/// The embedded model answers as the reference does: all questions on the processor, and a tenth of
/// them on the GPU; there too all with SIGNBIT_FULL.
#[test]
fn the_embedded_model_answers_as_the_reference() {
    let _gpu = one_at_a_time();
    let questions = Questions::read();
    assert!(questions.cases.len() >= 200);
    for (device, every) in [(gpu(), 10), (cpu(), 1)] {
        let every = if runs_all() { 1 } else { every };
        let mut engine = load(device, EMBEDDED);
        let asked: Vec<&Question> = questions.cases.iter().step_by(every).collect();
        let same = asked.iter().filter(|question| questions.check(&mut engine, question)).count();
        println!("{same} of {} answers are the reference's on {}", asked.len(), engine.device_info().backend);
        assert!(same * 100 >= asked.len() * 95, "{same} of {}", asked.len());
    }
}

/// The answers after more than 2,048 tokens of talk are the reference's, and the fact is right.
#[test]
fn the_embedded_model_holds_a_long_chat() {
    let _gpu = one_at_a_time();
    let questions = Questions::read();
    assert_eq!(questions.long[0].answer, questions.long[0].expected);
    let all = questions.long.len();
    for (device, n) in [(gpu(), if runs_all() { all } else { 1 }), (cpu(), all)] {
        let mut engine = load(device, EMBEDDED);
        for question in &questions.long[..n] {
            assert!(question.prompt_ids.len() > 2048);
            assert!(questions.check(&mut engine, question));
        }
    }
}
