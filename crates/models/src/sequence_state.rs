//! What a model keeps of a single sequence, for callers without a scheduler.

use super::block_arena::BlockId;
use super::error::Result;
use super::kv::blocks_for;
use super::state_arenas::StateArenas;
use super::state_layout::StateUpdate;

/// Arenas with the blocks of one sequence. No position is evicted.
#[derive(Debug)]
pub struct SequenceState {
    pub(super) arenas: StateArenas,
    /// The block table of all groups of attention.
    pub(super) blocks: Vec<BlockId>,
    pub(super) length: usize,
    /// Which of two blocks has the state of recurrent layers. The next step writes the other one.
    recurrent: BlockId,
    /// Whether the sequence uses the frequencies for long contexts; see `CausalLm::is_long`.
    pub long: bool,
}

impl SequenceState {
    /// An empty sequence in empty arenas.
    pub fn new(arenas: StateArenas) -> Self {
        Self { arenas, blocks: Vec::new(), length: 0, recurrent: 0, long: false }
    }

    /// Positions that are stored.
    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Adds blocks for `more` positions after the stored ones, and for the recurrent state after them.
    pub(super) fn reserve(&mut self, more: usize) -> Result<()> {
        for id in self.blocks.len()..blocks_for(self.length + more) {
            self.arenas.ensure_positions(id as BlockId)?;
            self.blocks.push(id as BlockId);
        }
        self.arenas.ensure_state(self.update().write)
    }

    /// The recurrent states of the next step.
    pub(super) fn update(&self) -> StateUpdate {
        StateUpdate { read: (!self.is_empty()).then_some(self.recurrent), write: 1 - self.recurrent }
    }

    /// Adds the positions that a step has computed.
    pub(super) fn advance(&mut self, count: usize) {
        self.recurrent = self.update().write;
        self.length += count;
    }
}
