//! Attention over the KV cache, which language models, text encoders and decoders of speech need.

use std::fmt;

use super::interface::{Backend, Tensor};
use super::types::AttentionShape;
use crate::error::Result;
use crate::kv::{KvArena, KvShape, SequenceSlice};

/// A device that keeps keys and values in the blocks of an arena.
pub trait PagedAttention: Backend {
    type KvArena: KvArena;
    /// A batch of sequences whose keys and values are in an arena; see [`PagedAttention::batch`].
    type Batch: fmt::Debug + Send + Sync;

    /// True if an arena gives the memory of released blocks back. Otherwise its memory is that of the most blocks that were ever
    /// in use, so layers with a window must share their blocks with the others: the arenas of several groups would reach their
    /// peaks at different times, and take more than the blocks that are counted.
    const RELEASES_KV_BLOCKS: bool;

    fn new_kv_arena(&self, shape: KvShape) -> Self::KvArena;

    /// Prepares a batch. All layers of a step share the result, and so may steps with the same sequences.
    ///
    /// # Errors
    /// If a sequence has fewer blocks than positions.
    fn batch(&self, sequences: Vec<SequenceSlice>) -> Result<Self::Batch>;

    /// Writes the keys and values of the batch's tokens, `[1, tokens, 1, kv_heads · head_width]`.
    ///
    /// # Errors
    /// If a block has no memory; nothing is written then.
    fn write_kv(
        &self,
        arena: &mut Self::KvArena,
        layer: usize,
        batch: &Self::Batch,
        kv: [&Tensor<Self>; 2],
    ) -> Result<()>;

    /// Attention of the batch's tokens. The blocks must already hold the keys and values of the tokens themselves. Queries
    /// and result: `[1, tokens, 1, heads · head_width]`. `sinks`, `[heads]`: a score of each head that joins the sum of the
    /// softmax, and has no value.
    fn kv_attention(
        &self,
        arena: &Self::KvArena,
        layer: usize,
        batch: &Self::Batch,
        shape: &AttentionShape,
        sinks: Option<&Self::Vector>,
        q: &Tensor<Self>,
    ) -> Result<Tensor<Self>>;

    /// The weights with which `heads` of the tokens of one sequence attend to all its positions, on the host: `[heads, tokens,
    /// positions]`. `shape` has neither a causal mask nor a window.
    ///
    /// # Errors
    /// If the batch does not have exactly one sequence.
    fn kv_attention_weights(
        &self,
        arena: &Self::KvArena,
        layer: usize,
        batch: &Self::Batch,
        shape: &AttentionShape,
        q: &Tensor<Self>,
        heads: &[usize],
    ) -> Result<Vec<f32>>;

    /// An upper bound of the temporary bytes of [`Self::kv_attention`] for `tokens` tokens in total, in sequences of up to
    /// `positions` positions.
    fn kv_attention_bytes(&self, shape: &AttentionShape, tokens: usize, positions: usize) -> usize;
}
