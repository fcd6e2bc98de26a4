//! The 4-bit KV cache of an attention layer, after KIVI (Liu et al. 2024, arXiv:2402.02750): keys
//! are quantised per channel, values per token.
//!
//! A sequence lies in three regions, in this order:
//!
//! ```text
//! sink: the first 8 tokens, f32 | quantised: 4 bits | residual: up to 128 newest tokens, f32
//! ```
//!
//! The flush is lazy: the append that finds the residual window full first quantises all 128 rows of it.
//! So every query sees itself and what is in the window exactly, and where a token lies follows
//! from the length alone ([`Cursors::at`]).
//!
//! Keys are stored normed and rotated, values as projected. A group of 32 f32 values, which for keys
//! are 32 tokens of one channel and for values 32 channels of one token, becomes 32 codes with a
//! scale `s` and a minimum `m`, both halves:
//!
//! ```text
//! code = clamp(floor((x - m) / s + 0.5), 0, 15)        x' = s * code + m
//! ```
//!
//! This module is the CPU side of `common/kivi.wgsl`.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use half::f16;
use thiserror::Error;

use super::qkv::AttentionShape;
use crate::cpu::attention::Block;
use crate::kernel::{BufferId, ShapeError, Tensor, expect_shape, require};

/// Tokens at the start of a sequence that are never quantised.
pub const SINK: u32 = 8;

/// Rows of the residual window, which are quantised together.
pub const WINDOW: u32 = 128;

/// Values that share a scale and a minimum.
pub const GROUP: u32 = 32;

/// Words of the exact rows of the smallest layout, one KV head of 32: no cache has smaller buffers.
pub const MIN_BUFFER_WORDS: u64 = 2 * EXACT_SLOTS as u64 * 32;

/// Queries that a workgroup serves at once, so that it unpacks a row once for all of them.
pub const MAX_QUERIES: u32 = 8;

/// The largest 4-bit code.
const MAX_CODE: f32 = 15.0;

/// The largest half.
const MAX_HALF: f32 = 65_504.0;

/// The smallest normal half: a scale is no smaller, so that a GPU that flushes subnormals agrees.
const MIN_SCALE: f32 = 1.0 / 16_384.0;

/// How many rows each region holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cursors {
    /// Rows of the sink.
    pub sink: u32,
    /// Quantised rows, a multiple of [`WINDOW`].
    pub quantised: u32,
    /// Rows of the residual window.
    pub residual: u32,
}

/// Slots of exact rows: those of the sink, then those of the residual window.
pub const EXACT_SLOTS: u32 = SINK + WINDOW;

/// Where a token's key and value are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Slot of the exact rows.
    Exact(u32),
    /// Quantised row.
    Quantised(u32),
}

/// A length that the cache cannot go back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{len} tokens end inside the {quantised} quantised rows, whose exact values are gone")]
pub struct TruncateError {
    /// The length asked for.
    pub len: u32,
    /// Quantised rows.
    pub quantised: u32,
}

impl Cursors {
    /// The regions of a sequence of `len` tokens that was only ever appended to.
    pub fn at(len: u32) -> Self {
        let Some(middle) = len.checked_sub(SINK).filter(|&middle| middle > 0) else {
            return Self { sink: len, quantised: 0, residual: 0 };
        };
        let residual = (middle - 1) % WINDOW + 1;
        Self { sink: SINK, quantised: middle - residual, residual }
    }

    /// Tokens in all regions.
    pub fn len(&self) -> u32 {
        self.sink + self.quantised + self.residual
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where token `u` is, counted from 0.
    pub fn place(&self, u: u32) -> Place {
        match u.checked_sub(SINK) {
            None => Place::Exact(u),
            Some(row) if row < self.quantised => Place::Quantised(row),
            Some(row) => Place::Exact(SINK + row - self.quantised),
        }
    }

    /// Forgets the newest tokens, so that `len` are left.
    ///
    /// Only exact rows can be dropped one by one: a quantised row cannot go back into the window. A
    /// cache cut exactly at the end of its quantised rows has an empty window, which no sequence of
    /// appends yields, so the kernels, which use [`Cursors::at`], cannot go on from there.
    pub fn truncate(self, len: u32) -> Result<Self, TruncateError> {
        let len = len.min(self.len());
        if self.quantised == 0 {
            return Ok(Self { sink: len.min(SINK), quantised: 0, residual: len.saturating_sub(SINK) });
        }
        match len.checked_sub(self.sink + self.quantised) {
            Some(residual) => Ok(Self { residual, ..self }),
            None => Err(TruncateError { len, quantised: self.quantised }),
        }
    }
}

/// Whether the token that is appended at `position` finds the residual window full.
pub fn finds_window_full(position: u32) -> bool {
    position > SINK && (position - SINK).is_multiple_of(WINDOW)
}

/// How many tokens from `position` on can be appended before one would find the window full, the
/// first of them excepted. A prompt that is read in such pieces leaves the cache, and shows each
/// query the rows, that reading it token by token does.
pub fn piece(position: u32) -> u32 {
    SINK + Cursors::at(position.saturating_add(1)).quantised + WINDOW - position
}

/// Keys or values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Keys.
    Key,
    /// Values.
    Value,
}

