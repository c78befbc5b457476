//! The types of stored weights: those of kernels, and those that are converted to 8 bits when they are loaded.
//!
//! The converted types have codebooks, three values a weight, or scales that no kernel supports. Their files are small, but in memory
//! a weight takes 8.5 bits (Q8_0). Rounding to 8 bits changes a weight by at most 1/250 of the largest of its 32, far less than the type
//! has changed it before.

use crate::backend::{DType, dequantise};

/// The type of a tensor in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StoredType {
    /// Kernels multiply it.
    Direct(DType),
    Converted(ConvertedType),
}

/// A type that no kernel multiplies, with GGML's names. Blocks have 256 weights, those of NVFP4 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConvertedType {
    IQ1S,
    IQ1M,
    IQ2XXS,
    IQ2XS,
    IQ2S,
    IQ3XXS,
    IQ3S,
    TQ1_0,
    TQ2_0,
    NVFP4,
}

impl From<DType> for StoredType {
    fn from(dtype: DType) -> Self {
        Self::Direct(dtype)
    }
}

impl StoredType {
    /// The type in memory.
    pub fn loaded(self) -> DType {
        match self {
            Self::Direct(dtype) => dtype,
            Self::Converted(_) => DType::Q8_0,
        }
    }

    /// Weights in a block.
    pub fn block(self) -> usize {
        match self {
            Self::Direct(dtype) => dtype.block(),
            Self::Converted(ConvertedType::NVFP4) => 64,
            Self::Converted(_) => 256,
        }
    }

    /// Bytes of a block in the file.
    pub fn block_bytes(self) -> usize {
        match self {
            Self::Direct(dtype) => dtype.block_bytes(),
            Self::Converted(kind) => kind.block_bytes(),
        }
    }

    /// Dequantises whole blocks, with the same result as GGML.
    pub fn dequantise(self, bytes: &[u8], out: &mut [f32]) {
        match self {
            Self::Direct(dtype) => dequantise(dtype, bytes, out),
            Self::Converted(kind) => {
                let blocks = bytes.chunks_exact(self.block_bytes()).zip(out.chunks_exact_mut(self.block()));
                blocks.for_each(|(block, out)| kind.dequantise(block, out));
            }
        }
    }
}

impl ConvertedType {
    fn block_bytes(self) -> usize {
        match self {
            Self::IQ1S => 50,
            Self::IQ1M => 56,
            Self::IQ2XXS | Self::TQ2_0 => 66,
            Self::IQ2XS => 74,
            Self::IQ2S => 82,
            Self::IQ3XXS => 98,
            Self::IQ3S => 110,
            Self::TQ1_0 => 54,
            Self::NVFP4 => 36,
        }
    }

    /// Dequantises a block.
    fn dequantise(self, block: &[u8], out: &mut [f32]) {
        match self {
            Self::IQ1S => iq1_s(block, out),
            Self::IQ1M => iq1_m(block, out),
            Self::IQ2XXS => iq2_xxs(block, out),
            Self::IQ2XS => iq2_xs(block, out),
            Self::IQ2S => iq2_s(block, out),
            Self::IQ3XXS => iq3_xxs(block, out),
            Self::IQ3S => iq3_s(block, out),
            Self::TQ1_0 => tq1_0(block, out),
            Self::TQ2_0 => tq2_0(block, out),
            Self::NVFP4 => nvfp4(block, out),
        }
    }
}

/// Rows of several weights, which an index in a block selects. They are data of the formats; `tests/fixtures/make_gguf_types_reference.py`
/// writes the file.
struct Codebook {
    /// The first row in the file.
    first: usize,
    /// Bits of an index of `values` in a row.
    bits: usize,
    values: &'static [i8],
}

const CODEBOOKS: &[u8] = include_bytes!("codebooks.bin");
const IQ2_VALUES: &[i8] = &[0x08, 0x19, 0x2b];
const IQ2_XXS: Codebook = Codebook { first: 0, bits: 2, values: IQ2_VALUES };
const IQ2_XS: Codebook = Codebook { first: 256, bits: 2, values: IQ2_VALUES };
const IQ2_S: Codebook = Codebook { first: 768, bits: 2, values: IQ2_VALUES };
const IQ1_S: Codebook = Codebook { first: 1792, bits: 2, values: &[-1, 0, 1] };
const IQ3_XXS: Codebook = Codebook { first: 3840, bits: 3, values: &[0x04, 0x0c, 0x14, 0x1c, 0x24, 0x2c, 0x34, 0x3e] };
const IQ3_S: Codebook = Codebook { first: 4096, bits: 3, values: &[1, 3, 5, 7, 9, 11, 13, 15] };

