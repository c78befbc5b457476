//! The state of a sequence's recurrent layers: the block that a step reads, and the one that it writes.
//!
//! Keys and values of rejected draft tokens are overwritten, but a state that has seen a token cannot forget it. Then the block that
//! was written is dropped, and the next step computes the accepted tokens again.

use super::block_pool::{GroupBlock, StatePool};
use super::prefix_cache::{NodeId, Parent, PrefixCache};
use super::{Model, Sequence};
use outpost_models::kv::{BLOCK, BlockId};

/// The states of recurrent layers in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateUpdate {
    /// The state after the positions before the row; `None`: there are none. The step does not change it.
    pub read: Option<BlockId>,
    /// Where the step writes the state after the row.
    pub write: BlockId,
}

#[derive(Debug, Default)]
pub struct RecurrentState {
    /// The state after the computed positions; `None`: nothing is computed.
    current: Option<BlockId>,
    /// The block that the next step writes.
    next: Option<BlockId>,
    /// Positions, in ascending order, after which the state stays in the prefix cache.
    checkpoints: Vec<usize>,
    /// The node with the newest state that it left in the prefix cache at another position.
    newest: Option<NodeId>,
}

impl RecurrentState {
    pub fn held(&self) -> impl Iterator<Item = BlockId> {
        self.current.into_iter().chain(self.next)
    }

    /// Starts after a cached prefix. `cached`: the state after it, which the sequence holds now. `known`: positions whose
    /// tokens are cached. `last`: the last position at which logits are not needed yet.
    pub fn start(&mut self, cached: Option<BlockId>, [computed, known, last]: [usize; 3]) {
        self.current = cached;
        self.checkpoints = [known, last].map(|position| position / BLOCK * BLOCK).to_vec();
        self.checkpoints.retain(|position| *position > computed);
        self.checkpoints.sort_unstable();
    }

    pub fn set_next(&mut self, id: BlockId) {
        self.next = Some(id);
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

    /// Leaves the state after `computed` positions, which end with this node, in the prefix cache. Returns the blocks that became
    /// free.
    fn leave(
        &mut self,
        node: NodeId,
        computed: usize,
        group: usize,
        (prefixes, pool): (&mut PrefixCache, &mut StatePool),
    ) -> Vec<GroupBlock> {
        let Some(id) = self.current else { return Vec::new() };
        let (own, had) = (GroupBlock { group, id }, prefixes.block(node, group));
        let kept = GroupBlock { group, id: prefixes.offer(node, own) };
        if had == Some(id) {
            return Vec::new();
        }
        let mut freed = Vec::new();
        if had.is_none() {
            pool.cache(own);
        } else {
            pool.share(kept);
            freed.extend(Some(own).filter(|own| pool.release(*own)));
            self.current = Some(kept.id);
        }
        let older = self.newest.take().and_then(|older| prefixes.take(older, group));
        freed.extend(older.filter(|older| pool.uncache(*older)));
        self.newest = Some(node).filter(|_| had.is_none() && !self.checkpoints.contains(&computed));
        freed
    }
}

impl Sequence {
    /// The index of the group of recurrent layers, if the model has any: it follows those of attention.
    pub(super) fn recurrent_group(&self) -> usize {
        self.tables.len()
    }

    /// Takes over the state that a step wrote. `positions`: computed tokens that stay. Returns those that are computed now: none
    /// if the state has seen others, too. Appends blocks that became free to `freed`.
    pub(super) fn advance_state(&mut self, model: &mut Model, positions: usize, freed: &mut Vec<GroupBlock>) -> usize {
        let (group, is_whole) = (self.recurrent_group(), positions == self.planned);
        let Some(state) = &mut self.recurrent else { return positions };
        let dropped =
            if is_whole { std::mem::replace(&mut state.current, state.next.take()) } else { state.next.take() };
        let dropped = dropped.map(|id| GroupBlock { group, id });
        freed.extend(dropped.filter(|block| model.state.release(*block)));
        if is_whole { positions } else { 0 }
    }

    /// Leaves the recurrent state in the prefix cache if it is the one after the last cached block.
    pub(super) fn leave_state(&mut self, model: &mut Model, freed: &mut Vec<GroupBlock>) {
        let (group, at_block) = (self.recurrent_group(), self.computed == self.cached * BLOCK);
        if let (Some(state), Parent::Node(node), true) = (&mut self.recurrent, self.parent, at_block) {
            freed.extend(state.leave(node, self.computed, group, (&mut model.prefixes, &mut model.state)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::RecurrentState;

    #[test]
    fn rows_end_at_checkpoints_and_blocks() {
        let mut state = RecurrentState::default();
        state.start(None, [16, 70, 105]);
        assert_eq!(state.checkpoints, [64, 96]);
        for (start, end, expected) in
            [(16, 60, 48), (16, 90, 64), (64, 96, 96), (64, 107, 96), (96, 107, 107), (110, 111, 111)]
        {
            assert_eq!(state.row_end(start, end, 107), expected, "{start}..{end}");
        }
        assert_eq!(state.row_end(17, 20, 107), 20, "the next block ends later");
    }
}
