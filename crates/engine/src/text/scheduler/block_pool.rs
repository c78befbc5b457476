//! The state that sequences of a model keep: which blocks of each group are in use, and how many sequences hold each.
//!
//! Five of six layers of Gemma 3 see 512 or 1,024 positions. If one block had the keys and values of all layers, three quarters of the
//! memory at 8,192 positions would be kept though nothing reads it. A block therefore covers the layers of a group, and each group has
//! its own tables, so that the IDs of freed blocks are used again. Kernels get whole tables, in which any block stands in for those that
//! were given back: positions, and so the bits of the result, do not depend on what was given back. The first group keeps the blocks
//! of all positions: the prefix cache and the draft model follow its blocks. If all layers have windows, it has no layers, and its
//! blocks take no memory of the model.

use outpost_models::kv::BlockId;
use outpost_models::state_layout::StateGroup;

/// A block of one of a model's groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupBlock {
    /// Index of the group.
    pub group: usize,
    pub id: BlockId,
}

/// A block by its place in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TextBlock {
    /// Index of the block in the text.
    pub index: usize,
    /// Index of the group.
    pub group: usize,
}

/// The blocks of a sequence in one group, by position.
#[derive(Clone, Debug, Default)]
pub struct BlockTable {
    /// Blocks that fell out of the group's window and were given back.
    given_back: usize,
    held: Vec<BlockId>,
}

impl BlockTable {
    /// A table whose first `given_back` blocks are not held.
    pub fn new(given_back: usize, held: Vec<BlockId>) -> Self {
        Self { given_back, held }
    }

    /// Blocks of all positions, with those that were given back.
    pub fn len(&self) -> usize {
        self.given_back + self.held.len()
    }

    pub fn held(&self) -> &[BlockId] {
        &self.held
    }

    pub fn get_mut(&mut self, index: usize) -> Option<&mut BlockId> {
        self.held.get_mut(index.checked_sub(self.given_back)?)
    }

    pub fn push(&mut self, id: BlockId) {
        self.held.push(id);
    }

    /// Removes the blocks before the one with the index `first`.
    pub fn give_back(&mut self, first: usize) -> impl Iterator<Item = BlockId> {
        let count = first.saturating_sub(self.given_back).min(self.held.len());
        self.given_back += count;
        self.held.drain(..count)
    }

    /// The table for a step, by position. The first block that is held stands in for those that were given back: no token
    /// of the step sees them.
    pub fn for_step(&self) -> Vec<BlockId> {
        let stand_in = self.held.first().copied().unwrap_or_default();
        std::iter::repeat_n(stand_in, self.given_back).chain(self.held.iter().copied()).collect()
    }
}

/// The blocks of all groups of a model. The first group has no window: it holds the blocks of all positions, and those of
/// the prefix cache and the draft model go with them.
#[derive(Debug, Default)]
pub struct StatePool {
    groups: Vec<(StateGroup, BlockPool)>,
}

impl StatePool {
    /// Sets the layout of the state. Only the bytes of blocks may change while blocks are in use.
    pub fn set_groups(&mut self, groups: &[StateGroup]) {
        self.groups.resize_with(groups.len(), || (StateGroup::attention(0, None), BlockPool::default()));
        self.groups.iter_mut().zip(groups).for_each(|((group, _), new)| *group = *new);
    }

    pub fn groups(&self) -> impl ExactSizeIterator<Item = StateGroup> {
        self.groups.iter().map(|(group, _)| *group)
    }

    pub fn group(&self, index: usize) -> Option<StateGroup> {
        self.groups.get(index).map(|(group, _)| *group)
    }

    /// The first block that a token at `position` needs of any group after the first; see [`StateGroup::first_needed`]. `None`:
    /// there is one group.
    pub fn first_needed_of_others(&self, position: usize) -> Option<usize> {
        self.groups().skip(1).map(|group| group.first_needed(position)).min()
    }

    /// Allocates a block with one holder.
    pub fn allocate(&mut self, group: usize) -> Option<BlockId> {
        self.groups.get_mut(group).map(|(_, blocks)| blocks.allocate())
    }

    /// Adds a sequence that holds the block.
    pub fn share(&mut self, block: GroupBlock) {
        self.update(block, |blocks, id| {
            blocks.share(id);
            false
        });
    }

    /// Removes a sequence that held the block. `true`: it is free now.
    pub fn release(&mut self, block: GroupBlock) -> bool {
        self.update(block, BlockPool::release)
    }

    /// Marks the block as held by the prefix cache.
    pub fn cache(&mut self, block: GroupBlock) {
        self.update(block, |blocks, id| {
            blocks.cache(id);
            false
        });
    }

    /// Removes the block from the prefix cache. `true`: it is free now.
    pub fn uncache(&mut self, block: GroupBlock) -> bool {
        self.update(block, BlockPool::uncache)
    }

    fn update(&mut self, block: GroupBlock, update: impl FnOnce(&mut BlockPool, BlockId) -> bool) -> bool {
        self.groups.get_mut(block.group).is_some_and(|(_, blocks)| update(blocks, block.id))
    }

    /// True if more than one sequence holds it, or the prefix cache does.
    pub fn is_shared(&self, block: GroupBlock) -> bool {
        self.groups.get(block.group).is_some_and(|(_, blocks)| blocks.is_shared(block.id))
    }