/// Geometry of one layer's cache and the places in its three buffers. Each buffer holds the part
/// for keys and then the part for values:
///
/// * `exact` f32, the sink's 8 slots and then the residual window's 128: `[Hkv][136][Dh]`;
/// * `codes` u32, eight codes a word, the first in the lowest bits: `[Hkv][capacity][Dh / 8]`;
/// * `scales` u32, scale in the low half, minimum in the high half:
///   keys `[Hkv][capacity / 32][Dh]`, values `[Hkv][capacity][Dh / 32]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Key and value heads.
    pub num_kv_heads: u32,
    /// Elements per head, a multiple of 32 and at most 256.
    pub head_dim: u32,
    /// Tokens that the cache holds.
    pub context: u32,
}

impl Layout {
    /// The layout for `context` tokens.
    pub fn new(num_kv_heads: u32, head_dim: u32, context: u32) -> Result<Self, ShapeError> {
        let name = "kivi cache";
        require(name, "num_kv_heads", num_kv_heads, num_kv_heads > 0, "at least 1")?;
        let groups = head_dim > 0 && head_dim.is_multiple_of(GROUP) && head_dim <= 256;
        require(name, "head_dim", head_dim, groups, "a multiple of 32 from 32 to 256")?;
        let rows = u64::from(context).saturating_sub(SINK.into()).next_multiple_of(WINDOW.into());
        let n_codes = (2 * rows * u64::from(num_kv_heads)).saturating_mul(head_dim.into());
        let n_exact = 2 * u64::from(EXACT_SLOTS) * u64::from(num_kv_heads) * u64::from(head_dim);
        let fits = context > 0 && n_codes.max(n_exact) <= u32::MAX.into();
        require(name, "context", context, fits, "at least 1, and its codes countable in 32 bits")?;
        Ok(Self { num_kv_heads, head_dim, context })
    }

    /// Quantised rows that there is room for: a multiple of [`WINDOW`].
    pub fn capacity(&self) -> u32 {
        self.context.saturating_sub(SINK).max(1).next_multiple_of(WINDOW)
    }

    /// The f32 rows as a tensor over `buffer`: [2 * Hkv * 136, Dh].
    pub fn exact(&self, buffer: BufferId) -> Tensor {
        Tensor { buffer, rows: 2 * self.num_kv_heads * EXACT_SLOTS, cols: self.head_dim }
    }

    /// The codes as a tensor over `buffer`: [2 * Hkv * capacity, Dh / 8].
    pub fn codes(&self, buffer: BufferId) -> Tensor {
        Tensor { buffer, rows: 2 * self.num_kv_heads * self.capacity(), cols: self.head_dim / 8 }
    }

    /// The scales as a tensor over `buffer`: [2 * Hkv * capacity / 32, Dh].
    pub fn scales(&self, buffer: BufferId) -> Tensor {
        Tensor { buffer, rows: 2 * self.num_kv_heads * (self.capacity() / GROUP), cols: self.head_dim }
    }

    /// Bytes of one quantised token: for each KV head the codes of a key and a value, and the scales.
    pub fn bytes_per_quantised_token(&self) -> u64 {
        u64::from(self.num_kv_heads) * u64::from(self.head_dim) * (4 + 4) / 8
            + 2 * u64::from(self.num_kv_heads) * u64::from(self.head_dim / GROUP) * 4
    }

    /// Bytes of one exact token: a key and a value of each KV head.
    pub fn bytes_per_exact_token(&self) -> u64 {
        2 * u64::from(self.num_kv_heads) * u64::from(self.head_dim) * 4
    }

    /// Bytes that attention reads when the cache holds `len` tokens.
    pub fn bytes_read(&self, len: u32) -> u64 {
        let Cursors { sink, quantised, residual } = Cursors::at(len);
        u64::from(sink + residual) * self.bytes_per_exact_token()
            + u64::from(quantised) * self.bytes_per_quantised_token()
    }

    /// Index in `exact` of the first element of a slot.
    pub fn exact_index(&self, part: Part, head: u32, slot: u32) -> usize {
        let head = part as usize * self.num_kv_heads as usize + head as usize;
        (head * EXACT_SLOTS as usize + slot as usize) * self.head_dim as usize
    }

    /// Index in `codes` of the word that holds channel `c`, whose code is shifted by `4 * (c % 8)`.
    pub fn code_index(&self, part: Part, head: u32, row: u32, c: u32) -> usize {
        let head = part as usize * self.num_kv_heads as usize + head as usize;
        ((head * self.capacity() as usize + row as usize) * self.head_dim as usize + c as usize) / 8
    }

