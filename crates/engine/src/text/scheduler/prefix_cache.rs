//! The prefix cache of one model: a radix tree whose edges are the tokens, and the media, of one full block.
//!
//! Radix attention (Zheng et al. 2023, <https://arxiv.org/abs/2312.07104>). Each tenant has its own roots, so
//! response times do not reveal the prompts of other tenants. An adapter of the model has its own roots too, because it
//! changes keys and values.
//!
//! A node has a block of the model's first group. It may have one of each other group: of a group with a window as long as that
//! is not evicted, and of recurrent layers if a sequence left its state there, as a checkpoint. A prefix is reused up to the
//! last node at which all groups have the blocks that the next token needs: all of the first group, those of the last window,
//! and the last checkpoint.
//!
//! A block that a sequence holds is never evicted. Of the others, the least recently used is evicted first: a leaf with
//! all its blocks, or a node's blocks of the other groups. A use of a prefix is one of all its nodes, but only of those blocks of
//! the other groups that the next token needs: what fell out of a window is evicted early, and a last window stays as long
//! as the leaf that it ends with.
//!
//! States of recurrent layers are large, so not every node gets one. A sequence leaves one at the end of its prompt, and one
//! where its prompt leaves the texts that are cached: a beginning that two prompts had in common is likely to be that of more
//! (Pan et al. 2024, <https://arxiv.org/abs/2411.19379>). Besides, it leaves its newest one, for its next turn and for the case
//! that it is preempted.

use std::collections::{BTreeSet, HashMap};

use super::block_pool::{GroupBlock, StatePool, TextBlock};
use crate::ids::{AdapterId, Tenant};
use crate::text::prompt::BlockKey;
use outpost_models::kv::{BLOCK, BlockId};

pub type NodeId = u32;

/// The properties that sequences must have in common to share blocks.
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
    edge: BlockKey,
    /// By group. The first group's is there after the insertion.
    blocks: Vec<Option<BlockId>>,
    children: u32,
    last_used: u64,
    /// The last use of the blocks of groups after the first.
    others_used: u64,
    /// Whether its recurrent state stays when the sequence that left it leaves a newer one.
    is_checkpoint: bool,
}

/// The part of a text that is cached.
#[derive(Debug, PartialEq, Eq)]
pub struct CachedPrefix {
    /// The nodes of the longest prefix that can be reused.
    pub nodes: Vec<NodeId>,
    /// How many nodes the text has in the tree, with those after `nodes`.
    pub known: usize,
}

#[derive(Debug, Default)]
pub struct PrefixCache {
    nodes: Vec<Option<Node>>,
    free: Vec<NodeId>,
    edges: HashMap<(Parent, BlockKey), NodeId>,
    /// Nodes without children, least recently used first.
    leaves: BTreeSet<(u64, NodeId)>,
    /// Nodes that have blocks of groups after the first, least recently used first.
    others: BTreeSet<(u64, NodeId)>,
}

impl Node {
    fn has_others(&self) -> bool {
        self.blocks.iter().skip(1).any(Option::is_some)
    }

    /// Its blocks of groups after the first that only the cache holds.
    fn idle_others(&self, pool: &StatePool) -> impl Iterator<Item = GroupBlock> {
        self.blocks().filter(|block| block.group > 0 && pool.is_idle(*block))
    }

    fn blocks(&self) -> impl Iterator<Item = GroupBlock> {
        self.blocks.iter().enumerate().filter_map(|(group, id)| Some(GroupBlock { group, id: (*id)? }))
    }
}

/// What a node loses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Eviction {
    Leaf,
    /// Its blocks of groups after the first.
    Others,
}

impl PrefixCache {
    /// Finds the cached prefix below a root of a text with these full blocks of tokens. `now` is the tick of this use.
    pub fn find(
        &mut self,
        root: Parent,
        edges: impl Iterator<Item = BlockKey>,
        pool: &StatePool,
        now: u64,
    ) -> CachedPrefix {
        let mut nodes = self.path(root, edges);
        let known = nodes.len();
        nodes.truncate(reusable(known, pool, |block| self.has(&nodes, block)));
        self.touch_path(&nodes, nodes.len(), pool, now);
        CachedPrefix { nodes, known }
    }

    /// Records a use of the nodes of a path, and of what `length` blocks need of the groups after the first.
    pub fn touch_path(&mut self, path: &[NodeId], length: usize, pool: &StatePool, now: u64) {
        path.iter().for_each(|id| self.touch(*id, now));
        let first = pool.first_needed_of_others(length * BLOCK);
        path.iter().skip(first.unwrap_or(usize::MAX)).for_each(|id| self.touch_others(*id, now));
    }