    /// True if only the prefix cache holds it, so that it can be evicted.
    pub fn is_idle(&self, block: GroupBlock) -> bool {
        self.groups.get(block.group).is_some_and(|(_, blocks)| blocks.is_idle(block.id))
    }

    /// Bytes of the blocks that are not free.
    pub fn used_bytes(&self) -> u64 {
        self.groups.iter().map(|(group, blocks)| blocks.in_use() as u64 * group.block_bytes).sum()
    }

    /// Bytes of the blocks that only the prefix cache holds.
    pub fn idle_bytes(&self) -> u64 {
        self.groups.iter().map(|(group, blocks)| blocks.idle() as u64 * group.block_bytes).sum()
    }

    #[cfg(test)]
    pub fn blocks(&self, group: usize) -> &BlockPool {
        &self.groups[group].1
    }
}

/// Reference counts of the KV blocks of a group. A block without holders is free and is allocated again.
#[derive(Debug, Default)]
pub struct BlockPool {
    counts: Vec<Count>,
    free: Vec<BlockId>,
    idle: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct Count {
    /// Sequences that hold it.
    holders: u32,
    /// Set if the prefix cache holds it, too. The block then stays in memory after its sequences have ended.
    cached: bool,
}

impl BlockPool {
    /// Allocates a block with one holder.
    pub fn allocate(&mut self) -> BlockId {
        let id = self.free.pop().unwrap_or(self.counts.len() as BlockId);
        if id as usize == self.counts.len() {
            self.counts.push(Count::default());
        }
        self.update(id, |count| count.holders = 1);
        id
    }

    /// Adds a sequence that holds the block.
    pub fn share(&mut self, id: BlockId) {
        self.update(id, |count| count.holders += 1);
    }

    /// Removes a sequence that held the block. `true`: it is free now.
    pub fn release(&mut self, id: BlockId) -> bool {
        self.update(id, |count| count.holders = count.holders.saturating_sub(1))
    }

    /// Marks the block as held by the prefix cache.
    pub fn cache(&mut self, id: BlockId) {
        self.update(id, |count| count.cached = true);
    }

    /// Removes the block from the prefix cache. `true`: it is free now.
    pub fn uncache(&mut self, id: BlockId) -> bool {
        self.update(id, |count| count.cached = false)
    }

    /// True if more than one sequence holds it, or the prefix cache does.
    pub fn is_shared(&self, id: BlockId) -> bool {
        self.counts.get(id as usize).is_some_and(|count| count.cached || count.holders > 1)
    }

    /// True if only the prefix cache holds it, so that it can be evicted.
    pub fn is_idle(&self, id: BlockId) -> bool {
        self.counts.get(id as usize).is_some_and(Count::is_idle)
    }

    /// Blocks that are not free.
    pub fn in_use(&self) -> usize {
        self.counts.len() - self.free.len()
    }

    /// Blocks that only the prefix cache holds.
    pub fn idle(&self) -> usize {
        self.idle
    }

    fn update(&mut self, id: BlockId, update: impl FnOnce(&mut Count)) -> bool {
        let Some(count) = self.counts.get_mut(id as usize) else { return false };
        let (was_idle, was_free) = (count.is_idle(), count.is_free());
        update(count);
        self.idle = self.idle + usize::from(count.is_idle()) - usize::from(was_idle);
        let freed = count.is_free() && !was_free;
        if freed {
            self.free.push(id);
        }
        freed
    }
}

impl Count {
    fn is_idle(&self) -> bool {
        self.cached && self.holders == 0
    }

    fn is_free(&self) -> bool {
        !self.cached && self.holders == 0
    }
}

#[cfg(test)]
mod tests {
    use super::{BlockPool, BlockTable};

    #[test]
    fn blocks_that_were_given_back_have_a_stand_in() {
        let mut table = BlockTable::new(1, vec![5, 6, 7]);
        assert_eq!(table.give_back(3).collect::<Vec<_>>(), [5, 6]);
        assert_eq!(table.give_back(2).count(), 0);
        table.push(9);
        assert_eq!((table.len(), table.held(), table.for_step()), (5, [7, 9].as_slice(), vec![7, 7, 7, 7, 9]));
        assert_eq!(table.get_mut(2), None);
        assert_eq!(table.get_mut(4), Some(&mut 9));
    }

    #[test]
    fn a_block_is_free_after_its_last_holder_releases_it() {
        let mut blocks = BlockPool::default();
        let (a, b) = (blocks.allocate(), blocks.allocate());
        blocks.share(a);
        assert!(blocks.is_shared(a) && !blocks.is_shared(b));
        blocks.cache(a);
        assert!(!blocks.release(a) && !blocks.release(a));
        assert_eq!((blocks.in_use(), blocks.idle(), blocks.is_idle(a)), (2, 1, true));
        blocks.share(a);
        assert!(blocks.is_shared(a) && !blocks.release(a));
        assert!(blocks.uncache(a) && blocks.release(b));
        assert_eq!((blocks.in_use(), blocks.idle()), (0, 0));
        assert!([a, b].contains(&blocks.allocate()), "free blocks are reused first");
    }
}
