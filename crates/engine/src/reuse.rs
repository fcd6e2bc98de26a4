//! What of a prompt the session held already, and why not more.

use crate::session::{Head, Obstacle};

/// Ids of context on each side of a divergence.
const CONTEXT: usize = 6;

/// How a prompt compares with the session that it was given to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reuse {
    /// Tokens that the session held.
    pub committed: u32,
    /// Tokens of the prompt, and of the reply that there is already.
    pub prompt: u32,
    /// Tokens of the prompt that did not have to be read.
    pub reused: u32,
    /// Tokens that are read: the rest of the prompt.
    pub prefilled: u32,
    /// Where the two differ, unless one begins with the other: the session with the token that it was to go on with.
    pub divergence: Option<Divergence>,
    /// Why less was reused than matched; nothing where all was.
    pub reason: Option<Obstacle>,
    /// Tokens of the session that attention no longer sees.
    pub dropped: u32,
}

/// The first token that differs, with the ids around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Divergence {
    /// Its index.
    pub at: u32,
    /// What comes before it in both.
    pub before: Vec<u32>,
    /// What follows in the session.
    pub committed: Vec<u32>,
    /// What follows in the prompt.
    pub prompt: Vec<u32>,
}

impl Reuse {
    /// Of `prompt` in a session, of which `reused` tokens are kept.
    pub(crate) fn of(head: &Head, prompt: &[u32], reused: u32, reason: Option<Obstacle>) -> Self {
        let common = head.common(prompt) as usize;
        let committed: Vec<u32> =
            head.ids.iter().chain(&head.pending).skip(common).take(CONTEXT).copied().collect();
        let theirs: Vec<u32> = prompt.iter().skip(common).take(CONTEXT).copied().collect();
        let differs = !committed.is_empty() && !theirs.is_empty();
        Self {
            committed: head.ids.len() as u32,
            prompt: prompt.len() as u32,
            reused,
            prefilled: prompt.len() as u32 - reused,
            divergence: differs.then(|| Divergence {
                at: common as u32,
                before: prompt[common.saturating_sub(CONTEXT)..common].to_vec(),
                committed,
                prompt: theirs,
            }),
            reason,
            dropped: head.dropped.len() as u32,
        }
    }
}
