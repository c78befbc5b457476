//! Recurrent layers. Each part of a block of states is a tensor of its own, so that released blocks give their memory back.

use std::ops::Range;

use candle_core::{DType as ArrayType, Device, Tensor as Array};

use super::device::{Candle, tensor_like};
use super::recurrence::{self, HeadInputs};
use super::text_groups::{stacked, text_groups, ungrouped};
use crate::backend::checks;
use crate::backend::interface::{Backend, Tensor};
use crate::backend::recurrent::{
    CausalConv, DeltaRule, DeltaRuleInputs, Recurrent, RecurrentRow, StatePart, StateSpace, StateSpaceInputs,
    missing_state,
};
use crate::backend::types::RecurrenceShape;
use crate::block_arena::{BlockArena, BlockId, Blocks, SavedNumber, filled, missing_block};
use crate::error::Result;

/// The states of recurrent layers, in blocks.
#[derive(Debug)]
pub struct CandleStateArena {
    device: Device,
    /// Elements of each part.
    parts: Vec<usize>,
    blocks: Blocks<Vec<Array>>,
}

impl CandleStateArena {
    /// A part of a block: `[elements]`.
    fn part(&mut self, part: usize, id: BlockId) -> Result<&mut Array> {
        self.blocks.get_mut(id).and_then(|block| block.get_mut(part)).ok_or_else(|| missing_state(id))
    }

    /// The states that a step reads, `[length]` each. Those that it writes must have memory, and the same length.
    fn read(&mut self, part: usize, sequences: &[RecurrentRow], length: usize) -> Result<Vec<Array>> {
        checks::state_updates(sequences)?;
        let mut states = Vec::with_capacity(sequences.len());
        for RecurrentRow { update, .. } in sequences {
            if self.part(part, update.write)?.elem_count() != length {
                return Err(missing_state(update.write));
            }
            states.push(match update.read {
                Some(read) => self.part(part, read)?.clone(),
                None => Array::zeros(length, ArrayType::F32, &self.device)?,
            });
        }
        Ok(states)
    }

    /// Writes the states after a step.
    fn write(&mut self, part: usize, sequences: &[RecurrentRow], states: Vec<Array>) -> Result<()> {
        for (sequence, state) in sequences.iter().zip(states) {
            *self.part(part, sequence.update.write)? = state.detach();
        }
        Ok(())
    }
}

impl BlockArena for CandleStateArena {
    fn block_bytes(&self) -> u64 {
        (self.parts.iter().sum::<usize>() * size_of::<f32>()) as u64
    }

    fn ensure(&mut self, id: BlockId) -> Result<()> {
        let zeros = |len: &usize| Array::zeros(*len, ArrayType::F32, &self.device);
        self.blocks.ensure(id, || Ok(self.parts.iter().map(zeros).collect::<candle_core::Result<_>>()?))
    }

    fn release(&mut self, id: BlockId) {
        drop(self.blocks.take(id));
    }

    fn save(&self, id: BlockId, bytes: &mut Vec<u8>) -> Result<()> {
        for part in self.blocks.get(id).ok_or_else(|| missing_block(id))? {
            f32::append(&part.force_contiguous()?.to_vec1::<f32>()?, bytes);
        }
        Ok(())
    }

    fn load(&mut self, id: BlockId, bytes: &[u8]) -> Result<()> {
        let (mut parts, mut rest) = (Vec::with_capacity(self.parts.len()), Some(bytes));
        for length in &self.parts {
            let mut part = vec![0.; *length];
            rest = rest.and_then(|bytes| f32::fill(&mut part, bytes));
            parts.push(Array::from_vec(part, *length, &self.device)?);
        }
        filled(id, rest)?;
        *self.blocks.get_mut(id).ok_or_else(|| missing_block(id))? = parts;
        Ok(())
    }

    fn len(&self) -> usize {
        self.blocks.len()
    }
}

