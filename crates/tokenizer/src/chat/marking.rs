//! Keeping text that people and tools wrote from becoming control tokens.
//!
//! Before rendering, a marker (a noncharacter found nowhere else in the conversation) goes into every
//! place of the data where a control token could begin or end: between its first two and its last two
//! characters, also where the data breaks off after the first one and something else may follow.
//! After rendering, only unbroken control texts, which the template itself wrote, become control
//! tokens; then the markers are taken out and the rest is encoded as text.
//!
//! User-defined tokens such as `</think>` stay whole, so that the tests a template makes on the data
//! work as usual. They match as user-defined tokens, in the data of people too: they are text by
//! the vocabulary's own account.
//!
//! A template that writes both ends of a control text around a value, `'<|' ~ value ~ '|>'`, makes a
//! control token on purpose, and gets one.

use crate::added_tokens::AddedTokens;
use crate::error::TokenizerError;
use crate::tokenizer::{TokenType, Tokenizer};
use serde_json::{Map, Value};
use std::collections::HashSet;

/// Tools and arguments nested deeper than this are refused (the limit of `serde_json` when parsing).
const MAX_DEPTH: usize = 128;

/// Where control tokens can begin and end.
#[derive(Debug)]
pub(crate) struct ControlEdges {
    controls: Vec<Box<str>>,
    first_chars: HashSet<char>,
    first_pairs: HashSet<(char, char)>,
    last_pairs: HashSet<(char, char)>,
}

impl ControlEdges {
    pub fn new(added: &AddedTokens) -> Self {
        let mut edges = Self {
            controls: Vec::new(),
            first_chars: HashSet::new(),
            first_pairs: HashSet::new(),
            last_pairs: HashSet::new(),
        };
        for token in added.iter().filter(|token| token.token_type == TokenType::Control) {
            let (mut forwards, mut backwards) = (token.text.chars(), token.text.chars().rev());
            if let (Some(a), Some(b), Some(z), Some(y)) =
                (forwards.next(), forwards.next(), backwards.next(), backwards.next())
            {
                edges.first_chars.insert(a);
                edges.first_pairs.insert((a, b));
                edges.last_pairs.insert((y, z));
            }
            edges.controls.push(token.text.clone());
        }
        edges
    }

    /// Whether a marker belongs between `c` and `next` (`None` at the end of the data).
    ///
    /// Blanks count as an end because templates trim; a new beginning does because they split.
    fn separates(&self, c: char, next: Option<char>) -> bool {
        let begins = self.first_chars.contains(&c)
            && next.is_none_or(|next| {
                next.is_whitespace()
                    || self.first_chars.contains(&next)
                    || self.first_pairs.contains(&(c, next))
            });
        begins || next.is_some_and(|next| self.last_pairs.contains(&(c, next)))
    }

    /// Whether a user-defined text can be left whole: no control token contains its beginning, and it
    /// contains none.
    fn is_harmless(&self, added: &AddedTokens, text: &str) -> bool {
        // `controls` is sorted, so the first one not below `text` begins with it if any does.
        let at = self.controls.partition_point(|control| **control < *text);
        let extended = self.controls.get(at).is_some_and(|control| control.starts_with(text));
        !extended && added.find(text, 0, |t| t == TokenType::Control).is_none()
    }
}

/// A marker and where it goes.
pub(crate) struct Marking<'t> {
    tokenizer: &'t Tokenizer,
    edges: &'t ControlEdges,
    marker: char,
    /// A character that neither the data nor the template has, to stand for a text.
    pub stand_in: Option<char>,
}

impl<'t> Marking<'t> {
    /// Chooses a marker that occurs neither in `data` nor in `also`.
    ///
    /// # Errors
    /// No marker is free, or the data nests too deep.
    pub fn new(tokenizer: &'t Tokenizer, data: &[&Value], also: &str) -> Result<Self, TokenizerError> {
        let mut used = HashSet::new();
        let mut note = |text: &str| used.extend(text.chars().filter(|&c| is_noncharacter(c)));
        note(also);
        tokenizer.added().iter().for_each(|token| note(&token.text));
        for value in data {
            visit_strings(value, 0, &mut note)?;
        }
        let mut free = noncharacters().filter(|c| !used.contains(c));
        let marker = free.next().ok_or(TokenizerError::NoFreeMarker)?;
        Ok(Self { tokenizer, edges: tokenizer.control_edges(), marker, stand_in: free.next() })
    }

