//! `session`: what a model has read, kept in files.
//!
//! A snapshot has no logits. `save` therefore ends with a token that was sampled and has not been read: from
//! there `restore` goes on exactly, whatever the model. A snapshot without such a token, as of a chat whose
//! reply has ended, goes on all the same, after its last token has been read once more.

use std::io::Write;

use pollster::block_on;
use serde::Serialize;
use serde_json::json;
use signbit_engine::chat::ChatRequest;
use signbit_engine::engine::{Engine, TokenRequest};
use signbit_engine::model::{KvCache, ModelOptions};
use signbit_engine::snapshot::{ComputedBy, Manifest};

use super::generate::{Streamed, reply};
use super::{open_device, session_bench};
use crate::args::{SessionArgs, SessionCommand, SessionInspectArgs, SessionRestoreArgs, SessionSaveArgs};
use crate::error::CliError;
use crate::files::{ModelFiles, read_ids};
use crate::output::{bytes, facts, print, print_json, print_line};
use crate::snapshot_files::{Found, SnapshotFiles, Target};

/// Does what the subcommand says.
pub fn run(args: &SessionArgs) -> Result<(), CliError> {
    match &args.command {
        SessionCommand::Save(args) => save(args),
        SessionCommand::Restore(args) => restore(args),
        SessionCommand::Inspect(args) => inspect(args),
        SessionCommand::Bench(args) => session_bench::run(args),
    }
}

fn save(args: &SessionSaveArgs) -> Result<(), CliError> {
    let prompt = read_ids(&args.ids)?;
    let target = Target::new(&args.out)?;
    let mut model = ModelFiles::open(&args.model)?.expecting(&args.check.sha256)?;
    let mut engine = Engine::new(open_device(args.backend)?);
    let options = ModelOptions {
        context_length: args.context,
        kv_cache: args.kv_cache.into(),
        ..ModelOptions::default()
    };
    model.load(&mut engine, options)?;
    let ids = generate(&mut engine, prompt, args.max_tokens, args.ignore_stop)?;
    let manifest = target.write(&mut engine)?;
    let n_bytes = n_bytes(&manifest);
    if args.json {
        return print_json(&json!({
            "ids": ids,
            "tokens": manifest.ids.len(),
            "pending": manifest.pending,
            "bytes": n_bytes,
            "chunks": manifest.chunks.len(),
        }));
    }
    let (tokens, chunks) = (manifest.ids.len(), manifest.chunks.len());
    let out = args.out.display();
    print_line(&format!("{tokens} tokens in {chunks} chunks, {}: {out}", bytes(n_bytes)))
}

/// Generates greedily until a stop id or the limit, and leaves the last token unread. Returns the tokens.
pub(super) fn generate(
    engine: &mut Engine,
    prompt: Vec<u32>,
    max_tokens: u32,
    ignore_stop: bool,
) -> Result<Vec<u32>, CliError> {
    // The device would not keep a stop id that it knows as one: whoever goes on decides what it ends.
    let stop_ids = if ignore_stop { Vec::new() } else { engine.loaded()?.tokenizer.stop_ids().to_vec() };
    let request = TokenRequest { prompt, max_tokens: Some(max_tokens), ..TokenRequest::default() };
    let mut generation = engine.start(request)?;
    generation.limit_steps(1);
    let mut ids: Vec<u32> = Vec::new();
    while generation.finished().is_none() && !ids.last().is_some_and(|id| stop_ids.contains(id)) {
        ids.extend(block_on(engine.step(&mut generation))?);
    }
    Ok(ids)
}

/// Something that was otherwise where the snapshot was computed, for which results may round otherwise.
#[derive(Debug, Serialize)]
struct Difference {
    what: &'static str,
    snapshot: String,
    here: String,
}

fn differences(theirs: &ComputedBy, ours: &ComputedBy) -> Vec<Difference> {
    let texts = |by: &ComputedBy| {
        let ComputedBy { backend, name, activations, context_length } = by.clone();
        let activations = activations.unwrap_or_else(|| "f32".to_owned());
        [backend, name, activations, context_length.to_string()]
    };
    let names = ["backend", "name", "activations", "context_length"];
    let pairs = texts(theirs).into_iter().zip(texts(ours));
    let all =
        names.into_iter().zip(pairs).map(|(what, (snapshot, here))| Difference { what, snapshot, here });
    all.filter(|difference| difference.snapshot != difference.here).collect()
}

