//! The end of the context: a reply ends or the window rolls on, and nothing is forgotten without a word.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]

mod common;

use common::*;
use pollster::block_on;
use signbit_engine::device::Device;
use signbit_engine::engine::{ContextEnd, Engine, FinishReason, TokenRequest};
use signbit_engine::model::{KvCache, ModelOptions};
use signbit_engine::sampler::Sampling;
use signbit_engine::snapshot::{CHUNK_BYTES, Part};
use signbit_engine::tuning::{Choose, Variant};
use signbit_gguf::{GgufWriter, Header};

const KINDS: [KvCache; 2] = [KvCache::F32, KvCache::Kivi];

fn load_kind(device: Device, bytes: &[u8], kv_cache: KvCache, context_length: u32) -> Engine {
    let mut engine = Engine::new(device);
    engine.choose_variants(Choose::Fixed(Variant::Lanes));
    engine.set_time_budget(1e9);
    let options = ModelOptions { kv_cache, context_length, ..ModelOptions::default() };
    block_on(engine.load_parts(&[bytes], options)).unwrap_or_else(|e| panic!("{e}"));
    engine
}

/// The first layer of a dense model. Its keys and values depend on each token alone, and what follows a token
/// on nothing but the rows that attention sees.
fn one_layer() -> Vec<u8> {
    let bytes = model_bytes("qwen3-q1_0");
    let header = Header::parse_file(&bytes).unwrap();
    let mut writer = GgufWriter::new();
    for (key, value) in header.metadata.iter() {
        writer.set(key, value.clone());
    }
    writer.set("qwen3.block_count", 1u32);
    for info in
        header.tensors.iter().filter(|info| !info.name.starts_with("blk.") || info.name.starts_with("blk.0."))
    {
        let start = (header.data_start + info.offset) as usize;
        let data = bytes[start..start + info.n_bytes as usize].to_vec();
        writer.tensor(&info.name, &info.shape, info.ty, data);
    }
    writer.finish()
}

fn rolling(prompt: &[u32], max_tokens: u32, pinned: u32) -> TokenRequest {
    TokenRequest {
        prompt: prompt.to_vec(),
        max_tokens: Some(max_tokens),
        context_end: ContextEnd::Roll { pinned },
        ..TokenRequest::default()
    }
}

/// Words of a token's row in the one layer, by row: keys and values of the f32 cache.
fn rows_of(engine: &mut Engine) -> Vec<Vec<u8>> {
    let mut manifest = engine.snapshot(CHUNK_BYTES).unwrap();
    let mut rows = Vec::new();
    for i in 0..manifest.chunks.len() {
        if let Part::Rows([start, end]) = manifest.chunks[i].part {
            let bytes = block_on(engine.read_chunk(&mut manifest, i)).unwrap();
            let n = (end - start) as usize;
            let row_bytes = bytes.len() / n / 2;
            let (keys, values) = bytes.split_at(bytes.len() / 2);
            rows.extend(
                keys.chunks(row_bytes)
                    .zip(values.chunks(row_bytes))
                    .map(|(key, value)| [key, value].concat()),
            );
        }
    }
    rows
}

fn next_logits(engine: &mut Engine, id: u32) -> Vec<f32> {
    let (device, loaded, session) = engine.parts_mut().unwrap();
    block_on(session.decode_logits(device, &loaded.model, id)).unwrap().logits
}

/// The rows that are left are those of the tokens that are left, at the positions where they were read.
#[test]
fn rows_move_and_keep_their_rotations() {
    let bytes = one_layer();
    for pinned in [0, 1, 7, 20] {
        let mut engine = load_kind(cpu(), &bytes, KvCache::F32, 64);
        let ids = random_ids(&engine, 81, 200);
        let mut whole = load_kind(cpu(), &bytes, KvCache::F32, 256);
        for n in [64, 65, 97, 150, 200] {
            generate(&mut engine, rolling(&ids[..n], 0, pinned));
            generate(&mut whole, rolling(&ids[..n], 0, 0));
            let dropped = engine.session().unwrap().head().dropped.clone();
            assert_eq!(dropped.is_empty(), n <= 64, "{pinned} {n}");
            assert!(dropped.is_empty() || dropped.start == pinned);
            let mut expected = rows_of(&mut whole);
            expected.drain(dropped.start as usize..dropped.end as usize);
            assert!(rows_of(&mut engine) == expected, "pinned {pinned}, {n} tokens, {dropped:?}");
            assert_eq!(engine.ledger().unwrap(), &ids[..n], "the ledger forgets nothing");
        }
    }
}

