//! The input of a draft model before a step is planned: the tokens of a decoding sequence, and blocks for the
//! positions after them.

use super::block_pool::{BlockTable, GroupBlock};
use super::{ModelId, Scheduler, Sequence, SequenceId, SequenceTokens};
use outpost_models::kv::{BLOCK, BlockId};
use outpost_models::state_layout::StateGroup;

/// A decoding sequence whose next tokens can be drafted.
#[derive(Clone, Debug)]
pub struct DraftContext {
    /// The prompt and the generated tokens.
    pub tokens: SequenceTokens,
    /// Blocks of the first group for the positions of `tokens`, as far as they are allocated.
    pub blocks: Vec<BlockId>,
    /// Tokens that may still be generated.
    pub left: u32,
    pub long: bool,
}

/// Where the draft of a decoding sequence starts.
#[derive(Clone, Copy, Debug)]
pub struct DraftStart {
    /// The newest token, and its position.
    pub token: u32,
    pub position: usize,
    /// Tokens that may still be generated.
    pub left: u32,
    pub long: bool,
}

impl Scheduler {
    /// True if the sequence decodes in the next step.
    pub fn is_decoding(&self, id: SequenceId) -> bool {
        self.sequences.get(&id).is_some_and(Sequence::is_decoding)
    }

    /// Where a draft of the sequence starts, if it decodes in the next step.
    pub fn draft_start(&self, id: SequenceId) -> Option<DraftStart> {
        let one = self.sequences.get(&id).filter(|one| one.is_decoding())?;
        let position = one.tokens.len().checked_sub(1)?;
        Some(DraftStart { token: one.tokens.get(position)?, position, left: one.left, long: one.long })
    }

    /// A copy of the sequence's context, if it decodes in the next step.
    pub fn draft_context(&self, id: SequenceId) -> Option<DraftContext> {
        let one = self.sequences.get(&id).filter(|one| one.is_decoding())?;
        let (tokens, blocks) = (one.tokens.clone(), one.first_group().to_vec());
        Some(DraftContext { tokens, blocks, left: one.left, long: one.long })
    }

    /// Allocates blocks for the sequence's tokens and up to `max_tokens` positions after them, within `max_bytes` bytes
    /// in total. May evict cached blocks but never preempts. Returns how many of the positions have blocks, and the
    /// sequence's blocks of the first group.
    pub fn reserve_lookahead(&mut self, id: SequenceId, max_tokens: usize, max_bytes: u64) -> (usize, &[BlockId]) {
        while let Some(one) = self.sequences.get(&id).filter(|one| one.is_decoding()) {
            let length = one.tokens.len();
            let incomplete = one.incomplete_group(length + max_tokens);
            if incomplete.is_none_or(|group| !self.take_block(id, group, max_bytes) && !self.evict()) {
                let one = &self.sequences[&id];
                let blocks = one.tables.iter().map(BlockTable::len).min().unwrap_or(0);
                return (max_tokens.min((blocks * BLOCK).saturating_sub(length)), one.first_group());
            }
        }
        (0, &[])
    }

    /// Takes the blocks that became free since the last call or plan. Their contents are invalid.
    pub fn take_released(&mut self) -> Vec<(ModelId, GroupBlock)> {
        std::mem::take(&mut self.released)
    }

    /// Sets the bytes of the model's blocks.
    pub fn set_groups(&mut self, model: ModelId, groups: &[StateGroup]) {
        if let Some(model) = self.models.get_mut(&model) {
            model.pool.set_groups(groups);
        }
    }
}

impl Sequence {
    /// Its blocks of the first group, which has no window.
    fn first_group(&self) -> &[BlockId] {
        self.tables.first().map_or(&[], |table| table.held())
    }

    /// True if the next step computes its newest token, and not its prompt.
    pub(super) fn is_decoding(&self) -> bool {
        self.is_running() && !self.paused && self.pending() == 1
    }
}
