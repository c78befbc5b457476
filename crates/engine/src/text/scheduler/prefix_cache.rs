//! The prefix cache of one model: a radix tree whose edges are the tokens of one full block.
//!
//! Radix attention (Zheng et al. 2023, <https://arxiv.org/abs/2312.07104>). Each tenant has its own roots, so
//! response times do not reveal the prompts of other tenants. An adapter of the model has its own roots too, because it
//! changes keys and values. A node whose block a sequence holds is never evicted;
//! of the others, the least recently used leaf is evicted first.

use std::collections::{BTreeSet, HashMap};

use super::block_pool::BlockPool;
use crate::ids::{AdapterId, Tenant};
use outpost_models::kv::{BLOCK, BlockId};

pub type NodeId = u32;

type Edge = [u32; BLOCK];

/// What sequences must have in common to share blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrefixRoot {
    pub tenant: Tenant,
    pub adapter: Option<AdapterId>,
    /// Whether they are long sequences.
    pub long: bool,
}

/// The parent of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Parent {
    Root(PrefixRoot),
    Node(NodeId),
}

#[derive(Debug)]
struct Node {
    parent: Parent,
    edge: Edge,
    block: BlockId,
    children: u32,
    last_used: u64,
}

#[derive(Debug, Default)]
pub struct PrefixCache {
    nodes: Vec<Option<Node>>,
    free: Vec<NodeId>,
    edges: HashMap<(Parent, Edge), NodeId>,
    /// Nodes without children, least recently used first.
    leaves: BTreeSet<(u64, NodeId)>,
}

impl PrefixCache {
    /// The longest cached prefix below a root of a text with these full blocks of tokens. `now` is the tick of this
    /// use.
    pub fn find(&mut self, root: Parent, blocks: impl Iterator<Item = Edge>, now: u64) -> Vec<(NodeId, BlockId)> {
        let mut parent = root;
        let mut found = Vec::new();
        for edge in blocks {
            let Some(&id) = self.edges.get(&(parent, edge)) else { break };
            let Some(block) = self.touch(id, now) else { break };
            found.push((id, block));
            parent = Parent::Node(id);
        }
        found
    }

    /// Adds a full block below `parent`. Returns its node and the block cached there: another one, if the same
    /// tokens were cached before.
    pub fn insert(&mut self, parent: Parent, edge: Edge, block: BlockId, now: u64) -> (NodeId, BlockId) {
        if let Some(&id) = self.edges.get(&(parent, edge))
            && let Some(block) = self.touch(id, now)
        {
            return (id, block);
        }
        let node = Node { parent, edge, block, children: 0, last_used: now };
        let id = self.free.pop().unwrap_or(self.nodes.len() as NodeId);
        match self.nodes.get_mut(id as usize) {
            Some(slot) => *slot = Some(node),
            None => self.nodes.push(Some(node)),
        }
        self.edges.insert((parent, edge), id);
        self.leaves.insert((now, id));
        if let Parent::Node(parent) = parent
            && let Some(Some(node)) = self.nodes.get_mut(parent as usize)
        {
            node.children += 1;
            self.leaves.remove(&(node.last_used, parent));
        }
        (id, block)
    }

    fn touch(&mut self, id: NodeId, now: u64) -> Option<BlockId> {
        let node = self.nodes.get_mut(id as usize)?.as_mut()?;
        if self.leaves.remove(&(node.last_used, id)) {
            self.leaves.insert((now, id));
        }
        node.last_used = now;
        Some(node.block)
    }

    /// The tick of the last use of the leaf that would be evicted next.
    pub fn oldest_use(&self, blocks: &BlockPool) -> Option<u64> {
        self.eviction_candidate(blocks).map(|(last_used, _)| last_used)
    }

    fn eviction_candidate(&self, blocks: &BlockPool) -> Option<(u64, NodeId)> {
        self.leaves.iter().copied().find(|(_, id)| self.block(*id).is_some_and(|block| blocks.is_idle(block)))
    }

    fn block(&self, id: NodeId) -> Option<BlockId> {
        self.nodes.get(id as usize)?.as_ref().map(|node| node.block)
    }

    /// Evicts the least recently used leaf that no sequence holds. Returns its block.
    pub fn evict(&mut self, blocks: &BlockPool) -> Option<BlockId> {
        let (last_used, id) = self.eviction_candidate(blocks)?;
        let node = self.nodes.get_mut(id as usize)?.take()?;
        self.leaves.remove(&(last_used, id));
        self.edges.remove(&(node.parent, node.edge));
        self.free.push(id);
        if let Parent::Node(parent) = node.parent
            && let Some(Some(above)) = self.nodes.get_mut(parent as usize)
        {
            above.children -= 1;
            if above.children == 0 {
                self.leaves.insert((above.last_used, parent));
            }
        }
        Some(node.block)
    }

    /// All cached blocks.
    #[cfg(test)]
    pub fn blocks(&self) -> std::collections::BTreeSet<BlockId> {
        self.nodes.iter().flatten().map(|node| node.block).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{Parent, PrefixCache, PrefixRoot};
    use crate::text::scheduler::block_pool::BlockPool;
    use outpost_models::kv::BLOCK;

    fn blocks(tokens: &[u32]) -> impl Iterator<Item = [u32; BLOCK]> {
        tokens.iter().map(|&token| [token; BLOCK])
    }

    #[test]
    fn prefixes_are_per_tenant_and_leaves_are_evicted_first() {
        let (mut tree, mut pool) = (PrefixCache::default(), BlockPool::default());
        let root_of = |tenant, adapter, long| Parent::Root(PrefixRoot { tenant, adapter, long });
        let root = |tenant| root_of(tenant, None, false);
        let mut parent = root(1);
        for token in [7, 8, 9] {
            let block = pool.allocate();
            let (node, cached) = tree.insert(parent, [token; BLOCK], block, u64::from(token));
            assert_eq!(cached, block);
            pool.cache(block);
            pool.release(block);
            parent = Parent::Node(node);
        }
        assert_eq!(tree.find(root(1), blocks(&[7, 8, 1]), 20).len(), 2);
        assert_eq!(tree.find(root(1), blocks(&[7]), 21).len(), 1);
        assert!(tree.find(root(2), blocks(&[7, 8, 9]), 22).is_empty(), "another tenant");
        assert!(tree.find(root_of(1, None, true), blocks(&[7]), 22).is_empty(), "a long sequence");
        assert!(tree.find(root_of(1, Some(1), false), blocks(&[7]), 22).is_empty(), "an adapter");
        let again = tree.insert(root(1), [7; BLOCK], 99, 23);
        assert_eq!(again.1, 0, "the block that was there stays");
        let mut gone = Vec::new();
        while let Some(block) = tree.evict(&pool) {
            pool.uncache(block);
            gone.push(block);
        }
        assert_eq!(gone, [2, 1, 0], "from the leaves to the root");
        assert_eq!((tree.blocks().len(), pool.in_use()), (0, 0));
    }

    #[test]
    fn blocks_in_use_are_not_evicted() {
        let (mut tree, mut blocks) = (PrefixCache::default(), BlockPool::default());
        let block = blocks.allocate();
        tree.insert(Parent::Root(PrefixRoot { tenant: 1, adapter: None, long: false }), [7; BLOCK], block, 1);
        blocks.cache(block);
        assert_eq!((tree.evict(&blocks), tree.oldest_use(&blocks)), (None, None));
        blocks.release(block);
        assert_eq!((tree.oldest_use(&blocks), tree.evict(&blocks)), (Some(1), Some(block)));
    }
}
