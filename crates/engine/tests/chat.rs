//! Generation in text: turns that extend each other, thoughts, stop texts, faults of a device.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]

mod common;

use common::*;
use pollster::block_on;
use serde_json::json;
use signbit_engine::chat::{ChatDelta, ChatRequest};
use signbit_engine::device::GpuOptions;
use signbit_engine::engine::{Engine, FinishReason};
use signbit_engine::memory::Fallback;
use signbit_engine::model::{KvCache, ModelOptions};

fn request(value: serde_json::Value) -> ChatRequest {
    serde_json::from_value(value).unwrap()
}

/// All deltas of a reply as one.
fn reply(engine: &mut Engine, request: ChatRequest) -> ChatDelta {
    let mut chat = engine.start_chat(request).unwrap();
    let mut whole = ChatDelta::default();
    loop {
        let delta = block_on(engine.step_chat(&mut chat)).unwrap();
        whole.content.push_str(&delta.content);
        whole.reasoning.push_str(&delta.reasoning);
        whole.ids.extend(&delta.ids);
        whole.usage = delta.usage;
        if delta.finish_reason.is_some() {
            return ChatDelta { content: whole.content, reasoning: whole.reasoning, ids: whole.ids, ..delta };
        }
    }
}

/// Every turn reads only what is new, and answers as a cold run of the same conversation does.
#[test]
fn turns_extend_the_session() {
    let _gpu = one_at_a_time();
    for thinking in [[false, false, false], [true, true, true], [false, true, false]] {
        let mut engine = load(gpu(), "tiny-geo");
        let mut cold = load(gpu(), "tiny-geo");
        let mut messages = Vec::new();
        let mut processed = 0;
        for (question, on) in ["What is the capital of France?", "And its currency?", "What about Spain?"]
            .into_iter()
            .zip(thinking)
        {
            messages.push(json!({ "role": "user", "content": question }));
            let turn = json!({ "messages": messages, "enable_thinking": on, "max_tokens": 40 });
            let answer = reply(&mut engine, request(turn.clone()));
            cold.reset().unwrap();
            let expected = reply(&mut cold, request(turn.clone()));
            assert_eq!(answer.ids, expected.ids, "{question}, thinking {thinking:?}");
            // All that was read or generated before, but for the end of the turn, which was not read.
            if processed > 0 {
                assert_eq!(answer.usage.reused_tokens, processed - 1, "{question}, thinking {thinking:?}");
            }
            assert_eq!(expected.usage.reused_tokens, 0);
            processed = answer.usage.prompt_tokens + answer.usage.completion_tokens;
            assert_eq!(answer.finish_reason, Some(FinishReason::Stop));
            // A device that takes over when all has been said has nothing to add.
            let mut whole = turn;
            whole.as_object_mut().unwrap().insert("generated".to_owned(), json!(answer.ids));
            let rest = reply(&mut cold, request(whole));
            assert!(rest.ids.is_empty() && rest.content.is_empty(), "{rest:?}");
            assert_eq!(rest.finish_reason, Some(FinishReason::Stop));
            messages.push(json!({
                "role": "assistant", "content": answer.content, "reasoning_content": answer.reasoning,
            }));
        }
    }
}

/// A model that never closes its thought still answers once the thought's budget is used up.
#[test]
fn a_thought_ends_when_its_budget_is_used_up() {
    let _gpu = one_at_a_time();
    for sampling in [json!({}), json!({ "temperature": 1.0, "seed": 3 })] {
        // Random weights: nothing makes this model close its thought.
        let mut engine = load(gpu(), "qwen35-q1_0");
        let mut value = json!({
            "messages": [{ "role": "user", "content": "Hi" }],
            "enable_thinking": true, "max_tokens": 40, "max_reasoning_tokens": 12, "ignore_stop": true,
        });
        value.as_object_mut().unwrap().extend(sampling.as_object().unwrap().clone());
        let answer = reply(&mut engine, request(value.clone()));
        assert!(!answer.reasoning.is_empty() && !answer.content.is_empty(), "{answer:?}");
        let close = engine.loaded().unwrap().tokenizer.encode("\n</think>\n\n", true).len() as u32;
        assert_eq!(answer.usage.reasoning_tokens, 12 + close, "{answer:?}");
        assert!(answer.usage.completion_tokens >= 40);
        // What was forced is part of the session: the ledger is prompt, reply and closing.
        let (prompt, n) = (answer.usage.prompt_tokens as usize, answer.ids.len());
        assert_eq!(engine.ledger().unwrap()[prompt..], answer.ids[..n - 1]);
        // A device that takes over within the thought or behind it gives the rest.
        for n in [5, answer.usage.reasoning_tokens as usize + 3] {
            engine.reset().unwrap();
            let (generated, rest) = answer.ids.split_at(n);
            let object = value.as_object_mut().unwrap();
            object.insert("generated".to_owned(), json!(generated));
            let behind = reply(&mut engine, request(value.clone()));
            assert_eq!((&behind.ids[..], behind.usage), (rest, answer.usage), "behind {n} tokens");
            assert!(answer.content.ends_with(&behind.content) && !behind.content.is_empty());
            assert!(answer.reasoning.ends_with(&behind.reasoning));
            assert_eq!(behind.reasoning.is_empty(), n > 5);
        }
    }
}

