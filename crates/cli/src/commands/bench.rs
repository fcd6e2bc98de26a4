//! `bench`: how fast a model runs, and what a decoded token costs.

use std::time::Instant;

use pollster::block_on;
use serde::Serialize;
use signbit_engine::device::{Counters, DeviceInfo, GpuOptions};
use signbit_engine::engine::{Engine, TokenRequest};
use signbit_engine::model::{KvCache, ModelOptions, StepCost};
use signbit_engine::profile::{Profile, StepProfile};
use signbit_engine::tuning::{Candidate, Choose, Chosen, ChosenTile};

use super::{device_line, open_device_with};
use crate::args::BenchArgs;
use crate::error::CliError;
use crate::files::ModelFiles;
use crate::output::{bytes, facts, print, print_json, print_line, table};
use crate::random_model::RandomModel;

/// Tokens that decoding starts after, and whose first reply token is waited for.
const PROMPT_TOKENS: u32 = 16;

#[derive(Serialize)]
struct Report {
    model: String,
    layers: u32,
    adapter: DeviceInfo,
    /// How each product of the decode plan is computed on this adapter, and what else was tried.
    variants: Vec<Chosen>,
    /// The highest tile of prefill's products.
    tile: Option<ChosenTile>,
    /// The first generation after the load, from a prompt of [`PROMPT_TOKENS`].
    time_to_first_token_ms: f64,
    decode: Decode,
    prefill: Vec<Prefill>,
    /// Bytes read and written, see `Device::copy_bandwidth`.
    copy_bandwidth_bytes_per_s: f64,
    /// Of that bandwidth, what decoding uses.
    share_of_copy_bandwidth: f64,
    /// Where the time goes, if the adapter can time single dispatches.
    kernels: Option<Profile>,
    runs: u32,
    context_length: u32,
    kv_cache: KvCache,
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
    /// Bytes read and written per second, with the cache as full as it was on average.
    bytes_per_s: f64,
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
    let timestamps = GpuOptions { timestamps: true, ..GpuOptions::default() };
    let mut engine = Engine::new(open_device_with(args.backend, timestamps)?);
    let options = ModelOptions {
        context_length: args.context,
        kv_cache: args.kv_cache.into(),
        ..ModelOptions::default()
    };
    let files = match args.random {
        Some(geometry) => ModelFiles::from_bytes(RandomModel::new(geometry, &args.sizes).to_bytes())?,
        None => ModelFiles::open_or_built_in(args.model.as_deref())?,
    };
    let mut files = files.expecting(&args.check.sha256)?;
    if let Some(variant) = args.variant {
        engine.choose_variants(Choose::Fixed(variant.into()));
    }
    files.load(&mut engine, options)?;
    drop(files);

    let model = &engine.loaded()?.model;
    let kv_cache = model.kv_cache();
    let (cost, context_length, vocab) = (model.step_cost(), model.context_length(), model.n_valid());
    let (name, layers) = (model.config().name.clone().unwrap_or_default(), model.config().num_hidden_layers);
    let time_to_first_token_ms = read_prompt(&mut engine, PROMPT_TOKENS, vocab)? * 1e3;
    let fits = |&&tokens: &&u32| tokens < context_length;
    let prefill = args
        .prompts
        .iter()
        .filter(fits)
        .map(|&tokens| measure_prefill(&mut engine, tokens, args.runs, vocab))
        .collect::<Result<_, _>>()?;
    let n_decoded = args.tokens.min(context_length.saturating_sub(PROMPT_TOKENS)).max(2);
    let decode = measure_decode(&mut engine, n_decoded, args.runs, vocab, cost)?;
    let kernels = block_on(engine.profile(PROMPT_TOKENS, args.runs))?;
    let copy_bandwidth_bytes_per_s = block_on(engine.device_mut().copy_bandwidth())?;
    let report = Report {
        model: name,
        layers,
        adapter: engine.device_info().clone(),
        variants: engine.tuning()?.products.clone(),
        tile: engine.tuning()?.tile.clone(),
        time_to_first_token_ms,
        share_of_copy_bandwidth: decode.bytes_per_s / copy_bandwidth_bytes_per_s,
        decode,
        prefill,
        copy_bandwidth_bytes_per_s,
        kernels,
        runs: args.runs,
        context_length,
        kv_cache,
    };
    if args.json {
        return print_json(&report);
    }
    print_line(&device_line(engine.device_info()))?;
    print_report(&report)
}

/// Ids without a pattern that a cache could exploit; the same at every call.
fn ids(n: u32, vocab: u32) -> Vec<u32> {
    (0..n).map(|i| (u64::from(i) * 2_654_435_761 % u64::from(vocab)) as u32).collect()
}

fn measure_prefill(engine: &mut Engine, tokens: u32, runs: u32, vocab: u32) -> Result<Prefill, CliError> {
    // The first run warms up and lets the slice size settle.
    read_prompt(engine, tokens, vocab)?;
    let times = (0..runs).map(|_| read_prompt(engine, tokens, vocab)).collect::<Result<_, _>>()?;
    let seconds = median(times);
    Ok(Prefill { tokens, ms: seconds * 1e3, tokens_per_s: f64::from(tokens) / seconds })
}

