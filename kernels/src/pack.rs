//! The packed layout: sixteen rows side by side, so that one instruction serves sixteen outputs.
//!
//! A group holds 16 consecutive rows (the last group is filled up with zeros). Quantised kinds: for
//! each span of one block (32 weights), or of eight (256, the K kinds), a head with the f16 scales of
//! the 16 rows; then for each 32 weights a tile: byte scales of the K kinds, high bits, low bits. In the
//! bytes of a tile, unit `j` is 64 bytes: for each row the four weights `4j .. 4j + 4` in their low
//! nibbles and `16 + 4j ..` in their high nibbles. Float kinds: for each k, the 16 rows' numbers.

use crate::kind::{Kind, Raw};
use crate::simd::LANES;

/// Where things lie in a group; bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Tiles after each head.
    pub span: usize,
    pub head: usize,
    /// Scales at the beginning of a tile.
    pub scales: usize,
    /// High bits after them: 64 for a fifth bit, 128 for two more.
    pub high: usize,
    /// Low bits after them: 256 for nibbles, 512 for whole bytes.
    pub low: usize,
}

impl Layout {
    pub const fn of(kind: Kind) -> Self {
        let (span, head, scales, high, low) = match kind {
            // A "tile" is one k.
            Kind::F32 => (1, 0, 0, 0, 64),
            Kind::F16 | Kind::BF16 => (1, 0, 0, 0, 32),
            Kind::Q8_0 => (1, 32, 0, 0, 512),
            Kind::Q4_0 => (1, 32, 0, 0, 256),
            Kind::Q4_1 => (1, 64, 0, 0, 256),
            Kind::Q5_0 => (1, 32, 0, 64, 256),
            Kind::Q5_1 => (1, 64, 0, 64, 256),
            Kind::Q4K => (8, 64, 32, 0, 256),
            Kind::Q5K => (8, 64, 32, 64, 256),
            Kind::Q6K => (8, 32, 32, 128, 256),
        };
        Self { span, head, scales, high, low }
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

/// Writes a block into its span of a group; the span's bytes for this lane are zero before.
pub(crate) fn put(kind: Kind, raw: &Raw, lane: usize, span: &mut [u8]) {
    let layout = Layout::of(kind);
    let (head, tiles) = span.split_at_mut(layout.head);
    put_u16(head, lane, raw.d);
    if layout.head == 64 {
        put_u16(&mut head[32..], lane, raw.m);
    }
    for (index, tile) in tiles.chunks_exact_mut(layout.tile()).enumerate() {
        let (scales, rest) = tile.split_at_mut(layout.scales);
        let (high, low) = rest.split_at_mut(layout.high);
        if kind == Kind::Q6K {
            (scales[lane], scales[16 + lane]) = (raw.scales[2 * index], raw.scales[2 * index + 1]);
        } else if layout.scales > 0 {
            (scales[lane], scales[16 + lane]) = (raw.scales[index], raw.minima[index]);
        }
        for (at, &code) in raw.codes[32 * index..32 * index + 32].iter().enumerate() {
            // Unit of four weights, and the place of the lane's byte in a unit.
            let (unit, byte) = (at / 4, lane * 4 + at % 4);
            match layout.low {
                512 => low[unit * 64 + byte] = code,
                _ => low[unit % 4 * 64 + byte] |= (code & 15) << (unit / 4 * 4),
            }
            match layout.high {
                64 => high[unit * 8 + byte / 8] |= (code >> 4) << (byte % 8),
                128 => high[unit % 2 * 64 + byte] |= (code >> 4) << (unit / 2 * 2),
                _ => {}
            }
        }
    }
}

/// Reads back what [`put`] wrote.
pub(crate) fn get(kind: Kind, raw: &mut Raw, lane: usize, span: &[u8]) {
    let layout = Layout::of(kind);
    let (head, tiles) = span.split_at(layout.head);
    raw.d = get_u16(head, lane);
    if layout.head == 64 {
        raw.m = get_u16(&head[32..], lane);
    }
    for (index, tile) in tiles.chunks_exact(layout.tile()).enumerate() {
        let (scales, rest) = tile.split_at(layout.scales);
        let (high, low) = rest.split_at(layout.high);
        if kind == Kind::Q6K {
            (raw.scales[2 * index], raw.scales[2 * index + 1]) = (scales[lane], scales[16 + lane]);
        } else if layout.scales > 0 {
            (raw.scales[index], raw.minima[index]) = (scales[lane], scales[16 + lane]);
        }
        for (at, code) in raw.codes[32 * index..32 * index + 32].iter_mut().enumerate() {
            let (unit, byte) = (at / 4, lane * 4 + at % 4);
            *code = match layout.low {
                512 => low[unit * 64 + byte],
                _ => low[unit % 4 * 64 + byte] >> (unit / 4 * 4) & 15,
            };
            *code |= match layout.high {
                64 => (high[unit * 8 + byte / 8] >> (byte % 8) & 1) << 4,
                128 => (high[unit % 2 * 64 + byte] >> (unit / 2 * 2) & 3) << 4,
                _ => 0,
            };
        }
    }
}

/// Packs up to 16 rows of `blocks` blocks each, in the file's form, into the zeroed `group`.
pub(crate) fn pack_group(kind: Kind, rows: &[u8], row_bytes: usize, group: &mut [u8]) {
    let layout = Layout::of(kind);
    let mut raw = Raw::new();
    for (lane, row) in rows.chunks_exact(row_bytes).take(LANES).enumerate() {
        if !kind.is_quantised() {
            let size = kind.block_bytes();
            for (at, number) in row.chunks_exact(size).enumerate() {
                let to = at * layout.low + lane * size;
                group[to..to + size].copy_from_slice(number);
            }
            continue;
        }
        for (block, span) in row.chunks_exact(kind.block_bytes()).zip(group.chunks_exact_mut(layout.span_bytes())) {
            raw.read(kind, block);
            put(kind, &raw, lane, span);
        }
    }
}

/// One row's weights, as GGML dequantises them.
pub(crate) fn unpack_row(kind: Kind, group: &[u8], lane: usize, out: &mut [f32]) {
    let layout = Layout::of(kind);
    if !kind.is_quantised() {
        for (number, out) in group.chunks_exact(layout.low).zip(out) {
            *out = match kind {
                Kind::F16 => half::f16::from_bits(get_u16(number, lane)).to_f32(),
                Kind::BF16 => half::bf16::from_bits(get_u16(number, lane)).to_f32(),
                _ => {
                    let bytes = &number[4 * lane..4 * lane + 4];
                    f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
                }
            };
        }
        return;
    }
    let mut raw = Raw::new();
    for (span, out) in group.chunks_exact(layout.span_bytes()).zip(out.chunks_exact_mut(kind.block())) {
        get(kind, &mut raw, lane, span);
        raw.weights(kind, out);
    }
}
