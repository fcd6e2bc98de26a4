//! Generation in text: a conversation in, pieces of an answer out.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use signbit_tokenizer::{
    Channel, Detokenizer, Message, RenderOptions, Rendered, Role, ThinkFilter, TokenType, Tokenizer,
    ToolCall, parse_tool_calls,
};

use crate::engine::{ContextEnd, Engine, FinishReason, Generation, TokenRequest};
use crate::error::EngineError;
use crate::loader::LoadedModel;
use crate::placement::SessionId;
use crate::reuse::Reuse;
use crate::sampler::Sampling;
use crate::session::{Head, Obstacle, TokenLogprobs};
use crate::transcript::{Conversation, Transcript, Turn};

/// What to generate. Exactly one of `messages`, `prompt` and `ids` is given.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct ChatRequest {
    /// The name of the conversation; see [`crate::placement`].
    pub session: Option<String>,
    /// A conversation, rendered with the model's template.
    pub messages: Option<Vec<Message>>,
    /// Plain text to go on from, without a template.
    pub prompt: Option<String>,
    /// Token ids to go on from.
    pub ids: Option<Vec<u32>>,
    /// Ids of the reply that there are already, as an earlier generation gave them: the reply goes on
    /// behind them, and nothing of them is given again.
    pub generated: Vec<u32>,
    /// Tool declarations, in the shape of the OpenAI API.
    pub tools: Vec<serde_json::Value>,
    /// Thinking on or off; the template's own default if absent.
    pub enable_thinking: Option<bool>,
    /// Close the thought after this many tokens, so that an answer comes.
    pub max_reasoning_tokens: Option<u32>,
    /// The most tokens to generate.
    pub max_tokens: Option<u32>,
    /// Texts that end the reply; they are not part of it.
    pub stop: Vec<String>,
    /// Go on past the model's own end of turn.
    pub ignore_stop: bool,
    /// See [`Sampling`].
    pub temperature: Option<f32>,
    /// See [`Sampling`].
    pub top_k: Option<u32>,
    /// See [`Sampling`].
    pub top_p: Option<f32>,
    /// See [`Sampling`].
    pub min_p: Option<f32>,
    /// See [`Sampling`].
    pub top_n_sigma: Option<f32>,
    /// See [`Sampling`].
    pub repetition_penalty: Option<f32>,
    /// See [`Sampling`].
    pub presence_penalty: Option<f32>,
    /// See [`Sampling`].
    pub frequency_penalty: Option<f32>,
    /// See [`Sampling`].
    pub logit_bias: BTreeMap<u32, f32>,
    /// See [`Sampling`].
    pub dry_multiplier: Option<f32>,
    /// See [`Sampling`].
    pub dry_base: Option<f32>,
    /// See [`Sampling`].
    pub dry_allowed_length: Option<u32>,
    /// See [`Sampling`].
    pub dry_penalty_last_n: Option<i32>,
    /// DRY sees no repetition across a token that has one of these texts in it.
    pub dry_sequence_breakers: Option<Vec<String>>,
    /// See [`Sampling`].
    pub seed: Option<u64>,
    /// Give the log-probability of each token of the answer.
    pub logprobs: bool,
    /// Give those of so many of the most likely tokens as well.
    pub top_logprobs: Option<u32>,
    /// What happens where the context is full.
    pub context_end: ContextEndName,
    /// With a rolling window, what stays at the start; by default the system turn.
    pub pin_tokens: Option<Pin>,
}

/// [`ContextEnd`] in a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContextEndName {
    /// A longer prompt is refused, and a reply ends.
    #[default]
    Stop,
    /// The oldest tokens are dropped from attention.
    Roll,
}

/// What stays at the start of a rolling window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Pin {
    /// So many tokens.
    Tokens(u32),
    /// A part by its name.
    Part(PinnedPart),
}

