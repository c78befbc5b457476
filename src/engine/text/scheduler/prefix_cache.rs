//! The prefix cache of one model: a radix tree whose edges are the tokens of one full block.
//!
//! (Zheng et al. 2023, <https://arxiv.org/abs/2312.07104>.) Each tenant has a root of its own:
//! nobody can learn by timing what another has asked. A node whose block a sequence holds is never
//! dropped; of the others the longest unused leaf goes first.

use std::collections::{BTreeSet, HashMap};

use super::block_pool::BlockPool;
use super::ids::Tenant;
use crate::models::kv::{BLOCK, BlockId};

pub type NodeId = u32;

type Edge = [u32; BLOCK];

/// Where a block hangs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Parent {
    /// Long sequences have blocks of their own.
    Root(Tenant, bool),
    Node(NodeId),
}

#[derive(Debug)]
struct Node {
    parent: Parent,
    edge: Edge,
    block: BlockId,
    children: u32,
    used: u64,
}

#[derive(Debug, Default)]
pub struct PrefixCache {
    nodes: Vec<Option<Node>>,
    free: Vec<NodeId>,
    edges: HashMap<(Parent, Edge), NodeId>,
    /// Nodes without children, the longest unused first.
    leaves: BTreeSet<(u64, NodeId)>,
}

impl PrefixCache {
    /// The cached blocks that `tokens` begin with below a root, at most `most` of them. `now` orders
    /// uses.
    pub fn find(&mut self, root: Parent, tokens: &[u32], most: usize, now: u64) -> Vec<(NodeId, BlockId)> {
        let mut parent = root;
        let mut found = Vec::new();
        for edge in tokens.as_chunks::<BLOCK>().0.iter().take(most) {
            let Some(&id) = self.edges.get(&(parent, *edge)) else { break };
            let Some(block) = self.touch(id, now) else { break };
            found.push((id, block));
            parent = Parent::Node(id);
        }
        found
    }

    /// Adds a full block below `parent`. Gives its node, and the block that stands there: another
    /// one, if the same tokens were there already.
    pub fn insert(&mut self, parent: Parent, edge: Edge, block: BlockId, now: u64) -> (NodeId, BlockId) {
        if let Some(&id) = self.edges.get(&(parent, edge))
            && let Some(block) = self.touch(id, now)
        {
            return (id, block);
        }
        let node = Node { parent, edge, block, children: 0, used: now };
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
            self.leaves.remove(&(node.used, parent));
        }
        (id, block)
    }

    fn touch(&mut self, id: NodeId, now: u64) -> Option<BlockId> {
        let node = self.nodes.get_mut(id as usize)?.as_mut()?;
        if self.leaves.remove(&(node.used, id)) {
            self.leaves.insert((now, id));
        }
        node.used = now;
        Some(node.block)
    }

    /// When the leaf was used that would be dropped next.
    pub fn oldest(&self, blocks: &BlockPool) -> Option<u64> {
        self.candidate(blocks).map(|(used, _)| used)
    }

    fn candidate(&self, blocks: &BlockPool) -> Option<(u64, NodeId)> {
        self.leaves.iter().copied().find(|(_, id)| self.block(*id).is_some_and(|block| blocks.is_idle(block)))
    }

    fn block(&self, id: NodeId) -> Option<BlockId> {
        self.nodes.get(id as usize)?.as_ref().map(|node| node.block)
    }

    /// Drops the longest unused leaf that no sequence holds, and gives its block.
    pub fn evict(&mut self, blocks: &BlockPool) -> Option<BlockId> {
        let (used, id) = self.candidate(blocks)?;
        let node = self.nodes.get_mut(id as usize)?.take()?;
        self.leaves.remove(&(used, id));
        self.edges.remove(&(node.parent, node.edge));
        self.free.push(id);
        if let Parent::Node(parent) = node.parent
            && let Some(Some(above)) = self.nodes.get_mut(parent as usize)
        {
            above.children -= 1;
            if above.children == 0 {
                self.leaves.insert((above.used, parent));
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
    use super::{Parent, PrefixCache};
    use crate::engine::text::scheduler::block_pool::BlockPool;
    use crate::models::kv::BLOCK;

    fn tokens(blocks: &[u32]) -> Vec<u32> {
        blocks.iter().flat_map(|&token| [token; BLOCK]).collect()
    }

    #[test]
    fn tenants_find_their_own_prefixes_and_leaves_go_first() {
        let (mut tree, mut blocks) = (PrefixCache::default(), BlockPool::default());
        let root = |tenant| Parent::Root(tenant, false);
        let mut parent = root(1);
        for token in [7, 8, 9] {
            let block = blocks.take();
            let (node, stands) = tree.insert(parent, [token; BLOCK], block, u64::from(token));
            assert_eq!(stands, block);
            blocks.cache(block);
            blocks.leave(block);
            parent = Parent::Node(node);
        }
        assert_eq!(tree.find(root(1), &tokens(&[7, 8, 1]), 9, 20).len(), 2);
        assert_eq!(tree.find(root(1), &tokens(&[7, 8, 9]), 1, 21).len(), 1);
        assert!(tree.find(root(2), &tokens(&[7, 8, 9]), 9, 22).is_empty(), "another tenant");
        assert!(tree.find(Parent::Root(1, true), &tokens(&[7]), 9, 22).is_empty(), "another kind");
        let again = tree.insert(Parent::Root(1, false), [7; BLOCK], 99, 23);
        assert_eq!(again.1, 0, "the block that was there stays");
        let mut gone = Vec::new();
        while let Some(block) = tree.evict(&blocks) {
            blocks.forget(block);
            gone.push(block);
        }
        assert_eq!(gone, [2, 1, 0], "from the leaves to the root");
        assert_eq!((tree.blocks().len(), blocks.in_use()), (0, 0));
    }

    #[test]
    fn what_a_sequence_holds_stays() {
        let (mut tree, mut blocks) = (PrefixCache::default(), BlockPool::default());
        let block = blocks.take();
        tree.insert(Parent::Root(1, false), [7; BLOCK], block, 1);
        blocks.cache(block);
        assert_eq!((tree.evict(&blocks), tree.oldest(&blocks)), (None, None));
        blocks.leave(block);
        assert_eq!((tree.oldest(&blocks), tree.evict(&blocks)), (Some(1), Some(block)));
    }
}
