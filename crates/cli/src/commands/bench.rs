//! `bench`: how fast a model runs, and what a decoded token costs.

use std::time::Instant;

use pollster::block_on;
use serde::Serialize;
use signbit_engine::device::{Counters, DeviceInfo};
use signbit_engine::engine::{Engine, TokenRequest};
use signbit_engine::model::{ModelOptions, StepCost};

use super::{device_line, open_device};
use crate::args::BenchArgs;
use crate::error::CliError;
use crate::files::ModelFiles;
use crate::output::{bytes, facts, print, print_json, print_line, table};
use crate::random_model::random_model;

/// Tokens that decoding starts after.
const DECODE_PROMPT_TOKENS: u32 = 16;

#[derive(Serialize)]
struct Report {
    model: String,
    layers: u32,
    adapter: DeviceInfo,
    decode: Decode,
    prefill: Vec<Prefill>,
    runs: u32,
    context_length: u32,
}

/// One decoded token: figures per token over a whole generation, the median of the runs for the speed.
#[derive(Clone, Serialize)]
struct Decode {
    tokens: u32,
    tokens_per_s: f64,
    dispatches_per_token: f64,
    submits_per_token: f64,
    /// Every submit has one.
    command_buffers_per_token: f64,
    objects_created_per_token: f64,
    encode_ms_per_token: f64,
    /// As the plan declares them, with a full cache.
    bytes_read_per_token: u64,
    bytes_written_per_token: u64,
    minimum_bytes_per_token: u64,
}

/// A prompt from an empty session to its first token.
#[derive(Serialize)]
struct Prefill {
    tokens: u32,
    ms: f64,
    tokens_per_s: f64,
}

/// Measures and prints.
pub fn run(args: &BenchArgs) -> Result<(), CliError> {
    let mut engine = Engine::new(open_device(args.backend)?);
    let options = ModelOptions { context_length: args.context, ..ModelOptions::default() };
    let mut files = match args.random {
        Some(geometry) => ModelFiles::from_bytes(random_model(geometry))?,
        None => ModelFiles::open_or_built_in(args.model.as_deref())?,
    };
    files.load(&mut engine, options)?;
    drop(files);

    let model = &engine.loaded()?.model;
    let (cost, context_length, vocab) = (model.step_cost(), model.context_length(), model.n_valid());
    let (name, layers) = (model.config().name.clone().unwrap_or_default(), model.config().num_hidden_layers);
    let fits = |&&tokens: &&u32| tokens < context_length;
    let prefill = args
        .prompts
        .iter()
        .filter(fits)
        .map(|&tokens| measure_prefill(&mut engine, tokens, args.runs, vocab))
        .collect::<Result<_, _>>()?;
    let n_decoded = args.tokens.min(context_length.saturating_sub(DECODE_PROMPT_TOKENS)).max(2);
    let decode = measure_decode(&mut engine, n_decoded, args.runs, vocab, cost)?;
    let adapter = engine.device_info().clone();
    let report = Report { model: name, layers, adapter, decode, prefill, runs: args.runs, context_length };
    if args.json {
        return print_json(&report);
    }
    print_line(&device_line(engine.device_mut()))?;
    print_report(&report)
}

/// Ids without a pattern that a cache could exploit; the same at every call.
fn ids(n: u32, vocab: u32) -> Vec<u32> {
    (0..n).map(|i| (u64::from(i) * 2_654_435_761 % u64::from(vocab)) as u32).collect()
}

fn measure_prefill(engine: &mut Engine, tokens: u32, runs: u32, vocab: u32) -> Result<Prefill, CliError> {
    let mut times = Vec::new();
    // The first run warms up and lets the slice size settle.
    for i in 0..=runs {
        engine.reset()?;
        let request =
            TokenRequest { prompt: ids(tokens, vocab), max_tokens: Some(1), ..TokenRequest::default() };
        let start = Instant::now();
        let mut generation = engine.start(request)?;
        while generation.finished().is_none() {
            block_on(engine.step(&mut generation))?;
        }
        if i > 0 {
            times.push(start.elapsed().as_secs_f64());
        }
    }
    let seconds = median(times);
    Ok(Prefill { tokens, ms: seconds * 1e3, tokens_per_s: f64::from(tokens) / seconds })
}

fn measure_decode(
    engine: &mut Engine,
    tokens: u32,
    runs: u32,
    vocab: u32,
    cost: StepCost,
) -> Result<Decode, CliError> {
    let mut speeds = Vec::new();
    let (mut before, mut n_counted) = (engine.counters(), 0);
    for _ in 0..=runs {
        engine.reset()?;
        let request = TokenRequest {
            prompt: ids(DECODE_PROMPT_TOKENS, vocab),
            max_tokens: Some(tokens + 1),
            ..TokenRequest::default()
        };
        let mut generation = engine.start(request)?;
        while !generation.has_read_prompt() {
            block_on(engine.step(&mut generation))?;
        }
        let (first, start) = (generation.generated(), Instant::now());
        before = engine.counters();
        while generation.finished().is_none() {
            block_on(engine.step(&mut generation))?;
        }
        n_counted = generation.generated() - first;
        speeds.push(f64::from(n_counted) / start.elapsed().as_secs_f64().max(1e-9));
    }
    // The first run warms up.
    speeds.remove(0);
    let after = engine.counters();
    let per_token =
        |count: fn(&Counters) -> u64| (count(&after) - count(&before)) as f64 / f64::from(n_counted);
    Ok(Decode {
        tokens: n_counted,
        tokens_per_s: median(speeds),
        dispatches_per_token: per_token(|c| c.dispatches),
        submits_per_token: per_token(|c| c.submits),
        command_buffers_per_token: per_token(|c| c.submits),
        objects_created_per_token: per_token(|c| c.objects_created),
        encode_ms_per_token: per_token(|c| c.encode_ns) / 1e6,
        bytes_read_per_token: cost.bytes_read,
        bytes_written_per_token: cost.bytes_written,
        minimum_bytes_per_token: cost.minimum_bytes,
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn print_report(report: &Report) -> Result<(), CliError> {
    let Decode { tokens_per_s, bytes_read_per_token, minimum_bytes_per_token, .. } = report.decode;
    let ratio = bytes_read_per_token as f64 / minimum_bytes_per_token.max(1) as f64;
    print(&facts(&[
        ("model", format!("{}, {} layers, context {}", report.model, report.layers, report.context_length)),
        ("decode", format!("{tokens_per_s:.1} tokens/s over {} tokens", report.decode.tokens)),
        (
            "per token",
            format!(
                "{:.1} dispatches, {:.2} submits, {:.2} objects created, {:.3} ms to encode",
                report.decode.dispatches_per_token,
                report.decode.submits_per_token,
                report.decode.objects_created_per_token,
                report.decode.encode_ms_per_token,
            ),
        ),
        ("bytes read", format!("{}, {ratio:.2} x the least possible", bytes(bytes_read_per_token))),
    ]))?;
    let rows: Vec<Vec<String>> = report
        .prefill
        .iter()
        .map(|p| vec![p.tokens.to_string(), format!("{:.1}", p.ms), format!("{:.1}", p.tokens_per_s)])
        .collect();
    print(&table(&["prompt", "ms to the first token", "tokens/s"], &rows, 0))
}