/// What follows is what follows the tokens that are left: rotations count by their distance alone.
#[test]
fn attention_sees_the_rows_that_are_left() {
    let bytes = one_layer();
    let _gpu = one_at_a_time();
    for device in [gpu as fn() -> Device, cpu] {
        let mut engine = load_kind(device(), &bytes, KvCache::F32, 64);
        let ids = random_ids(&engine, 82, 151);
        generate(&mut engine, rolling(&ids[..150], 0, 0));
        let dropped = engine.session().unwrap().head().dropped.clone();
        assert!(dropped.len() > 64);
        let warm = next_logits(&mut engine, ids[150]);
        engine.reset().unwrap();
        greedy(&mut engine, &ids[dropped.end as usize..150], 0);
        let cold = next_logits(&mut engine, ids[150]);
        // Angles of positions 100 apart differ by an f32's rounding of values up to 1 in 64 products.
        let difference = max_difference(&warm, &cold);
        assert!(difference < 1e-3, "{difference}");
        assert!(max_difference(&warm, &next_logits(&mut engine, ids[150])) > 1e-2, "any rows would do");
    }
}

/// The 4-bit cache drops whole windows, whose codes stay as they are.
#[test]
fn the_quantised_cache_rolls_by_windows() {
    let bytes = one_layer();
    for pinned in [0, 8, 9, 100] {
        let mut engine = load_kind(cpu(), &bytes, KvCache::Kivi, 8 + 5 * 128);
        let ids = random_ids(&engine, 83, 1500);
        let mut whole = load_kind(cpu(), &bytes, KvCache::Kivi, 2048);
        generate(&mut engine, rolling(&ids[..1200], 0, pinned));
        let dropped = engine.session().unwrap().head().dropped.clone();
        assert!(dropped.len() >= 128 && dropped.len().is_multiple_of(128), "{dropped:?}");
        assert_eq!(dropped.start, if pinned <= 8 { 8 } else { 136 });
        // The windows at the end are those of a cache that has all.
        generate(&mut whole, rolling(&ids[..1200], 0, 0));
        let state = |engine: &mut Engine| {
            let mut manifest = engine.snapshot(CHUNK_BYTES).unwrap();
            let index = manifest.chunks.iter().position(|c| c.part == Part::State(1200)).unwrap();
            block_on(engine.read_chunk(&mut manifest, index)).unwrap()
        };
        assert_eq!(state(&mut engine), state(&mut whole));
        // However it was cut, the same bits.
        let warm = next_logits(&mut engine, ids[1200]);
        engine.reset().unwrap();
        for end in [100, 600, 700, 1199, 1200] {
            generate(&mut engine, rolling(&ids[..end], 0, pinned));
        }
        assert_eq!(engine.session().unwrap().head().dropped, dropped);
        assert_eq!(next_logits(&mut engine, ids[1200]), warm);
    }
}

