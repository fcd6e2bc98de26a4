//! Which replies a session holds, so that a conversation's history renders to the ids that were processed.
//!
//! A template that renders the history again may write other ids than the model read and wrote: the model
//! may have chosen another tokenisation of the same text, or written a tool call with other white space; the
//! template may trim; callers leave thoughts out. Where a request's messages begin with a conversation that
//! ended at some place of the session, the session's ids up to there stand for them, and only what follows
//! is rendered.
//!
//! Conversations are compared by digests, which chain: each is BLAKE3 of the one before and of the next
//! message. The tools come first. Ids of calls are left out, since whoever keeps the conversation makes
//! them up, and so is white space around a reply, which callers trim.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use signbit_tokenizer::{Content, Message, Role, ToolCall};

const TAG: &str = "signbit conversation 1";

/// The places of a session where a reply had ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Transcript {
    /// Ascending by `len`.
    turns: Vec<Turn>,
}

/// A reply that had ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    /// Digest of the conversation up to and including the reply, in hexadecimal. A thought is no part of
    /// it, since most callers leave it out of the history.
    pub conversation: String,
    /// BLAKE3 of the reply's thought, in hexadecimal, if there was one.
    pub reasoning: Option<String>,
    /// How many of the session's ids there were then: the ledger and the sampled token that had not been
    /// read, without a stop id.
    pub len: u32,
}

/// A conversation's digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conversation(blake3::Hash);

/// A conversation as far as a transcript knows it.
#[derive(Clone, Debug)]
pub(crate) struct Followed {
    /// After the last message.
    pub conversation: Conversation,
    /// The replies that the transcript has: index of the message, and where the turn ended. Ascending.
    pub replies: Vec<(usize, u32)>,
}

impl Transcript {
    /// Forgets replies that ended behind the first `len` ids.
    pub fn cut(&mut self, len: usize) {
        self.turns.retain(|turn| turn.len as usize <= len);
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.turns.clear();
    }

    /// The turns, ascending by length.
    pub fn turns(&self) -> &[Turn] {
        &self.turns
    }

    /// Adds a turn, if it is not there.
    pub(crate) fn insert(&mut self, turn: Turn) {
        let at = self.turns.partition_point(|other| other.len < turn.len);
        let mut same = self.turns.iter().skip(at).take_while(|other| other.len == turn.len);
        if !same.any(|other| *other == turn) {
            self.turns.insert(at, turn);
        }
    }

    /// Adds the turns of another transcript of the same ids.
    pub(crate) fn append(&mut self, other: Self) {
        other.turns.into_iter().for_each(|turn| self.insert(turn));
    }

    /// Follows `messages`, which come after `start`, through the turns.
    ///
    /// A reply whose turn is known may be given without its thought. Any other is told apart by the thought
    /// too, since that is what the template wrote for it.
    pub(crate) fn follow(&self, start: Conversation, messages: &[Message]) -> Followed {
        let (mut conversation, mut replies) = (start, Vec::new());
        for (index, message) in messages.iter().enumerate() {
            if let Some((next, turn)) = self.find(conversation, message) {
                conversation = next;
                replies.push((index, turn.len));
            } else {
                conversation = conversation.with(message);
            }
        }
        Followed { conversation, replies }
    }

    /// The turn that ends with `message` after `conversation`.
    fn find(&self, conversation: Conversation, message: &Message) -> Option<(Conversation, &Turn)> {
        if message.role != Role::Assistant {
            return None;
        }
        // A caller may have joined thought and answer, or a reply may have had the tag in its text.
        let readings = [(message.reasoning_content.clone(), message.text()), message.thought_and_answer()];
        readings.into_iter().find_map(|(thought, text)| {
            let next = conversation.with_reply(&text, &message.tool_calls);
            let digest = next.hex();
            let is_same = |turn: &&Turn| {
                let thought = thought.as_deref();
                turn.conversation == digest
                    && thought.is_none_or(|text| turn.reasoning == thought_digest(text))
            };
            self.turns.iter().rev().find(is_same).map(|turn| (next, turn))
        })
    }
}

