//! Recurrent layers, whose states are in the memory of the host.

use std::ops::Range;

use outpost_kernels as kernels;

use super::device::Cpu;
use crate::backend::checks;
use crate::backend::interface::{Backend, Tensor};
use crate::backend::recurrent::{
    CausalConv, DeltaRule, DeltaRuleInputs, Recurrent, RecurrentRow, StatePart, StateSpace, StateSpaceInputs,
    missing_state,
};
use crate::backend::types::RecurrenceShape;
use crate::block_arena::{BlockArena, BlockId, Blocks, SavedNumber, filled, missing_block};
use crate::error::Result;
use crate::state_layout::StateUpdate;

/// The states of recurrent layers, in blocks.
#[derive(Debug)]
pub struct CpuStateArena {
    /// The elements of each part in a block.
    parts: Vec<Range<usize>>,
    blocks: Blocks<Vec<f32>>,
}

impl CpuStateArena {
    fn new(lengths: &[usize]) -> Self {
        let mut end = 0;
        let mut part = |length: &usize| {
            end += length;
            end - length..end
        };
        Self { parts: lengths.iter().map(&mut part).collect(), blocks: Blocks::default() }
    }

    fn block_len(&self) -> usize {
        self.parts.last().map_or(0, |part| part.end)
    }

    /// Checks that the states of a step have memory, and parts of this length.
    fn check(&mut self, part: usize, sequences: &[RecurrentRow], length: usize) -> Result<()> {
        checks::state_updates(sequences)?;
        for RecurrentRow { update, .. } in sequences {
            let (_, after) = self.part(part, *update)?;
            if after.len() != length {
                return Err(missing_state(update.write));
            }
        }
        Ok(())
    }

    /// A part of the state that a step reads, and of the one that it writes.
    fn part(&mut self, part: usize, update: StateUpdate) -> Result<(Option<&[f32]>, &mut [f32])> {
        let (StateUpdate { read, write }, range) = (update, self.parts.get(part).cloned());
        let range = range.ok_or_else(|| missing_state(write))?;
        let (before, after) = match read {
            Some(read) => {
                let (before, after) = self.blocks.get_pair(read, write);
                (Some(before.ok_or_else(|| missing_state(read))?), after)
            }
            None => (None, self.blocks.get_mut(write)),
        };
        let after = after.ok_or_else(|| missing_state(write))?;
        Ok((before.map(|block| &block[range.clone()]), &mut after[range]))
    }
}

impl BlockArena for CpuStateArena {
    fn block_bytes(&self) -> u64 {
        (self.block_len() * size_of::<f32>()) as u64
    }

    fn ensure(&mut self, id: BlockId) -> Result<()> {
        let len = self.block_len();
        self.blocks.ensure(id, || Ok(vec![0.; len]))
    }

    fn release(&mut self, id: BlockId) {
        drop(self.blocks.take(id));
    }

    fn save(&self, id: BlockId, bytes: &mut Vec<u8>) -> Result<()> {
        f32::append(self.blocks.get(id).ok_or_else(|| missing_block(id))?, bytes);
        Ok(())
    }

    fn load(&mut self, id: BlockId, bytes: &[u8]) -> Result<()> {
        let block = self.blocks.get_mut(id).ok_or_else(|| missing_block(id))?;
        filled(id, f32::fill(block, bytes))
    }

    fn len(&self) -> usize {
        self.blocks.len()
    }
}

impl Recurrent for Cpu {
    type StateArena = CpuStateArena;

    fn new_state_arena(&self, parts: &[usize]) -> CpuStateArena {
        CpuStateArena::new(parts)
    }

    fn causal_conv(
        &self,
        conv: &CausalConv<Self>,
        StatePart { arena, part, sequences }: StatePart<'_, Self>,
        x: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        let channels = conv.channels;
        checks::causal_conv(channels, sequences.iter().map(RecurrentRow::tokens), x)?;
        arena.check(part, sequences, conv.state_len())?;
        let kernel = kernels::CausalConv { weight: &conv.weight, bias: conv.bias.as_deref(), channels };
        let mut out = self.alloc(x.shape());
        for sequence in sequences {
            let range = sequence.offset * channels..(sequence.offset + sequence.count) * channels;
            let (before, after) = arena.part(part, sequence.update)?;
            let x = &x.data()[range.clone()];
            kernel.forward(&self.pool, before, x, &mut out.data_mut()[range]);
            kernel.last_inputs(before, x, after);
        }
        self.pause()?;
        Ok(out)
    }

    fn delta_rule(
        &self,
        DeltaRule { shape, decay, bias }: &DeltaRule<Self>,
        states: StatePart<'_, Self>,
        DeltaRuleInputs { mut qkv, a, b }: DeltaRuleInputs<'_, Self>,
    ) -> Result<Tensor<Self>> {
        checks::recurrence(shape, states.sequences.iter().map(RecurrentRow::tokens), &qkv, &[a, b])?;
        states.arena.check(states.part, states.sequences, shape.state_len())?;
        kernels::normalise_queries_and_keys(&self.pool, shape, qkv.data_mut());
        let mut gates = self.alloc_like(a, 2 * shape.value_heads);
        kernels::delta_rule_gates(&self.pool, [decay, bias], [a.data(), b.data()], gates.data_mut());
        self.recurrence(kernels::Recurrence::DeltaRule, shape, states, &qkv, &gates)
    }

    fn state_space(
        &self,
        StateSpace { shape, decay, bias, skip }: &StateSpace<Self>,
        states: StatePart<'_, Self>,
        StateSpaceInputs { xbc, steps }: StateSpaceInputs<'_, Self>,
    ) -> Result<Tensor<Self>> {
        checks::recurrence(shape, states.sequences.iter().map(RecurrentRow::tokens), xbc, &[steps])?;
        states.arena.check(states.part, states.sequences, shape.state_len())?;
        let mut gates = self.alloc_like(steps, 2 * shape.value_heads);
        kernels::state_space_gates(&self.pool, [decay, bias], steps.data(), gates.data_mut());
        self.recurrence(kernels::Recurrence::StateSpace { skip }, shape, states, xbc, &gates)
    }

    /// The gates.
    fn recurrence_bytes(&self, shape: &RecurrenceShape, tokens: usize, _: usize) -> usize {
        2 * tokens * shape.value_heads * size_of::<f32>()
    }
}

impl Cpu {
    /// Computes sequence by sequence. The inputs and states were checked.
    fn recurrence(
        &self,
        rule: kernels::Recurrence<'_>,
        shape: &RecurrenceShape,
        StatePart { arena, part, sequences }: StatePart<'_, Self>,
        inputs: &Tensor<Self>,
        gates: &Tensor<Self>,
    ) -> Result<Tensor<Self>> {
        let mut out = self.alloc_like(inputs, shape.values_len());
        let rows = |tokens: &Range<usize>, len: usize| tokens.start * len..tokens.end * len;
        for sequence in sequences {
            let tokens = sequence.tokens();
            let (before, after) = arena.part(part, sequence.update)?;
            let inputs = kernels::RecurrenceInputs {
                qkv: &inputs.data()[rows(&tokens, shape.inputs_len())],
                gates: &gates.data()[rows(&tokens, 2 * shape.value_heads)],
            };
            let out = &mut out.data_mut()[rows(&tokens, shape.values_len())];
            kernels::recurrence(&self.pool, rule, shape, before, &inputs, after, out);
        }
        self.pause()?;
        Ok(out)
    }
}
