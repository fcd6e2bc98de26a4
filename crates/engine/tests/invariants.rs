//! Properties that hold for any model: how the work is cut must not show in the result.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]

mod common;

use common::*;
use pollster::block_on;
use signbit_engine::device::{Device, GpuOptions};
use signbit_engine::engine::{Engine, FinishReason, TokenRequest};
use signbit_engine::model::ModelOptions;
use signbit_engine::session::{Choice, Session, Step, Want};
use signbit_engine::tuning::{Choose, Variant};

/// One hybrid with unequal head counts and one dense model.
const MODELS: [&str; 2] = ["qwen35-q1_0", "qwen3-q1_0"];

/// Each of [`MODELS`] on each kind of device.
fn everywhere() -> impl Iterator<Item = (&'static str, Engine)> {
    MODELS.into_iter().flat_map(|name| [load(gpu(), name), load(cpu(), name)].map(|engine| (name, engine)))
}

/// Matvec and matmul add in different orders: their logits differ by rounding alone. The reference
/// implementation differs from itself by 6e-5 between one pass and single steps, and grows to 7e-4
/// at positions around 500.
const ROUNDING: f32 = 1e-3;

/// How a prompt is cut changes no bit of a dense model's logits. A recurrent layer adds up the tokens
/// of a chunk in another order than those of another chunk: a hybrid's differ by rounding.
fn assert_cut_agrees(name: &str, cut: &str, one: &[f32], other: &[f32]) {
    let difference = max_difference(one, other);
    let allowed = if name.starts_with("qwen35") { ROUNDING } else { 0.0 };
    assert!(one.len() == other.len() && difference <= allowed, "{name}, {cut}: differ by {difference}");
}

/// Logits after the last token, read in the given pieces from an empty session.
fn last_logits(engine: &mut Engine, pieces: &[&[u32]]) -> Vec<f32> {
    engine.reset().unwrap();
    let (device, loaded, session) = engine.parts_mut().unwrap();
    let mut step = Step::default();
    for (i, piece) in pieces.iter().enumerate() {
        let want = if i + 1 == pieces.len() { Want::Logits } else { Want::Nothing };
        step = block_on(session.prefill(device, &loaded.model, piece, &[], want)).unwrap();
    }
    step.logits
}

#[test]
fn chunk_sizes_agree() {
    let _gpu = one_at_a_time();
    // Each chunk size with the number of tokens it is tried on: on the software adapter small ones are slow.
    let few = [(1, 12), (2, 13), (7, 33), (64, 70)];
    let all = [1, 2, 7, 64].map(|chunk| (chunk, 70));
    for name in MODELS {
        for (device, sizes) in [(gpu(), few), (cpu(), all)] {
            let mut engine = load(device, name);
            let ids = random_ids(&engine, 1, 70);
            // One by one first: the cache behind each position is then still empty.
            let pieces = sizes.map(|(chunk, n)| score(&mut engine, &ids[..n], chunk));
            let whole = score(&mut engine, &ids, 512);
            for ((chunk, _), pieces) in sizes.iter().zip(&pieces) {
                assert_cut_agrees(name, &format!("chunks of {chunk}"), &whole[..pieces.len()], pieces);
            }
        }
    }
}

/// Lengths at which a window or a tile begins or ends.
const EDGES: [usize; 15] = [1, 2, 63, 64, 65, 127, 128, 129, 511, 512, 513, 1023, 1024, 1025, 2049];

#[test]
fn prefill_equals_decode_at_every_edge() {
    for name in MODELS {
        edges_agree(&mut load(cpu(), name), name, 2049, if is_full() { 2049 } else { 513 });
    }
}

/// The kernels themselves, as far as the software adapter gets in seconds.
#[test]
fn prefill_equals_decode_on_the_gpu() {
    let _gpu = one_at_a_time();
    let (longest, stepwise) = if is_full() { (2049, 2049) } else { (513, 129) };
    for name in MODELS {
        edges_agree(&mut load(gpu(), name), name, longest, stepwise);
    }
}

fn is_full() -> bool {
    std::env::var_os("SIGNBIT_FULL").is_some()
}

