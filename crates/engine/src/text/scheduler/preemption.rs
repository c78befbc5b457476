//! Preemption: chooses running sequences that give way to others. They release their blocks and wait again.
//!
//! A preempted sequence gives its blocks to the prefix cache, so preemption needs no state of its own. The same
//! mechanism admits a request of a quiet project immediately when a busy project holds all slots.

use super::{Phase, Scheduler, Sequence, SequenceId};

impl Scheduler {
    /// The sequence to preempt when all slots are taken: the newest of the tenant with the most slots, if that tenant
    /// was served no less and keeps as many slots as the other one gets.
    pub(super) fn victim_for(&self, id: SequenceId) -> Option<SequenceId> {
        let tenant = self.sequences.get(&id)?.tenant;
        let slots = self.slots_by_tenant();
        let own_slots = slots.get(&tenant).copied().unwrap_or(0);
        let (&largest, _) = slots
            .iter()
            .filter(|(other, count)| {
                **count >= own_slots + 2 && self.shares.served(**other) >= self.shares.served(tenant)
            })
            .max_by_key(|(_, count)| **count)?;
        self.newest_running(|one| one.tenant == largest)
    }

    /// The matching running sequence that was admitted last.
    pub(super) fn newest_running(&self, of: impl Fn(&Sequence) -> bool) -> Option<SequenceId> {
        let since = |one: &Sequence| if let Phase::Running(since) = one.phase { since } else { 0 };
        self.running().filter(|(_, one)| of(one)).max_by_key(|(_, one)| since(one)).map(|(id, _)| *id)
    }

    /// Preempts a running sequence: it releases its blocks and waits again.
    pub(super) fn preempt(&mut self, id: SequenceId) {
        let Some(mut sequence) = self.sequences.remove(&id) else { return };
        self.preempted += 1;
        self.release_blocks(&mut sequence);
        let tenant = sequence.tenant;
        self.sequences.insert(id, sequence);
        self.queues.remove(tenant, id);
        let ready = self.is_ready(id);
        self.queues.set_ready(tenant, id, ready);
        self.refresh_siblings(id);
    }
}
