//! Where a session lies in the buffers of the caches, as ranges of words in a fixed order.
//!
//! A session of `n` tokens is rows and a state. *Rows* are what attention keeps of a token and never
//! changes again: its key and value, or in the 4-bit cache those of the sink and the quantised ones.
//! The *state* is what the next tokens overwrite: recurrent states, and the exact rows of the 4-bit
//! cache's residual window. So rows of a longer session serve a shorter one as they are, and a
//! checkpoint is the state alone.

use std::ops::Range;

use signbit_shaders::kernels::kivi::{self, Cursors, Part};
use signbit_shaders::{BufferId, Tensor};

use super::attention::Cache;
use crate::device::Words;

/// Rows that lie together in a snapshot take about as many bytes.
const BLOCK_BYTES: u64 = 8 << 20;

/// And are no more than this, so that a short session is not one piece that each turn changes.
const MAX_BLOCK_ROWS: u32 = 1024;

/// The buffers that a session fills.
#[derive(Clone, Debug, Default)]
pub struct Kept {
    /// Keys and values of each attention layer.
    pub(super) attention: Vec<Cache>,
    /// Recurrent states, which a fresh session starts at zero.
    pub(super) recurrent: Vec<Tensor>,
}

impl Kept {
    /// Whether a state cannot be cut back, only replaced.
    pub fn is_recurrent(&self) -> bool {
        !self.recurrent.is_empty()
    }

    /// Whether rows are quantised by windows.
    pub fn is_quantised(&self) -> bool {
        matches!(self.attention.first(), Some(Cache::Kivi(_)))
    }

    /// Recurrent states, which a fresh session starts at zero.
    pub fn recurrent_buffers(&self) -> Vec<BufferId> {
        self.recurrent.iter().map(|tensor| tensor.buffer).collect()
    }

    /// How many of the first `n` tokens have rows that never change.
    pub fn settled(&self, n: u32) -> u32 {
        if self.is_quantised() { n - Cursors::at(n).residual } else { n }
    }

    /// The only numbers of tokens by which rows can move: whole windows of the quantised, and as many
    /// as a recurrent layer's ring has rows, which are found by position.
    pub fn granule(&self) -> u32 {
        if self.is_quantised() { kivi::WINDOW } else { signbit_shaders::kernels::delta_step::RING_ROWS }
    }

    /// `n` rounded up to where rows that move may begin.
    pub fn round_up(&self, n: u32) -> u32 {
        match self.is_quantised() {
            true if n <= kivi::SINK => kivi::SINK,
            true => (n - kivi::SINK)
                .checked_next_multiple_of(kivi::WINDOW)
                .map_or(u32::MAX, |rows| rows.saturating_add(kivi::SINK)),
            false => n,
        }
    }

    /// The rows of the tokens in `0..settled`, in blocks whose borders do not depend on their number.
    pub fn blocks(&self, settled: u32) -> Vec<Range<u32>> {
        let row_bytes = self.row_bytes().max(1);
        let most = (BLOCK_BYTES / row_bytes).clamp(1, MAX_BLOCK_ROWS.into()) as u32;
        let (first, step) = if self.is_quantised() {
            (kivi::SINK, (most / kivi::WINDOW).max(1) * kivi::WINDOW)
        } else {
            (0, 1 << most.ilog2())
        };
        let mut blocks = Vec::new();
        let mut start = 0;
        while start < settled {
            // The sink lies in the first block.
            let end = start.max(first).saturating_add(step).min(settled);
            blocks.push(start..end);
            start = end;
        }
        blocks
    }

    /// Bytes of one settled row of all layers, quantised if rows are.
    fn row_bytes(&self) -> u64 {
        let bytes = |cache: &Cache| match cache {
            Cache::F32(cache) => 4 * u64::from(cache.k.cols + cache.v.cols),
            Cache::Kivi(cache) => cache.layout.bytes_per_quantised_token(),
        };
        self.attention.iter().map(bytes).sum()
    }

