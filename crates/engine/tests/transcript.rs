//! History renders to the ids that were processed: a turn reads what is new, whatever the model wrote.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]

mod common;

use common::*;
use pollster::block_on;
use serde_json::{Value, json};
use signbit_engine::chat::{ChatDelta, ChatRequest};
use signbit_engine::engine::{Engine, FinishReason};
use signbit_engine::transcript::Transcript;
use signbit_tokenizer::{RenderOptions, Rendered};

/// A conversation with a model, from the side of a caller who checks what each turn takes.
struct Talk {
    engine: Engine,
    /// The generation prompts where thinking is off, on and left to the template.
    scaffolds: [&'static str; 3],
    messages: Vec<Value>,
    tools: Value,
}

const CLOSED: &str = "<think>\n\n</think>\n\n";
const OPEN: &str = "<think>\n";

impl Talk {
    fn new(model: &str) -> Self {
        let by_default = if model == "tiny-geo" { CLOSED } else { OPEN };
        Self {
            engine: load(cpu(), model),
            scaffolds: [CLOSED, OPEN, by_default],
            messages: Vec::new(),
            tools: json!([]),
        }
    }

    /// All ids of the session.
    fn ids(&mut self) -> Vec<u32> {
        let (_, _, session) = self.engine.parts_mut().unwrap();
        session.ledger().iter().copied().chain(session.pending()).collect()
    }

    fn encode(&self, text: &str) -> Vec<u32> {
        self.engine.loaded().unwrap().tokenizer.encode(text, true)
    }

    fn request(&self, thinking: Option<bool>, more: &Value) -> ChatRequest {
        let mut request =
            json!({ "messages": self.messages, "tools": self.tools, "enable_thinking": thinking });
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(request).unwrap()
    }

    /// The whole conversation as the template writes it.
    fn rendered(&self, thinking: Option<bool>) -> Rendered {
        let messages: Vec<_> = serde_json::from_value(json!(self.messages)).unwrap();
        let tools = self.tools.as_array().unwrap().clone();
        let options = RenderOptions { enable_thinking: thinking, tools, ..RenderOptions::default() };
        self.engine.render(&messages, &options).unwrap()
    }

    /// Lets the model answer, and adds what it said to the conversation, with or without its thought.
    fn answer(&mut self, thinking: Option<bool>, more: &Value, with_thought: bool) -> ChatDelta {
        let request = self.request(thinking, more);
        let reply = run(&mut self.engine, request);
        let mut message = json!({ "role": "assistant", "content": reply.content });
        if with_thought {
            message["reasoning_content"] = json!(reply.reasoning);
        }
        if !reply.tool_calls.is_empty() {
            message["tool_calls"] = json!(reply.tool_calls);
        }
        self.messages.push(message);
        reply
    }

    /// Asks, and checks that the prompt was what had been processed, the end of that turn, and the question.
    fn ask(&mut self, text: &str, thinking: Option<bool>, more: &Value, with_thought: bool) -> ChatDelta {
        self.messages.push(json!({ "role": "user", "content": text }));
        let new = format!("<|im_start|>user\n{text}<|im_end|>\n");
        self.extend(&new, thinking, more, with_thought)
    }

    /// Goes on after messages that the template writes as `new`.
    fn extend(&mut self, new: &str, thinking: Option<bool>, more: &Value, with_thought: bool) -> ChatDelta {
        let (processed, ledger) = (self.ids(), self.engine.ledger().unwrap().len());
        let [off, on, by_default] = self.scaffolds;
        let scaffold = thinking.map_or(by_default, |is_on| if is_on { on } else { off });
        let end = if processed.is_empty() {
            ""
        } else if processed.last() == self.encode("<|im_end|>").last() {
            "\n"
        } else {
            "<|im_end|>\n"
        };
        let new = self.encode(&format!("{end}{new}<|im_start|>assistant\n{scaffold}"));
        let prompt = [processed, new].concat();
        let reply = self.answer(thinking, more, with_thought);
        assert_eq!(self.engine.ledger().unwrap()[..prompt.len()], prompt, "{:?}", self.messages);
        assert_eq!(reply.usage.prompt_tokens as usize, prompt.len());
        assert_eq!(reply.usage.reused_tokens as usize, ledger);
        reply
    }

