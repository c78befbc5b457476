//! Admission: chooses the waiting sequences that get a slot.

use std::collections::BTreeMap;

use super::block_pool::{BlockTable, GroupBlock};
use super::prefix_cache::CachedPrefix;
use super::{Parent, Phase, Scheduler, Sequence, SequenceId, Tenant};
use outpost_models::kv::BLOCK;

/// The decision about the first waiting sequence.
enum Admission {
    Yes,
    NoSlot,
    NoMemory,
}

impl Scheduler {
    /// Admits waiting sequences, the least served tenant first. Strictly in order: a smaller sequence never
    /// overtakes one that waits for memory. `false`: the first waiting sequence waits for memory. `chunk`: prompt tokens
    /// of a step.
    pub(super) fn admit(&mut self, max_bytes: u64, chunk: usize) -> bool {
        while let Some(id) = self.next_waiting() {
            match self.admission_for(id, max_bytes, chunk) {
                Admission::Yes => self.start(id),
                Admission::NoMemory => return false,
                Admission::NoSlot => match self.victim_for(id) {
                    Some(victim) => self.preempt(victim),
                    None => return true,
                },
            }
        }
        true
    }

    /// The oldest waiting sequence of the least served tenant; of equally served ones, the tenant with the fewest
    /// slots.
    pub(super) fn next_waiting(&self) -> Option<SequenceId> {
        let slots = self.slots_by_tenant();
        let order = |(tenant, id): &(Tenant, SequenceId)| {
            (self.shares.served(*tenant), slots.get(tenant).copied().unwrap_or(0), *id)
        };
        self.queues.first_ready().min_by_key(order).map(|(_, id)| id)
    }

    pub(super) fn slots_by_tenant(&self) -> BTreeMap<Tenant, usize> {
        let mut slots = BTreeMap::new();
        self.running().for_each(|(_, one)| *slots.entry(one.tenant).or_default() += 1);
        slots
    }

    fn admission_for(&self, id: SequenceId, max_bytes: u64, chunk: usize) -> Admission {
        if self.queues.running().len() >= self.limits.running {
            return Admission::NoSlot;
        }
        let Some(sequence) = self.sequences.get(&id) else { return Admission::NoSlot };
        let bytes = |one: &Sequence, spare: usize| {
            self.models.get(&one.model).map_or(0, |model| one.bytes_needed(&model.pool, chunk, spare))
        };
        // One spare block per sequence and group, so that admission does not lead to preemption at once.
        let reserved: u64 = self.running().map(|(_, one)| bytes(one, 1)).sum();
        let none_running = self.queues.running().is_empty();
        let needed = bytes(sequence, usize::from(!none_running));
        let held = self.used_bytes() - self.idle_bytes();
        if held + reserved + needed <= max_bytes { Admission::Yes } else { Admission::NoMemory }
    }

    /// Starts a sequence with its cached prefix. At least one token is left to compute, so that there are logits, and all
    /// tokens whose logits are needed.
    fn start(&mut self, id: SequenceId) {
        self.ticks += 1;
        let now = self.ticks;
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        sequence.phase = Phase::Running(now);
        self.queues.set_running(sequence.tenant, id);
        let Some(model) = self.models.get_mut(&sequence.model) else { return };
        let known =
            if sequence.needs_prompt_logits() { sequence.scored } else { sequence.tokens.len().saturating_sub(1) };
        let max_blocks = known / BLOCK;
        let edges = sequence.tokens.blocks_from(0).take(max_blocks);
        let CachedPrefix { nodes, known: known_blocks } =
            model.prefixes.find(sequence.prefix_root(), edges, &model.pool, now);
        if let Some(last) = nodes.last() {
            sequence.parent = Parent::Node(*last);
        }
        sequence.cached = nodes.len();
        sequence.computed = sequence.cached * BLOCK;
        for (group, table) in sequence.tables.iter_mut().enumerate() {
            let first = model.pool.group(group).map_or(0, |layout| layout.first_needed(sequence.computed));
            let held: Vec<_> = nodes.iter().skip(first).filter_map(|node| model.prefixes.block(*node, group)).collect();
            held.iter().for_each(|id| model.pool.share(GroupBlock { group, id: *id }));
            *table = BlockTable::new(first, held);
        }
        let group = sequence.recurrent_group();
        if let Some(state) = &mut sequence.recurrent {
            let cached = nodes.last().and_then(|node| model.prefixes.block(*node, group));
            cached.iter().for_each(|id| model.pool.share(GroupBlock { group, id: *id }));
            // A state that a second sequence starts from is likely to serve more.
            nodes.last().iter().for_each(|node| model.prefixes.keep_state(**node));
            let last = sequence.tokens.len().saturating_sub(1);
            state.start(cached, sequence.computed, known_blocks * BLOCK, last);
        }
        if sequence.prefix_hit.is_none() {
            (sequence.prefix_hit, sequence.charged) = (Some(sequence.computed), sequence.computed);
            self.queues.remove_queued(sequence.model, sequence.tenant, id, sequence.tokens.prompt_len());
        }
        self.refresh_siblings(id);
    }
}
