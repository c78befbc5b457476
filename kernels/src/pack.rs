//! The packed layout: sixteen rows interleaved, so that one instruction serves sixteen outputs.
//!
//! A group holds 16 consecutive rows; the last group is padded with zeros. For quantised types, each span of one block
//! (32 weights; 256 for the K types) starts with a head: the f16 scales of the 16 rows. Then each 32 weights have a
//! tile: byte scales (K types), high bits, low bits. A unit of a tile is 64 bytes: four for each row. Nibbles: unit `j`
//! has a row's weights `4j .. 4j + 4` in its low nibbles and `16 + 4j ..` in its high nibbles. Two-bit codes: unit `j`
//! has the weights `4j ..`, `8 + 4j ..`, `16 + 4j ..` and `24 + 4j ..`, from the lowest bits up. For float types, a
//! span is four k, the last one padded with zeros: F32 and F16 store the 16 rows' values for each k, BF16 those of two
//! k side by side, as the dot-product instruction expects.

use crate::dtype::{DType, Raw, float};
use crate::simd::LANES;

/// Floats of a row in a span.
pub(crate) const FLOATS: usize = 4;

/// Offsets and sizes in a group, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Weights of a row in a span.
    pub width: usize,
    /// Tiles after each head.
    pub span: usize,
    pub head: usize,
    /// Scales at the start of a tile: one or two bytes for each row.
    pub scales: usize,
    /// High bits: 64 bytes for one extra bit, 128 for two.
    pub high: usize,
    /// Low bits: 128 bytes for two bits, 256 for nibbles, 512 for bytes.
    pub low: usize,
}

impl Layout {
    pub const fn of(dtype: DType) -> Self {
        let (span, head, scales, high, low) = match dtype {
            DType::F32 => (1, 0, 0, 0, 4 * FLOATS * LANES),
            DType::F16 | DType::BF16 => (1, 0, 0, 0, 2 * FLOATS * LANES),
            DType::Q8_0 => (1, 32, 0, 0, 512),
            DType::Q4_0 | DType::IQ4NL => (1, 32, 0, 0, 256),
            DType::Q4_1 => (1, 64, 0, 0, 256),
            DType::Q5_0 => (1, 32, 0, 64, 256),
            DType::Q5_1 => (1, 64, 0, 64, 256),
            DType::Q2K => (8, 64, 32, 0, 128),
            DType::Q3K => (8, 32, 32, 64, 128),
            DType::Q4K => (8, 64, 32, 0, 256),
            DType::Q5K => (8, 64, 32, 64, 256),
            DType::Q6K => (8, 32, 32, 128, 256),
            DType::IQ4XS => (8, 32, 16, 0, 256),
        };
        Self { width: if dtype.is_quantised() { dtype.block() } else { FLOATS }, span, head, scales, high, low }
    }

    /// Bytes of a group of rows of `k` weights.
    pub fn group_bytes(&self, k: usize) -> usize {
        k.div_ceil(self.width) * self.span_bytes()
    }

    pub const fn tile(&self) -> usize {
        self.scales + self.high + self.low
    }

    pub const fn span_bytes(&self) -> usize {
        self.head + self.span * self.tile()
    }
}

fn put_u16(bytes: &mut [u8], lane: usize, value: u16) {
    bytes[2 * lane..2 * lane + 2].copy_from_slice(&value.to_le_bytes());
}

fn get_u16(bytes: &[u8], lane: usize) -> u16 {
    u16::from_le_bytes([bytes[2 * lane], bytes[2 * lane + 1]])
}

/// Where a tile's scales are in a block's list of scales: index in the tile, and in the block.
fn scale_places(dtype: DType, lane: usize, index: usize) -> impl Iterator<Item = (usize, usize)> {
    let two = matches!(dtype, DType::Q2K | DType::Q3K | DType::Q6K);
    let count = if two { 2 } else { 1 };
    (0..count).map(move |part| (part * LANES + lane, count * index + part))
}

