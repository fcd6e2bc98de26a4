//! Everything that can go wrong in this crate, with the facts a caller needs.

use thiserror::Error;

/// Why a vocabulary, a text or a chat could not be handled.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TokenizerError {
    /// `tokenizer.ggml.model` is not byte-level BPE.
    #[error("tokenizer model {model:?} is not supported, only \"gpt2\" (byte-level BPE) is")]
    UnsupportedModel {
        /// The name found in the file.
        model: String,
    },
    /// The file does not name its pre-tokenizer; guessing one would split text wrongly.
    #[error("the file names no pre-tokenizer (tokenizer.ggml.pre)")]
    MissingPreTokenizer,
    /// The file names a pre-tokenizer this crate has no pattern for.
    #[error("pre-tokenizer {name:?} is not supported, only \"qwen2\" and \"qwen35\" are")]
    UnsupportedPreTokenizer {
        /// The name found in the file.
        name: String,
    },
    /// A list of the vocabulary is longer than any real one.
    #[error("the vocabulary has {actual} {what}, at most {limit} are accepted")]
    TooMany {
        /// What was counted, for example "tokens".
        what: &'static str,
        /// How many there are.
        actual: usize,
        /// How many are accepted.
        limit: usize,
    },
    /// Token types and tokens differ in number.
    #[error("the vocabulary has {tokens} tokens but {token_types} token types")]
    TokenTypeCount {
        /// Number of tokens.
        tokens: usize,
        /// Number of token types.
        token_types: usize,
    },
    /// A token type outside the ones of a byte-level vocabulary.
    #[error("token {id} has type {token_type}, which a byte-level vocabulary does not use")]
    UnsupportedTokenType {
        /// The token id.
        id: u32,
        /// The type stored for it.
        token_type: i32,
    },
    /// A token without text.
    #[error("token {id} is empty")]
    EmptyToken {
        /// The token id.
        id: u32,
    },
    /// A token text of a length that would make encoding slow.
    #[error("token {id} has {actual} bytes, at most {limit} are accepted")]
    TokenTooLong {
        /// The token id.
        id: u32,
        /// Its length in bytes.
        actual: usize,
        /// The accepted length in bytes.
        limit: usize,
    },
    /// A control token of one character cannot be kept apart from the same character in user text.
    #[error("control token {id} ({text:?}) has fewer than two characters")]
    ControlTokenTooShort {
        /// The token id.
        id: u32,
        /// Its text.
        text: String,
    },
    /// A normal token contains a character that stands for no byte.
    #[error("token {id} contains {character:?}, which stands for no byte")]
    NotByteLevel {
        /// The token id.
        id: u32,
        /// The first such character.
        character: char,
    },
    /// The same text twice.
    #[error("tokens {first} and {second} have the same text")]
    DuplicateToken {
        /// The smaller id.
        first: u32,
        /// The larger id.
        second: u32,
    },
    /// A byte has no token of its own, so some text could not be encoded.
    #[error("byte {byte:#04x} has no token")]
    MissingByteToken {
        /// The byte.
        byte: u8,
    },
    /// A merge rule that is not two texts with a space between.
    #[error("merge {rank} ({rule:?}) is not two tokens separated by a space")]
    MalformedMerge {
        /// Index of the rule.
        rank: u32,
        /// The rule as stored, shortened.
        rule: String,
    },
    /// A merge rule names, or produces, a text that is no normal token.
    #[error("merge {rank} needs the token {token:?}, which is not in the vocabulary")]
    MergeOfMissingToken {
        /// Index of the rule.
        rank: u32,
        /// The missing token as spelled in the file, shortened.
        token: String,
    },
    /// The same pair has two ranks.
    #[error("merges {first} and {second} are the same pair")]
    DuplicateMerge {
        /// The smaller rank.
        first: u32,
        /// The larger rank.
        second: u32,
    },
    /// A special id of the file lies outside the vocabulary.
    #[error("{key} is {id}, but the vocabulary has {n_tokens} tokens")]
    IdOutOfRange {
        /// Which id: "eos", "bos" or "pad".
        key: &'static str,
        /// The id.
        id: u32,
        /// Vocabulary size.
        n_tokens: usize,
    },
    /// The end-of-text id names an ordinary word: it belongs to another vocabulary.
    #[error("the eos id {id} is the ordinary token {text:?}, not a control token")]
    EosNotControl {
        /// The id.
        id: u32,
        /// Its text.
        text: String,
    },
    /// No id ends a reply, so generation would never stop.
    #[error("no end token: neither an eos id, nor \"<|im_end|>\", nor \"<|endoftext|>\"")]
    NoStopToken,
    /// The chat template is longer than any real one.
    #[error("the chat template has {actual} bytes, at most {limit} are accepted")]
    TemplateTooLong {
        /// Its length in bytes.
        actual: usize,
        /// The accepted length in bytes.
        limit: usize,
    },
    /// The chat template is not valid Jinja, or uses something unknown.
    #[error("the chat template does not compile: {detail}")]
    TemplateSyntax {
        /// What the Jinja engine says.
        detail: String,
    },
    /// The template itself refused the conversation with `raise_exception`.
    #[error("the chat template refused the conversation: {message}")]
    TemplateRaised {
        /// The text the template raised.
        message: String,
    },
    /// The template used up its budget of instructions or recursion.
    #[error("the chat template did not finish within its budget: {detail}")]
    TemplateBudget {
        /// Which budget.
        detail: String,
    },
    /// The rendered conversation is too long.
    #[error("the rendered conversation exceeds {limit} bytes")]
    TemplateOutputTooLong {
        /// The accepted length in bytes.
        limit: usize,
    },
    /// Another failure while the template ran.
    #[error("the chat template failed: {detail}")]
    TemplateFailed {
        /// What the Jinja engine says.
        detail: String,
    },
    /// Tools or tool arguments nest deeper than any real ones.
    #[error("tool data nests deeper than {limit} levels")]
    NestedTooDeep {
        /// The accepted depth.
        limit: usize,
    },
    /// Every character that could mark text as data already occurs in the conversation.
    #[error("the conversation leaves no character free to mark text as data")]
    NoFreeMarker,
}
