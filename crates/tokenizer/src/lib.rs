//! Text to token ids and back, and chat templates.
//!
//! A conversation goes through [`ChatTemplate::render`] to ids, the model's ids through
//! [`Detokenizer`] to text, and that text through [`ThinkFilter`] and [`parse_tool_calls`] to an
//! answer. The crate works on plain data: it knows neither model files nor GPUs nor browsers.
//!
//! The one thing a newcomer gets wrong: ids are not characters. A token may hold half a character, and
//! encoding a decoded text need not give the same ids, so the ids themselves are what to keep.

mod added_tokens;
mod byte_alphabet;
mod chat;
mod detokenizer;
mod error;
mod merges;
mod pre_tokenizer;
mod think_filter;
mod tokenizer;
mod tool_calls;

pub use chat::{
    ChatTemplate, Content, ContentPart, FunctionCall, Message, RenderOptions, Rendered, Role, ToolCall,
};
pub use detokenizer::Detokenizer;
pub use error::TokenizerError;
pub use pre_tokenizer::{Pieces, PreTokenizer};
pub use think_filter::{Channel, Piece, ThinkFilter};
pub use tokenizer::{TokenType, Tokenizer, Vocabulary};
pub use tool_calls::parse_tool_calls;