/// Seconds from an empty session to the first token after a prompt of `tokens`.
pub(super) fn read_prompt(engine: &mut Engine, tokens: u32, vocab: u32) -> Result<f64, CliError> {
    engine.reset()?;
    let request = TokenRequest { prompt: ids(tokens, vocab), max_tokens: Some(1), ..TokenRequest::default() };
    let start = Instant::now();
    let mut generation = engine.start(request)?;
    while generation.finished().is_none() {
        block_on(engine.step(&mut generation))?;
    }
    Ok(start.elapsed().as_secs_f64())
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
            prompt: ids(PROMPT_TOKENS, vocab),
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
    let (after, context_length) = (engine.counters(), engine.loaded()?.model.context_length());
    let per_token =
        |count: fn(&Counters) -> u64| (count(&after) - count(&before)) as f64 / f64::from(n_counted);
    let tokens_per_s = median(speeds);
    let filled = f64::from(PROMPT_TOKENS) + f64::from(n_counted) / 2.0;
    let unused = cost.kv_cache_bytes as f64 * (1.0 - filled / f64::from(context_length));
    let bytes_per_token = (cost.bytes_read + cost.bytes_written) as f64 - unused;
    Ok(Decode {
        tokens: n_counted,
        tokens_per_s,
        dispatches_per_token: per_token(|c| c.dispatches),
        submits_per_token: per_token(|c| c.submits),
        command_buffers_per_token: per_token(|c| c.submits),
        objects_created_per_token: per_token(|c| c.objects_created),
        encode_ms_per_token: per_token(|c| c.encode_ns) / 1e6,
        bytes_read_per_token: cost.bytes_read,
        bytes_written_per_token: cost.bytes_written,
        minimum_bytes_per_token: cost.minimum_bytes,
        bytes_per_s: bytes_per_token * tokens_per_s,
    })
}

pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn print_report(report: &Report) -> Result<(), CliError> {
    let Decode { tokens_per_s, bytes_read_per_token, minimum_bytes_per_token, bytes_per_s, .. } =
        report.decode;
    let ratio = bytes_read_per_token as f64 / minimum_bytes_per_token.max(1) as f64;
    print(&facts(&[
        ("model", format!("{}, {} layers", report.model, report.layers)),
        ("context", format!("{} tokens, cache {}", report.context_length, report.kv_cache)),
        ("first token", format!("{:.1} ms after a prompt of {PROMPT_TOKENS}", report.time_to_first_token_ms)),
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
        (
            "bandwidth",
            format!(
                "{}, {:.2} % of the {} at which the device copies",
                rate(bytes_per_s),
                report.share_of_copy_bandwidth * 100.0,
                rate(report.copy_bandwidth_bytes_per_s),
            ),
        ),
    ]))?;
    let rows: Vec<Vec<String>> = report
        .prefill
        .iter()
        .map(|p| vec![p.tokens.to_string(), format!("{:.1}", p.ms), format!("{:.1}", p.tokens_per_s)])
        .collect();
    print(&table(&["prompt", "ms to the first token", "tokens/s"], &rows, 0))?;
    print_variants(&report.variants)?;
    if let Some(ChosenTile { product, tokens, candidates }) = &report.tile {
        let times: Vec<String> = candidates.iter().map(|(tokens, ns)| format!("{tokens}: {ns:.0}")).collect();
        print_line(&format!("\ntiles of {tokens} tokens; ns per token of {product}: {}", times.join(", ")))?;
    }
    let Some(profile) = &report.kernels else {
        return print_line("\nThis adapter cannot time single kernels.");
    };
    for (step, what) in [(&profile.decode, "decoded token"), (&profile.prefill, "prompt")] {
        print_kernels(step, what)?;
    }
    Ok(())
}

/// What each product was measured at, in nanoseconds per row of its matrix.
fn print_variants(variants: &[Chosen]) -> Result<(), CliError> {
    let time = |candidate: &Candidate| match candidate {
        Candidate { is_right: false, variant, .. } => format!("{variant} wrong"),
        Candidate { ns_per_row: Some(ns), variant, .. } => format!("{variant} {ns:.0}"),
        Candidate { variant, .. } => format!("{variant} not timed"),
    };
    let rows: Vec<Vec<String>> = variants
        .iter()
        .map(|v| {
            let times: Vec<String> = v.candidates.iter().map(time).collect();
            vec![v.product.clone(), v.variant.clone(), times.join(", ")]
        })
        .collect();
    print_line("")?;
    print(&table(&["product", "runs as", "ns per row"], &rows, 0))
}

/// A kernel's share of the step's time, and the bytes that it moves in its own.
fn print_kernels(step: &StepProfile, what: &str) -> Result<(), CliError> {
    let total: f64 = step.kernels.iter().map(|k| k.ns).sum();
    print_line(&format!("\n{what} of {}, {:.3} ms in all kernels", step.tokens, total / 1e6))?;
    let rows: Vec<Vec<String>> = step
        .kernels
        .iter()
        .map(|k| {
            vec![
                k.kernel.to_owned(),
                k.dispatches.to_string(),
                format!("{:.3}", k.ns / 1e6),
                format!("{:.1} %", k.ns / total * 100.0),
                rate(k.bytes as f64 / (k.ns / 1e9)),
            ]
        })
        .collect();
    print(&table(&["kernel", "dispatches", "ms", "share", "bandwidth"], &rows, 1))
}

pub(super) fn rate(bytes_per_s: f64) -> String {
    match bytes_per_s {
        rate if !rate.is_finite() => "-".to_owned(),
        rate if rate < 1e9 => format!("{:.1} MB/s", rate / 1e6),
        rate => format!("{:.2} GB/s", rate / 1e9),
    }
}
