//! Keeping the thoughts of past turns in the rendered conversation.
//!
//! A model has processed its own thoughts, and the empty thought block that a generation prompt
//! writes when thinking is off. If the next prompt drops them, it is no extension of what was
//! processed, and everything after the first dropped block has to be computed again. Newer templates
//! keep them when `preserve_thinking` is true. For templates that do not know this option the blocks
//! are put back here, after rendering, behind the header of the assistant turn they belong to.
//!
//! The header is learned from the template: what `add_generation_prompt` appends to a conversation,
//! up to `<think>`. It contains a control token, which no message can contain unbroken, so each of its
//! occurrences is an assistant turn. If their number is not the expected one, or the template's
//! generation prompt cannot be isolated, the rendered text stays as the template wrote it.

use crate::chat::jinja::Template;
use serde_json::{Value, json};

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// How a template begins an assistant turn, and what its generation prompts say about thinking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AssistantTurn {
    /// For example `<|im_start|>assistant` and a line feed.
    pub header: String,
    /// Generation prompts by `enable_thinking`: undefined, false, true. Each without the header.
    scaffolds: [String; 3],
    /// Whether `enable_thinking` changes more than the generation prompt.
    pub is_history_switched: bool,
}

impl AssistantTurn {
    /// Learns from a template; `None` if its generation prompt cannot be isolated.
    pub fn learn(template: &Template) -> Option<Self> {
        let messages = json!([{ "role": "user", "content": "x" }]);
        let render = |enable_thinking: Option<bool>, add_generation_prompt: bool| {
            let mut context = json!({
                "messages": messages,
                "add_generation_prompt": add_generation_prompt,
                "preserve_thinking": true,
                "has_thinking_tokens": true,
                "bos_token": "",
                "eos_token": "",
            });
            if let (Some(on), Some(fields)) = (enable_thinking, context.as_object_mut()) {
                fields.insert("enable_thinking".to_owned(), Value::Bool(on));
            }
            template.render(&context).ok()
        };
        let histories = [render(None, false)?, render(Some(false), false)?, render(Some(true), false)?];
        let [by_default, off, on] = &histories;
        let generation_prompt = |enable_thinking, history: &str| {
            render(enable_thinking, true)?.strip_prefix(history).map(str::to_owned)
        };
        let prompts = [
            generation_prompt(None, by_default)?,
            generation_prompt(Some(false), off)?,
            generation_prompt(Some(true), on)?,
        ];
        let mut headers = prompts.iter().map(|prompt| prompt.split(OPEN).next().unwrap_or(prompt));
        let header = headers.next()?.to_owned();
        if header.is_empty() || headers.any(|other| other != header) {
            return None;
        }
        let scaffolds = prompts.map(|prompt| prompt.strip_prefix(&header).unwrap_or_default().to_owned());
        Some(Self { header, scaffolds, is_history_switched: by_default != off || off != on })
    }

    /// The block in front of an answer as the model processed it, or `None` if there was none.
    ///
    /// A known thought was processed as a block. An empty one was if the template ever writes an empty
    /// block, or opens one whatever the setting; else thinking was most likely off, and nothing was
    /// written. Where
    /// the thought is not known, the turn is taken to have had the present setting: with thinking off
    /// its generation prompt wrote an empty block, with thinking on nothing can be said.
    pub fn block(&self, thought: Option<&str>, enable_thinking: Option<bool>) -> Option<String> {
        let [by_default, off, on] = &self.scaffolds;
        let present = match enable_thinking {
            None => by_default,
            Some(false) => off,
            Some(true) => on,
        };
        let thought = thought.map(|thought| thought.trim_matches('\n'));
        let was_processed = match thought {
            None => present.contains(CLOSE),
            Some("") => off.contains(OPEN) || self.scaffolds.iter().any(|s| s.contains(CLOSE)),
            Some(_) => true,
        };
        was_processed.then(|| format!("{OPEN}\n{}\n{CLOSE}\n\n", thought.unwrap_or_default()))
    }

    /// Puts `blocks` (one per assistant message, in order) behind the headers in `rendered`, where the
    /// template has not written one itself. `is_open` tells that a generation prompt follows.
    pub fn restore(&self, rendered: String, blocks: &[Option<String>], is_open: bool) -> String {
        let turns = rendered.match_indices(self.header.as_str()).count();
        if turns != blocks.len() + usize::from(is_open) {
            return rendered;
        }
        let mut restored = String::with_capacity(rendered.len());
        let mut rest = rendered.as_str();
        for block in blocks {
            let Some((before, after)) = rest.split_once(self.header.as_str()) else { break };
            restored.push_str(before);
            restored.push_str(&self.header);
            rest = after;
            if let Some(block) = block
                && !after.starts_with(OPEN)
            {
                restored.push_str(block);
                rest = after.trim_start_matches('\n');
            }
        }
        restored.push_str(rest);
        restored
    }
}

/// Whether text that continues `rendered` is inside a thought.
pub(crate) fn is_reasoning_open(rendered: &str) -> bool {
    rendered.trim_end().ends_with(OPEN)
}
