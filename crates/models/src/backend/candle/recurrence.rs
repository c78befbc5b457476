//! Recurrences in chunks of tokens: the gated delta rule (Yang et al. 2024, <https://arxiv.org/abs/2406.06484>, with the gates of
//! <https://arxiv.org/abs/2412.06464>), and state spaces (Dao and Gu 2024, <https://arxiv.org/abs/2405.21060>).
//!
//! Within a chunk, the updates of the delta rule depend on each other through a triangular matrix. It is inverted level by level, with
//! blocks of twice the size each time: as accurate as forward substitution, in few products of whole matrices.

use std::ops::Range;

use candle_core::{Result as ArrayResult, Tensor as Array};

use super::device::Candle;
use super::elementwise::sigmoid;
use super::text_groups::{stacked, text_groups, ungrouped};
use crate::backend::interface::Backend;
use crate::backend::recurrent::{DeltaRule, DeltaRuleInputs, StateSpace, StateSpaceInputs};
use crate::backend::types::RecurrenceShape;
use crate::error::Result;

/// Max tokens of a chunk.
const CHUNK: usize = 64;
/// The logarithm of a factor that must vanish.
const NEVER: f32 = -1e30;

/// What heads of values compute with: of all tokens, `[tokens, value_heads, …]`, or of texts of equal length by head,
/// `[texts · value_heads, tokens, …]`.
pub(super) struct HeadInputs {
    /// The update of the state is that of the delta rule, and not that of a state space.
    pub is_delta_rule: bool,
    pub q: Array,
    pub k: Array,
    pub v: Array,
    /// Logarithms of the state's factors, one for each head.
    pub log_factors: Array,
    /// Weights of the updates, one for each head.
    pub weights: Array,
}

/// Computes texts from the states `before`, `[state_len]` each. Returns the outputs, `[tokens, values_len]`, and the states after
/// them. A state is `[value_heads, key_width, value_width]`.
pub(super) fn compute(
    candle: &Candle,
    shape: &RecurrenceShape,
    texts: &[Range<usize>],
    before: &[Array],
    inputs: &HeadInputs,
) -> Result<(Array, Vec<Array>)> {
    let (groups, mut outputs, mut after) = (text_groups(texts), Vec::new(), before.to_vec());
    for group in &groups {
        let (count, length, heads) = (group.texts.len(), group.length, shape.value_heads);
        let rows = candle.row_indices(group.rows.iter().copied())?;
        let by_head = |x: &Array, width: usize| {
            let x = x.index_select(&rows, 0)?.reshape((count, length, heads, width))?;
            x.transpose(1, 2)?.contiguous()?.reshape((count * heads, length, width))
        };
        let heads_of_texts = HeadInputs {
            is_delta_rule: inputs.is_delta_rule,
            q: by_head(&inputs.q, shape.key_width)?,
            k: by_head(&inputs.k, shape.key_width)?,
            v: by_head(&inputs.v, shape.value_width)?,
            log_factors: by_head(&inputs.log_factors, 1)?,
            weights: by_head(&inputs.weights, 1)?,
        };
        let state = stacked(before, group)?.reshape((count * heads, shape.key_width, shape.value_width))?;
        let (output, state) = chunks(candle, &heads_of_texts, state, length)?;
        let output = output.reshape((count, heads, length, shape.value_width))?.transpose(1, 2)?.contiguous()?;
        outputs.push(output.reshape((count * length, shape.values_len()))?);
        let states = state.reshape((count, shape.state_len()))?;
        for (place, text) in group.texts.iter().enumerate() {
            if let Some(after) = after.get_mut(*text) {
                *after = states.get(place)?.force_contiguous()?;
            }
        }
    }
    Ok((ungrouped(candle, &groups, &outputs)?, after))
}

