//! Recurrent layers, in which a state of fixed size stands for all earlier tokens.

use std::ops::Range;

use super::interface::{Backend, Tensor};
use super::paged_attention::PagedAttention;
use super::types::RecurrenceShape;
use crate::block_arena::{BlockArena, BlockId};
use crate::error::{ModelError, Result};
use crate::state_layout::StateUpdate;

/// A device that keeps states of recurrent layers beside keys and values.
pub trait Recurrent: PagedAttention {
    /// Blocks of states, each of which has a part for every recurrent layer.
    type StateArena: BlockArena;

    /// `parts`: elements of each part.
    fn new_state_arena(&self, parts: &[usize]) -> Self::StateArena;

    /// Convolves the tokens of each sequence. The state of a sequence is its last `kernel − 1` inputs,
    /// `[kernel − 1, channels]`. `x` and the result are `[1, tokens, 1, channels]`.
    ///
    /// # Errors
    /// If a block has no memory, or sizes do not fit; nothing is written then.
    fn causal_conv(
        &self,
        conv: &CausalConv<Self>,
        states: StatePart<'_, Self>,
        x: &Tensor<Self>,
    ) -> Result<Tensor<Self>>;

    /// The gated delta rule over the tokens of each sequence: `[1, tokens, 1, values_len]`. The state of a sequence has
    /// [`RecurrenceShape::state_len`] elements, in an order that the device chooses.
    ///
    /// # Errors
    /// If a block has no memory, or sizes do not fit; nothing is written then.
    fn delta_rule(
        &self,
        rule: &DeltaRule<Self>,
        states: StatePart<'_, Self>,
        inputs: DeltaRuleInputs<'_, Self>,
    ) -> Result<Tensor<Self>>;

    /// A state space with one decay for each head over the tokens of each sequence: `[1, tokens, 1, values_len]`. States and errors
    /// are those of [`Self::delta_rule`].
    fn state_space(
        &self,
        space: &StateSpace<Self>,
        states: StatePart<'_, Self>,
        inputs: StateSpaceInputs<'_, Self>,
    ) -> Result<Tensor<Self>>;

    /// An upper bound of the temporary bytes of [`Self::delta_rule`] and [`Self::state_space`] for `tokens` tokens in total, in `sequences` sequences.
    fn recurrence_bytes(&self, shape: &RecurrenceShape, tokens: usize, sequences: usize) -> usize;
}

/// A convolution of each channel over a token and those before it: `out[t] = bias + Σ weight[i] · x[t − (kernel − 1) + i]`.
#[derive(Debug)]
pub struct CausalConv<B: Backend> {
    /// `[kernel, channels]`; the last row is the weight of the token itself.
    pub weight: B::Vector,
    pub bias: Option<B::Vector>,
    /// Tokens that an output depends on.
    pub kernel: usize,
    pub channels: usize,
}

impl<B: Backend> CausalConv<B> {
    /// Elements of a sequence's state.
    pub fn state_len(&self) -> usize {
        (self.kernel - 1) * self.channels
    }
}

/// The gated delta rule (Yang et al. 2024, <https://arxiv.org/abs/2412.06464>). The state of each head of values is a matrix
/// `S`, which a token changes to `factor · S + k ⊗ weight · (v − factor · Sᵀk)`; its output is `Sᵀq`. Queries are scaled to the
/// length `1 / √key_width`, and keys to the length 1.
#[derive(Debug)]
pub struct DeltaRule<B: Backend> {
    pub shape: RecurrenceShape,
    /// `[value_heads]`, not positive. The factor of the state is `exp(decay · softplus(a + bias))`.
    pub decay: B::Vector,
    /// `[value_heads]`
    pub bias: B::Vector,
}

/// What the gated delta rule computes with, for each token of a batch.
#[derive(Debug)]
pub struct DeltaRuleInputs<'a, B: Backend> {
    /// Queries, keys and values: `[1, tokens, 1, inputs_len]`.
    pub qkv: Tensor<B>,
    /// `[1, tokens, 1, value_heads]`
    pub a: &'a Tensor<B>,
    /// The weight of an update is `sigmoid(b)`: `[1, tokens, 1, value_heads]`.
    pub b: &'a Tensor<B>,
}

/// A state space of Mamba-2 (Dao and Gu 2024, <https://arxiv.org/abs/2405.21060>). The state of each head is a matrix `S`, which a
/// token with the step `Δ = softplus(step + bias)` changes to `exp(decay · Δ) · S + B ⊗ Δ · x`; its output is `SᵀC + skip · x`. B, x
/// and C have the places of keys, values and queries in the shape.
#[derive(Debug)]
pub struct StateSpace<B: Backend> {
    pub shape: RecurrenceShape,
    /// `[value_heads]`, not positive.
    pub decay: B::Vector,
    /// `[value_heads]`
    pub bias: B::Vector,
    /// `[value_heads]`
    pub skip: B::Vector,
}

/// What a state space computes with, for each token of a batch.
#[derive(Debug)]
pub struct StateSpaceInputs<'a, B: Backend> {
    /// x, B and C: `[1, tokens, 1, inputs_len]`.
    pub xbc: &'a Tensor<B>,
    /// `[1, tokens, 1, value_heads]`
    pub steps: &'a Tensor<B>,
}

/// One part of the states of a batch's sequences.
#[derive(Debug)]
pub struct StatePart<'a, B: Recurrent> {
    pub arena: &'a mut B::StateArena,
    pub part: usize,
    pub sequences: &'a [RecurrentRow],
}

/// Tokens of one sequence in a batch, and its states.
#[derive(Clone, Copy, Debug)]
pub struct RecurrentRow {
    /// Index of the first token in the batch.
    pub offset: usize,
    pub count: usize,
    pub update: StateUpdate,
}

impl<B: Recurrent> StatePart<'_, B> {
    /// The part that comes `parts` parts after this one.
    pub fn part_after(&mut self, parts: usize) -> StatePart<'_, B> {
        StatePart { arena: self.arena, part: self.part + parts, sequences: self.sequences }
    }
}

impl RecurrentRow {
    pub(super) fn tokens(&self) -> Range<usize> {
        self.offset..self.offset + self.count
    }
}

/// The error for a block of states that has no memory, or another size.
pub(super) fn missing_state(id: BlockId) -> ModelError {
    ModelError::Compute(format!("block {id} of recurrent states has no memory, or parts of other sizes"))
}
