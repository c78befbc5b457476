//! Checks of shapes that backends make before they compute.

use std::ops::Range;

use super::interface::{Angles, Backend, LowRankUpdate, Matrix, Tensor};
use super::recurrent::RecurrentRow;
use super::types::{AttentionShape, Conv1dShape, RecurrenceShape};
use crate::error::{ModelError, Result};
use crate::kv::SequenceSlice;

fn check(fits: bool, message: impl FnOnce() -> String) -> Result<()> {
    match fits {
        true => Ok(()),
        false => Err(ModelError::Compute(message())),
    }
}

/// Two tensors have the same number of elements.
pub fn lengths<B: Backend>(x: &Tensor<B>, y: &Tensor<B>) -> Result<()> {
    check(x.len() == y.len(), || format!("{} elements do not fit {}", y.len(), x.len()))
}

/// `x` has as many elements as a tensor of this shape.
pub fn reshape<B: Backend>(x: &Tensor<B>, shape: [usize; 4]) -> Result<()> {
    check(x.len() == shape.iter().product::<usize>(), || format!("{:?} cannot be reshaped to {shape:?}", x.shape()))
}

/// `x` has texts that a convolution over time takes. Returns the number of its outputs.
pub fn conv1d<B: Backend>(shape: &Conv1dShape, x: &Tensor<B>) -> Result<usize> {
    let fits = x.channels == shape.inputs && x.size[1] == 1 && x.images > 0;
    let outputs = shape.output(x.pixels()).filter(|_| fits);
    outputs.ok_or_else(|| ModelError::Compute(format!("{shape:?} does not take a tensor of {:?}", x.shape())))
}

/// A step reads and writes different blocks of states.
pub fn state_updates(sequences: &[RecurrentRow]) -> Result<()> {
    match sequences.iter().find(|sequence| sequence.update.read == Some(sequence.update.write)) {
        Some(RecurrentRow { update, .. }) => {
            Err(ModelError::Compute(format!("the state in block {} cannot be read and written at once", update.write)))
        }
        None => Ok(()),
    }
}

/// `x` has the tokens of these sequences, one after another, and the channels of a convolution.
pub fn causal_conv<B: Backend>(
    channels: usize,
    sequences: impl IntoIterator<Item = Range<usize>>,
    x: &Tensor<B>,
) -> Result<()> {
    let ends = |end, tokens: Range<usize>| (tokens.start == end && !tokens.is_empty()).then_some(tokens.end);
    let fits = x.channels == channels && sequences.into_iter().try_fold(0, ends) == Some(x.rows());
    check(fits, || format!("a convolution of {channels} channels does not take a tensor of {:?}", x.shape()))
}

/// The inputs of a recurrence have the tokens of these sequences, one after another.
pub fn recurrence<B: Backend>(
    shape: &RecurrenceShape,
    sequences: impl IntoIterator<Item = Range<usize>>,
    inputs: &Tensor<B>,
    gates: &[&Tensor<B>],
) -> Result<()> {
    causal_conv(shape.inputs_len(), sequences, inputs)?;
    match gates.iter().find(|gate| gate.channels != shape.value_heads || gate.rows() != inputs.rows()) {
        Some(gate) => Err(ModelError::Compute(format!("gates of {:?} do not fit {:?}", gate.shape(), inputs.shape()))),
        None => Ok(()),
    }
}

/// Each head has a sink, if there are any.
pub fn sinks(shape: &AttentionShape, count: Option<usize>) -> Result<()> {
    let Some(count) = count else { return Ok(()) };
    check(count == shape.heads, || format!("{count} sinks do not fit {} heads", shape.heads))
}

/// `x` has a range of rows.
pub fn rows<B: Backend>(x: &Tensor<B>, rows: &Range<usize>) -> Result<()> {
    let fits = rows.start <= rows.end && rows.end <= x.rows();
    check(fits, || format!("there are {} rows, not the rows {rows:?}", x.rows()))
}

/// `x` has all these rows.
pub fn row_indices<B: Backend>(x: &Tensor<B>, rows: &[usize]) -> Result<()> {
    let count = x.rows();
    match rows.iter().find(|row| **row >= count) {
        Some(row) => Err(ModelError::Compute(format!("there are {count} rows, no row {row}"))),
        None => Ok(()),
    }
}

