//! Tool calls in a finished answer: Qwen3's JSON form and Qwen3.5's XML-like form.

use crate::chat::{ToolCall, object_from_string};
use serde::Deserialize;
use serde_json::{Map, Value};

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// Separates an answer into its text and the tool calls in it.
///
/// `tools` are the descriptions given to the template; the XML-like form has untyped values, which
/// become what the tool's parameter schema declares, and stay strings where it declares nothing.
/// A block that is not a complete, well-formed call stays in the text.
pub fn parse_tool_calls(answer: &str, tools: &[Value]) -> (String, Vec<ToolCall>) {
    let mut content = String::new();
    let mut calls = Vec::new();
    let mut rest = answer;
    while let Some((before, after)) = rest.split_once(OPEN) {
        content.push_str(before);
        match json_call(after).or_else(|| xml_call(after, tools)) {
            Some((call, tail)) => {
                calls.push(call);
                rest = tail;
            }
            None => {
                content.push_str(OPEN);
                rest = after;
            }
        }
    }
    content.push_str(rest);
    if !calls.is_empty() {
        content = content.trim().to_owned();
    }
    (content, calls)
}

/// `{"name": ..., "arguments": {...}}` and the closing tag. The JSON parser finds the end, so that
/// tags inside strings do no harm.
fn json_call(text: &str) -> Option<(ToolCall, &str)> {
    #[derive(Deserialize)]
    struct Call {
        name: String,
        #[serde(default)]
        arguments: Value,
    }
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Call>();
    let call = values.next()?.ok()?;
    let tail = text.get(values.byte_offset()..)?.trim_start().strip_prefix(CLOSE)?;
    let arguments = object_from_string(call.arguments);
    arguments.is_object().then(|| (ToolCall::new(call.name, arguments), tail))
}

/// `<function=NAME>` with `<parameter=KEY>` elements, and the closing tag.
fn xml_call<'t>(text: &'t str, tools: &[Value]) -> Option<(ToolCall, &'t str)> {
    let (name, mut rest) = text.trim_start().strip_prefix("<function=")?.split_once('>')?;
    let properties = properties(tools, name);
    let mut arguments = Map::new();
    loop {
        rest = rest.trim_start();
        if let Some(tail) = rest.strip_prefix("</function>") {
            let tail = tail.trim_start().strip_prefix(CLOSE)?;
            return Some((ToolCall::new(name, Value::Object(arguments)), tail));
        }
        let (key, after_key) = rest.strip_prefix("<parameter=")?.split_once('>')?;
        let (value, tail) = parameter_value(after_key)?;
        let schema = properties.and_then(|properties| properties.get(key));
        arguments.insert(key.to_owned(), typed(value, schema));
        rest = tail;
    }
}

/// The value up to the first closing tag that something expected follows; a value may contain
/// `</parameter>` itself. One line feed on either side belongs to the tags.
fn parameter_value(text: &str) -> Option<(&str, &str)> {
    const END: &str = "</parameter>";
    let (value, tail) = text.match_indices(END).find_map(|(at, _)| {
        let (value, tail) = (text.get(..at)?, text.get(at + END.len()..)?);
        let next = tail.trim_start();
        (next.starts_with("<parameter=") || next.starts_with("</function>")).then_some((value, tail))
    })?;
    let value = value.strip_prefix('\n').unwrap_or(value);
    Some((value.strip_suffix('\n').unwrap_or(value), tail))
}

/// The parameter schemas of a tool, described as `{"function": {...}}` or directly.
fn properties<'v>(tools: &'v [Value], name: &str) -> Option<&'v Map<String, Value>> {
    tools
        .iter()
        .map(|tool| tool.get("function").unwrap_or(tool))
        .find(|function| function.get("name").and_then(Value::as_str) == Some(name))?
        .get("parameters")?
        .get("properties")?
        .as_object()
}

/// A raw value as its schema declares it.
fn typed(raw: &str, schema: Option<&Value>) -> Value {
    let types = schema.map(declared_types).unwrap_or_default();
    let text = || Value::String(raw.to_owned());
    if types.is_empty() || types.iter().all(|t| *t == "string") {
        return text();
    }
    // Templates write booleans and null the way Python prints them.
    let value = match raw.trim() {
        "True" => Value::Bool(true),
        "False" => Value::Bool(false),
        "None" => Value::Null,
        json => match serde_json::from_str(json) {
            Ok(value) => value,
            Err(_) => return text(),
        },
    };
    if types.iter().any(|t| has_type(&value, t)) { value } else { text() }
}