/// A part of a conversation that can stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PinnedPart {
    /// The system turn, if the conversation has one.
    System,
}

/// llama.cpp's.
const DRY_SEQUENCE_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];

impl ChatRequest {
    fn sampling(&self, tokenizer: &Tokenizer) -> Sampling {
        let default = Sampling::default();
        let mut sampling = Sampling {
            temperature: self.temperature.unwrap_or(default.temperature),
            top_k: self.top_k.unwrap_or(default.top_k),
            top_p: self.top_p.unwrap_or(default.top_p),
            min_p: self.min_p.unwrap_or(default.min_p),
            presence_penalty: self.presence_penalty.unwrap_or(default.presence_penalty),
            frequency_penalty: self.frequency_penalty.unwrap_or(default.frequency_penalty),
            top_n_sigma: self.top_n_sigma.unwrap_or(default.top_n_sigma),
            repetition_penalty: self.repetition_penalty.unwrap_or(default.repetition_penalty),
            logit_bias: self.logit_bias.clone(),
            dry_multiplier: self.dry_multiplier.unwrap_or(default.dry_multiplier),
            dry_base: self.dry_base.unwrap_or(default.dry_base),
            dry_allowed_length: self.dry_allowed_length.unwrap_or(default.dry_allowed_length),
            dry_penalty_last_n: self.dry_penalty_last_n.unwrap_or(default.dry_penalty_last_n),
            dry_breakers: Vec::new(),
            seed: self.seed.unwrap_or(default.seed),
        };
        if sampling.has_dry() {
            let default = || DRY_SEQUENCE_BREAKERS.map(str::to_owned).to_vec();
            let texts = self.dry_sequence_breakers.clone().unwrap_or_else(default);
            let has = |id: u32, text: &String| {
                let bytes = tokenizer.token_bytes(id);
                !text.is_empty() && bytes.windows(text.len()).any(|part| part == text.as_bytes())
            };
            let ids = 0..tokenizer.vocab_size() as u32;
            sampling.dry_breakers = ids.filter(|&id| texts.iter().any(|text| has(id, text))).collect();
        }
        sampling
    }

    /// How many of the most likely tokens to give the log-probabilities of, besides that of the token itself.
    fn logprobs(&self) -> Result<Option<u32>, EngineError> {
        if self.top_logprobs.is_some_and(|n| n > 0) && !self.logprobs {
            let reason = "top_logprobs is given without logprobs; set logprobs to true as well".to_owned();
            return Err(EngineError::InvalidRequest { reason });
        }
        Ok(self.logprobs.then(|| self.top_logprobs.unwrap_or(0)))
    }
}

/// A token with its log-probability in the model's own distribution, in the shape of the OpenAI API.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TopLogprob {
    /// Its text; bytes that are no whole character are replaced.
    pub token: String,
    /// The natural logarithm of its probability.
    pub logprob: f32,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// A token of the answer with its log-probability and those of the most likely ones.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChatLogprob {
    /// The token.
    #[serde(flatten)]
    pub token: TopLogprob,
    /// The most likely tokens, as many as were asked for.
    pub top_logprobs: Vec<TopLogprob>,
}

impl TopLogprob {
    fn new(tokenizer: &Tokenizer, id: u32, logprob: f32) -> Self {
        Self { token: tokenizer.decode(&[id]), logprob, bytes: tokenizer.token_bytes(id).to_vec() }
    }
}

impl ChatLogprob {
    fn new(tokenizer: &Tokenizer, found: &TokenLogprobs) -> Self {
        let top = found.top.iter().map(|&(id, logprob)| TopLogprob::new(tokenizer, id, logprob));
        Self { token: TopLogprob::new(tokenizer, found.id, found.logprob), top_logprobs: top.collect() }
    }
}

/// Tokens that a generation took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens generated, those that closed a thought included.
    pub completion_tokens: u32,
    /// Generated tokens that belong to a thought.
    pub reasoning_tokens: u32,
    /// Prompt tokens that the session already held.
    pub reused_tokens: u32,
}

