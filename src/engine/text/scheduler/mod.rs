//! What is computed next: a state machine without tensors, clock or threads.
//!
//! Sequences wait, run, and may be put back to wait (preempted). [`Scheduler::plan`] admits what has
//! a place and memory, takes blocks, and gives one ragged batch a model: the newest token of every
//! running answer and a slice of prompts. [`Scheduler::commit`] takes what became of each row.
//!
//! What always holds: a block belongs to nobody, to sequences or to the prefix cache, and all of
//! them together fit the room; a tenant with work is never left for good; whoever is cancelled
//! leaves nothing behind. A preempted sequence gives its blocks to the prefix cache, so going on
//! costs little while memory lasts; its tokens stay, so its answer does not change.

mod admission;
mod batch;
pub mod block_pool;
mod fair_shares;
pub mod ids;
mod lookahead;
pub mod prefix_cache;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use crate::models::kv::{BLOCK, BlockId, blocks_for};

use block_pool::BlockPool;
use fair_shares::FairShares;
use prefix_cache::{Parent, PrefixCache};

pub use batch::{Batch, Row, StepPlan};
pub use ids::{ModelId, RequestId, SequenceId, Tenant};
pub use lookahead::DraftContext;

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Answers that run at the same time, of all models.
    pub running: usize,
    /// Requests of one model that may wait.
    pub requests: usize,
    /// Prompt tokens of those.
    pub tokens: usize,
    /// The share of both that one tenant may take, as one part in so many.
    pub tenant_divisor: usize,
}

/// A request as the scheduler sees it.
#[derive(Clone, Debug)]
pub struct Request {
    pub model: ModelId,
    /// Bytes of a block of its model.
    pub block_bytes: u64,
    pub tenant: Tenant,
    pub prompt: Vec<u32>,
    pub choices: u32,
    /// Most tokens of each answer.
    pub max_tokens: u32,
    /// Whether its answers are computed as long ones: see `CausalLm::is_long`.
    pub long: bool,
}

/// Which bound a refused request ran into.
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
    shares: FairShares,
    requests: RequestId,
    /// Orders admissions and uses of cached blocks.
    ticks: u64,
    /// Sequences put back to wait since somebody asked.
    preempted: u64,
    /// BlockPool that became free and whose memory can be given back.
    released: Vec<(ModelId, BlockId)>,
}

#[derive(Debug, Default)]
struct Model {
    block_bytes: u64,
    blocks: BlockPool,
    prefixes: PrefixCache,
}

#[derive(Debug)]
struct Sequence {
    model: ModelId,
    tenant: Tenant,
    long: bool,
    /// The prompt and what was generated.
    tokens: Vec<u32>,
    prompt: usize,
    /// Tokens that may still come.
    left: u32,
    /// Positions whose keys and values are in `blocks`.
    computed: usize,
    blocks: Vec<BlockId>,
    /// Of `blocks`, so many are in the prefix cache; the last of them is `parent`.
    cached: usize,
    parent: Parent,
    state: State,
    /// Its reader does not keep up.
    paused: bool,
    /// Tokens that may come next, to be checked in one step.
    draft: Vec<u32>,
    /// Prompt tokens that were there when it first ran.
    hit: Option<usize>,
    /// Prompt tokens that its tenant need not pay for any more.
    paid: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    /// Since this tick.
    Running(u64),
}

