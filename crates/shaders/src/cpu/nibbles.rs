//! Products of weights of at most four bits by table look-up, exact in integers.
//!
//! A nibble holds one, two or four weights, so that with the activations it meets it has 16 possible
//! products. For every nibble of a row the 16 are computed once and looked up for all rows, 16 at a time
//! by a byte shuffle (as in T-MAC, Wei et al. 2024, arXiv:2407.00088). Activations are integers here:
//! [`Nibbles::digits`] writes the activations that share a scale as one or three digits each.
//!
//! A product is `2^b h + l` with `0 <= l < 2^b` and a signed `h` of at most six bits. Bytes of `l` and of `h` are
//! added up apart for a few nibbles, as many as cannot overflow, then widened to 16 bits, and those to f32
//! before they overflow:
//!
//! | activations | digits | magnitudes | products, Q4_0 aside | b | nibbles in bytes | nibbles in 16 bits |
//! |---|---|---|---|---|---|---|
//! | f32 | 3 | 127 | 508 | 5 | 8 | all of a group, 64 at most |
//! | int10 | 1 | 511 | 2044 | 6 | 4 | 16 |
//!
//! A weight of Q4_0 is up to 8, twice what a nibble of other formats adds up to: its products are 1016 with 4 nibbles
//! in bytes, or its digits are 255 at most.

use super::Activations;
use super::tiles::ROWS;
use crate::weights::Format;

/// Bytes of the table of one nibble: `l` of its 16 values, then `h`.
pub(super) const TABLE_BYTES: usize = 32;

/// Three digits of up to 127 to this base are as exact as the 24 bits of an f32.
const BASE: f32 = 254.0;

/// How a format puts weights into nibbles, and what they are multiplied with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nibbles {
    /// Weights that share a scale.
    pub group: usize,
    /// Weights of a nibble.
    pub weights: usize,
    /// Digits of an activation.
    n_digits: usize,
    /// The largest magnitude of a digit.
    largest_digit: f32,
    /// Bits of the lower part of a product.
    low_bits: u32,
    /// Bytes of a row whose products may be added up in bytes.
    step_bytes: usize,
    /// Bytes of a row whose products may be added up in 16 bits.
    piece_bytes: usize,
    /// By the weight's place in the nibble, then by the nibble: the weight without its scale.
    values: [[i16; 16]; 4],
}

impl Nibbles {
    /// `None` for formats whose products are not looked up.
    pub fn of(format: Format, activations: Activations) -> Option<Self> {
        let (group, weights): (_, usize) = match format {
            Format::Q1_0 => (128, 4),
            Format::Q2_0G64 => (64, 2),
            Format::Q2_0G128 => (128, 2),
            Format::Q4_0 => (32, 1),
            _ => return None,
        };
        let is_q4_0 = format == Format::Q4_0;
        let (n_digits, largest_digit, low_bits, step_bytes, piece_bytes) = match activations {
            Activations::F32 => (3, 127.0, 5, if is_q4_0 { 2 } else { 4 }, group / weights / 2),
            Activations::Int10 => (1, if is_q4_0 { 255.0 } else { 511.0 }, 6, 2, 8),
        };
        let bits = 4 / weights;
        let mut values = [[0; 16]; 4];
        for (place, values) in values.iter_mut().enumerate().take(weights) {
            for (nibble, value) in (0i16..).zip(values) {
                let code = (nibble >> (bits * place)) & ((1 << bits) - 1);
                *value = match weights {
                    4 => 2 * code - 1,
                    2 => code - 1,
                    _ => code - 8,
                };
            }
        }
        Some(Self { group, weights, n_digits, largest_digit, low_bits, step_bytes, piece_bytes, values })
    }

    /// Bytes that a row's group takes.
    pub fn group_bytes(&self) -> usize {
        self.group / self.weights / 2
    }

    /// Bytes of the tables of a group.
    pub fn table_bytes(&self) -> usize {
        self.group_bytes() * 2 * self.n_digits * TABLE_BYTES
    }

    /// Writes the tables of a group, digit by digit, and returns the group's scale: the product of a
    /// row is `scale * (sum_0 + sum_1 / 254 + ...)` with the sums of the digits' products.
    pub fn tabulate(&self, group: &[f32], tables: &mut [u8]) -> f32 {
        let mut integers = [0i16; 3 * MAX_GROUP];
        let scale = self.digits(group, &mut integers);
        let integers = &integers[..self.n_digits * group.len()];
        let tables = tables.as_chunks_mut().0;
        match self.weights {
            4 => self.tabulate_digits::<4>(integers, tables),
            2 => self.tabulate_digits::<2>(integers, tables),
            _ => self.tabulate_digits::<1>(integers, tables),
        }
        scale
    }

