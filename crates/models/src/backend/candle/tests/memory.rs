//! The memory that is counted on the CPU and on a GPU.

use candle_core::{CudaDevice, Device};

use super::{Candle, Cpu, candle};
use crate::backend::convolutions::Convolutions;
use crate::backend::interface::Backend;
use crate::backend::paged_attention::PagedAttention;
use crate::backend::types::{AttentionShape, ConvShape, DType};

/// A card that computes nothing: without the feature `cuda`, candle has only its type.
fn gpu() -> Candle {
    Candle::new(Device::Cuda(CudaDevice), Cpu::new(1))
}

#[test]
fn floats_take_two_bytes_on_a_gpu_and_four_on_the_cpu() {
    let (cpu, gpu) = (candle(), gpu());
    let conv = ConvShape { inputs: 8, outputs: 16, kernel: [3, 3], stride: 1, padding: [1, 1] };
    for dtype in [DType::F16, DType::BF16] {
        assert_eq!([&cpu, &gpu].map(|b| b.linear_bytes(dtype, 32, 256)), [4 * 32 * 256, 2 * 32 * 256], "{dtype:?}");
        assert_eq!([&cpu, &gpu].map(|b| b.conv_bytes(dtype, &conv)), [4 * 16 * 72, 2 * 16 * 72], "{dtype:?}");
        // The bytes in the file, and their copy as floats of the device or of a chunk that is converted.
        assert_eq!([&cpu, &gpu].map(|b| b.loading_bytes(dtype, 32, 256)), [6 * 32 * 256, 4 * 32 * 256], "{dtype:?}");
    }
    // candle cannot multiply these types. They are dequantised to f16 or bf16 on a GPU.
    for dtype in [DType::IQ4XS, DType::MXFP4] {
        assert_eq!([&cpu, &gpu].map(|b| b.linear_bytes(dtype, 32, 256)), [4 * 32 * 256, 2 * 32 * 256], "{dtype:?}");
    }
    assert_eq!([&cpu, &gpu].map(|b| b.linear_bytes(DType::F32, 32, 256)), [4 * 32 * 256; 2]);
}

#[test]
fn attention_on_a_gpu_may_compute_more_scores_at_once() {
    let shape =
        AttentionShape { heads: 32, kv_heads: 8, width: 128, scale: 1., causal: true, window: None, soft_cap: None };
    let bytes = |b: &Candle| b.kv_attention_bytes(&shape, 256, 4096);
    let (cpu, gpu) = (candle(), gpu());
    assert!(bytes(&gpu) > bytes(&cpu));
    assert_eq!(bytes(&gpu), bytes(&cpu.with_max_elements(gpu.max_elements())));
}