impl Turn {
    /// A reply after `conversation`, given out as these texts and calls, that ended with the session's id
    /// number `len`.
    pub(crate) fn new(
        conversation: Conversation,
        reasoning: &str,
        content: &str,
        calls: &[ToolCall],
        len: u32,
    ) -> Self {
        let conversation = conversation.with_reply(content, calls).hex();
        Self { conversation, reasoning: thought_digest(reasoning), len }
    }
}

impl Conversation {
    /// A conversation before its first message. `thinking` is given where the template writes it into the
    /// history.
    pub fn new(tools: &[Value], thinking: Option<bool>) -> Self {
        let tools: Vec<Value> = tools.iter().map(canonical).collect();
        Self(blake3::hash(json!([TAG, tools, thinking]).to_string().as_bytes()))
    }

    /// The conversation with another message.
    fn with(self, message: &Message) -> Self {
        let text = message.text();
        let text = if message.role == Role::Assistant { text.trim() } else { &text };
        let calls: Vec<Value> = message.tool_calls.iter().map(call_value).collect();
        let fields =
            json!(
                [message.role, text, calls, message.name, message.tool_call_id, message.reasoning_content,]
            );
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.0.as_bytes()).update(fields.to_string().as_bytes());
        Self(hasher.finalize())
    }

    /// The conversation with a reply, whatever its thought.
    fn with_reply(self, text: &str, calls: &[ToolCall]) -> Self {
        self.with(&Message {
            content: Some(Content::Text(text.to_owned())),
            tool_calls: calls.to_vec(),
            ..Message::new(Role::Assistant, "")
        })
    }

    fn hex(self) -> String {
        self.0.to_hex().to_string()
    }
}

fn thought_digest(thought: &str) -> Option<String> {
    let thought = thought.trim();
    (!thought.is_empty()).then(|| blake3::hash(thought.as_bytes()).to_hex().to_string())
}

fn call_value(call: &ToolCall) -> Value {
    // Arguments in a string become an object.
    let call = ToolCall::new(call.function.name.as_str(), call.function.arguments.clone());
    json!([call.function.name, canonical(&call.function.arguments)])
}