/// Reads prompts of all lengths in [`EDGES`] up to `longest` in pieces and in whole steps, and the
/// first `stepwise` tokens one by one.
fn edges_agree(engine: &mut Engine, name: &str, longest: usize, stepwise: usize) {
    let edges: Vec<usize> = EDGES.into_iter().filter(|&edge| edge <= longest).collect();
    let ids = random_ids(engine, 2, longest);
    // In pieces that end at each edge.
    let mut at_edges = Vec::new();
    engine.reset().unwrap();
    let (device, loaded, session) = engine.parts_mut().unwrap();
    let model = &loaded.model;
    let mut start = 0;
    for &end in &edges {
        for piece in ids[start..end].chunks(512) {
            let step = block_on(session.prefill(device, model, piece, &[], Want::Logits)).unwrap();
            if session.ledger().len() == end {
                at_edges.push(step.logits);
            }
        }
        start = end;
    }
    // In whole steps, for the longest.
    for (&n, pieces) in edges.iter().zip(&at_edges).rev().step_by(3).take(2) {
        let whole = last_logits(engine, &ids[..n].chunks(512).collect::<Vec<_>>());
        assert_cut_agrees(name, &format!("{n} tokens"), &whole, pieces);
    }
    // Token by token, through the plan for decode.
    engine.reset().unwrap();
    let (device, loaded, session) = engine.parts_mut().unwrap();
    for (i, &id) in ids[..stepwise].iter().enumerate() {
        let step = block_on(session.decode_logits(device, &loaded.model, id)).unwrap();
        if let Some(edge) = edges.iter().position(|&edge| edge == i + 1) {
            let difference = max_difference(&step.logits, &at_edges[edge]);
            assert!(difference <= ROUNDING, "{name}, {} tokens: differ by {difference}", i + 1);
        }
    }
}

/// Decode must go on from a long prefill as well as from a short one.
#[test]
fn decode_after_a_long_prefill_equals_prefill() {
    let _gpu = one_at_a_time();
    for (name, mut engine) in everywhere() {
        let ids = random_ids(&engine, 12, 1030);
        let longer = |engine: &mut Engine, n: usize| {
            let pieces: Vec<_> = ids[..n].chunks(512).collect();
            last_logits(engine, &pieces)
        };
        let expected = longer(&mut engine, 1030);
        longer(&mut engine, 1025);
        let (device, loaded, session) = engine.parts_mut().unwrap();
        let mut step = Step::default();
        for &id in &ids[1025..] {
            step = block_on(session.decode_logits(device, &loaded.model, id)).unwrap();
        }
        let difference = max_difference(&step.logits, &expected);
        assert!(difference <= ROUNDING, "{name}: differ by {difference}");
    }
}

/// Positions must go on where the session stands, and nothing may be read twice.
#[test]
fn continuing_a_session_equals_a_cold_run() {
    let _gpu = one_at_a_time();
    for (name, mut engine) in everywhere() {
        let ids = random_ids(&engine, 3, 100);
        let cold = last_logits(&mut engine, &[&ids]);
        for cut in [1, 64, 99] {
            let warm = last_logits(&mut engine, &[&ids[..cut], &ids[cut..]]);
            assert_cut_agrees(name, &format!("cut at {cut}"), &cold, &warm);
        }
        // The same through generation: a second turn that extends the first.
        engine.reset().unwrap();
        let first = greedy(&mut engine, &ids[..50], 20);
        let second = [&ids[..50], &first[..], &ids[50..90]].concat();
        let request =
            TokenRequest { prompt: second.clone(), max_tokens: Some(20), ..TokenRequest::default() };
        let generation = engine.start(request.clone()).unwrap();
        // All but the last sampled token, which had not been read.
        assert_eq!(generation.reuse().reused, 50 + 19);
        let warm = generate(&mut engine, request);
        engine.reset().unwrap();
        assert_eq!(warm, greedy(&mut engine, &second, 20), "{name}");
    }
}

