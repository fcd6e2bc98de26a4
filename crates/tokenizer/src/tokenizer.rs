//! Byte-level BPE over the vocabulary of a model file.
//!
//! Encoding: split at added tokens, normalise each segment to NFC, split into pieces, merge the
//! bytes of each piece by rank. Decoding: concatenate bytes. No prefix blank, no begin-of-text token.
//!
//! A whole piece that is in the vocabulary is *not* taken as it stands: some entries cannot be
//! reached by merges, the model never saw them in training, and they must not be produced.

use crate::added_tokens::{AddedToken, AddedTokens};
use crate::byte_alphabet::byte_of;
use crate::chat::ControlEdges;
use crate::error::TokenizerError;
use crate::merges::{MergeTable, Rule, Symbol, link};
use crate::pre_tokenizer::PreTokenizer;
use std::borrow::Cow;
use std::collections::HashMap;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick};

/// More tokens or merges than this are refused (16 times the largest supported vocabulary).
const MAX_ENTRIES: usize = 1 << 22;
/// The longest real token has 128 bytes (a run of blanks).
const MAX_TOKEN_BYTES: usize = 4096;
/// Control texts that end a reply whatever the file's eos id is.
const STOP_TEXTS: [&str; 2] = ["<|im_end|>", "<|endoftext|>"];

/// The tokenizer part of a model file, as plain data.
#[derive(Debug, Clone, Default)]
pub struct Vocabulary {
    /// `tokenizer.ggml.model`; only "gpt2" is supported.
    pub model: String,
    /// `tokenizer.ggml.pre`, the name of the split pattern.
    pub pre: Option<String>,
    /// `tokenizer.ggml.tokens`; the index is the id. Normal tokens are spelled in the byte
    /// alphabet, control and user-defined ones literally.
    pub tokens: Vec<String>,
    /// `tokenizer.ggml.token_type`, one per token.
    pub token_types: Vec<i32>,
    /// `tokenizer.ggml.merges`, "left right"; the index is the rank.
    pub merges: Vec<String>,
    /// `tokenizer.ggml.eos_token_id`.
    pub eos_id: Option<u32>,
    /// `tokenizer.ggml.bos_token_id`. Only chat templates can ask for it.
    pub bos_id: Option<u32>,
    /// `tokenizer.ggml.padding_token_id`.
    pub pad_id: Option<u32>,
    /// `tokenizer.ggml.add_bos_token`; see [`Tokenizer::wants_bos`].
    pub add_bos: bool,
}

/// What a token is for (`tokenizer.ggml.token_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TokenType {
    /// Text; produced by merges.
    Normal,
    /// Stands for nothing encodable. Never produced, decodes to nothing.
    Unknown,
    /// Structure of the conversation, for example `<|im_end|>`. Not shown to people.
    Control,
    /// A literal text that is one token, for example `<think>`.
    UserDefined,
    /// A filler of the embedding table. Never produced, decodes to nothing, to be masked.
    Unused,
}

impl TokenType {
    fn from_file(id: u32, token_type: i32) -> Result<Self, TokenizerError> {
        match token_type {
            1 => Ok(Self::Normal),
            2 => Ok(Self::Unknown),
            3 => Ok(Self::Control),
            4 => Ok(Self::UserDefined),
            5 => Ok(Self::Unused),
            _ => Err(TokenizerError::UnsupportedTokenType { id, token_type }),
        }
    }
}

/// Text to token ids and back.
#[derive(Debug)]
pub struct Tokenizer {
    pre_tokenizer: PreTokenizer,
    /// The bytes of all tokens, one after the other.
    bytes: Vec<u8>,
    /// `ends[id]` is where the bytes of a token end; they begin where the previous ones end.
    ends: Vec<u32>,
    types: Vec<TokenType>,
    byte_tokens: [u32; 256],
    merges: MergeTable,
    added: AddedTokens,
    control_edges: ControlEdges,
    stop_ids: Vec<u32>,
    unused_ids: Vec<u32>,
    eos_id: Option<u32>,
    bos_id: Option<u32>,
    pad_id: Option<u32>,
    add_bos: bool,
}

