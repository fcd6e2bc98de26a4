//! Splitting text into the pieces that merges never cross.
//!
//! The two patterns of the Qwen family use a lookahead, which Rust's `regex` does not offer, and a
//! backtracking engine would cost more wasm than the rest of this crate. Each alternative needs at
//! most one code point of context, so a scanner is exact:
//!
//! ```text
//! (?i:'s|'t|'re|'ve|'m|'ll|'d) | [^\r\n\p{L}\p{N}]?W+ | \p{N} | ?[^\s\p{L}\p{N}]+[\r\n]*
//!   | \s*[\r\n]+ | \s+(?!\S) | \s+
//! ```
//!
//! `W` is `\p{L}` for qwen2. For qwen35 it is `[\p{L}\p{M}]`, and the fourth alternative excludes
//! `\p{M}` as well.

use crate::error::TokenizerError;
use unicode_properties::{GeneralCategoryGroup, UnicodeGeneralCategory};

/// A split pattern, by the name `tokenizer.ggml.pre` gives it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PreTokenizer {
    /// Qwen2 and Qwen3: a combining mark is punctuation.
    Qwen2,
    /// Qwen3.5: a combining mark belongs to the word.
    Qwen35,
}

/// What the patterns distinguish. Every code point is in exactly one class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Letter,
    Mark,
    Number,
    Space,
    Other,
}

impl PreTokenizer {
    /// The pattern a file names.
    ///
    /// # Errors
    /// An absent or unknown name: a wrong pattern would give plausible but wrong ids.
    pub fn from_name(name: Option<&str>) -> Result<Self, TokenizerError> {
        match name {
            Some("qwen2") => Ok(Self::Qwen2),
            Some("qwen35") => Ok(Self::Qwen35),
            Some(name) => {
                Err(TokenizerError::UnsupportedPreTokenizer { name: name.chars().take(80).collect() })
            }
            None => Err(TokenizerError::MissingPreTokenizer),
        }
    }

    /// The pieces of a segment, in order; together they are the whole segment.
    ///
    /// The end of the segment counts as the end of the text: split at added tokens first.
    pub fn pieces(self, segment: &str) -> Pieces<'_> {
        Pieces { pattern: self, rest: segment }
    }

    fn class(self, c: char) -> Class {
        match c {
            'a'..='z' | 'A'..='Z' => return Class::Letter,
            '0'..='9' => return Class::Number,
            ' ' | '\t'..='\r' => return Class::Space,
            '\0'..='\x7F' => return Class::Other,
            _ => {}
        }
        if c.is_whitespace() {
            return Class::Space;
        }
        match c.general_category_group() {
            GeneralCategoryGroup::Letter => Class::Letter,
            GeneralCategoryGroup::Number => Class::Number,
            GeneralCategoryGroup::Mark if self == Self::Qwen35 => Class::Mark,
            _ => Class::Other,
        }
    }

    fn in_word(self, c: char) -> bool {
        matches!(self.class(c), Class::Letter | Class::Mark)
    }
}

/// Iterator over the pieces of a segment.
#[derive(Debug, Clone)]
pub struct Pieces<'t> {
    pattern: PreTokenizer,
    rest: &'t str,
}

impl<'t> Iterator for Pieces<'t> {
    type Item = &'t str;

    fn next(&mut self) -> Option<&'t str> {
        let first = self.rest.chars().next()?;
        // The length is a sum of whole characters of `rest`, so the split cannot fail; should it,
        // the rest as one piece keeps every byte.
        let (piece, rest) = self
            .rest
            .split_at_checked(self.piece_len_bytes(first))
            .filter(|(piece, _)| !piece.is_empty())
            .unwrap_or((self.rest, ""));
        self.rest = rest;
        Some(piece)
    }
}

impl Pieces<'_> {
    fn piece_len_bytes(&self, first: char) -> usize {
        let pattern = self.pattern;
        let after_first = after(self.rest, first.len_utf8());
        let second = after_first.chars().next();

        if first == '\''
            && let Some(suffix) = contraction_len_bytes(after_first)
        {
            return first.len_utf8() + suffix;
        }
        let class = pattern.class(first);
        let leads_word = !matches!(first, '\r' | '\n') && !matches!(class, Class::Letter | Class::Number);
        if pattern.in_word(first) || (leads_word && second.is_some_and(|c| pattern.in_word(c))) {
            return first.len_utf8() + run_len_bytes(after_first, |c| pattern.in_word(c));
        }
        if class == Class::Number {
            return first.len_utf8();
        }
        let is_other = |c| pattern.class(c) == Class::Other;
        if class == Class::Other || (first == ' ' && second.is_some_and(is_other)) {
            let symbols = first.len_utf8() + run_len_bytes(after_first, is_other);
            return symbols + run_len_bytes(after(self.rest, symbols), is_newline);
        }
        self.whitespace_len_bytes()
    }

    /// The last three alternatives: up to the last newline of the run; else all but the last
    /// character, which is left to lead the next piece; all of it at the end of the segment.
    fn whitespace_len_bytes(&self) -> usize {
        let run_len = run_len_bytes(self.rest, |c| self.pattern.class(c) == Class::Space);
        let run = self.rest.get(..run_len).unwrap_or(self.rest);
        if let Some(last_newline) = run.rfind(is_newline) {
            return last_newline + 1;
        }
        if run_len == self.rest.len() {
            return run_len;
        }
        let last_len = run.chars().next_back().map_or(0, char::len_utf8);
        if run_len > last_len { run_len - last_len } else { run_len }
    }
}

