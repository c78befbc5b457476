//! Mixtures of experts.
//!
//! Experts are selected on the host, but by an operation of the backend: the gradient of the experts' weights must
//! reach the router's scores, and only the backend knows tensors with gradients.

use candle_core::{D, Tensor as Array};

use super::device::{Candle, tensor_like};
use super::elementwise::sigmoid;
use crate::backend::checks;
use crate::backend::interface::{Backend, RoutedTokens, Tensor};
use crate::backend::routing::{RouterWeights, Routing};
use crate::error::Result;

/// Selects experts. Waits for the device, because the number of tokens of each expert must be known.
pub fn route(
    candle: &Candle,
    routing: &Routing,
    bias: Option<&[f32]>,
    scores: &Tensor<Candle>,
) -> Result<RoutedTokens<Candle>> {
    let experts = scores.channels;
    let mut weights: Vec<f32> = scores.data.detach().flatten_all()?.to_vec1()?;
    let tokens = routing.select(bias, &mut weights, experts);
    let weights = match scores.data.track_op() {
        true => tracked_weights(routing, &tokens, &scores.data)?,
        false => Array::from_vec(weights, scores.data.shape(), candle.device())?,
    };
    Ok(RoutedTokens { weights: tensor_like(scores, experts, &weights)?, tokens })
}

/// The weights of the selected experts as a function of the scores. Which experts are selected has no gradient.
fn tracked_weights(routing: &Routing, tokens_of: &[Vec<usize>], scores: &Array) -> Result<Array> {
    let Routing { weights, normalise_weights, scale, .. } = *routing;
    let (tokens, experts) = scores.dims2()?;
    let mut selected = vec![0f32; tokens * experts];
    for (expert, tokens) in tokens_of.iter().enumerate() {
        tokens.iter().for_each(|token| selected[token * experts + expert] = 1.);
    }
    let selected = Array::from_vec(selected, (tokens, experts), scores.device())?;
    let weights = match weights {
        // A constant that is subtracted from all scores changes no softmax.
        RouterWeights::Softmax => normalised(&scores.broadcast_sub(&scores.detach().max_keepdim(D::Minus1)?)?.exp()?)?,
        RouterWeights::Sigmoid => sigmoid(scores)?,
    };
    let weights = weights.mul(&selected)?;
    let weights = if normalise_weights { normalised(&weights)? } else { weights };
    Ok((weights * f64::from(scale))?)
}

fn normalised(weights: &Array) -> Result<Array> {
    // All weights of a sigmoid may vanish.
    let total = (weights.sum_keepdim(D::Minus1)? + f64::from(f32::MIN_POSITIVE))?;
    Ok(weights.broadcast_div(&total)?)
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
