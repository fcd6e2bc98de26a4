//! Rendering a conversation with the model's own template, to text and ids.

use crate::chat::jinja::Template;
use crate::chat::marking::Marking;
use crate::chat::message::{Message, Role};
use crate::chat::thoughts::{AssistantTurn, is_reasoning_open};
use crate::error::TokenizerError;
use crate::tokenizer::{TokenType, Tokenizer};
use serde_json::{Value, json};

const CHATML: &str = include_str!("chatml.jinja");

/// A model's chat template (`tokenizer.chat_template`), compiled.
#[derive(Debug)]
pub struct ChatTemplate {
    template: Template,
    source: String,
    assistant_turn: Option<AssistantTurn>,
}

/// What a template is asked for besides the messages.
#[derive(Debug, Clone, PartialEq)]
pub struct RenderOptions {
    /// Whether to open an assistant turn at the end. Default: yes.
    pub add_generation_prompt: bool,
    /// Thinking on or off; `None` leaves it to the template, whose default differs between models.
    pub enable_thinking: Option<bool>,
    /// Whether past assistant turns keep their thoughts, so that the rendered ids extend what the
    /// model has processed. Default: yes, also for templates that do not know the option.
    pub preserve_thinking: bool,
    /// Tool descriptions in the shape of the OpenAI chat API.
    pub tools: Vec<Value>,
}

impl Default for RenderOptions {
    fn default() -> Self {
        Self {
            add_generation_prompt: true,
            enable_thinking: None,
            preserve_thinking: true,
            tools: Vec::new(),
        }
    }
}

/// A rendered conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rendered {
    /// The text as the template wrote it.
    pub text: String,
    /// Its ids. Control tokens in it come from the template, never from a message.
    pub ids: Vec<u32>,
    /// Whether generated text continues inside a thought, that is, up to `</think>` it is reasoning.
    pub reasoning_open: bool,
}

impl ChatTemplate {
    /// Compiles Jinja source.
    ///
    /// # Errors
    /// The source is too long or is not valid Jinja.
    pub fn new(source: &str) -> Result<Self, TokenizerError> {
        let template = Template::new(source)?;
        let assistant_turn = AssistantTurn::learn(&template);
        Ok(Self { template, source: source.to_owned(), assistant_turn })
    }

    /// Plain ChatML, for a file without a template.
    ///
    /// # Errors
    /// None in practice: the source is fixed.
    pub fn chatml() -> Result<Self, TokenizerError> {
        Self::new(CHATML)
    }