/// Codes of what is left: a quantised window in the rolled cache is the window of the same tokens in one that
/// has all, so attention over both differs by the dropped rows alone.
#[test]
fn a_rolled_session_goes_on_like_any_other() {
    for (name, kind) in
        ["qwen3-q1_0", "qwen35-q1_0"].into_iter().flat_map(|name| KINDS.map(|kind| (name, kind)))
    {
        let bytes = model_bytes(name);
        let mut engine = load_kind(cpu(), &bytes, kind, 400);
        let ids = random_ids(&engine, 84, 900);
        let first = generate(&mut engine, rolling(&ids[..700], 20, 30));
        let dropped = engine.session().unwrap().head().dropped.len();
        assert!(dropped >= 300, "{name} {kind}: {dropped}");
        // A prompt that repeats the whole conversation reads only what is new.
        let second = [&ids[..700], &first[..], &ids[700..705]].concat();
        let generation = engine.start(rolling(&second, 8, 30)).unwrap();
        assert_eq!(generation.reuse().reused, 719, "{name} {kind}");
        assert_eq!(generation.reuse().dropped as usize, dropped);
        drop(generation);
        let warm = generate(&mut engine, rolling(&second, 200, 30));
        assert_eq!(warm.len(), 200, "a reply is not bounded by the context");
        // Snapshots have what is left, and what is dropped is told.
        let mut manifest = engine.snapshot(CHUNK_BYTES).unwrap();
        let n = manifest.chunks.len();
        let chunks: Vec<_> = (0..n).map(|i| block_on(engine.read_chunk(&mut manifest, i)).unwrap()).collect();
        let manifest = engine.complete_snapshot(manifest).unwrap();
        assert!(manifest.dropped.is_some());
        let longer = [&second[..], &warm[..], &ids[710..720]].concat();
        let expected = generate(&mut engine, rolling(&longer, 64, 30));
        let mut other = load_kind(cpu(), &bytes, kind, 400);
        let mut restore = other.begin_restore(manifest).unwrap();
        for chunk in chunks.iter().rev() {
            block_on(other.restore_chunk(&mut restore, chunk)).unwrap();
        }
        other.finish_restore(restore).unwrap();
        assert_eq!(generate(&mut other, rolling(&longer, 64, 30)), expected, "{name} {kind}");
        // Back to where nothing was dropped yet, and into what was.
        let start = |engine: &mut Engine, n: usize| {
            let prompt = [&ids[..n], &[7, 8]].concat();
            engine.start(rolling(&prompt, 1, 30)).unwrap().reuse().clone()
        };
        let inside = start(&mut other, 200);
        assert!(inside.reused <= 200 && inside.reason.is_some(), "{name} {kind}: {inside:?}");
        let cold = {
            let mut cold = load_kind(cpu(), &bytes, kind, 400);
            greedy(&mut cold, &[&ids[..20], &[5]].concat(), 12)
        };
        assert_eq!(greedy(&mut other, &[&ids[..20], &[5]].concat(), 12), cold, "{name} {kind}");
        assert!(other.session().unwrap().head().dropped.is_empty());
    }
}

#[test]
fn without_a_rolling_window_the_end_is_the_end() {
    for kind in KINDS {
        let mut engine = load_kind(cpu(), &model_bytes("qwen3-q1_0"), kind, 200);
        let ids = random_ids(&engine, 85, 300);
        let request = |n: usize, max_tokens| TokenRequest {
            prompt: ids[..n].to_vec(),
            max_tokens,
            ..TokenRequest::default()
        };
        assert_eq!(engine.start(request(201, None)).unwrap_err().code(), "context_full");
        let mut generation = engine.start(request(190, None)).unwrap();
        let mut n = 0;
        while generation.finished().is_none() {
            n += block_on(engine.step(&mut generation)).unwrap().len();
        }
        assert_eq!((n, generation.finished()), (11, Some(FinishReason::Length)));
        assert_eq!(generation.rolled(), 0);
        // Where all is pinned there is nothing to drop.
        let mut generation = engine.start(rolling(&ids[..190], 50, 200)).unwrap();
        let mut n = 0;
        while generation.finished().is_none() {
            n += block_on(engine.step(&mut generation)).unwrap().len();
        }
        assert_eq!((n, generation.finished()), (11, Some(FinishReason::Length)));
        let mut generation = engine.start(rolling(&ids, 5, 200)).unwrap();
        let error = loop {
            if let Err(error) = block_on(engine.step(&mut generation)) {
                break error;
            }
        };
        assert_eq!(error.code(), "context_full");
        // And the session is what it was.
        assert_eq!(engine.ledger().unwrap(), &ids[..200]);
    }
}

