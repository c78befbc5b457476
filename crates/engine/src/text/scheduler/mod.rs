//! Continuous batching: decides what the next step computes. A state machine without tensors, clock or threads.
//!
//! A sequence waits or runs; preemption makes a running sequence wait again. [`Scheduler::plan`] admits sequences while
//! there are slots and memory, allocates KV blocks, and returns one ragged batch per model: the newest token of every
//! decoding sequence and chunks of prompts. [`Scheduler::commit`] takes the outcome of each row.
//!
//! A model's layers form groups, each with its own blocks. Where a group has a window, a sequence gives back the blocks that
//! no later token sees. They stay in the prefix cache while memory lasts. Recurrent layers have a block for their state
//! ([`recurrent_state`]).
//!
//! Invariants: a block is free, held by sequences or held by the prefix cache; all blocks in use fit the memory limit;
//! no tenant with work starves; a cancelled request leaves nothing behind. Full blocks of a preempted sequence stay in
//! the prefix cache, so resuming is cheap while memory lasts. Its tokens are kept, so the output does not change.

mod admission;
mod batch;
pub mod block_pool;
mod draft_lookahead_blocks;
mod fair_shares;
pub mod ids;
pub mod preemption;
mod prefix_cache;
mod prefix_disk;
pub mod recurrent_state;
mod sequence_queues;
mod sequence_tokens;
#[cfg(test)]
mod tests;
mod text_on_disk;

use std::collections::BTreeMap;

use outpost_models::kv::{BLOCK, blocks_for};
use outpost_models::state_layout::StateGroup;

use crate::ids::{AdapterId, RequestId, Tenant};
use crate::text::prefix_disk::names::DiskRoot;
use crate::text::prompt::Prompt;
use block_pool::{BlockTable, StatePool};
use fair_shares::FairShares;
use prefix_cache::{Parent, PrefixCache, PrefixRoot};
use recurrent_state::RecurrentState;
use sequence_queues::{QueuedWork, SequenceQueues};
use text_on_disk::Restore;

pub use batch::{Batch, Row, StepPlan};
pub use block_pool::{GroupBlock, TextBlock};
pub use draft_lookahead_blocks::{DraftContext, DraftStart};
pub use ids::{ModelId, SequenceId};
pub use sequence_tokens::SequenceTokens;
pub use text_on_disk::EndedText;

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Sequences that run at the same time, over all models.
    pub running: usize,
    /// Max waiting choices per model.
    pub choices: usize,
    /// Max waiting prompt tokens per model.
    pub tokens: usize,
    /// One tenant may use at most `1 / tenant_divisor` of both queue limits.
    pub tenant_divisor: usize,
    /// Positions whose logits one step computes; at least `running`.
    pub logits: usize,
}

/// A request as the scheduler sees it.
#[derive(Clone, Debug)]
pub struct Request {
    pub model: ModelId,
    /// The adapter of the model, if it uses one.
    pub adapter: Option<AdapterId>,
    /// What the model keeps of a sequence: groups of attention, the first without a window, and then that of the recurrent
    /// layers, if there are any.
    pub groups: Vec<StateGroup>,
    pub tenant: Tenant,
    pub prompt: Prompt,
    pub choices: u32,
    /// Max tokens to generate for each choice.
    pub max_tokens: u32,
    /// Whether its choices are computed as long sequences: see `CausalLm::is_long`.
    pub long: bool,
    /// Requests the logits of all positions of the prompt, and not only those of the last one.
    pub prompt_logits: bool,
    /// Where its texts are written to disk. `None`: they are not.
    pub disk: Option<DiskRoot>,
}

/// The queue limit that a refused request exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Full {
    Model,
    Tenant,
}