    /// Index in `scales` of the group that holds channel `c` of a quantised row.
    pub fn scale_index(&self, part: Part, head: u32, row: u32, c: u32) -> usize {
        let (n_heads, dim) = (self.num_kv_heads as usize, self.head_dim as usize);
        let (head, row, c) = (head as usize, row as usize, c as usize);
        let (capacity, group) = (self.capacity() as usize, GROUP as usize);
        match part {
            Part::Key => (head * (capacity / group) + row / group) * dim + c,
            Part::Value => {
                n_heads * (capacity / group) * dim + (head * capacity + row) * (dim / group) + c / group
            }
        }
    }
}

/// Scale and minimum of a group, packed: scale in the low 16 bits, minimum in the high 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale(pub u32);

impl Scale {
    /// Of a group with these extremes.
    pub fn of(lowest: f32, highest: f32) -> Self {
        let min = f16::from_f32(lowest.clamp(-MAX_HALF, MAX_HALF));
        let scale = if highest == lowest {
            f16::ZERO
        } else {
            f16::from_f32(((highest - lowest) / MAX_CODE).clamp(MIN_SCALE, MAX_HALF))
        };
        Self(u32::from(scale.to_bits()) | u32::from(min.to_bits()) << 16)
    }

    /// Of a group of values.
    pub fn of_group(values: impl Iterator<Item = f32> + Clone) -> Self {
        let lowest = values.clone().fold(f32::INFINITY, f32::min);
        let highest = values.fold(f32::NEG_INFINITY, f32::max);
        Self::of(lowest, highest)
    }

    /// The scale.
    pub fn scale(self) -> f32 {
        f16::from_bits(self.0 as u16).to_f32()
    }

    /// The minimum.
    pub fn min(self) -> f32 {
        f16::from_bits((self.0 >> 16) as u16).to_f32()
    }

    /// `(x - min) / scale + 0.5` of each `x`, whose floor is the code: computed with the rounded halves, so that
    /// encoder and decoder agree.
    pub fn steps<const N: usize>(self, values: [f32; N]) -> [f32; N] {
        let (scale, min) = (self.scale(), self.min());
        let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
        values.map(|x| (x - min) * inverse + 0.5)
    }

    /// The codes of values.
    pub fn codes<const N: usize>(self, values: [f32; N]) -> [u32; N] {
        self.steps(values).map(|steps| steps.floor().clamp(0.0, MAX_CODE) as u32)
    }

    /// The code of a value.
    pub fn code(self, x: f32) -> u32 {
        let [code] = self.codes([x]);
        code
    }

    /// The value of a code.
    pub fn value(self, code: u32) -> f32 {
        self.scale() * code as f32 + self.min()
    }
}

/// The buffers of a cache, or a copy of them.
#[derive(Debug)]
pub struct Cache<'a> {
    /// How the buffers are laid out.
    pub layout: Layout,
    /// Sink and residual rows.
    pub exact: &'a mut [f32],
    /// Codes.
    pub codes: &'a mut [u32],
    /// Scales and minima.
    pub scales: &'a mut [u32],
}

impl<'a> Cache<'a> {
    /// Over the buffers of a dispatch: exact rows, codes and scales.
    pub(super) fn of([exact, codes, scales]: [&'a mut [u32]; 3], layout: Layout) -> Self {
        Self { layout, exact: bytemuck::cast_slice_mut(exact), codes, scales }
    }

    /// Quantises the full window of `head` into rows `row..row + 128`.
    pub fn flush(&mut self, head: u32, row: u32) {
        let layout = self.layout;
        let (dim, groups_per_row) = (layout.head_dim, layout.head_dim / GROUP);
        for part in [Part::Key, Part::Value] {
            for group in 0..WINDOW * groups_per_row {
                // Slot and channel of a value of the group.
                let place = |i| match part {
                    Part::Key => (group / dim * GROUP + i, group % dim),
                    Part::Value => (group / groups_per_row, group % groups_per_row * GROUP + i),
                };
                let values: [f32; GROUP as usize] = std::array::from_fn(|i| {
                    let (slot, c) = place(i as u32);
                    self.exact[layout.exact_index(part, head, SINK + slot) + c as usize]
                });
                let scale = Scale::of_group(values.into_iter());
                let (slot, c) = place(0);
                self.scales[layout.scale_index(part, head, row + slot, c)] = scale.0;
                for (i, code) in scale.codes(values).into_iter().enumerate() {
                    let (slot, c) = place(i as u32);
                    let word = &mut self.codes[layout.code_index(part, head, row + slot, c)];
                    let shift = 4 * (c % 8);
                    *word &= !(15 << shift);
                    *word |= code << shift;
                }
            }
        }
    }

    /// Writes the key or value of a token whose place is exact.
    pub fn write(&mut self, part: Part, head: u32, place: Place, row: &[f32]) {
        if let Place::Exact(slot) = place {
            let at = self.layout.exact_index(part, head, slot);
            self.exact[at..at + row.len()].copy_from_slice(row);
        }
    }
}

/// The row at `place` as attention sees it.
pub fn row(
    layout: &Layout,
    (exact, codes, scales): (&[f32], &[u32], &[u32]),
    part: Part,
    head: u32,
    place: Place,
) -> Vec<f32> {
    match place {
        Place::Exact(slot) => {
            let at = layout.exact_index(part, head, slot);
            exact[at..at + layout.head_dim as usize].to_vec()
        }
        Place::Quantised(row) => (0..layout.head_dim)
            .map(|c| {
                let code = codes[layout.code_index(part, head, row, c)] >> (4 * (c % 8)) & 15;
                Scale(scales[layout.scale_index(part, head, row, c)]).value(code)
            })
            .collect(),
    }
}

/// The pieces in which fast kernels read the rows of `tokens`: the sink, then rows whose keys share scales.
pub(super) fn blocks(tokens: Range<u32>) -> impl Iterator<Item = Range<u32>> {
    let mut start = tokens.start;
    std::iter::from_fn(move || {
        let end = start.checked_sub(SINK).map_or(SINK, |row| start + GROUP - row % GROUP);
        let block = start..end.min(tokens.end);
        start = block.end;
        (!block.is_empty()).then_some(block)
    })
}

/// Shows the rows of a block as numbers: the exact ones where they are, quantised ones after decoding them.
#[derive(Debug)]
pub(super) struct Reader {
    layout: Layout,
    keys: Vec<f32>,
    values: Vec<f32>,
    key_scales: Vec<f32>,
    key_mins: Vec<f32>,
}

impl Reader {
    /// For caches of this layout.
    pub(super) fn new(layout: Layout) -> Self {
        let dim = layout.head_dim as usize;
        let rows = || vec![0.0; GROUP as usize * dim];
        let row = || vec![0.0; dim];
        Self { layout, keys: rows(), values: rows(), key_scales: row(), key_mins: row() }
    }