impl Tokenizer {
    /// Checks a vocabulary and builds the look-up tables.
    ///
    /// Takes time and memory proportional to the vocabulary, whatever it contains.
    ///
    /// # Errors
    /// Any inconsistency of the vocabulary, with the offending id or rule.
    pub fn new(vocabulary: Vocabulary) -> Result<Self, TokenizerError> {
        if vocabulary.model != "gpt2" {
            let model = shorten(&vocabulary.model);
            return Err(TokenizerError::UnsupportedModel { model });
        }
        let pre_tokenizer = PreTokenizer::from_name(vocabulary.pre.as_deref())?;
        check_counts(&vocabulary)?;

        let table = TokenTable::new(&vocabulary)?;
        let normal = table.normal_tokens()?;
        let byte_tokens = byte_tokens(&normal)?;
        let rules = rules(&vocabulary.merges, &normal)?;
        drop(normal);
        let merges = MergeTable::new(table.ends.len(), &rules)?;
        let stop_ids = stop_ids(&vocabulary, &table)?;
        let unused = (0u32..).zip(&table.types).filter(|(_, t)| **t == TokenType::Unused);

        Ok(Self {
            pre_tokenizer,
            byte_tokens,
            merges,
            stop_ids,
            unused_ids: unused.map(|(id, _)| id).collect(),
            bytes: table.bytes,
            ends: table.ends,
            types: table.types,
            control_edges: ControlEdges::new(&table.added),
            added: table.added,
            eos_id: vocabulary.eos_id,
            bos_id: vocabulary.bos_id,
            pad_id: vocabulary.pad_id,
            add_bos: vocabulary.add_bos,
        })
    }

    /// Text to ids.
    ///
    /// With `parse_special` the texts of control tokens become these tokens; without it they are
    /// ordinary text. User-defined tokens match either way. Text that people or tools wrote must be
    /// encoded without, or they could end their own turn by typing `<|im_end|>`.
    pub fn encode(&self, text: &str, parse_special: bool) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 3);
        self.encode_onto(text, parse_special, &mut ids);
        ids
    }

    /// [`encode`](Self::encode), appending to `ids`.
    pub(crate) fn encode_onto(&self, text: &str, parse_special: bool, ids: &mut Vec<u32>) {
        let wanted = |token_type| parse_special || token_type == TokenType::UserDefined;
        let mut symbols = Vec::new();
        let mut done = 0;
        while let Some(found) = self.added.find(text, done, wanted) {
            self.encode_segment(text.get(done..found.start).unwrap_or(""), &mut symbols, ids);
            ids.push(found.id);
            done = found.end;
        }
        self.encode_segment(text.get(done..).unwrap_or(""), &mut symbols, ids);
    }

    fn encode_segment(&self, segment: &str, symbols: &mut Vec<Symbol>, ids: &mut Vec<u32>) {
        let segment = match is_nfc_quick(segment.chars()) {
            IsNormalized::Yes => Cow::Borrowed(segment),
            _ => Cow::Owned(segment.nfc().collect::<String>()),
        };
        for piece in self.pre_tokenizer.pieces(&segment) {
            let byte_token = |byte| self.byte_tokens.get(usize::from(byte)).copied().unwrap_or_default();
            link(symbols, piece.as_bytes().iter().map(|&byte| byte_token(byte)));
            self.merges.merge(symbols, ids);
        }
    }

    /// Ids to text, including the texts of control tokens. Bytes that are not UTF-8 become U+FFFD,
    /// ids without text (unused ones, ones past the vocabulary) become nothing.
    ///
    /// For text that people see, and for text that arrives bit by bit, use
    /// [`Detokenizer`](crate::Detokenizer).
    pub fn decode(&self, ids: &[u32]) -> String {
        let bytes: Vec<u8> = ids.iter().flat_map(|&id| self.token_bytes(id)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The bytes a token stands for; they need not be whole characters. Empty for unused and unknown
    /// tokens and for ids past the vocabulary.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        bytes_of(&self.bytes, &self.ends, id)
    }

    /// Number of ids, including unused ones.
    pub fn vocab_size(&self) -> usize {
        self.ends.len()
    }

    /// What a token is for, `None` past the vocabulary.
    pub fn token_type(&self, id: u32) -> Option<TokenType> {
        self.types.get(id as usize).copied()
    }

    /// The ids that end a reply: the file's eos id, `<|im_end|>` and `<|endoftext|>`. Never empty.
    pub fn stop_ids(&self) -> &[u32] {
        &self.stop_ids
    }

    /// The ids of unused tokens, ascending. A sampler must mask them.
    pub fn unused_ids(&self) -> &[u32] {
        &self.unused_ids
    }

    /// The file's end-of-text id.
    pub fn eos_id(&self) -> Option<u32> {
        self.eos_id
    }

    /// The file's begin-of-text id. Encoding never adds it.
    pub fn bos_id(&self) -> Option<u32> {
        self.bos_id
    }

    /// The file's padding id.
    pub fn pad_id(&self) -> Option<u32> {
        self.pad_id
    }

    /// Whether the file asks for a begin-of-text token. No supported model was trained with one and
    /// encoding never adds it; a caller may want to report the contradiction.
    pub fn wants_bos(&self) -> bool {
        self.add_bos
    }

    /// The split pattern in use.
    pub fn pre_tokenizer(&self) -> PreTokenizer {
        self.pre_tokenizer
    }

    /// The id of the token with exactly this text: an added token, else a normal one.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.added.id_of(text).or_else(|| {
            (0u32..).zip(&self.types).find_map(|(id, &token_type)| {
                (token_type == TokenType::Normal && self.token_bytes(id) == text.as_bytes()).then_some(id)
            })
        })
    }

    pub(crate) fn added(&self) -> &AddedTokens {
        &self.added
    }

    pub(crate) fn control_edges(&self) -> &ControlEdges {
        &self.control_edges
    }
}

