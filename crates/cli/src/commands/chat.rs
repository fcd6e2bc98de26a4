//! `chat`: a conversation of several turns.

use std::io::{BufRead, IsTerminal};
use std::time::Instant;

use signbit_engine::chat::ChatRequest;
use signbit_engine::engine::{Engine, FinishReason};
use signbit_engine::model::ModelOptions;
use signbit_tokenizer::{Message, Role};

use super::generate::{Reply, Streamed, reply, request};
use super::{device_line, open_device};
use crate::args::ChatArgs;
use crate::error::CliError;
use crate::files::ModelFiles;
use crate::output::{print, print_line};

/// Talks until the input ends or `/exit`.
pub fn run(args: &ChatArgs) -> Result<(), CliError> {
    let mut files = ModelFiles::open_or_built_in(args.model.as_deref())?.expecting(&args.check.sha256)?;
    let mut engine = Engine::new(open_device(args.sampling.backend)?);
    let options = ModelOptions {
        context_length: args.sampling.context,
        kv_cache: args.sampling.kv_cache.into(),
        ..ModelOptions::default()
    };
    files.load(&mut engine, options)?;
    print_line(&device_line(engine.device_info()))?;
    print_line("/reset starts over, /exit or the end of the input leaves.")?;

    let system = args.system.iter().map(|text| Message::new(Role::System, text.as_str()));
    let opening: Vec<Message> = system.collect();
    let mut history = opening.clone();
    while let Some(line) = next_line()? {
        match line.trim() {
            "" => {}
            "/exit" => break,
            "/reset" => {
                history.clone_from(&opening);
                engine.reset()?;
                print_line("The conversation starts over.")?;
            }
            text => {
                history.push(Message::new(Role::User, text));
                let answer = answer(&mut engine, args, &history)?;
                history.push(answer);
            }
        }
    }
    Ok(())
}

/// Streams an answer, with its speed behind it, and gives it as a message.
fn answer(engine: &mut Engine, args: &ChatArgs, history: &[Message]) -> Result<Message, CliError> {
    let request = ChatRequest { messages: Some(history.to_vec()), ..request(&args.sampling) };
    let mut streamed = Streamed::default();
    let start = Instant::now();
    let mut first_text = None;
    let reply = reply(engine, request, |reasoning, content| {
        if first_text.is_none() && !(reasoning.is_empty() && content.is_empty()) {
            first_text = Some(start.elapsed());
        }
        streamed.show(reasoning, content)
    })?;
    let seconds = start.elapsed().as_secs_f64();
    print_line(&format!("\n[{}]", speed(&reply, seconds, first_text.map(|t| t.as_secs_f64()))))?;
    let mut message = Message::new(Role::Assistant, reply.content);
    // Known, even if empty: the next prompt then repeats what the session has processed.
    message.reasoning_content = Some(reply.reasoning);
    Ok(message)
}

fn speed(reply: &Reply, seconds: f64, first_text: Option<f64>) -> String {
    let usage = reply.usage;
    let n = usage.completion_tokens;
    let mut text = format!("{n} tokens, {:.1} tokens/s", f64::from(n) / seconds.max(1e-9));
    if let Some(first) = first_text {
        text.push_str(&format!(", first text after {first:.2} s"));
    }
    text.push_str(&format!("; prompt {} tokens, {} reused", usage.prompt_tokens, usage.reused_tokens));
    if reply.finish_reason == Some(FinishReason::Length) {
        text.push_str("; cut off");
    }
    text
}

/// The next line of input without its end; `None` at the end of the input.
fn next_line() -> Result<Option<String>, CliError> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        print("> ")?;
    }
    let mut line = String::new();
    let n_read = stdin.lock().read_line(&mut line).map_err(CliError::Stdin)?;
    Ok((n_read > 0).then_some(line))
}
