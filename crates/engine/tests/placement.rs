//! Several conversations share the one resident session, and none pays for another.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test may fail")]

mod common;

use std::collections::HashMap;

use common::*;
use pollster::block_on;
use serde_json::{Value, json};
use signbit_engine::chat::ChatReuse;
use signbit_engine::engine::Engine;
use signbit_engine::placement::{Placement, SessionId};
use signbit_engine::snapshot::{CHUNK_BYTES, Manifest};

/// Does what a worker does: parks, brings and answers.
struct Desk {
    engine: Engine,
    parked: HashMap<String, (SessionId, Manifest, Vec<Vec<u8>>)>,
    n_fresh: u32,
}

#[derive(Debug)]
struct Answer {
    placement: Placement,
    reuse: ChatReuse,
    message: Value,
    ids: Vec<u32>,
}

impl Desk {
    fn new(name: &str) -> Self {
        let mut engine = load(cpu(), name);
        engine.set_time_budget(1e9);
        Self { engine, parked: HashMap::new(), n_fresh: 0 }
    }

    fn park(&mut self) {
        let session = self.engine.session_id().unwrap().clone();
        let mut manifest = self.engine.snapshot(CHUNK_BYTES).unwrap();
        let n = manifest.chunks.len();
        let chunks = (0..n).map(|i| block_on(self.engine.read_chunk(&mut manifest, i)).unwrap()).collect();
        let manifest = self.engine.complete_snapshot(manifest).unwrap();
        self.engine.know(session.clone(), &manifest).unwrap();
        self.parked.insert(session.id.clone(), (session, manifest, chunks));
    }

    fn bring(&mut self, id: &str) {
        let (_, manifest, chunks) = self.parked[id].clone();
        let mut restore = self.engine.begin_restore(manifest).unwrap();
        for chunk in &chunks {
            block_on(self.engine.restore_chunk(&mut restore, chunk)).unwrap();
        }
        self.engine.finish_restore(restore).unwrap();
    }

    fn ask(&mut self, session: Option<&str>, messages: &[Value]) -> Answer {
        self.n_fresh += 1;
        let request = json!({
            "session": session, "messages": messages, "max_tokens": 24, "enable_thinking": false,
        });
        let request: signbit_engine::chat::ChatRequest = serde_json::from_value(request).unwrap();
        let placement = self.engine.place(&request, &format!("fresh {}", self.n_fresh)).unwrap();
        if placement.park {
            self.park();
        }
        if let Some(id) = &placement.bring {
            self.bring(id);
        }
        // What is resident is not to be had from elsewhere.
        self.engine.forget(&placement.session.id);
        let mut chat = self.engine.start_chat(request).unwrap();
        chat.run_in(placement.session.clone());
        let (mut content, mut ids) = (String::new(), Vec::new());
        loop {
            let delta = block_on(self.engine.step_chat(&mut chat)).unwrap();
            content.push_str(&delta.content);
            ids.extend(&delta.ids);
            if delta.finish_reason.is_some() {
                let message = json!({ "role": "assistant", "content": content });
                return Answer { placement, reuse: delta.reuse, message, ids };
            }
        }
    }
}

