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

use bytemuck::{Pod, Zeroable};
use half::f16;
use thiserror::Error;

use super::qkv::AttentionShape;
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

    /// `(x - min) / scale + 0.5`, whose floor is the code: computed with the rounded halves, so that
    /// encoder and decoder agree.
    pub fn steps(self, x: f32) -> f32 {
        let inverse = if self.scale() == 0.0 { 0.0 } else { 1.0 / self.scale() };
        (x - self.min()) * inverse + 0.5
    }

    /// The code of a value.
    pub fn code(self, x: f32) -> u32 {
        self.steps(x).floor().clamp(0.0, MAX_CODE) as u32
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
        for part in [Part::Key, Part::Value] {
            let base = |slot| layout.exact_index(part, head, SINK + slot);
            for slot in 0..WINDOW {
                for c in 0..layout.head_dim {
                    let start = match part {
                        Part::Key => slot / GROUP * GROUP,
                        Part::Value => c / GROUP * GROUP,
                    };
                    let group = (start..start + GROUP).map(|i| match part {
                        Part::Key => self.exact[base(i) + c as usize],
                        Part::Value => self.exact[base(slot) + i as usize],
                    });
                    let scale = Scale::of_group(group);
                    self.scales[layout.scale_index(part, head, row + slot, c)] = scale.0;
                    let word = &mut self.codes[layout.code_index(part, head, row + slot, c)];
                    let shift = 4 * (c % 8);
                    *word &= !(15 << shift);
                    *word |= scale.code(self.exact[base(slot) + c as usize]) << shift;
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
            let beyond = scale.steps(x) - scale.steps(x).floor();
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