/// `y` can replace, or be added to, the rows of `x` from `first` on.
pub fn rows_from<B: Backend>(x: &Tensor<B>, first: usize, y: &Tensor<B>) -> Result<()> {
    let fits = y.channels == x.channels && first.saturating_add(y.rows()) <= x.rows();
    check(fits, || format!("{} rows do not fit after the first {first} of {}", y.rows(), x.rows()))
}

/// Each row of `y` belongs to a token of `x`, which has a weight for this expert.
pub fn expert<B: Backend>(
    x: &Tensor<B>,
    y: &Tensor<B>,
    tokens: &[usize],
    weights: &Tensor<B>,
    expert: usize,
) -> Result<()> {
    let count = x.rows();
    let rows_fit = y.channels == x.channels && tokens.len() == y.rows() && tokens.iter().all(|token| *token < count);
    let fits = rows_fit && weights.rows() == count && expert < weights.channels;
    check(fits, || format!("{} rows of expert {expert} cannot be added to {count}", y.rows()))
}

pub fn concat_channels<B: Backend>(x: &Tensor<B>, y: &Tensor<B>) -> Result<()> {
    let fits = (x.images, x.size) == (y.images, y.size) && !x.is_empty() && !y.is_empty();
    check(fits, || format!("tensors of {:?} and {:?} cannot be concatenated along channels", x.shape(), y.shape()))
}

pub fn concat_tokens<B: Backend>(x: &Tensor<B>, y: &Tensor<B>) -> Result<()> {
    let fits = x.images == y.images && x.channels == y.channels && !x.is_empty() && !y.is_empty();
    check(fits, || format!("tensors of {:?} and {:?} cannot be concatenated along tokens", x.shape(), y.shape()))
}

/// Returns the tokens after the first `count`.
pub fn split_tokens<B: Backend>(x: &Tensor<B>, count: usize) -> Result<usize> {
    let rest = x.pixels().checked_sub(count);
    rest.ok_or_else(|| ModelError::Compute(format!("a text of {} tokens cannot be split after {count}", x.pixels())))
}

pub fn repeat<B: Backend>(x: &Tensor<B>) -> Result<()> {
    check(x.images == 1, || format!("{} images cannot be repeated", x.images))
}

/// `order` has an index for each element of an image, before and after.
pub fn permute<B: Backend>(x: &Tensor<B>, order: &[u32], size: [usize; 2], channels: usize) -> Result<()> {
    let len = x.pixels() * x.channels;
    let fits = order.len() == len && size[0] * size[1] * channels == len;
    let fits = fits && order.iter().all(|index| (*index as usize) < len);
    check(fits, || format!("the elements of {:?} cannot be reordered", x.shape()))
}

/// There is a modulation vector for each image of `x` at each of these indices.
pub fn modulation<B: Backend>(x: &Tensor<B>, vectors: &Tensor<B>, indices: &[usize]) -> Result<()> {
    let count = vectors.channels / x.channels.max(1);
    let fits = vectors.images == x.images && vectors.pixels() == 1 && vectors.channels == count * x.channels;
    check(fits && indices.iter().all(|index| *index < count), || {
        format!("modulation vectors of {} channels do not fit {} channels", vectors.channels, x.channels)
    })
}

/// Channels are whole groups of the `width` elements that a norm normalises together.
pub fn norm<B: Backend>(width: usize, x: &Tensor<B>) -> Result<()> {
    let fits = width > 0 && x.channels.is_multiple_of(width);
    check(fits, || format!("a norm of {width} elements does not fit {}", x.channels))
}

/// A group norm of `width` channels in `groups` groups fits `x + shift`.
pub fn group_norm<B: Backend>([width, groups]: [usize; 2], x: &Tensor<B>, shift: Option<&Tensor<B>>) -> Result<()> {
    let channels = x.channels;
    let shift_fits = shift.is_none_or(|shift| shift.rows() == x.images && shift.channels == channels);
    let fits = groups > 0 && channels.is_multiple_of(groups) && width == channels && shift_fits && !x.is_empty();
    check(fits, || format!("a group norm of {width} channels in {groups} groups does not fit {channels}"))
}