/// What one slice of work brought.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ChatDelta {
    /// Prompt tokens read so far.
    pub prefilled: u32,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// New text of the answer.
    pub content: String,
    /// New text of the thought.
    pub reasoning: String,
    /// New ids, a stop id included.
    pub ids: Vec<u32>,
    /// Log-probabilities at the new tokens of the answer, if they were asked for.
    pub logprobs: Vec<ChatLogprob>,
    /// Set by the last delta.
    pub finish_reason: Option<FinishReason>,
    /// Calls found in the answer, in the last delta.
    pub tool_calls: Vec<ToolCall>,
    /// Tokens so far.
    pub usage: Usage,
    /// What of the prompt the session held already.
    pub reuse: ChatReuse,
}

/// [`Reuse`] with texts.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ChatReuse {
    /// See [`Reuse::committed`].
    pub committed: u32,
    /// See [`Reuse::prompt`].
    pub prompt: u32,
    /// See [`Reuse::reused`].
    pub reused: u32,
    /// See [`Reuse::prefilled`].
    pub prefilled: u32,
    /// See [`Reuse::reason`].
    pub reason: Option<Obstacle>,
    /// See [`Reuse::divergence`].
    pub divergence: Option<ChatDivergence>,
    /// Tokens of the conversation that attention no longer sees, those dropped by this reply included.
    pub dropped: u32,
}

/// The first token that differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ChatDivergence {
    /// Its index.
    pub at: u32,
    /// What comes before it in both.
    pub before: Excerpt,
    /// What follows in the session.
    pub committed: Excerpt,
    /// What follows in the prompt.
    pub prompt: Excerpt,
}

/// A few tokens.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Excerpt {
    /// Their ids.
    pub ids: Vec<u32>,
    /// Their text.
    pub text: String,
}

impl ChatReuse {
    fn new(tokenizer: &Tokenizer, reuse: &Reuse) -> Self {
        let excerpt = |ids: &[u32]| Excerpt { ids: ids.to_vec(), text: tokenizer.decode(ids) };
        Self {
            committed: reuse.committed,
            prompt: reuse.prompt,
            reused: reuse.reused,
            prefilled: reuse.prefilled,
            reason: reuse.reason,
            divergence: reuse.divergence.as_ref().map(|divergence| ChatDivergence {
                at: divergence.at,
                before: excerpt(&divergence.before),
                committed: excerpt(&divergence.committed),
                prompt: excerpt(&divergence.prompt),
            }),
            dropped: reuse.dropped,
        }
    }
}

/// What the model is to go on from.
#[derive(Clone, Debug)]
pub struct Prompt {
    /// All of it.
    pub ids: Vec<u32>,
    /// Whether generated text continues inside a thought.
    pub reasoning_open: bool,
    /// The turns that `ids` begins with.
    turns: Transcript,
    /// The digest of the conversation, if it is one.
    conversation: Option<Conversation>,
}

/// A reply under way. [`Engine::end_chat`] abandons it at any time; dropping it leaves the engine usable too.
#[derive(Debug)]
pub struct ChatGeneration {
    generation: Generation,
    detokenizer: Detokenizer,
    thoughts: ThinkFilter,
    answer: AnswerFilter,
    tools: Vec<serde_json::Value>,
    stop_ids: Vec<u32>,
    max_reasoning_tokens: Option<u32>,
    usage: Usage,
    conversation: Option<Conversation>,
    /// The turns that the prompt begins with, until it has been read.
    known: Transcript,
    reuse: ChatReuse,
    /// What has been given out so far.
    given: Given,
    /// The ends of the last steps.
    marks: VecDeque<Mark>,
}

/// A reply as the caller has it.
#[derive(Debug, Default)]
struct Given {
    content: String,
    reasoning: String,
    tool_calls: Vec<ToolCall>,
}

