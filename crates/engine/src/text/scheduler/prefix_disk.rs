//! The scheduler's part in the prefix cache on disk: which blocks of a text are read before its request starts, and which are
//! written after a sequence has ended.
//!
//! Blocks that are read become blocks of the prefix cache that no sequence holds, so they never take memory that a sequence needs,
//! and the request finds them as it finds other cached blocks.

use super::block_pool::{GroupBlock, TextBlock};
use super::prefix_cache::{self, Parent};
use super::text_on_disk::{EndedText, PrefixOnDisk, Restore};
use super::{Model, ModelId, Scheduler, Sequence, SequenceId};
use crate::ids::RequestId;
use outpost_models::kv::{BLOCK, BlockId};
use outpost_models::state_layout::StateGroup;

impl Scheduler {
    /// Makes a new request wait for blocks that would lengthen its cached prefix. `on_disk`: for each block of the prompt, which
    /// groups have it. `None`: none would; the request does not wait.
    pub fn begin_restore(&mut self, request: RequestId, on_disk: &[Vec<bool>]) -> Option<PrefixOnDisk> {
        let id = SequenceId { request, choice: 0 };
        let sequence = self.sequences.get(&id).filter(|one| !one.needs_prompt_logits())?;
        let (tenant, root, model_id) = (sequence.tenant, sequence.prefix_root(), sequence.model);
        let model = self.models.get_mut(&model_id)?;
        let known = sequence.tokens.len().saturating_sub(1) / BLOCK;
        let mut keys: Vec<_> = sequence.tokens.blocks_from(0).take(known).collect();
        let path = model.prefixes.path(root, keys.iter().copied());
        let in_memory = |block: TextBlock| model.prefixes.has(&path, block);
        let is_on_disk =
            |block: TextBlock| on_disk.get(block.index).and_then(|groups| groups.get(block.group)) == Some(&true);
        let reusable = |has: &dyn Fn(TextBlock) -> bool| prefix_cache::reusable(keys.len(), &model.pool, has);
        let length = reusable(&|block| in_memory(block) || is_on_disk(block));
        if length <= reusable(&in_memory) {
            return None;
        }
        let of_group = |(group, layout): (usize, StateGroup)| {
            (layout.first_needed(length * BLOCK)..length).map(move |index| TextBlock { index, group })
        };
        let mut needed: Vec<TextBlock> = model.pool.groups().enumerate().flat_map(of_group).collect();
        needed.sort_unstable();
        let missing = needed.iter().copied().filter(|block| !in_memory(*block)).collect();
        keys.truncate(length);
        self.ticks += 1;
        // What is in memory must not be evicted for the rest.
        model.prefixes.touch_path(path.get(..length).unwrap_or(&path), length, &model.pool, self.ticks);
        self.restores.insert(request, Restore { model: model_id, root, keys, since: self.ticks });
        self.queues.set_ready(tenant, id, false);
        Some(PrefixOnDisk { missing, needed })
    }

    /// Allocates a block for contents that were read. Evicts only blocks that were used less recently. All blocks together take at most
    /// `max_bytes`. The block must be given to [`Self::insert_restored`] or [`Self::release_restored`]. Before its contents are written,
    /// the memory of released blocks must be freed, because its ID may be that of one of them.
    pub fn allocate_restored(&mut self, request: RequestId, group: usize, max_bytes: u64) -> Option<BlockId> {
        let Restore { model: id, since, .. } = *self.restores.get(&request)?;
        let bytes = self.models.get(&id)?.pool.group(group)?.block_bytes;
        while self.used_bytes() + bytes > max_bytes {
            let is_older = self.oldest_use().is_some_and(|used| used < since);
            if !is_older || !self.evict() {
                return None;
            }
        }
        self.models.get_mut(&id)?.pool.allocate(group)
    }

    /// Puts blocks with restored contents into the prefix cache, in the order of the text. `false`: the blocks before them are no
    /// longer there. The blocks that it does not need are released.
    pub fn insert_restored(&mut self, request: RequestId, blocks: &[(TextBlock, BlockId)]) -> bool {
        self.ticks += 1;
        let (Some(restore), now) = (self.restores.get(&request), self.ticks) else { return false };
        let Some(model) = self.models.get_mut(&restore.model) else { return false };
        let (mut path, mut freed) = (model.prefixes.path(restore.root, restore.keys.iter().copied()), Vec::new());
        let mut inserted = true;
        for (at, id) in blocks {
            let own = GroupBlock { group: at.group, id: *id };
            if at.index == path.len()
                && at.group == 0
                && let Some(key) = restore.keys.get(at.index)
            {
                let parent = path.last().map_or(restore.root, |node| Parent::Node(*node));
                path.push(model.prefixes.insert(parent, *key, now));
            }
            let held = match path.get(at.index) {
                Some(node) => model.prefixes.adopt(*node, own, &mut model.pool, now, &mut freed),
                None => {
                    inserted = false;
                    own.id
                }
            };
            let held = GroupBlock { id: held, ..own };
            freed.extend(Some(held).filter(|held| model.pool.release(*held)));
        }
        self.released.extend(freed.into_iter().map(|block| (restore.model, block)));
        inserted
    }

    /// Releases blocks whose contents could not be restored.
    pub fn release_restored(&mut self, model: ModelId, blocks: &[(TextBlock, BlockId)]) {
        let Some(Model { pool, .. }) = self.models.get_mut(&model) else { return };
        let blocks = blocks.iter().map(|(at, id)| GroupBlock { group: at.group, id: *id });
        self.released.extend(blocks.filter(|block| pool.release(*block)).map(|block| (model, block)));
    }

    /// Lets a request start that waited for blocks.
    pub fn end_restore(&mut self, request: RequestId) {
        let id = SequenceId { request, choice: 0 };
        if self.restores.remove(&request).is_some()
            && let Some(sequence) = self.sequences.get(&id).filter(|one| !one.is_running())
        {
            self.queues.set_ready(sequence.tenant, id, true);
        }
    }

    /// Keeps the text of a sequence that ends, if it is to be written.
    pub(super) fn keep_text(&mut self, sequence: &Sequence) {
        let Some(disk) = sequence.disk.filter(|_| sequence.cached > 0) else { return };
        self.ended.push(EndedText {
            model: sequence.model,
            disk,
            groups: sequence.tables.len() + usize::from(sequence.recurrent.is_some()),
            root: sequence.prefix_root(),
            keys: sequence.tokens.blocks_from(0).take(sequence.cached).collect(),
            prompt: sequence.tokens.prompt_len(),
        });
    }

    /// The texts of the sequences that have ended since the last call.
    pub fn take_ended(&mut self) -> Vec<EndedText> {
        std::mem::take(&mut self.ended)
    }

    /// The blocks of an ended text that are in the prefix cache and that later texts may need, from the one with this index on.
    pub fn blocks_to_write(&self, text: &EndedText, from: usize) -> Vec<(TextBlock, BlockId)> {
        let Some(Model { pool, prefixes }) = self.models.get(&text.model) else { return Vec::new() };
        let path = prefixes.path(text.root, text.keys.iter().copied());
        let of_node = |(index, node)| {
            let needed = pool.groups().enumerate().filter(move |(_, layout)| text.may_need(*layout, index));
            needed.filter_map(move |(group, _)| Some((TextBlock { index, group }, prefixes.block(node, group)?)))
        };
        path.into_iter().enumerate().skip(from).flat_map(of_node).collect()
    }
}
