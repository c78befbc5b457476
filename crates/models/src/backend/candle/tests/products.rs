//! Products with weights of every type, and embeddings.

use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor as Array};

use super::super::weights::{self, Weight};
use super::{assert_close, candle, compare, random, random_tensor};
use crate::backend::interface::{Backend, FeedForward, Matrix};
use crate::backend::types::{Activation, DType};
use crate::weights::Rows;

/// Random rows of a type, and the tolerance of products with them. Activations are rounded to 8 bits if the weights are
/// quantised.
pub(super) fn random_rows(dtype: DType, rows: usize, columns: usize, seed: u64) -> Rows<'static> {
    let values = Array::from_vec(random(rows * columns, seed), (rows, columns), &Device::Cpu).unwrap();
    let quantised = |kind| QTensor::quantize(&values, kind).unwrap().data().unwrap().into_owned();
    let bytes = match dtype {
        DType::F32 => quantised(GgmlDType::F32),
        DType::F16 => quantised(GgmlDType::F16),
        DType::BF16 => quantised(GgmlDType::BF16),
        DType::Q8_0 => quantised(GgmlDType::Q8_0),
        DType::Q4_0 => quantised(GgmlDType::Q4_0),
        DType::Q4_1 => quantised(GgmlDType::Q4_1),
        DType::Q5_0 => quantised(GgmlDType::Q5_0),
        DType::Q5_1 => quantised(GgmlDType::Q5_1),
        DType::Q2K => quantised(GgmlDType::Q2K),
        DType::Q3K => quantised(GgmlDType::Q3K),
        DType::Q4K => quantised(GgmlDType::Q4K),
        DType::Q5K => quantised(GgmlDType::Q5K),
        DType::Q6K => quantised(GgmlDType::Q6K),
        // candle cannot write these. Any bytes are valid, after a scale in f16, or in MXFP4 its exponent.
        DType::IQ4NL | DType::IQ4XS | DType::MXFP4 => {
            let bytes = random(rows * columns / dtype.block() * dtype.block_bytes(), seed);
            let mut bytes: Vec<u8> = bytes.iter().map(|x| (x * 127.) as i8 as u8).collect();
            for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
                match dtype {
                    DType::MXFP4 => block[0] = 122,
                    _ => block[..2].copy_from_slice(&half::f16::from_f32(0.01).to_le_bytes()),
                }
            }
            bytes
        }
    };
    Rows::from_bytes(dtype, rows, columns, bytes).unwrap()
}

fn exact_product(weight: &[f32], x: &[f32], columns: usize, bias: Option<&[f32]>) -> Vec<f32> {
    let dot = |x: &[f32], w: &[f32]| x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>();
    let row = |x: &[f32]| {
        let products = weight.chunks(columns).map(|w| dot(x, w)).enumerate();
        products.map(|(index, y)| (y + bias.map_or(0., |bias| f64::from(bias[index]))) as f32).collect::<Vec<_>>()
    };
    x.chunks(columns).flat_map(row).collect()
}

#[test]
fn every_type_computes_like_its_dequantised_weights() {
    let (b, columns) = (candle(), 512);
    for dtype in DType::ALL {
        let tolerance = if dtype.is_quantised() && !weights::is_dequantised(dtype) { 0.02 } else { 1e-6 };
        // candle has other kernels for multiples of 16 outputs, and for one row.
        for (outputs, rows) in [(48, 1), (48, 3), (50, 1), (50, 40)] {
            let (weight, other) = (random_rows(dtype, outputs, columns, 1), random_rows(dtype, 16, columns, 2));
            let bias = random(outputs, 3);
            let linear = b.read_linear(&weight, Some(&bias), false).unwrap();
            let other_linear = b.read_linear(&other, None, false).unwrap();
            assert_eq!((linear.rows(), linear.columns()), (outputs, columns));
            let x = random_tensor(&b, [1, rows, 1, columns], 4);
            let [found, found_other] = b.linears([&linear, &other_linear], &x).unwrap();
            assert_eq!(found.shape(), [1, rows, 1, outputs]);
            let x = random(rows * columns, 4);
            let what = format!("{dtype:?}, {outputs} outputs of {rows} rows");
            let expected = exact_product(&weight.floats().unwrap(), &x, columns, Some(&bias));
            assert_close(&b.to_vec(&found).unwrap(), &expected, tolerance, &what);
            let expected = exact_product(&other.floats().unwrap(), &x, columns, None);
            assert_close(&b.to_vec(&found_other).unwrap(), &expected, tolerance, &what);
        }
    }
}

