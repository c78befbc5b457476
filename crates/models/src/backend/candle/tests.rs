//! Compares every operation with the CPU backend, on candle's CPU device or that of `OUTPOST_TEST_DEVICE`.

mod attention;
mod gradients;
mod kv;
#[cfg(not(feature = "cuda"))]
mod memory;
mod operations;
mod products;
mod recurrent;

use super::Candle;
use crate::backend::cpu::Cpu;
use crate::backend::interface::{Backend, Tensor};
use crate::devices::{tolerance_under_test, under_test};

/// Pseudo-random numbers in [-1, 1]. Numbers near zero are left out, where derivatives of activations jump.
fn random(len: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let value = (state >> 40) as f32 / (1 << 23) as f32 - 1.;
        value.signum() * (0.05 + 0.95 * value.abs())
    };
    (0..len).map(|_| next()).collect()
}

fn random_tensor<B: Backend>(backend: &B, shape: [usize; 4], seed: u64) -> Tensor<B> {
    backend.tensor(&random(shape.iter().product(), seed), shape).unwrap()
}

fn candle() -> Candle {
    Candle::new(under_test(), Cpu::new(1))
}

/// The largest difference, relative to the largest expected number.
fn difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len());
    let size = expected.iter().fold(f32::MIN_POSITIVE, |size, x| size.max(x.abs()));
    let differences = found.iter().zip(expected).map(|(a, b)| if a == b { 0. } else { (a - b).abs() / size });
    differences.fold(0., |largest, x| if x > largest || x.is_nan() { x } else { largest })
}

fn assert_close(found: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    let far = difference(found, expected);
    assert!(far <= tolerance_under_test(tolerance), "{what}: a difference of {far:e}");
    assert!(expected.iter().any(|x| *x != 0.), "{what}: all numbers are zero");
}

/// Computes the same on both backends and compares shapes and elements.
macro_rules! compare {
    ($what:expr, $tolerance:expr, |$backend:ident| $body:expr) => {{
        let expected = {
            let $backend = &super::Cpu::new(2);
            let tensor = $body;
            (tensor.shape(), $backend.to_vec(&tensor).unwrap())
        };
        let found = {
            let $backend = &super::candle();
            let tensor = $body;
            (tensor.shape(), $backend.to_vec(&tensor).unwrap())
        };
        assert_eq!(found.0, expected.0, "{}", $what);
        super::assert_close(&found.1, &expected.1, $tolerance, &$what);
    }};
}
use compare;
