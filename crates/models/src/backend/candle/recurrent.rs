//! Recurrent layers. Each part of a block of states is a tensor of its own, so that released blocks give their memory back.

use std::collections::BTreeMap;
use std::ops::Range;

use candle_core::{DType as ArrayType, Device, Tensor as Array};

use super::device::{Candle, tensor_like};
use crate::backend::checks;
use crate::backend::interface::{Backend, Tensor};
use crate::backend::recurrent::{CausalConv, Recurrent, SequenceStates, StatePart, missing_state};
use crate::block_arena::{BlockArena, BlockId};
use crate::error::Result;

/// The states of recurrent layers, in blocks.
#[derive(Debug)]
pub struct CandleStateArena {
    device: Device,
    /// Elements of each part.
    parts: Vec<usize>,
    blocks: Vec<Option<Vec<Array>>>,
}

impl CandleStateArena {
    /// A part of a block: `[elements]`.
    fn part(&mut self, part: usize, id: BlockId) -> Result<&mut Array> {
        let block = self.blocks.get_mut(id as usize).and_then(Option::as_mut);
        block.and_then(|block| block.get_mut(part)).ok_or_else(|| missing_state(id))
    }
}

impl BlockArena for CandleStateArena {
    fn block_bytes(&self) -> u64 {
        (self.parts.iter().sum::<usize>() * size_of::<f32>()) as u64
    }

    fn ensure(&mut self, id: BlockId) -> Result<()> {
        let index = id as usize;
        if index >= self.blocks.len() {
            self.blocks.resize_with(index + 1, || None);
        }
        if let Some(slot @ None) = self.blocks.get_mut(index) {
            let zeros = |len: &usize| Array::zeros(*len, ArrayType::F32, &self.device);
            *slot = Some(self.parts.iter().map(zeros).collect::<candle_core::Result<_>>()?);
        }
        Ok(())
    }

    fn release(&mut self, id: BlockId) {
        if let Some(slot) = self.blocks.get_mut(id as usize) {
            *slot = None;
        }
    }

    fn len(&self) -> usize {
        self.blocks.iter().flatten().count()
    }
}

/// The tokens of a sequence, and its inputs before them: `[kernel − 1, channels]`.
struct Text {
    tokens: Range<usize>,
    before: Array,
}

/// Convolves texts, those of the same length at once. Returns the outputs, `[tokens, channels]`, and the last inputs of each
/// text, `[kernel − 1, channels]`, if they are `kept`.
fn convolve(
    candle: &Candle,
    conv: &CausalConv<Candle>,
    texts: &[Text],
    x: &Array,
    kept: bool,
) -> Result<(Array, Vec<Array>)> {
    let CausalConv { kernel, channels, .. } = *conv;
    let weight = conv.weight.reshape((kernel, channels))?;
    let mut by_length: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    texts.iter().enumerate().for_each(|(index, text)| by_length.entry(text.tokens.len()).or_default().push(index));
    let (mut outputs, mut order, mut last) = (Vec::new(), Vec::new(), Vec::new());
    for (length, indices) in by_length {
        let group = || indices.iter().filter_map(|index| texts.get(*index));
        let rows: Vec<usize> = group().flat_map(|text| text.tokens.clone()).collect();
        let inputs = x.index_select(&candle.row_indices(rows.iter().copied())?, 0)?;
        let inputs = inputs.reshape((indices.len(), length, channels))?;
        let before = Array::stack(&group().map(|text| &text.before).collect::<Vec<_>>(), 0)?;
        let padded = Array::cat(&[&before, &inputs], 1)?;
        let product = |step: usize| padded.narrow(1, step, length)?.broadcast_mul(&weight.narrow(0, step, 1)?);
        let mut sum = product(0)?;
        for step in 1..kernel {
            sum = (sum + product(step)?)?;
        }
        if let Some(bias) = &conv.bias {
            sum = sum.broadcast_add(bias)?;
        }
        outputs.push(sum.reshape((rows.len(), channels))?);
        order.extend(rows);
        if kept {
            let tails = padded.narrow(1, length, kernel - 1)?;
            for (place, index) in indices.iter().enumerate() {
                last.push((*index, tails.get(place)?.force_contiguous()?));
            }
        }
    }
    last.sort_by_key(|(index, _)| *index);
    let last = last.into_iter().map(|(_, inputs)| inputs).collect();
    let outputs = Array::cat(&outputs, 0)?;
    if order.is_sorted() {
        return Ok((outputs, last));
    }
    let mut places: Vec<usize> = (0..order.len()).collect();
    places.sort_by_key(|place| order.get(*place));
    Ok((outputs.index_select(&candle.row_indices(places.into_iter())?, 0)?, last))
}

impl Recurrent for Candle {
    type StateArena = CandleStateArena;

    fn new_state_arena(&self, parts: &[usize]) -> CandleStateArena {
        CandleStateArena { device: self.device().clone(), parts: parts.to_vec(), blocks: Vec::new() }
    }

    fn causal_conv(
        &self,
        conv: &CausalConv<Self>,
        StatePart { arena, part, sequences }: StatePart<'_, Self>,
        x: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        checks::causal_conv(conv.channels, sequences.iter().map(SequenceStates::tokens), x)?;
        let mut texts = Vec::with_capacity(sequences.len());
        for sequence in sequences {
            let write = sequence.update.write;
            if arena.part(part, write)?.elem_count() != conv.state_len() {
                return Err(missing_state(write));
            }
            let before = match sequence.update.read {
                Some(read) => arena.part(part, read)?.clone(),
                None => Array::zeros(conv.state_len(), ArrayType::F32, self.device())?,
            };
            let before = before.reshape((conv.kernel - 1, conv.channels))?;
            texts.push(Text { tokens: sequence.tokens(), before });
        }
        let (outputs, last) = convolve(self, conv, &texts, &x.data, true)?;
        for (sequence, inputs) in sequences.iter().zip(last) {
            *arena.part(part, sequence.update.write)? = inputs.flatten_all()?.detach();
        }
        let out = tensor_like(x, x.channels, &outputs)?;
        self.pause()?;
        Ok(out)
    }
}

impl Candle {
    /// The convolution of whole texts, which keeps gradients. `texts` are the rows of each text.
    pub(crate) fn text_causal_conv(
        &self,
        conv: &CausalConv<Self>,
        texts: &[Range<usize>],
        x: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        checks::causal_conv(conv.channels, texts.iter().cloned(), x)?;
        let before = Array::zeros((conv.kernel - 1, conv.channels), ArrayType::F32, self.device())?;
        let text = |tokens: &Range<usize>| Text { tokens: tokens.clone(), before: before.clone() };
        let texts: Vec<Text> = texts.iter().map(text).collect();
        let (outputs, _) = convolve(self, conv, &texts, &x.data, false)?;
        tensor_like(x, x.channels, &outputs)
    }
}