    /// The value with markers in all its strings and keys.
    pub fn mark_value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.mark(text)),
            Value::Array(items) => items.iter().map(|item| self.mark_value(item)).collect(),
            Value::Object(fields) => {
                let fields = fields.iter().map(|(key, value)| (self.mark(key), self.mark_value(value)));
                Value::Object(fields.collect::<Map<_, _>>())
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
        }
    }

    /// The text with markers.
    pub fn mark(&self, text: &str) -> String {
        let added = self.tokenizer.added();
        let mut marked = String::with_capacity(text.len() + 16);
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let whole = added
                .longest_at(rest.as_bytes(), |t| t == TokenType::UserDefined)
                .map(|token| &*token.text)
                .filter(|text| self.edges.is_harmless(added, text));
            let len = whole.map_or(c.len_utf8(), str::len);
            let (taken, tail) = rest.split_at_checked(len).unwrap_or((rest, ""));
            marked.push_str(taken);
            let last = taken.chars().next_back().unwrap_or(c);
            if self.edges.separates(last, tail.chars().next()) {
                marked.push(self.marker);
            }
            rest = tail;
        }
        marked
    }

    /// The rendered text without markers.
    pub fn unmark(&self, marked: &str) -> String {
        marked.replace(self.marker, "")
    }

    /// The ids of a rendered text. Unbroken control texts are the template's own.
    pub fn encode(&self, marked: &str) -> Vec<u32> {
        let added = self.tokenizer.added();
        let mut ids = Vec::with_capacity(marked.len() / 3);
        let mut segment_start = 0;
        let mut done = 0;
        while let Some(found) = added.find(marked, done, |_| true) {
            done = found.end;
            if self.tokenizer.token_type(found.id) == Some(TokenType::Control) {
                let segment = marked.get(segment_start..found.start).unwrap_or("");
                self.tokenizer.encode_onto(&self.unmark(segment), false, &mut ids);
                ids.push(found.id);
                segment_start = found.end;
            }
        }
        let segment = marked.get(segment_start..).unwrap_or("");
        self.tokenizer.encode_onto(&self.unmark(segment), false, &mut ids);
        ids
    }
}

fn visit_strings(value: &Value, depth: usize, visit: &mut impl FnMut(&str)) -> Result<(), TokenizerError> {
    if depth > MAX_DEPTH {
        return Err(TokenizerError::NestedTooDeep { limit: MAX_DEPTH });
    }
    match value {
        Value::String(text) => visit(text),
        Value::Array(items) => {
            for item in items {
                visit_strings(item, depth + 1, visit)?;
            }
        }
        Value::Object(fields) => {
            for (key, value) in fields {
                visit(key);
                visit_strings(value, depth + 1, visit)?;
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
    Ok(())
}

/// The 66 code points that Unicode promises never to assign.
fn noncharacters() -> impl Iterator<Item = char> {
    let plane_ends = (0..=0x10u32).flat_map(|plane| [plane << 16 | 0xFFFE, plane << 16 | 0xFFFF]);
    (0xFDD0..=0xFDEFu32).chain(plane_ends).filter_map(char::from_u32)
}

fn is_noncharacter(c: char) -> bool {
    matches!(u32::from(c), 0xFDD0..=0xFDEF) || u32::from(c) & 0xFFFE == 0xFFFE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noncharacters_are_recognised() {
        assert_eq!(noncharacters().count(), 66);
        assert!(noncharacters().all(is_noncharacter));
        assert!(!['a', '\u{FDCF}', '\u{FDF0}', '\u{FFFD}', '\u{10FFFD}'].into_iter().any(is_noncharacter));
    }
}