#[derive(Debug)]
pub struct Scheduler {
    limits: Limits,
    models: BTreeMap<ModelId, Model>,
    sequences: BTreeMap<SequenceId, Sequence>,
    queues: SequenceQueues,
    shares: FairShares,
    last_request: RequestId,
    /// A logical clock that orders admissions and uses of cached blocks.
    ticks: u64,
    /// Sequences preempted since the last plan.
    preempted: u64,
    /// Blocks that became free and whose memory can be released.
    released: Vec<(ModelId, GroupBlock)>,
    /// Requests that wait for blocks from disk.
    restores: BTreeMap<RequestId, Restore>,
    /// Texts of ended sequences that are to be written to disk.
    ended: Vec<EndedText>,
}

#[derive(Debug, Default)]
struct Model {
    pool: StatePool,
    prefixes: PrefixCache,
}

#[derive(Debug)]
struct Sequence {
    model: ModelId,
    adapter: Option<AdapterId>,
    tenant: Tenant,
    long: bool,
    tokens: SequenceTokens,
    /// Positions of the prompt whose logits are not needed any more. All of the prompt, unless the request asks for them.
    scored: usize,
    /// Tokens that may still be generated.
    left: u32,
    /// Positions whose keys and values are in blocks.
    computed: usize,
    /// The blocks of each group of attention.
    tables: Vec<BlockTable>,
    /// `None`: no layer is recurrent.
    recurrent: Option<RecurrentState>,
    /// Tokens of the row that was planned last.
    planned: usize,
    /// How many blocks of positions are in the prefix cache; `parent` is the node of the last one.
    cached: usize,
    parent: Parent,
    phase: Phase,
    /// The client does not read fast enough.
    paused: bool,
    /// Draft tokens that the next step verifies.
    draft: Vec<u32>,
    /// Prompt tokens found in the prefix cache when it first ran.
    prefix_hit: Option<usize>,
    /// Prompt tokens that are already charged to the tenant, or were cached.
    charged: usize,
    /// Where its text is written to disk.
    disk: Option<DiskRoot>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Waiting,
    /// Since that tick.
    Running(u64),
}

/// What is waiting and running.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that have not started.
    pub queued: usize,
    /// Their prompt tokens.
    pub queued_tokens: usize,
    /// Running sequences.
    pub running: usize,
    /// Bytes of the blocks that sequences hold.
    pub held_bytes: u64,
    /// Bytes of the blocks that only the prefix cache holds.
    pub cached_bytes: u64,
}

