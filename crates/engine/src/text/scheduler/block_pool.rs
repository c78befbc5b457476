//! Which KV blocks of a model are in use, and how many sequences hold each.

use outpost_models::kv::BlockId;

/// Reference counts of a model's KV blocks. A block without holders is free and is allocated again.
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
    /// Whether the prefix cache holds it too.
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

    /// Whether only the prefix cache holds it.
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
    use super::BlockPool;

    #[test]
    fn a_block_is_free_after_its_last_holder_releases_it() {
        let mut blocks = BlockPool::default();
        let (a, b) = (blocks.allocate(), blocks.allocate());
        blocks.share(a);
        blocks.cache(a);
        assert!(!blocks.release(a) && !blocks.release(a));
        assert_eq!((blocks.in_use(), blocks.idle(), blocks.is_idle(a)), (2, 1, true));
        assert!(blocks.uncache(a) && blocks.release(b));
        assert_eq!((blocks.in_use(), blocks.idle()), (0, 0));
        assert!([a, b].contains(&blocks.allocate()), "free blocks are reused first");
    }
}
