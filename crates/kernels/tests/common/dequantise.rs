//! Independent dequantisation of GGUF's block formats.

use half::{bf16, f16};
use outpost_kernels::DType;

/// Dequantises whole blocks.
pub fn dequantise(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    bytes.chunks(dtype.block_bytes()).flat_map(|block| dequantise_block(dtype, block)).collect()
}

/// For each weight, the magnitudes of its terms: a code's and a minimum's terms may cancel.
pub fn magnitudes(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let mut bytes = bytes.to_vec();
    for block in bytes.chunks_mut(dtype.block_bytes()) {
        // Signs of scale and minimum such that both terms have one sign.
        match dtype {
            DType::Q4_1 | DType::Q5_1 => (block[1], block[3]) = (block[1] & 127, block[3] & 127),
            DType::Q4K | DType::Q5K => (block[1], block[3]) = (block[1] & 127, block[3] | 128),
            DType::Q2K => (block[81], block[83]) = (block[81] & 127, block[83] | 128),
            _ => {}
        }
    }
    dequantise(dtype, &bytes).into_iter().map(f32::abs).collect()
}

fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

fn nibble(bytes: &[u8], index: usize, high: bool) -> i32 {
    i32::from(if high { bytes[index] >> 4 } else { bytes[index] & 15 })
}

/// Two-bit code `i`: each of the first 32 bytes holds one code of each of the first four planes of 32 codes, and the next
/// 32 bytes hold the other four planes.
fn two_bits(bytes: &[u8], i: usize) -> i32 {
    i32::from(bytes[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3)
}

/// The sixteen levels of IQ4_NL.
fn nonlinear(code: i32) -> f32 {
    const LEVELS: [i32; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];
    LEVELS[code as usize] as f32
}

/// A float with a sign, two bits of exponent (bias 1) and one of mantissa.
fn e2m1(code: i32) -> f32 {
    let (exponent, mantissa) = (code >> 1 & 3, (code & 1) as f32);
    let size = if exponent == 0 { mantissa / 2. } else { (1. + mantissa / 2.) * 2f32.powi(exponent - 1) };
    if code & 8 == 0 { size } else { -size }
}

fn bit(bytes: &[u8], index: usize) -> i32 {
    i32::from(bytes[index / 8] >> (index % 8) & 1)
}

fn dequantise_block(dtype: DType, block: &[u8]) -> Vec<f32> {
    let d = half_at(block, 0);
    match dtype {
        DType::F32 => vec![f32::from_le_bytes([block[0], block[1], block[2], block[3]])],
        DType::F16 => vec![d],
        DType::BF16 => vec![bf16::from_le_bytes([block[0], block[1]]).to_f32()],
        DType::Q8_0 => block[2..].iter().map(|&q| f32::from(q as i8) * d).collect(),
        DType::Q4_0 => (0..32).map(|i| (nibble(&block[2..], i % 16, i > 15) - 8) as f32 * d).collect(),
        DType::Q4_1 => {
            let m = half_at(block, 2);
            (0..32).map(|i| nibble(&block[4..], i % 16, i > 15) as f32 * d + m).collect()
        }
        DType::Q5_0 => {
            (0..32).map(|i| (nibble(&block[6..], i % 16, i > 15) + 16 * bit(&block[2..], i) - 16) as f32 * d).collect()
        }
        DType::Q5_1 => {
            let m = half_at(block, 2);
            (0..32).map(|i| (nibble(&block[8..], i % 16, i > 15) + 16 * bit(&block[4..], i)) as f32 * d + m).collect()
        }
        DType::IQ4NL => (0..32).map(|i| d * nonlinear(nibble(&block[2..], i % 16, i > 15))).collect(),
        DType::MXFP4 => {
            let scale = 2f32.powi(i32::from(block[0]) - 127);
            (0..32).map(|i| scale * e2m1(nibble(&block[1..], i % 16, i > 15))).collect()
        }
        DType::IQ4XS => (0..256)
            .map(|i| {
                let part = i / 32;
                let high = i32::from(block[2 + part / 4] >> (part % 4 * 2) & 3);
                let scale = (nibble(&block[4..], part / 2, part % 2 == 1) | high << 4) - 32;
                d * scale as f32 * nonlinear(nibble(&block[8 + 16 * part..], i % 16, i % 32 > 15))
            })
            .collect(),
        DType::Q2K => (0..256)
            .map(|i| {
                let scale = nibble(block, i / 16, false) as f32 * half_at(block, 80);
                scale * two_bits(&block[16..], i) as f32 - nibble(block, i / 16, true) as f32 * half_at(block, 82)
            })
            .collect(),
        DType::Q3K => (0..256)
            .map(|i| {
                let (part, scales) = (i / 16, &block[96..108]);
                let low = nibble(scales, part % 8, part > 7);
                let high = i32::from(scales[8 + part % 4] >> (part / 4 * 2) & 3);
                let code = two_bits(&block[32..], i) + 4 * i32::from(block[i % 32] >> (i / 32) & 1);
                half_at(block, 108) * ((low | high << 4) - 32) as f32 * (code - 4) as f32
            })
            .collect(),
        DType::Q4K | DType::Q5K => (0..256).map(|i| k_weight(dtype, block, i)).collect(),
        DType::Q6K => (0..256)
            .map(|i| {
                let (half, j) = (i / 128, i % 128);
                let low = nibble(&block[64 * half..], j % 64, j > 63);
                let high = i32::from(block[128 + 32 * half + j % 32] >> (j / 32 * 2) & 3);
                let scale = block[192 + i / 16] as i8;
                half_at(block, 208) * f32::from(scale) * ((low | high << 4) - 32) as f32
            })
            .collect(),
    }
}

/// A weight of Q4_K or Q5_K. The first four 6-bit scales are in the low bits of bytes 0..4, and their minima in bytes
/// 4..8. The low four bits of the other scales and minima are in bytes 8..12, and the high two bits in the high bits of
/// bytes 0..8.
fn k_weight(dtype: DType, block: &[u8], i: usize) -> f32 {
    let (scales, part) = (&block[4..16], i / 32);
    let (scale, minimum) = if part < 4 {
        (scales[part] & 63, scales[part + 4] & 63)
    } else {
        let both = scales[part + 4];
        ((both & 15) | (scales[part - 4] >> 6 << 4), (both >> 4) | (scales[part] >> 6 << 4))
    };
    let (low, high) = if dtype == DType::Q4K { (16, 0) } else { (48, i32::from(block[16 + i % 32] >> part & 1)) };
    let code = nibble(&block[low..], part / 2 * 32 + i % 32, part % 2 == 1) + 16 * high;
    half_at(block, 0) * f32::from(scale) * code as f32 - half_at(block, 2) * f32::from(minimum)
}
