//! The tokenizer against independent answers.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on should stop"
)]

mod chat;
mod golden;
mod hostile;
mod oracle;
mod properties;
mod qwen3;
mod vocabularies;
