//! The types of a GGUF file's weights, block by block.
//!
//! A block as the file has it becomes a [`Raw`]: scales and integer codes in the elements' order. The
//! packed layout is written from that and read back into it, so neither knows the other.

/// How weights are stored; names are GGML's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    F32,
    F16,
    BF16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q4K,
    Q5K,
    Q6K,
}

impl Kind {
    pub const ALL: [Self; 11] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
    ];

    /// Weights in a block.
    pub fn block(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 => 32,
            Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of a block in the file.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q8_0 => 34,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
        }
    }

    /// Weights are codes with shared scales, not floats.
    pub fn is_quantised(self) -> bool {
        self.block() > 1
    }
}

/// One block: `weight = scale · code + minimum` in the way of its kind.
#[derive(Debug)]
pub(crate) struct Raw {
    /// f16 bits.
    pub d: u16,
    /// f16 bits: the minimum of Q4_1 and Q5_1, the scale of the minima of Q4_K and Q5_K.
    pub m: u16,
    /// Of Q4_K, Q5_K: 8 (unsigned); of Q6_K: 16 (signed).
    pub scales: [u8; 16],
    pub minima: [u8; 8],
    /// Unsigned, but for Q8_0, whose bits are those of an `i8`.
    pub codes: [u8; 256],
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

impl Raw {
    pub fn new() -> Self {
        Self { d: 0, m: 0, scales: [0; 16], minima: [0; 8], codes: [0; 256] }
    }

    /// Reads the block `bytes` of a quantised kind.
    pub fn read(&mut self, kind: Kind, bytes: &[u8]) {
        match kind {
            Kind::F32 | Kind::F16 | Kind::BF16 => {}
            Kind::Q8_0 => {
                self.d = u16_at(bytes, 0);
                self.codes[..32].copy_from_slice(&bytes[2..34]);
            }
            Kind::Q4_0 | Kind::Q5_0 | Kind::Q4_1 | Kind::Q5_1 => {
                self.d = u16_at(bytes, 0);
                let mut rest = &bytes[2..];
                if matches!(kind, Kind::Q4_1 | Kind::Q5_1) {
                    self.m = u16_at(bytes, 2);
                    rest = &bytes[4..];
                }
                let mut fifth = 0;
                if matches!(kind, Kind::Q5_0 | Kind::Q5_1) {
                    fifth = u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]);
                    rest = &rest[4..];
                }
                for (at, byte) in rest[..16].iter().enumerate() {
                    self.codes[at] = (byte & 15) | ((fifth >> at) as u8 & 1) << 4;
                    self.codes[at + 16] = (byte >> 4) | ((fifth >> (at + 16)) as u8 & 1) << 4;
                }
            }
            Kind::Q4K | Kind::Q5K => self.read_k(kind, bytes),
            Kind::Q6K => self.read_q6k(bytes),
        }
    }

    fn read_k(&mut self, kind: Kind, bytes: &[u8]) {
        self.d = u16_at(bytes, 0);
        self.m = u16_at(bytes, 2);
        let packed = &bytes[4..16];
        for part in 0..4 {
            self.scales[part] = packed[part] & 63;
            self.minima[part] = packed[part + 4] & 63;
            self.scales[part + 4] = (packed[part + 8] & 15) | (packed[part] >> 6) << 4;
            self.minima[part + 4] = (packed[part + 8] >> 4) | (packed[part + 4] >> 6) << 4;
        }
        let (fifth, low) = if kind == Kind::Q5K { bytes[16..].split_at(32) } else { (&[][..], &bytes[16..]) };
        for (at, byte) in low[..128].iter().enumerate() {
            let (chunk, within) = (at / 32, at % 32);
            let bits = fifth.get(within).map_or(0, |bits| bits >> (2 * chunk));
            self.codes[chunk * 64 + within] = (byte & 15) | (bits & 1) << 4;
            self.codes[chunk * 64 + 32 + within] = (byte >> 4) | (bits >> 1 & 1) << 4;
        }
    }

    fn read_q6k(&mut self, bytes: &[u8]) {
        let (low, rest) = bytes.split_at(128);
        let (high, rest) = rest.split_at(64);
        self.scales.copy_from_slice(&rest[..16]);
        self.d = u16_at(rest, 16);
        for at in 0..256 {
            let (half, quarter, within) = (at / 128, at % 128 / 32, at % 32);
            let byte = low[half * 64 + (quarter % 2) * 32 + within];
            let nibble = if quarter < 2 { byte & 15 } else { byte >> 4 };
            self.codes[at] = nibble | (high[half * 32 + within] >> (2 * quarter) & 3) << 4;
        }
    }

    /// The weights, by the operations and in the order that GGML takes.
    pub fn weights(&self, kind: Kind, out: &mut [f32]) {
        let (d, m) = (half::f16::from_bits(self.d).to_f32(), half::f16::from_bits(self.m).to_f32());
        for (at, (out, &code)) in out.iter_mut().zip(&self.codes).enumerate() {
            *out = match kind {
                Kind::Q8_0 => f32::from(code as i8) * d,
                Kind::Q4_0 => f32::from(code as i8 - 8) * d,
                Kind::Q5_0 => f32::from(code as i8 - 16) * d,
                Kind::Q4_1 | Kind::Q5_1 => f32::from(code) * d + m,
                Kind::Q6K => d * f32::from(self.scales[at / 16] as i8) * f32::from(code as i8 - 32),
                _ => d * f32::from(self.scales[at / 32]) * f32::from(code) - m * f32::from(self.minima[at / 32]),
            };
        }
    }
}
