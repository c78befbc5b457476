//! Which KV blocks of a model are in use, and by how many.

use crate::models::kv::BlockId;

/// Reference counts of a model's blocks. A block that nobody holds is free and may be taken again.
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
    /// The prefix cache holds it too.
    cached: bool,
}

impl BlockPool {
    /// A free block, paused once.
    pub fn take(&mut self) -> BlockId {
        let id = self.free.pop().unwrap_or(self.counts.len() as BlockId);
        if id as usize == self.counts.len() {
            self.counts.push(Count::default());
        }
        self.change(id, |count| count.holders = 1);
        id
    }

    /// One more sequence holds the block.
    pub fn share(&mut self, id: BlockId) {
        self.change(id, |count| count.holders += 1);
    }

    /// A sequence lets go of the block. `true`: it is free now.
    pub fn leave(&mut self, id: BlockId) -> bool {
        self.change(id, |count| count.holders = count.holders.saturating_sub(1))
    }

    /// The prefix cache holds the block from now on.
    pub fn cache(&mut self, id: BlockId) {
        self.change(id, |count| count.cached = true);
    }

    /// The prefix cache lets go of the block. `true`: it is free now.
    pub fn forget(&mut self, id: BlockId) -> bool {
        self.change(id, |count| count.cached = false)
    }

    /// Whether only the prefix cache holds it.
    pub fn is_idle(&self, id: BlockId) -> bool {
        self.counts.get(id as usize).is_some_and(Count::is_idle)
    }

    /// BlockPool that somebody holds.
    pub fn in_use(&self) -> usize {
        self.counts.len() - self.free.len()
    }

    /// BlockPool that only the prefix cache holds.
    pub fn idle(&self) -> usize {
        self.idle
    }

    fn change(&mut self, id: BlockId, change: impl FnOnce(&mut Count)) -> bool {
        let Some(count) = self.counts.get_mut(id as usize) else { return false };
        let (was_idle, was_free) = (count.is_idle(), count.is_free());
        change(count);
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
    use super::BlockPool;

    #[test]
    fn a_block_is_free_when_the_last_holder_leaves() {
        let mut blocks = BlockPool::default();
        let (a, b) = (blocks.take(), blocks.take());
        blocks.share(a);
        blocks.cache(a);
        assert!(!blocks.leave(a) && !blocks.leave(a));
        assert_eq!((blocks.in_use(), blocks.idle(), blocks.is_idle(a)), (2, 1, true));
        assert!(blocks.forget(a) && blocks.leave(b));
        assert_eq!((blocks.in_use(), blocks.idle()), (0, 0));
        assert!([a, b].contains(&blocks.take()), "free blocks are taken first");
    }
}
