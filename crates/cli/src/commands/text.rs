//! `tokenize` and `render`: text to ids, from the header alone and without a device.

use std::path::Path;

use serde_json::json;
use signbit_engine::planner::vocabulary;
use signbit_gguf::Header;
use signbit_tokenizer::{ChatTemplate, RenderOptions, Tokenizer};

use crate::args::{RenderArgs, Switch, TokenizeArgs};
use crate::error::CliError;
use crate::files::{ModelFiles, read_messages, read_texts, read_tools};
use crate::output::{print_json, print_line};

fn open(path: &Path) -> Result<(Header, Tokenizer), CliError> {
    let header = ModelFiles::open(path)?.header()?;
    let tokenizer = Tokenizer::new(vocabulary(&header)?)?;
    Ok((header, tokenizer))
}

/// The template of the file, or ChatML.
pub(super) fn template(header: &Header) -> Result<ChatTemplate, CliError> {
    Ok(match header.metadata.get_str("tokenizer.chat_template")? {
        Some(source) => ChatTemplate::new(source)?,
        None => ChatTemplate::chatml()?,
    })
}

/// Turns one text or several into ids.
pub fn tokenize(args: &TokenizeArgs) -> Result<(), CliError> {
    let (_, tokenizer) = open(&args.model)?;
    let encode = |text: &str| tokenizer.encode(text, args.parse_special);
    match (&args.input.text, &args.input.texts) {
        (Some(text), _) if args.json => print_json(&json!({ "ids": encode(text) })),
        (Some(text), _) => print_line(&joined(&encode(text))),
        (None, Some(path)) => {
            let all: Vec<Vec<u32>> = read_texts(path)?.iter().map(|text| encode(text)).collect();
            if args.json {
                return print_json(&all);
            }
            all.iter().try_for_each(|ids| print_line(&joined(ids)))
        }
        (None, None) => Err(CliError::Usage("give --text or --texts".to_owned())),
    }
}

/// Renders a conversation to text and ids.
pub fn render(args: &RenderArgs) -> Result<(), CliError> {
    let (header, tokenizer) = open(&args.model)?;
    let options = RenderOptions {
        add_generation_prompt: !args.no_generation_prompt,
        enable_thinking: args.thinking.map(Switch::is_on),
        preserve_thinking: args.preserve_thinking.is_on(),
        tools: args.tools.as_deref().map_or(Ok(Vec::new()), read_tools)?,
    };
    let messages = read_messages(&args.messages)?;
    let rendered = template(&header)?.render(&tokenizer, &messages, &options)?;
    if args.json {
        let open = rendered.reasoning_open;
        return print_json(&json!({ "text": rendered.text, "ids": rendered.ids, "reasoning_open": open }));
    }
    print_line(&rendered.text)?;
    print_line(&format!("ids: {}", joined(&rendered.ids)))
}

fn joined(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")
}