/// Convolves texts, which continue after the inputs `before`, `[(kernel − 1) · channels]` each. Returns the outputs,
/// `[tokens, channels]`, and the last inputs of each text, like `before`.
fn convolve(
    candle: &Candle,
    conv: &CausalConv<Candle>,
    texts: &[Range<usize>],
    before: &[Array],
    x: &Array,
) -> Result<(Array, Vec<Array>)> {
    let CausalConv { kernel, channels, .. } = *conv;
    let weight = conv.weight.reshape((kernel, channels))?;
    let (groups, mut outputs, mut after) = (text_groups(texts), Vec::new(), before.to_vec());
    for group in &groups {
        let (count, length) = (group.texts.len(), group.length);
        let inputs = x.index_select(&candle.row_indices(group.rows.iter().copied())?, 0)?;
        let before = stacked(before, group)?.reshape((count, kernel - 1, channels))?;
        let padded = Array::cat(&[before, inputs.reshape((count, length, channels))?], 1)?;
        let product = |step: usize| padded.narrow(1, step, length)?.broadcast_mul(&weight.narrow(0, step, 1)?);
        let mut sum = product(0)?;
        for step in 1..kernel {
            sum = (sum + product(step)?)?;
        }
        if let Some(bias) = &conv.bias {
            sum = sum.broadcast_add(bias)?;
        }
        outputs.push(sum.reshape((count * length, channels))?);
        let last = padded.narrow(1, length, kernel - 1)?;
        for (place, text) in group.texts.iter().enumerate() {
            if let Some(after) = after.get_mut(*text) {
                *after = last.get(place)?.force_contiguous()?.flatten_all()?;
            }
        }
    }
    Ok((ungrouped(candle, &groups, &outputs)?, after))
}

impl Recurrent for Candle {
    type StateArena = CandleStateArena;

    fn new_state_arena(&self, parts: &[usize]) -> CandleStateArena {
        CandleStateArena { device: self.device().clone(), parts: parts.to_vec(), blocks: Blocks::default() }
    }

    fn causal_conv(
        &self,
        conv: &CausalConv<Self>,
        StatePart { arena, part, sequences }: StatePart<'_, Self>,
        x: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        let texts: Vec<_> = sequences.iter().map(RecurrentRow::tokens).collect();
        checks::causal_conv(conv.channels, texts.iter().cloned(), x)?;
        let before = arena.read(part, sequences, conv.state_len())?;
        let (outputs, after) = convolve(self, conv, &texts, &before, &x.data)?;
        arena.write(part, sequences, after)?;
        let out = tensor_like(x, x.channels, &outputs)?;
        self.pause()?;
        Ok(out)
    }

    fn delta_rule(
        &self,
        rule: &DeltaRule<Self>,
        states: StatePart<'_, Self>,
        inputs: DeltaRuleInputs<'_, Self>,
    ) -> Result<Tensor<Self>> {
        let texts: Vec<_> = states.sequences.iter().map(RecurrentRow::tokens).collect();
        checks::recurrence(&rule.shape, texts.iter().cloned(), &inputs.qkv, &[inputs.a, inputs.b])?;
        let heads = recurrence::delta_rule_inputs(self, rule, &inputs)?;
        let outputs = self.recurrence(&rule.shape, states, &texts, &heads)?;
        tensor_like(&inputs.qkv, rule.shape.values_len(), &outputs)
    }

    fn state_space(
        &self,
        space: &StateSpace<Self>,
        states: StatePart<'_, Self>,
        inputs: StateSpaceInputs<'_, Self>,
    ) -> Result<Tensor<Self>> {
        let texts: Vec<_> = states.sequences.iter().map(RecurrentRow::tokens).collect();
        checks::recurrence(&space.shape, texts.iter().cloned(), inputs.xbc, &[inputs.steps])?;
        let heads = recurrence::state_space_inputs(self, space, &inputs)?;
        let outputs = self.recurrence(&space.shape, states, &texts, &heads)?;
        with_skip(space, &inputs, &outputs)
    }

