//! Attention with a matrix of scores, which is computed in parts if it is large.

use candle_core::{D, DType as ArrayType, Result as ArrayResult, Tensor as Array};
use candle_nn::ops;

use super::device::{Candle, tensor_like};
use super::gradient::{softmax_gradient, with_gradient};
use super::kv_arena::CandleKvArena;
use super::kv_batch::CandleBatch;
use super::kv_groups::padded_elements;
use super::kv_plan::{DeviceGroup, MASKED};
use crate::backend::checks;
use crate::backend::interface::{Backend, Tensor};
use crate::backend::types::AttentionShape;
use crate::error::{ModelError, Result};

/// The softmax over the last dimension. `sinks` are scores that join its sum, and are broadcast to `[.., 1]`.
pub(super) fn softmax(scores: &Array, sinks: Option<&Array>) -> ArrayResult<Array> {
    let weights = |scores: &Array| match sinks {
        None => ops::softmax_last_dim(scores),
        Some(sinks) => {
            let max = scores.max_keepdim(D::Minus1)?.broadcast_maximum(sinks)?;
            let weights = scores.broadcast_sub(&max)?.exp()?;
            let of_sinks = sinks.broadcast_sub(&max)?.exp()?;
            let sum = (weights.sum_keepdim(D::Minus1)? + of_sinks)?;
            weights.broadcast_div(&sum)
        }
    };
    if !scores.track_op() {
        return weights(scores);
    }
    let weights = weights(&scores.detach())?;
    let kept = weights.clone();
    with_gradient(scores, &weights, move |gradient| softmax_gradient(&kept, gradient))
}

/// The sinks of heads, `[heads]`, for scores of these key-value heads: `[kv_heads, shared · queries, 1]`.
pub(super) fn sinks_of_scores(sinks: &Array, [kv_heads, queries]: [usize; 2]) -> ArrayResult<Array> {
    let shared = sinks.elem_count() / kv_heads;
    let repeated = sinks.reshape((kv_heads, shared, 1))?.broadcast_as((kv_heads, shared, queries))?;
    repeated.reshape((kv_heads, shared * queries, 1))
}

/// `cap · tanh(x / cap)`, or `x` without a cap.
pub(super) fn soft_capped(x: Array, cap: Option<f32>) -> ArrayResult<Array> {
    match cap {
        Some(cap) => (x / f64::from(cap))?.tanh()?.affine(f64::from(cap), 0.),
        None => Ok(x),
    }
}

/// Whether heads can share the key-value heads, and a window has a position.
pub(super) fn is_valid(shape: &AttentionShape) -> bool {
    let AttentionShape { heads, kv_heads, window, .. } = *shape;
    kv_heads > 0 && heads.is_multiple_of(kv_heads) && window != Some(0)
}

/// Attention of a batch over a layer of the KV cache.
pub fn over_kv_arena(
    candle: &Candle,
    (arena, layer): (&CandleKvArena, usize),
    batch: &CandleBatch,
    (shape, sinks): (&AttentionShape, Option<&Array>),
    q: &Tensor<Candle>,
) -> Result<Tensor<Candle>> {
    let AttentionShape { heads, kv_heads, width, .. } = *shape;
    checks::sinks(shape, sinks.map(Array::elem_count))?;
    if !is_valid(shape)
        || q.channels != heads * width
        || q.rows() != batch.tokens()
        || arena.row_len() != kv_heads * width
    {
        return Err(ModelError::Compute(format!("queries of {:?} do not fit {shape:?}", q.shape())));
    }
    if q.is_empty() {
        return candle.copy(q);
    }
    arena.check(batch.blocks())?;
    let [keys, values] = arena.layer(layer, batch.block_end())?;
    let (slots, _) = keys.dims2()?;
    let kv = [keys.reshape((slots * kv_heads, width))?, values.reshape((slots * kv_heads, width))?];
    let plan = batch.plan(candle, shape)?;
    let scaled = (q.data.detach() * f64::from(shape.scale))?;
    let mut outputs = Vec::with_capacity(plan.groups.len());
    for group in &plan.groups {
        outputs.push(attend_group(group, (shape, sinks), &scaled, &kv)?);
        candle.pause()?;
    }
    let output = match outputs.as_slice() {
        [output] => output.clone(),
        outputs => Array::cat(outputs, 0)?,
    };
    let output = match &plan.order {
        Some(order) => output.index_select(order, 0)?,
        None => output,
    };
    tensor_like(q, q.channels, &output)
}

/// Attention of a group: `[rows · queries, heads · width]`. Queries that share a key-value head are rows of the same
/// product, so keys and values are not repeated.
fn attend_group(
    group: &DeviceGroup,
    (shape, sinks): (&AttentionShape, Option<&Array>),
    q: &Array,
    kv: &[Array; 2],
) -> ArrayResult<Array> {
    let DeviceGroup { rows, queries, positions, .. } = *group;
    let AttentionShape { heads, kv_heads, width, .. } = *shape;
    let shared = heads / kv_heads;
    let q = match &group.query_tokens {
        Some(tokens) => q.index_select(tokens, 0)?,
        None => q.clone(),
    };
    let q = q.reshape((rows, queries, kv_heads, shared, width))?.permute((0, 2, 3, 1, 4))?;
    let q = q.reshape((rows, kv_heads, shared * queries, width))?;
    let [keys, values] = kv.each_ref().map(|rows_of_heads| {
        let gathered = rows_of_heads.index_select(&group.kv_rows, 0)?.to_dtype(ArrayType::F32)?;
        gathered.reshape((rows, kv_heads, positions, width))
    });
    let mut scores = soft_capped(q.matmul(&keys?.t()?)?, shape.soft_cap)?;
    if let Some(mask) = &group.mask {
        let by_head = scores.reshape((rows, kv_heads, shared, queries, positions))?.broadcast_add(mask)?;
        scores = by_head.reshape((rows, kv_heads, shared * queries, positions))?;
    }
    let sinks = sinks.map(|sinks| sinks_of_scores(sinks, [kv_heads, queries])).transpose()?;
    let output = softmax(&scores, sinks.as_ref())?.matmul(&values?)?;
    let output = output.reshape((rows, kv_heads, shared, queries, width))?.permute((0, 3, 1, 2, 4))?;
    output.reshape((rows * queries, heads * width))
}