/// What waits and runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests of which nothing has run.
    pub queued: usize,
    /// Prompt tokens of those.
    pub queued_tokens: usize,
    /// Answers that run.
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
            shares: FairShares::default(),
            requests: 0,
            ticks: 0,
            preempted: 0,
            released: Vec::new(),
        }
    }

    /// One with the same limits and no requests. It numbers requests on from where this one is.
    pub fn fresh(&self) -> Self {
        Self { requests: self.requests, ..Self::new(self.limits) }
    }

    /// Queues a request, or says at once what is full. A place that is free counts as room in the
    /// queue, so that the answer does not depend on when the next step comes.
    pub fn submit(&mut self, request: Request) -> Result<RequestId, Full> {
        let Request { model, block_bytes, tenant, prompt, choices, max_tokens, long } = request;
        self.admits(model, tenant, prompt.len())?;
        self.models.entry(model).or_default().block_bytes = block_bytes;
        self.requests += 1;
        for choice in 0..choices {
            self.shares.arrive(tenant);
            let sequence = Sequence {
                model,
                tenant,
                long,
                tokens: prompt.clone(),
                prompt: prompt.len(),
                left: max_tokens,
                computed: 0,
                blocks: Vec::new(),
                cached: 0,
                parent: Parent::Root(tenant, long),
                state: State::Waiting,
                paused: false,
                draft: Vec::new(),
                hit: None,
                paid: 0,
            };
            self.sequences.insert(SequenceId { request: self.requests, choice }, sequence);
        }
        Ok(self.requests)
    }

    /// Whether the queue takes a request with a prompt of so many tokens.
    pub fn admits(&self, model: ModelId, tenant: Tenant, prompt: usize) -> Result<(), Full> {
        let Limits { requests, tokens, tenant_divisor, .. } = self.limits;
        let free = self.limits.running.saturating_sub(self.running().count());
        let full = |waiting: (usize, usize), part: usize| {
            let (count, queued) = waiting;
            count >= (requests / part).max(1) + free || (count > 0 && queued + prompt > tokens / part)
        };
        if full(self.waiting(|one| one.model == model), 1) {
            return Err(Full::Model);
        }
        match full(self.waiting(|one| one.model == model && one.tenant == tenant), tenant_divisor) {
            true => Err(Full::Tenant),
            false => Ok(()),
        }
    }

    /// Requests of which nothing has run yet, and their prompt tokens.
    fn waiting(&self, of: impl Fn(&Sequence) -> bool) -> (usize, usize) {
        let first = |(id, one): &(&SequenceId, &Sequence)| id.choice == 0 && one.hit.is_none() && of(one);
        let waiting = self.sequences.iter().filter(first);
        waiting.fold((0, 0), |(count, tokens), (_, one)| (count + 1, tokens + one.prompt))
    }

    fn running(&self) -> impl Iterator<Item = (&SequenceId, &Sequence)> {
        self.sequences.iter().filter(|(_, one)| one.is_running())
    }

    /// Forgets a request with all of its answers.
    pub fn cancel(&mut self, request: RequestId) {
        let all = SequenceId { request, choice: 0 }..=SequenceId { request, choice: u32::MAX };
        let ids: Vec<_> = self.sequences.range(all).map(|(id, _)| *id).collect();
        for id in ids {
            self.end(id);
        }
    }

    /// An answer has ended. What was computed of it stays in the prefix cache. Gives how many tokens
    /// it got.
    pub fn end(&mut self, id: SequenceId) -> usize {
        let Some(mut sequence) = self.sequences.remove(&id) else { return 0 };
        self.release_blocks(&mut sequence);
        self.shares.depart(sequence.tenant);
        sequence.tokens.len() - sequence.prompt
    }

    /// Whether the sequence may be computed now; its reader may not keep up.
    pub fn set_paused(&mut self, id: SequenceId, paused: bool) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.paused = paused;
        }
    }

    /// Tokens that may follow the newest one: the next step computes them too, as far as there is
    /// room. Whether they come is for [`Scheduler::commit`] to say.
    pub fn propose(&mut self, id: SequenceId, mut draft: Vec<u32>) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            draft.truncate(sequence.left.saturating_sub(1) as usize);
            sequence.draft = draft;
        }
    }

    /// A row was computed: `positions` of its tokens are in its blocks, and `new` tokens follow.
    pub fn commit(&mut self, id: SequenceId, positions: usize, new: &[u32]) {
        self.ticks += 1;
        let now = self.ticks;
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        sequence.computed += positions;
        let prompts = sequence.computed.min(sequence.prompt).saturating_sub(sequence.paid);
        sequence.paid += prompts;
        sequence.tokens.extend(new);
        sequence.left = sequence.left.saturating_sub(new.len() as u32);
        self.shares.charge(sequence.tenant, prompts, new.len());
        let Some(model) = self.models.get_mut(&sequence.model) else { return };
        let freed = sequence.cache_full_blocks(model, now);
        self.released.extend(freed.into_iter().map(|block| (sequence.model, block)));
    }

    /// Answers whose newest token the next step computes.
    pub fn decoding(&self) -> usize {
        self.sequences.values().filter(|one| one.is_decoding()).count()
    }

    /// Answers whose prompts the next step computes some of, if there is room.
    pub fn prefilling(&self) -> usize {
        self.running().filter(|(_, one)| !one.paused && one.pending() > 1).count()
    }

    /// Prompt tokens that were in the cache when the sequence first ran.
    pub fn hit(&self, id: SequenceId) -> usize {
        self.sequences.get(&id).and_then(|one| one.hit).unwrap_or(0)
    }

    /// Of all models.
    pub fn counts(&self) -> Counts {
        self.count(|_| true)
    }

    /// Of one model.
    pub fn counts_of(&self, model: ModelId) -> Counts {
        self.count(|id| id == model)
    }

    fn count(&self, of: impl Fn(ModelId) -> bool) -> Counts {
        let (queued, queued_tokens) = self.waiting(|one| of(one.model));
        let running = self.running().filter(|(_, one)| of(one.model)).count();
        let models = || self.models.iter().filter(|(id, _)| of(**id)).map(|(_, model)| model);
        let paused = |model: &Model| (model.blocks.in_use() - model.blocks.idle()) as u64 * model.block_bytes;
        let idle = |model: &Model| model.blocks.idle() as u64 * model.block_bytes;
        let (held_bytes, cached_bytes) = (models().map(paused).sum(), models().map(idle).sum());
        Counts { queued, queued_tokens, running, held_bytes, cached_bytes }
    }

    /// Bytes of all blocks that somebody holds.
    pub fn used_bytes(&self) -> u64 {
        self.models.values().map(Model::used).sum()
    }

    fn idle_bytes(&self) -> u64 {
        self.models.values().map(|model| model.blocks.idle() as u64 * model.block_bytes).sum()
    }

    /// Tokens that those tenants' requests will still take if no answer has more than `usual` to come.
    pub fn work(&self, usual: u32, of: impl Fn(Tenant) -> bool) -> u64 {
        let parts = self.sequences.values().filter(|one| of(one.tenant));
        parts.map(|one| one.prompt.saturating_sub(one.computed) as u64 + u64::from(one.left.min(usual))).sum()
    }

    /// How many tenants have work.
    pub fn tenants(&self) -> usize {
        self.sequences.values().map(|one| one.tenant).collect::<BTreeSet<_>>().len()
    }

    /// Drops cached blocks until no more than `room` bytes are used, as far as that goes.
    pub fn shrink(&mut self, room: u64) {
        while self.used_bytes() > room && self.evict() {}
    }

    /// Forgets a model that is no longer loaded, with all that is cached of it. Its sequences must
    /// have ended.
    pub fn forget(&mut self, model: ModelId) {
        self.models.remove(&model);
    }

    pub fn knows(&self, model: ModelId) -> bool {
        self.models.contains_key(&model)
    }

    /// Drops the longest unused cached block of any model. `false`: there is none.
    fn evict(&mut self) -> bool {
        let oldest = |(_, model): &(&ModelId, &mut Model)| model.prefixes.oldest(&model.blocks);
        let all = self.models.iter_mut().filter_map(|one| oldest(&one).map(|used| (used, one)));
        let Some((_, (id, model))) = all.min_by_key(|(used, _)| *used) else { return false };
        let Some(block) = model.prefixes.evict(&model.blocks) else { return false };
        if model.blocks.forget(block) {
            self.released.push((*id, block));
        }
        true
    }

    /// The sequence holds nothing afterwards.
    fn release_blocks(&mut self, sequence: &mut Sequence) {
        let Some(model) = self.models.get_mut(&sequence.model) else { return };
        for block in sequence.blocks.drain(..) {
            if model.blocks.leave(block) {
                self.released.push((sequence.model, block));
            }
        }
        (sequence.computed, sequence.cached) = (0, 0);
        sequence.parent = sequence.root();
        sequence.state = State::Waiting;
    }
}