impl Codebook {
    /// The weights of a row, which has eight with two bits, and four with three.
    fn row(&self, index: usize) -> impl Iterator<Item = f32> {
        let word = usize::from(u16_at(CODEBOOKS, 2 * (self.first + index)));
        let Self { bits, values, .. } = *self;
        (0..if bits == 2 { 8 } else { 4 }).map(move |i| f32::from(values[word >> (bits * i) & ((1 << bits) - 1)]))
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    half::f16::from_bits(u16_at(bytes, at)).to_f32()
}

/// The nibble `index` of bytes, the low one of a byte first.
fn nibble(bytes: &[u8], index: usize) -> u8 {
    bytes[index / 2] >> (4 * (index % 2)) & 15
}

/// Writes magnitudes times a scale; a set bit of `signs` negates.
fn put_signed(out: &mut [f32], scale: f32, magnitudes: impl Iterator<Item = f32>, signs: u8) {
    for ((index, out), magnitude) in out.iter_mut().enumerate().zip(magnitudes) {
        *out = scale * magnitude * if signs >> index & 1 == 0 { 1. } else { -1. };
    }
}

/// Eight signs of which an even number is set, from the first seven.
fn even_signs(bits: u32) -> u8 {
    let signs = (bits & 127) as u8;
    signs | ((signs.count_ones() & 1) as u8) << 7
}

fn iq2_xxs(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (out, part) in out.chunks_exact_mut(32).zip(block[2..].chunks_exact(8)) {
        let signs = u32_at(part, 4);
        let scale = d * (0.5 + (signs >> 28) as f32) * 0.25;
        for (i, out) in out.chunks_exact_mut(8).enumerate() {
            put_signed(out, scale, IQ2_XXS.row(usize::from(part[i])), even_signs(signs >> (7 * i)));
        }
    }
}

fn iq2_xs(block: &[u8], out: &mut [f32]) {
    let (d, scales) = (half_at(block, 0), &block[66..]);
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        let word = u16_at(block, 2 + 2 * i);
        let scale = d * (0.5 + f32::from(nibble(scales, i / 2))) * 0.25;
        put_signed(out, scale, IQ2_XS.row(usize::from(word & 511)), even_signs(u32::from(word >> 9)));
    }
}

fn iq2_s(block: &[u8], out: &mut [f32]) {
    let (low, signs, high, scales) = (&block[2..34], &block[34..66], &block[66..74], &block[74..]);
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        let index = usize::from(low[i]) | usize::from(high[i / 4] >> (2 * (i % 4)) & 3) << 8;
        let scale = half_at(block, 0) * (0.5 + f32::from(nibble(scales, i / 2))) * 0.25;
        put_signed(out, scale, IQ2_S.row(index), signs[i]);
    }
}

fn iq3_xxs(block: &[u8], out: &mut [f32]) {
    let (d, indices) = (half_at(block, 0), &block[2..66]);
    for (part, out) in out.chunks_exact_mut(32).enumerate() {
        let signs = u32_at(block, 66 + 4 * part);
        let scale = d * (0.5 + (signs >> 28) as f32) * 0.5;
        for (i, out) in out.chunks_exact_mut(8).enumerate() {
            let row = |half: usize| IQ3_XXS.row(usize::from(indices[8 * part + 2 * i + half]));
            put_signed(out, scale, row(0).chain(row(1)), even_signs(signs >> (7 * i)));
        }
    }
}

fn iq3_s(block: &[u8], out: &mut [f32]) {
    let (low, high, signs, scales) = (&block[2..66], &block[66..74], &block[74..106], &block[106..]);
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        let row = |at: usize| IQ3_S.row(usize::from(low[at]) | usize::from(high[at / 8] >> (at % 8) & 1) << 8);
        let scale = half_at(block, 0) * f32::from(1 + 2 * nibble(scales, i / 4));
        put_signed(out, scale, row(2 * i).chain(row(2 * i + 1)), signs[i]);
    }
}

/// Added to the weights of a row of IQ1_S and IQ1_M, or subtracted.
const IQ1_DELTA: f32 = 0.125;

/// Writes eight weights of IQ1_S or IQ1_M.
fn put_shifted(out: &mut [f32], scale: f32, index: usize, is_negative: bool) {
    let delta = if is_negative { -IQ1_DELTA } else { IQ1_DELTA };
    out.iter_mut().zip(IQ1_S.row(index)).for_each(|(out, value)| *out = scale * (value + delta));
}

fn iq1_s(block: &[u8], out: &mut [f32]) {
    let (d, low) = (half_at(block, 0), &block[2..34]);
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        let high = usize::from(u16_at(block, 34 + 2 * (i / 4)));
        let scale = d * (2 * (high >> 12 & 7) + 1) as f32;
        put_shifted(out, scale, usize::from(low[i]) | (high >> (3 * (i % 4)) & 7) << 8, high & 0x8000 != 0);
    }
}

fn iq1_m(block: &[u8], out: &mut [f32]) {
    let (low, high, scales) = (&block[..32], &block[32..48], &block[48..]);
    // Each of four words has four bits of the scale, above four scales of three bits.
    let word = |index: usize| u16_at(scales, 2 * index);
    let d = half::f16::from_bits((0..4).fold(0, |bits, index| bits | (word(index) >> 12) << (4 * index))).to_f32();
    for (i, out) in out.chunks_exact_mut(8).enumerate() {
        let scale = d * f32::from(2 * (word(i / 8) >> (3 * (i / 2 % 4)) & 7) + 1);
        let high = usize::from(nibble(high, i));
        put_shifted(out, scale, usize::from(low[i]) | (high & 7) << 8, high & 8 != 0);
    }
}