/// An upper bound of the temporary bytes of [`over_kv_arena`].
pub fn bytes(max_elements: usize, shape: &AttentionShape, tokens: usize, positions: usize) -> usize {
    let AttentionShape { heads, kv_heads, width, .. } = *shape;
    let [scores, gathered] = padded_elements(tokens, positions);
    // A single row of one query may be larger than the limit.
    let limited = |elements: usize, factor: usize| (elements * factor).min(max_elements.max(factor * positions));
    let (scores, gathered) = (limited(scores, heads), limited(gathered, kv_heads * width));
    // Scores, masked scores and weights; keys and values in f16 and in f32, and their indices; masks; queries and
    // outputs, scaled, gathered and transposed.
    let mask = scores / heads.max(1);
    size_of::<f32>() * (3 * scores + 4 * gathered + mask + 8 * tokens * heads * width)
}

/// Queries, keys or values of images: `[images, heads, pixels, head_width]`.
fn by_head(x: &Tensor<Candle>, heads: usize) -> ArrayResult<Array> {
    let split = x.data.reshape((x.images, x.pixels(), heads, x.channels / heads))?;
    split.transpose(1, 2)?.contiguous()
}

/// Attention of the pixels of `q` over those of `k` and `v`, image by image.
pub fn attention(
    candle: &Candle,
    [q, k, v]: [&Tensor<Candle>; 3],
    heads: usize,
    causal: bool,
) -> Result<Tensor<Candle>> {
    let width = checks::attention([q, k, v], heads, causal)?;
    let (queries, positions) = (q.pixels(), k.pixels());
    let scale = (width as f64).sqrt().recip();
    let [q_heads, keys, values] = [(by_head(q, heads)? * scale)?, by_head(k, heads)?.t()?, by_head(v, heads)?];
    let chunk = (candle.max_elements() / (q.images * heads * positions)).clamp(1, queries.max(1));
    let mut outputs = Vec::with_capacity(queries.div_ceil(chunk));
    for first in (0..queries).step_by(chunk) {
        let count = chunk.min(queries - first);
        let mut scores = q_heads.narrow(2, first, count)?.contiguous()?.matmul(&keys)?;
        if causal {
            let rows = Array::arange(first as u32, (first + count) as u32, candle.device())?.reshape((count, 1))?;
            let columns = Array::arange(0u32, positions as u32, candle.device())?.reshape((1, positions))?;
            let hidden = columns.broadcast_gt(&rows)?.to_dtype(ArrayType::F32)?;
            scores = scores.broadcast_add(&hidden.affine(f64::from(MASKED), 0.)?)?;
        }
        outputs.push(softmax(&scores, None)?.matmul(&values)?);
        candle.pause()?;
    }
    let output = match outputs.as_slice() {
        [output] => output.clone(),
        outputs => Array::cat(outputs, 2)?,
    };
    tensor_like(q, q.channels, &output.transpose(1, 2)?)
}

/// Attention with a bias by relative position.
pub fn biased_attention(
    candle: &Candle,
    [q, k, v]: [&Tensor<Candle>; 3],
    heads: usize,
    bias: &Tensor<Candle>,
) -> Result<Tensor<Candle>> {
    checks::biased_attention([q, k, v], heads, bias)?;
    let bias = relative_bias(&bias.data, q.pixels())?;
    let mut scores = by_head(q, heads)?.matmul(&by_head(k, heads)?.t()?)?;
    scores = scores.broadcast_add(&bias)?;
    let output = softmax(&scores, None)?.matmul(&by_head(v, heads)?)?;
    let output = tensor_like(q, q.channels, &output.transpose(1, 2)?)?;
    candle.pause()?;
    Ok(output)
}

/// The bias of each query and key, `[heads, tokens, tokens]`, from that of each distance, `[heads, 2 · tokens − 1]`.
///
/// The row of query `i` starts at distance `tokens − 1 − i`. In a list that repeats all `2 · tokens − 1` distances, rows
/// therefore start `2 · tokens − 2` elements apart.
fn relative_bias(bias: &Array, tokens: usize) -> ArrayResult<Array> {
    let (heads, distances) = bias.dims2()?;
    if tokens == 1 {
        return bias.reshape((heads, 1, 1));
    }
    let repeated = bias.unsqueeze(1)?.broadcast_as((heads, tokens, distances))?.reshape((heads, tokens * distances))?;
    let rows = repeated.narrow(1, tokens - 1, tokens * (distances - 1))?;
    rows.reshape((heads, tokens, distances - 1))?.narrow(2, 0, tokens)?.contiguous()
}
