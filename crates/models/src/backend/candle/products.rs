//! Matrix products.

use candle_core::quantized::QTensor;
use candle_core::{DType as ArrayType, Result as ArrayResult, Tensor as Array};

use super::device::{Candle, tensor, tensor_like};
use super::elementwise::activated;
use super::gradient::with_gradient;
use super::weights::{CandleLinear, Weight};
use super::{host_array, host_products};
use crate::backend::checks;
use crate::backend::interface::{Backend, FeedForward, LowRankUpdate, Matrix, Tensor, add_update};
use crate::backend::types::dequantise;
use crate::error::{ModelError, Result};

/// Elements of the hidden layer of a feed-forward network that are computed at once.
const HIDDEN_ELEMENTS: usize = 64 << 20;

/// `x Wᵀ + b` for each weight; `x` is `[rows, columns]`.
fn products(candle: &Candle, weights: &[&CandleLinear], x: &Array) -> Result<Vec<Array>> {
    if candle.computes_on_host(x) && !weights.iter().any(|linear| linear.is_trained()) {
        return weights.iter().map(|linear| host_products::linear(candle, linear, x)).collect();
    }
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
    let (product, frozen) = (precise_product(weight, &x.detach())?, weight.clone());
    with_gradient(x, &product, move |gradient| gradient.matmul(&frozen.to_f32()?))
}

impl Candle {
    /// `x Wᵀ + b` in the memory of the host; `x` is `[rows, columns]`.
    pub(crate) fn host_product(&self, linear: &CandleLinear, x: &Array) -> Result<Vec<f32>> {
        let x = x.detach();
        if x.device().is_cpu() {
            return host_products::linear_values(self, linear, &host_array::host(&x.contiguous()?)?);
        }
        let product = precise_product(&linear.weight, &x)?;
        let product = linear.bias.as_ref().map_or(Ok(product.clone()), |bias| product.broadcast_add(bias))?;
        Ok(product.flatten_all()?.to_vec1()?)
    }

    /// The gradient of `x`, `[rows, columns]`, from that of its product, `[rows, rows of the weight]`.
    pub(crate) fn input_gradient(&self, linear: &CandleLinear, gradient: Vec<f32>) -> Result<Array> {
        let rows = gradient.len() / linear.rows();
        if self.device().is_cpu() {
            let of_x = host_products::input_gradient(self, linear, &gradient)?;
            return Ok(Array::from_vec(of_x, (rows, linear.columns()), self.device())?);
        }
        let gradient = Array::from_vec(gradient, (rows, linear.rows()), self.device())?;
        Ok(gradient.matmul(&linear.weight.to_f32()?)?)
    }
}

/// The product for training. With many rows, dequantised weights are faster than quantised ones, and more precise.
fn precise_product(weight: &Weight, x: &Array) -> ArrayResult<Array> {
    match weight {
        Weight::Quantised(_) => x.matmul(&weight.to_f32()?.t()?),
        Weight::Dense(_) | Weight::Trained(_) => weight.product(x),
    }
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
    let outs = products(candle, &weights, &x.data)?;
    let outs = weights.iter().zip(outs).map(|(weight, out)| tensor_like(x, weight.rows(), &out));
    let outs: Vec<_> = outs.collect::<Result<_>>()?;
    candle.pause()?;
    outs.try_into().map_err(|_| ModelError::Compute("a product is missing".to_owned()))
}

/// Products with updates: together on the CPU if gradients are needed and each output has at most one update of all rows.
pub fn adapted_linears<const N: usize>(
    candle: &Candle,
    weights: [&CandleLinear; N],
    updates: &[LowRankUpdate<'_, Candle>],
    x: &Tensor<Candle>,
) -> Result<[Tensor<Candle>; N]> {
    let is_fused = |update: &LowRankUpdate<'_, Candle>| {
        let fits = update.rows == (0..x.rows()) && update.down.is_trained() && update.up.is_trained();
        fits && updates.iter().filter(|other| other.output == update.output).count() == 1
    };
    if !candle.computes_on_host(&x.data) || !updates.iter().all(is_fused) {
        let mut outs = linears(candle, weights, x)?;
        add_low_rank(candle, updates, x, &mut outs)?;
        return Ok(outs);
    }
    let product = |(output, weight): (usize, &&CandleLinear)| {
        check_inputs(weight, x.channels)?;
        let out = match updates.iter().find(|update| update.output == output) {
            None => host_products::linear(candle, weight, &x.data)?,
            Some(update) => {
                check_inputs(update.down, x.channels)?;
                check_inputs(update.up, update.down.rows())?;
                host_products::adapted_linear(candle, weight, update, &x.data)?
            }
        };
        tensor_like(x, weight.rows(), &out)
    };
    let outs = weights.iter().enumerate().map(product).collect::<Result<Vec<_>>>()?;
    outs.try_into().map_err(|_| ModelError::Compute("a product is missing".to_owned()))
}

/// Adds updates one by one. Dropout applies to the input of each.
pub fn add_low_rank(
    candle: &Candle,
    updates: &[LowRankUpdate<'_, Candle>],
    x: &Tensor<Candle>,
    outs: &mut [Tensor<Candle>],
) -> Result<()> {
    checks::low_rank(updates, x, outs)?;
    for update in updates {
        let mut x = candle.rows(x, update.rows.clone())?;
        if let Some(dropout) = candle.dropout_of(update.down) {
            let factors = (0..x.len()).map(|index| dropout.factor(index)).collect();
            x.data = x.data.mul(&Array::from_vec::<_, f32>(factors, x.data.shape(), candle.device())?)?;
        }
        add_update(candle, update, &x, outs)?;
    }
    Ok(())
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
        Some(gate) => products(candle, &[gate, up], x)?,
        None => products(candle, &[up], x)?,
    }
    .into_iter();
    let (Some(first), factors) = (hidden.next(), hidden.next()) else {
        return Err(ModelError::Compute("a product is missing".to_owned()));
    };
    let hidden = activated(candle, activation, &first, factors.as_ref())?;
    candle.pause()?;
    let mut out = products(candle, &[down], &hidden)?;
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