    /// The rows of one of the [`blocks`] of a sequence; `buffers` are those of [`row`].
    pub(super) fn read<'a>(
        &'a mut self,
        (exact, codes, scales): (&'a [f32], &[u32], &[u32]),
        head: u32,
        tokens: &Range<u32>,
        cursors: Cursors,
    ) -> Block<'a> {
        let (layout, stride) = (self.layout, self.layout.head_dim as usize);
        match cursors.place(tokens.start) {
            Place::Exact(slot) => {
                let rows = |part| &exact[layout.exact_index(part, head, slot)..];
                Block { keys: rows(Part::Key), values: rows(Part::Value), stride }
            }
            Place::Quantised(row) => {
                let n_words = tokens.len() * stride / 8;
                let words = |part| &codes[layout.code_index(part, head, row, 0)..][..n_words];
                let scales = |part| &scales[layout.scale_index(part, head, row, 0)..];
                self.decode_keys(words(Part::Key), scales(Part::Key));
                self.decode_values(words(Part::Value), scales(Part::Value));
                Block { keys: &self.keys, values: &self.values, stride }
            }
        }
    }

    fn decode_keys(&mut self, words: &[u32], scales: &[u32]) {
        let dim = self.layout.head_dim as usize;
        for ((scale, min), word) in self.key_scales.iter_mut().zip(&mut self.key_mins).zip(scales) {
            [*scale, *min] = wide_halves(*word);
        }
        let scales = self.key_scales.as_chunks::<8>().0.iter().zip(self.key_mins.as_chunks::<8>().0);
        for (out, words) in self.keys.chunks_exact_mut(dim).zip(words.chunks_exact(dim / 8)) {
            let out = out.as_chunks_mut::<8>().0;
            for ((out, &word), (scale, min)) in out.iter_mut().zip(words).zip(scales.clone()) {
                let codes = wide_codes(word);
                for i in 0..8 {
                    out[i] = scale[i] * codes[i] + min[i];
                }
            }
        }
    }

    fn decode_values(&mut self, words: &[u32], scales: &[u32]) {
        let groups = self.values.as_chunks_mut::<{ GROUP as usize }>().0;
        let words = words.as_chunks::<{ GROUP as usize / 8 }>().0;
        for ((out, words), &scale) in groups.iter_mut().zip(words).zip(scales) {
            let [scale, min] = wide_halves(scale);
            for (out, &word) in out.as_chunks_mut::<8>().0.iter_mut().zip(words) {
                let codes = wide_codes(word);
                for i in 0..8 {
                    out[i] = scale * codes[i] + min;
                }
            }
        }
    }
}

/// The two halves of a [`Scale`] as f32: their bits in the places of an f32 make a number that is 2^112 times too
/// small, as its exponent counts from 127 and not from 15.
#[inline]
fn wide_halves(word: u32) -> [f32; 2] {
    const TWO_TO_112: f32 = f32::from_bits((127 + 112) << 23);
    [word & 0xffff, word >> 16]
        .map(|half| f32::from_bits((half & 0x8000) << 16 | (half & 0x7fff) << 13) * TWO_TO_112)
}