/// What looks back at the tokens goes by those that are left, and the same seed gives the same tokens.
#[test]
fn sampling_goes_on_behind_a_roll() {
    for kind in KINDS {
        let mut engine = load_kind(cpu(), &model_bytes("qwen3-q1_0"), kind, 300);
        let ids = random_ids(&engine, 86, 500);
        let sampling = Sampling {
            temperature: 1.0,
            seed: 5,
            repetition_penalty: 1.2,
            dry_multiplier: 0.8,
            ..Sampling::default()
        };
        for n in [250, 500] {
            let request = TokenRequest { sampling: sampling.clone(), ..rolling(&ids[..n], 150, 10) };
            engine.reset().unwrap();
            let first = generate(&mut engine, request.clone());
            assert_eq!(first.len(), 150);
            engine.reset().unwrap();
            assert_eq!(generate(&mut engine, request), first);
        }
    }
}

/// What is to stay stays, also where an earlier request let it go, and who has not asked for a rolling window
/// does not get one.
#[test]
fn a_rolled_session_serves_only_who_asks_for_it() {
    for kind in KINDS {
        let mut engine = load_kind(cpu(), &model_bytes("qwen3-q1_0"), kind, 400);
        let ids = random_ids(&engine, 87, 600);
        generate(&mut engine, rolling(&ids[..500], 0, 0));
        let pinned = engine.session().unwrap().head().dropped.start;
        assert!(pinned <= 8);
        let longer = TokenRequest { prompt: ids[..510].to_vec(), ..TokenRequest::default() };
        assert_eq!(engine.start(longer).unwrap_err().code(), "context_full", "{kind}");
        assert_eq!(engine.ledger().unwrap(), &ids[..500], "{kind}: a refusal costs nothing");
        let generation = engine.start(rolling(&ids[..510], 1, pinned)).unwrap();
        assert_eq!(generation.reuse().reused, 500, "{kind}");
        let generation = engine.start(rolling(&ids[..510], 1, 150)).unwrap();
        assert!(generation.reuse().reused <= pinned && generation.reuse().reason.is_some(), "{kind}");
        drop(generation);
        generate(&mut engine, rolling(&ids[..510], 1, 150));
        assert!(engine.session().unwrap().head().dropped.start >= 150, "{kind}");
        // More than can ever stay is an error and not a number that wraps.
        let mut all = engine.start(rolling(&ids, 1, u32::MAX)).unwrap();
        let error = loop {
            if let Err(error) = block_on(engine.step(&mut all)) {
                break error;
            }
        };
        assert_eq!(error.code(), "context_full", "{kind}");
    }
}

/// A reply whose device was lost goes on where it was, also behind a roll and at the very end of the context.
#[test]
fn a_reply_goes_on_behind_a_roll() {
    let sampling = Sampling { temperature: 1.0, seed: 5, dry_multiplier: 0.8, ..Sampling::default() };
    let bytes = model_bytes("qwen3-q1_0");
    let load = || load_kind(cpu(), &bytes, KvCache::F32, 300);
    let ids = random_ids(&load(), 88, 250);
    let request = TokenRequest { sampling, ..rolling(&ids, 300, 10) };
    let whole = generate(&mut load(), request.clone());
    assert_eq!(whole.len(), 300);
    for n in [60, 120, 299] {
        let rest = generate(&mut load(), TokenRequest { generated: whole[..n].to_vec(), ..request.clone() });
        assert_eq!(rest, whole[n..], "behind {n} tokens");
    }
    let full = TokenRequest { prompt: ids[..240].to_vec(), ..TokenRequest::default() };
    let whole = generate(&mut load(), full.clone());
    assert_eq!(whole.len(), 61);
    for n in [59, 60, 61] {
        let rest = generate(&mut load(), TokenRequest { generated: whole[..n].to_vec(), ..full.clone() });
        assert_eq!(rest, whole[n..], "behind {n} tokens");
    }
}
