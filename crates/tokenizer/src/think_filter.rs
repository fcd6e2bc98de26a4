//! Splitting a reply into its thought and its answer while it arrives.

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// Which part of a reply a piece of text belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// The thought, between `<think>` and `</think>`.
    Reasoning,
    /// What is meant for the reader.
    Answer,
}

/// A piece of a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// Where it belongs.
    pub channel: Channel,
    /// Never empty.
    pub text: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing but blanks so far: a thought may still open.
    Start,
    /// After `<think>`, before the first character that is no line feed.
    ThoughtStart,
    Thought,
    /// After `</think>`, before the first character that is no line feed.
    AnswerStart,
    Answer,
}

/// Splits streamed text at `<think>` and `</think>`.
///
/// A thought opens at the beginning of the reply or not at all, and closes once; the same tags later
/// are part of the answer. The tags and the line feeds around the two parts are dropped: templates
/// write them anew. Text that may be the beginning of a tag is held back until it is decided.
#[derive(Debug, Clone)]
pub struct ThinkFilter {
    state: State,
    held: String,
}

impl ThinkFilter {
    /// A filter for one reply. `reasoning_open` tells that the prompt has opened a thought already
    /// ([`Rendered::reasoning_open`](crate::Rendered)).
    pub fn new(reasoning_open: bool) -> Self {
        Self { state: if reasoning_open { State::ThoughtStart } else { State::Start }, held: String::new() }
    }

    /// Whether the next text belongs to a thought, for counting and limiting its tokens.
    pub fn in_reasoning(&self) -> bool {
        matches!(self.state, State::ThoughtStart | State::Thought)
    }

    /// Takes the next text and gives what is decided.
    pub fn push(&mut self, text: &str) -> Vec<Piece> {
        self.held.push_str(text);
        let mut pieces = Vec::new();
        while self.step(&mut pieces) {}
        pieces
    }

    /// The end of the reply: gives what was held back. Line feeds at the end of a thought are dropped.
    pub fn finish(&mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Start | State::Answer => emit(&mut pieces, Channel::Answer, &held),
            State::AnswerStart => {}
            State::ThoughtStart | State::Thought => {
                emit(&mut pieces, Channel::Reasoning, held.trim_end_matches('\n'));
            }
        }
        pieces
    }

    /// Handles a prefix of the held text; whether there may be more to do.
    fn step(&mut self, pieces: &mut Vec<Piece>) -> bool {
        match self.state {
            State::Start => {
                let text = self.held.trim_start();
                if let Some(rest) = text.strip_prefix(OPEN) {
                    self.held = rest.to_owned();
                    self.state = State::ThoughtStart;
                } else if OPEN.starts_with(text) {
                    return false;
                } else {
                    self.state = State::Answer;
                }
                true
            }
            State::ThoughtStart | State::AnswerStart => {
                let kept = self.held.trim_start_matches('\n').len();
                self.held.drain(..self.held.len() - kept);
                if self.held.is_empty() {
                    return false;
                }
                self.state = if self.state == State::ThoughtStart { State::Thought } else { State::Answer };
                true
            }
            State::Thought => {
                if let Some((thought, rest)) = self.held.split_once(CLOSE) {
                    emit(pieces, Channel::Reasoning, thought.trim_end_matches('\n'));
                    self.held = rest.to_owned();
                    self.state = State::AnswerStart;
                    return true;
                }
                let undecided = undecided_len_bytes(&self.held);
                let decided: String = self.held.drain(..self.held.len() - undecided).collect();
                emit(pieces, Channel::Reasoning, &decided);
                false
            }
            State::Answer => {
                emit(pieces, Channel::Answer, &self.held);
                self.held.clear();
                false
            }
        }
    }
}

/// Length of the end of a thought that may belong to its closing: line feeds, then a beginning of
/// `</think>`.
fn undecided_len_bytes(text: &str) -> usize {
    let tag = (1..CLOSE.len()).rev().find(|&len| CLOSE.get(..len).is_some_and(|tag| text.ends_with(tag)));
    let before_tag = text.get(..text.len() - tag.unwrap_or(0)).unwrap_or("");
    text.len() - before_tag.trim_end_matches('\n').len()
}

fn emit(pieces: &mut Vec<Piece>, channel: Channel, text: &str) {
    if !text.is_empty() {
        pieces.push(Piece { channel, text: text.to_owned() });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(pieces: Vec<Piece>, reasoning: &mut String, answer: &mut String) {
        for piece in pieces {
            assert!(!piece.text.is_empty());
            match piece.channel {
                Channel::Reasoning => reasoning.push_str(&piece.text),
                Channel::Answer => answer.push_str(&piece.text),
            }
        }
    }

    /// Splits the text cut into pieces of `size` characters.
    fn split(text: &str, reasoning_open: bool, size: usize) -> (String, String) {
        let (mut reasoning, mut answer) = (String::new(), String::new());
        let mut filter = ThinkFilter::new(reasoning_open);
        let chars: Vec<char> = text.chars().collect();
        for part in chars.chunks(size) {
            collect(filter.push(&part.iter().collect::<String>()), &mut reasoning, &mut answer);
        }
        collect(filter.finish(), &mut reasoning, &mut answer);
        (reasoning, answer)
    }

    #[test]
    fn splits_the_same_however_the_text_is_cut() {
        let cases = [
            (false, "Hello", "", "Hello"),
            (false, "<think>\nhm\nhm\n</think>\n\nHello\n", "hm\nhm", "Hello\n"),
            (false, "\n<think>\n\n</think>\n\nHello", "", "Hello"),
            (false, "<thin", "", "<thin"),
            (false, "  <b>", "", "  <b>"),
            (false, "a <think>b</think>c", "", "a <think>b</think>c"),
            (true, "hm\n</think>\n\nHello", "hm", "Hello"),
            (true, "a </thin b\n\n</think>x</think>y<think>", "a </thin b", "x</think>y<think>"),
            (true, "\n\n</think>\n\nHello", "", "Hello"),
            (true, "never closed\n", "never closed", ""),
            (true, "half </thi", "half </thi", ""),
            (true, "é\n\n</think>\n\n\u{1F600}", "é", "\u{1F600}"),
            (true, "", "", ""),
        ];
        for (open, text, reasoning, answer) in cases {
            for size in 1..=text.chars().count().max(1) {
                let expected = (reasoning.to_owned(), answer.to_owned());
                assert_eq!(split(text, open, size), expected, "{text:?} in pieces of {size}");
            }
        }
    }

    #[test]
    fn nothing_is_held_longer_than_needed() {
        let mut filter = ThinkFilter::new(true);
        let piece = |channel, text: &str| vec![Piece { channel, text: text.to_owned() }];
        assert_eq!(filter.push("a"), piece(Channel::Reasoning, "a"));
        assert_eq!(filter.push("b\n<"), piece(Channel::Reasoning, "b"));
        assert_eq!(filter.push("c"), piece(Channel::Reasoning, "\n<c"));
        assert!(filter.in_reasoning());
        assert_eq!(filter.push("\n</think>"), vec![]);
        assert!(!filter.in_reasoning());
        assert_eq!(filter.push("\n\n"), vec![]);
        assert_eq!(filter.push("x"), piece(Channel::Answer, "x"));
    }
}
