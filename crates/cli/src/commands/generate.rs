//! `generate`: one reply.

use pollster::block_on;
use serde_json::json;
use signbit_engine::chat::{ChatLogprob, ChatRequest};
use signbit_engine::engine::{Engine, FinishReason};
use signbit_engine::model::ModelOptions;

use super::open_device;
use crate::args::{GenerateArgs, SamplingArgs, Switch};
use crate::error::CliError;
use crate::files::{ModelFiles, read_ids, read_messages};
use crate::output::{print, print_json, print_line};

/// The parts of a request that `generate` and `chat` share.
pub(super) fn request(args: &SamplingArgs) -> ChatRequest {
    ChatRequest {
        enable_thinking: args.thinking.map(Switch::is_on),
        max_tokens: Some(args.max_tokens),
        temperature: args.temperature,
        top_k: args.top_k,
        top_p: args.top_p,
        min_p: args.min_p,
        top_n_sigma: args.top_n_sigma,
        repetition_penalty: args.repetition_penalty,
        presence_penalty: args.presence_penalty,
        frequency_penalty: args.frequency_penalty,
        logit_bias: args.logit_bias.iter().copied().collect(),
        dry_multiplier: args.dry_multiplier,
        dry_base: args.dry_base,
        dry_allowed_length: args.dry_allowed_length,
        dry_penalty_last_n: args.dry_penalty_last_n,
        dry_sequence_breakers: Some(args.dry_sequence_breaker.clone()).filter(|texts| !texts.is_empty()),
        seed: args.seed,
        ..ChatRequest::default()
    }
}

/// A whole reply.
#[derive(Debug, Default)]
pub(super) struct Reply {
    pub ids: Vec<u32>,
    pub content: String,
    pub reasoning: String,
    pub finish_reason: Option<FinishReason>,
    pub logprobs: Vec<ChatLogprob>,
    pub usage: signbit_engine::chat::Usage,
}

/// Runs a request to its end; `show` gets each new piece of thought and of answer.
pub(super) fn reply(
    engine: &mut Engine,
    request: ChatRequest,
    mut show: impl FnMut(&str, &str) -> Result<(), CliError>,
) -> Result<Reply, CliError> {
    let mut generation = engine.start_chat(request)?;
    let mut reply = Reply::default();
    while reply.finish_reason.is_none() {
        let delta = block_on(engine.step_chat(&mut generation))?;
        show(&delta.reasoning, &delta.content)?;
        reply.ids.extend(delta.ids);
        reply.content.push_str(&delta.content);
        reply.reasoning.push_str(&delta.reasoning);
        reply.logprobs.extend(delta.logprobs);
        reply.finish_reason = delta.finish_reason;
        reply.usage = delta.usage;
    }
    Ok(reply)
}

/// Generates and prints a reply.
pub fn run(args: GenerateArgs) -> Result<(), CliError> {
    let request = ChatRequest {
        prompt: args.input.prompt,
        ids: args.input.ids.as_deref().map(read_ids).transpose()?,
        messages: args.input.messages.as_deref().map(read_messages).transpose()?,
        ignore_stop: args.ignore_stop,
        stop: args.stop,
        logprobs: args.logprobs.is_some(),
        top_logprobs: args.logprobs,
        ..request(&args.sampling)
    };
    let mut files = ModelFiles::open_or_built_in(args.model.as_deref())?.expecting(&args.check.sha256)?;
    let mut engine = Engine::new(open_device(args.sampling.backend)?);
    let options = ModelOptions {
        context_length: args.sampling.context,
        kv_cache: args.sampling.kv_cache.into(),
        ..ModelOptions::default()
    };
    files.load(&mut engine, options)?;
    if !args.json {
        let mut streamed = Streamed::default();
        reply(&mut engine, request, |reasoning, content| streamed.show(reasoning, content))?;
        return print_line("");
    }
    let reply = reply(&mut engine, request, |_, _| Ok(()))?;
    let mut output = json!({
        "ids": reply.ids,
        "text": reply.content,
        "reasoning": reply.reasoning,
        "finish_reason": reply.finish_reason,
        "usage": reply.usage,
    });
    if args.logprobs.is_some() {
        output["logprobs"] = json!({ "content": reply.logprobs });
    }
    print_json(&output)
}

/// A reply as text: the thought between its tags, then the answer.
#[derive(Debug, Default)]
pub(super) struct Streamed {
    in_thought: bool,
}

impl Streamed {
    pub fn show(&mut self, reasoning: &str, content: &str) -> Result<(), CliError> {
        let mut text = String::new();
        if !reasoning.is_empty() {
            if !self.in_thought {
                text.push_str("<think>\n");
            }
            self.in_thought = true;
            text.push_str(reasoning);
        }
        if !content.is_empty() {
            if self.in_thought {
                text.push_str("\n</think>\n\n");
            }
            self.in_thought = false;
            text.push_str(content);
        }
        if text.is_empty() { Ok(()) } else { print(&text) }
    }
}