/// Returns the width of a head.
pub fn rope<B: Backend>(x: &Tensor<B>, heads: usize, Angles { cos, sin }: &Angles<B>) -> Result<usize> {
    let (rows, width) = (x.rows(), x.channels / heads.max(1));
    let angles_fit = cos.rows() == rows && sin.rows() == rows && sin.channels == cos.channels;
    let fits = angles_fit && 2 * cos.channels <= width && heads * width == x.channels;
    check(fits, || format!("{rows} rows of {} channels do not fit the rotary embedding", x.channels))?;
    Ok(width)
}

/// Returns the width of a head.
pub fn attention<B: Backend>([q, k, v]: [&Tensor<B>; 3], heads: usize, causal: bool) -> Result<usize> {
    let width = q.channels / heads.max(1);
    let channels_fit = width > 0 && width * heads == q.channels && [k, v].iter().all(|x| x.channels == q.channels);
    let lengths_fit = k.len() == v.len() && [k, v].iter().all(|x| x.images == q.images) && !k.is_empty();
    let fits = channels_fit && lengths_fit && !(causal && k.pixels() < q.pixels());
    check(fits, || format!("queries of {:?} and keys of {:?} do not fit {heads} heads", q.shape(), k.shape()))?;
    Ok(width)
}

/// The weights of `heads` are those of queries `q` over the positions of `sequences`, which is one. Returns it.
pub fn attention_weights<'a, B: Backend>(
    sequences: &'a [SequenceSlice],
    shape: &AttentionShape,
    q: &Tensor<B>,
    heads: &[usize],
) -> Result<&'a SequenceSlice> {
    let [sequence] = sequences else {
        return Err(ModelError::Compute(format!("attention weights of {} sequences", sequences.len())));
    };
    let shape_fits =
        !shape.causal && shape.window.is_none() && shape.soft_cap.is_none() && shape.kv_heads == shape.heads;
    let queries_fit = q.rows() == sequence.count && q.channels == shape.heads * shape.width && !q.is_empty();
    let heads_fit = heads.iter().all(|head| *head < shape.heads);
    check(shape_fits && queries_fit && heads_fit, || format!("queries of {:?} do not fit {shape:?}", q.shape()))?;
    Ok(sequence)
}

/// `bias` has a row for each head, with the bias of each distance. Returns the width of a head.
pub fn biased_attention<B: Backend>([q, k, v]: [&Tensor<B>; 3], heads: usize, bias: &Tensor<B>) -> Result<usize> {
    let (tokens, width) = (q.pixels(), q.channels / heads.max(1));
    let bias_fits = bias.rows() == heads && bias.channels + 1 == 2 * tokens;
    let shapes_fit = [k, v].iter().all(|x| x.shape() == q.shape()) && width > 0 && width * heads == q.channels;
    check(bias_fits && shapes_fit, || {
        let (channels, distances) = (q.channels, bias.channels);
        format!("{channels} channels do not fit {heads} heads, or {distances} distances do not fit {tokens} tokens")
    })?;
    Ok(width)
}

/// Each update fits the input and its output, and the updates of an output are in the order of their rows.
pub fn low_rank<B: Backend>(updates: &[LowRankUpdate<'_, B>], x: &Tensor<B>, outs: &[Tensor<B>]) -> Result<()> {
    let fits = |update: &LowRankUpdate<'_, B>| {
        let LowRankUpdate { output, rows, down, up, .. } = update;
        let inputs_fit = down.columns() == x.channels && up.columns() == down.rows() && rows.end <= x.rows();
        let output_fits = outs.get(*output).is_some_and(|out| out.channels == up.rows() && rows.end <= out.rows());
        rows.start <= rows.end && inputs_fit && output_fits
    };
    let overlaps = |(index, update): (usize, &LowRankUpdate<'_, B>)| {
        let before = updates[..index].iter().rev().find(|before| before.output == update.output);
        before.is_some_and(|before| before.rows.end > update.rows.start)
    };
    check(updates.iter().all(fits) && !updates.iter().enumerate().any(overlaps), || {
        format!("low-rank updates do not fit {} rows of {} channels", x.rows(), x.channels)
    })
}

/// An embedding has all these rows.
pub fn embedding_rows(embedding: &impl Matrix, ids: &[u32]) -> Result<()> {
    match ids.iter().find(|id| **id as usize >= embedding.rows()) {
        Some(id) => Err(ModelError::Compute(format!("the embedding has no row {id}"))),
        None => Ok(()),
    }
}
