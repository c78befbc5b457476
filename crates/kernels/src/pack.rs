//! The packed layout of weights: sixteen rows are interleaved, so that one instruction computes sixteen outputs.
//!
//! A group holds 16 consecutive rows; the last group is padded with zeros.
//!
//! For quantised types, a span is one block (32 weights, or 256 for the K types). It starts with a head: the f16 scales
//! of the 16 rows, or their exponents in a byte each (MXFP4), and their minima if the type has any. A tile for each 32 weights follows: byte scales (K types), high
//! bits, low bits. A unit of a tile is 64 bytes, four for each row. With nibbles, unit `j` has a row's weights `4j .. 4j +
//! 4` in its low nibbles and `16 + 4j .. 20 + 4j` in its high nibbles. With two-bit codes, unit `j` has four weights from
//! each of `4j`, `8 + 4j`, `16 + 4j` and `24 + 4j` on, from the lowest bits up.
//!
//! For float types, a span is four k; the last one is padded with zeros. F32 and F16 store the values of 16 rows for each
//! k. BF16 stores two k of a row side by side, as the dot-product instruction expects.

use crate::dtype::{DType, RawBlock, read_float};
use crate::simd::LANES;

/// Floats of a row in a span.
pub(crate) const FLOATS: usize = 4;

/// Offsets and sizes in a group, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Weights of a row in a span.
    pub width: usize,
    /// Tiles in a span.
    pub tiles: usize,
    /// Head of a span: 16 bytes for scales that are powers of two, 32 for other scales, 64 for scales and minima.
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
        let (tiles, head, scales, high, low) = match dtype {
            DType::F32 => (1, 0, 0, 0, 4 * FLOATS * LANES),
            DType::F16 | DType::BF16 => (1, 0, 0, 0, 2 * FLOATS * LANES),
            DType::Q8_0 => (1, 32, 0, 0, 512),
            DType::Q4_0 | DType::IQ4NL => (1, 32, 0, 0, 256),
            DType::MXFP4 => (1, 16, 0, 0, 256),
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
        Self { width: if dtype.is_quantised() { dtype.block() } else { FLOATS }, tiles, head, scales, high, low }
    }

    /// Bytes of a group of rows of `k` weights.
    pub fn group_bytes(&self, k: usize) -> usize {
        k.div_ceil(self.width) * self.span_bytes()
    }

    pub const fn tile_bytes(&self) -> usize {
        self.scales + self.high + self.low
    }

    pub const fn span_bytes(&self) -> usize {
        self.head + self.tiles * self.tile_bytes()
    }
}

fn put_u16(bytes: &mut [u8], lane: usize, value: u16) {
    bytes[2 * lane..2 * lane + 2].copy_from_slice(&value.to_le_bytes());
}

fn get_u16(bytes: &[u8], lane: usize) -> u16 {
    u16::from_le_bytes([bytes[2 * lane], bytes[2 * lane + 1]])
}

/// For each scale of a row in tile `index`: its index in the tile, and in the block's scales.
fn scale_indices(dtype: DType, lane: usize, index: usize) -> impl Iterator<Item = (usize, usize)> {
    let count = if matches!(dtype, DType::Q2K | DType::Q3K | DType::Q6K) { 2 } else { 1 };
    (0..count).map(move |i| (i * LANES + lane, count * index + i))
}

/// The 32 codes of a row in a tile, four per word.
type CodeWords = [u32; 8];

/// Gathers the lowest bits of a word's four bytes.
fn gather_bits(word: u32) -> u8 {
    // The terms do not overlap: bit 8b of the word moves to bit 24 + b.
    ((word & 0x0101_0101).wrapping_mul(0x0102_0408) >> 24) as u8
}

/// The inverse of [`gather_bits`].
fn scatter_bits(bits: u8) -> u32 {
    u32::from(bits & 15).wrapping_mul(0x0020_4081) & 0x0101_0101
}

fn word_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes([bytes[offset], bytes[offset + 1], bytes[offset + 2], bytes[offset + 3]])
}

/// Writes a tile's codes for one lane; its high bits must be zero.
fn put_codes(words: &CodeWords, lane: usize, high: &mut [u8], low: &mut [u8]) {
    let put = |bytes: &mut [u8], unit: usize, word: u32| {
        let offset = unit * 64 + 4 * lane;
        bytes[offset..offset + 4].copy_from_slice(&word.to_le_bytes());
    };
    let move_bits = |word: u32, mask: u32, from: u32, to: u32| (word >> from & mask) << to;
    let mut low_bits = 4;
    match low.len() {
        512 => words.iter().enumerate().for_each(|(unit, word)| put(low, unit, *word)),
        256 => (0..4).for_each(|j| {
            put(low, j, move_bits(words[j], 0x0f0f_0f0f, 0, 0) | move_bits(words[j + 4], 0x0f0f_0f0f, 0, 4));
        }),
        _ => {
            low_bits = 2;
            for j in 0..2 {
                let plane = |i: usize| move_bits(words[j + 2 * i], 0x0303_0303, 0, 2 * i as u32);
                put(low, j, plane(0) | plane(1) | plane(2) | plane(3));
            }
        }
    }
    match high.len() {
        64 => words.iter().enumerate().for_each(|(unit, word)| {
            high[unit * 8 + lane / 2] |= gather_bits(word >> low_bits) << (4 * (lane % 2));
        }),
        128 => (0..2).for_each(|j| {
            let plane = |i: usize| move_bits(words[j + 2 * i], 0x0303_0303, 4, 2 * i as u32);
            put(high, j, plane(0) | plane(1) | plane(2) | plane(3));
        }),
        _ => {}
    }
}