#[test]
fn stop_texts_end_the_reply_before_themselves() {
    let _gpu = one_at_a_time();
    let mut engine = load(gpu(), "tiny-geo");
    let ask = |stop: serde_json::Value| {
        request(json!({
            "messages": [{ "role": "user", "content": "What is the capital of France?" }],
            "enable_thinking": false, "stop": stop,
        }))
    };
    let whole = reply(&mut engine, ask(json!([])));
    assert_eq!(whole.content.trim(), "The capital of France is Paris.");
    let cut = reply(&mut engine, ask(json!(["is Par", "nowhere"])));
    assert_eq!(cut.content.trim(), "The capital of France");
    assert_eq!(cut.finish_reason, Some(FinishReason::Stop));
    assert_eq!(engine.start_chat(ask(json!([""]))).unwrap_err().code(), "invalid_request");
}

#[test]
fn requests_that_mean_nothing_are_refused_and_lose_nothing() {
    let _gpu = one_at_a_time();
    let mut engine = load(gpu(), "tiny-geo");
    let france = json!({ "prompt": "The capital of France", "max_tokens": 4 });
    let expected = reply(&mut engine, request(france.clone())).ids;
    for (value, code) in [
        (json!({}), "invalid_request"),
        (json!({ "prompt": "" }), "invalid_request"),
        (json!({ "prompt": "a", "ids": [1] }), "invalid_request"),
        (json!({ "ids": [] }), "invalid_request"),
        (json!({ "prompt": "a", "temperature": -1.0 }), "invalid_request"),
        (json!({ "ids": vec![1; 5000] }), "context_full"),
    ] {
        match engine.start_chat(request(value.clone())) {
            Err(error) => assert_eq!(error.code(), code, "{value}: {error}"),
            Ok(_) => panic!("{value} was accepted"),
        }
    }
    // This fixture's template wants a message from the user, and says so.
    let mut strict = load(cpu(), "qwen3-q1_0");
    for messages in [json!([]), json!([{ "role": "system", "content": "Be brief." }])] {
        let error = strict.start_chat(request(json!({ "messages": messages }))).unwrap_err();
        assert_eq!(error.code(), "template_invalid", "{error}");
    }
    let mut outside = engine.start_chat(request(json!({ "ids": [99999] }))).unwrap();
    assert_eq!(block_on(engine.step_chat(&mut outside)).unwrap_err().code(), "invalid_request");
    assert_eq!(reply(&mut engine, request(france)).ids, expected);
}

/// A device that drops a dispatch without an error must not answer.
#[test]
fn a_kernel_that_is_not_run_is_noticed_at_load() {
    let _gpu = one_at_a_time();
    let used: std::collections::BTreeSet<&str> = {
        let engine = load(gpu(), "qwen35-q1_0");
        let plans = engine.loaded().unwrap().model.plans();
        let prefill = plans.prefill.iter().map(|(_, plan)| plan);
        let all = prefill.chain([&plans.decode, &plans.head, &plans.greedy]);
        all.flat_map(|plan| plan.dispatches.iter().map(|d| d.kernel.name)).collect()
    };
    assert!(used.len() > 10);
    for kernel in used {
        let options = GpuOptions { drop_kernel: Some(kernel.to_owned()), ..GpuOptions::default() };
        let mut engine = Engine::new(gpu_with(options));
        let bytes = model_bytes("qwen35-q1_0");
        let loaded = block_on(engine.load_parts(&[&bytes], ModelOptions::default())).map(|_| kernel);
        let error = loaded.unwrap_err();
        assert_eq!(error.code(), "device_unreliable", "{kernel}: {error}");
        assert!(error.to_string().contains(kernel), "{error}");
        assert_eq!(engine.counters().live_bytes, 0);
    }
}