fn declared_types(schema: &Value) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(name)) => vec![name],
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).collect(),
        _ => ["anyOf", "oneOf"]
            .iter()
            .filter_map(|key| schema.get(key).and_then(Value::as_array))
            .flatten()
            .filter_map(|schema| schema.get("type").and_then(Value::as_str))
            .collect(),
    }
}

fn has_type(value: &Value, name: &str) -> bool {
    match name {
        "integer" => value.is_i64() || value.is_u64() || value.as_f64().is_some_and(|n| n.fract() == 0.0),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "object" => value.is_object(),
        "array" => value.is_array(),
        "null" => value.is_null(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn tools() -> Vec<Value> {
        vec![json!({ "type": "function", "function": { "name": "f", "parameters": {
            "type": "object",
            "properties": {
                "s": { "type": "string" },
                "i": { "type": "integer" },
                "n": { "type": "number" },
                "b": { "type": "boolean" },
                "o": { "type": "object" },
                "a": { "type": "array" },
                "maybe": { "type": ["string", "null"] },
                "either": { "anyOf": [{ "type": "integer" }, { "type": "boolean" }] },
                "untyped": {}
            }
        }}})]
    }

    fn xml(parameters: &[(&str, &str)]) -> String {
        let parameters: String = parameters
            .iter()
            .map(|(key, value)| format!("<parameter={key}>\n{value}\n</parameter>\n"))
            .collect();
        format!("<tool_call>\n<function=f>\n{parameters}</function>\n</tool_call>")
    }

    #[test]
    fn json_form() {
        let call = |name: &str, arguments| ToolCall::new(name, arguments);
        let cases = [
            (
                "I add.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>\n<tool_call>\n{\"name\": \"b\"}\n</tool_call>",
                "I add.",
                vec![call("add", json!({"a": 1})), call("b", json!({}))],
            ),
            (
                "<tool_call>{\"name\":\"f\",\"arguments\":{\"s\":\"</tool_call>\"}}</tool_call>",
                "",
                vec![call("f", json!({"s": "</tool_call>"}))],
            ),
            (
                "<tool_call>\n{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}\n</tool_call>",
                "",
                vec![call("f", json!({"a": 1}))],
            ),
        ];
        for (answer, content, calls) in cases {
            assert_eq!(parse_tool_calls(answer, &[]), (content.to_owned(), calls), "{answer}");
        }
    }

    #[test]
    fn xml_form_takes_types_from_the_schema() {
        let cases = [
            ("s", "12", json!("12")),
            ("s", "two\nlines", json!("two\nlines")),
            ("s", "\nx\n", json!("\nx\n")),
            ("s", "a</parameter>b", json!("a</parameter>b")),
            ("s", "</tool_call>", json!("</tool_call>")),
            ("s", "", json!("")),
            ("i", "12", json!(12)),
            ("i", "1.5", json!("1.5")),
            ("i", "twelve", json!("twelve")),
            ("n", "1.5", json!(1.5)),
            ("b", "True", json!(true)),
            ("b", "false", json!(false)),
            ("o", "{\"z\": 1, \"a\": [2]}", json!({"z": 1, "a": [2]})),
            ("a", "[1, \"x\"]", json!([1, "x"])),
            ("maybe", "None", json!(null)),
            ("maybe", "12", json!("12")),
            ("either", "7", json!(7)),
            ("untyped", "7", json!("7")),
            ("undeclared", "7", json!("7")),
        ];
        for (key, raw, value) in cases {
            let (content, calls) = parse_tool_calls(&format!("Sure.\n\n{}", xml(&[(key, raw)])), &tools());
            assert_eq!(content, "Sure.");
            assert_eq!(calls, [ToolCall::new("f", json!({ key: value }))], "{key} = {raw:?}");
        }
        let two = format!("{}\n{}", xml(&[("i", "1"), ("s", "x")]), xml(&[]));
        let (content, calls) = parse_tool_calls(&two, &tools());
        assert_eq!(content, "");
        assert_eq!(calls, [ToolCall::new("f", json!({"i": 1, "s": "x"})), ToolCall::new("f", json!({}))]);
    }

    #[test]
    fn incomplete_calls_stay_text() {
        let cases = [
            "no call ",
            "<tool_call>",
            "<tool_call>\n{\"name\": \"f\", \"arguments\": {",
            "<tool_call>\n{\"name\": \"f\", \"arguments\": [1]}\n</tool_call>",
            "<tool_call>\n{\"name\": \"f\"}",
            "<tool_call>\n{\"arguments\": {}}\n</tool_call>",
            "<tool_call>\n<function=f>\n<parameter=a>\n1\n</function>\n</tool_call>",
            "<tool_call>\n<function=f>\n</function>",
        ];
        for answer in cases {
            assert_eq!(parse_tool_calls(answer, &tools()), (answer.to_owned(), vec![]));
        }
    }
}
