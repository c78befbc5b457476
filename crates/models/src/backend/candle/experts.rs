//! Mixtures of experts.
//!
//! Experts are selected on the host, but by an operation of the backend: the gradient of the experts' weights must
//! reach the router's scores, and only the backend knows tensors with gradients.

use candle_core::{DType as ArrayType, Tensor as Array};

use super::device::{Candle, tensor_like};
use super::gradient::{softmax_gradient, with_gradient};
use crate::backend::checks;
use crate::backend::interface::{Backend, RoutedTokens, Tensor};
use crate::backend::routing::{Routing, softmax};
use crate::error::Result;

/// Selects experts. Waits for the device, because the number of tokens of each expert must be known.
pub fn route(candle: &Candle, routing: Routing, scores: &Tensor<Candle>) -> Result<RoutedTokens<Candle>> {
    let experts = scores.channels;
    let mut weights: Vec<f32> = scores.data.detach().flatten_all()?.to_vec1()?;
    // The softmax over all experts is only needed for its gradient.
    let needs_all = scores.data.track_op() && !routing.normalise_weights;
    let mut probabilities = if needs_all { weights.clone() } else { Vec::new() };
    let tokens = routing.select(&mut weights, experts);
    let shape = scores.data.shape();
    let weights = Array::from_vec(weights, shape, candle.device())?;
    if !scores.data.track_op() {
        return Ok(RoutedTokens { weights: tensor_like(scores, experts, &weights)?, tokens });
    }
    // The softmax over the experts whose scores matter.
    let softmaxes = match needs_all {
        false => weights.clone(),
        true => {
            probabilities.chunks_exact_mut(experts.max(1)).for_each(softmax);
            Array::from_vec(probabilities, shape, candle.device())?
        }
    };
    let selected = weights.gt(0f32)?.to_dtype(ArrayType::F32)?;
    let weights =
        with_gradient(&scores.data, &weights, move |gradient| softmax_gradient(&softmaxes, &gradient.mul(&selected)?))?;
    Ok(RoutedTokens { weights: tensor_like(scores, experts, &weights)?, tokens })
}

/// Adds the rows of an expert to those of its tokens, multiplied by their weights.
pub fn add(
    candle: &Candle,
    x: &mut Tensor<Candle>,
    y: &Tensor<Candle>,
    tokens: &[usize],
    (weights, expert): (&Tensor<Candle>, usize),
) -> Result<()> {
    checks::expert(x, y, tokens, weights, expert)?;
    if tokens.is_empty() {
        return Ok(());
    }
    let indices = candle.row_indices(tokens.iter().copied())?;
    let weights = weights.data.narrow(1, expert, 1)?.contiguous()?.index_select(&indices, 0)?;
    x.data = x.data.index_add(&indices, &y.data.broadcast_mul(&weights)?, 0)?;
    candle.pause()
}
