//! The state of a sequence's recurrent layers: the block that a step reads, and the one that it writes.
//!
//! Keys and values of rejected draft tokens are overwritten, but a state that has seen a token cannot forget it. Then the next step
//! overwrites the state that was written, and computes the accepted tokens again. That step is still one that decodes: it waits for no
//! prompt.
//!
//! A sequence keeps both of its blocks until it ends. A block of some models has tens of MiB: if one were freed after every step, the
//! next step would allocate it again, and fault in its pages.

use super::block_pool::{GroupBlock, StatePool};
use super::prefix_cache::{NodeId, PrefixCache};
use outpost_models::kv::{BLOCK, BlockId};
use outpost_models::state_layout::StateUpdate;

#[derive(Debug, Default)]
pub struct RecurrentState {
    /// The state after the computed positions; `None`: nothing is computed.
    current: Option<BlockId>,
    /// The block that the next step writes.
    next: Option<BlockId>,
    /// Accepted tokens that the next step computes again.
    again: usize,
    /// Positions, in ascending order, after which the state stays in the prefix cache.
    checkpoints: Vec<usize>,
    /// The newest state in the prefix cache that is no checkpoint. The next one replaces it.
    newest: Option<(NodeId, GroupBlock)>,
}

impl RecurrentState {
    pub fn held(&self) -> impl Iterator<Item = BlockId> {
        self.current.into_iter().chain(self.next)
    }

    /// Starts after a cached prefix of `computed` positions. `state`: the state after it, which the sequence holds now. The state
    /// becomes a checkpoint at the end of the `known` positions that other texts have in common with this one, and before the
    /// position `last`.
    pub fn start(&mut self, state: Option<BlockId>, computed: usize, known: usize, last: usize) {
        self.current = state;
        self.checkpoints = [known, last].map(|position| position / BLOCK * BLOCK).to_vec();
        self.checkpoints.retain(|position| *position > computed);
        self.checkpoints.sort_unstable();
    }

    pub fn set_next(&mut self, id: BlockId) {
        self.next = Some(id);
    }

    /// Accepted tokens that the next step computes again.
    pub fn again(&self) -> usize {
        self.again
    }

    pub fn lacks_next(&self) -> bool {
        self.next.is_none()
    }

    pub fn update(&self) -> Option<StateUpdate> {
        self.next.map(|write| StateUpdate { read: self.current, write })
    }

    /// The end of a row that would be `start..end`. It ends at a checkpoint, or else at the end of a block if the text goes
    /// beyond, so that its state can be left in the prefix cache.
    pub fn row_end(&self, start: usize, end: usize, text: usize) -> usize {
        let checkpoint = self.checkpoints.iter().copied().find(|position| (start + 1..=end).contains(position));
        let block = Some(end / BLOCK * BLOCK).filter(|position| end < text && *position > start);
        checkpoint.or(block).unwrap_or(end)
    }

    /// Takes over the state that a step wrote. `positions`: computed tokens that stay; `is_whole`: all of them do. The next step
    /// writes the block of the state before, unless others hold that one, too. `group`: the index of the group of these blocks.
    pub fn advance(&mut self, positions: usize, is_whole: bool, group: usize, pool: &mut StatePool) {
        if !is_whole {
            self.again = positions;
            return;
        }
        self.again = 0;
        let Some(before) = std::mem::replace(&mut self.current, self.next.take()) else { return };
        let block = GroupBlock { group, id: before };
        if pool.is_shared(block) {
            pool.release(block);
        } else {
            self.next = Some(before);
        }
    }

    pub fn is_checkpoint(&self, position: usize) -> bool {
        self.checkpoints.contains(&position)
    }

    /// Puts the state, a block of the group with the index `group`, into the prefix cache, in place of an earlier one that is no
    /// checkpoint. `node` ends the computed positions. Appends the blocks that became free to `freed`.
    pub fn cache(
        &mut self,
        node: NodeId,
        group: usize,
        is_checkpoint: bool,
        (pool, prefixes): (&mut StatePool, &mut PrefixCache),
        now: u64,
        freed: &mut Vec<GroupBlock>,
    ) {
        let Some(id) = self.current else { return };
        let had = prefixes.block(node, group);
        let id = prefixes.adopt(node, GroupBlock { group, id }, pool, now, freed);
        self.current = Some(id);
        if is_checkpoint {
            prefixes.keep_state(node);
        }
        let newest = Some((node, GroupBlock { group, id }));
        if self.newest == newest {
            return;
        }
        let older = self.newest.take().filter(|(node, older)| prefixes.take_state(*node, *older, pool));
        freed.extend(older.map(|(_, older)| older).filter(|older| pool.uncache(*older)));
        self.newest = newest.filter(|_| had.is_none() && !is_checkpoint);
    }
}

#[cfg(test)]
mod tests {
    use super::RecurrentState;

    #[test]
    fn rows_end_at_checkpoints_and_blocks() {
        let mut state = RecurrentState::default();
        state.start(None, 16, 70, 105);
        assert_eq!(state.checkpoints, [64, 96]);
        for (start, end, expected) in
            [(16, 60, 48), (16, 90, 64), (64, 96, 96), (64, 107, 96), (96, 107, 107), (110, 111, 111)]
        {
            assert_eq!(state.row_end(start, end, 107), expected, "{start}..{end}");
        }
        assert_eq!(state.row_end(17, 20, 107), 20, "the next block ends later");
    }
}
