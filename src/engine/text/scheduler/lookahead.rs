//! What guessing with a second network needs before a step is planned: the text of an answer that
//! goes on, and blocks for the positions after it.

use super::{ModelId, Scheduler, Sequence, SequenceId};
use crate::models::kv::{BLOCK, BlockId, blocks_for};

/// A running answer whose next tokens can be guessed.
#[derive(Clone, Copy, Debug)]
pub struct DraftContext<'a> {
    /// The prompt and what was generated.
    pub tokens: &'a [u32],
    /// Of the positions of `tokens`, as far as they were taken.
    pub blocks: &'a [BlockId],
    /// Tokens that may still come.
    pub left: u32,
    pub long: bool,
}

impl Scheduler {
    /// The answer, if the next step computes its newest token.
    pub fn draft_context(&self, id: SequenceId) -> Option<DraftContext<'_>> {
        let one = self.sequences.get(&id).filter(|one| one.is_decoding())?;
        Some(DraftContext { tokens: &one.tokens, blocks: &one.blocks, left: one.left, long: one.long })
    }

    /// Takes blocks for the answer's text and up to `most` positions after it: all blocks together
    /// then take at most `room` bytes. Cached blocks give way, nobody is put back. Gives for how many
    /// of the positions there are blocks.
    pub fn reserve_lookahead(&mut self, id: SequenceId, most: usize, room: u64) -> usize {
        loop {
            let Some(one) = self.sequences.get(&id).filter(|one| one.is_decoding()) else { return 0 };
            let (length, blocks, model) = (one.tokens.len(), one.blocks.len(), one.model);
            if blocks >= blocks_for(length + most) {
                return most;
            }
            if !self.take_block(id, model, room) && !self.evict() {
                return (blocks * BLOCK).saturating_sub(length);
            }
        }
    }

    /// BlockPool that became free since somebody asked, here or by a plan. What they paused is void.
    pub fn released(&mut self) -> Vec<(ModelId, BlockId)> {
        std::mem::take(&mut self.released)
    }

    /// A block of the model takes so many bytes from now on.
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