/// The inputs of the gated delta rule.
pub(super) fn delta_rule_inputs(
    candle: &Candle,
    DeltaRule { shape, decay, bias }: &DeltaRule<Candle>,
    DeltaRuleInputs { qkv, a, b }: &DeltaRuleInputs<'_, Candle>,
) -> Result<HeadInputs> {
    let keys_len = shape.keys_len();
    let scaled = |first: usize| {
        let x = by_key_head(shape, &qkv.data.narrow(1, first, keys_len)?)?;
        let length = (x.sqr()?.sum_keepdim(2)? + f64::from(RecurrenceShape::EPSILON))?.sqrt()?;
        expanded(candle, shape, &x.broadcast_div(&length)?)
    };
    Ok(HeadInputs {
        is_delta_rule: true,
        q: (scaled(0)? * (shape.key_width as f64).sqrt().recip())?,
        k: scaled(keys_len)?,
        v: qkv.data.narrow(1, 2 * keys_len, shape.values_len())?.contiguous()?,
        log_factors: softplus(&a.data.broadcast_add(bias)?)?.broadcast_mul(decay)?,
        weights: sigmoid(&b.data)?,
    })
}

/// The inputs of a state space.
pub(super) fn state_space_inputs(
    candle: &Candle,
    StateSpace { shape, decay, bias, .. }: &StateSpace<Candle>,
    StateSpaceInputs { xbc, steps }: &StateSpaceInputs<'_, Candle>,
) -> Result<HeadInputs> {
    let (keys_len, values_len) = (shape.keys_len(), shape.values_len());
    let of_keys = |first: usize| expanded(candle, shape, &by_key_head(shape, &xbc.data.narrow(1, first, keys_len)?)?);
    let steps = softplus(&steps.data.broadcast_add(bias)?)?;
    Ok(HeadInputs {
        is_delta_rule: false,
        q: of_keys(values_len + keys_len)?,
        k: of_keys(values_len)?,
        v: xbc.data.narrow(1, 0, values_len)?.contiguous()?,
        log_factors: steps.broadcast_mul(decay)?,
        weights: steps,
    })
}

/// An upper bound of the temporary bytes for `tokens` tokens in so many sequences.
pub(super) fn bytes(shape: &RecurrenceShape, tokens: usize, sequences: usize) -> usize {
    // Per token: the inputs, copies of expanded queries and keys, values and results, and its rows of the matrices of a chunk.
    let keys = shape.value_heads * shape.key_width;
    let of_token = shape.inputs_len() + 8 * keys + 8 * shape.values_len() + 8 * CHUNK * shape.value_heads;
    // The states before the step, those of all sequences in one tensor, and those after a chunk with two addends.
    (tokens * of_token + 6 * sequences * shape.state_len()) * size_of::<f32>()
}

/// `softplus(x) = max(x, 0) + ln(1 + e^−|x|)`, which does not overflow.
fn softplus(x: &Array) -> ArrayResult<Array> {
    x.relu()? + (x.abs()?.neg()?.exp()? + 1.)?.log()?
}

/// Queries or keys by head: `[tokens, key_heads, key_width]`.
fn by_key_head(shape: &RecurrenceShape, x: &Array) -> ArrayResult<Array> {
    x.contiguous()?.reshape((x.dim(0)?, shape.key_heads, shape.key_width))
}

/// Queries or keys, repeated for the heads of values that share them: `[tokens, value_heads, key_width]`.
fn expanded(candle: &Candle, shape: &RecurrenceShape, x: &Array) -> Result<Array> {
    let key_heads = (0..shape.value_heads).map(|head| shape.key_head(head));
    Ok(x.index_select(&candle.row_indices(key_heads)?, 1)?)
}

