//! Finding added tokens (control and user-defined) in raw text.

use crate::tokenizer::TokenType;

/// An added token found in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Match {
    /// Byte offset of its first character.
    pub start: usize,
    /// Byte offset after its last character.
    pub end: usize,
    pub id: u32,
}

#[derive(Debug, Clone)]
pub(crate) struct AddedToken {
    pub text: Box<str>,
    pub id: u32,
    pub token_type: TokenType,
}

/// The added tokens, sorted by text.
///
/// A look-up narrows the sorted range byte by byte, so its cost grows with the length of the longest
/// token but not with their number.
#[derive(Debug)]
pub(crate) struct AddedTokens {
    sorted: Vec<AddedToken>,
    /// Which bytes begin some added token.
    begins: [bool; 256],
}

impl AddedTokens {
    pub fn new(mut tokens: Vec<AddedToken>) -> Self {
        tokens.sort_unstable_by(|a, b| a.text.cmp(&b.text));
        let mut begins = [false; 256];
        for token in &tokens {
            if let Some(slot) = token.text.bytes().next().and_then(|b| begins.get_mut(usize::from(b))) {
                *slot = true;
            }
        }
        Self { sorted: tokens, begins }
    }

    pub fn iter(&self) -> impl Iterator<Item = &AddedToken> {
        self.sorted.iter()
    }

    pub fn id_of(&self, text: &str) -> Option<u32> {
        let at = self.sorted.binary_search_by(|token| (*token.text).cmp(text)).ok()?;
        self.sorted.get(at).map(|token| token.id)
    }

    /// The leftmost match at or after `from`, the longest of those that begin there.
    pub fn find(&self, text: &str, from: usize, wanted: impl Fn(TokenType) -> bool) -> Option<Match> {
        let bytes = text.as_bytes();
        let mut start = from;
        loop {
            let tail = bytes.get(start..)?;
            start += tail.iter().position(|&b| self.begins.get(usize::from(b)) == Some(&true))?;
            if let Some(token) = self.longest_at(bytes.get(start..)?, &wanted) {
                return Some(Match { start, end: start + token.text.len(), id: token.id });
            }
            start += 1;
        }
    }

    /// The longest wanted token that `tail` begins with.
    pub fn longest_at(&self, tail: &[u8], wanted: impl Fn(TokenType) -> bool) -> Option<&AddedToken> {
        let mut candidates = self.sorted.as_slice();
        let mut longest = None;
        for (depth, byte) in tail.iter().enumerate() {
            let byte_of = |token: &AddedToken| token.text.as_bytes().get(depth).copied();
            let low = candidates.partition_point(|token| byte_of(token) < Some(*byte));
            let high = candidates.partition_point(|token| byte_of(token) <= Some(*byte));
            candidates = candidates.get(low..high)?;
            // The shortest candidate sorts first: only it can end here.
            let Some(first) = candidates.first() else { break };
            if first.text.len() == depth + 1 && wanted(first.token_type) {
                longest = Some(first);
            }
        }
        longest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens() -> AddedTokens {
        let token = |text: &str, id, token_type| AddedToken { text: text.into(), id, token_type };
        AddedTokens::new(vec![
            token("<a>", 1, TokenType::Control),
            token("<a><b>", 2, TokenType::UserDefined),
            token("<b>", 3, TokenType::UserDefined),
            token("é", 4, TokenType::Control),
            token("<a", 5, TokenType::Control),
        ])
    }

    #[test]
    fn leftmost_then_longest() {
        let all = |_| true;
        let user_defined = |t| t == TokenType::UserDefined;
        let tokens = tokens();
        let found = |text: &str, from| tokens.find(text, from, all).map(|m| (m.start, m.end, m.id));
        assert_eq!(found("x<a><b>", 0), Some((1, 7, 2)));
        assert_eq!(found("x<a><c>", 0), Some((1, 4, 1)));
        assert_eq!(found("x<ab", 0), Some((1, 3, 5)));
        assert_eq!(found("<<b>", 0), Some((1, 4, 3)));
        assert_eq!(found("aé", 0), Some((1, 3, 4)));
        assert_eq!(found("<a>", 1), None);
        assert_eq!(found("", 0), None);
        assert_eq!(tokens.find("<a><b>", 0, user_defined).map(|m| m.id), Some(2));
        assert_eq!(tokens.find("<a> <b>", 0, user_defined).map(|m| (m.start, m.id)), Some((4, 3)));
        assert_eq!(tokens.id_of("<b>"), Some(3));
        assert_eq!(tokens.id_of("<c>"), None);
    }
}