#[test]
fn every_type_computes_like_the_cpu() {
    for dtype in DType::ALL {
        // Both round activations, but not in the same way.
        let tolerance = if dtype == DType::F32 || dtype == DType::F16 { 1e-6 } else { 0.02 };
        compare!(format!("{dtype:?}"), tolerance, |b| {
            let linear = b.read_linear(&random_rows(dtype, 64, 256, 1), None, false).unwrap();
            let [y] = b.linears([&linear], &random_tensor(b, [1, 5, 1, 256], 2)).unwrap();
            y
        });
    }
}

#[test]
fn quantised_types_stay_quantised() {
    let b = candle();
    for dtype in DType::ALL {
        let linear = b.read_linear(&random_rows(dtype, 32, 256, 1), None, true).unwrap();
        let is_quantised = matches!(linear.weight, Weight::Quantised(_));
        assert_eq!(is_quantised, dtype.is_quantised() && !weights::is_dequantised(dtype), "{dtype:?}");
        let counted = b.linear_bytes(dtype, 32, 256);
        match &linear.weight {
            Weight::Quantised(weight) => assert!(counted >= weight.storage_size_in_bytes(), "{dtype:?}"),
            Weight::Dense(weight) | Weight::Trained(weight) => {
                assert_eq!(counted, weight.elem_count() * weight.dtype().size_in_bytes(), "{dtype:?}")
            }
        }
    }
    let dequantised: Vec<_> = DType::ALL.into_iter().filter(|dtype| weights::is_dequantised(*dtype)).collect();
    assert_eq!(dequantised, [DType::IQ4NL, DType::MXFP4, DType::IQ4XS]);
}

#[test]
fn embeddings_are_the_dequantised_rows() {
    let b = candle();
    for dtype in DType::ALL {
        let rows = random_rows(dtype, 50, 256, 1);
        let weight = b.read_linear(&rows, None, true).unwrap();
        let found = b.embedding(&weight, &[3, 49, 3]).unwrap();
        assert_eq!(found.shape(), [1, 3, 1, 256]);
        let floats = rows.floats().unwrap();
        let expected: Vec<f32> = [3, 49, 3].iter().flat_map(|id| &floats[id * 256..][..256]).copied().collect();
        assert_close(&b.to_vec(&found).unwrap(), &expected, 0., &format!("{dtype:?}"));
        assert!(b.embedding(&weight, &[50]).is_err());
    }
}

#[test]
fn feed_forward_networks_match() {
    for (activation, gated) in [(Activation::Silu, true), (Activation::Gelu, false)] {
        compare!(format!("{activation:?}"), 1e-5, |b| {
            let read = |outputs, inputs, seed| {
                let bias = random(outputs, seed + 10);
                b.read_linear(&random_rows(DType::F32, outputs, inputs, seed), Some(&bias), false).unwrap()
            };
            let (gate, up, down) = (read(40, 24, 1), read(40, 24, 2), read(32, 40, 3));
            let mlp = FeedForward { gate: gated.then_some(&gate), up: &up, down: &down, activation };
            b.feed_forward(mlp, &random_tensor(b, [2, 7, 1, 24], 4)).unwrap()
        });
    }
}

#[test]
fn weights_that_do_not_fit_are_errors() {
    let b = candle();
    let read = |outputs, inputs| b.read_linear(&random_rows(DType::F32, outputs, inputs, 1), None, false).unwrap();
    let x = random_tensor(&b, [1, 2, 1, 24], 1);
    assert!(b.linears([&read(8, 24), &read(8, 25)], &x).is_err());
    let (up, down, activation) = (read(8, 24), read(24, 9), Activation::Silu);
    assert!(b.feed_forward(FeedForward { gate: None, up: &up, down: &down, activation }, &x).is_err());
    let (gate, down) = (read(9, 24), read(24, 8));
    assert!(b.feed_forward(FeedForward { gate: Some(&gate), up: &up, down: &down, activation }, &x).is_err());
    assert!(b.read_linear(&random_rows(DType::F32, 8, 24, 1), Some(&[0.; 7]), false).is_err());
    let empty = Rows::from_bytes(DType::F32, 0, 24, Vec::new()).unwrap();
    assert!(b.read_linear(&empty, None, false).is_err());
}