impl Given {
    fn add(&mut self, delta: &ChatDelta) {
        self.content.push_str(&delta.content);
        self.reasoning.push_str(&delta.reasoning);
        self.tool_calls.extend_from_slice(&delta.tool_calls);
    }
}

/// A place where a reply could have ended: what had been given out was the text of all ids.
#[derive(Clone, Copy, Debug)]
struct Mark {
    /// Of the session's ids.
    len: usize,
    content_bytes: usize,
    reasoning_bytes: usize,
}

/// Steps whose text a caller may not have taken any more when it abandoned a reply: one that was under way,
/// and some that were on the way to it.
const MAX_MARKS: usize = 4;

/// What a template writes between a thought and the answer.
const CLOSE_THOUGHT: &str = "\n</think>\n\n";

impl Engine {
    /// Renders a conversation with the model's template.
    pub fn render(&self, messages: &[Message], options: &RenderOptions) -> Result<Rendered, EngineError> {
        let loaded = self.loaded()?;
        Ok(loaded.template.render(&loaded.tokenizer, messages, options)?)
    }

    /// The ids that a request goes on from. `known` is a session, resident or not: the turns that it holds, and
    /// all its ids, the one that has been sampled but not read included. History that ended in one of these
    /// turns keeps the ids that were processed; without such a turn it is all rendered by the template.
    pub fn prompt_ids(
        &self,
        request: &ChatRequest,
        known: Option<(&Transcript, &[u32])>,
    ) -> Result<Prompt, EngineError> {
        let loaded = self.loaded()?;
        let turns = Transcript::default();
        let text = |ids| Prompt { ids, reasoning_open: false, turns, conversation: None };
        match (&request.messages, &request.prompt, &request.ids) {
            (Some(messages), None, None) => conversation_prompt(loaded, messages, request, known),
            (None, Some(prompt), None) => Ok(text(loaded.tokenizer.encode(prompt, true))),
            (None, None, Some(ids)) => Ok(text(ids.clone())),
            _ => {
                let reason = "give exactly one of messages, prompt and ids".to_owned();
                Err(EngineError::InvalidRequest { reason })
            }
        }
    }

    /// Whether the history of a request has a turn of these.
    pub(crate) fn knows_a_turn(
        &self,
        request: &ChatRequest,
        turns: &Transcript,
    ) -> Result<bool, EngineError> {
        let loaded = self.loaded()?;
        let Some(messages) = &request.messages else { return Ok(false) };
        let start = beginning(loaded, request);
        Ok(!turns.follow(start, messages).replies.is_empty())
    }