/// Tokens as bytes, with their types.
struct TokenTable {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    types: Vec<TokenType>,
    added: AddedTokens,
}

impl TokenTable {
    fn new(vocabulary: &Vocabulary) -> Result<Self, TokenizerError> {
        let n_tokens = vocabulary.tokens.len();
        let mut bytes = Vec::with_capacity(vocabulary.tokens.iter().map(String::len).sum());
        let mut ends = Vec::with_capacity(n_tokens);
        let mut types = Vec::with_capacity(n_tokens);
        let mut added = Vec::new();
        for (id, (text, &token_type)) in (0u32..).zip(vocabulary.tokens.iter().zip(&vocabulary.token_types)) {
            let token_type = TokenType::from_file(id, token_type)?;
            match token_type {
                TokenType::Unknown | TokenType::Unused => {}
                TokenType::Normal => {
                    check_length(id, text)?;
                    append_bytes(text, &mut bytes)
                        .map_err(|character| TokenizerError::NotByteLevel { id, character })?;
                }
                TokenType::Control | TokenType::UserDefined => {
                    check_length(id, text)?;
                    if token_type == TokenType::Control && text.chars().nth(1).is_none() {
                        return Err(TokenizerError::ControlTokenTooShort { id, text: text.clone() });
                    }
                    bytes.extend_from_slice(text.as_bytes());
                    added.push(AddedToken { text: text.as_str().into(), id, token_type });
                }
            }
            // At most MAX_ENTRIES tokens of MAX_TOKEN_BYTES exceed u32; a file cannot hold them.
            let end = u32::try_from(bytes.len()).map_err(|_| TokenizerError::TooMany {
                what: "bytes of token text",
                actual: bytes.len(),
                limit: u32::MAX as usize,
            })?;
            ends.push(end);
            types.push(token_type);
        }
        let added = AddedTokens::new(added);
        check_added_are_distinct(&added)?;
        Ok(Self { bytes, ends, types, added })
    }

    /// The normal tokens by their bytes.
    fn normal_tokens(&self) -> Result<HashMap<&[u8], u32>, TokenizerError> {
        let mut by_bytes = HashMap::with_capacity(self.ends.len());
        for (id, token_type) in (0u32..).zip(&self.types) {
            if *token_type == TokenType::Normal
                && let Some(first) = by_bytes.insert(bytes_of(&self.bytes, &self.ends, id), id)
            {
                return Err(TokenizerError::DuplicateToken { first, second: id });
            }
        }
        Ok(by_bytes)
    }
}

fn bytes_of<'b>(bytes: &'b [u8], ends: &[u32], id: u32) -> &'b [u8] {
    let id = id as usize;
    let start = id.checked_sub(1).map_or(Some(0), |previous| ends.get(previous).copied());
    match (start, ends.get(id)) {
        (Some(start), Some(&end)) => bytes.get(start as usize..end as usize).unwrap_or(&[]),
        _ => &[],
    }
}

/// Appends the bytes that a text in the byte alphabet stands for, or gives the first other character.
fn append_bytes(text: &str, bytes: &mut Vec<u8>) -> Result<(), char> {
    for character in text.chars() {
        bytes.push(byte_of(character).ok_or(character)?);
    }
    Ok(())
}

