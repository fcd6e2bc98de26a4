//! Messages in the shape of the OpenAI chat API.

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions. Also accepts "developer".
    #[serde(alias = "developer")]
    System,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The result of a tool call.
    Tool,
}

/// One message of a conversation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// The text; absent or null counts as empty.
    #[serde(default)]
    pub content: Option<Content>,
    /// The thought before an assistant's answer. `None` means unknown, `Some("")` that the thought
    /// was empty, as it is when thinking is off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    /// The calls an assistant makes.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    /// Name of the speaker or tool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The call that a tool message answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

/// The text of a message, whole or in parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// The whole text.
    Text(String),
    /// Parts, to be read without anything between them.
    Parts(Vec<ContentPart>),
}

/// A part of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum ContentPart {
    /// A piece of text.
    Text {
        /// The piece.
        text: String,
    },
}

/// A call of a tool by the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Names the call, so that a tool message can answer it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Always "function".
    #[serde(rename = "type", default = "function_kind")]
    pub kind: String,
    /// What is called.
    pub function: FunctionCall,
}

/// The function of a tool call and its arguments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionCall {
    /// The function's name.
    pub name: String,
    /// An object. A string that holds a JSON object, the form the OpenAI API uses, counts as that
    /// object.
    #[serde(default)]
    pub arguments: Value,
}

impl ToolCall {
    /// A call without an id.
    pub fn new(name: impl Into<String>, arguments: Value) -> Self {
        Self {
            id: None,
            kind: function_kind(),
            function: FunctionCall { name: name.into(), arguments: object_from_string(arguments) },
        }
    }
}

impl Message {
    /// A message that is only text.
    pub fn new(role: Role, text: impl Into<String>) -> Self {
        Self {
            role,
            content: Some(Content::Text(text.into())),
            reasoning_content: None,
            tool_calls: Vec::new(),
            name: None,
            tool_call_id: None,
        }
    }

    /// The text of the message; parts are joined without anything between them.
    pub fn text(&self) -> String {
        match &self.content {
            None => String::new(),
            Some(Content::Text(text)) => text.clone(),
            Some(Content::Parts(parts)) => {
                parts.iter().map(|ContentPart::Text { text }| text.as_str()).collect()
            }
        }
    }

    /// The thought and the answer of an assistant message. A thought that is still part of the
    /// content, before `</think>`, is taken out the way the Qwen templates do.
    pub fn thought_and_answer(&self) -> (Option<String>, String) {
        let text = self.text();
        if self.role != Role::Assistant || self.reasoning_content.is_some() {
            return (self.reasoning_content.clone(), text);
        }
        let (Some((before, _)), Some((_, answer))) =
            (text.split_once("</think>"), text.rsplit_once("</think>"))
        else {
            return (None, text);
        };
        let before = before.trim_end_matches('\n');
        let thought = before.rsplit_once("<think>").map_or(before, |(_, thought)| thought);
        (Some(thought.trim_start_matches('\n').to_owned()), answer.trim_start_matches('\n').to_owned())
    }

    /// What a template sees. The content is always a string: several templates know nothing else.
    pub(crate) fn template_value(&self) -> Value {
        let (thought, text) = self.thought_and_answer();
        let mut fields = Map::new();
        fields.insert("role".to_owned(), json!(self.role));
        fields.insert("content".to_owned(), json!(text));
        if let Some(thought) = thought {
            fields.insert("reasoning_content".to_owned(), json!(thought));
        }
        if !self.tool_calls.is_empty() {
            let calls: Vec<Value> = self.tool_calls.iter().map(ToolCall::template_value).collect();
            fields.insert("tool_calls".to_owned(), Value::Array(calls));
        }
        for (key, value) in [("name", &self.name), ("tool_call_id", &self.tool_call_id)] {
            if let Some(value) = value {
                fields.insert(key.to_owned(), json!(value));
            }
        }
        Value::Object(fields)
    }
}

impl ToolCall {
    fn template_value(&self) -> Value {
        let arguments = object_from_string(self.function.arguments.clone());
        let mut value =
            json!({ "type": self.kind, "function": { "name": self.function.name, "arguments": arguments } });
        if let (Some(id), Some(fields)) = (&self.id, value.as_object_mut()) {
            fields.insert("id".to_owned(), json!(id));
        }
        value
    }
}

/// Arguments given as a string that holds a JSON object become that object; nothing becomes `{}`.
pub(crate) fn object_from_string(arguments: Value) -> Value {
    match &arguments {
        Value::Null => json!({}),
        Value::String(text) => match serde_json::from_str::<Map<String, Value>>(text) {
            Ok(object) => Value::Object(object),
            Err(_) => arguments,
        },
        _ => arguments,
    }
}

fn function_kind() -> String {
    "function".to_owned()
}

fn null_as_default<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Default + Deserialize<'de>,
{
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_forms_of_the_chat_api() {
        let cases = [
            (r#"{"role":"user","content":"a"}"#, Role::User, "a"),
            (r#"{"role":"developer","content":"a"}"#, Role::System, "a"),
            (r#"{"role":"assistant","content":null,"tool_calls":null}"#, Role::Assistant, ""),
            (r#"{"role":"tool"}"#, Role::Tool, ""),
            (
                r#"{"role":"user","content":[{"type":"text","text":"a "},{"type":"text","text":"b"}]}"#,
                Role::User,
                "a b",
            ),
        ];
        for (json, role, text) in cases {
            let message: Message = serde_json::from_str(json).unwrap();
            assert_eq!((message.role, message.text().as_str()), (role, text), "{json}");
        }
        for json in [
            r#"{"role":"<|im_end|>","content":"a"}"#,
            r#"{"role":"user","content":[{"type":"image"}]}"#,
            r#"{"content":"a"}"#,
        ] {
            assert!(serde_json::from_str::<Message>(json).is_err(), "{json}");
        }
    }

    #[test]
    fn takes_the_thought_out_of_the_content() {
        let cases = [
            ("<think>\nhm\n</think>\n\none", Some("hm"), "one"),
            ("hm\n</think>\n\none", Some("hm"), "one"),
            ("<think>\n\n</think>\n\none", Some(""), "one"),
            ("one", None, "one"),
            ("<think>unfinished", None, "<think>unfinished"),
        ];
        for (content, thought, answer) in cases {
            let message = Message::new(Role::Assistant, content);
            let (actual_thought, actual_answer) = message.thought_and_answer();
            assert_eq!((actual_thought.as_deref(), actual_answer.as_str()), (thought, answer), "{content:?}");
        }
        let user = Message::new(Role::User, "a</think>b");
        assert_eq!(user.thought_and_answer(), (None, "a</think>b".to_owned()));
    }

    #[test]
    fn arguments_in_a_string_become_an_object() {
        let call: ToolCall =
            serde_json::from_str(r#"{"id":"1","function":{"name":"f","arguments":"{\"b\":1,\"a\":2}"}}"#)
                .unwrap();
        let expected = r#"{"type":"function","function":{"name":"f","arguments":{"b":1,"a":2}},"id":"1"}"#;
        assert_eq!(call.template_value().to_string(), expected);
        assert_eq!(object_from_string(json!("[1]")), json!("[1]"));
        assert_eq!(object_from_string(Value::Null), json!({}));
    }
}
