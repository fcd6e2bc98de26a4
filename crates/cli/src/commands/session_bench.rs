//! `session bench`: what it costs to keep a session and to have it back, beside reading its tokens again.

use std::collections::HashMap;
use std::path::Path;
use std::time::Instant;

use pollster::block_on;
use serde::Serialize;
use signbit_engine::EngineError;
use signbit_engine::device::DeviceInfo;
use signbit_engine::engine::Engine;
use signbit_engine::model::{KvCache, ModelOptions};
use signbit_engine::snapshot::Manifest;

use super::bench::{median, rate, read_prompt};
use super::session::n_bytes;
use super::{device_line, open_device};
use crate::args::SessionBenchArgs;
use crate::error::CliError;
use crate::files::{ModelFiles, write_error};
use crate::output::{bytes, facts, print, print_json, print_line, table};
use crate::random_model::RandomModel;
use crate::snapshot_files::{SnapshotFiles, Target, read_session};

#[derive(Serialize)]
struct Report {
    model: String,
    layers: u32,
    adapter: DeviceInfo,
    kv_cache: KvCache,
    tokens: u32,
    /// Bytes of the snapshot, and its chunks.
    bytes: u64,
    chunks: usize,
    /// From an empty session to the first token.
    prefill_ms: f64,
    save_to_memory: Cost,
    restore_from_memory: Cost,
    /// To a new folder, every file synced.
    save_to_folder: Cost,
    /// Of files just written, which the system still has in memory.
    restore_from_folder: Cost,
    runs: u32,
}

/// One way to keep a session or to have it back.
#[derive(Clone, Copy, Serialize)]
struct Cost {
    ms: f64,
    bytes_per_s: f64,
    /// Of the time that reading the tokens takes.
    share_of_prefill: f64,
}

/// Seconds of each step of a run.
#[derive(Default)]
struct Times {
    prefill: Vec<f64>,
    save_to_memory: Vec<f64>,
    restore_from_memory: Vec<f64>,
    save_to_folder: Vec<f64>,
    restore_from_folder: Vec<f64>,
}

/// Measures and prints.
pub fn run(args: &SessionBenchArgs) -> Result<(), CliError> {
    let mut engine = Engine::new(open_device(args.backend)?);
    let files = match args.random {
        Some(geometry) => ModelFiles::from_bytes(RandomModel::new(geometry, &args.sizes).to_bytes())?,
        None => ModelFiles::open_or_built_in(args.model.as_deref())?,
    };
    let options = ModelOptions {
        context_length: args.tokens.saturating_add(1),
        kv_cache: args.kv_cache.into(),
        ..ModelOptions::default()
    };
    files.expecting(&args.check.sha256)?.load(&mut engine, options)?;

    let folder = std::env::temp_dir().join(format!("signbit-session-bench-{}", std::process::id()));
    let measured = measure(&mut engine, args, &folder);
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(write_error(&folder))?;
    }
    let (times, manifest) = measured?;
    let (n_bytes, prefill) = (n_bytes(&manifest), median(times.prefill));
    let cost = |seconds: Vec<f64>| {
        let seconds = median(seconds);
        Cost { ms: seconds * 1e3, bytes_per_s: n_bytes as f64 / seconds, share_of_prefill: seconds / prefill }
    };
    let model = &engine.loaded()?.model;
    let report = Report {
        model: model.config().name.clone().unwrap_or_default(),
        layers: model.config().num_hidden_layers,
        adapter: engine.device_info().clone(),
        kv_cache: model.kv_cache(),
        tokens: args.tokens,
        bytes: n_bytes,
        chunks: manifest.chunks.len(),
        prefill_ms: prefill * 1e3,
        save_to_memory: cost(times.save_to_memory),
        restore_from_memory: cost(times.restore_from_memory),
        save_to_folder: cost(times.save_to_folder),
        restore_from_folder: cost(times.restore_from_folder),
        runs: args.runs,
    };
    if args.json {
        return print_json(&report);
    }
    print_line(&device_line(&report.adapter))?;
    print_report(&report)
}

/// Reads, keeps and restores a session, again and again.
fn measure(
    engine: &mut Engine,
    args: &SessionBenchArgs,
    folder: &Path,
) -> Result<(Times, Manifest), CliError> {
    let vocab = engine.loaded()?.model.n_valid();
    let mut times = Times::default();
    loop {
        times.prefill.push(read_prompt(engine, args.tokens, vocab)?);

        let mut chunks = HashMap::new();
        let start = Instant::now();
        let manifest = read_session(engine, |digest, bytes| {
            chunks.insert(digest.to_owned(), bytes);
            Ok(())
        })?;
        times.save_to_memory.push(start.elapsed().as_secs_f64());

        if folder.exists() {
            std::fs::remove_dir_all(folder).map_err(write_error(folder))?;
        }
        let start = Instant::now();
        Target::new(folder)?.write(engine)?;
        times.save_to_folder.push(start.elapsed().as_secs_f64());

        read_prompt(engine, 1, vocab)?;
        let start = Instant::now();
        let mut restore = engine.begin_restore(manifest.clone())?;
        for bytes in chunks.values() {
            block_on(engine.restore_chunk(&mut restore, bytes))?;
        }
        engine.finish_restore(restore)?;
        times.restore_from_memory.push(start.elapsed().as_secs_f64());
        check(engine, &manifest)?;

        read_prompt(engine, 1, vocab)?;
        let start = Instant::now();
        SnapshotFiles::open(folder)?.restore(engine)?;
        times.restore_from_folder.push(start.elapsed().as_secs_f64());
        check(engine, &manifest)?;

        if times.prefill.len() >= args.runs as usize {
            return Ok((times, manifest));
        }
    }
}

/// Whether the session is what the snapshot was taken of: a fast way to restore something else is worth nothing.
fn check(engine: &mut Engine, expected: &Manifest) -> Result<(), CliError> {
    let found = read_session(engine, |_, _| Ok(()))?;
    if found.ids == expected.ids && found.chunks == expected.chunks {
        return Ok(());
    }
    let reason = "what was restored is not what was kept".to_owned();
    Err(EngineError::SnapshotCorrupt { reason }.into())
}

fn print_report(report: &Report) -> Result<(), CliError> {
    let Report { model, layers, kv_cache, tokens, chunks, prefill_ms, .. } = report;
    print(&facts(&[
        ("model", format!("{model}, {layers} layers, cache {kv_cache}")),
        ("session", format!("{tokens} tokens, {} in {chunks} chunks", bytes(report.bytes))),
        ("prefill", format!("{prefill_ms:.1} ms, {:.1} tokens/s", f64::from(*tokens) / prefill_ms * 1e3)),
    ]))?;
    let rows = [
        ("save to memory", report.save_to_memory),
        ("restore from memory", report.restore_from_memory),
        ("save to a folder", report.save_to_folder),
        ("restore from a folder", report.restore_from_folder),
    ];
    let rows = rows.map(|(what, cost)| {
        let share = format!("{:.2} %", cost.share_of_prefill * 100.0);
        vec![what.to_owned(), format!("{:.1}", cost.ms), rate(cost.bytes_per_s), share]
    });
    print(&table(&["", "ms", "rate", "of prefill"], &rows, 1))
}