impl Scheduler {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            models: BTreeMap::new(),
            sequences: BTreeMap::new(),
            queues: SequenceQueues::default(),
            shares: FairShares::default(),
            last_request: 0,
            ticks: 0,
            preempted: 0,
            released: Vec::new(),
            restores: BTreeMap::new(),
            ended: Vec::new(),
        }
    }

    /// Sets the most waiting choices per model. Requests that wait already stay.
    pub fn set_max_choices(&mut self, choices: usize) {
        self.limits.choices = choices;
    }

    /// A scheduler with the same limits and no requests. Request IDs continue from this one's.
    pub fn new_empty(&self) -> Self {
        Self { last_request: self.last_request, ..Self::new(self.limits) }
    }

    /// Queues a request, or returns which limit is full. Free slots extend the queue, so the
    /// result does not depend on when the next step starts.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, Full> {
        let Request { model, adapter, groups, tenant, prompt, choices, max_tokens, long, prompt_logits, disk } =
            request;
        self.admits(model, tenant, prompt.len(), choices as usize)?;
        self.models.entry(model).or_default().pool.set_groups(&groups);
        self.last_request += 1;
        for choice in 0..choices {
            self.shares.add_sequence(tenant);
            let sequence = Sequence {
                model,
                adapter,
                tenant,
                long,
                tokens: SequenceTokens::new(prompt.clone()),
                // The other choices have the same prompt.
                scored: if prompt_logits && choice == 0 { 0 } else { prompt.len() },
                left: max_tokens,
                computed: 0,
                tables: vec![BlockTable::default(); groups.iter().filter(|group| !group.is_recurrent()).count()],
                recurrent: groups.last().filter(|group| group.is_recurrent()).map(|_| RecurrentState::default()),
                planned: 0,
                cached: 0,
                parent: Parent::Root(PrefixRoot { tenant, adapter, long }),
                phase: Phase::Waiting,
                paused: false,
                draft: Vec::new(),
                prefix_hit: None,
                charged: 0,
                disk,
            };
            let id = SequenceId { request: self.last_request, choice };
            self.sequences.insert(id, sequence);
            self.queues.add_queued(model, tenant, id, prompt.len());
            self.queues.set_ready(tenant, id, choice == 0);
        }
        Ok(self.last_request)
    }

    /// Checks that the queue accepts a request with this many prompt tokens and choices.
    pub fn admits(&self, model: ModelId, tenant: Tenant, prompt: usize, choices: usize) -> Result<(), Full> {
        let Limits { tokens, tenant_divisor, .. } = self.limits;
        let free = self.limits.running.saturating_sub(self.queues.running().len());
        // An empty queue accepts any request.
        let is_full = |queued: QueuedWork, divisor: usize| {
            let limit = (self.limits.choices / divisor).max(1) + free;
            queued.choices > 0 && (queued.choices + choices > limit || queued.tokens + prompt > tokens / divisor)
        };
        if is_full(self.queues.queued(|one, _| one == model), 1) {
            return Err(Full::Model);
        }
        match is_full(self.queues.queued(|one, owner| one == model && owner == tenant), tenant_divisor) {
            true => Err(Full::Tenant),
            false => Ok(()),
        }
    }

    fn running(&self) -> impl Iterator<Item = (&SequenceId, &Sequence)> {
        self.queues.running().iter().filter_map(|id| self.sequences.get_key_value(id))
    }

    /// Drops a request with all of its sequences.
    pub fn cancel(&mut self, request: RequestId) {
        let choices = SequenceId { request, choice: 0 }..=SequenceId { request, choice: u32::MAX };
        let ids: Vec<_> = self.sequences.range(choices).map(|(id, _)| *id).collect();
        for id in ids {
            self.finish(id);
        }
        self.restores.remove(&request);
    }

    /// Removes a sequence that has ended. Its full blocks stay in the prefix cache. Returns the number of generated
    /// tokens.
    pub fn finish(&mut self, id: SequenceId) -> usize {
        let Some(mut sequence) = self.sequences.remove(&id) else { return 0 };
        self.keep_text(&sequence);
        self.release_blocks(&mut sequence);
        let Sequence { model, tenant, tokens, prefix_hit, .. } = sequence;
        self.queues.remove(tenant, id);
        if prefix_hit.is_none() {
            self.queues.remove_queued(model, tenant, id, tokens.prompt_len());
        }
        self.shares.remove_sequence(tenant);
        self.refresh_siblings(id);
        tokens.generated()
    }

    /// Pauses a sequence whose client does not read fast enough, or resumes it.
    pub fn set_paused(&mut self, id: SequenceId, paused: bool) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.paused = paused;
        }
    }

    /// Sets draft tokens that may follow the newest one. The next step computes them too, as far as there is
    /// memory. [`Scheduler::commit`] then takes those that were accepted.
    pub fn propose(&mut self, id: SequenceId, mut draft: Vec<u32>) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            draft.truncate(sequence.left.saturating_sub(1) as usize);
            sequence.draft = draft;
        }
    }

    /// Records a computed row: `positions` of its tokens stay, and `new` tokens follow. If the model is recurrent and not all
    /// tokens of the row stay, those that do are computed again.
    pub fn commit(&mut self, id: SequenceId, positions: usize, new: &[u32]) {
        self.ticks += 1;
        let now = self.ticks;
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let Some(model) = self.models.get_mut(&sequence.model) else { return };
        let mut freed = Vec::new();
        let positions = sequence.advance_state(&mut model.pool, positions);
        sequence.computed += positions;
        sequence.scored = sequence.scored.max(sequence.computed.min(sequence.tokens.prompt_len()));
        let prompt = sequence.tokens.prompt_len();
        let completes_prompt = (sequence.computed - positions) < prompt && sequence.computed >= prompt;
        let prompt_tokens = sequence.computed.min(prompt).saturating_sub(sequence.charged);
        sequence.charged += prompt_tokens;
        sequence.tokens.extend(new);
        sequence.left = sequence.left.saturating_sub(new.len() as u32);
        self.shares.charge(sequence.tenant, prompt_tokens, new.len());
        sequence.cache_full_blocks(model, now, &mut freed);
        sequence.cache_state(model, now, &mut freed);
        sequence.give_back(model, &mut freed);
        self.released.extend(freed.into_iter().map(|block| (sequence.model, block)));
        if completes_prompt {
            self.refresh_siblings(id);
        }
    }

    /// The first choice of a request may wait for blocks from disk. Later ones wait until it has computed the prompt. They then
    /// find it in the prefix cache.
    fn is_ready(&self, id: SequenceId) -> bool {
        let first = self.sequences.get(&SequenceId { choice: 0, ..id });
        match id.choice {
            0 => !self.restores.contains_key(&id.request),
            _ => first.is_none_or(|first| first.computed >= first.tokens.prompt_len()),
        }
    }

    /// Updates which later choices of a request can be admitted, after its first choice has advanced or ended.
    fn refresh_siblings(&mut self, id: SequenceId) {
        if id.choice != 0 {
            return;
        }
        let ready = self.is_ready(SequenceId { choice: 1, ..id });
        let later = SequenceId { choice: 1, ..id }..=SequenceId { choice: u32::MAX, ..id };
        for (other, sequence) in self.sequences.range(later) {
            if !sequence.is_running() {
                self.queues.set_ready(sequence.tenant, *other, ready);
            }
        }
    }

    /// The number of sequences that decode in the next step.
    pub fn decoding(&self) -> usize {
        self.running().filter(|(_, one)| !one.paused && one.decodes()).count()
    }

    /// The number of sequences with prompt tokens left to prefill.
    pub fn prefilling(&self) -> usize {
        self.running().filter(|(_, one)| !one.paused && !one.decodes() && one.pending() > 0).count()
    }

    /// Prompt tokens that were in the prefix cache when the sequence first ran.
    pub fn prefix_hit(&self, id: SequenceId) -> usize {
        self.sequences.get(&id).and_then(|one| one.prefix_hit).unwrap_or(0)
    }

    /// Counts over all models.
    pub fn counts(&self) -> Counts {
        self.count(|_| true)
    }

    /// Counts of one model.
    pub fn counts_of(&self, model: ModelId) -> Counts {
        self.count(|id| id == model)
    }

    fn count(&self, of: impl Fn(ModelId) -> bool) -> Counts {
        let QueuedWork { requests: queued, tokens: queued_tokens, .. } = self.queues.queued(|model, _| of(model));
        let running = self.running().filter(|(_, one)| of(one.model)).count();
        let models = || self.models.iter().filter(|(id, _)| of(**id)).map(|(_, model)| model);
        let cached_bytes = models().map(|model| model.pool.idle_bytes()).sum();
        let held_bytes = models().map(|model| model.pool.used_bytes()).sum::<u64>() - cached_bytes;
        Counts { queued, queued_tokens, running, held_bytes, cached_bytes }
    }

    /// Bytes of all blocks in use.
    pub fn used_bytes(&self) -> u64 {
        self.models.values().map(|model| model.pool.used_bytes()).sum()
    }

    fn idle_bytes(&self) -> u64 {
        self.models.values().map(|model| model.pool.idle_bytes()).sum()
    }

    /// Tokens left to compute for the tenants that match, assuming at most `expected_tokens` more per sequence.
    pub fn remaining_work(&self, expected_tokens: u32, of: impl Fn(Tenant) -> bool) -> u64 {
        let sequences = self.sequences.values().filter(|one| of(one.tenant));
        let prompt = |one: &Sequence| one.tokens.prompt_len().saturating_sub(one.computed) as u64;
        sequences.map(|one| prompt(one) + u64::from(one.left.min(expected_tokens))).sum()
    }

    /// The number of tenants with work.
    pub fn tenants(&self) -> usize {
        self.shares.at_work()
    }

    /// Evicts cached blocks until at most `max_bytes` bytes are used or none is left to evict.
    pub fn shrink(&mut self, max_bytes: u64) {
        while self.used_bytes() > max_bytes && self.evict() {}
    }

    /// Removes a model that is no longer loaded, with its prefix cache. Its sequences must have ended.
    pub fn remove_model(&mut self, model: ModelId) {
        self.models.remove(&model);
    }

    pub fn has_model(&self, model: ModelId) -> bool {
        self.models.contains_key(&model)
    }

    /// The tick of the last use of what would be evicted next.
    fn oldest_use(&self) -> Option<u64> {
        self.models.values().filter_map(|model| model.prefixes.oldest_use(&model.pool)).min()
    }

    /// Evicts the least recently used cached blocks of any model. `false`: there are none.
    fn evict(&mut self) -> bool {
        let oldest_use = |(_, model): &(&ModelId, &mut Model)| model.prefixes.oldest_use(&model.pool);
        let candidates = self.models.iter_mut().filter_map(|one| oldest_use(&one).map(|used| (used, one)));
        let Some((_, (id, model))) = candidates.min_by_key(|(used, _)| *used) else { return false };
        let evicted = model.prefixes.evict(&model.pool);
        let freed = evicted.iter().filter(|block| model.pool.uncache(**block));
        self.released.extend(freed.map(|block| (*id, *block)));
        !evicted.is_empty()
    }

    /// Releases all blocks of the sequence; it has to start from the prefix cache again.
    fn release_blocks(&mut self, sequence: &mut Sequence) {
        let Some(model) = self.models.get_mut(&sequence.model) else { return };
        sequence.renew_prefix(model, self.ticks);
        for block in sequence.take_blocks() {
            if model.pool.release(block) {
                self.released.push((sequence.model, block));
            }
        }
        (sequence.computed, sequence.cached) = (0, 0);
        sequence.parent = sequence.prefix_root();
        sequence.phase = Phase::Waiting;
    }
}