    /// The nodes below a root of a text with these full blocks of tokens, as far as there are any.
    pub fn path(&self, root: Parent, edges: impl Iterator<Item = BlockKey>) -> Vec<NodeId> {
        let mut parent = root;
        let next = |edge| {
            let id = *self.edges.get(&(parent, edge))?;
            parent = Parent::Node(id);
            Some(id)
        };
        edges.map_while(next).collect()
    }

    /// True if a node of a path has the block.
    pub fn has(&self, path: &[NodeId], block: TextBlock) -> bool {
        path.get(block.index).is_some_and(|node| self.block(*node, block.group).is_some())
    }

    /// The node of a full block below `parent`, which is added if it is not there.
    pub fn insert(&mut self, parent: Parent, edge: BlockKey, now: u64) -> NodeId {
        if let Some(&id) = self.edges.get(&(parent, edge)) {
            self.touch(id, now);
            return id;
        }
        let node = Node {
            parent,
            edge,
            blocks: Vec::new(),
            children: 0,
            last_used: now,
            others_used: now,
            is_checkpoint: false,
        };
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
        id
    }

    /// Gives a node a block, unless it has one of the group. Returns the block that it has now. `now` is the tick of the offer.
    fn offer(&mut self, id: NodeId, block: GroupBlock, now: u64) -> BlockId {
        let Some(Some(node)) = self.nodes.get_mut(id as usize) else { return block.id };
        if node.blocks.len() <= block.group {
            node.blocks.resize(block.group + 1, None);
        }
        let Some(slot) = node.blocks.get_mut(block.group) else { return block.id };
        if let Some(present) = *slot {
            return present;
        }
        *slot = Some(block.id);
        if block.group > 0 {
            self.others.remove(&(node.others_used, id));
            node.others_used = now;
            self.others.insert((now, id));
        }
        block.id
    }

    /// A node's block of a group, if it has one.
    pub fn block(&self, id: NodeId, group: usize) -> Option<BlockId> {
        *self.nodes.get(id as usize)?.as_ref()?.blocks.get(group)?
    }

    /// Gives a node a block that a sequence holds. If it has one of the group already, the sequence holds that one instead. Returns
    /// the block that the sequence holds now. Appends the other one to `freed` if nothing holds it any more.
    pub fn adopt(
        &mut self,
        id: NodeId,
        own: GroupBlock,
        pool: &mut StatePool,
        now: u64,
        freed: &mut Vec<GroupBlock>,
    ) -> BlockId {
        let kept = GroupBlock { id: self.offer(id, own, now), ..own };
        if kept == own {
            pool.cache(own);
        } else {
            pool.share(kept);
            freed.extend(Some(own).filter(|own| pool.release(*own)));
        }
        kept.id
    }

    /// Marks a node as one whose recurrent state is a checkpoint: it stays until it is evicted.
    pub fn keep_state(&mut self, id: NodeId) {
        if let Some(Some(node)) = self.nodes.get_mut(id as usize) {
            node.is_checkpoint = true;
        }
    }

    /// Takes a recurrent state from a node, unless it is a checkpoint or in use. `false`: it was not taken.
    pub fn take_state(&mut self, id: NodeId, state: GroupBlock, pool: &StatePool) -> bool {
        let is_checkpoint = |node: &Node| node.is_checkpoint;
        let kept = self.nodes.get(id as usize).and_then(Option::as_ref).is_none_or(is_checkpoint);
        let is_there = self.block(id, state.group) == Some(state.id);
        is_there && !kept && pool.is_idle(state) && self.take(id, state.group).is_some()
    }

    /// Takes a node's block of a group after the first. `None`: it has none.
    fn take(&mut self, id: NodeId, group: usize) -> Option<GroupBlock> {
        let node = self.nodes.get_mut(id as usize)?.as_mut()?;
        let block = node.blocks.get_mut(group)?.take()?;
        node.is_checkpoint = false;
        if !node.has_others() {
            self.others.remove(&(node.others_used, id));
        }
        Some(GroupBlock { group, id: block })
    }

    /// Renews a leaf, and what the last `count` nodes have of the groups after the first: a sequence that used them has ended.
    pub fn renew(&mut self, leaf: Parent, count: usize, now: u64) {
        let mut parent = leaf;
        for _ in 0..count {
            let Parent::Node(id) = parent else { return };
            if parent == leaf {
                self.touch(id, now);
            }
            self.touch_others(id, now);
            let Some(Some(node)) = self.nodes.get(id as usize) else { return };
            parent = node.parent;
        }
    }

    fn touch(&mut self, id: NodeId, now: u64) {
        let Some(Some(node)) = self.nodes.get_mut(id as usize) else { return };
        if self.leaves.remove(&(node.last_used, id)) {
            self.leaves.insert((now, id));
        }
        node.last_used = now;
    }