#[test]
fn a_prompt_that_does_not_extend_the_session_starts_over() {
    let _gpu = one_at_a_time();
    for device in [gpu(), cpu()] {
        let mut engine = load(device, MODELS[0]);
        let ids = random_ids(&engine, 4, 40);
        let cold = greedy(&mut engine, &ids, 10);
        // The same prompt again, a shorter one, and one that differs inside.
        assert_eq!(greedy(&mut engine, &ids, 10), cold);
        let other = greedy(&mut engine, &ids[..20], 10);
        let mut changed = ids.clone();
        changed[5] ^= 1;
        greedy(&mut engine, &changed, 10);
        assert_eq!(greedy(&mut engine, &ids[..20], 10), other);
        assert_eq!(greedy(&mut engine, &ids, 10), cold);
    }
}

/// The stop id ends the generation on the device: later steps of the same submit change nothing.
#[test]
fn a_stop_id_inside_a_submit_leaves_the_session_clean() {
    let _gpu = one_at_a_time();
    for (name, mut engine) in everywhere() {
        let ids = random_ids(&engine, 5, 30);
        let free = greedy(&mut engine, &ids, 12);
        let stop_at = (1..12).find(|&i| !free[..i].contains(&free[i])).unwrap();
        for n_steps in 1..=8 {
            engine.reset().unwrap();
            let (device, loaded, session) = engine.parts_mut().unwrap();
            let model = &loaded.model;
            let stop = [free[stop_at]];
            let first =
                block_on(session.prefill(device, model, &ids, &stop, Want::Token(Choice::Greedy))).unwrap();
            let mut sampled = first.ids;
            while sampled.last() != Some(&stop[0]) {
                let step = block_on(session.decode(device, model, n_steps, &stop, Choice::Greedy)).unwrap();
                assert_eq!(step.stopped, step.ids.last() == Some(&stop[0]));
                sampled.extend(step.ids);
            }
            assert_eq!(sampled, free[..=stop_at], "{name}, {n_steps} steps a submit");
            // The stop token has not been read, and nothing after it.
            assert_eq!(session.ledger(), [&ids[..], &free[..stop_at]].concat());
            assert!(block_on(session.decode(device, model, 1, &[], Choice::Greedy)).is_err());
            // Going on with the stop token gives what an uninterrupted run gave.
            let next =
                block_on(session.prefill(device, model, &stop, &[], Want::Token(Choice::Greedy))).unwrap();
            assert_eq!(next.ids, free[stop_at + 1..][..1], "{name}, {n_steps} steps a submit");
        }
    }
}

/// A low binding limit splits embedding and head into shards and narrows the prefill plans; the bits stay
/// the same.
#[test]
fn sharded_weights_give_the_same_bits() {
    let _gpu = one_at_a_time();
    let cases = [("qwen35-mixed", 64 << 10, 60), ("qwen3-f16", 64 << 10, 60), ("qwen3-q1_0", 16 << 10, 16)];
    for (name, limit, n) in cases {
        let small = GpuOptions { max_binding_bytes: Some(limit), ..GpuOptions::default() };
        let mut engine = Engine::new(gpu_with(small));
        engine.choose_variants(Choose::Fixed(Variant::Lanes));
        let options = ModelOptions { context_length: n as u32, ..ModelOptions::default() };
        block_on(engine.load_parts(&[&model_bytes(name)], options)).unwrap();
        let model = &engine.loaded().unwrap().model;
        for (plan, label) in [(&model.plans().head, "lm_head"), (&model.plans().decode, "embed")] {
            let n_shards = plan.dispatches.iter().filter(|d| d.label == label).count();
            assert!(n_shards > 1, "{name}: {n_shards} shards of {label}");
        }
        assert!(model.max_prefill_rows() < 512);
        let ids = random_ids(&engine, 6, n);
        let sharded = score(&mut engine, &ids, 60);
        // In the same pieces: a hybrid's bits depend on them.
        let piece = engine.loaded().unwrap().model.plans().score.as_ref().unwrap().logits.rows.min(60);
        assert!(sharded == score(&mut load(gpu(), name), &ids, piece), "{name}");
        assert_eq!(greedy(&mut engine, &ids[..n - 5], 5), greedy(&mut load(gpu(), name), &ids[..n - 5], 5));
    }
    // A recurrent state cannot be split: the model is refused with the sizes.
    let mut engine =
        Engine::new(gpu_with(GpuOptions { max_binding_bytes: Some(64 << 10), ..GpuOptions::default() }));
    let error = block_on(engine.load_parts(&[&model_bytes("qwen35-q1_0")], Default::default()))
        .map(|_| ())
        .unwrap_err();
    assert_eq!(error.code(), "limit_too_small");
    assert_eq!(engine.counters().live_bytes, 0);
}