/// Computes chunk by chunk from a state, `[heads, key_width, value_width]`. Returns the outputs, `[heads, tokens, value_width]`, and
/// the state after them.
fn chunks(candle: &Candle, heads: &HeadInputs, mut state: Array, length: usize) -> Result<(Array, Array)> {
    let (mut outputs, mut masks) = (Vec::new(), None);
    for first in (0..length).step_by(CHUNK) {
        let count = CHUNK.min(length - first);
        let part = |x: &Array| x.narrow(1, first, count)?.contiguous();
        let [q, k, v, weights] = [&heads.q, &heads.k, &heads.v, &heads.weights].map(part);
        let (q, k, v, weights) = (q?, k?, v?, weights?);
        // From the beginning of the chunk to each token.
        let decay = part(&heads.log_factors)?.squeeze(2)?.cumsum(1)?;
        let between = decay.unsqueeze(2)?.broadcast_sub(&decay.unsqueeze(1)?)?;
        let masks = match &mut masks {
            Some((tokens, masks)) if *tokens == count => masks,
            masks => &mut masks.insert((count, Masks::new(candle, count)?)).1,
        };
        let between = between.broadcast_add(&masks.future)?.exp()?;
        let decay = decay.exp()?.unsqueeze(2)?;
        let keys = k.t()?.contiguous()?;
        let mut updates = v.broadcast_mul(&weights)?;
        if heads.is_delta_rule {
            let weighted_keys = k.broadcast_mul(&weights)?;
            let dependence = (weighted_keys.matmul(&keys)? * &between)?;
            let inverse = masks.inverse(&dependence)?;
            let keys_with_decay = inverse.matmul(&weighted_keys.broadcast_mul(&decay)?)?;
            updates = (inverse.matmul(&updates)? - keys_with_decay.matmul(&state)?)?;
        }
        let scores = (q.matmul(&keys)? * &between)?;
        let output = (q.broadcast_mul(&decay)?.matmul(&state)? + scores.matmul(&updates)?)?;
        outputs.push(output);
        let whole = decay.narrow(1, count - 1, 1)?;
        // The row of the last token: the decay from each token to the end.
        let to_end = between.narrow(1, count - 1, 1)?.transpose(1, 2)?;
        let keys_to_end = k.broadcast_mul(&to_end)?.t()?.contiguous()?;
        state = (state.broadcast_mul(&whole)? + keys_to_end.matmul(&updates)?)?;
        candle.pause()?;
    }
    Ok((Array::cat(&outputs, 1)?, state))
}

/// Constant matrices of a chunk: `[tokens, tokens]`.
struct Masks {
    /// `NEVER` where the column is later than the row, otherwise zero.
    future: Array,
    identity: Array,
    /// One in the lower left block of each pair of blocks on the diagonal, for blocks of 1, 2, 4, … tokens.
    blocks: Vec<Array>,
}

impl Masks {
    fn new(candle: &Candle, tokens: usize) -> Result<Self> {
        let matrix = |element: &dyn Fn(usize, usize) -> f32| {
            let values: Vec<f32> = (0..tokens * tokens).map(|i| element(i / tokens, i % tokens)).collect();
            Array::from_vec(values, (tokens, tokens), candle.device())
        };
        let sizes = (0..).map(|level| 1 << level).take_while(|size| *size < tokens);
        let block = |size: usize| {
            let is_in = |row: usize, column: usize| row / size == column / size + 1 && row / size % 2 == 1;
            matrix(&|row, column| f32::from(u8::from(is_in(row, column))))
        };
        Ok(Self {
            future: matrix(&|row, column| if column > row { NEVER } else { 0. })?,
            identity: matrix(&|row, column| f32::from(u8::from(row == column)))?,
            blocks: sizes.map(block).collect::<ArrayResult<_>>()?,
        })
    }

    /// The inverse of `1 + x` for each matrix of `x`, `[heads, tokens, tokens]`. Reads only elements below the diagonal.
    fn inverse(&self, x: &Array) -> ArrayResult<Array> {
        // Merges pairs of inverted blocks on the diagonal, A and B: the new block below A is −B⁻¹ C A⁻¹.
        let mut inverse = self.identity.broadcast_as(x.shape())?.contiguous()?;
        for mask in &self.blocks {
            let below = x.broadcast_mul(mask)?;
            inverse = (&inverse - inverse.matmul(&below)?.matmul(&inverse)?)?;
        }
        Ok(inverse)
    }
}
