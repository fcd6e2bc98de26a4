//! Sessions as values: what is restored goes on as if it had never been interrupted.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]

mod common;

use common::*;
use pollster::block_on;
use signbit_engine::device::{Device, GpuOptions};
use signbit_engine::engine::{Engine, TokenRequest};
use signbit_engine::model::{KvCache, ModelOptions};
use signbit_engine::sampler::Sampling;
use signbit_engine::snapshot::{CHUNK_BYTES, Manifest, digest};
use signbit_engine::tuning::{Choose, Variant};
use signbit_shaders::case::Rng;

/// One hybrid with unequal head counts and one dense model.
const MODELS: [&str; 2] = ["qwen35-q1_0", "qwen3-q1_0"];

const KINDS: [KvCache; 2] = [KvCache::F32, KvCache::Kivi];

/// Every model with every kind of cache.
fn all() -> impl Iterator<Item = (&'static str, KvCache)> {
    MODELS.into_iter().flat_map(|name| KINDS.map(|kind| (name, kind)))
}

/// Every model and every kind of cache once: the software GPU is slow.
fn some_of_all() -> impl Iterator<Item = (&'static str, KvCache)> {
    MODELS.into_iter().zip(KINDS.into_iter().rev())
}

fn load_kind(device: Device, name: &str, kv_cache: KvCache, context_length: u32) -> Engine {
    let mut engine = Engine::new(device);
    engine.choose_variants(Choose::Fixed(Variant::Lanes));
    // A slice of a prompt that takes long would be cut where the clock says.
    engine.set_time_budget(1e9);
    let options = ModelOptions { kv_cache, context_length, ..ModelOptions::default() };
    block_on(engine.load_parts(&[&model_bytes(name)], options)).unwrap_or_else(|e| panic!("{e}"));
    engine
}

/// A snapshot with all its chunks.
#[derive(Clone, Debug)]
struct Snapshot {
    manifest: Manifest,
    chunks: Vec<Vec<u8>>,
}

fn snapshot_in(engine: &mut Engine, chunk_bytes: u32) -> Snapshot {
    let mut manifest = engine.snapshot(chunk_bytes).unwrap();
    let indices = 0..manifest.chunks.len();
    let chunks = indices.map(|i| block_on(engine.read_chunk(&mut manifest, i)).unwrap()).collect();
    Snapshot { manifest: engine.complete_snapshot(manifest).unwrap(), chunks }
}

fn snapshot(engine: &mut Engine) -> Snapshot {
    snapshot_in(engine, CHUNK_BYTES)
}

fn shuffle<T>(items: &mut [T]) {
    let mut rng = Rng::new(7);
    for i in (1..items.len()).rev() {
        items.swap(i, rng.next_u32() as usize % (i + 1));
    }
}

fn restore(engine: &mut Engine, snapshot: &Snapshot) {
    // Through text, as a file or a browser's storage keeps it, and with the chunks in another order.
    let manifest = serde_json::from_str(&serde_json::to_string(&snapshot.manifest).unwrap()).unwrap();
    let mut restore = engine.begin_restore(manifest).unwrap();
    let mut order: Vec<_> = snapshot.chunks.iter().collect();
    shuffle(&mut order);
    for chunk in order {
        block_on(engine.restore_chunk(&mut restore, chunk)).unwrap();
    }
    engine.finish_restore(restore).unwrap();
}

/// Greedy, and drawn with everything that looks back at the tokens before.
fn samplings() -> [Sampling; 2] {
    let drawn = Sampling {
        temperature: 0.9,
        seed: 11,
        repetition_penalty: 1.1,
        frequency_penalty: 0.2,
        dry_multiplier: 0.5,
        ..Sampling::default()
    };
    [Sampling::default(), drawn]
}

/// Tokens until at least `n` have come.
fn some(engine: &mut Engine, request: TokenRequest, n: usize) -> Vec<u32> {
    let mut generation = engine.start(request).unwrap();
    let mut ids = Vec::new();
    while ids.len() < n {
        ids.extend(block_on(engine.step(&mut generation)).unwrap());
    }
    ids
}