fn check_counts(vocabulary: &Vocabulary) -> Result<(), TokenizerError> {
    let tokens = vocabulary.tokens.len();
    for (what, actual) in [("tokens", tokens), ("merges", vocabulary.merges.len())] {
        if actual > MAX_ENTRIES {
            return Err(TokenizerError::TooMany { what, actual, limit: MAX_ENTRIES });
        }
    }
    let token_types = vocabulary.token_types.len();
    if tokens != token_types {
        return Err(TokenizerError::TokenTypeCount { tokens, token_types });
    }
    let ids = [("eos", vocabulary.eos_id), ("bos", vocabulary.bos_id), ("pad", vocabulary.pad_id)];
    for (key, id) in ids {
        if let Some(id) = id.filter(|&id| id as usize >= tokens) {
            return Err(TokenizerError::IdOutOfRange { key, id, n_tokens: tokens });
        }
    }
    Ok(())
}

fn check_length(id: u32, text: &str) -> Result<(), TokenizerError> {
    match text.len() {
        0 => Err(TokenizerError::EmptyToken { id }),
        1..=MAX_TOKEN_BYTES => Ok(()),
        actual => Err(TokenizerError::TokenTooLong { id, actual, limit: MAX_TOKEN_BYTES }),
    }
}

fn check_added_are_distinct(added: &AddedTokens) -> Result<(), TokenizerError> {
    for (a, b) in added.iter().zip(added.iter().skip(1)) {
        if a.text == b.text {
            return Err(TokenizerError::DuplicateToken { first: a.id.min(b.id), second: a.id.max(b.id) });
        }
    }
    Ok(())
}

fn byte_tokens(normal: &HashMap<&[u8], u32>) -> Result<[u32; 256], TokenizerError> {
    let mut ids = [0; 256];
    for (byte, id) in (0..=u8::MAX).zip(&mut ids) {
        *id = *normal.get([byte].as_slice()).ok_or(TokenizerError::MissingByteToken { byte })?;
    }
    Ok(ids)
}

fn rules(merges: &[String], normal: &HashMap<&[u8], u32>) -> Result<Vec<Rule>, TokenizerError> {
    let mut rules = Vec::with_capacity(merges.len());
    let mut bytes = Vec::new();
    for (rank, rule) in (0u32..).zip(merges) {
        let malformed = || TokenizerError::MalformedMerge { rank, rule: shorten(rule) };
        let missing = |token: &str| TokenizerError::MergeOfMissingToken { rank, token: shorten(token) };
        // The first blank that is not the first character: the left side is never empty.
        let first_len = rule.chars().next().map_or(0, char::len_utf8);
        let blank = rule.get(first_len..).and_then(|tail| tail.find(' ')).ok_or_else(malformed)?;
        let (left, right) = rule.split_at_checked(first_len + blank).ok_or_else(malformed)?;
        let right = right.strip_prefix(' ').filter(|right| !right.is_empty()).ok_or_else(malformed)?;

        bytes.clear();
        append_bytes(left, &mut bytes).map_err(|_| missing(left))?;
        let left_len = bytes.len();
        append_bytes(right, &mut bytes).map_err(|_| missing(right))?;
        let (left_bytes, right_bytes) = bytes.split_at_checked(left_len).ok_or_else(malformed)?;
        let id = |bytes: &[u8]| normal.get(bytes).copied();
        rules.push(Rule {
            left: id(left_bytes).ok_or_else(|| missing(left))?,
            right: id(right_bytes).ok_or_else(|| missing(right))?,
            merged: id(&bytes).ok_or_else(|| missing(&format!("{left}{right}")))?,
        });
    }
    Ok(rules)
}

fn stop_ids(vocabulary: &Vocabulary, table: &TokenTable) -> Result<Vec<u32>, TokenizerError> {
    let mut ids = Vec::new();
    if let Some(id) = vocabulary.eos_id {
        let ordinary = table.types.get(id as usize) == Some(&TokenType::Normal);
        if ordinary {
            let text = String::from_utf8_lossy(bytes_of(&table.bytes, &table.ends, id)).into_owned();
            return Err(TokenizerError::EosNotControl { id, text });
        }
        ids.push(id);
    }
    for id in STOP_TEXTS.iter().filter_map(|text| table.added.id_of(text)) {
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    if ids.is_empty() { Err(TokenizerError::NoStopToken) } else { Ok(ids) }
}

/// The beginning of a text from the file, short enough for a message.
fn shorten(text: &str) -> String {
    text.chars().take(80).collect()
}