    fn recurrence_bytes(&self, shape: &RecurrenceShape, tokens: usize, sequences: usize) -> usize {
        recurrence::bytes(shape, tokens, sequences)
    }
}

impl Candle {
    /// The convolution of whole texts, differentiable. `texts` are the rows of each text.
    pub(crate) fn text_causal_conv(
        &self,
        conv: &CausalConv<Self>,
        texts: &[Range<usize>],
        x: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        checks::causal_conv(conv.channels, texts.iter().cloned(), x)?;
        let before = self.zero_states(texts.len(), conv.state_len())?;
        let (outputs, _) = convolve(self, conv, texts, &before, &x.data)?;
        tensor_like(x, x.channels, &outputs)
    }

    /// The gated delta rule over whole texts, differentiable. `texts` are the rows of each text.
    pub(crate) fn text_delta_rule(
        &self,
        rule: &DeltaRule<Self>,
        texts: &[Range<usize>],
        inputs: &DeltaRuleInputs<'_, Self>,
    ) -> Result<Tensor<Self>> {
        checks::recurrence(&rule.shape, texts.iter().cloned(), &inputs.qkv, &[inputs.a, inputs.b])?;
        let before = self.zero_states(texts.len(), rule.shape.state_len())?;
        let heads = recurrence::delta_rule_inputs(self, rule, inputs)?;
        let (outputs, _) = recurrence::compute(self, &rule.shape, texts, &before, &heads)?;
        tensor_like(&inputs.qkv, rule.shape.values_len(), &outputs)
    }

    /// A state space over whole texts, differentiable. `texts` are the rows of each text.
    pub(crate) fn text_state_space(
        &self,
        space: &StateSpace<Self>,
        texts: &[Range<usize>],
        inputs: &StateSpaceInputs<'_, Self>,
    ) -> Result<Tensor<Self>> {
        checks::recurrence(&space.shape, texts.iter().cloned(), inputs.xbc, &[inputs.steps])?;
        let before = self.zero_states(texts.len(), space.shape.state_len())?;
        let heads = recurrence::state_space_inputs(self, space, inputs)?;
        let (outputs, _) = recurrence::compute(self, &space.shape, texts, &before, &heads)?;
        with_skip(space, inputs, &outputs)
    }

    /// Computes from the states of the sequences, and writes the new ones: `[tokens, values_len]`.
    fn recurrence(
        &self,
        shape: &RecurrenceShape,
        StatePart { arena, part, sequences }: StatePart<'_, Self>,
        texts: &[Range<usize>],
        heads: &HeadInputs,
    ) -> Result<Array> {
        let before = arena.read(part, sequences, shape.state_len())?;
        let (outputs, after) = recurrence::compute(self, shape, texts, &before, heads)?;
        arena.write(part, sequences, after)?;
        self.pause()?;
        Ok(outputs)
    }

    fn zero_states(&self, texts: usize, length: usize) -> Result<Vec<Array>> {
        let zeros = Array::zeros(length, ArrayType::F32, self.device())?;
        Ok(vec![zeros; texts])
    }
}

/// `outputs + skip · x`
fn with_skip(
    StateSpace { shape, skip, .. }: &StateSpace<Candle>,
    inputs: &StateSpaceInputs<'_, Candle>,
    outputs: &Array,
) -> Result<Tensor<Candle>> {
    let (tokens, values_len) = outputs.dims2()?;
    let x = inputs.xbc.data.narrow(1, 0, values_len)?.contiguous()?;
    let skipped = x.reshape((tokens, shape.value_heads, shape.value_width))?.broadcast_mul(&skip.unsqueeze(1)?)?;
    tensor_like(inputs.xbc, values_len, &(outputs + skipped.reshape((tokens, values_len))?)?)
}