fn assert_identical(
    device: impl Fn() -> Device,
    (name, kind): (&str, KvCache),
    n_prompt: usize,
    samplings: &[Sampling],
) {
    for sampling in samplings {
        let mut steady = load_kind(device(), name, kind, 1024);
        let prompt = random_ids(&steady, 21, n_prompt);
        let request = TokenRequest {
            prompt,
            max_tokens: Some(110),
            sampling: sampling.clone(),
            ..TokenRequest::default()
        };
        let expected = generate(&mut steady, request.clone());
        let mut first = load_kind(device(), name, kind, 1024);
        let generated = some(&mut first, request.clone(), 40);
        assert!(generated.len() <= 46, "at least 64 tokens are to follow");
        let taken = snapshot(&mut first);
        drop(first);
        let mut second = load_kind(device(), name, kind, 1024);
        greedy(&mut second, &[3, 1, 4, 1, 5], 3);
        restore(&mut second, &taken);
        let request = TokenRequest { generated: generated.clone(), ..request };
        let generation = second.start(request.clone()).unwrap();
        assert_eq!(generation.reuse().prefilled, 0, "{name} {kind}");
        let rest = generate(&mut second, request);
        assert_eq!([generated, rest].concat(), expected, "{name} {kind} {sampling:?}");
        // Not the tokens alone: every word of the caches.
        let (one, other) = (snapshot(&mut steady), snapshot(&mut second));
        assert_eq!(one.manifest.chunks, other.manifest.chunks, "{name} {kind}");
    }
}

#[test]
fn what_is_restored_goes_on_as_if_never_interrupted() {
    for model in all() {
        assert_identical(cpu, model, 290, &samplings());
    }
}

#[test]
fn so_it_does_on_the_gpu() {
    let _gpu = one_at_a_time();
    for (model, sampling) in some_of_all().zip(samplings()) {
        assert_identical(gpu, model, 130, &[sampling]);
    }
}

/// How long slices of a prompt take must not show: else one machine would give other tokens than another, and a
/// busy one other tokens than before.
#[test]
fn a_slow_device_computes_the_same_as_a_fast_one() {
    let _gpu = one_at_a_time();
    for kind in KINDS {
        let [slow, fast] = [0.0, 1e9].map(|milliseconds| {
            let mut engine = load_kind(gpu(), MODELS[0], kind, 512);
            engine.set_time_budget(milliseconds);
            let prompt = random_ids(&engine, 23, 200);
            greedy(&mut engine, &prompt, 2);
            snapshot(&mut engine).manifest
        });
        assert_eq!(slow.chunks, fast.chunks, "{kind}");
    }
}

/// A context of another length splits attention in other ways: it rounds differently, and goes on all the same.
#[test]
fn the_context_may_be_longer_or_shorter() {
    for (name, kind) in all() {
        let mut engine = load_kind(cpu(), name, kind, 1024);
        let prompt = random_ids(&engine, 22, 290);
        let generated = greedy(&mut engine, &prompt, 20);
        let taken = snapshot(&mut engine);
        let longer = [&prompt[..], &generated[..]].concat();
        let expected = greedy(&mut engine, &longer, 12);
        for context_length in [512, 2048] {
            let mut other = load_kind(cpu(), name, kind, context_length);
            restore(&mut other, &taken);
            assert_eq!(other.ledger().unwrap(), taken.manifest.ids);
            assert_eq!(greedy(&mut other, &longer, 12), expected, "{name} {kind} {context_length}");
        }
    }
}

/// Buffers that nobody may copy from would give a snapshot of zeros.
#[test]
fn a_snapshot_differs_from_that_of_another_session() {
    let _gpu = one_at_a_time();
    for device in [gpu as fn() -> Device, cpu] {
        for (name, kind) in some_of_all() {
            let mut engine = load_kind(device(), name, kind, 512);
            let ids = random_ids(&engine, 31, 300);
            greedy(&mut engine, &ids[..150], 2);
            let one = snapshot(&mut engine);
            for (chunk, bytes) in one.manifest.chunks.iter().zip(&one.chunks) {
                let n_zeros = bytes.iter().filter(|&&byte| byte == 0).count();
                assert!(2 * n_zeros < bytes.len(), "{name} {kind}: {chunk:?} has {n_zeros} zeros");
            }
            engine.reset().unwrap();
            greedy(&mut engine, &ids[150..], 2);
            let other = snapshot(&mut engine);
            let same = one.chunks.iter().zip(&other.chunks).filter(|(a, b)| a == b).count();
            assert_eq!(same, 0, "{name} {kind}");
        }
    }
}