/// The eight codes of a word. Instead of being shifted down they are taken where they are and scaled, which
/// vector units without a shift per element can do.
#[inline]
fn wide_codes(word: u32) -> [f32; 8] {
    let shrink: [f32; 4] = [1.0, 1.0 / 16.0, 1.0 / 256.0, 1.0 / 4096.0];
    let four = |word: u32| -> [f32; 4] {
        std::array::from_fn(|i| (word & (15 << (4 * i))) as i32 as f32 * shrink[i])
    };
    let ([a, b, c, d], [e, f, g, h]) = (four(word), four(word >> 16));
    [a, b, c, d, e, f, g, h]
}

/// A cache on a device.
#[derive(Clone, Copy, Debug)]
pub struct CacheTensors {
    /// How the buffers are laid out.
    pub layout: Layout,
    /// Sink and residual rows, [`Layout::exact`].
    pub exact: Tensor,
    /// Codes, [`Layout::codes`].
    pub codes: Tensor,
    /// Scales and minima, [`Layout::scales`].
    pub scales: Tensor,
}

impl CacheTensors {
    /// Refuses tensors that do not have the layout's shapes, other heads than the layout's, and more
    /// query heads per KV head than a workgroup serves.
    pub(super) fn check(
        &self,
        kernel: &'static str,
        shape: AttentionShape,
    ) -> Result<CacheParams, ShapeError> {
        let Self { layout, exact, codes, scales } = *self;
        for (name, tensor, wanted) in [
            ("exact", exact, layout.exact(exact.buffer)),
            ("codes", codes, layout.codes(codes.buffer)),
            ("scales", scales, layout.scales(scales.buffer)),
        ] {
            expect_shape(kernel, name, tensor, wanted.rows, wanted.cols)?;
        }
        shape.check(kernel)?;
        let (kv_heads, head_dim) = (shape.num_kv_heads, shape.head_dim);
        require(kernel, "num_kv_heads", kv_heads, kv_heads == layout.num_kv_heads, "the cache's")?;
        require(kernel, "head_dim", head_dim, head_dim == layout.head_dim, "the cache's")?;
        let group = shape.group();
        require(kernel, "query heads per KV head", group, group <= MAX_QUERIES, "at most 8")?;
        Ok(CacheParams {
            num_kv_heads: layout.num_kv_heads,
            head_dim: layout.head_dim,
            capacity: layout.capacity(),
            context: layout.context,
        })
    }
}

/// `Cache` of `common/kivi.wgsl`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
pub(super) struct CacheParams {
    num_kv_heads: u32,
    head_dim: u32,
    capacity: u32,
    context: u32,
}

impl CacheParams {
    /// The layout they were made from.
    pub(super) fn layout(&self) -> Layout {
        Layout { num_kv_heads: self.num_kv_heads, head_dim: self.head_dim, context: self.context }
    }
}

/// Rounds what a reference computed to what a buffer holds.
pub(super) fn narrow(values: Vec<f64>) -> Vec<f32> {
    values.into_iter().map(|v| v as f32).collect()
}

/// Contents for cases.
pub(super) mod random {
    use super::{CacheTensors, GROUP, Layout, Part, SINK, Scale, WINDOW};
    use crate::case::{CaseBuilder, Rng};
    use crate::kernel::BufferId;

    /// A cache whose exact values are in [-1, 1) and whose quantised ones in [-1.5, 1.9). The values
    /// in the residual window are clear of every rounding edge, so that a GPU whose division is
    /// off by an ulp finds the same codes and scales.
    pub fn cache(c: &mut CaseBuilder, layout: Layout) -> CacheTensors {
        let place = BufferId(0);
        let n_exact = layout.exact(place).n_bytes() / 4;
        let mut exact: Vec<f32> = (0..n_exact).map(|_| c.rng.uniform()).collect();
        for head in 0..layout.num_kv_heads {
            for start in (0..WINDOW * layout.head_dim).step_by(GROUP as usize) {
                let value = layout.exact_index(Part::Value, head, SINK) + start as usize;
                settle(&mut exact, |i| value + i);
                let (rows, channel) =
                    (start / GROUP / layout.head_dim * GROUP, start / GROUP % layout.head_dim);
                let key = layout.exact_index(Part::Key, head, SINK + rows) + channel as usize;
                settle(&mut exact, |i| key + i * layout.head_dim as usize);
            }
        }
        let exact_shape = layout.exact(place);
        let codes = layout.codes(place);
        let scales = layout.scales(place);
        let code_words = (0..codes.n_bytes() / 4).map(|_| c.rng.next_u32()).collect();
        let scale_words = (0..scales.n_bytes() / 4).map(|_| scale(&mut c.rng).0).collect();
        CacheTensors {
            layout,
            exact: c.values(exact_shape.rows, exact_shape.cols, &exact),
            codes: c.words(codes.rows, codes.cols, code_words),
            scales: c.words(scales.rows, scales.cols, scale_words),
        }
    }

