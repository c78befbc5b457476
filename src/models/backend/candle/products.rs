//! Matrix products.

use candle_core::quantized::QTensor;
use candle_core::{DType as ArrayType, Result as ArrayResult, Tensor as Array};

use super::device::{Candle, tensor, tensor_like};
use super::elementwise::activated;
use super::gradient::with_gradient;
use super::weights::{CandleLinear, Weight};
use crate::models::backend::checks;
use crate::models::backend::cpu::types::dequantise;
use crate::models::backend::interface::{Backend, FeedForward, Matrix, Tensor};
use crate::models::error::{ModelError, Result};

/// Elements of the hidden layer of a feed-forward network that are computed at once.
const HIDDEN_ELEMENTS: usize = 64 << 20;

/// `x Wᵀ + b` for each weight; `x` is `[rows, columns]`.
fn products(weights: &[&CandleLinear], x: &Array) -> Result<Vec<Array>> {
    let products = match fused(weights, x)? {
        Some(products) => products,
        None => weights.iter().map(|linear| product(&linear.weight, x)).collect::<ArrayResult<_>>()?,
    };
    let with_bias = weights.iter().zip(products).map(|(linear, product)| match &linear.bias {
        Some(bias) => product.broadcast_add(bias),
        None => Ok(product),
    });
    Ok(with_bias.collect::<ArrayResult<_>>()?)
}

fn product(weight: &Weight, x: &Array) -> ArrayResult<Array> {
    if let Weight::Trained(weight) = weight {
        return x.matmul(&weight.t()?);
    }
    if !x.track_op() {
        return weight.product(x);
    }
    // With many rows, dequantised weights are faster than quantised ones, and more precise.
    let product = match weight {
        Weight::Quantised(_) => x.detach().matmul(&weight.to_f32()?.t()?)?,
        Weight::Dense(_) | Weight::Trained(_) => weight.product(&x.detach())?,
    };
    let frozen = weight.clone();
    with_gradient(x, &product, move |gradient| gradient.matmul(&frozen.to_f32()?))
}

/// The products of one row with several quantised weights on the CPU, if candle can compute them together.
fn fused(weights: &[&CandleLinear], x: &Array) -> ArrayResult<Option<Vec<Array>>> {
    if weights.len() < 2 || x.dim(0)? != 1 || x.track_op() || !x.device().is_cpu() {
        return Ok(None);
    }
    let quantised: Option<Vec<&QTensor>> = weights
        .iter()
        .map(|linear| match &linear.weight {
            Weight::Quantised(weight) => Some(weight.as_ref()),
            Weight::Dense(_) | Weight::Trained(_) => None,
        })
        .collect();
    quantised.map_or(Ok(None), |quantised| QTensor::gemv_fused_shared_lhs(&quantised, x))
}

fn check_inputs(weight: &CandleLinear, inputs: usize) -> Result<()> {
    match weight.columns() == inputs {
        true => Ok(()),
        false => Err(ModelError::Compute(format!("a weight of {} inputs does not take {inputs}", weight.columns()))),
    }
}

pub fn linears<const N: usize>(
    candle: &Candle,
    weights: [&CandleLinear; N],
    x: &Tensor<Candle>,
) -> Result<[Tensor<Candle>; N]> {
    weights.iter().try_for_each(|weight| check_inputs(weight, x.channels))?;
    let outs = products(&weights, &x.data)?;
    let outs = weights.iter().zip(outs).map(|(weight, out)| tensor_like(x, weight.rows(), &out));
    let outs: Vec<_> = outs.collect::<Result<_>>()?;
    candle.pause()?;
    outs.try_into().map_err(|_| ModelError::Compute("a product is missing".to_owned()))
}

/// Computes some rows at a time if the hidden layer is large.
pub fn feed_forward(candle: &Candle, mlp: &FeedForward<'_, Candle>, x: &Tensor<Candle>) -> Result<Tensor<Candle>> {
    let FeedForward { gate, up, down, .. } = *mlp;
    check_inputs(up, x.channels)?;
    gate.map_or(Ok(()), |gate| check_inputs(gate, x.channels))?;
    check_inputs(down, up.rows())?;
    if gate.is_some_and(|gate| gate.rows() != up.rows()) {
        return Err(ModelError::Compute(format!("a gate does not have {} outputs", up.rows())));
    }
    let chunk = (HIDDEN_ELEMENTS / up.rows()).max(1);
    if x.rows() <= chunk {
        return tensor_like(x, down.rows(), &feed_forward_rows(candle, mlp, &x.data)?);
    }
    let chunks = (0..x.rows()).step_by(chunk).map(|first| {
        let rows = x.data.narrow(0, first, chunk.min(x.rows() - first))?;
        feed_forward_rows(candle, mlp, &rows)
    });
    tensor_like(x, down.rows(), &Array::cat(&chunks.collect::<Result<Vec<_>>>()?, 0)?)
}

fn feed_forward_rows(candle: &Candle, mlp: &FeedForward<'_, Candle>, x: &Array) -> Result<Array> {
    let FeedForward { gate, up, down, activation } = *mlp;
    let mut hidden = match gate {
        Some(gate) => products(&[gate, up], x)?,
        None => products(&[up], x)?,
    }
    .into_iter();
    let (Some(first), factors) = (hidden.next(), hidden.next()) else {
        return Err(ModelError::Compute("a product is missing".to_owned()));
    };
    let hidden = activated(activation, &first, factors.as_ref())?;
    candle.pause()?;
    let mut out = products(&[down], &hidden)?;
    candle.pause()?;
    out.pop().ok_or_else(|| ModelError::Compute("a product is missing".to_owned()))
}

/// The rows `ids` of a weight.
pub fn embedding(candle: &Candle, weight: &CandleLinear, ids: &[u32]) -> Result<Tensor<Candle>> {
    checks::embedding_rows(weight, ids)?;
    let (rows, width) = (weight.rows(), weight.columns());
    let shape = [1, ids.len(), 1, width];
    match (&weight.weight, &weight.host_rows) {
        (_, Some(table)) => candle.upload(shape, &mut |out| table.look_up(ids.iter().copied(), false, out)),
        (Weight::Dense(matrix) | Weight::Trained(matrix), None) => {
            let found = matrix.index_select(&candle.indices(ids.to_vec())?, 0)?;
            tensor(shape, &found.to_dtype(ArrayType::F32)?)
        }
        (Weight::Quantised(matrix), None) => {
            let bytes = matrix.data()?;
            let row_bytes = bytes.len() / rows.max(1);
            candle.upload(shape, &mut |out| {
                for (id, out) in ids.iter().zip(out.chunks_exact_mut(width)) {
                    dequantise(weight.dtype, &bytes[*id as usize * row_bytes..][..row_bytes], out);
                }
                Ok(())
            })
        }
    }
}