/// The value with sorted keys, and integers without a fraction: JavaScript keeps neither as it was.
fn canonical(value: &Value) -> Value {
    /// From here on not every integer is an f64.
    const MAX_INTEGER: f64 = 9_007_199_254_740_992.0;
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().map(|(k, v)| (k.clone(), canonical(v))).collect();
            fields.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
            Value::Object(fields.into_iter().collect::<Map<_, _>>())
        }
        Value::Array(items) => items.iter().map(canonical).collect(),
        Value::Number(number) => match number.as_f64() {
            Some(float) if float.fract() == 0.0 && float.abs() < MAX_INTEGER => json!(float as i64),
            _ => value.clone(),
        },
        Value::Null | Value::Bool(_) | Value::String(_) => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(value: Value) -> Message {
        serde_json::from_value(value).unwrap()
    }

    fn user(text: &str) -> Message {
        Message::new(Role::User, text)
    }

    fn start() -> Conversation {
        Conversation::new(&[], None)
    }

    /// A transcript of one turn after the question "a", and whether it knows a reply.
    fn knows(reasoning: &str, content: &str, calls: &[ToolCall], reply: Value) -> bool {
        let asked = Transcript::default().follow(start(), &[user("a")]).conversation;
        let mut transcript = Transcript::default();
        transcript.insert(Turn::new(asked, reasoning, content, calls, 7));
        transcript.follow(start(), &[user("a"), message(reply)]).replies == [(1, 7)]
    }

    #[test]
    fn a_reply_is_known_in_the_forms_that_callers_give_it() {
        let call = ToolCall::new("f", json!({ "b": 1.0, "a": { "y": [1], "x": null } }));
        let written = r#"{"a":{"x":null,"y":[1]},"b":1}"#;
        let with = |arguments: Value, id: &str| {
            json!({ "role": "assistant", "content": null, "tool_calls": [
                { "id": id, "type": "function", "function": { "name": "f", "arguments": arguments } },
            ]})
        };
        assert!(knows("", "", std::slice::from_ref(&call), with(json!(written), "1")));
        assert!(knows("", "\n", &[call], with(json!({ "a": { "x": null, "y": [1] }, "b": 1 }), "2")));

        let plain = |content: &str| json!({ "role": "assistant", "content": content });
        let thought = |reasoning: &str, content: &str| json!({ "role": "assistant", "reasoning_content": reasoning, "content": content });
        for (reasoning, content, reply, expected) in [
            ("hm", "one ", plain("one"), true),
            ("hm", "one", thought("hm\n", "one"), true),
            ("hm", "one", thought("ha", "one"), false),
            ("hm", "one", thought("", "one"), false),
            ("", "one", thought("", "one"), true),
            ("", "one", thought("hm", "one"), false),
            ("hm", "one", plain("One"), false),
            ("hm", "one", plain("<think>\nhm\n</think>\n\none"), true),
            ("hm", "one", plain("<think>\nha\n</think>\n\none"), false),
            ("", "a</think>b", plain("a</think>b"), true),
            ("hm", "one", json!({ "role": "user", "content": "one" }), false),
            ("hm", "one", with(json!({}), "1"), false),
            ("", "", with(json!({}), "1"), false),
            ("", "on", json!({ "role": "assistant", "content": [{ "type": "text", "text": "on" }] }), true),
        ] {
            assert_eq!(knows(reasoning, content, &[], reply.clone()), expected, "{content} {reply}");
        }
    }

    /// What was said before counts, and so do the tools; only a known reply may come without its thought.
    #[test]
    fn a_turn_belongs_to_its_conversation() {
        let thinking = |thought: Option<&str>| Message {
            reasoning_content: thought.map(str::to_owned),
            ..Message::new(Role::Assistant, "given")
        };
        let given = [user("a"), thinking(Some("t")), user("b")];
        let mut transcript = Transcript::default();
        let asked = transcript.follow(start(), &given).conversation;
        transcript.insert(Turn::new(asked, "u", "first", &[], 5));
        let reply = |text: &str| Message::new(Role::Assistant, text);
        let second = [&given[..], &[reply("first"), user("c")]].concat();
        let asked = transcript.follow(start(), &second).conversation;
        transcript.insert(Turn::new(asked, "", "second", &[], 9));

        let follow = |messages: &[Message]| transcript.follow(start(), messages).replies;
        let whole = [&second[..], &[reply("second")]].concat();
        assert_eq!(follow(&whole), [(3, 5), (5, 9)]);
        let with = |index: usize, message: Message| {
            let mut messages = whole.clone();
            messages[index] = message;
            follow(&messages)
        };
        assert_eq!(
            with(3, Message { reasoning_content: Some("u".into()), ..reply("first") }),
            [(3, 5), (5, 9)]
        );
        assert_eq!(with(3, Message { reasoning_content: Some("v".into()), ..reply("first") }), []);
        assert_eq!(with(4, user("d")), [(3, 5)]);
        assert_eq!(with(4, user("c ")), [(3, 5)]);
        assert_eq!(with(4, Message { name: Some("n".into()), ..user("c") }), [(3, 5)]);
        assert_eq!(with(1, thinking(None)), []);
        assert_eq!(with(1, thinking(Some("v"))), []);
        for other in [Conversation::new(&[json!({ "name": "f" })], None), Conversation::new(&[], Some(true))]
        {
            assert!(transcript.follow(other, &whole).replies.is_empty());
        }

        let json = serde_json::to_string(&transcript).unwrap();
        assert_eq!(serde_json::from_str::<Transcript>(&json).unwrap(), transcript, "{json}");
        let mut cut = transcript.clone();
        cut.cut(8);
        assert_eq!(cut.turns(), &transcript.turns()[..1]);
        cut.insert(transcript.turns()[1].clone());
        cut.insert(transcript.turns()[0].clone());
        assert_eq!(cut, transcript);
    }
}