    /// Renders a conversation.
    ///
    /// For text without control tokens the ids are those of encoding the rendered text as a whole.
    ///
    /// # Errors
    /// The template refuses the conversation ([`TokenizerError::TemplateRaised`]; Qwen3.5's does so if
    /// there is no user message), fails, or exceeds its budget of instructions, recursion or output.
    pub fn render(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<Rendered, TokenizerError> {
        let (marking, marked) = self.render_marked(tokenizer, messages, None, options)?;
        Ok(rendered(&marking, &marked, options))
    }

    /// What follows the text of the reply `messages[reply]` in the rendered conversation: the end of its turn,
    /// later messages, the generation prompt. Behind the ids that the model really wrote this makes a prompt
    /// that extends what it has processed, however the template would write the reply.
    ///
    /// `None` if that part cannot be told from the rest.
    ///
    /// # Errors
    /// As for [`ChatTemplate::render`]. A template that checks tool results against their calls may refuse,
    /// since it does not see the reply's own.
    pub fn render_after(
        &self,
        tokenizer: &Tokenizer,
        messages: &[Message],
        reply: usize,
        options: &RenderOptions,
    ) -> Result<Option<Rendered>, TokenizerError> {
        let (marking, marked) = self.render_marked(tokenizer, messages, Some(reply), options)?;
        let Some(stand_in) = marking.stand_in else { return Ok(None) };
        let mut parts = marked.split(stand_in);
        let (Some(_), Some(rest), None) = (parts.next(), parts.next(), parts.next()) else { return Ok(None) };
        Ok(Some(rendered(&marking, rest, options)))
    }

    /// Whether the rendering of past turns changes where thinking is switched on or off.
    pub fn writes_thinking_into_history(&self) -> bool {
        self.assistant_turn.as_ref().is_none_or(|turn| turn.is_history_switched)
    }

    /// Where in `ids` a turn begins that is not the model's: the places of the control token that the
    /// template begins a turn with, ascending, without 0. None if the template cannot be read so far.
    pub fn turn_starts(&self, tokenizer: &Tokenizer, ids: &[u32]) -> Vec<u32> {
        let Some(header) = self.assistant_turn.as_ref().map(|turn| turn.header.as_bytes()) else {
            return Vec::new();
        };
        let control = tokenizer.added().longest_at(header, |t| t == TokenType::Control);
        let Some(control) = control.map(|token| token.id) else { return Vec::new() };
        // Compared as bytes, since the end of the header may be one token with what follows it.
        let is_header = |ids: &[u32]| {
            let bytes = ids.iter().flat_map(|&id| tokenizer.token_bytes(id));
            bytes.take(header.len()).eq(header)
        };
        (0u32..)
            .zip(ids)
            .skip(1)
            .filter(|&(at, &id)| id == control && !is_header(ids.get(at as usize..).unwrap_or_default()))
            .map(|(at, _)| at)
            .collect()
    }

    /// The text that the template writes, with markers. In place of the reply at index `replaced` stands the
    /// stand-in, if there is one.
    fn render_marked<'t>(
        &self,
        tokenizer: &'t Tokenizer,
        messages: &[Message],
        replaced: Option<usize>,
        options: &RenderOptions,
    ) -> Result<(Marking<'t>, String), TokenizerError> {
        let mut messages_value: Value = messages.iter().map(Message::template_value).collect();
        let tools = Value::Array(options.tools.clone());
        let marking = Marking::new(tokenizer, &[&messages_value, &tools], &self.source)?;
        if let Some(message) = replaced.and_then(|index| messages_value.get_mut(index)) {
            *message = json!({ "role": Role::Assistant, "content": marking.stand_in });
        }

        let text_of = |id: Option<u32>| id.map(|id| tokenizer.decode(&[id])).unwrap_or_default();
        let mut context = json!({
            "messages": marking.mark_value(&messages_value),
            "add_generation_prompt": options.add_generation_prompt,
            "preserve_thinking": options.preserve_thinking,
            "has_thinking_tokens": tokenizer.id_of("</think>").is_some(),
            "bos_token": text_of(tokenizer.bos_id()),
            "eos_token": text_of(tokenizer.eos_id()),
        });
        if let Some(fields) = context.as_object_mut() {
            if !options.tools.is_empty() {
                fields.insert("tools".to_owned(), marking.mark_value(&tools));
            }
            if let Some(on) = options.enable_thinking {
                fields.insert("enable_thinking".to_owned(), Value::Bool(on));
            }
        }
        let mut marked = self.template.render(&context)?;
        if options.preserve_thinking {
            marked = self.restore_thoughts(tokenizer, marked, messages, options, &marking);
        }
        Ok((marking, marked))
    }

    fn restore_thoughts(
        &self,
        tokenizer: &Tokenizer,
        marked: String,
        messages: &[Message],
        options: &RenderOptions,
        marking: &Marking,
    ) -> String {
        let is_control = |token_type| token_type == TokenType::Control;
        let Some(turn) = self
            .assistant_turn
            .as_ref()
            .filter(|turn| tokenizer.added().find(&turn.header, 0, is_control).is_some())
        else {
            return marked;
        };
        let blocks: Vec<Option<String>> = messages
            .iter()
            .filter(|message| message.role == Role::Assistant)
            .map(|message| {
                let (thought, _) = message.thought_and_answer();
                turn.block(thought.map(|thought| marking.mark(&thought)).as_deref(), options.enable_thinking)
            })
            .collect();
        turn.restore(marked, &blocks, options.add_generation_prompt)
    }
}

fn rendered(marking: &Marking, marked: &str, options: &RenderOptions) -> Rendered {
    let text = marking.unmark(marked);
    let reasoning_open = options.add_generation_prompt && is_reasoning_open(&text);
    Rendered { ids: marking.encode(marked), text, reasoning_open }
}