    fn touch_others(&mut self, id: NodeId, now: u64) {
        let Some(Some(node)) = self.nodes.get_mut(id as usize) else { return };
        if self.others.remove(&(node.others_used, id)) {
            self.others.insert((now, id));
        }
        node.others_used = now;
    }

    /// The tick of the last use of what would be evicted next.
    pub fn oldest_use(&self, pool: &StatePool) -> Option<u64> {
        self.next_eviction(pool).map(|(used, ..)| used)
    }

    /// Its last use, what it is, and the node.
    fn next_eviction(&self, pool: &StatePool) -> Option<(u64, Eviction, NodeId)> {
        let node = |id: NodeId| self.nodes.get(id as usize)?.as_ref();
        let is_idle = |id: NodeId| self.block(id, 0).is_some_and(|id| pool.is_idle(GroupBlock { group: 0, id }));
        let has_idle = |id: NodeId| node(id).is_some_and(|node| node.idle_others(pool).next().is_some());
        let leaf = self.leaves.iter().find(|(_, id)| is_idle(*id)).map(|(used, id)| (*used, Eviction::Leaf, *id));
        let others = self.others.iter().find(|(_, id)| has_idle(*id)).map(|(used, id)| (*used, Eviction::Others, *id));
        leaf.into_iter().chain(others).min()
    }

    /// Evicts what is least recently used of what no sequence holds. Returns its blocks; none if all are held.
    pub fn evict(&mut self, pool: &StatePool) -> Vec<GroupBlock> {
        match self.next_eviction(pool) {
            Some((_, Eviction::Leaf, id)) => self.remove_leaf(id),
            Some((_, Eviction::Others, id)) => self.take_others(id, pool),
            None => Vec::new(),
        }
    }

    fn remove_leaf(&mut self, id: NodeId) -> Vec<GroupBlock> {
        let Some(node) = self.nodes.get_mut(id as usize).and_then(Option::take) else { return Vec::new() };
        self.leaves.remove(&(node.last_used, id));
        self.others.remove(&(node.others_used, id));
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
        node.blocks().collect()
    }

    /// Takes the blocks of groups after the first that no sequence holds from a node.
    fn take_others(&mut self, id: NodeId, pool: &StatePool) -> Vec<GroupBlock> {
        let Some(Some(node)) = self.nodes.get(id as usize) else { return Vec::new() };
        let idle: Vec<GroupBlock> = node.idle_others(pool).collect();
        idle.into_iter().filter_map(|block| self.take(id, block.group)).collect()
    }

    /// All cached blocks.
    #[cfg(test)]
    pub fn blocks(&self) -> BTreeSet<GroupBlock> {
        self.nodes.iter().flatten().flat_map(Node::blocks).collect()
    }
}

/// How many of the first `count` blocks of a text can be reused together, if it `has` these blocks.
pub fn reusable(count: usize, pool: &StatePool, has: impl Fn(TextBlock) -> bool) -> usize {
    // Of each group, the consecutive blocks up to the present one.
    let mut runs = vec![0; pool.groups().len()];
    let mut reusable = 0;
    for length in 1..=count {
        let mut has_all = true;
        for (group, (run, layout)) in runs.iter_mut().zip(pool.groups()).enumerate() {
            *run = if has(TextBlock { index: length - 1, group }) { *run + 1 } else { 0 };
            has_all &= *run >= length - layout.first_needed(length * BLOCK);
        }
        if has_all {
            reusable = length;
        }
    }
    reusable
}

#[cfg(test)]
mod tests {
    use super::{NodeId, Parent, PrefixCache, PrefixRoot};
    use crate::text::prompt::BlockKey;
    use crate::text::scheduler::block_pool::{GroupBlock, StatePool};
    use outpost_models::kv::BLOCK;
    use outpost_models::state_layout::StateGroup;

    fn edge(token: u32) -> BlockKey {
        BlockKey { tokens: [token; BLOCK], media: 0 }
    }

    fn edges(tokens: &[u32]) -> impl Iterator<Item = BlockKey> {
        tokens.iter().map(|token| edge(*token))
    }

    fn pool(windows: &[Option<usize>]) -> StatePool {
        let mut pool = StatePool::default();
        let groups: Vec<_> = windows.iter().map(|window| StateGroup::attention(1, *window)).collect();
        pool.set_groups(&groups);
        pool
    }

    fn root_of(tenant: u128, adapter: Option<u64>, long: bool) -> Parent {
        Parent::Root(PrefixRoot { tenant, adapter, long })
    }

    fn root(tenant: u128) -> Parent {
        root_of(tenant, None, false)
    }