    #[inline(always)]
    fn tabulate_digits<const WEIGHTS: usize>(&self, digits: &[i16], tables: &mut [[u8; TABLE_BYTES]]) {
        for (digits, table) in digits.as_chunks::<WEIGHTS>().0.iter().zip(tables) {
            self.tabulate_nibble(digits, table);
        }
    }

    /// A function of its own, or compilers put several nibbles into a vector and scatter the results.
    #[inline(never)]
    fn tabulate_nibble<const WEIGHTS: usize>(&self, digits: &[i16; WEIGHTS], table: &mut [u8; TABLE_BYTES]) {
        let mut products = [0i16; 16];
        for (digit, values) in digits.iter().zip(&self.values) {
            products = std::array::from_fn(|i| products[i] + digit * values[i]);
        }
        let low: [u8; 16] = products.map(|product| (product & ((1 << self.low_bits) - 1)) as u8);
        let high: [u8; 16] = products.map(|product| (product >> self.low_bits) as u8);
        *table = bytemuck::cast([low, high]);
    }

    /// Writes the first digits of all activations, then the second ones and so on, and returns the scale:
    /// `x = scale * (digit_0 + digit_1 / 254 + ...)`, within half a unit of the last digit. A group that is not
    /// finite has no finite scale.
    fn digits(&self, group: &[f32], out: &mut [i16; 3 * MAX_GROUP]) -> f32 {
        let mut lanes = [0.0f32; LANES];
        let mut poison = [0.0f32; LANES];
        for x in group.as_chunks::<LANES>().0 {
            for ((largest, poison), x) in lanes.iter_mut().zip(&mut poison).zip(x) {
                *largest = if x.abs() > *largest { x.abs() } else { *largest };
                *poison += x * 0.0;
            }
        }
        let largest = lanes.into_iter().fold(0.0, |m: f32, x| if x > m { x } else { m });
        let poison: f32 = poison.iter().sum();
        let scale = largest / self.largest_digit;
        let inverse = self.largest_digit / largest;
        // Below 4e-37 the inverse is infinite, and what the activations add is nothing.
        let inverse = if inverse.is_finite() { inverse } else { 0.0 };
        let mut rests = [0.0; MAX_GROUP];
        let rests = &mut rests[..group.len()];
        for (rest, x) in rests.iter_mut().zip(group) {
            *rest = x * inverse;
        }
        for out in out.chunks_exact_mut(group.len()).take(self.n_digits) {
            for (out, rest) in out.iter_mut().zip(&mut *rests) {
                // Adding this rounds to an integer, which then is in the lowest bits.
                let shifted = *rest + ROUND;
                *out = shifted.to_bits() as i16;
                *rest = (*rest - (shifted - ROUND)) * BASE;
            }
        }
        scale + poison
    }
}

/// The most weights that share a scale.
const MAX_GROUP: usize = 128;

/// Every group is a multiple of it.
const LANES: usize = 16;

/// 1.5 times 2^23: the last bit of a sum with it counts ones.
const ROUND: f32 = 12_582_912.0;

/// What the products of a tile of 32 rows with one token are made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tile<'a> {
    /// Bytes of the 32 rows.
    pub quants: &'a [u8],
    /// Scales of the 32 rows by group.
    pub scales: &'a [[f32; ROWS]],
    /// The token's tables by group, digit and nibble.
    pub tables: &'a [u8],
    /// The token's scales by group.
    pub token_scales: &'a [f32],
}