/// Running out of memory at any allocation is a typed error that leaves nothing behind, never
/// another answer.
#[test]
fn too_little_memory_is_an_error_wherever_it_strikes() {
    let _gpu = one_at_a_time();
    let bytes = model_bytes("tiny-geo");
    // Otherwise the plan would step down.
    let exact =
        ModelOptions { kv_cache: KvCache::F32, memory_fallback: Fallback::None, ..ModelOptions::default() };
    let (expected, needed) = {
        let mut engine = load(gpu(), "tiny-geo");
        let needed = engine.loaded().unwrap().model.memory().total_bytes;
        (greedy(&mut engine, &[5, 6, 7], 4), needed)
    };
    for percent in [0, 1, 5, 20, 50, 80, 95, 99] {
        let budget = Some(needed * percent / 100);
        let mut engine =
            Engine::new(gpu_with(GpuOptions { memory_budget_bytes: budget, ..GpuOptions::default() }));
        let loaded = block_on(engine.load_parts(&[&bytes], exact)).map(|_| percent);
        let error = loaded.unwrap_err();
        assert_eq!(error.code(), "out_of_memory", "{percent} %: {error}");
        assert_eq!(engine.counters().live_bytes, 0, "{percent} %");
    }
    // The plan has room for the probe's cases.
    let budget = Some(needed);
    let mut engine =
        Engine::new(gpu_with(GpuOptions { memory_budget_bytes: budget, ..GpuOptions::default() }));
    block_on(engine.load_parts(&[&bytes], exact)).unwrap();
    assert_eq!(greedy(&mut engine, &[5, 6, 7], 4), expected);
    // Scoring needs its own buffer: refused or served, the engine goes on.
    let scored = block_on(engine.score(&[5, 6, 7], 3, |_| Ok(())));
    if let Err(error) = scored {
        assert_eq!(error.code(), "out_of_memory", "{error}");
    }
    assert_eq!(greedy(&mut engine, &[5, 6, 7], 4), expected);
}

/// The limits that every WebGPU device has are enough, and change nothing.
#[test]
fn minimum_limits_give_the_same_tokens() {
    let _gpu = one_at_a_time();
    for name in ["tiny-geo", "qwen3-q8_0"] {
        let expected = greedy(&mut load(gpu(), name), &[1, 2, 3], 8);
        let options = GpuOptions { minimum_limits: true, ..GpuOptions::default() };
        assert_eq!(greedy(&mut load(gpu_with(options), name), &[1, 2, 3], 8), expected, "{name}");
    }
}

/// A budget of nothing closes the thought at once, and no prompt token is lost on the way.
#[test]
fn a_budget_of_zero_keeps_the_whole_prompt() {
    let _gpu = one_at_a_time();
    let mut engine = load(gpu(), "tiny-geo");
    let question = format!("{}What is the capital of France?", "Hello. ".repeat(40));
    let messages = json!([{ "role": "user", "content": question }]);
    let answer = reply(
        &mut engine,
        request(json!({
            "messages": messages, "enable_thinking": true, "max_reasoning_tokens": 0, "max_tokens": 60,
        })),
    );
    let rendered = engine.render(
        &serde_json::from_value::<Vec<_>>(messages).unwrap(),
        &signbit_tokenizer::RenderOptions { enable_thinking: Some(true), ..Default::default() },
    );
    let prompt = rendered.unwrap().ids;
    assert!(prompt.len() > 64);
    assert_eq!(engine.ledger().unwrap()[..prompt.len()], prompt[..]);
    assert_eq!(answer.usage.prompt_tokens as usize, prompt.len());
    assert!(!answer.content.is_empty());
}

/// A stop text found in the step that also reaches the limit is a stop.
#[test]
fn a_stop_text_wins_over_the_limit() {
    let _gpu = one_at_a_time();
    let mut engine = load(gpu(), "tiny-geo");
    let ask = |max_tokens| {
        request(json!({
            "messages": [{ "role": "user", "content": "What is the capital of France?" }],
            "enable_thinking": false, "stop": [" France"], "max_tokens": max_tokens,
        }))
    };
    for max_tokens in 4..8 {
        let answer = reply(&mut engine, ask(max_tokens));
        assert_eq!(answer.content.trim(), "The capital of", "{max_tokens}");
        assert_eq!(answer.finish_reason, Some(FinishReason::Stop), "{max_tokens}");
        assert_eq!(answer.usage.completion_tokens, 4, "{max_tokens}");
    }
}

/// Two generations at once would read each other's session.
#[test]
fn an_earlier_generation_cannot_go_on() {
    let mut engine = load(cpu(), "tiny-geo");
    let mut first = engine.start_chat(request(json!({ "prompt": "The capital of" }))).unwrap();
    block_on(engine.step_chat(&mut first)).unwrap();
    let mut second = engine.start_chat(request(json!({ "prompt": "Hello" }))).unwrap();
    assert_eq!(block_on(engine.step_chat(&mut first)).unwrap_err().code(), "invalid_request");
    block_on(engine.step_chat(&mut second)).unwrap();
}