fn restore(args: &SessionRestoreArgs) -> Result<(), CliError> {
    let mut files = SnapshotFiles::open(&args.snapshot)?;
    let manifest = files.manifest.clone();
    let mut model = ModelFiles::open(&args.model)?.expecting(&args.check.sha256)?;
    let mut engine = Engine::new(open_device(args.backend)?);
    let same_kind = if manifest.fingerprint.kv_cache == "kivi" { KvCache::Kivi } else { KvCache::F32 };
    let options = ModelOptions {
        context_length: args.context.unwrap_or(manifest.computed_by.context_length.max(1)),
        kv_cache: args.kv_cache.map_or(same_kind, KvCache::from),
        ..ModelOptions::default()
    };
    model.load(&mut engine, options)?;
    files.restore(&mut engine)?;
    let differs = differences(&manifest.computed_by, &engine.snapshot(manifest.chunk_bytes)?.computed_by);
    let generated: Vec<u32> = manifest.pending.into_iter().collect();
    let request = ChatRequest {
        ids: Some(manifest.ids.clone()),
        max_tokens: Some(args.max_tokens.saturating_add(generated.len() as u32)),
        generated,
        ignore_stop: args.ignore_stop,
        ..ChatRequest::default()
    };
    if !args.json {
        for Difference { what, snapshot, here } in &differs {
            let line = format!(
                "note: the snapshot's {what} is {snapshot}, and here it is {here}: results may differ"
            );
            // Where standard error is closed there is nobody to tell.
            let _ = writeln!(std::io::stderr(), "{line}");
        }
        let mut streamed = Streamed::default();
        reply(&mut engine, request, |reasoning, content| streamed.show(reasoning, content))?;
        return print_line("");
    }
    let reply = reply(&mut engine, request, |_, _| Ok(()))?;
    print_json(&json!({
        "ids": reply.ids,
        "text": reply.content,
        "reasoning": reply.reasoning,
        "finish_reason": reply.finish_reason,
        "restored": { "tokens": manifest.ids.len(), "pending": manifest.pending },
        "reused_tokens": reply.usage.reused_tokens,
        "differs": differs,
    }))
}

fn inspect(args: &SessionInspectArgs) -> Result<(), CliError> {
    let mut files = SnapshotFiles::open(&args.snapshot)?;
    let (mut missing, mut damaged) = (Vec::new(), Vec::new());
    let chunks = files.chunks();
    for (digest, &bytes) in &chunks {
        match files.find(digest, bytes)? {
            Found::Whole(_) => {}
            Found::Missing => missing.push(digest.clone()),
            Found::Damaged => damaged.push(digest.clone()),
        }
    }
    let SnapshotFiles { manifest, has_data, .. } = &files;
    let stored_bytes: u64 = chunks.values().map(|&bytes| u64::from(bytes)).sum();
    if args.json {
        print_json(&json!({
            "format": manifest.format,
            "fingerprint": manifest.fingerprint,
            "computed_by": manifest.computed_by,
            "tokens": manifest.ids.len(),
            "pending": manifest.pending,
            "dropped": manifest.dropped,
            "turns": manifest.turns.turns().len(),
            "checkpoints": manifest.checkpoints,
            "chunks": manifest.chunks.len(),
            "bytes": n_bytes(manifest),
            "files": chunks.len(),
            "file_bytes": stored_bytes,
            "has_data": has_data,
            "missing": missing,
            "damaged": damaged,
        }))?;
    } else {
        let whole = format!("{} of {}", chunks.len() - missing.len() - damaged.len(), chunks.len());
        print(&text(manifest, *has_data, stored_bytes, whole))?;
    }
    match (missing.len(), damaged.len()) {
        (0, 0) => Ok(()),
        (missing, damaged) => Err(CliError::NoSnapshot {
            path: args.snapshot.clone(),
            reason: format!("of {} chunks {missing} are missing and {damaged} are damaged", chunks.len()),
        }),
    }
}

fn text(manifest: &Manifest, has_data: bool, stored_bytes: u64, whole: String) -> String {
    let Manifest { fingerprint, computed_by, .. } = manifest;
    let list = |numbers: &[u32]| {
        let texts: Vec<String> = numbers.iter().map(u32::to_string).collect();
        if texts.is_empty() { "none".to_owned() } else { texts.join(", ") }
    };
    let ComputedBy { backend, name, context_length, .. } = computed_by;
    let mut rows = vec![
        ("model", fingerprint.model.clone()),
        ("KV cache", fingerprint.kv_cache.clone()),
        ("tokens", manifest.ids.len().to_string()),
        ("not read", manifest.pending.map_or_else(|| "none".to_owned(), |id| format!("token {id}"))),
        ("turns", manifest.turns.turns().len().to_string()),
        ("checkpoints", list(&manifest.checkpoints)),
        ("computed by", format!("{backend}, {name}, with a context of {context_length}")),
        ("data", bytes(n_bytes(manifest))),
        ("chunks", manifest.chunks.len().to_string()),
        ("files", bytes(stored_bytes)),
        ("whole files", whole),
        ("added data", if has_data { "yes" } else { "no" }.to_owned()),
    ];
    rows.extend(manifest.dropped.map(|[from, to]| ("dropped", format!("tokens {from} to {to}"))));
    facts(&rows)
}

/// Bytes of all chunks.
pub(super) fn n_bytes(manifest: &Manifest) -> u64 {
    manifest.chunks.iter().map(|chunk| u64::from(chunk.bytes)).sum()
}