    /// Where the rows of `tokens` lie. They are settled, and begin and end where a block may.
    pub fn rows(&self, tokens: Range<u32>) -> Vec<Words> {
        let mut words = Vec::new();
        for cache in &self.attention {
            match cache {
                Cache::F32(cache) => {
                    for tensor in [cache.k, cache.v] {
                        let of = |row: u32| u64::from(row) * u64::from(tensor.cols);
                        words.push((tensor.buffer, of(tokens.start)..of(tokens.end)));
                    }
                }
                Cache::Kivi(cache) => {
                    let sink = tokens.start.min(kivi::SINK)..tokens.end.min(kivi::SINK);
                    let below = |token: u32| token.saturating_sub(kivi::SINK);
                    let rows = below(tokens.start)..below(tokens.end);
                    for (part, head) in parts(&cache.layout) {
                        let layout = &cache.layout;
                        let exact = |slot| layout.exact_index(part, head, slot) as u64;
                        let codes = |row| layout.code_index(part, head, row, 0) as u64;
                        let scales = |row| layout.scale_index(part, head, row, 0) as u64;
                        words.push((cache.exact.buffer, exact(sink.start)..exact(sink.end)));
                        words.push((cache.codes.buffer, codes(rows.start)..codes(rows.end)));
                        words.push((cache.scales.buffer, scales(rows.start)..scales(rows.end)));
                    }
                }
            }
        }
        words.retain(|(_, range)| !range.is_empty());
        words
    }

    /// Bytes of the largest state.
    pub fn max_state_bytes(&self) -> u64 {
        4 * count(&self.state(kivi::EXACT_SLOTS))
    }

    /// Where the state after `n` tokens lies.
    pub fn state(&self, n: u32) -> Vec<Words> {
        let mut words: Vec<Words> =
            self.recurrent.iter().map(|tensor| (tensor.buffer, 0..tensor.n_bytes() / 4)).collect();
        let residual = Cursors::at(n).residual;
        for cache in &self.attention {
            if let Cache::Kivi(cache) = cache
                && residual > 0
            {
                for (part, head) in parts(&cache.layout) {
                    let exact = |slot| cache.layout.exact_index(part, head, slot) as u64;
                    words.push((cache.exact.buffer, exact(kivi::SINK)..exact(kivi::SINK + residual)));
                }
            }
        }
        words
    }

    /// Layers, heads and constants, as text: equal where the words of a session mean the same.
    pub fn geometry(&self) -> String {
        let attention = self.attention.first().map(|cache| match cache {
            Cache::F32(cache) => format!("f32 {}+{}", cache.k.cols, cache.v.cols),
            Cache::Kivi(cache) => {
                let kivi::Layout { num_kv_heads, head_dim, .. } = cache.layout;
                let (sink, window, group) = (kivi::SINK, kivi::WINDOW, kivi::GROUP);
                format!("kivi {num_kv_heads}x{head_dim}, sink {sink}, window {window}, group {group}")
            }
        });
        let recurrent: Vec<_> = self.recurrent.iter().map(|t| format!("{}x{}", t.rows, t.cols)).collect();
        format!(
            "{} attention layers of {}; recurrent {}",
            self.attention.len(),
            attention.unwrap_or_default(),
            recurrent.join(" ")
        )
    }
}

/// The number of words in all ranges.
pub fn count(words: &[Words]) -> u64 {
    words.iter().map(|(_, range)| range.end - range.start).sum()
}

/// The part of `words` from word `start` on, at most `len` words of it.
pub fn part(words: &[Words], start: u64, len: u64) -> Vec<Words> {
    let end = start.saturating_add(len);
    let mut at = 0;
    let mut found = Vec::new();
    for (buffer, range) in words {
        let n = range.end - range.start;
        let (from, to) = (start.clamp(at, at + n), end.clamp(at, at + n));
        if from < to {
            found.push((*buffer, range.start + (from - at)..range.start + (to - at)));
        }
        at += n;
    }
    found
}

/// Every part and head of a 4-bit cache.
fn parts(layout: &kivi::Layout) -> impl Iterator<Item = (Part, u32)> + use<> {
    let heads = layout.num_kv_heads;
    [Part::Key, Part::Value].into_iter().flat_map(move |part| (0..heads).map(move |head| (part, head)))
}