impl Model {
    fn used(&self) -> u64 {
        self.blocks.in_use() as u64 * self.block_bytes
    }
}

impl Sequence {
    fn is_running(&self) -> bool {
        matches!(self.state, State::Running(_))
    }

    /// Tokens that are not computed.
    fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// BlockPool that it will want before its next token is out, beyond those it has.
    fn wants(&self) -> usize {
        blocks_for(self.tokens.len() + 1).saturating_sub(self.blocks.len())
    }

    /// Puts what is full into the prefix cache. Gives blocks that are free, because the same tokens
    /// were there already.
    fn cache_full_blocks(&mut self, model: &mut Model, now: u64) -> Vec<BlockId> {
        let mut freed = Vec::new();
        let full = self.computed / BLOCK;
        for edge in self.tokens.as_chunks::<BLOCK>().0.iter().take(full).skip(self.cached) {
            let Some(own) = self.blocks.get_mut(self.cached) else { break };
            let (node, block) = model.prefixes.insert(self.parent, *edge, *own, now);
            if block == *own {
                model.blocks.cache(block);
            } else {
                model.blocks.share(block);
                if model.blocks.leave(*own) {
                    freed.push(*own);
                }
                *own = block;
            }
            self.parent = Parent::Node(node);
            self.cached += 1;
        }
        freed
    }
}
