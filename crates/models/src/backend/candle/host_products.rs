//! Products of the CPU device that keep gradients: weights are dequantised while they are multiplied, and a low-rank
//! update is part of the product.
//!
//! Weights are dequantised once for each product, a panel at a time. Keeping them dequantised would take eight times
//! the memory of a Q4 model and save a tenth of the time. With one thread, a step of SmolLM2-135M (Q4_1, rank 8, four
//! texts of 128 tokens) takes 3.8 s of CPU time, or 5.1 s with recomputation; PyTorch with peft takes 4.6 s without.
//! Three quarters are the products.

use candle_core::Tensor as Array;
use outpost_kernels::{DenseMatrix, Direction, Dropout, ProductPart};

use super::device::Candle;
use super::gradient::{computed_from, computed_from_three};
use super::host_array::host;
use super::weights::{CandleLinear, Weight};
use crate::backend::interface::{Backend, LowRankUpdate, Matrix};
use crate::backend::types::DType;
use crate::error::{ModelError, Result};

/// Multiply-adds of each thread between two pauses: a millisecond or two.
const PAUSE_MACS: usize = 60_000_000;
/// Elements that are zeroed between two pauses: new pages take a millisecond.
const PAUSE_ELEMENTS: usize = 512 << 10;

/// `out = x Mᵀ` or `x M`, or adds it if `accumulate` is set.
fn multiply(
    candle: &Candle,
    matrix: &DenseMatrix<'_>,
    direction: Direction,
    x: &[f32],
    accumulate: bool,
    out: &mut [f32],
) -> Result<()> {
    let ([inner, width], pool) = (matrix.sizes(direction), candle.pool());
    let m = x.len() / inner.max(1);
    // Few outputs of all rows at a time, because each call dequantises the weights of its part.
    let [rows, outputs, terms] = match candle.request() {
        None => [m.max(1), width, inner],
        Some(_) => {
            let (block, macs) = (DenseMatrix::ALIGNMENT, PAUSE_MACS * pool.threads());
            let blocks = |elements: usize| (macs / (elements * block).max(1)).max(1) * block;
            let rows = m.clamp(1, PAUSE_MACS / (block * block));
            // Outputs for all threads.
            let outputs = blocks(rows * inner * pool.threads()) * pool.threads();
            [rows, outputs, blocks(rows * outputs.min(width))]
        }
    };
    for (x, out) in x.chunks(rows * inner).zip(out.chunks_mut(rows * width)) {
        for output in (0..width).step_by(outputs) {
            for term in (0..inner).step_by(terms) {
                let part =
                    ProductPart { inner: term..inner.min(term + terms), outputs: output..width.min(output + outputs) };
                matrix.multiply(pool, direction, x, part, accumulate || term > 0, out);
                candle.pause()?;
            }
        }
    }
    Ok(())
}

/// Makes `out` longer; new elements are zero.
fn extend_with_zeros(candle: &Candle, out: &mut Vec<f32>, len: usize) -> Result<()> {
    out.reserve_exact(len - out.len().min(len));
    while out.len() < len {
        out.resize(len.min(out.len() + PAUSE_ELEMENTS), 0.);
        candle.pause()?;
    }
    Ok(())
}

/// A weight without a gradient.
#[derive(Clone)]
struct FrozenWeight {
    weight: Weight,
    /// Of quantised weights.
    dtype: DType,
    rows: usize,
    columns: usize,
}

impl FrozenWeight {
    fn multiply(
        &self,
        candle: &Candle,
        direction: Direction,
        x: &[f32],
        accumulate: bool,
        out: &mut [f32],
    ) -> Result<()> {
        let Self { rows, columns, dtype, .. } = *self;
        match &self.weight {
            Weight::Quantised(weight) => {
                let bytes = weight.data()?;
                let matrix = DenseMatrix::blocks(dtype, &bytes, rows, columns);
                multiply(candle, &matrix, direction, x, accumulate, out)
            }
            Weight::Dense(weight) | Weight::Trained(weight) => {
                let elements = host(weight)?;
                multiply(candle, &DenseMatrix::floats(&elements, rows, columns), direction, x, accumulate, out)
            }
        }
    }
}

impl CandleLinear {
    fn frozen(&self) -> FrozenWeight {
        FrozenWeight { weight: self.weight.clone(), dtype: self.dtype, rows: self.rows(), columns: self.columns() }
    }

    /// True if it is trained and needs a gradient.
    pub(super) fn is_trained(&self) -> bool {
        matches!(self.weight, Weight::Trained(_))
    }
}

/// `x Wᵀ + b` for `x`: `[rows, columns]`.
pub fn linear_values(candle: &Candle, linear: &CandleLinear, x: &[f32]) -> Result<Vec<f32>> {
    let rows = x.len() / linear.columns().max(1);
    let mut out = Vec::new();
    match &linear.bias {
        None => extend_with_zeros(candle, &mut out, rows * linear.rows())?,
        Some(bias) => {
            let bias = host(bias)?;
            out.reserve_exact(rows * linear.rows());
            (0..rows).for_each(|_| out.extend_from_slice(&bias));
        }
    }
    linear.frozen().multiply(candle, Direction::Forward, x, linear.bias.is_some(), &mut out)?;
    Ok(out)
}

/// `gradient W`: that of `x` for that of the product.
pub fn input_gradient(candle: &Candle, linear: &CandleLinear, gradient: &[f32]) -> Result<Vec<f32>> {
    linear.frozen().input_gradient(candle, gradient)
}

