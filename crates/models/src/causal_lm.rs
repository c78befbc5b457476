//! The interface of causal language models.

use std::fmt;

use super::backend::Pool;
use super::error::Result;
use super::kv::{BlockId, KvType};
use super::peft::{LoadedAdapter, PeftAdapter};
use super::state_arenas::StateArenas;
use super::state_layout::{StateGroup, StateUpdate};
use super::weights::Footprint;

/// A network that predicts the next token. All sequences share it.
pub trait CausalLm: fmt::Debug + Send + Sync {
    /// The size of the vocabulary; token IDs are smaller.
    fn vocabulary(&self) -> usize;

    /// The maximum length of a sequence, in positions.
    fn context(&self) -> usize;

    /// Elements of the embedding of a token.
    fn width(&self) -> usize;

    /// The threads of the host.
    fn pool(&self) -> &Pool;

    /// What it keeps of a sequence.
    fn state_groups(&self, kv_type: KvType) -> Vec<StateGroup>;

    /// Empty arenas for what it keeps of sequences.
    fn new_arenas(&self, kv_type: KvType) -> StateArenas;

    /// Whether a sequence of at most `limit` positions uses the frequencies for long contexts. LongRoPE has two sets of
    /// frequencies. A sequence uses one of them for all its positions, and sequences with different sets cannot share KV
    /// blocks.
    fn is_long(&self, limit: usize) -> bool;

    /// The memory that an adapter takes.
    ///
    /// # Errors
    /// If the adapter does not fit the network.
    fn adapter_footprint(&self, adapter: &PeftAdapter) -> Result<Footprint>;

    /// Reads the weights of an adapter.
    ///
    /// # Errors
    /// If the adapter does not fit the network, or is damaged.
    fn load_adapter(&self, adapter: &PeftAdapter) -> Result<LoadedAdapter>;

    /// Computes one step for all rows, and writes the keys and values of their tokens and the states of recurrent layers to
    /// `arenas`. Other contents of the arenas do not change, even after an error.
    ///
    /// # Errors
    /// If a row has no tokens, a token is not in the vocabulary, embeddings do not fit, an adapter is of another network, or a
    /// block has no memory.
    fn forward(&self, rows: &[BatchRow<'_>], arenas: &mut StateArenas) -> Result<Logits>;

    /// The cost of a draft token of its own layer for multi-token prediction, relative to a token of the network, as sizes suggest.
    /// `None`: it has no such layer.
    fn mtp_cost(&self) -> Option<f64>;

    /// Predicts the token after each row, which has one token, with the layer for multi-token prediction. The hidden states of the
    /// result are those of that layer, with which it can continue. Writes the keys and values of the layer at the positions of the rows;
    /// [`Self::forward`] writes them again when it computes the tokens.
    ///
    /// # Errors
    /// As for [`Self::forward`], and if there is no such layer.
    fn draft(&self, rows: &[BatchRow<'_>], arenas: &mut StateArenas) -> Result<Logits>;

    /// Returns the memory of logits for reuse in the next step.
    fn reuse(&self, logits: Logits);
}

/// The tokens of one sequence in a step.
#[derive(Clone, Copy, Debug)]
pub struct BatchRow<'a> {
    pub tokens: &'a [u32],
    /// Tokens whose embeddings are not those of the network's table.
    pub embedded: &'a [EmbeddedTokens<'a>],
    /// Position of the first token. The blocks hold the keys and values of all earlier positions that it sees.
    pub start: usize,
    /// The block table of each group of attention, or one for all of them: blocks of all positions up to the last token. No
    /// other row may use the blocks of the tokens themselves. In a group with a window, any block may stand for those that no
    /// token sees.
    pub tables: &'a [Vec<BlockId>],
    /// The states of recurrent layers; `None` if there are no such layers. No other row may use the block that is written.
    pub state: Option<StateUpdate>,
    pub logits: LogitsAt,
    /// Whether the sequence uses the frequencies for long contexts; see [`CausalLm::is_long`].
    pub long: bool,
    /// The adapter that is added to the network. Rows with the same adapter are computed together if they are neighbours.
    pub adapter: Option<&'a LoadedAdapter>,
    /// The hidden state at the position before `start`, `[width]`, if it is known. Only a layer for multi-token prediction needs it.
    pub hidden: Option<&'a [f32]>,
}

/// Consecutive tokens with embeddings of their own, such as the patches of an image.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddedTokens<'a> {
    /// Index of the first token in the row.
    pub first: usize,
    pub count: usize,
    /// `[count, width]`: the input of the first layer, already scaled.
    pub embeddings: &'a [f32],
}

/// The tokens of a row for which logits are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitsAt {
    None,
    Last,
    All,
}

/// The logits of a step.
#[derive(Debug, Default)]
pub struct Logits {
    /// `[sum of counts, vocabulary]`, and undefined values after them.
    pub(super) values: Vec<f32>,
    pub(super) vocabulary: usize,
    /// The number of tokens with logits in each row of the step.
    pub(super) counts: Vec<usize>,
    /// See [`Self::take_hidden`].
    pub(super) hidden: Vec<Vec<f32>>,
}

impl Logits {
    /// Takes the hidden states of each row, `[tokens, width]`: of the tokens with logits, or of the last one if there are none. There are
    /// no rows if the network has no layer for multi-token prediction.
    pub fn take_hidden(&mut self) -> Vec<Vec<f32>> {
        std::mem::take(&mut self.hidden)
    }

    /// The logits of each row's tokens, `[vocabulary]` each.
    pub fn rows(&mut self) -> Vec<Vec<&mut [f32]>> {
        let mut logits = self.values.chunks_exact_mut(self.vocabulary.max(1));
        self.counts.iter().map(|count| logits.by_ref().take(*count).collect()).collect()
    }
}