    /// Prepares a reply. Nothing is computed before the first [`Engine::step_chat`].
    pub fn start_chat(&mut self, request: ChatRequest) -> Result<ChatGeneration, EngineError> {
        let loaded = self.loaded()?;
        let sampling = request.sampling(&loaded.tokenizer);
        let logprobs = request.logprobs()?;
        let stop_ids = if request.ignore_stop { Vec::new() } else { loaded.tokenizer.stop_ids().to_vec() };
        let first = request.messages.as_ref().and_then(|messages| messages.first());
        let has_system_turn = first.is_some_and(|message| message.role == Role::System);
        let Head { ids, pending, turns, .. } = self.session()?.head();
        let ids: Vec<u32> = ids.iter().chain(pending).copied().collect();
        let prompt = self.prompt_ids(&request, Some((turns, &ids)))?;
        if request.stop.iter().any(String::is_empty) {
            return Err(EngineError::InvalidRequest { reason: "a stop text is empty".to_owned() });
        }
        let context_end = match (request.context_end, request.pin_tokens) {
            (ContextEndName::Stop, _) => ContextEnd::Stop,
            (ContextEndName::Roll, Some(Pin::Tokens(pinned))) => ContextEnd::Roll { pinned },
            (ContextEndName::Roll, Some(Pin::Part(PinnedPart::System)) | None) => {
                let starts = loaded.template.turn_starts(&loaded.tokenizer, &prompt.ids);
                let end = starts.first().copied().filter(|_| has_system_turn);
                ContextEnd::Roll { pinned: end.unwrap_or(0) }
            }
        };
        let generation = self.start(TokenRequest {
            context_end,
            prompt: prompt.ids,
            generated: request.generated.clone(),
            max_tokens: request.max_tokens,
            sampling,
            logprobs,
            stop_ids: stop_ids.clone(),
        })?;
        let usage = Usage {
            prompt_tokens: generation.prompt_tokens() as u32,
            reused_tokens: generation.reuse().reused.min(generation.prompt_tokens() as u32),
            ..Usage::default()
        };
        let reuse = ChatReuse::new(&self.loaded()?.tokenizer, generation.reuse());
        let mut chat = ChatGeneration {
            answer: AnswerFilter::new(request.stop, !request.tools.is_empty()),
            generation,
            detokenizer: Detokenizer::new(),
            thoughts: ThinkFilter::new(prompt.reasoning_open),
            tools: request.tools,
            stop_ids,
            max_reasoning_tokens: request.max_reasoning_tokens,
            usage,
            conversation: prompt.conversation,
            known: prompt.turns,
            reuse,
            given: Given::default(),
            marks: VecDeque::new(),
        };
        self.replay(&mut chat, &request.generated)?;
        Ok(chat)
    }

    /// One slice of work: a piece of the prompt, or a few tokens.
    pub async fn step_chat(&mut self, chat: &mut ChatGeneration) -> Result<ChatDelta, EngineError> {
        if let Some(most) = chat.max_reasoning_tokens.filter(|_| chat.thoughts.in_reasoning()) {
            chat.generation.limit_steps(most.saturating_sub(chat.usage.reasoning_tokens));
        } else {
            chat.generation.limit_steps(u32::MAX);
        }
        let ids = self.step(&mut chat.generation).await?;
        let mut delta = ChatDelta::default();
        self.read_ids(chat, &ids, &mut delta)?;
        let goes_on = chat.generation.finished().is_none() && chat.generation.has_read_prompt();
        if goes_on && chat.is_over_budget() {
            self.close_thought(chat, &mut delta)?;
        }
        let finished = chat.generation.finished();
        if let Some(reason) = finished {
            chat.finish(reason, &mut delta);
        }
        chat.given.add(&delta);
        self.note(chat, finished.is_some());
        delta.prefilled = chat.usage.prompt_tokens.min(chat.generation.prefilled() as u32);
        delta.prompt_tokens = chat.usage.prompt_tokens;
        delta.usage = chat.usage;
        delta.reuse =
            ChatReuse { dropped: self.session()?.head().dropped.len() as u32, ..chat.reuse.clone() };
        Ok(delta)
    }

    /// Ends a reply, wherever it is. The session then knows it as far as the last steps gave it out, so that
    /// the conversation can go on from there.
    pub fn end_chat(&mut self, chat: ChatGeneration) {
        if let (None, Some(conversation)) = (chat.generation.finished(), chat.conversation)
            && self.holds(&chat.generation)
            && let Ok((_, _, session)) = self.parts_mut()
        {
            // What closes a thought may not have been read yet.
            let len = session.ledger().len() + session.pending().iter().len();
            for mark in chat.marks.iter().filter(|mark| mark.len <= len) {
                session.turns().insert(chat.turn(conversation, *mark));
            }
        }
    }