    /// A step of at least a 64th above a minimum below zero.
    fn scale(rng: &mut Rng) -> Scale {
        let lowest = rng.uniform() * 0.7 - 0.8;
        Scale::of(lowest, lowest + 15.0 * (0.09 + 0.07 * rng.uniform()))
    }

    /// Moves the values of a group away from where a code or the scale would round the other way.
    fn settle(values: &mut [f32], at: impl Fn(usize) -> usize) {
        let n = GROUP as usize;
        let group = |values: &[f32]| -> Vec<f32> { (0..n).map(|i| values[at(i)]).collect() };
        let (lowest, highest) = extremes(&group(values));
        let mut range = highest - lowest;
        while half(range * (1.0 - 1e-5)) != half(range * (1.0 + 1e-5)) {
            range *= 1.0 + 1e-4;
        }
        for i in 0..n {
            let x = &mut values[at(i)];
            if *x == highest {
                *x = lowest + range;
            }
        }
        let scale = Scale::of_group(group(values).into_iter());
        for i in 0..n {
            let x = values[at(i)];
            let [steps] = scale.steps([x]);
            let beyond = steps - steps.floor();
            if x != lowest && x != lowest + range && !(0.01..=0.99).contains(&beyond) {
                values[at(i)] = scale.value(scale.code(x));
            }
        }
    }

    fn half(range: f32) -> f32 {
        Scale::of(0.0, range).scale()
    }

