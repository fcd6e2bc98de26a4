//! Ids to text while they arrive: a token may end in the middle of a character.

use crate::tokenizer::{TokenType, Tokenizer};

/// Turns a stream of ids into text, complete characters only.
///
/// One per reply. Control tokens give no text; user-defined ones such as `</think>` do, for
/// [`ThinkFilter`](crate::ThinkFilter) to see.
#[derive(Debug, Clone, Default)]
pub struct Detokenizer {
    /// An incomplete but so far valid character: at most three bytes.
    held: Vec<u8>,
}

impl Detokenizer {
    /// A decoder at the start of a reply.
    pub fn new() -> Self {
        Self::default()
    }

    /// The text that `id` completes. Malformed bytes give one U+FFFD per maximal ill-formed prefix,
    /// as the WHATWG Encoding Standard decodes UTF-8.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> String {
        if tokenizer.token_type(id) == Some(TokenType::Control) {
            return String::new();
        }
        self.push_bytes(tokenizer.token_bytes(id))
    }

    /// [`push`](Self::push) for raw bytes.
    pub fn push_bytes(&mut self, bytes: &[u8]) -> String {
        self.held.extend_from_slice(bytes);
        let mut text = String::new();
        let mut incomplete_len = 0;
        let mut chunks = self.held.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            if chunks.peek().is_none() && may_continue(invalid) {
                incomplete_len = invalid.len();
            } else if !invalid.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        let complete_len = self.held.len() - incomplete_len;
        self.held.drain(..complete_len);
        text
    }

    /// The end of the reply: a character that never became complete gives one U+FFFD.
    pub fn finish(&mut self) -> String {
        let text = if self.held.is_empty() { "" } else { "\u{FFFD}" };
        self.held.clear();
        text.to_owned()
    }

    /// The reply was cut off: an incomplete character is dropped, nothing is shown for it.
    pub fn abort(&mut self) {
        self.held.clear();
    }
}

/// Whether these bytes, a maximal ill-formed prefix at the end of the input, are a character that
/// only lacks its last bytes.
fn may_continue(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stream(parts: &[&[u8]]) -> (Vec<String>, String) {
        let mut detokenizer = Detokenizer::new();
        let texts = parts.iter().map(|part| detokenizer.push_bytes(part)).collect();
        (texts, detokenizer.finish())
    }

    #[test]
    fn holds_back_incomplete_characters() {
        // Parts, text of each push, text of the final flush.
        type Case<'a> = (&'a [&'a [u8]], &'a [&'a str], &'a str);
        let cases: &[Case] = &[
            (&[b" \xF0\x9F\x98", b"\x8A"], &[" ", "\u{1F60A}"], ""),
            (&[b" \xF0\x9F\x98"], &[" "], "\u{FFFD}"),
            (&[b"\xE9", b"\x96", b"\x8B"], &["", "", "\u{958B}"], ""),
            (&[b"\xFF"], &["\u{FFFD}"], ""),
            (&[b"a\x80b"], &["a\u{FFFD}b"], ""),
            // E0 80: 80 cannot follow E0, so two ill-formed prefixes.
            (&[b"\xE0", b"\x80"], &["", "\u{FFFD}\u{FFFD}"], ""),
            // ED A0 80 (a surrogate): three ill-formed prefixes.
            (&[b"\xED\xA0\x80"], &["\u{FFFD}\u{FFFD}\u{FFFD}"], ""),
            // F1 80 80 then a letter: one prefix of three bytes.
            (&[b"\xF1\x80", b"\x80", b"x"], &["", "", "\u{FFFD}x"], ""),
            (&[b"\xF4\x90"], &["\u{FFFD}\u{FFFD}"], ""),
            (&[b"\xC1", b"\xBF"], &["\u{FFFD}", "\u{FFFD}"], ""),
            (&[b"\xC3", b"\xC3", b"\xA9"], &["", "\u{FFFD}", "\u{E9}"], ""),
            (&[b"\xEF\xBB\xBF", b"x"], &["\u{FEFF}", "x"], ""),
            (&[b""], &[""], ""),
        ];
        for (parts, texts, end) in cases {
            let (actual, actual_end) = stream(parts);
            assert_eq!(actual, *texts, "{parts:x?}");
            assert_eq!(actual_end, *end, "{parts:x?}");
        }
    }

    #[test]
    fn abort_emits_nothing_and_resets() {
        let mut detokenizer = Detokenizer::new();
        assert_eq!(detokenizer.push_bytes(b"a\xF0\x9F"), "a");
        detokenizer.abort();
        assert_eq!(detokenizer.finish(), "");
        assert_eq!(detokenizer.push_bytes(b"b"), "b");
    }
}
