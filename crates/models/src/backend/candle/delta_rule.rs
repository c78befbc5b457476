//! The gated delta rule in chunks of tokens (Yang et al. 2024, <https://arxiv.org/abs/2406.06484>, with the gates of
//! <https://arxiv.org/abs/2412.06464>).
//!
//! Within a chunk, the updates of tokens depend on each other through a triangular matrix. It is inverted level by level, with
//! blocks of twice the size each time: as accurate as forward substitution, in few products of whole matrices.

use std::ops::Range;

use candle_core::{Result as ArrayResult, Tensor as Array};

use super::device::Candle;
use super::elementwise::sigmoid;
use super::text_groups::{stacked, text_groups, ungrouped};
use crate::backend::interface::Backend;
use crate::backend::recurrent::{DeltaRule, DeltaRuleInputs};
use crate::backend::types::DeltaRuleShape;
use crate::error::Result;

/// Max tokens of a chunk.
const CHUNK: usize = 64;
/// The logarithm of a factor that must vanish.
const NEVER: f32 = -1e30;

/// The heads of texts of equal length: `[heads, tokens, …]`.
struct Heads {
    q: Array,
    k: Array,
    v: Array,
    /// Logarithms of the state's factors: `[heads, tokens]`.
    log_factors: Array,
    /// `[heads, tokens, 1]`
    weights: Array,
}

/// Computes texts from the states `before`, `[state_len]` each. Returns the outputs, `[tokens, values_len]`, and the states after
/// them. A state is `[value_heads, key_width, value_width]`.
pub(super) fn compute(
    candle: &Candle,
    rule: &DeltaRule<Candle>,
    texts: &[Range<usize>],
    before: &[Array],
    inputs: &DeltaRuleInputs<'_, Candle>,
) -> Result<(Array, Vec<Array>)> {
    let shape = rule.shape;
    let (groups, mut outputs, mut after) = (text_groups(texts), Vec::new(), before.to_vec());
    let gates = gates(rule, inputs)?;
    for group in &groups {
        let (count, length, heads) = (group.texts.len(), group.length, shape.value_heads);
        let rows = candle.row_indices(group.rows.iter().copied())?;
        let selected = |x: &Array| x.index_select(&rows, 0);
        let qkv = selected(&inputs.qkv.data)?;
        let [q, k] =
            [0, shape.keys_len()].map(|first| expanded_keys(candle, rule, &qkv.narrow(1, first, shape.keys_len())?));
        let by_head = |x: Array, width: usize| {
            x.reshape((count, length, heads, width))?.transpose(1, 2)?.contiguous()?.reshape((
                count * heads,
                length,
                width,
            ))
        };
        let v = qkv.narrow(1, 2 * shape.keys_len(), shape.values_len())?.contiguous()?;
        let [log_factors, weights] = [selected(&gates[0])?, selected(&gates[1])?].map(|gate| by_head(gate, 1));
        let heads_of_texts = Heads {
            q: by_head((q? * (shape.key_width as f64).sqrt().recip())?, shape.key_width)?,
            k: by_head(k?, shape.key_width)?,
            v: by_head(v, shape.value_width)?,
            log_factors: log_factors?.squeeze(2)?,
            weights: weights?,
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

/// An upper bound of the temporary bytes for `tokens` tokens in so many sequences.
pub(super) fn bytes(shape: &DeltaRuleShape, tokens: usize, sequences: usize) -> usize {
    // Per token: the inputs, copies of expanded queries and keys, values and results, and its rows of the matrices of a chunk.
    let keys = shape.value_heads * shape.key_width;
    let of_token = shape.inputs_len() + 8 * keys + 8 * shape.values_len() + 8 * CHUNK * shape.value_heads;
    // The states before the step, those of all sequences in one tensor, and those after a chunk with two addends.
    (tokens * of_token + 6 * sequences * shape.state_len()) * size_of::<f32>()
}

/// The logarithms of the state's factors, and the weights of updates: `[tokens, value_heads]` each.
fn gates(rule: &DeltaRule<Candle>, inputs: &DeltaRuleInputs<'_, Candle>) -> ArrayResult<[Array; 2]> {
    let a = inputs.a.data.broadcast_add(&rule.bias)?;
    // `softplus(a) = max(a, 0) + ln(1 + e^−|a|)`, which does not overflow.
    let softplus = (a.relu()? + (a.abs()?.neg()?.exp()? + 1.)?.log()?)?;
    Ok([softplus.broadcast_mul(&rule.decay)?, sigmoid(&inputs.b.data)?])
}

/// Queries or keys of length 1, repeated for the heads of values that share them: `[tokens, value_heads, key_width]`.
fn expanded_keys(candle: &Candle, rule: &DeltaRule<Candle>, x: &Array) -> Result<Array> {
    let shape = rule.shape;
    let tokens = x.dim(0)?;
    let x = x.contiguous()?.reshape((tokens, shape.key_heads, shape.key_width))?;
    let length = (x.sqr()?.sum_keepdim(2)? + f64::from(DeltaRuleShape::EPSILON))?.sqrt()?;
    let x = x.broadcast_div(&length)?;
    let key_heads = (0..shape.value_heads).map(|head| shape.key_head(head));
    Ok(x.index_select(&candle.row_indices(key_heads)?, 1)?)
}

/// Computes chunk by chunk from a state, `[heads, key_width, value_width]`. Returns the outputs, `[heads, tokens, value_width]`, and
/// the state after them.
fn chunks(candle: &Candle, heads: &Heads, mut state: Array, length: usize) -> Result<(Array, Array)> {
    let (mut outputs, mut masks) = (Vec::new(), None);
    for first in (0..length).step_by(CHUNK) {
        let count = CHUNK.min(length - first);
        let part = |x: &Array| x.narrow(1, first, count)?.contiguous();
        let [q, k, v, weights] = [&heads.q, &heads.k, &heads.v, &heads.weights].map(part);
        let (q, k, v, weights) = (q?, k?, v?, weights?);
        // From the beginning of the chunk to each token.
        let decay = part(&heads.log_factors)?.cumsum(1)?;
        let between = decay.unsqueeze(2)?.broadcast_sub(&decay.unsqueeze(1)?)?;
        let masks = match &mut masks {
            Some((tokens, masks)) if *tokens == count => masks,
            masks => &mut masks.insert((count, Masks::new(candle, count)?)).1,
        };
        let between = between.broadcast_add(&masks.future)?.exp()?;
        let decay = decay.exp()?.unsqueeze(2)?;
        let weighted_keys = k.broadcast_mul(&weights)?;
        let keys = k.t()?.contiguous()?;
        let dependence = (weighted_keys.matmul(&keys)? * &between)?;
        let inverse = masks.inverse(&dependence)?;
        let values = inverse.matmul(&v.broadcast_mul(&weights)?)?;
        let keys_with_decay = inverse.matmul(&weighted_keys.broadcast_mul(&decay)?)?;
        let updates = (values - keys_with_decay.matmul(&state)?)?;
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