fn user(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

fn system(text: &str) -> Value {
    json!({ "role": "system", "content": text })
}

/// A conversation that is asked on.
struct Talk {
    name: Option<&'static str>,
    messages: Vec<Value>,
    /// Tokens that the session had after the last answer.
    n_tokens: u32,
}

impl Talk {
    fn ask(&mut self, desk: &mut Desk, text: &str) -> Answer {
        self.messages.push(user(text));
        let answer = desk.ask(self.name, &self.messages);
        self.messages.push(answer.message.clone());
        let reuse = &answer.reuse;
        let is_new = self.n_tokens == 0;
        assert!(is_new || reuse.reused == self.n_tokens, "{text}: only what is new is read: {reuse:?}");
        // The last token was sampled and not read.
        self.n_tokens = desk.engine.ledger().unwrap().len() as u32;
        answer
    }
}

/// A hybrid and a dense model.
const MODELS: [&str; 2] = ["tiny-geo", "qwen3-q1_0"];

#[test]
fn conversations_take_turns_and_lose_nothing() {
    for name in MODELS {
        for names in [[Some("a"), Some("b")], [None, None], [Some("a"), None]] {
            let mut desk = Desk::new(name);
            let mut talks = names.map(|name| Talk { name, messages: Vec::new(), n_tokens: 0 });
            talks[0].messages.push(system("You know all about the countries of Africa and their rivers."));
            talks[1].messages.push(system("Answer in one word, whatever the question, and never with two."));
            for question in ["What is the capital of Kenya?", "And its currency?", "Where is Egypt?"] {
                for talk in &mut talks {
                    talk.ask(&mut desk, question);
                }
            }
        }
    }
}

/// A title for a chat, which begins with the chat, and something else altogether, in the middle of it.
#[test]
fn side_requests_cost_a_conversation_nothing() {
    for (model, name) in MODELS.into_iter().flat_map(|model| [(model, Some("chat")), (model, None)]) {
        let mut desk = Desk::new(model);
        let mut talk = Talk { name, messages: Vec::new(), n_tokens: 0 };
        talk.messages.push(system("You are a guide who answers questions about countries."));
        talk.ask(&mut desk, "What is the capital of Peru?");
        let title = [&talk.messages[..], &[user("Give this conversation a title of three words.")]].concat();
        let answer = desk.ask(None, &title);
        assert_eq!(answer.reuse.reused, talk.n_tokens, "the title goes on from the conversation");
        desk.ask(None, &[user("Which is larger, 7 or 12? It has nothing to do with countries.")]);
        if name.is_none() {
            // The title took the place of what would have followed, at the cost of its own tokens at most.
            talk.messages.push(user("And of Chile?"));
            let answer = desk.ask(None, &talk.messages);
            let lost = talk.n_tokens.saturating_sub(answer.reuse.reused);
            assert!(lost <= 40, "{:?}", answer.reuse);
        } else {
            talk.ask(&mut desk, "And of Chile?");
            talk.ask(&mut desk, "And of Egypt?");
        }
    }
}

/// A second conversation with the same system turn begins with the first one's checkpoint, and an edit of the
/// last question or a second try at the answer stay where they are.
#[test]
fn conversations_that_begin_alike_share_their_beginning() {
    for model in MODELS {
        for name in [None, Some("second")] {
            let mut desk = Desk::new(model);
            let long = system(&"You answer questions about the capitals of countries. ".repeat(12));
            let mut first = Talk { name: None, messages: vec![long.clone()], n_tokens: 0 };
            first.ask(&mut desk, "What is the capital of Peru?");
            first.ask(&mut desk, "And of Japan?");
            let options = signbit_tokenizer::RenderOptions::default();
            let system_turn: Vec<_> = serde_json::from_value(json!([long, user("x")])).unwrap();
            let rendered = desk.engine.render(&system_turn, &options).unwrap().ids;
            let loaded = desk.engine.loaded().unwrap();
            let system_end = loaded.template.turn_starts(&loaded.tokenizer, &rendered)[0];
            let second = desk.ask(name, &[long, user("Where is Kenya?")]);
            assert!(second.reuse.reused >= system_end, "{model}: {:?}", second.reuse);
            assert!(second.placement.park && second.placement.session.id != "fresh 1");
            // The first goes on as if there had been no second.
            let answer = first.ask(&mut desk, "And of Brazil?");
            assert_eq!(answer.placement.session.id, "fresh 1");
            // Another try at the last answer, and another last question, stay in the session.
            let n_parked = desk.parked.len();
            first.messages.pop();
            let again = desk.ask(None, &first.messages);
            assert_eq!(again.ids, answer.ids, "{model}");
            assert!(again.reuse.prefilled <= 60, "{model}: {:?}", again.reuse);
            first.messages.pop();
            first.messages.push(user("And of Italy?"));
            let edited = desk.ask(None, &first.messages);
            assert!(edited.reuse.prefilled <= 60, "{model}: {:?}", edited.reuse);
            assert_eq!(edited.placement.session.id, "fresh 1");
            assert_eq!(desk.parked.len(), n_parked);
        }
    }
}

/// Where the two differ is told, with the tokens around it.
#[test]
fn the_report_says_where_a_prompt_left_the_session() {
    let mut desk = Desk::new("qwen3-q1_0");
    let first = desk.ask(None, &[user("What is the capital of Peru?")]);
    assert_eq!((first.reuse.committed, first.reuse.reused), (0, 0));
    assert!(first.reuse.divergence.is_none() && first.reuse.reason.is_none());
    let second = desk.ask(None, &[user("What is the capital of Japan?")]);
    let reuse = second.reuse;
    let divergence = reuse.divergence.unwrap();
    assert_eq!(divergence.at, reuse.reused, "a dense model is cut back to where they differ");
    assert_eq!(reuse.prompt, reuse.reused + reuse.prefilled);
    for excerpt in [&divergence.before, &divergence.committed, &divergence.prompt] {
        assert_eq!(excerpt.ids.len(), 6);
        let loaded = desk.engine.loaded().unwrap();
        assert_eq!(loaded.tokenizer.decode(&excerpt.ids), excerpt.text);
    }
    let texts =
        |excerpt: &signbit_engine::chat::Excerpt| format!("{}{}", divergence.before.text, excerpt.text);
    assert!(texts(&divergence.committed).contains(" of P"), "{divergence:?}");
    assert!(texts(&divergence.prompt).contains(" of J"), "{divergence:?}");
}

/// A request that is given up before its first step has done nothing, to nobody's session.
#[test]
fn a_request_that_never_began_leaves_the_session_its_name() {
    for model in MODELS {
        let mut desk = Desk::new(model);
        let mut talk = Talk { name: Some("a"), messages: Vec::new(), n_tokens: 0 };
        talk.ask(&mut desk, "What is the capital of Peru?");
        let request = json!({ "session": "b", "messages": [user("Where is Kenya, and why?")] });
        let request: signbit_engine::chat::ChatRequest = serde_json::from_value(request).unwrap();
        let placement = desk.engine.place(&request, "fresh").unwrap();
        assert!(placement.park);
        let mut chat = desk.engine.start_chat(request).unwrap();
        chat.run_in(placement.session);
        desk.engine.end_chat(chat);
        assert_eq!(desk.engine.session_id().unwrap().id, "a");
        talk.ask(&mut desk, "And of Japan?");
    }
}

/// A restore that something else came between does not pass for a session.
#[test]
fn a_restore_ends_when_another_request_begins() {
    let mut desk = Desk::new("qwen3-q1_0");
    let mut talk = Talk { name: Some("a"), messages: Vec::new(), n_tokens: 0 };
    talk.ask(&mut desk, "What is the capital of Peru?");
    desk.park();
    let (_, manifest, chunks) = desk.parked["a"].clone();
    let mut restore = desk.engine.begin_restore(manifest).unwrap();
    block_on(desk.engine.restore_chunk(&mut restore, &chunks[0])).unwrap();
    desk.ask(None, &[user("Something else.")]);
    assert_eq!(
        block_on(desk.engine.restore_chunk(&mut restore, &chunks[0])).unwrap_err().code(),
        "invalid_request"
    );
    assert_eq!(desk.engine.finish_restore(restore).unwrap_err().code(), "invalid_request");
    talk.ask(&mut desk, "And of Japan?");
}
