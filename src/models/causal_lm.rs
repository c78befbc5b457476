//! The interface of causal language models: what text generation needs of a network.

use std::fmt;

use super::error::Result;
use super::kv::{BlockId, KvArena, KvShape, KvType};
use super::scratch::Cpu;

/// A network that predicts the next token, shared by all sequences.
pub trait CausalLm: fmt::Debug + Send + Sync {
    /// Rows of the logits; token IDs are below this.
    fn vocabulary(&self) -> usize;

    /// The longest sequence, in positions.
    fn context(&self) -> usize;

    /// The CPU state that computes it.
    fn cpu(&self) -> &Cpu;

    /// The layout of its keys and values.
    fn kv_shape(&self, kv_type: KvType) -> KvShape;

    /// Whether a sequence of at most `limit` positions is computed as a long one. LongRoPE rotates long sequences
    /// with other frequencies, so a sequence keeps its choice, and the two kinds cannot share KV blocks.
    fn is_long(&self, limit: usize) -> bool;

    /// Computes one step for all rows and writes the keys and values of their tokens to `arena`. Nothing else in the
    /// arena changes, even on an error.
    ///
    /// # Errors
    /// A row without tokens, a token outside the vocabulary, or a KV block without memory.
    fn forward(&self, rows: &[BatchRow<'_>], arena: &mut KvArena) -> Result<Logits>;

    /// Takes back the logits of [`Self::forward`], so that the next step reuses their memory.
    fn reuse(&self, logits: Logits);
}

/// One sequence's part of a step: its next tokens, where they stand, and where its past is.
#[derive(Clone, Copy, Debug)]
pub struct BatchRow<'a> {
    pub tokens: &'a [u32],
    /// Position of the first of them: so many are in the blocks already.
    pub start: usize,
    /// Blocks of all positions up to the last of `tokens`. Those that the tokens fall into belong to
    /// this row alone.
    pub blocks: &'a [BlockId],
    pub logits: LogitsAt,
    /// Whether its sequence is a long one, from its first token to its last: see [`CausalLm::is_long`].
    pub long: bool,
}

/// Which distributions of a row are wanted: each is the one after a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitsAt {
    None,
    Last,
    All,
}

/// The distributions that a step's rows wanted: logits, `[vocabulary]` each.
#[derive(Debug, Default)]
pub struct Logits {
    pub(super) values: Vec<f32>,
    pub(super) vocabulary: usize,
    /// How many each row wanted.
    pub(super) counts: Vec<usize>,
}

impl Logits {
    /// By row, in the order of its tokens.
    pub fn rows(&mut self) -> Vec<Vec<&mut [f32]>> {
        let mut all = self.values.chunks_exact_mut(self.vocabulary.max(1));
        self.counts.iter().map(|count| all.by_ref().take(*count).collect()).collect()
    }
}
