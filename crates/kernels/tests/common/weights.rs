//! Random weights in GGUF's block formats.

use half::{bf16, f16};
use outpost_kernels::DType;

use super::rng::Rng;

/// Weights of a type in the file's format: random bits, with scales of a usual size.
pub fn random_weights(rng: &mut Rng, dtype: DType, count: usize) -> Vec<u8> {
    weights_of(rng, dtype, count, |rng| rng.next() as u8)
}

/// The same with code bytes from the caller.
pub fn weights_of(rng: &mut Rng, dtype: DType, count: usize, byte: impl Fn(&mut Rng) -> u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..count / dtype.block() {
        match dtype {
            DType::F32 => bytes.extend((rng.normal() * 0.1).to_le_bytes()),
            DType::F16 => bytes.extend(f16::from_f32(rng.normal() * 0.1).to_le_bytes()),
            DType::BF16 => bytes.extend(bf16::from_f32(rng.normal() * 0.1).to_le_bytes()),
            _ => {
                let mut block: Vec<u8> = (0..dtype.block_bytes()).map(|_| byte(rng)).collect();
                let scales: &[usize] = match dtype {
                    DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K => &[0, 2],
                    DType::Q2K => &[80, 82],
                    DType::Q3K => &[108],
                    DType::Q6K => &[208],
                    _ => &[0],
                };
                if dtype == DType::MXFP4 {
                    block[0] = 118 + (rng.next() % 6) as u8;
                    bytes.extend(block);
                    continue;
                }
                for &at in scales {
                    block[at..at + 2].copy_from_slice(&f16::from_f32(rng.normal() * 0.02).to_le_bytes());
                }
                bytes.extend(block);
            }
        }
    }
    bytes
}
