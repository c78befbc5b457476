//! The input of a draft model before a step is planned: the tokens of a decoding sequence, and blocks for the
//! positions after them.

use super::{ModelId, Scheduler, Sequence, SequenceId, SequenceTokens};
use outpost_models::kv::{BLOCK, BlockId, blocks_for};

/// A decoding sequence whose next tokens can be drafted.
#[derive(Clone, Debug)]
pub struct DraftContext {
    /// The prompt and the generated tokens.
    pub tokens: SequenceTokens,
    /// Blocks of the positions of `tokens`, as far as they are allocated.
    pub blocks: Vec<BlockId>,
    /// Tokens that may still be generated.
    pub left: u32,
    pub long: bool,
}

impl Scheduler {
    /// Whether the sequence decodes in the next step.
    pub fn is_decoding(&self, id: SequenceId) -> bool {
        self.sequences.get(&id).is_some_and(Sequence::is_decoding)
    }

    /// A copy of the sequence's context, if it decodes in the next step.
    pub fn draft_context(&self, id: SequenceId) -> Option<DraftContext> {
        let one = self.sequences.get(&id).filter(|one| one.is_decoding())?;
        Some(DraftContext { tokens: one.tokens.clone(), blocks: one.blocks.clone(), left: one.left, long: one.long })
    }

    /// Allocates blocks for the sequence's tokens and up to `max_tokens` positions after them, within `max_bytes` bytes
    /// in total. May evict cached blocks but never preempts. Returns how many of the positions have blocks, and the
    /// sequence's blocks.
    pub fn reserve_lookahead(&mut self, id: SequenceId, max_tokens: usize, max_bytes: u64) -> (usize, &[BlockId]) {
        while let Some(one) = self.sequences.get(&id).filter(|one| one.is_decoding()) {
            let (length, blocks, model) = (one.tokens.len(), one.blocks.len(), one.model);
            let is_complete = blocks >= blocks_for(length + max_tokens);
            if is_complete || !self.take_block(id, model, max_bytes) && !self.evict() {
                let reserved = max_tokens.min((blocks * BLOCK).saturating_sub(length));
                return (reserved, &self.sequences[&id].blocks);
            }
        }
        (0, &[])
    }

    /// Takes the blocks that became free since the last call or plan. Their contents are invalid.
    pub fn take_released(&mut self) -> Vec<(ModelId, BlockId)> {
        std::mem::take(&mut self.released)
    }

    /// Sets the bytes of one block of the model.
    pub fn set_block_bytes(&mut self, model: ModelId, block_bytes: u64) {
        if let Some(model) = self.models.get_mut(&model) {
            model.block_bytes = block_bytes;
        }
    }
}

impl Sequence {
    /// Whether the next step computes its newest token.
    pub(super) fn is_decoding(&self) -> bool {
        self.is_running() && !self.paused && self.pending() == 1
    }
}
