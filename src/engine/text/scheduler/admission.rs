//! Who gets a place, and who must give one back.

use std::collections::BTreeMap;

use super::{Scheduler, Sequence, SequenceId, State, Tenant};
use crate::models::kv::BLOCK;

/// Whether the next in line can run.
enum Admission {
    Yes,
    NoPlace,
    NoMemory,
}

impl Scheduler {
    /// Gives places to those who wait, the tenant that was served least first. Strictly in line:
    /// nobody smaller overtakes a sequence that waits for memory. `false`: the next in line waits for
    /// memory.
    pub(super) fn admit(&mut self, room: u64) -> bool {
        while let Some(id) = self.next() {
            match self.chance(id, room) {
                Admission::Yes => self.start(id),
                Admission::NoMemory => return false,
                Admission::NoPlace => match self.victim_for(id) {
                    Some(victim) => self.preempt(victim),
                    None => return true,
                },
            }
        }
        true
    }

    /// The oldest of those who wait, of the tenant that was served least; among such the one with
    /// the fewest places.
    pub(super) fn next(&self) -> Option<SequenceId> {
        let places = self.places();
        let waiting = self.sequences.iter().filter(|(id, one)| !one.is_running() && self.is_ready(**id, one));
        let order = |id: &SequenceId, one: &Sequence| {
            (self.shares.served(one.tenant), places.get(&one.tenant).copied().unwrap_or(0), *id)
        };
        waiting.min_by_key(|(id, one)| order(id, one)).map(|(id, _)| *id)
    }

    fn places(&self) -> BTreeMap<Tenant, usize> {
        let mut places = BTreeMap::new();
        self.running().for_each(|(_, one)| *places.entry(one.tenant).or_default() += 1);
        places
    }

    /// Later answers of a request wait until the first has computed the prompt: they take it over
    /// from the prefix cache.
    fn is_ready(&self, id: SequenceId, sequence: &Sequence) -> bool {
        let first = self.sequences.get(&SequenceId { choice: 0, ..id });
        id.choice == 0 || first.is_none_or(|first| first.computed >= sequence.prompt)
    }

    fn chance(&self, id: SequenceId, room: u64) -> Admission {
        if self.running().count() >= self.limits.running {
            return Admission::NoPlace;
        }
        let Some(sequence) = self.sequences.get(&id) else { return Admission::NoPlace };
        let bytes = |one: &Sequence, blocks: usize| {
            blocks as u64 * self.models.get(&one.model).map_or(0, |model| model.block_bytes)
        };
        // One block more for everybody, so that nobody is put back at once.
        let promised: u64 = self.running().map(|(_, one)| bytes(one, one.wants() + 1)).sum();
        let alone = self.running().next().is_none();
        let needed = bytes(sequence, sequence.wants() + usize::from(!alone));
        let paused = self.used_bytes() - self.idle_bytes();
        if paused + promised + needed <= room { Admission::Yes } else { Admission::NoMemory }
    }

    /// What of its tokens is in the prefix cache is taken over; at least one is left to compute.
    fn start(&mut self, id: SequenceId) {
        self.ticks += 1;
        let now = self.ticks;
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        sequence.state = State::Running(now);
        let Some(model) = self.models.get_mut(&sequence.model) else { return };
        let most = sequence.tokens.len().saturating_sub(1) / BLOCK;
        for (node, block) in model.prefixes.find(sequence.root(), &sequence.tokens, most, now) {
            model.blocks.share(block);
            sequence.blocks.push(block);
            sequence.parent = super::Parent::Node(node);
        }
        sequence.cached = sequence.blocks.len();
        sequence.computed = sequence.cached * BLOCK;
        if sequence.hit.is_none() {
            (sequence.hit, sequence.paid) = (Some(sequence.computed), sequence.computed);
        }
    }

    /// Whose place the sequence takes when all are taken: the newest of the tenant with the most
    /// places, if that tenant has been served no less and keeps as many as the other gets.
    fn victim_for(&self, id: SequenceId) -> Option<SequenceId> {
        let tenant = self.sequences.get(&id)?.tenant;
        let places = self.places();
        let own = places.get(&tenant).copied().unwrap_or(0);
        let (&rich, _) = places
            .iter()
            .filter(|(other, count)| **count >= own + 2 && self.shares.served(**other) >= self.shares.served(tenant))
            .max_by_key(|(_, count)| **count)?;
        self.newest(|one| one.tenant == rich)
    }

    /// The running sequence that was admitted last, of those.
    pub(super) fn newest(&self, of: impl Fn(&Sequence) -> bool) -> Option<SequenceId> {
        let since = |one: &Sequence| if let State::Running(since) = one.state { since } else { 0 };
        self.running().filter(|(_, one)| of(one)).max_by_key(|(_, one)| since(one)).map(|(id, _)| *id)
    }

    /// Puts a sequence back to wait.
    pub(super) fn preempt(&mut self, id: SequenceId) {
        if let Some(mut sequence) = self.sequences.remove(&id) {
            self.preempted += 1;
            self.release_blocks(&mut sequence);
            self.sequences.insert(id, sequence);
        }
    }
}