    /// Lets the model write `ids` and end its turn.
    fn write(&self, ids: &[u32]) -> Value {
        let mut bias = serde_json::Map::new();
        bias.insert(self.encode("<|im_end|>")[0].to_string(), json!(100));
        json!({ "generated": ids, "logit_bias": bias, "max_tokens": ids.len() + 1 })
    }
}

fn run(engine: &mut Engine, request: ChatRequest) -> ChatDelta {
    let mut chat = engine.start_chat(request).unwrap();
    let mut whole = ChatDelta::default();
    while whole.finish_reason.is_none() {
        let delta = block_on(engine.step_chat(&mut chat)).unwrap();
        let (content, reasoning) = (whole.content + &delta.content, whole.reasoning + &delta.reasoning);
        let ids = [whole.ids, delta.ids.clone()].concat();
        whole = ChatDelta { content, reasoning, ids, ..delta };
    }
    whole
}

/// The ids of a text, one for each of its bytes: a tokenisation that no encoder gives.
fn byte_by_byte(talk: &Talk, text: &str) -> Vec<u32> {
    let tokenizer = &talk.engine.loaded().unwrap().tokenizer;
    let id_of = |byte: u8| {
        let is_byte = |&id: &u32| tokenizer.token_bytes(id) == [byte];
        (0..tokenizer.vocab_size() as u32).find(is_byte).unwrap()
    };
    text.bytes().map(id_of).collect()
}

#[test]
fn ten_turns_read_only_what_is_new() {
    const QUESTIONS: [&str; 10] = [
        "What is the capital of France?",
        "And its currency?",
        "What about Spain?",
        "Who are you?",
        "  And\n\nItaly? ",
        "What is the capital of Japan?",
        "caf\u{e9} \u{1F600}?",
        "What is its currency?",
        "Why?",
        "Bye.",
    ];
    for model in ["tiny-geo", "qwen3-q1_0", "qwen35-q1_0", "qwen35-mixed"] {
        let mut n_other = 0;
        for thinking in [[Some(false); 3], [Some(true); 3], [Some(true), None, Some(false)]] {
            let mut talk = Talk::new(model);
            for (turn, question) in QUESTIONS.into_iter().enumerate() {
                // One template trims what people write.
                let question = if model == "tiny-geo" { question } else { question.trim() };
                let on = thinking[turn % 3];
                let more = match model {
                    "tiny-geo" => json!({ "max_tokens": 24 }),
                    // Random weights: anything may be written, also the ids that end a turn.
                    _ => json!({
                        "max_tokens": 5 + turn, "temperature": 1.5, "seed": turn, "ignore_stop": turn % 2 == 0,
                    }),
                };
                let reply = talk.ask(question, on, &more, turn % 4 < 2);
                // What the template makes of the history is something else, or the test shows nothing.
                let rendered = talk.rendered(on).ids;
                n_other += usize::from(!rendered.starts_with(&talk.ids()));
                if !model.contains("35") && turn % 3 == 2 {
                    let prompt = talk.ids()[..reply.usage.prompt_tokens as usize].to_vec();
                    let mut cold = load(cpu(), model);
                    let object = json!({ "ids": prompt });
                    let mut request: ChatRequest = serde_json::from_value(object).unwrap();
                    let same = talk.request(on, &more);
                    request.max_tokens = same.max_tokens;
                    request.temperature = same.temperature;
                    request.seed = same.seed;
                    request.ignore_stop = same.ignore_stop;
                    assert_eq!(run(&mut cold, request).ids, reply.ids, "{model} {thinking:?} {question}");
                }
            }
        }
        assert!(n_other > 5, "{model}: {n_other}");
    }
}

/// A reply is known by its text; one that was edited, or given another thought, is not.
#[test]
fn an_edited_reply_is_rendered_anew() {
    let mut talk = Talk::new("qwen35-q1_0");
    let more = json!({ "max_tokens": 9, "temperature": 1.0, "ignore_stop": true });
    for question in ["One?", "Two?", "Three?"] {
        talk.ask(question, Some(true), &more, true);
    }
    talk.messages.push(json!({ "role": "user", "content": "Four?" }));
    let original = talk.messages.clone();
    let processed = talk.ids();
    let session = |talk: &mut Talk| talk.engine.parts_mut().unwrap().2.head().turns.clone();
    let turns = session(&mut talk);
    assert_eq!(turns.turns().len(), 3);
    let lens: Vec<usize> = turns.turns().iter().map(|turn| turn.len as usize).collect();
    assert_eq!(lens[2], processed.len());
    let prompt = |talk: &Talk| {
        let request = talk.request(Some(true), &json!({}));
        talk.engine.prompt_ids(&request, Some((&turns, &processed))).unwrap()
    };
    // Up to the reply before the edited one the ids stay.
    let common = |ids: &[u32]| ids.iter().zip(&processed).take_while(|(a, b)| a == b).count();
    for (index, field, kept) in [
        (5, "content", Some(1)),
        (5, "reasoning_content", Some(1)),
        (4, "content", Some(1)),
        (3, "reasoning_content", Some(0)),
        (1, "content", None),
        (0, "content", None),
    ] {
        talk.messages.clone_from(&original);
        talk.messages[index][field] = json!("edited");
        let edited = prompt(&talk).ids;
        match kept {
            Some(turn) => {
                assert!(edited.starts_with(&processed[..lens[turn]]), "{index} {field}");
                assert!(common(&edited) < lens[turn + 1], "{index} {field}");
            }
            None => assert_eq!(edited, talk.rendered(Some(true)).ids, "{index} {field}"),
        }
        let text = talk.engine.loaded().unwrap().tokenizer.decode(&edited);
        assert!(text.contains("edited"), "{text}");
    }
    // The session goes on from an edit as from anything.
    talk.messages.clone_from(&original);
    talk.messages[5]["content"] = json!("edited");
    let expected = prompt(&talk).ids;
    talk.answer(Some(true), &more, false);
    assert!(talk.ids().starts_with(&expected));
    let lens: Vec<usize> = session(&mut talk).turns().iter().map(|turn| turn.len as usize).collect();
    assert_eq!(lens, [turns.turns()[0].len as usize, turns.turns()[1].len as usize, talk.ids().len()]);
    talk.ask("Five?", Some(false), &more, true);
    // Nothing is known of a session that was reset, or that another conversation took.
    talk.engine.reset().unwrap();
    assert_eq!(session(&mut talk), Transcript::default());
    talk.messages.push(json!({ "role": "user", "content": "Six?" }));
    let expected = talk.rendered(Some(true)).ids;
    talk.answer(Some(true), &more, true);
    assert!(talk.ids().starts_with(&expected));
    talk.ask("Seven?", Some(true), &more, false);
}

/// A call with white space and an order of keys that no template writes, in ids that no encoder gives.
#[test]
fn tool_calls_stay_as_they_were_written() {
    const CALL: &str = "Let me  see.\n\n<tool_call>{ \"arguments\" : {\"to\":2.0,\n \"from\" : [ 1 ]},\t\"name\":\"add\"} </tool_call>\n";
    for model in ["qwen3-q1_0", "qwen35-q1_0"] {
        for thinking in [false, true] {
            let mut talk = Talk::new(model);
            talk.tools = json!([{ "type": "function", "function": { "name": "add", "parameters": {} } }]);
            talk.messages.push(json!({ "role": "user", "content": "1 + 2?" }));
            let text = if thinking { format!("I add\n</think>\n{CALL}") } else { CALL.to_owned() };
            let more = talk.write(&byte_by_byte(&talk, &text));
            let reply = talk.answer(Some(thinking), &more, false);
            assert_eq!(reply.finish_reason, Some(FinishReason::ToolCalls), "{reply:?}");
            let call = &reply.tool_calls[0].function;
            assert_eq!((call.name.as_str(), &call.arguments), ("add", &json!({ "to": 2.0, "from": [1] })));

            // A caller keeps calls as the API gives them: under an id, their arguments as a string.
            let index = talk.messages.len() - 1;
            talk.messages[index]["tool_calls"] = json!([{ "id": "call_1", "type": "function", "function": {
                "name": "add", "arguments": "{\"from\": [1], \"to\": 2}",
            }}]);
            talk.messages[index]["content"] = json!("Let me  see.");
            talk.messages.push(json!({ "role": "tool", "content": "3", "tool_call_id": "call_1" }));
            let response = "<|im_start|>user\n<tool_response>\n3\n</tool_response><|im_end|>\n";
            let more = talk.write(&byte_by_byte(&talk, &text));
            talk.extend(response, Some(thinking), &more, false);
            talk.messages.last_mut().unwrap()["content"] = json!("Let me  see.\n\n");
            talk.messages.push(json!({ "role": "tool", "content": "4", "tool_call_id": "call_2" }));
            let response = response.replace('3', "4");
            talk.extend(&response, Some(!thinking), &json!({ "max_tokens": 5 }), true);
            talk.ask("Thanks.", Some(thinking), &json!({ "max_tokens": 5 }), true);

            // Another argument is another call.
            talk.messages.push(json!({ "role": "user", "content": "More?" }));
            talk.messages[index]["tool_calls"][0]["function"]["arguments"] =
                json!("{\"from\": [1], \"to\": 3}");
            let expected = talk.rendered(Some(thinking)).ids;
            talk.answer(Some(thinking), &json!({ "max_tokens": 1 }), true);
            assert!(talk.ids().starts_with(&expected));
        }
    }
}

/// Replies that ended before their time: within a thought, a character, white space.
#[test]
fn replies_that_were_cut_off_stay_as_they_were_written() {
    for model in ["qwen3-q1_0", "qwen35-q1_0"] {
        for text in [
            "hm",
            "hm\n",
            "hm\n</thi",
            "hm\n</think>",
            "hm\n</think>\n\n",
            "h\u{e9}",
            "a\n</think>\n\n\u{1F600}",
        ] {
            let mut talk = Talk::new(model);
            let ids = byte_by_byte(&talk, text);
            talk.messages.push(json!({ "role": "user", "content": "Hi" }));
            // The last byte of a character may be what is missing.
            let ids = &ids[..ids.len() - usize::from(!text.is_ascii())];
            let (last, first) = ids.split_last().unwrap();
            let mut bias = serde_json::Map::new();
            bias.insert(last.to_string(), json!(100));
            let more = json!({ "generated": first, "logit_bias": bias, "max_tokens": ids.len() });
            let reply = talk.answer(Some(true), &more, false);
            assert_eq!(reply.finish_reason, Some(FinishReason::Length));
            assert!(talk.ids().ends_with(ids));
            // All of the reply, and not what the rest of the first step gave.
            let tokenizer = &talk.engine.loaded().unwrap().tokenizer;
            let whole = tokenizer.decode(ids);
            let (thought, answer) = whole.split_once("</think>").unwrap_or((&whole, ""));
            let message = json!({
                "role": "assistant", "content": answer.trim(), "reasoning_content": thought.trim(),
            });
            *talk.messages.last_mut().unwrap() = message;
            talk.ask("Go on.", Some(true), &json!({ "max_tokens": 3 }), true);
            talk.ask("And?", Some(false), &json!({ "max_tokens": 3 }), false);
        }
    }
}

/// A caller who has had enough may take what it got for the reply.
#[test]
fn an_abandoned_reply_is_known_as_far_as_it_was_given_out() {
    let turns = |talk: &mut Talk| talk.engine.parts_mut().unwrap().2.head().turns.clone();
    let more = json!({ "max_tokens": 4 });
    let mut talk = Talk::new("qwen35-q1_0");
    talk.ask("Hi", Some(true), &more, true);
    // The first byte of a character, and what may be the beginning of a tag, are not given out yet.
    for (text, is_known) in [("a", true), ("\u{e9}", false), ("<", false), ("\n", true), ("b", true)] {
        talk.messages.push(json!({ "role": "user", "content": text }));
        let written = byte_by_byte(&talk, text)[0];
        let mut bias = serde_json::Map::new();
        bias.insert(written.to_string(), json!(100));
        let request = talk.request(Some(true), &json!({ "logit_bias": bias, "max_tokens": 200 }));
        let mut chat = talk.engine.start_chat(request).unwrap();
        // The step that reads the last of the prompt gives one token.
        let mut step = ChatDelta::default();
        while step.ids.is_empty() {
            step = block_on(talk.engine.step_chat(&mut chat)).unwrap();
        }
        assert_eq!(step.ids, [written]);
        let reasoning = step.reasoning;
        let n_known = turns(&mut talk).turns().len();
        talk.engine.end_chat(chat);
        assert_eq!(turns(&mut talk).turns().len(), n_known + usize::from(is_known), "{text:?}");
        assert_eq!(reasoning, if is_known { text.trim() } else { "" });
        talk.messages.push(json!({ "role": "assistant", "content": "", "reasoning_content": reasoning }));
        if is_known {
            talk.ask("Well?", Some(true), &more, false);
        } else {
            talk.messages.push(json!({ "role": "user", "content": "Well?" }));
            talk.answer(Some(true), &more, true);
        }
    }
    // Before the prompt has been read there is no reply; nor is there one after a reset.
    talk.messages.push(json!({ "role": "user", "content": "Go on." }));
    let known = turns(&mut talk);
    let request = talk.request(Some(true), &more);
    let chat = talk.engine.start_chat(request).unwrap();
    talk.engine.end_chat(chat);
    assert_eq!(turns(&mut talk), known);
    let request = talk.request(Some(true), &more);
    let mut chat = talk.engine.start_chat(request).unwrap();
    block_on(talk.engine.step_chat(&mut chat)).unwrap();
    talk.engine.reset().unwrap();
    talk.engine.end_chat(chat);
    assert_eq!(turns(&mut talk), Transcript::default());
}

/// The steps that were on the way when a caller had enough are not in its history.
#[test]
fn a_caller_may_have_missed_the_last_steps_of_a_reply() {
    for n_missed in 0..4 {
        let mut talk = Talk::new("tiny-geo");
        // Word by word, as on a slow device.
        talk.engine.set_time_budget(0.0);
        talk.messages.push(json!({ "role": "user", "content": "What is the capital of France?" }));
        let request = talk.request(Some(true), &json!({}));
        let mut chat = talk.engine.start_chat(request).unwrap();
        let (mut steps, mut thought) = (Vec::new(), String::new());
        while steps.len() < 5 {
            let delta = block_on(talk.engine.step_chat(&mut chat)).unwrap();
            assert_eq!((delta.content.as_str(), delta.finish_reason), ("", None));
            thought.push_str(&delta.reasoning);
            if !delta.reasoning.is_empty() {
                steps.push((thought.clone(), talk.ids().len()));
            }
        }
        talk.engine.end_chat(chat);
        let (thought, len) = &steps[steps.len() - 1 - n_missed];
        talk.messages.push(json!({ "role": "assistant", "content": "", "reasoning_content": thought }));
        talk.messages.push(json!({ "role": "user", "content": "Why?" }));
        let processed = talk.ids();
        let turns = talk.engine.parts_mut().unwrap().2.head().turns.clone();
        let request = talk.request(Some(false), &json!({}));
        let prompt = talk.engine.prompt_ids(&request, Some((&turns, &processed))).unwrap().ids;
        let new = "<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n";
        assert_eq!(prompt, [&processed[..*len], &talk.encode(&format!("{new}{CLOSED}"))].concat());
    }
}

/// A reply that was to go on past its end may end with the id that ends a turn: there is one of it.
#[test]
fn a_turn_is_ended_once() {
    for ignore_stop in [false, true] {
        let mut talk = Talk::new("qwen35-q1_0");
        talk.messages.push(json!({ "role": "user", "content": "Hi" }));
        let mut more = talk.write(&byte_by_byte(&talk, "one"));
        more["ignore_stop"] = json!(ignore_stop);
        talk.answer(Some(false), &more, true);
        let end = talk.encode("<|im_end|>");
        assert_eq!(talk.ids().ends_with(&end), ignore_stop);
        talk.messages.last_mut().unwrap()["content"] = json!("one");
        talk.ask("Ho", Some(false), &json!({ "max_tokens": 2 }), true);
        let ids = talk.ids();
        assert!(!ids.windows(2).any(|pair| pair == [end[0], end[0]]), "{ids:?}");
    }
}

/// What is behind the stop text was processed and not given out: the history is what was given.
#[test]
fn a_reply_that_a_stop_text_ended_is_rendered() {
    let mut talk = Talk::new("tiny-geo");
    talk.ask("What is the capital of France?", Some(false), &json!({ "max_tokens": 40 }), true);
    let known = talk.ids();
    talk.messages.push(json!({ "role": "user", "content": "What is the capital of Spain?" }));
    let reply = talk.answer(Some(false), &json!({ "max_tokens": 40, "stop": [" of"] }), true);
    assert_eq!(reply.finish_reason, Some(FinishReason::Stop));
    assert!(reply.content.trim_end().ends_with("capital"), "{reply:?}");
    talk.messages.push(json!({ "role": "user", "content": "Why?" }));
    let request = talk.request(Some(false), &json!({ "max_tokens": 8 }));
    let answer = run(&mut talk.engine, request);
    let ids = talk.ids();
    assert!(ids.starts_with(&known));
    let text = talk.engine.loaded().unwrap().tokenizer.decode(&ids[..answer.usage.prompt_tokens as usize]);
    let end = format!(
        "{}<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n{CLOSED}",
        reply.content
    );
    assert!(text.ends_with(&end), "{text}");
}

/// A sampled token that was not read is part of the turn only as long as it is what comes next.
#[test]
fn another_token_in_place_of_the_sampled_one_ends_the_turn() {
    let mut talk = Talk::new("qwen35-q1_0");
    talk.ask("Hi", Some(true), &json!({ "max_tokens": 4, "ignore_stop": true }), true);
    talk.ask("Ho", Some(true), &json!({ "max_tokens": 4, "ignore_stop": true }), true);
    let ids = talk.ids();
    assert_eq!(ids.len(), talk.engine.ledger().unwrap().len() + 1);
    let mut other = ids.clone();
    *other.last_mut().unwrap() ^= 1;
    let request = serde_json::from_value(json!({ "ids": other, "max_tokens": 2 })).unwrap();
    assert_eq!(run(&mut talk.engine, request).usage.reused_tokens as usize, ids.len() - 1);
    let turns = talk.engine.parts_mut().unwrap().2.head().turns.clone();
    assert_eq!(turns.turns().len(), 1, "{turns:?}");
}
