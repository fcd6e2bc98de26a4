//! Conversations: messages, the Jinja template that renders them, and the ids of the result.
//!
//! The one thing a newcomer gets wrong: a rendered conversation must not be encoded as one string.
//! Whatever a person, a tool or the model wrote has to stay text, even if it spells `<|im_end|>`.
//! [`ChatTemplate::render`] returns ids for which that holds.

mod jinja;
mod marking;
mod message;
mod template;
mod thoughts;

pub(crate) use marking::ControlEdges;
pub(crate) use message::object_from_string;
pub use message::{Content, ContentPart, FunctionCall, Message, Role, ToolCall};
pub use template::{ChatTemplate, RenderOptions, Rendered};