impl Tile<'_> {
    /// The products of the rows.
    pub fn products(&self, nibbles: &Nibbles) -> [f32; ROWS] {
        match (nibbles.n_digits, nibbles.step_bytes) {
            (1, _) => self.with_steps::<2, 6, 1>(nibbles),
            (_, 4) => self.with_steps::<4, 5, 3>(nibbles),
            _ => self.with_steps::<2, 5, 3>(nibbles),
        }
    }

    /// For known `step_bytes`, `low_bits` and `n_digits`.
    #[cfg(target_arch = "wasm32")]
    fn with_steps<const STEP: usize, const LOW_BITS: u32, const DIGITS: usize>(
        &self,
        nibbles: &Nibbles,
    ) -> [f32; ROWS] {
        self.sum_groups::<DIGITS>(nibbles, sums_wasm::<STEP, LOW_BITS>)
    }

    #[cfg(not(target_arch = "wasm32"))]
    fn with_steps<const STEP: usize, const LOW_BITS: u32, const DIGITS: usize>(
        &self,
        nibbles: &Nibbles,
    ) -> [f32; ROWS] {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            #[expect(unsafe_code, reason = "the processor has been asked whether it has AVX2")]
            return unsafe { self.with_avx2::<STEP, LOW_BITS, DIGITS>(nibbles) };
        }
        self.sum_groups::<DIGITS>(nibbles, sums_portable::<LOW_BITS>)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn with_avx2<const STEP: usize, const LOW_BITS: u32, const DIGITS: usize>(
        &self,
        nibbles: &Nibbles,
    ) -> [f32; ROWS] {
        self.sum_groups::<DIGITS>(nibbles, |quants, tables, sums| {
            sums_avx2::<STEP, LOW_BITS>(quants, tables, sums);
        })
    }

    /// `add_up` adds up the products of the bytes of one piece with one digit, given two tables per
    /// byte. Inlined, so that all of it uses the vectors that `add_up` may use.
    #[inline(always)]
    fn sum_groups<const DIGITS: usize>(
        &self,
        nibbles: &Nibbles,
        add_up: impl Fn(&[u8], &[u8], &mut [i16; ROWS]),
    ) -> [f32; ROWS] {
        let piece = nibbles.piece_bytes * ROWS;
        let piece_tables = nibbles.piece_bytes * 2 * TABLE_BYTES;
        let groups = self.quants.chunks_exact(nibbles.group_bytes() * ROWS);
        let tables = self.tables.chunks_exact(nibbles.table_bytes());
        let scales = self.scales.iter().zip(self.token_scales);
        let mut out = [0.0; ROWS];
        for ((quants, tables), (scales, token_scale)) in groups.zip(tables).zip(scales) {
            let mut joined = [0.0f32; ROWS];
            let digits = tables.chunks_exact(tables.len() / DIGITS).zip(DIGIT_UNITS);
            for (tables, unit) in digits.take(DIGITS) {
                for (quants, tables) in quants.chunks_exact(piece).zip(tables.chunks_exact(piece_tables)) {
                    let mut sums = [0i16; ROWS];
                    add_up(quants, tables, &mut sums);
                    for (joined, sum) in joined.iter_mut().zip(sums) {
                        *joined += f32::from(sum) * unit;
                    }
                }
            }
            for ((out, joined), scale) in out.iter_mut().zip(joined).zip(scales) {
                *out += joined * (scale * token_scale);
            }
        }
        out
    }
}

/// What one is worth in each digit.
const DIGIT_UNITS: [f32; 3] = [1.0, 1.0 / BASE, 1.0 / (BASE * BASE)];