/// A decoded token takes few dispatches, and reads little more than what no plan can do without.
#[test]
fn a_decoded_token_reads_the_weights_once() {
    for name in [EMBEDDED, "qwen35-q1_0", "qwen3-q1_0"] {
        let engine = load(cpu(), name);
        let model = &engine.loaded().unwrap().model;
        let (cost, layers) = (model.step_cost(), u64::from(model.config().num_hidden_layers));
        println!("{name}: {layers} layers, {cost:?}");
        assert!(cost.dispatches <= 6 * layers + 4, "{name}");
        assert!(cost.bytes_read >= cost.minimum_bytes, "{name}");
        // The miniatures' activations weigh as much as their weights.
        assert!(name != EMBEDDED || cost.bytes_read * 100 <= cost.minimum_bytes * 105);
    }
}

/// The device does what the plan says, and several tokens go out in one submit: 1, 2, 4, then 8.
#[test]
fn decoding_costs_what_the_plan_declares() {
    let _gpu = one_at_a_time();
    let mut engine = load(gpu(), MODELS[0]);
    engine.set_time_budget(f64::INFINITY);
    let ids = random_ids(&engine, 13, 9);
    let request = TokenRequest { prompt: ids, max_tokens: Some(1 + 31), ..TokenRequest::default() };
    let mut generation = engine.start(request).unwrap();
    while !generation.has_read_prompt() {
        block_on(engine.step(&mut generation)).unwrap();
    }
    let before = engine.counters();
    let mut sizes = Vec::new();
    while generation.finished().is_none() {
        sizes.push(block_on(engine.step(&mut generation)).unwrap().len());
    }
    let after = engine.counters();
    let cost = engine.loaded().unwrap().model.step_cost();
    assert_eq!(sizes, [1, 2, 4, 8, 8, 8]);
    assert_eq!(after.submits - before.submits, sizes.len() as u64);
    assert_eq!(after.dispatches - before.dispatches, 31 * cost.dispatches);
    assert_eq!(after.objects_created, before.objects_created);
}

#[test]
fn nothing_is_created_after_load() {
    let _gpu = one_at_a_time();
    let mut engine = load(gpu(), MODELS[0]);
    let ids = random_ids(&engine, 7, 40);
    greedy(&mut engine, &ids, 10);
    let before = engine.counters();
    for i in 0..20 {
        greedy(&mut engine, &ids[..1 + i % ids.len()], 1);
        if i % 5 > 0 {
            continue;
        }
        // Whole generations, abandoned ones, refused ones.
        greedy(&mut engine, &ids[..1 + i % ids.len()], 3);
        let request = TokenRequest { prompt: ids.clone(), ..TokenRequest::default() };
        let mut generation = engine.start(request).unwrap();
        block_on(engine.step(&mut generation)).unwrap();
        assert!(engine.start(TokenRequest { prompt: vec![u32::MAX], ..TokenRequest::default() }).is_ok());
        engine.start(TokenRequest::default()).unwrap_err();
    }
    let after = engine.counters();
    assert_eq!(after.objects_created, before.objects_created);
    assert_eq!(after.live_bytes, before.live_bytes);
    engine.unload();
    assert_eq!(engine.counters().live_bytes, 0);
    assert_eq!(engine.counters().live_buffers, 0);
}

