//! What a model keeps of a sequence between steps.
//!
//! Layers with attention keep the keys and values of positions, in blocks of [`BLOCK`] positions. Layers with a recurrence keep
//! a state that stands for all positions before. Both are memory of a size that the model declares, which is allocated, shared
//! between sequences with the same beginning, and evicted by the engine's scheduler.
//!
//! A recurrent state is never changed in place: a step reads one and writes another. So a state that is kept in the prefix
//! cache costs no copy, rejected draft tokens are undone by dropping what was written, and a step that failed can be repeated.

use super::block_arena::BlockId;
use super::kv::{BLOCK, blocks_for};

/// A group of layers that keep the same part of a sequence, and so share block tables.
///
/// The first group of a model is one of attention without a window. The recurrent layers, if there are any, are its last group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateGroup {
    /// Bytes of one block: what all layers of the group keep in it.
    pub block_bytes: u64,
    pub kind: StateKind,
}

/// What the blocks of a group hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateKind {
    /// Keys and values of [`BLOCK`] positions.
    Attention {
        /// Positions that a token sees in these layers, including its own; `None`: all.
        window: Option<usize>,
    },
    /// The state after all positions that are computed. A step reads one such block of a sequence and writes another; those that
    /// the sequence leaves in the prefix cache are beyond these.
    Recurrent,
}

impl StateGroup {
    pub fn attention(block_bytes: u64, window: Option<usize>) -> Self {
        Self { block_bytes, kind: StateKind::Attention { window } }
    }

    pub fn recurrent(block_bytes: u64) -> Self {
        Self { block_bytes, kind: StateKind::Recurrent }
    }

    pub fn is_recurrent(&self) -> bool {
        self.kind == StateKind::Recurrent
    }

    /// The first block of positions that a token at `position` needs of this group, as an index in the text; later tokens need
    /// none before it. Recurrent layers need the state after the block before `position`, which is a multiple of [`BLOCK`].
    pub fn first_needed(&self, position: usize) -> usize {
        match self.kind {
            StateKind::Attention { window: None } => 0,
            StateKind::Attention { window: Some(window) } => (position + 1).saturating_sub(window) / BLOCK,
            StateKind::Recurrent => (position / BLOCK).saturating_sub(1),
        }
    }

    /// Max blocks that a sequence of `positions` positions needs at a time, if at most `chunk` positions are computed at
    /// once.
    pub fn max_blocks(&self, positions: usize, chunk: usize) -> usize {
        let all = blocks_for(positions);
        match self.kind {
            StateKind::Attention { window: None } => all,
            StateKind::Attention { window: Some(window) } => all.min(blocks_for(window.saturating_add(chunk)) + 1),
            StateKind::Recurrent => 2,
        }
    }
}

/// The states of a sequence's recurrent layers in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateUpdate {
    /// The state after the positions before the step's tokens; `None`: there are no such positions. The step does not change it.
    pub read: Option<BlockId>,
    /// Where the step writes the state after its tokens.
    pub write: BlockId,
}

#[cfg(test)]
mod tests {
    use super::StateGroup;

    #[test]
    fn a_window_bounds_the_blocks_that_a_sequence_needs() {
        let group = |window| StateGroup::attention(1, window);
        assert_eq!([0, 100, 10_000].map(|position| group(None).first_needed(position)), [0, 0, 0]);
        // A token sees 40 positions: at 103, those from 64 on.
        assert_eq!(
            [0, 39, 54, 55, 102, 103].map(|position| group(Some(40)).first_needed(position)),
            [0, 0, 0, 1, 3, 4]
        );
        for (window, chunk) in [(1, 1), (16, 1), (40, 32), (17, 100)] {
            let group = group(Some(window));
            let needed = |start: usize| (start + chunk).div_ceil(16) - group.first_needed(start);
            let most = (0..500).map(needed).max().unwrap();
            assert!(most <= group.max_blocks(1_000, chunk) && most + 1 >= group.max_blocks(1_000, chunk));
            assert_eq!(group.max_blocks(3, chunk), 1);
        }
    }

    #[test]
    fn a_recurrent_layer_needs_the_last_state_only() {
        let group = StateGroup::recurrent(1);
        assert_eq!([0, 16, 32, 320].map(|position| group.first_needed(position)), [0, 0, 1, 19]);
        assert_eq!([1, 10_000].map(|positions| group.max_blocks(positions, 512)), [2, 2]);
    }
}