    /// Keeps in mind where the reply has come to. Once it `is_over` the session knows it.
    fn note(&mut self, chat: &mut ChatGeneration, is_over: bool) {
        let has_all = chat.generation.has_read_prompt() && self.holds(&chat.generation);
        let Some(conversation) = chat.conversation.filter(|_| has_all) else { return };
        let Ok((_, _, session)) = self.parts_mut() else { return };
        // They may have been cut from the session, and have been read again since.
        session.turns().append(std::mem::take(&mut chat.known));
        if chat.is_holding_text() || chat.answer.stopped {
            return;
        }
        let mark = Mark {
            len: session.ledger().len() + session.pending().iter().len(),
            content_bytes: chat.given.content.len(),
            reasoning_bytes: chat.given.reasoning.len(),
        };
        if is_over {
            session.turns().insert(chat.turn(conversation, mark));
        } else if chat.marks.back().is_none_or(|last| last.len < mark.len) {
            chat.marks.push_back(mark);
            let n_old = chat.marks.len().saturating_sub(MAX_MARKS);
            chat.marks.drain(..n_old);
        }
    }

    /// Ends the thought as the template would, so that the answer follows.
    fn close_thought(&mut self, chat: &mut ChatGeneration, delta: &mut ChatDelta) -> Result<(), EngineError> {
        let close = self.loaded()?.tokenizer.encode(CLOSE_THOUGHT, true);
        self.force(&mut chat.generation, &close)?;
        chat.read_close(&close, delta);
        Ok(())
    }

    /// Reads ids that were given before, so that text, thought and counts go on from there.
    fn replay(&self, chat: &mut ChatGeneration, ids: &[u32]) -> Result<(), EngineError> {
        let close = self.loaded()?.tokenizer.encode(CLOSE_THOUGHT, true);
        let (mut given, mut rest) = (ChatDelta::default(), ids);
        while let Some((id, after)) = rest.split_first() {
            rest = match rest.strip_prefix(&close[..]).filter(|_| chat.is_over_budget()) {
                Some(after) => {
                    chat.read_close(&close, &mut given);
                    after
                }
                None => {
                    self.read_ids(chat, std::slice::from_ref(id), &mut given)?;
                    after
                }
            };
        }
        chat.given.add(&given);
        Ok(())
    }

    fn read_ids(
        &self,
        chat: &mut ChatGeneration,
        ids: &[u32],
        delta: &mut ChatDelta,
    ) -> Result<(), EngineError> {
        let tokenizer = &self.loaded()?.tokenizer;
        for (i, &id) in ids.iter().enumerate() {
            if chat.answer.stopped {
                break;
            }
            delta.ids.push(id);
            chat.usage.completion_tokens += 1;
            if chat.stop_ids.contains(&id) {
                break;
            }
            if chat.thoughts.in_reasoning() {
                chat.usage.reasoning_tokens += 1;
            } else if let Some(found) = chat.generation.logprobs().get(i) {
                delta.logprobs.push(ChatLogprob::new(tokenizer, found));
            }
            let text = chat.detokenizer.push(tokenizer, id);
            let pieces = chat.thoughts.push(&text);
            chat.emit(pieces, delta);
        }
        Ok(())
    }
}

impl ChatGeneration {
    /// Names the session that the reply runs in, from its first step on.
    pub fn run_in(&mut self, session: SessionId) {
        self.generation.run_in(session);
    }

    /// Tokens so far.
    pub fn usage(&self) -> Usage {
        self.usage
    }

    /// Whether a thought has taken all the tokens that it may.
    fn is_over_budget(&self) -> bool {
        let is_used_up = self.max_reasoning_tokens.is_some_and(|most| self.usage.reasoning_tokens >= most);
        is_used_up && self.thoughts.in_reasoning()
    }

    /// Reads the ids that end a thought as its text, since a file may declare the tag a token that has none.
    fn read_close(&mut self, ids: &[u32], delta: &mut ChatDelta) {
        self.usage.completion_tokens += ids.len() as u32;
        self.usage.reasoning_tokens += ids.len() as u32;
        delta.ids.extend(ids);
        let pieces = self.thoughts.push(CLOSE_THOUGHT);
        self.emit(pieces, delta);
    }