/// The first 16 codes of a tile, four in a word, then the other 16.
type Words = [u32; 8];

/// Gathers one bit of each of a word's four bytes.
fn lowest_bits(word: u32) -> u8 {
    // The terms do not overlap: bit 8b of the word moves to bit 24 + b.
    ((word & 0x0101_0101).wrapping_mul(0x0102_0408) >> 24) as u8
}

/// The inverse of [`lowest_bits`].
fn spread_bits(bits: u8) -> u32 {
    u32::from(bits & 15).wrapping_mul(0x0020_4081) & 0x0101_0101
}

fn word_at(unit: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([unit[at], unit[at + 1], unit[at + 2], unit[at + 3]])
}

/// Writes a tile's codes for one lane; its high bits must be zero.
fn put_codes(words: &Words, lane: usize, high: &mut [u8], low: &mut [u8]) {
    let place = 4 * lane;
    let put = |bytes: &mut [u8], unit: usize, word: u32| {
        bytes[unit * 64 + place..unit * 64 + place + 4].copy_from_slice(&word.to_le_bytes());
    };
    let bits = |word: u32, mask: u32, from: u32, to: u32| (word >> from & mask) << to;
    let mut low_bits = 4;
    match low.len() {
        512 => words.iter().enumerate().for_each(|(unit, word)| put(low, unit, *word)),
        256 => (0..4).for_each(|j| {
            put(low, j, bits(words[j], 0x0f0f_0f0f, 0, 0) | bits(words[j + 4], 0x0f0f_0f0f, 0, 4));
        }),
        _ => {
            low_bits = 2;
            for j in 0..2 {
                let plane = |at: usize| bits(words[j + 2 * at], 0x0303_0303, 0, 2 * at as u32);
                put(low, j, plane(0) | plane(1) | plane(2) | plane(3));
            }
        }
    }
    match high.len() {
        64 => words.iter().enumerate().for_each(|(unit, word)| {
            high[unit * 8 + lane / 2] |= lowest_bits(word >> low_bits) << (4 * (lane % 2));
        }),
        128 => (0..2).for_each(|j| {
            let plane = |at: usize| bits(words[j + 2 * at], 0x0303_0303, 4, 2 * at as u32);
            put(high, j, plane(0) | plane(1) | plane(2) | plane(3));
        }),
        _ => {}
    }
}

/// Reads what [`put_codes`] wrote.
fn get_codes(lane: usize, high: &[u8], low: &[u8]) -> Words {
    let at = |bytes: &[u8], unit: usize| word_at(&bytes[unit * 64..], 4 * lane);
    let mut low_bits = 4;
    let mut words: Words = match low.len() {
        512 => std::array::from_fn(|unit| at(low, unit)),
        256 => std::array::from_fn(|unit| at(low, unit % 4) >> (4 * (unit / 4)) & 0x0f0f_0f0f),
        _ => {
            low_bits = 2;
            std::array::from_fn(|unit| at(low, unit % 2) >> (2 * (unit / 2)) & 0x0303_0303)
        }
    };
    for (unit, word) in words.iter_mut().enumerate() {
        match high.len() {
            64 => *word |= spread_bits(high[unit * 8 + lane / 2] >> (4 * (lane % 2))) << low_bits,
            128 => *word |= (at(high, unit % 2) >> (2 * (unit / 2)) & 0x0303_0303) << 4,
            _ => {}
        }
    }
    words
}

/// Writes a block into its span of a group; the span's bytes for this lane must be zero.
fn put(dtype: DType, raw: &Raw, lane: usize, span: &mut [u8]) {
    let layout = Layout::of(dtype);
    let (head, tiles) = span.split_at_mut(layout.head);
    put_u16(head, lane, raw.d);
    if layout.head == 64 {
        put_u16(&mut head[32..], lane, raw.m);
    }
    let codes = raw.codes.chunks_exact(32);
    for ((index, tile), codes) in tiles.chunks_exact_mut(layout.tile()).enumerate().zip(codes) {
        let (scales, rest) = tile.split_at_mut(layout.scales);
        let (high, low) = rest.split_at_mut(layout.high);
        if !scales.is_empty() {
            scale_places(dtype, lane, index).for_each(|(to, from)| scales[to] = raw.scales[from]);
        }
        if has_minima(dtype) {
            scales[LANES + lane] = raw.minima[index];
        }
        put_codes(&std::array::from_fn(|unit| word_at(codes, 4 * unit)), lane, high, low);
    }
}