/// Five weights in a byte, as a fraction in base three.
fn tq1_0(block: &[u8], out: &mut [f32]) {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    let d = half_at(block, 52);
    let parts = [(&block[..32], 5), (&block[32..48], 5), (&block[48..52], 4)];
    let digits = parts.into_iter().flat_map(|(bytes, count)| {
        POWERS[..count].iter().flat_map(move |power| bytes.iter().map(move |byte| byte.wrapping_mul(*power)))
    });
    for (out, digit) in out.iter_mut().zip(digits) {
        *out = d * (f32::from((u16::from(digit) * 3) >> 8) - 1.);
    }
}

fn tq2_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 64);
    for (bytes, out) in block[..64].chunks_exact(32).zip(out.chunks_exact_mut(128)) {
        for (plane, out) in out.chunks_exact_mut(32).enumerate() {
            out.iter_mut().zip(bytes).for_each(|(out, byte)| *out = d * (f32::from(byte >> (2 * plane) & 3) - 1.));
        }
    }
}

/// Floats of four bits, with a scale of eight bits for each 16 (<https://arxiv.org/abs/2509.25149>, without a scale of the whole tensor).
fn nvfp4(block: &[u8], out: &mut [f32]) {
    const DOUBLED: [f32; 16] = [0., 1., 2., 3., 4., 6., 8., 12., 0., -1., -2., -3., -4., -6., -8., -12.];
    for (part, out) in out.chunks_exact_mut(16).enumerate() {
        let (scale, codes) = (half_e4m3(block[part]), &block[4 + 8 * part..][..8]);
        let (low, high) = out.split_at_mut(8);
        for ((low, high), code) in low.iter_mut().zip(high).zip(codes) {
            (*low, *high) = (scale * DOUBLED[usize::from(code & 15)], scale * DOUBLED[usize::from(code >> 4)]);
        }
    }
}

/// Half of a float with four bits of exponent and three of mantissa. What is not a number is zero, as in GGML.
fn half_e4m3(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    match (bits, exponent) {
        (0x7f, _) => 0.,
        (_, 0) => mantissa * 2f32.powi(-10),
        _ => (1. + mantissa / 8.) * 2f32.powi(exponent - 8),
    }
}

#[cfg(test)]
mod tests {
    use outpost_testing::fixtures::fixture;

    use super::*;
    use crate::safetensors::ModelFolder;
    use crate::weights::{Rows, Storage, StoredTensor, Weights};

    const TYPES: [(&str, ConvertedType); 10] = [
        ("IQ1_S", ConvertedType::IQ1S),
        ("IQ1_M", ConvertedType::IQ1M),
        ("IQ2_XXS", ConvertedType::IQ2XXS),
        ("IQ2_XS", ConvertedType::IQ2XS),
        ("IQ2_S", ConvertedType::IQ2S),
        ("IQ3_XXS", ConvertedType::IQ3XXS),
        ("IQ3_S", ConvertedType::IQ3S),
        ("TQ1_0", ConvertedType::TQ1_0),
        ("TQ2_0", ConvertedType::TQ2_0),
        ("NVFP4", ConvertedType::NVFP4),
    ];

    #[test]
    fn weights_are_those_of_the_package_gguf() {
        let file = fixture("gguf_types.safetensors");
        let reference = ModelFolder::open_file(&file).unwrap();
        let bytes = std::fs::read(&file).unwrap();
        for (name, kind) in TYPES {
            let stored = StoredType::Converted(kind);
            let info = reference.tensor(&format!("{name}.blocks")).unwrap().0;
            let [blocks, size] = info.shape[..] else { panic!("{:?}", info.shape) };
            assert_eq!(size, stored.block_bytes(), "{name}");
            let expected = reference.rows(&format!("{name}.weights"), 0, blocks).unwrap().floats().unwrap();
            let blocks_bytes = &bytes[info.start as usize..][..info.bytes as usize];
            let mut found = vec![f32::NAN; expected.len()];
            stored.dequantise(blocks_bytes, &mut found);
            assert_eq!(found, expected, "{name}");
            assert!(expected.iter().any(|weight| *weight != 0.));

            // As a tensor, the second row by itself.
            let (storage, shape) = (Storage::Memory(blocks_bytes), [blocks, stored.block()]);
            let tensor = StoredTensor { name, storage, start: 0, shape: &shape, stored };
            let row: Rows<'_> = tensor.rows(1, 1).unwrap();
            assert_eq!(row.dtype, DType::Q8_0);
            let expected = &expected[stored.block()..2 * stored.block()];
            for (found, exact) in row.floats().unwrap().chunks(32).zip(expected.chunks(32)) {
                let largest = exact.iter().fold(0f32, |largest, weight| largest.max(weight.abs()));
                let error = found.iter().zip(exact).map(|(a, b)| (a - b).abs()).fold(0., f32::max);
                assert!(error <= largest / 250., "{name}: an error of {error} of {largest}");
            }
        }
    }
}