    fn emit(&mut self, pieces: Vec<signbit_tokenizer::Piece>, delta: &mut ChatDelta) {
        for piece in pieces {
            match piece.channel {
                Channel::Reasoning => delta.reasoning.push_str(&piece.text),
                Channel::Answer => {
                    delta.content.push_str(&self.answer.push(&piece.text));
                    if self.answer.stopped {
                        self.generation.end(FinishReason::Stop);
                    }
                }
            }
        }
    }

    /// Whether ids have text that was not given out yet.
    fn is_holding_text(&self) -> bool {
        let (character, tag) = (self.detokenizer.clone().finish(), self.thoughts.clone().finish());
        !(character.is_empty() && tag.is_empty() && self.answer.held.is_empty())
    }

    /// The reply up to `mark`, as the turn that follows `conversation`.
    fn turn(&self, conversation: Conversation, mark: Mark) -> Turn {
        let Given { content, reasoning, tool_calls } = &self.given;
        let content = content.get(..mark.content_bytes).unwrap_or(content);
        let reasoning = reasoning.get(..mark.reasoning_bytes).unwrap_or(reasoning);
        Turn::new(conversation, reasoning, content, tool_calls, mark.len as u32)
    }

    fn finish(&mut self, reason: FinishReason, delta: &mut ChatDelta) {
        let tail = self.detokenizer.finish();
        let mut pieces = self.thoughts.push(&tail);
        pieces.extend(self.thoughts.finish());
        self.emit(pieces, delta);
        let held = self.answer.finish();
        let (content, calls) =
            if self.tools.is_empty() { (held, Vec::new()) } else { parse_tool_calls(&held, &self.tools) };
        delta.content.push_str(&content);
        // The limit may have been reached by tokens behind the stop text.
        let reason = if self.answer.stopped { FinishReason::Stop } else { reason };
        let called = !calls.is_empty() && reason == FinishReason::Stop;
        delta.finish_reason = Some(if called { FinishReason::ToolCalls } else { reason });
        delta.tool_calls = calls;
    }
}

/// The conversation of a request before its first message.
fn beginning(loaded: &LoadedModel, request: &ChatRequest) -> Conversation {
    let thinking = request.enable_thinking.filter(|_| loaded.template.writes_thinking_into_history());
    Conversation::new(&request.tools, thinking)
}

/// The longest history that ends in a known turn as it was processed, and the rest as the template writes it.
fn conversation_prompt(
    loaded: &LoadedModel,
    messages: &[Message],
    request: &ChatRequest,
    known: Option<(&Transcript, &[u32])>,
) -> Result<Prompt, EngineError> {
    let (template, tokenizer) = (&loaded.template, &loaded.tokenizer);
    let options = RenderOptions {
        enable_thinking: request.enable_thinking,
        tools: request.tools.clone(),
        ..RenderOptions::default()
    };
    let start = beginning(loaded, request);
    let none = Transcript::default();
    let (transcript, ids) = known.unwrap_or((&none, &[]));
    for (index, len) in transcript.follow(start, messages).replies.into_iter().rev() {
        let Some(processed) = ids.get(..len as usize) else { continue };
        // What the template cannot write in part it may still be able to write in whole.
        let Ok(Some(rest)) = template.render_after(tokenizer, messages, index, &options) else { continue };
        // A reply that was to go on past its end may have ended with the id that ends a turn.
        let is_ended = processed.last().is_some_and(|last| {
            tokenizer.token_type(*last) == Some(TokenType::Control) && rest.ids.first() == Some(last)
        });
        let ids = [processed, &rest.ids[usize::from(is_ended)..]].concat();
        let mut turns = transcript.clone();
        turns.cut(processed.len());
        let conversation = Some(turns.follow(start, messages).conversation);
        return Ok(Prompt { ids, reasoning_open: rest.reasoning_open, turns, conversation });
    }
    let rendered = template.render(tokenizer, messages, &options)?;
    let conversation = Some(none.follow(start, messages).conversation);
    Ok(Prompt { ids: rendered.ids, reasoning_open: rendered.reasoning_open, turns: none, conversation })
}