impl FrozenWeight {
    fn input_gradient(&self, candle: &Candle, gradient: &[f32]) -> Result<Vec<f32>> {
        candle.pause()?;
        let mut out = Vec::new();
        extend_with_zeros(candle, &mut out, gradient.len() / self.rows.max(1) * self.columns)?;
        self.multiply(candle, Direction::Backward, gradient, false, &mut out)?;
        Ok(out)
    }
}

/// `x Wᵀ + b`.
pub fn linear(candle: &Candle, linear: &CandleLinear, x: &Array) -> Result<Array> {
    let x = x.contiguous()?;
    let out = linear_values(candle, linear, &host(&x)?)?;
    let (handle, frozen) = (candle.clone(), linear.frozen());
    computed_from(&x, out, (x.dim(0)?, linear.rows()), move |gradient| frozen.input_gradient(&handle, gradient))
}

/// The matrices of a low-rank update, without their graphs.
struct LowRank {
    down: FrozenWeight,
    up: FrozenWeight,
    scale: f32,
    dropout: Option<Dropout>,
}

impl LowRank {
    /// The input of the down-projection, if it is not `x` itself.
    fn dropped(&self, candle: &Candle, x: &[f32]) -> Result<Option<Vec<f32>>> {
        let dropped = self.dropout.map(|dropout| {
            let mut dropped = vec![0.; x.len()];
            dropout.apply(candle.pool(), x, false, &mut dropped);
            dropped
        });
        candle.pause()?;
        Ok(dropped)
    }

    /// `scale · x · downᵀ`
    fn low(&self, candle: &Candle, x: &[f32]) -> Result<Vec<f32>> {
        let mut low = vec![0.; x.len() / self.down.columns.max(1) * self.down.rows];
        self.down.multiply(candle, Direction::Forward, x, false, &mut low)?;
        low.iter_mut().for_each(|low| *low *= self.scale);
        Ok(low)
    }

    /// Adds the gradient of `x` to `of_x`, and returns those of both matrices. `low` is that of the forward direction.
    fn gradients(
        &self,
        candle: &Candle,
        x: &[f32],
        low: &[f32],
        gradient: &[f32],
        of_x: &mut [f32],
    ) -> Result<[Vec<f32>; 2]> {
        let Self { down, up, scale, dropout } = self;
        let (rows, rank) = (x.len() / down.columns.max(1), down.rows);
        let mut of_low = up.input_gradient(candle, gradient)?;
        of_low.iter_mut().for_each(|of_low| *of_low *= scale);
        match dropout {
            None => down.multiply(candle, Direction::Backward, &of_low, true, of_x)?,
            Some(dropout) => {
                let of_dropped = down.input_gradient(candle, &of_low)?;
                dropout.apply(candle.pool(), &of_dropped, true, of_x);
                candle.pause()?;
            }
        }
        let dropped = self.dropped(candle, x)?;
        let x = DenseMatrix::floats(dropped.as_deref().unwrap_or(x), rows, down.columns);
        let mut of_down = vec![0.; rank * down.columns];
        multiply(candle, &x, Direction::Backward, &transposed(&of_low, rank), false, &mut of_down)?;
        let mut of_up = vec![0.; rank * up.rows];
        let gradient = DenseMatrix::floats(gradient, rows, up.rows);
        multiply(candle, &gradient, Direction::Backward, &transposed(low, rank), false, &mut of_up)?;
        Ok([of_down, transposed(&of_up, up.rows)])
    }
}

/// The transpose of a matrix with `columns` columns.
fn transposed(x: &[f32], columns: usize) -> Vec<f32> {
    let columns = columns.max(1);
    (0..columns).flat_map(|column| x.iter().skip(column).step_by(columns)).copied().collect()
}

/// `x Wᵀ + b`, and a low-rank update of all rows by matrices that get gradients.
pub fn adapted_linear(
    candle: &Candle,
    linear: &CandleLinear,
    update: &LowRankUpdate<'_, Candle>,
    x: &Array,
) -> Result<Array> {
    let (Weight::Trained(down), Weight::Trained(up)) = (&update.down.weight, &update.up.weight) else {
        return Err(ModelError::Compute("an update has no gradient".to_owned()));
    };
    let [x, down, up] = [x.contiguous()?, down.contiguous()?, up.contiguous()?];
    let detached = |linear: &CandleLinear, matrix: &Array| FrozenWeight {
        weight: Weight::Trained(matrix.detach()),
        ..linear.frozen()
    };
    let low_rank = LowRank {
        down: detached(update.down, &down),
        up: detached(update.up, &up),
        scale: update.scale,
        dropout: candle.dropout_of(update.down),
    };
    let (out, low) = {
        let x = host(&x)?;
        let mut out = linear_values(candle, linear, &x)?;
        let low = low_rank.low(candle, low_rank.dropped(candle, &x)?.as_deref().unwrap_or(&x))?;
        low_rank.up.multiply(candle, Direction::Forward, &low, true, &mut out)?;
        (out, low)
    };
    let (handle, frozen, input) = (candle.clone(), linear.frozen(), x.detach());
    computed_from_three([&x, &down, &up], out, (x.dim(0)?, linear.rows()), move |gradient| {
        let mut of_x = frozen.input_gradient(&handle, gradient)?;
        let [of_down, of_up] = low_rank.gradients(&handle, &host(&input)?, &low, gradient, &mut of_x)?;
        Ok([of_x, of_down, of_up])
    })
}
