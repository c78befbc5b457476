//! How quickly this machine multiplies a vector by the weights of a model, which decides the speed of generation.

use std::time::Duration;

use super::super::stopwatch::Stopwatch;
use crate::clock_rng::ClockRng;
use crate::models::ModelError;
use crate::models::backend::{Backend as _, Cpu, DType};
use crate::models::weights::Rows;

/// The measured types: those of the quantizations of [`model_fit`](super::model_fit).
const TYPES: [DType; 4] = [DType::Q4K, DType::Q6K, DType::Q8_0, DType::F16];
/// Width of the matrices.
const COLUMNS: usize = 4096;
/// Bytes of each matrix: more than a CPU keeps in its caches.
const MATRIX_BYTES: usize = 256 << 20;
/// How long each type is measured.
const DURATION: Duration = Duration::from_millis(400);

/// Bytes of weights per second, by their type.
#[derive(Clone, Debug)]
pub(super) struct ProductSpeeds(Vec<(DType, f64)>);

impl ProductSpeeds {
    /// Seconds to read this many bytes of weights of this type. Those of an unknown type take as long as 16-bit
    /// weights.
    pub fn seconds(&self, dtype: DType, bytes: u64) -> f64 {
        let speed = |wanted| self.0.iter().find(|(known, _)| *known == wanted).map(|(_, speed)| *speed);
        let speed = speed(dtype).or_else(|| speed(DType::F16)).unwrap_or(f64::INFINITY);
        bytes as f64 / speed
    }

    #[cfg(test)]
    pub fn of(speeds: &[(DType, f64)]) -> Self {
        Self(speeds.to_vec())
    }
}

/// Measures all types.
///
/// # Errors
/// If a kernel fails, which is a bug.
pub(super) fn measure(backend: &Cpu, clock: &dyn ClockRng) -> Result<ProductSpeeds, ModelError> {
    TYPES
        .into_iter()
        .map(|dtype| Ok((dtype, measure_type(backend, dtype, clock)?)))
        .collect::<Result<_, _>>()
        .map(ProductSpeeds)
}

fn measure_type(backend: &Cpu, dtype: DType, clock: &dyn ClockRng) -> Result<f64, ModelError> {
    let rows = MATRIX_BYTES / backend.linear_bytes(dtype, 64, COLUMNS) * 64;
    let row_bytes = COLUMNS / dtype.block() * dtype.block_bytes();
    let weights = Rows::from_bytes(dtype, rows, COLUMNS, vec![0; rows * row_bytes])?;
    let matrix = backend.read_linear(&weights, None, false)?;
    let bytes = backend.linear_bytes(dtype, rows, COLUMNS);
    let x = backend.tensor(&[0.5; COLUMNS], [1, 1, 1, COLUMNS])?;
    // The first product finds cold caches and threads.
    backend.linears([&matrix], &x)?;
    let (began, mut products) = (Stopwatch::start(clock), 0_u32);
    while began.elapsed() < DURATION {
        backend.linears([&matrix], &x)?;
        products += 1;
    }
    Ok(f64::from(products) * bytes as f64 / began.elapsed().as_secs_f64())
}