impl Sequence {
    fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running(_))
    }

    /// True while logits of the prompt are needed, from position `scored` on.
    fn needs_prompt_logits(&self) -> bool {
        self.scored < self.tokens.prompt_len()
    }

    /// Tokens that are not computed yet.
    fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// The index of the group of recurrent layers, if the model has any: it follows those of attention.
    fn recurrent_group(&self) -> usize {
        self.tables.len()
    }

    /// Accepted tokens that the next step computes again, before the newest one.
    fn again(&self) -> usize {
        self.recurrent.as_ref().map_or(0, RecurrentState::again)
    }

    /// Takes over the recurrent state that a step wrote. `positions`: computed tokens that stay. Returns those that are computed
    /// now: none if the state has seen others, too.
    fn advance_state(&mut self, pool: &mut StatePool, positions: usize) -> usize {
        let (group, is_whole) = (self.recurrent_group(), positions == self.planned);
        let Some(state) = &mut self.recurrent else { return positions };
        state.advance(positions, is_whole, group, pool);
        if is_whole { positions } else { 0 }
    }

    /// Puts the recurrent state into the prefix cache if it is the one after the last cached block. Appends blocks that became free
    /// to `freed`.
    fn cache_state(&mut self, model: &mut Model, now: u64, freed: &mut Vec<GroupBlock>) {
        let (group, at_block) = (self.recurrent_group(), self.computed == self.cached * BLOCK);
        let (Some(state), Parent::Node(node), true) = (&mut self.recurrent, self.parent, at_block) else { return };
        let is_checkpoint = state.is_checkpoint(self.computed);
        let Model { pool, prefixes } = &mut *model;
        state.cache(node, group, is_checkpoint, (pool, prefixes), now, freed);
        if is_checkpoint {
            self.renew_prefix(model, now);
        }
    }

    /// True if the next step computes its newest token, besides those that a rejected draft makes it compute again.
    fn decodes(&self) -> bool {
        self.pending() == 1 + self.again()
    }

    /// Renews the last use of what the cached prefix of the sequence needs to be reused.
    fn renew_prefix(&self, model: &mut Model, now: u64) {
        let needed = model.pool.first_needed_of_others(self.computed);
        let renewed = self.cached.saturating_sub(needed.unwrap_or(self.cached));
        model.prefixes.renew(self.parent, renewed, now);
    }

    /// Takes all its blocks from it.
    fn take_blocks(&mut self) -> Vec<GroupBlock> {
        let states = self.recurrent.as_mut().map(std::mem::take).unwrap_or_default();
        let group = self.recurrent_group();
        let states = states.held().map(|id| GroupBlock { group, id }).collect::<Vec<_>>();
        let tables = self.tables.iter_mut().map(std::mem::take).enumerate();
        let tables = tables
            .flat_map(|(group, table)| table.held().iter().map(|id| GroupBlock { group, id: *id }).collect::<Vec<_>>());
        tables.chain(states).collect()
    }

    /// Bytes of the blocks it needs for all its tokens and one more that it generates, beyond those it has, with `spare`
    /// blocks of each group, if at most `chunk` tokens are computed at once.
    fn bytes_needed(&self, state: &StatePool, chunk: usize, spare: usize) -> u64 {
        let positions = self.tokens.len() + usize::from(self.left > 0);
        let needed = |(group, table): (StateGroup, &BlockTable)| {
            let blocks = group.max_blocks(positions, chunk).saturating_sub(table.held().len());
            // A table is complete when it reaches the last position.
            let missing = blocks_for(positions).saturating_sub(table.len());
            (blocks.min(missing) + spare) as u64 * group.block_bytes
        };
        let recurrent = self.recurrent.as_ref().zip(state.group(self.recurrent_group()));
        let states = recurrent.map_or(0, |(own, group)| {
            group.max_blocks(positions, chunk).saturating_sub(own.held().count()) as u64 * group.block_bytes
        });
        states + state.groups().zip(&self.tables).map(needed).sum::<u64>()
    }

    /// Puts full blocks into the prefix cache. Appends to `freed` those that became free because the cache already had the
    /// same tokens.
    fn cache_full_blocks(&mut self, model: &mut Model, now: u64, freed: &mut Vec<GroupBlock>) {
        let full = self.computed / BLOCK;
        for edge in self.tokens.blocks_from(self.cached).take(full.saturating_sub(self.cached)) {
            let node = model.prefixes.insert(self.parent, edge, now);
            for (group, table) in self.tables.iter_mut().enumerate() {
                let Some(own) = table.get_mut(self.cached) else { continue };
                *own = model.prefixes.adopt(node, GroupBlock { group, id: *own }, &mut model.pool, now, freed);
            }
            self.parent = Parent::Node(node);
            self.cached += 1;
        }
    }

    /// Gives back the blocks that no later token sees. They are in the prefix cache. Appends those that became free all the
    /// same to `freed`.
    fn give_back(&mut self, model: &mut Model, freed: &mut Vec<GroupBlock>) {
        for (group, table) in self.tables.iter_mut().enumerate() {
            let first = model.pool.group(group).map_or(0, |layout| layout.first_needed(self.computed));
            for id in table.give_back(first.min(self.cached)) {
                let block = GroupBlock { group, id };
                if model.pool.release(block) {
                    freed.push(block);
                }
            }
        }
    }
}