/// A function of its own, in which V8 keeps all vectors in registers.
#[cfg(target_arch = "wasm32")]
#[inline(never)]
fn sums_wasm<const STEP: usize, const LOW_BITS: u32>(quants: &[u8], tables: &[u8], sums: &mut [i16; ROWS]) {
    use core::arch::wasm32::*;
    let load = |bytes: &[u8; 16]| bytemuck::pod_read_unaligned::<v128>(bytes);
    let (mask, low_bytes) = (u8x16_splat(15), u16x8_splat(255));
    // Rows with even and odd numbers, of the first and of the last 16 rows.
    let mut even = [i16x8_splat(0); 2];
    let mut odd = [i16x8_splat(0); 2];
    let quants = quants.as_chunks::<16>().0.as_chunks::<2>().0.as_chunks::<STEP>().0;
    let tables = tables.as_chunks::<16>().0.as_chunks::<4>().0.as_chunks::<STEP>().0;
    for (quants, tables) in quants.iter().zip(tables) {
        let mut low = [u8x16_splat(0); 2];
        let mut high = [u8x16_splat(0); 2];
        for (quants, tables) in quants.iter().zip(tables) {
            let [first_low, first_high, last_low, last_high] = tables.each_ref().map(load);
            for half in 0..2 {
                let bytes = load(&quants[half]);
                let first = v128_and(bytes, mask);
                let last = v128_and(u16x8_shr(bytes, 4), mask);
                low[half] = u8x16_add(low[half], u8x16_swizzle(first_low, first));
                high[half] = u8x16_add(high[half], u8x16_swizzle(first_high, first));
                low[half] = u8x16_add(low[half], u8x16_swizzle(last_low, last));
                high[half] = u8x16_add(high[half], u8x16_swizzle(last_high, last));
            }
        }
        for half in 0..2 {
            let (low, high) = (low[half], high[half]);
            even[half] = i16x8_add(even[half], v128_and(low, low_bytes));
            even[half] = i16x8_add(even[half], i16x8_shr(i16x8_shl(high, 8), 8 - LOW_BITS));
            odd[half] = i16x8_add(odd[half], u16x8_shr(low, 8));
            odd[half] = i16x8_add(odd[half], i16x8_shr(v128_andnot(high, low_bytes), 8 - LOW_BITS));
        }
    }
    for (half, sums) in sums.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let (even, odd) = (even[half], odd[half]);
        let first = i16x8_shuffle::<0, 8, 1, 9, 2, 10, 3, 11>(even, odd);
        let last = i16x8_shuffle::<4, 12, 5, 13, 6, 14, 7, 15>(even, odd);
        *sums = bytemuck::cast([first, last]);
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn sums_avx2<const STEP: usize, const LOW_BITS: u32>(quants: &[u8], tables: &[u8], sums: &mut [i16; ROWS]) {
    use core::arch::x86_64::*;
    let load = |bytes: &[u8; 32]| bytemuck::pod_read_unaligned::<__m256i>(bytes);
    let load_table = |bytes: &[u8; 16]| _mm256_broadcastsi128_si256(bytemuck::pod_read_unaligned(bytes));
    let (mask, low_bytes) = (_mm256_set1_epi8(15), _mm256_set1_epi16(255));
    let raise = _mm_cvtsi32_si128(8 - LOW_BITS as i32);
    // Rows with even and odd numbers.
    let (mut even, mut odd) = (_mm256_setzero_si256(), _mm256_setzero_si256());
    let quants = quants.as_chunks::<32>().0.as_chunks::<STEP>().0;
    let tables = tables.as_chunks::<16>().0.as_chunks::<4>().0.as_chunks::<STEP>().0;
    for (quants, tables) in quants.iter().zip(tables) {
        let (mut low, mut high) = (_mm256_setzero_si256(), _mm256_setzero_si256());
        for (quants, [first_low, first_high, last_low, last_high]) in quants.iter().zip(tables) {
            let bytes = load(quants);
            let first = _mm256_and_si256(bytes, mask);
            let last = _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), mask);
            low = _mm256_add_epi8(low, _mm256_shuffle_epi8(load_table(first_low), first));
            high = _mm256_add_epi8(high, _mm256_shuffle_epi8(load_table(first_high), first));
            low = _mm256_add_epi8(low, _mm256_shuffle_epi8(load_table(last_low), last));
            high = _mm256_add_epi8(high, _mm256_shuffle_epi8(load_table(last_high), last));
        }
        even = _mm256_add_epi16(even, _mm256_and_si256(low, low_bytes));
        even = _mm256_add_epi16(even, _mm256_sra_epi16(_mm256_slli_epi16::<8>(high), raise));
        odd = _mm256_add_epi16(odd, _mm256_srli_epi16::<8>(low));
        odd = _mm256_add_epi16(odd, _mm256_sra_epi16(_mm256_andnot_si256(low_bytes, high), raise));
    }
    // Rows 0 to 7 and 16 to 23, then the others.
    let (first, last) = (_mm256_unpacklo_epi16(even, odd), _mm256_unpackhi_epi16(even, odd));
    let halves =
        [_mm256_permute2x128_si256::<0x20>(first, last), _mm256_permute2x128_si256::<0x31>(first, last)];
    *sums = bytemuck::cast(halves);
}

/// The definition.
#[cfg(not(target_arch = "wasm32"))]
fn sums_portable<const LOW_BITS: u32>(quants: &[u8], tables: &[u8], sums: &mut [i16; ROWS]) {
    *sums = [0; ROWS];
    for (quants, tables) in quants.as_chunks::<ROWS>().0.iter().zip(tables.as_chunks::<64>().0) {
        let product = |table: &[u8], nibble: u8| {
            let nibble = usize::from(nibble);
            (i16::from(table[16 + nibble] as i8) << LOW_BITS) + i16::from(table[nibble])
        };
        for (sum, &byte) in sums.iter_mut().zip(quants) {
            *sum += product(&tables[..32], byte & 15) + product(&tables[32..], byte >> 4);
        }
    }
}