    fn extremes(group: &[f32]) -> (f32, f32) {
        group.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(a, b), &x| (a.min(x), b.max(x)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Rng;
    use crate::kernels::kivi_decode::kivi_decode;
    use crate::kernels::qkv::NormRope;

    /// Append and flush as the definition says, token by token.
    #[derive(Default)]
    struct Walk {
        cursors: Cursors,
        flushed: bool,
    }

    impl Walk {
        fn append(&mut self) {
            self.flushed = false;
            if self.cursors.sink < 8 {
                self.cursors.sink += 1;
                return;
            }
            if self.cursors.residual == 128 {
                self.cursors.quantised += 128;
                self.cursors.residual = 0;
                self.flushed = true;
            }
            self.cursors.residual += 1;
        }
    }

    #[test]
    fn cursors_follow_from_the_length() {
        let mut walk = Walk::default();
        for len in 0..2000 {
            let cursors = Cursors::at(len);
            assert_eq!(cursors, walk.cursors, "{len}");
            assert_eq!((cursors.len(), cursors.sink), (len, len.min(8)));
            assert!(cursors.quantised.is_multiple_of(128) && cursors.residual <= 128);
            walk.append();
            assert_eq!(finds_window_full(len), walk.flushed, "{len}");
        }
        assert_eq!(Cursors::at(136), Cursors { sink: 8, quantised: 0, residual: 128 });
        assert_eq!(Cursors::at(137), Cursors { sink: 8, quantised: 128, residual: 1 });
    }

    /// Only the first token of a piece may find the window full, and the next after it must.
    #[test]
    fn pieces_end_where_the_window_is_full() {
        let mut position = 0;
        for expected in [136, 128, 128] {
            assert_eq!(piece(position), expected);
            position += expected;
        }
        for position in 0..1000 {
            let n = piece(position);
            assert!((1..n).all(|i| !finds_window_full(position + i)), "{position}");
            assert!(finds_window_full(position + n), "{position}");
        }
    }

    #[test]
    fn truncation_drops_exact_rows_only() {
        let at = Cursors::at;
        assert_eq!(at(100).truncate(20), Ok(at(20)));
        assert_eq!(at(100).truncate(5), Ok(at(5)));
        assert_eq!(at(136).truncate(0), Ok(at(0)));
        assert_eq!(at(300).truncate(300), Ok(at(300)));
        assert_eq!(at(300).truncate(400), Ok(at(300)));
        assert_eq!(at(300).truncate(265), Ok(at(265)));
        // Where the quantised rows end the window stays empty.
        let empty = Cursors { sink: 8, quantised: 256, residual: 0 };
        assert_eq!(at(300).truncate(264), Ok(empty));
        for len in [0, 8, 136, 263] {
            assert_eq!(at(300).truncate(len), Err(TruncateError { len, quantised: 256 }));
        }
    }

    /// At every length that can be reached, rows have distinct places inside their buffers.
    #[test]
    fn every_row_of_a_long_context_has_its_own_place() {
        let layout = Layout::new(4, 256, 131_072).unwrap();
        assert_eq!(layout.capacity(), 131_072);
        let place = BufferId(0);
        let words = |t: Tensor| (t.n_bytes() / 4) as usize;
        let (exact, codes, scales) =
            (words(layout.exact(place)), words(layout.codes(place)), words(layout.scales(place)));
        // WGSL computes an index in units of codes first.
        assert!(codes as u64 * 8 <= u64::from(u32::MAX));
        assert_eq!(codes * 4, 128 << 20);
        for len in (0..=131_072).step_by(997).chain(131_000..=131_072) {
            let cursors = Cursors::at(len);
            for u in [0, 7, 8, 135, 136, len / 2, len.saturating_sub(129), len.saturating_sub(1)] {
                if u >= len {
                    continue;
                }
                match cursors.place(u) {
                    Place::Exact(slot) => assert!(slot < EXACT_SLOTS),
                    Place::Quantised(row) => assert!(row < cursors.quantised && row < layout.capacity()),
                }
            }
            assert!(cursors.quantised <= layout.capacity());
        }
        let mut seen = vec![false; codes];
        let mut seen_scales = vec![false; scales];
        let mut seen_exact = vec![false; exact];
        for part in [Part::Key, Part::Value] {
            for head in 0..4 {
                for slot in 0..EXACT_SLOTS {
                    let at = layout.exact_index(part, head, slot);
                    assert!(!std::mem::replace(&mut seen_exact[at], true));
                    assert!(at + 256 <= exact);
                }
                // A word per eight channels; a scale per 32 rows of a key channel or 32 channels of a value.
                for row in 0..layout.capacity() {
                    for c in (0..256).step_by(128) {
                        let at = layout.code_index(part, head, row, c);
                        assert_eq!(layout.code_index(part, head, row, c + 127), at + 15);
                        assert!(!std::mem::replace(&mut seen[at], true));
                        let at = layout.scale_index(part, head, row, c);
                        let first = part == Part::Value || row.is_multiple_of(32);
                        assert_eq!(std::mem::replace(&mut seen_scales[at], true), !first);
                    }
                }
            }
        }
    }

    /// The layout in numbers, for two heads of 64 with room for 256 rows.
    #[test]
    fn places_by_hand() {
        let layout = Layout::new(2, 64, 200).unwrap();
        assert_eq!(layout.capacity(), 256);
        assert_eq!(layout.exact_index(Part::Key, 1, 9), (136 + 9) * 64);
        assert_eq!(layout.exact_index(Part::Value, 0, 0), 2 * 136 * 64);
        assert_eq!(layout.code_index(Part::Key, 1, 3, 17), ((256 + 3) * 64 + 16) / 8);
        assert_eq!(layout.code_index(Part::Value, 0, 0, 0), 2 * 256 * 8);
        assert_eq!(layout.scale_index(Part::Key, 1, 40, 5), (8 + 1) * 64 + 5);
        assert_eq!(layout.scale_index(Part::Value, 1, 40, 33), 2 * 8 * 64 + (256 + 40) * 2 + 1);
    }

    #[test]
    fn every_value_decodes_to_within_half_a_step() {
        let mut rng = Rng::new(3);
        let mut groups: Vec<Vec<f32>> = Vec::new();
        for i in 0..200 {
            let (offset, size) = (rng.uniform() * 4.0, 10f32.powi(i % 8 - 4));
            groups.push((0..32).map(|_| (offset + rng.uniform()) * size).collect());
        }
        groups.push(vec![0.7; 32]);
        groups.push(vec![0.0; 32]);
        groups.push((0..32).map(|i| 1e-9 * i as f32).collect());
        for group in &groups {
            let scale = Scale::of_group(group.iter().copied());
            let lowest = group.iter().copied().fold(f32::INFINITY, f32::min);
            // Half a step, the rounding of the minimum, which below 2^-14 is to multiples of 2^-24, and
            // three roundings of the arithmetic itself.
            let of_min = (lowest.abs() / 2048.0).max(2f32.powi(-25));
            let arithmetic = 3.0 * f32::EPSILON * (lowest.abs() + 16.0 * scale.scale());
            for &x in group {
                let decoded = scale.value(scale.code(x));
                let allowed = scale.scale() / 2.0 + of_min + arithmetic;
                assert!((decoded - x).abs() <= allowed, "{x} became {decoded}, {scale:?}");
            }
        }
        // Values that no half holds clamp.
        let scale = Scale::of_group([-7e4, 7e4].into_iter());
        assert_eq!((scale.min(), scale.value(scale.code(7e4))), (-65_504.0, scale.scale() * 15.0 - 65_504.0));
    }

    /// Every finite half, of either place in a word, and every code in each of its places.
    #[test]
    fn quick_decoding_is_exact() {
        for half in (0..=u16::MAX).filter(|&half| f16::from_bits(half).is_finite()) {
            let scale = Scale(u32::from(half) | u32::from(half ^ 0x8001) << 16);
            if scale.min().is_finite() {
                let wide = wide_halves(scale.0).map(f32::to_bits);
                assert_eq!(wide, [scale.scale(), scale.min()].map(f32::to_bits), "{half:#x}");
            }
        }
        for i in 0..8 {
            for code in 0..16u32 {
                let mut expected = [(15 - code) as f32; 8];
                expected[i] = code as f32;
                let others = ((15 - code) * 0x1111_1111) & !(15 << (4 * i));
                assert_eq!(wide_codes(others | code << (4 * i)), expected);
            }
        }
    }

    /// Blocks cover the tokens in order, and the rows of one lie side by side in one region.
    #[test]
    fn blocks_stay_in_their_region() {
        assert_eq!(blocks(3..50).collect::<Vec<_>>(), [3..8, 8..40, 40..50]);
        assert_eq!(blocks(130..200).collect::<Vec<_>>(), [130..136, 136..168, 168..200]);
        assert_eq!(blocks(5..5).count(), 0);
        for len in [1, 8, 9, 136, 137, 264, 300] {
            let cursors = Cursors::at(len);
            let mut next = 0;
            for block in blocks(0..len) {
                assert_eq!(block.start, next);
                next = block.end;
                for (i, u) in block.clone().enumerate() {
                    let expected = match cursors.place(block.start) {
                        Place::Exact(slot) => Place::Exact(slot + i as u32),
                        Place::Quantised(row) => Place::Quantised(row + i as u32),
                    };
                    assert_eq!(cursors.place(u), expected, "{len} {block:?}");
                    assert!(u < SINK || (u - SINK) / GROUP == (block.end - 1 - SINK) / GROUP);
                }
            }
            assert_eq!(next, len);
        }
    }

    /// A whole window, through the packed words and back.
    #[test]
    fn a_flushed_window_reads_back() {
        let layout = Layout::new(2, 64, 300).unwrap();
        let (mut codes, mut scales) = (vec![0; 2 * 2 * 384 * 8], vec![0; 2 * 2 * 12 * 64]);
        let mut rng = Rng::new(5);
        let mut words: Vec<u32> = (0..2 * 2 * 136 * 64).map(|_| rng.uniform().to_bits()).collect();
        let exact: Vec<f32> = bytemuck::cast_slice(&words).to_vec();
        Cache::of([&mut words, &mut codes, &mut scales], layout).flush(1, 128);
        for part in [Part::Key, Part::Value] {
            for slot in 0..WINDOW {
                let at = layout.exact_index(part, 1, SINK + slot);
                let decoded = row(&layout, (&exact, &codes, &scales), part, 1, Place::Quantised(128 + slot));
                for (c, (x, decoded)) in exact[at..at + 64].iter().zip(decoded).enumerate() {
                    let group: Vec<f32> = match part {
                        Part::Key => {
                            let first = layout.exact_index(part, 1, SINK + slot / 32 * 32) + c;
                            (0..32).map(|i| exact[first + 64 * i]).collect()
                        }
                        Part::Value => exact[at + c / 32 * 32..][..32].to_vec(),
                    };
                    let scale = Scale::of_group(group.into_iter());
                    assert_eq!(decoded, scale.value(scale.code(*x)), "{part:?} {slot} {c}");
                }
            }
        }
        // Nothing else was written: the words of the other head and of the rows before.
        let used = |part, row| layout.code_index(part, 1, row, 0)..layout.code_index(part, 1, row, 0) + 8;
        for part in [Part::Key, Part::Value] {
            assert!((0..128).all(|row| codes[used(part, row)].iter().all(|&word| word == 0)));
        }
        assert!(codes[..384 * 8].iter().all(|&word| word == 0));
    }

    /// 16 attention layers of 4 KV heads of 256, as the dispatches count them.
    #[test]
    fn a_token_of_the_27b_takes_20_kib() {
        let tensor = |rows, cols| Tensor { buffer: BufferId(0), rows, cols };
        let shape = AttentionShape { num_heads: 24, num_kv_heads: 4, head_dim: 256, gated: true };
        let bytes_read = |context| {
            let layout = Layout::new(4, 256, context).unwrap();
            let place = BufferId(0);
            let cache = CacheTensors {
                layout,
                exact: layout.exact(place),
                codes: layout.codes(place),
                scales: layout.scales(place),
            };
            let norm_rope = NormRope {
                q_norm: tensor(1, 256),
                k_norm: tensor(1, 256),
                rope: tensor(context, 64),
                eps: 1e-6,
            };
            let (qkv, partials) = (tensor(1, shape.qkv_cols()), tensor(24 * 8, 258));
            kivi_decode(qkv, norm_rope, cache, partials, shape, 1.0).unwrap().bytes_read
        };
        let n_tokens = 128 * 100;
        assert_eq!(16 * (bytes_read(1000 + n_tokens) - bytes_read(1000)), 20_480 * u64::from(n_tokens));
        let layout = Layout::new(4, 256, 1000).unwrap();
        assert_eq!(layout.bytes_per_quantised_token(), 4 * 320);
        assert_eq!(16 * layout.exact(BufferId(0)).n_bytes(), (1 << 20) + (16 << 20));
    }

    #[test]
    fn layouts_that_do_not_fit_are_refused() {
        assert!(Layout::new(0, 64, 100).is_err());
        assert!(Layout::new(1, 48, 100).is_err());
        assert!(Layout::new(1, 288, 100).is_err());
        assert!(Layout::new(1, 64, 0).is_err());
        assert!(Layout::new(64, 256, 1 << 20).is_err());
    }
}