#[test]
fn the_context_ends_with_length_and_refuses_longer_prompts() {
    let _gpu = one_at_a_time();
    let bytes = model_bytes(MODELS[0]);
    let mut engine = Engine::new(gpu());
    let options = ModelOptions { context_length: 40, ..Default::default() };
    block_on(engine.load_parts(&[&bytes], options)).unwrap();
    let ids = random_ids(&engine, 8, 41);
    let mut generation =
        engine.start(TokenRequest { prompt: ids[..30].to_vec(), ..TokenRequest::default() }).unwrap();
    let mut n = 0;
    while generation.finished().is_none() {
        n += block_on(engine.step(&mut generation)).unwrap().len();
    }
    // Ten more positions can be read, and the last of them yields one token more.
    assert_eq!((n, generation.finished()), (11, Some(FinishReason::Length)));
    let error = engine.start(TokenRequest { prompt: ids.clone(), ..TokenRequest::default() }).unwrap_err();
    assert_eq!(error.code(), "context_full");
    // A prompt that fills the context still gets its one token.
    assert_eq!(greedy(&mut engine, &ids[..40], 5).len(), 1);
    assert_eq!(greedy(&mut engine, &ids[..40], 0).len(), 0);
}

/// A number that is none must stop the generation, not turn into token 0.
#[test]
fn a_nan_in_cache_or_state_is_an_error_and_a_reset_cures_it() {
    let _gpu = one_at_a_time();
    for device in [gpu(), cpu()] {
        let mut engine = load(device, "qwen35-q1_0");
        let ids = random_ids(&engine, 9, 20);
        let clean = greedy(&mut engine, &ids, 8);
        let poisoned = {
            let (_, loaded, _) = engine.parts_mut().unwrap();
            let decode = &loaded.model.plans().decode.dispatches;
            let kept = [("attn.core", "k_cache"), ("delta.rule", "s"), ("delta.rule", "ring")];
            kept.map(|(label, name)| {
                let dispatch = decode.iter().find(|d| d.label.ends_with(label)).unwrap();
                let at = dispatch.kernel.bindings.iter().position(|b| b.name == name).unwrap();
                (name, dispatch.buffers[at])
            })
        };
        for (name, buffer) in poisoned {
            let request = TokenRequest { prompt: ids.clone(), ..TokenRequest::default() };
            let mut generation = engine.start(request).unwrap();
            block_on(engine.step(&mut generation)).unwrap();
            let (device, _, _) = engine.parts_mut().unwrap();
            // The first row of the ring is the one that the next step replaces.
            let row = device.buffer_words(buffer).unwrap() / 4;
            let offset = if name == "ring" { row } else { 0 };
            device.write(buffer, offset, &[f32::NAN.to_bits()]).unwrap();
            let error = loop {
                match block_on(engine.step(&mut generation)) {
                    Ok(_) => assert!(generation.finished().is_none(), "{name}: NaN went unseen"),
                    Err(error) => break error,
                }
            };
            assert_eq!(error.code(), "non_finite", "{name}");
            assert_eq!(greedy(&mut engine, &ids, 8), clean, "after {name}");
        }
    }
}

#[test]
fn a_lost_device_is_an_error_at_once_and_a_new_one_works() {
    let _gpu = one_at_a_time();
    let mut engine = load(gpu(), MODELS[0]);
    let ids = random_ids(&engine, 11, 30);
    let expected = greedy(&mut engine, &ids, 5);
    let Device::Gpu(device) = engine.device_mut() else { panic!("a GPU was opened") };
    device.destroy();
    let mut generation =
        engine.start(TokenRequest { prompt: ids.clone(), ..TokenRequest::default() }).unwrap();
    let error = block_on(engine.step(&mut generation)).unwrap_err();
    assert_eq!(error.code(), "device_lost", "{error}");
    let mut engine = load(gpu(), MODELS[0]);
    assert_eq!(greedy(&mut engine, &ids, 5), expected);
}

#[test]
fn ids_outside_the_vocabulary_are_refused() {
    let _gpu = one_at_a_time();
    let mut engine = load(gpu(), MODELS[0]);
    let vocab = engine.loaded().unwrap().model.config().vocab_size;
    let (device, loaded, session) = engine.parts_mut().unwrap();
    let mut refuse = |session: &mut Session, ids: &[u32]| {
        block_on(session.prefill(device, &loaded.model, ids, &[], Want::Token(Choice::Greedy)))
            .unwrap_err()
            .code()
    };
    assert_eq!(refuse(session, &[1, vocab]), "invalid_request");
    assert_eq!(refuse(session, &[]), "invalid_request");
    assert_eq!(refuse(session, &vec![1; 513]), "invalid_request");
    // A refusal is no failed step: the session goes on.
    assert!(session.is_sound());
}
