//! The merge table and the merging of one piece.

use crate::error::TokenizerError;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// One merge rule with its operands and its result as token ids. Its rank is its index.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule {
    pub left: u32,
    pub right: u32,
    pub merged: u32,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    right: u32,
    rank: u32,
    merged: u32,
}

/// All merge rules, grouped by the left token and sorted by the right one.
///
/// A sorted table needs no hashing, so no vocabulary can make look-ups slow.
#[derive(Debug)]
pub(crate) struct MergeTable {
    /// `first[left] .. first[left + 1]` are the entries of `left`.
    first: Vec<u32>,
    entries: Vec<Entry>,
}

impl MergeTable {
    /// Builds the table. Every `left` must be below `n_tokens`.
    pub fn new(n_tokens: usize, rules: &[Rule]) -> Result<Self, TokenizerError> {
        let mut sorted: Vec<(u32, Entry)> = (0u32..)
            .zip(rules)
            .map(|(rank, rule)| (rule.left, Entry { right: rule.right, rank, merged: rule.merged }))
            .collect();
        sorted.sort_unstable_by_key(|&(left, entry)| (left, entry.right, entry.rank));
        for pair in sorted.windows(2) {
            if let [(left, a), (next_left, b)] = pair
                && (left, a.right) == (next_left, b.right)
            {
                return Err(TokenizerError::DuplicateMerge { first: a.rank, second: b.rank });
            }
        }
        let mut first = Vec::with_capacity(n_tokens + 1);
        let mut entries = Vec::with_capacity(sorted.len());
        for (left, entry) in sorted {
            while first.len() <= left as usize {
                first.push(entries.len() as u32);
            }
            entries.push(entry);
        }
        first.resize(n_tokens + 1, entries.len() as u32);
        Ok(Self { first, entries })
    }

    fn find(&self, left: u32, right: u32) -> Option<Entry> {
        let left = left as usize;
        let range = *self.first.get(left)? as usize..*self.first.get(left + 1)? as usize;
        let entries = self.entries.get(range)?;
        let at = entries.binary_search_by_key(&right, |entry| entry.right).ok()?;
        entries.get(at).copied()
    }

    /// Merges `symbols` (the byte tokens of one piece) and appends the resulting ids to `ids`.
    ///
    /// The lowest rank goes first, the leftmost of equal ranks. A queue of candidate pairs with
    /// stale-entry checks makes it `O(n log n)`; scanning for the best pair would be quadratic, and
    /// one run of blanks is one piece however long it is.
    pub fn merge(&self, symbols: &mut Vec<Symbol>, ids: &mut Vec<u32>) {
        let mut queue: BinaryHeap<Reverse<Candidate>> = BinaryHeap::new();
        for at in 0..symbols.len() {
            self.enqueue(symbols, at as u32, &mut queue);
        }
        while let Some(Reverse(candidate)) = queue.pop() {
            let Some((left, right)) = pair_at(symbols, candidate.at) else { continue };
            // An id never returns at a position, it only grows: equal ids mean the same pair.
            if (left.id, right.id) != (candidate.left, candidate.right) {
                continue;
            }
            let right_at = left.next;
            if let Some(symbol) = symbols.get_mut(candidate.at as usize) {
                symbol.id = candidate.merged;
                symbol.next = right.next;
            }
            if let Some(symbol) = symbols.get_mut(right_at as usize) {
                symbol.id = GONE;
            }
            if let Some(symbol) = symbols.get_mut(right.next as usize) {
                symbol.previous = candidate.at;
            }
            self.enqueue(symbols, candidate.at, &mut queue);
            self.enqueue(symbols, left.previous, &mut queue);
        }
        ids.extend(symbols.iter().map(|symbol| symbol.id).filter(|&id| id != GONE));
        symbols.clear();
    }

    fn enqueue(&self, symbols: &[Symbol], at: u32, queue: &mut BinaryHeap<Reverse<Candidate>>) {
        if let Some((left, right)) = pair_at(symbols, at)
            && let Some(entry) = self.find(left.id, right.id)
        {
            queue.push(Reverse(Candidate {
                rank: entry.rank,
                at,
                left: left.id,
                right: right.id,
                merged: entry.merged,
            }));
        }
    }
}

/// Marks a symbol that was merged into its left neighbour. No vocabulary is that large.
const GONE: u32 = u32::MAX;
/// No neighbour.
const NONE: u32 = u32::MAX;

/// An element of the doubly linked list of a piece's symbols.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Symbol {
    id: u32,
    previous: u32,
    next: u32,
}

/// Fills `symbols` with a list of the given token ids.
pub(crate) fn link(symbols: &mut Vec<Symbol>, token_ids: impl ExactSizeIterator<Item = u32>) {
    let count = token_ids.len();
    symbols.clear();
    symbols.extend(token_ids.enumerate().map(|(at, id)| Symbol {
        id,
        previous: if at == 0 { NONE } else { at as u32 - 1 },
        next: if at + 1 == count { NONE } else { at as u32 + 1 },
    }));
}

fn pair_at(symbols: &[Symbol], at: u32) -> Option<(Symbol, Symbol)> {
    let left = *symbols.get(at as usize)?;
    let right = *symbols.get(left.next as usize)?;
    (left.id != GONE).then_some((left, right))
}

/// A mergeable pair, ordered by rank, then by position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    at: u32,
    left: u32,
    right: u32,
    merged: u32,
}