/// Reads what [`put_codes`] wrote.
fn get_codes(lane: usize, high: &[u8], low: &[u8]) -> CodeWords {
    let load = |bytes: &[u8], unit: usize| word_at(&bytes[unit * 64..], 4 * lane);
    let mut low_bits = 4;
    let mut words: CodeWords = match low.len() {
        512 => std::array::from_fn(|unit| load(low, unit)),
        256 => std::array::from_fn(|unit| load(low, unit % 4) >> (4 * (unit / 4)) & 0x0f0f_0f0f),
        _ => {
            low_bits = 2;
            std::array::from_fn(|unit| load(low, unit % 2) >> (2 * (unit / 2)) & 0x0303_0303)
        }
    };
    for (unit, word) in words.iter_mut().enumerate() {
        match high.len() {
            64 => *word |= scatter_bits(high[unit * 8 + lane / 2] >> (4 * (lane % 2))) << low_bits,
            128 => *word |= (load(high, unit % 2) >> (2 * (unit / 2)) & 0x0303_0303) << 4,
            _ => {}
        }
    }
    words
}

/// Writes a row's block to a span of a group; the span's bytes for this lane must be zero.
fn put_block(dtype: DType, raw: &RawBlock, lane: usize, span: &mut [u8]) {
    let layout = Layout::of(dtype);
    let (head, tiles) = span.split_at_mut(layout.head);
    match layout.head {
        16 => head[lane] = raw.d as u8,
        _ => put_u16(head, lane, raw.d),
    }
    if layout.head == 64 {
        put_u16(&mut head[32..], lane, raw.m);
    }
    let codes = raw.codes.chunks_exact(32);
    for ((index, tile), codes) in tiles.chunks_exact_mut(layout.tile_bytes()).enumerate().zip(codes) {
        let (scales, rest) = tile.split_at_mut(layout.scales);
        let (high, low) = rest.split_at_mut(layout.high);
        if !scales.is_empty() {
            scale_indices(dtype, lane, index).for_each(|(packed, raw_index)| scales[packed] = raw.scales[raw_index]);
        }
        if has_minima(dtype) {
            scales[LANES + lane] = raw.minima[index];
        }
        put_codes(&std::array::from_fn(|unit| word_at(codes, 4 * unit)), lane, high, low);
    }
}

/// Whether tiles have minima as separate bytes.
fn has_minima(dtype: DType) -> bool {
    matches!(dtype, DType::Q4K | DType::Q5K)
}

/// Reads what [`put_block`] wrote.
fn get_block(dtype: DType, raw: &mut RawBlock, lane: usize, span: &[u8]) {
    let layout = Layout::of(dtype);
    let (head, tiles) = span.split_at(layout.head);
    raw.d = if layout.head == 16 { u16::from(head[lane]) } else { get_u16(head, lane) };
    if layout.head == 64 {
        raw.m = get_u16(&head[32..], lane);
    }
    let codes = raw.codes.chunks_exact_mut(32);
    for ((index, tile), codes) in tiles.chunks_exact(layout.tile_bytes()).enumerate().zip(codes) {
        let (scales, rest) = tile.split_at(layout.scales);
        let (high, low) = rest.split_at(layout.high);
        if !scales.is_empty() {
            scale_indices(dtype, lane, index).for_each(|(packed, raw_index)| raw.scales[raw_index] = scales[packed]);
        }
        if has_minima(dtype) {
            raw.minima[index] = scales[LANES + lane];
        }
        for (codes, word) in codes.chunks_exact_mut(4).zip(get_codes(lane, high, low)) {
            codes.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// The index in a group of a row's element `k`.
fn float_index(dtype: DType, k: usize, lane: usize) -> usize {
    if dtype == DType::BF16 { (k / 2 * LANES + lane) * 2 + k % 2 } else { k * LANES + lane }
}

/// Packs up to 16 rows from the file's format into the zeroed `group`.
pub(crate) fn pack_group(dtype: DType, rows: &[u8], row_bytes: usize, group: &mut [u8]) {
    let layout = Layout::of(dtype);
    let mut raw = RawBlock::new();
    for (lane, row) in rows.chunks_exact(row_bytes).take(LANES).enumerate() {
        if !dtype.is_quantised() {
            let size = dtype.block_bytes();
            for (k, element) in row.chunks_exact(size).enumerate() {
                let offset = float_index(dtype, k, lane) * size;
                group[offset..offset + size].copy_from_slice(element);
            }
            continue;
        }
        for (block, span) in row.chunks_exact(dtype.block_bytes()).zip(group.chunks_exact_mut(layout.span_bytes())) {
            raw.read(dtype, block);
            put_block(dtype, &raw, lane, span);
        }
    }
}

/// Dequantises one row, with the same result as GGML.
pub(crate) fn unpack_row(dtype: DType, group: &[u8], lane: usize, out: &mut [f32]) {
    let layout = Layout::of(dtype);
    if !dtype.is_quantised() {
        let offset = |k: usize| float_index(dtype, k, lane) * dtype.block_bytes();
        out.iter_mut().enumerate().for_each(|(k, out)| *out = read_float(dtype, &group[offset(k)..]));
        return;
    }
    let mut raw = RawBlock::new();
    for (span, out) in group.chunks_exact(layout.span_bytes()).zip(out.chunks_exact_mut(dtype.block())) {
        get_block(dtype, &mut raw, lane, span);
        raw.dequantise(dtype, out);
    }
}

#[cfg(test)]
mod tests {
    use super::{gather_bits, scatter_bits};

    #[test]
    fn bits_are_gathered_and_scattered() {
        for bits in 0..16u8 {
            let word = (0..4).fold(0, |word, at| word | u32::from(bits >> at & 1) << (8 * at));
            assert_eq!((scatter_bits(bits), gather_bits(word | 0xfefe_fefe)), (word, bits));
        }
    }
}
