//! Computes on a GPU and compares with the CPU.
//!
//! ```sh
//! cargo test --release --features cuda --test gpu -- --ignored gpu
//! ```
//!
//! `OUTPOST_TEST_DEVICE` names another device than the first card. `candle` is the CPU, which checks the tests themselves; it is
//! the default of a build without GPUs.
#![cfg(test)]

#[cfg(any(feature = "cuda", feature = "metal"))]
mod devices;
mod networks;
mod products;

use candle_core::{Device, Tensor};
use outpost_common::device_choice::DeviceChoice;
use outpost_models::devices::open;
use outpost_testing::{decoder_cases, rng};

/// The device under test.
pub fn choice() -> DeviceChoice {
    let usual = match (cfg!(feature = "cuda"), cfg!(feature = "metal")) {
        (true, _) => "cuda",
        (_, true) => "metal",
        _ => "candle",
    };
    std::env::var("OUTPOST_TEST_DEVICE").unwrap_or_else(|_| usual.to_owned()).parse().unwrap()
}

pub fn device() -> Device {
    open(choice()).unwrap()
}

/// The greatest difference, relative to the greatest number of `expected`.
pub fn relative_error(actual: &Tensor, expected: &Tensor) -> f32 {
    let numbers = |tensor: &Tensor| -> Vec<f32> {
        tensor.to_device(&Device::Cpu).unwrap().flatten_all().unwrap().to_vec1().unwrap()
    };
    assert_eq!(actual.dims(), expected.dims());
    let (actual, expected) = (numbers(actual), numbers(expected));
    assert!(actual.iter().all(|number| number.is_finite()));
    let greatest = expected.iter().fold(0f32, |most, number| most.max(number.abs()));
    actual.iter().zip(&expected).fold(0f32, |most, (a, b)| most.max((a - b).abs())) / greatest
}