/// Holds back answer text that may be the beginning of a stop text or of a tool call.
#[derive(Debug)]
struct AnswerFilter {
    stop: Vec<String>,
    /// From here on everything is kept for the parser of tool calls.
    tool_marker: Option<&'static str>,
    held: String,
    in_tool_call: bool,
    stopped: bool,
}

impl AnswerFilter {
    fn new(stop: Vec<String>, tools: bool) -> Self {
        let tool_marker = tools.then_some("<tool_call>");
        Self { stop, tool_marker, held: String::new(), in_tool_call: false, stopped: false }
    }

    /// Takes new text and gives what is certainly part of the answer.
    fn push(&mut self, text: &str) -> String {
        if self.stopped {
            return String::new();
        }
        self.held.push_str(text);
        let stop_at = self.stop.iter().filter_map(|s| self.held.find(s.as_str())).min();
        if let Some(at) = stop_at {
            self.held.truncate(at);
            self.stopped = true;
        }
        if self.in_tool_call {
            return String::new();
        }
        let decided = match self.tool_marker.and_then(|marker| self.held.find(marker)) {
            Some(at) => {
                self.in_tool_call = true;
                at
            }
            None if self.stopped => self.held.len(),
            None => self.held.len() - self.undecided(),
        };
        let rest = self.held.split_off(decided);
        std::mem::replace(&mut self.held, rest)
    }

    /// Length of the longest end of the held text that a marker begins with.
    fn undecided(&self) -> usize {
        let markers = self.stop.iter().map(String::as_str).chain(self.tool_marker);
        let longest = |marker: &str| {
            let starts = marker.char_indices().map(|(i, _)| i).skip(1);
            starts.filter(|&n| self.held.ends_with(&marker[..n])).max().unwrap_or(0)
        };
        markers.map(longest).max().unwrap_or(0)
    }

    fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filtered(stop: &[&str], tools: bool, pieces: &[&str]) -> (Vec<String>, String, bool) {
        let mut filter = AnswerFilter::new(stop.iter().map(|s| (*s).to_owned()).collect(), tools);
        let out = pieces.iter().map(|p| filter.push(p)).collect();
        (out, filter.finish(), filter.stopped)
    }

    #[test]
    fn stop_texts_are_found_across_pieces_and_not_shown() {
        let (out, rest, stopped) = filtered(&["END"], false, &["ab E", "N", "D cd", "more"]);
        assert_eq!((out.concat(), rest, stopped), ("ab ".to_owned(), String::new(), true));
        let (out, rest, stopped) = filtered(&["END"], false, &["ab E", "N", "X"]);
        assert_eq!((out, rest, stopped), (vec!["ab ".into(), "".into(), "ENX".into()], String::new(), false));
        let (out, rest, _) = filtered(&["END"], false, &["ab EN"]);
        assert_eq!((out.concat(), rest), ("ab ".to_owned(), "EN".to_owned()));
        let (out, _, stopped) = filtered(&["é!"], false, &["caf", "é", "!"]);
        assert_eq!((out.concat(), stopped), ("caf".to_owned(), true));
    }

    #[test]
    fn tool_calls_are_kept_for_the_end() {
        let (out, rest, _) = filtered(&[], true, &["Let me see <tool", "_call>\n{", "}"]);
        assert_eq!((out.concat(), rest), ("Let me see ".to_owned(), "<tool_call>\n{}".to_owned()));
        let (out, rest, _) = filtered(&[], false, &["<tool_call>"]);
        assert_eq!((out.concat(), rest), ("<tool_call>".to_owned(), String::new()));
    }
}