/// What the look-ups use of the processor.
pub(super) fn vector_unit() -> &'static str {
    #[cfg(target_arch = "wasm32")]
    return "SIMD128";
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        return "AVX2";
    }
    #[cfg(not(target_arch = "wasm32"))]
    return "no vector look-ups";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::Rng;

    const FORMATS: [Format; 4] = [Format::Q1_0, Format::Q2_0G64, Format::Q2_0G128, Format::Q4_0];

    fn all_nibbles() -> impl Iterator<Item = Nibbles> {
        let both = [Activations::F32, Activations::Int10];
        FORMATS.into_iter().flat_map(move |format| both.map(|a| Nibbles::of(format, a).unwrap()))
    }

    /// The products of one group with scales of one.
    fn products(nibbles: &Nibbles, quants: &[u8], tables: &[u8]) -> [f32; ROWS] {
        Tile { quants, scales: &[[1.0; ROWS]], tables, token_scales: &[1.0] }.products(nibbles)
    }

    /// Activations of the largest magnitude meet weights of the largest: nothing may overflow.
    #[test]
    fn extreme_products_are_exact() {
        for nibbles in all_nibbles() {
            let n_bytes = nibbles.group_bytes();
            for x in [nibbles.largest_digit, -nibbles.largest_digit] {
                let mut tables = vec![0; nibbles.table_bytes()];
                assert_eq!(nibbles.tabulate(&vec![x; nibbles.group], &mut tables), 1.0);
                for byte in 0..=255u8 {
                    let of_nibble = |nibble: u8| -> i32 {
                        nibbles.values[..nibbles.weights]
                            .iter()
                            .map(|v| i32::from(v[usize::from(nibble)]))
                            .sum()
                    };
                    let exact = (of_nibble(byte & 15) + of_nibble(byte >> 4)) * x as i32 * n_bytes as i32;
                    let ours = products(&nibbles, &vec![byte; n_bytes * ROWS], &tables);
                    assert_eq!(ours.map(|sum| sum as i32), [exact; ROWS], "{nibbles:?} {byte:#x}");
                }
            }
        }
    }

    #[test]
    fn every_way_to_look_up_gives_the_same_products() {
        let mut rng = Rng::new(8);
        for nibbles in all_nibbles() {
            for _ in 0..50 {
                let group: Vec<f32> = (0..nibbles.group).map(|_| rng.uniform()).collect();
                let mut tables = vec![0; nibbles.table_bytes()];
                nibbles.tabulate(&group, &mut tables);
                let n = nibbles.group_bytes() * ROWS;
                let quants: Vec<u8> = (0..n).map(|_| rng.next_u32() as u8).collect();
                let tile =
                    Tile { quants: &quants, scales: &[[1.0; ROWS]], tables: &tables, token_scales: &[1.0] };
                let portable = match nibbles.n_digits {
                    1 => tile.sum_groups::<1>(&nibbles, sums_portable::<6>),
                    _ => tile.sum_groups::<3>(&nibbles, sums_portable::<5>),
                };
                assert_eq!(products(&nibbles, &quants, &tables), portable, "{nibbles:?}");
            }
        }
    }

    #[test]
    fn digits_say_what_the_activations_are() {
        let mut rng = Rng::new(9);
        let group: Vec<f32> = (0..128).map(|_| rng.uniform() * 3.0).collect();
        for (activations, unit) in [(Activations::F32, 1.0 / 254.0 / 254.0), (Activations::Int10, 1.0)] {
            let nibbles = Nibbles::of(Format::Q1_0, activations).unwrap();
            let mut out = [0; 3 * MAX_GROUP];
            let scale = nibbles.digits(&group, &mut out);
            for (i, &x) in group.iter().enumerate() {
                let digit = |d: usize| f64::from(out[d * 128 + i]) / 254f64.powi(d as i32);
                let sum: f64 = (0..nibbles.n_digits).map(digit).sum();
                // Half a unit of the last digit, and one rounding of x over the scale.
                let bound = f64::from(scale) * 0.5 * unit + f64::from(x.abs()) * 1.2e-7;
                assert!((f64::from(scale) * sum - f64::from(x)).abs() <= bound, "{activations:?} {i}");
            }
            assert!(
                out[..nibbles.n_digits * 128].iter().all(|d| f32::from(d.abs()) <= nibbles.largest_digit)
            );
            let mut out = [7; 3 * MAX_GROUP];
            assert_eq!(nibbles.digits(&[0.0; 128], &mut out), 0.0);
            assert!(out[..nibbles.n_digits * 128].iter().all(|&d| d == 0));
            assert!(nibbles.digits(&[1e-40; 128], &mut out) < 1e-37);
            for bad in [f32::NAN, f32::INFINITY] {
                let mut group = [1.0; 128];
                group[17] = bad;
                assert!(nibbles.digits(&group, &mut out).is_nan());
            }
        }
    }
}
