//! Matrix products of candle on the device under test.

use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{DType, Device, Module, Tensor};

use crate::rng::TestRng;
use crate::{device, relative_error};

/// `[rows, columns]` random numbers from -1 to 1.
fn random(rows: usize, columns: usize, seed: u64) -> Tensor {
    let mut rng = TestRng(seed);
    let numbers: Vec<f32> = (0..rows * columns).map(|_| rng.below(1 << 20) as f32 / (1 << 19) as f32 - 1.).collect();
    Tensor::from_vec(numbers, (rows, columns), &Device::Cpu).unwrap()
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_product_equals_that_of_the_cpu() {
    let device = device();
    for (kind, bound) in [(DType::F32, 2e-3), (DType::F16, 1e-2), (DType::BF16, 3e-2)] {
        for rows in [1, 7, 64, 200] {
            let (a, b) = (random(rows, 576, 1), random(576, 320, 2));
            let on_device = |tensor: &Tensor| tensor.to_device(&device).unwrap().to_dtype(kind).unwrap();
            let product = on_device(&a).matmul(&on_device(&b)).unwrap().to_dtype(DType::F32).unwrap();
            let error = relative_error(&product, &a.matmul(&b).unwrap());
            println!("{kind:?}, {rows} rows: {error:.1e}");
            assert!(error < bound, "{kind:?}, {rows} rows: {error}");
        }
    }
}

/// With few rows and with many, which are different kernels. The activations are rounded to 8 bits on the way.
#[test]
#[ignore = "needs a GPU"]
fn gpu_product_with_quantized_weights_equals_that_of_the_cpu() {
    use GgmlDType::{Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
    let device = device();
    let weights = random(320, 768, 3);
    for kind in [Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2K, Q3K, Q4K, Q5K, Q6K] {
        let exact = QTensor::quantize(&weights, kind).unwrap().dequantize(&Device::Cpu).unwrap().t().unwrap();
        let matrix = QTensor::quantize_onto(&weights, kind, &device).unwrap();
        let matrix = QMatMul::from_qtensor(matrix).unwrap();
        for rows in [1, 8, 9, 130] {
            let input = random(rows, 768, 4);
            let product = matrix.forward(&input.to_device(&device).unwrap()).unwrap();
            let error = relative_error(&product, &input.matmul(&exact).unwrap());
            println!("{kind:?}, {rows} rows: {error:.1e}");
            assert!(error < 2e-2, "{kind:?}, {rows} rows: {error}");
        }
    }
}