/// However little is read back at once, and however small chunks are, the bytes are the same.
#[test]
fn staging_and_chunks_of_any_size_give_the_same_bytes() {
    let _gpu = one_at_a_time();
    for (name, kind) in some_of_all() {
        let mut engine = load_kind(gpu(), name, kind, 512);
        let prompt = random_ids(&engine, 41, 300);
        greedy(&mut engine, &prompt, 3);
        let whole = snapshot(&mut engine);
        let few = GpuOptions { read_back_bytes: Some(4096), ..GpuOptions::default() };
        let mut engine = load_kind(gpu_with(few), name, kind, 512);
        greedy(&mut engine, &prompt, 3);
        assert_eq!(snapshot(&mut engine).chunks, whole.chunks, "{name} {kind}");
        let small = snapshot_in(&mut engine, 10_000);
        assert!(small.chunks.iter().all(|chunk| chunk.len() <= 10_000));
        assert_eq!(small.chunks.concat(), whole.chunks.concat(), "{name} {kind}");
        let expected = greedy(&mut engine, &[&prompt[..], &[1, 2]].concat(), 8);
        restore(&mut engine, &small);
        assert_eq!(greedy(&mut engine, &[&prompt[..], &[1, 2]].concat(), 8), expected);
    }
}

/// A grown session has the chunks of before, but for the last ones.
#[test]
fn chunks_of_full_blocks_stay() {
    for (name, kind) in all() {
        let mut engine = load_kind(cpu(), name, kind, 4096);
        let ids = random_ids(&engine, 51, 2600);
        greedy(&mut engine, &ids[..2500], 1);
        let before = snapshot(&mut engine).manifest;
        let known = engine.snapshot(CHUNK_BYTES).unwrap();
        assert!(known.chunks.iter().all(|chunk| chunk.digest.is_some()), "nothing need be read again");
        greedy(&mut engine, &ids, 1);
        let after = engine.snapshot(CHUNK_BYTES).unwrap();
        let n_known = after.chunks.iter().filter(|chunk| chunk.digest.is_some()).count();
        assert!(n_known > 0 && n_known < after.chunks.len(), "{name} {kind}");
        let whole = snapshot(&mut engine).manifest;
        for chunk in after.chunks.iter().filter(|chunk| chunk.digest.is_some()) {
            assert!(before.chunks.contains(chunk) && whole.chunks.contains(chunk), "{chunk:?}");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused_and_costs_nothing() {
    let mut engine = load_kind(cpu(), "qwen3-q1_0", KvCache::F32, 512);
    let ids = random_ids(&engine, 61, 200);
    let good = {
        greedy(&mut engine, &ids, 2);
        snapshot(&mut engine)
    };
    let other = {
        greedy(&mut engine, &ids[50..], 2);
        snapshot(&mut engine)
    };
    let expected = greedy(&mut engine, &[&ids[50..], &[9]].concat(), 4);
    let restored = |engine: &mut Engine, snapshot: &Snapshot| {
        let mut restore = engine.begin_restore(snapshot.manifest.clone())?;
        for chunk in &snapshot.chunks {
            block_on(engine.restore_chunk(&mut restore, chunk))?;
        }
        engine.finish_restore(restore)
    };
    let refused = |engine: &mut Engine, what: &str, snapshot: &Snapshot, code: &str| {
        let error = restored(engine, snapshot).unwrap_err();
        assert_eq!(error.code(), code, "{what}: {error}");
    };
    let sealed = |change: &dyn Fn(&mut Manifest)| {
        let mut changed = good.clone();
        change(&mut changed.manifest);
        changed.manifest.digest = None;
        let bare = serde_json::to_vec(&changed.manifest).unwrap();
        changed.manifest.digest = Some(digest(&bare));
        changed
    };
    // Manifests that say what cannot be.
    type Change = dyn Fn(&mut Manifest);
    let changes: [(&str, &Change, &str); 13] = [
        ("format", &|m| m.format = 2, "snapshot_mismatch"),
        ("model", &|m| m.fingerprint.model = "0".repeat(64), "snapshot_mismatch"),
        ("kind", &|m| m.fingerprint.kv_cache = "kivi".to_owned(), "snapshot_mismatch"),
        ("adapters", &|m| m.fingerprint.adapters.push("lora".to_owned()), "snapshot_mismatch"),
        ("rope", &|m| m.fingerprint.rope.push('x'), "snapshot_mismatch"),
        ("no ids", &|m| m.ids.clear(), "snapshot_corrupt"),
        ("fewer ids", &|m| m.ids.truncate(9), "snapshot_corrupt"),
        ("an id", &|m| m.ids[3] = u32::MAX, "snapshot_corrupt"),
        ("dropped", &|m| m.dropped = Some([10, 5]), "snapshot_corrupt"),
        ("small chunks", &|m| m.chunk_bytes = 64, "invalid_request"),
        ("checkpoints", &|m| m.checkpoints = vec![9, 3], "snapshot_corrupt"),
        ("chunks", &|m| m.chunks.truncate(0), "snapshot_corrupt"),
        ("an offset", &|m| m.chunks[0].offset = u64::MAX - 3, "snapshot_corrupt"),
    ];
    for (what, change, code) in changes {
        refused(&mut engine, what, &sealed(change), code);
    }
    let huge = sealed(&|m| m.chunk_bytes = u32::MAX);
    refused(&mut engine, "chunk size", &huge, "invalid_request");
    let mut unsealed = good.clone();
    unsealed.manifest.ids[0] ^= 1;
    refused(&mut engine, "an edited manifest", &unsealed, "snapshot_corrupt");
    assert_eq!(engine.ledger().unwrap()[..ids.len() - 50], ids[50..], "nothing has touched the session");
    // Chunks that are not what the manifest says.
    let mut cut = good.clone();
    cut.chunks[0].truncate(1000);
    refused(&mut engine, "a truncated chunk", &cut, "snapshot_corrupt");
    let mut mixed = good.clone();
    mixed.chunks[0] = other.chunks[0].clone();
    refused(&mut engine, "a chunk of another snapshot", &mixed, "snapshot_corrupt");
    let mut flipped = good.clone();
    flipped.chunks[0][77] ^= 4;
    refused(&mut engine, "a flipped bit", &flipped, "snapshot_corrupt");
    let mut missing = good.clone();
    missing.chunks.pop();
    refused(&mut engine, "a missing chunk", &missing, "snapshot_corrupt");
    // The session that was there can be had back.
    restored(&mut engine, &other).unwrap();
    assert_eq!(greedy(&mut engine, &[&ids[50..], &[9]].concat(), 4), expected);
    // A snapshot of another kind of cache, and one that is too long.
    let mut kivi = load_kind(cpu(), "qwen3-q1_0", KvCache::Kivi, 512);
    refused(&mut kivi, "another kind of cache", &good, "snapshot_mismatch");
    let mut short = load_kind(cpu(), "qwen3-q1_0", KvCache::F32, 128);
    refused(&mut short, "a short context", &good, "context_full");
}

/// Reads prompts in a session that has gone further, or elsewhere, and compares with a cold engine that stops
/// at the same places.
#[test]
fn a_prompt_costs_at_most_one_interval_wherever_it_leaves_the_session() {
    for (name, kind) in all() {
        let mut engine = load_kind(cpu(), name, kind, 4096);
        let ids = random_ids(&engine, 71, 1200);
        let mut cold = load_kind(cpu(), name, kind, 4096);
        for end in [1199, 1025, 1024, 1023, 512, 137, 136, 9, 8, 1] {
            greedy(&mut engine, &ids, 3);
            let mut prompt = ids[..end].to_vec();
            prompt.extend([7, 8, 9]);
            let generation =
                engine.start(TokenRequest { prompt: prompt.clone(), ..TokenRequest::default() }).unwrap();
            let reuse = generation.reuse().clone();
            let common = end as u32 + u32::from(ids.get(end) == Some(&7));
            assert!(reuse.reused <= common && common - reuse.reused <= 512, "{name} {kind} {end}: {reuse:?}");
            let is_free = name.starts_with("qwen3-") && kind == KvCache::F32;
            assert!(!is_free || reuse.reused == common, "{name} {kind} {end}: {reuse:?}");
            assert_eq!(reuse.reason.is_some(), reuse.reused < common, "{name} {kind} {end}: {reuse:?}");
            let warm = greedy(&mut engine, &prompt, 6);
            cold.reset().unwrap();
            assert_eq!(warm, greedy(&mut cold, &prompt, 6), "{name} {kind} {end}");
            engine.reset().unwrap();
        }
    }
}

/// A prompt that was read ahead, or half of it before its reader went away, is not read again, and no token is
/// applied twice: the same words in the caches, and the same logits.
#[test]
fn what_was_read_ahead_is_not_read_twice() {
    let _gpu = one_at_a_time();
    for device in [gpu as fn() -> Device, cpu] {
        for (name, kind) in some_of_all() {
            let mut engine = load_kind(device(), name, kind, 1024);
            let prompt = random_ids(&engine, 91, 230);
            let request = |max_tokens| TokenRequest {
                prompt: prompt.clone(),
                max_tokens: Some(max_tokens),
                logprobs: Some(3),
                ..TokenRequest::default()
            };
            // Ids, and the bits of their log-probabilities, which every logit has a part in.
            let answer = |engine: &mut Engine, n_reused: u32| {
                let mut generation = engine.start(request(12)).unwrap();
                assert_eq!(generation.reuse().reused, n_reused, "{name} {kind}: {:?}", generation.reuse());
                let mut found = Vec::new();
                while generation.finished().is_none() {
                    block_on(engine.step(&mut generation)).unwrap();
                    found.extend(
                        generation.logprobs().iter().map(|l| (l.id, l.logprob.to_bits(), l.top.clone())),
                    );
                }
                (found, snapshot(engine).manifest.chunks)
            };
            let expected = answer(&mut engine, 0);
            assert_eq!(expected.0.len(), 12);
            engine.reset().unwrap();
            assert!(generate(&mut engine, request(0)).is_empty());
            assert_eq!(engine.ledger().unwrap(), prompt);
            assert_eq!(answer(&mut engine, 230), expected, "{name} {kind}, read ahead");
            // At first a slice is short.
            let mut engine = load_kind(device(), name, kind, 1024);
            let mut generation = engine.start(request(12)).unwrap();
            block_on(engine.step(&mut generation)).unwrap();
            drop(generation);
            let n_read = engine.ledger().unwrap().len() as u32;
            assert!(0 < n_read && n_read < 230, "{n_read}");
            assert_eq!(answer(&mut engine, n_read), expected, "{name} {kind}, half of it");
            // Before a token was read at all.
            drop(engine.start(request(12)).unwrap());
            let longer = [&prompt[..], &[1]].concat();
            let reuse = engine.start(TokenRequest { prompt: longer, ..request(1) }).unwrap().reuse().clone();
            assert!(reuse.committed > 230, "a reply that was never begun costs nothing");
        }
    }
}

/// What is known of a chunk holds for what it has become, also where a session was cut back and has grown to the
/// same length with other tokens.
#[test]
fn a_chunk_that_has_become_another_has_another_digest() {
    for (name, kind) in all() {
        let mut engine = load_kind(cpu(), name, kind, 512);
        let ids = random_ids(&engine, 101, 450);
        greedy(&mut engine, &ids[..300], 1);
        let before = snapshot(&mut engine).manifest;
        greedy(&mut engine, &[&ids[..150], &ids[300..]].concat(), 1);
        let known = engine.snapshot(CHUNK_BYTES).unwrap();
        let whole = snapshot(&mut engine).manifest;
        assert_ne!(whole.chunks.last(), before.chunks.last(), "{name} {kind}");
        for (known, whole) in known.chunks.iter().zip(&whole.chunks) {
            assert!(known.digest.is_none() || known == whole, "{name} {kind}: {known:?}");
        }
    }
}