fn is_newline(c: char) -> bool {
    matches!(c, '\r' | '\n')
}

fn after(text: &str, offset_bytes: usize) -> &str {
    text.get(offset_bytes..).unwrap_or("")
}

fn run_len_bytes(text: &str, belongs: impl Fn(char) -> bool) -> usize {
    text.find(|c| !belongs(c)).unwrap_or(text.len())
}

/// Length of `s`, `t`, `m`, `d`, `re`, `ve` or `ll` at the start of `text`, without regard to case.
/// The long s (U+017F) folds to `s`.
fn contraction_len_bytes(text: &str) -> Option<usize> {
    let mut chars = text.chars();
    let first = chars.next()?;
    match (first.to_ascii_lowercase(), chars.next().map(|c| c.to_ascii_lowercase())) {
        ('s' | 't' | 'm' | 'd' | '\u{17F}', _) => Some(first.len_utf8()),
        ('r' | 'v', Some('e')) | ('l', Some('l')) => Some(2),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: PreTokenizer, cases: &[(&str, &[&str])]) {
        for (text, expected) in cases {
            let pieces: Vec<&str> = pattern.pieces(text).collect();
            assert_eq!(&pieces, expected, "{pattern:?} {text:?}");
        }
    }

    const BOTH: &[(&str, &[&str])] = &[
        ("", &[]),
        ("  foo", &[" ", " foo"]),
        ("\tfoo", &["\tfoo"]),
        ("\u{A0}x", &["\u{A0}x"]),
        (" 5", &[" ", "5"]),
        ("a\n\n  b", &["a", "\n\n", " ", " b"]),
        (" \n\n x", &[" \n\n", " x"]),
        ("!!\n\n", &["!!\n\n"]),
        ("?\r\nx", &["?\r\n", "x"]),
        ("don't", &["don", "'t"]),
        ("DON'T", &["DON", "'T"]),
        ("'RE", &["'RE"]),
        ("'rex", &["'re", "x"]),
        ("'x", &["'x"]),
        ("I'll go", &["I", "'ll", " go"]),
        ("'l", &["'l"]),
        ("'\u{17F}x", &["'\u{17F}", "x"]),
        ("a  b", &["a", " ", " b"]),
        ("a   ", &["a", "   "]),
        ("a \n b", &["a", " \n", " b"]),
        ("a\r\nb", &["a", "\r\n", "b"]),
        ("\n5", &["\n", "5"]),
        ("2026", &["2", "0", "2", "6"]),
        ("\u{2167}\u{BD}\u{663}", &["\u{2167}", "\u{BD}", "\u{663}"]),
        ("foo_bar", &["foo", "_bar"]),
        ("(hello)", &["(hello", ")"]),
        ("#include <stdio.h>", &["#include", " <", "stdio", ".h", ">"]),
        ("\u{FEFF}x", &["\u{FEFF}x"]),
        ("a\u{3000}\u{3000}b", &["a", "\u{3000}", "\u{3000}b"]),
        ("\u{85}\u{2028}", &["\u{85}\u{2028}"]),
        ("<|im_end|>", &["<|", "im", "_end", "|>"]),
        ("\r5", &["\r", "5"]),
        ("\nfoo", &["\n", "foo"]),
        (" \u{1F600}\n", &[" \u{1F600}\n"]),
    ];

    #[test]
    fn pieces_of_both_patterns() {
        check(PreTokenizer::Qwen2, BOTH);
        check(PreTokenizer::Qwen35, BOTH);
    }

    #[test]
    fn combining_marks_tell_the_patterns_apart() {
        check(
            PreTokenizer::Qwen2,
            &[
                ("x\u{301}", &["x", "\u{301}"]),
                ("x \u{301}y", &["x", " \u{301}", "y"]),
                ("\u{301}\u{301}", &["\u{301}\u{301}"]),
                ("\u{301}a", &["\u{301}a"]),
            ],
        );
        check(
            PreTokenizer::Qwen35,
            &[
                ("x\u{301}", &["x\u{301}"]),
                ("x \u{301}y", &["x", " \u{301}y"]),
                ("\u{301}\u{301}", &["\u{301}\u{301}"]),
                ("!\u{301}!", &["!\u{301}", "!"]),
                (
                    "\u{939}\u{93F}\u{928}\u{94D}\u{926}\u{940}",
                    &["\u{939}\u{93F}\u{928}\u{94D}\u{926}\u{940}"],
                ),
            ],
        );
    }

    #[test]
    fn only_known_names() {
        assert_eq!(PreTokenizer::from_name(Some("qwen2")), Ok(PreTokenizer::Qwen2));
        assert_eq!(PreTokenizer::from_name(Some("qwen35")), Ok(PreTokenizer::Qwen35));
        assert_eq!(PreTokenizer::from_name(None), Err(TokenizerError::MissingPreTokenizer));
        assert_eq!(
            PreTokenizer::from_name(Some("foo")),
            Err(TokenizerError::UnsupportedPreTokenizer { name: "foo".to_owned() })
        );
    }
}