/// Whether minima are bytes of their own.
fn has_minima(dtype: DType) -> bool {
    matches!(dtype, DType::Q4K | DType::Q5K)
}

/// Reads what [`put`] wrote.
fn get(dtype: DType, raw: &mut Raw, lane: usize, span: &[u8]) {
    let layout = Layout::of(dtype);
    let (head, tiles) = span.split_at(layout.head);
    raw.d = get_u16(head, lane);
    if layout.head == 64 {
        raw.m = get_u16(&head[32..], lane);
    }
    let codes = raw.codes.chunks_exact_mut(32);
    for ((index, tile), codes) in tiles.chunks_exact(layout.tile()).enumerate().zip(codes) {
        let (scales, rest) = tile.split_at(layout.scales);
        let (high, low) = rest.split_at(layout.high);
        if !scales.is_empty() {
            scale_places(dtype, lane, index).for_each(|(from, to)| raw.scales[to] = scales[from]);
        }
        if has_minima(dtype) {
            raw.minima[index] = scales[LANES + lane];
        }
        for (codes, word) in codes.chunks_exact_mut(4).zip(get_codes(lane, high, low)) {
            codes.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// The index of a row's element `at` in a group.
fn float_place(dtype: DType, at: usize, lane: usize) -> usize {
    if dtype == DType::BF16 { (at / 2 * LANES + lane) * 2 + at % 2 } else { at * LANES + lane }
}

/// Packs up to 16 rows from the file's format into the zeroed `group`.
pub(crate) fn pack_group(dtype: DType, rows: &[u8], row_bytes: usize, group: &mut [u8]) {
    let layout = Layout::of(dtype);
    let mut raw = Raw::new();
    for (lane, row) in rows.chunks_exact(row_bytes).take(LANES).enumerate() {
        if !dtype.is_quantised() {
            let size = dtype.block_bytes();
            for (at, number) in row.chunks_exact(size).enumerate() {
                let to = float_place(dtype, at, lane) * size;
                group[to..to + size].copy_from_slice(number);
            }
            continue;
        }
        for (block, span) in row.chunks_exact(dtype.block_bytes()).zip(group.chunks_exact_mut(layout.span_bytes())) {
            raw.read(dtype, block);
            put(dtype, &raw, lane, span);
        }
    }
}

/// One row's weights, dequantised as GGML does.
pub(crate) fn unpack_row(dtype: DType, group: &[u8], lane: usize, out: &mut [f32]) {
    let layout = Layout::of(dtype);
    if !dtype.is_quantised() {
        let place = |at: usize| float_place(dtype, at, lane) * dtype.block_bytes();
        out.iter_mut().enumerate().for_each(|(at, out)| *out = float(dtype, &group[place(at)..]));
        return;
    }
    let mut raw = Raw::new();
    for (span, out) in group.chunks_exact(layout.span_bytes()).zip(out.chunks_exact_mut(dtype.block())) {
        get(dtype, &mut raw, lane, span);
        raw.weights(dtype, out);
    }
}

#[cfg(test)]
mod tests {
    use super::{lowest_bits, spread_bits};

    #[test]
    fn bits_are_gathered_and_spread() {
        for bits in 0..16u8 {
            let word = (0..4).fold(0, |word, at| word | u32::from(bits >> at & 1) << (8 * at));
            assert_eq!((spread_bits(bits), lowest_bits(word | 0xfefe_fefe)), (word, bits));
        }
    }
}
