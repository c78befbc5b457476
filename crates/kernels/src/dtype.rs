//! Weight types of GGUF files, block by block.
//!
//! A block of the file becomes a [`RawBlock`]: scales and integer codes in element order. The packed layout is written
//! from it and read back into it, so the file format and the packed layout are independent of each other.

/// The type of stored weights, with GGML's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DType {
    F32,
    F16,
    BF16,
    Q8_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    IQ4NL,
    MXFP4,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    IQ4XS,
}

/// The values of the codes of IQ4_NL and IQ4_XS.
pub(crate) const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the values of the codes of MXFP4, which are floats with a sign, two bits of exponent and one of mantissa (E2M1).
pub(crate) const E2M1_DOUBLED: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Half of a scale of eight bits of exponent (E8M0), exactly. The specification says that 255 is not a number; GGML reads it as
/// 2^128, and so does this.
pub(crate) fn half_e8m0(exponent: u8) -> f32 {
    let bits = u32::from(exponent);
    // The smallest two are subnormal.
    f32::from_bits(if bits < 2 { 0x0020_0000 << bits } else { (bits - 1) << 23 })
}

impl DType {
    pub const ALL: [Self; 16] = [
        Self::F32,
        Self::F16,
        Self::BF16,
        Self::Q8_0,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::IQ4NL,
        Self::MXFP4,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::IQ4XS,
    ];

    /// Weights in a block.
    pub const fn block(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q8_0 | Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::IQ4NL | Self::MXFP4 => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K | Self::IQ4XS => 256,
        }
    }

    /// Bytes of a block in the file.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q8_0 => 34,
            Self::Q4_0 | Self::IQ4NL => 18,
            Self::MXFP4 => 17,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q2K => 84,
            Self::Q3K => 110,
            Self::Q4K => 144,
            Self::Q5K => 176,
            Self::Q6K => 210,
            Self::IQ4XS => 136,
        }
    }

    /// True for types whose weights are codes with shared scales, and not floats.
    pub const fn is_quantised(self) -> bool {
        self.block() > 1
    }
}

/// The first value of `bytes`, for float types.
pub(crate) fn read_float(dtype: DType, bytes: &[u8]) -> f32 {
    match dtype {
        DType::F16 => half::f16::from_bits(u16_at(bytes, 0)).to_f32(),
        DType::BF16 => half::bf16::from_bits(u16_at(bytes, 0)).to_f32(),
        _ => f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]),
    }
}

/// Dequantises whole blocks, with the same result as GGML.
///
/// # Panics
/// If `bytes` are not whole blocks, or `out` does not have their number of elements.
pub fn dequantise(dtype: DType, bytes: &[u8], out: &mut [f32]) {
    let blocks = bytes.len() / dtype.block_bytes();
    assert_eq!(
        (bytes.len(), out.len()),
        (blocks * dtype.block_bytes(), blocks * dtype.block()),
        "bytes and out are not the same whole blocks"
    );
    match dtype {
        DType::F32 => convert(bytes, out, f32::from_le_bytes),
        DType::F16 => convert(bytes, out, |bytes| half::f16::from_le_bytes(bytes).to_f32()),
        DType::BF16 => convert(bytes, out, |bytes| half::bf16::from_le_bytes(bytes).to_f32()),
        _ => {
            let mut raw = RawBlock::new();
            for (block, out) in bytes.chunks_exact(dtype.block_bytes()).zip(out.chunks_exact_mut(dtype.block())) {
                raw.read(dtype, block);
                raw.dequantise(dtype, out);
            }
        }
    }
}

/// Converts values of `N` bytes each.
fn convert<const N: usize>(bytes: &[u8], out: &mut [f32], to_float: impl Fn([u8; N]) -> f32) {
    for (bytes, out) in bytes.as_chunks::<N>().0.iter().zip(out) {
        *out = to_float(*bytes);
    }
}

/// The contents of one block. A weight is `scale · code + minimum`, in the type's variant of this formula.
#[derive(Debug)]
pub(crate) struct RawBlock {
    /// The scale, as f16 bits. MXFP4: its exponent, as in the file.
    pub d: u16,
    /// f16 bits: the minimum of Q4_1 and Q5_1, the scale of the minima of Q2_K, Q4_K and Q5_K.
    pub m: u16,
    /// Scales of sub-blocks. Q4_K and Q5_K: 8, unsigned. IQ4_XS: 8, signed. Q3_K and Q6_K: 16, signed. Q2_K: 16, with a
    /// minimum in the high four bits.
    pub scales: [u8; 16],
    /// Minima of sub-blocks: Q4_K and Q5_K only.
    pub minima: [u8; 8],
    /// Unsigned codes, except for Q8_0: the bits of an `i8`.
    pub codes: [u8; 256],
}

fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes([bytes[offset], bytes[offset + 1]])
}

/// Unpacks the low nibbles of all bytes, then the high nibbles.
fn unpack_nibbles(bytes: &[u8], codes: &mut [u8]) {
    let (low, high) = codes.split_at_mut(bytes.len());
    for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
        (*low, *high) = (byte & 15, byte >> 4);
    }
}

impl RawBlock {
    pub fn new() -> Self {
        Self { d: 0, m: 0, scales: [0; 16], minima: [0; 8], codes: [0; 256] }
    }

    /// Reads a block of a quantised type.
    pub fn read(&mut self, dtype: DType, bytes: &[u8]) {
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 => {}
            DType::Q8_0 => {
                self.d = u16_at(bytes, 0);
                self.codes[..32].copy_from_slice(&bytes[2..34]);
            }
            DType::Q4_0 | DType::Q5_0 | DType::Q4_1 | DType::Q5_1 | DType::IQ4NL => self.read_32(dtype, bytes),
            DType::MXFP4 => {
                self.d = u16::from(bytes[0]);
                unpack_nibbles(&bytes[1..17], &mut self.codes[..32]);
            }
            DType::Q2K => {
                self.scales.copy_from_slice(&bytes[..16]);
                self.read_two_bits(&bytes[16..80]);
                (self.d, self.m) = (u16_at(bytes, 80), u16_at(bytes, 82));
            }
            DType::Q3K => self.read_q3k(bytes),
            DType::Q4K | DType::Q5K => self.read_k(dtype, bytes),
            DType::Q6K => self.read_q6k(bytes),
            DType::IQ4XS => self.read_iq4xs(bytes),
        }
    }

    /// Reads a block of 32 weights with nibbles.
    fn read_32(&mut self, dtype: DType, bytes: &[u8]) {
        self.d = u16_at(bytes, 0);
        let mut rest = &bytes[2..];
        if matches!(dtype, DType::Q4_1 | DType::Q5_1) {
            self.m = u16_at(bytes, 2);
            rest = &bytes[4..];
        }
        if !matches!(dtype, DType::Q5_0 | DType::Q5_1) {
            return unpack_nibbles(&rest[..16], &mut self.codes[..32]);
        }
        let high_bits = u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]);
        unpack_nibbles(&rest[4..20], &mut self.codes[..32]);
        for (index, code) in self.codes[..32].iter_mut().enumerate() {
            *code |= ((high_bits >> index) as u8 & 1) << 4;
        }
    }

    /// Reads two-bit codes: four planes of 32 codes in each half of a block.
    fn read_two_bits(&mut self, bytes: &[u8]) {
        for (bytes, codes) in bytes.chunks_exact(32).zip(self.codes.chunks_exact_mut(128)) {
            for (plane, codes) in codes.chunks_exact_mut(32).enumerate() {
                codes.iter_mut().zip(bytes).for_each(|(code, byte)| *code = byte >> (2 * plane) & 3);
            }
        }
    }

    fn read_q3k(&mut self, bytes: &[u8]) {
        let (high, rest) = bytes.split_at(32);
        let (low, rest) = rest.split_at(64);
        self.read_two_bits(low);
        for (plane, codes) in self.codes.chunks_exact_mut(32).enumerate() {
            codes.iter_mut().zip(high).for_each(|(code, high)| *code |= (high >> plane & 1) << 2);
        }
        // Sixteen scales of six bits: the low four bits are in eight bytes, the high two bits in four.
        for index in 0..16 {
            let low = if index < 8 { rest[index] & 15 } else { rest[index - 8] >> 4 };
            let high = rest[8 + index % 4] >> (2 * (index / 4)) & 3;
            self.scales[index] = (low | high << 4).wrapping_sub(32);
        }
        self.d = u16_at(rest, 12);
    }

    fn read_k(&mut self, dtype: DType, bytes: &[u8]) {
        self.d = u16_at(bytes, 0);
        self.m = u16_at(bytes, 2);
        let packed = &bytes[4..16];
        for i in 0..4 {
            self.scales[i] = packed[i] & 63;
            self.minima[i] = packed[i + 4] & 63;
            self.scales[i + 4] = (packed[i + 8] & 15) | (packed[i] >> 6) << 4;
            self.minima[i + 4] = (packed[i + 8] >> 4) | (packed[i + 4] >> 6) << 4;
        }
        let low_offset = if dtype == DType::Q5K { 48 } else { 16 };
        for (bytes, codes) in bytes[low_offset..].chunks_exact(32).zip(self.codes.chunks_exact_mut(64)) {
            unpack_nibbles(bytes, codes);
        }
        if dtype == DType::Q5K {
            for (plane, codes) in self.codes.chunks_exact_mut(32).enumerate() {
                codes.iter_mut().zip(&bytes[16..48]).for_each(|(code, high)| *code |= (high >> plane & 1) << 4);
            }
        }
    }

    fn read_q6k(&mut self, bytes: &[u8]) {
        let (low, rest) = bytes.split_at(128);
        let (high, rest) = rest.split_at(64);
        self.scales.copy_from_slice(&rest[..16]);
        self.d = u16_at(rest, 16);
        let halves = low.chunks_exact(64).zip(high.chunks_exact(32));
        for ((low, high), codes) in halves.zip(self.codes.chunks_exact_mut(128)) {
            unpack_nibbles(low, codes);
            for (plane, codes) in codes.chunks_exact_mut(32).enumerate() {
                codes.iter_mut().zip(high).for_each(|(code, high)| *code |= (high >> (2 * plane) & 3) << 4);
            }
        }
    }

    fn read_iq4xs(&mut self, bytes: &[u8]) {
        self.d = u16_at(bytes, 0);
        let high = u16_at(bytes, 2);
        for i in 0..8 {
            let low = bytes[4 + i / 2] >> (4 * (i % 2)) & 15;
            let high = (high >> (2 * i)) as u8 & 3;
            self.scales[i] = (low | high << 4).wrapping_sub(32);
        }
        for (bytes, codes) in bytes[8..].chunks_exact(16).zip(self.codes.chunks_exact_mut(32)) {
            unpack_nibbles(bytes, codes);
        }
    }

    /// Computes the weights with GGML's operations, in the same order.
    pub fn dequantise(&self, dtype: DType, out: &mut [f32]) {
        let (d, m) = (half::f16::from_bits(self.d).to_f32(), half::f16::from_bits(self.m).to_f32());
        let signed_scale = |index: usize| d * f32::from(self.scales[index] as i8);
        match dtype {
            DType::Q8_0 => self.map(out, 32, |_| |code| f32::from(code as i8) * d),
            DType::Q4_0 => self.map(out, 32, |_| |code| f32::from(code as i8 - 8) * d),
            DType::Q5_0 => self.map(out, 32, |_| |code| f32::from(code as i8 - 16) * d),
            DType::Q4_1 | DType::Q5_1 => self.map(out, 32, |_| |code| f32::from(code) * d + m),
            DType::IQ4NL => self.map(out, 32, |_| |code| d * f32::from(IQ4_VALUES[usize::from(code & 15)])),
            DType::MXFP4 => {
                let half_scale = half_e8m0(self.d as u8);
                self.map(out, 32, |_| |code| f32::from(E2M1_DOUBLED[usize::from(code & 15)]) * half_scale);
            }
            DType::Q2K => self.map(out, 16, |part| {
                let scale = self.scales[part];
                let (scale, minimum) = (d * f32::from(scale & 15), m * f32::from(scale >> 4));
                move |code| scale * f32::from(code) - minimum
            }),
            DType::Q3K => self.map(out, 16, |part| {
                let scale = signed_scale(part);
                move |code| scale * f32::from(code as i8 - 4)
            }),
            DType::Q6K => self.map(out, 16, |part| {
                let scale = signed_scale(part);
                move |code| scale * f32::from(code as i8 - 32)
            }),
            DType::IQ4XS => self.map(out, 32, |part| {
                let scale = signed_scale(part);
                move |code| scale * f32::from(IQ4_VALUES[usize::from(code & 15)])
            }),
            _ => self.map(out, 32, |part| {
                let (scale, minimum) = (d * f32::from(self.scales[part]), m * f32::from(self.minima[part]));
                move |code| scale * f32::from(code) - minimum
            }),
        }
    }

    /// Computes weights from codes; `weight` returns the function of a part of `width` weights.
    fn map<F: Fn(u8) -> f32>(&self, out: &mut [f32], width: usize, weight: impl Fn(usize) -> F) {
        for (part, (out, codes)) in out.chunks_exact_mut(width).zip(self.codes.chunks_exact(width)).enumerate() {
            let weight = weight(part);
            out.iter_mut().zip(codes).for_each(|(out, code)| *out = weight(*code));
        }
    }
}