    /// Caches a text whose blocks have one token each, at the tick of each token.
    fn insert(tree: &mut PrefixCache, pool: &mut StatePool, tokens: &[u32]) -> Vec<NodeId> {
        let mut parent = root(1);
        let mut nodes = Vec::new();
        for token in tokens {
            let node = tree.insert(parent, edge(*token), u64::from(*token));
            let groups = pool.groups().len();
            for group in 0..groups {
                let block = GroupBlock { group, id: pool.allocate(group).unwrap() };
                assert_eq!(tree.offer(node, block, u64::from(*token)), block.id);
                pool.cache(block);
                pool.release(block);
            }
            nodes.push(node);
            parent = Parent::Node(node);
        }
        nodes
    }

    fn evict(tree: &mut PrefixCache, pool: &mut StatePool) -> Vec<(usize, u32)> {
        let evicted = tree.evict(pool);
        evicted.iter().for_each(|block| assert!(pool.uncache(*block)));
        evicted.iter().map(|block| (block.group, block.id)).collect()
    }

    #[test]
    fn prefixes_are_per_tenant_and_leaves_are_evicted_first() {
        let (mut tree, mut pool) = (PrefixCache::default(), pool(&[None]));
        let nodes = insert(&mut tree, &mut pool, &[7, 8, 9]);
        assert_eq!(tree.find(root(1), edges(&[7, 8, 1]), &pool, 20).nodes, nodes[..2]);
        assert_eq!(tree.find(root(1), edges(&[7]), &pool, 21).nodes, nodes[..1]);
        assert!(tree.find(root(2), edges(&[7, 8, 9]), &pool, 22).nodes.is_empty(), "another tenant");
        assert!(tree.find(root_of(1, None, true), edges(&[7]), &pool, 22).nodes.is_empty(), "a long sequence");
        assert!(tree.find(root_of(1, Some(1), false), edges(&[7]), &pool, 22).nodes.is_empty(), "an adapter");
        let again = tree.insert(root(1), edge(7), 23);
        assert_eq!(tree.offer(again, GroupBlock { group: 0, id: 99 }, 23), 0, "the block that was there stays");
        let gone: Vec<_> = (0..3).flat_map(|_| evict(&mut tree, &mut pool)).collect();
        assert_eq!(gone, [(0, 2), (0, 1), (0, 0)], "from the leaves to the root");
        assert_eq!((tree.blocks().len(), pool.used_bytes(), tree.evict(&pool).len()), (0, 0, 0));
    }

    #[test]
    fn blocks_in_use_are_not_evicted() {
        let (mut tree, mut pool) = (PrefixCache::default(), pool(&[None]));
        let block = GroupBlock { group: 0, id: pool.allocate(0).unwrap() };
        let node = tree.insert(root(1), edge(7), 1);
        tree.offer(node, block, 1);
        pool.cache(block);
        assert_eq!((tree.evict(&pool), tree.oldest_use(&pool)), (vec![], None));
        pool.release(block);
        assert_eq!((tree.oldest_use(&pool), tree.evict(&pool)), (Some(1), vec![block]));
    }

    /// A token sees two blocks of the second group at the end of a block.
    #[test]
    fn a_prefix_is_reused_where_the_last_window_is_cached() {
        let (mut tree, mut pool) = (PrefixCache::default(), pool(&[None, Some(2 * BLOCK)]));
        let nodes = insert(&mut tree, &mut pool, &[1, 2, 3, 4, 5, 6]);
        let text = [1, 2, 3, 4, 5, 6];
        assert_eq!(tree.find(root(1), edges(&text[..4]), &pool, 6).nodes, nodes[..4]);
        assert_eq!(evict(&mut tree, &mut pool), [(1, 0)], "a use does not renew what fell out of the window");
        assert_eq!(evict(&mut tree, &mut pool), [(1, 1)]);
        assert_eq!(evict(&mut tree, &mut pool), [(1, 4)]);
        assert_eq!(
            tree.find(root(1), edges(&text), &pool, 7).nodes,
            nodes[..4],
            "after that, the last window is incomplete"
        );
        assert_eq!(evict(&mut tree, &mut pool), [(0, 5), (1, 5)], "a leaf goes with its blocks");
        assert_eq!(evict(&mut tree, &mut pool), [(0, 4)]);
        assert_eq!(evict(&mut tree, &mut pool), [(0, 3), (1, 3)]);
        assert!(tree.find(root(1), edges(&text), &pool, 8).nodes.is_empty());
        // The block returns with a sequence that computes the prefix again.
        let id = pool.allocate(1).unwrap();
        assert_eq!(tree.offer(nodes[0], GroupBlock { group: 1, id }, 8), id);
        assert_eq!(tree.find(root(1), edges(&text), &pool, 9).nodes, nodes[..1]);
    }
}
