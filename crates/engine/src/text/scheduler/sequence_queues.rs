//! Sets of waiting and running sequences. They keep the cost of a step independent of the number of waiting requests.
//!
//! After each step, a property test recomputes these sets from all sequences and compares.

use std::collections::{BTreeMap, BTreeSet};

use super::ids::{ModelId, SequenceId};
use crate::ids::Tenant;

#[derive(Debug, Default)]
pub struct SequenceQueues {
    running: BTreeSet<SequenceId>,
    /// Waiting sequences that can be admitted. No entry is empty.
    ready: BTreeMap<Tenant, BTreeSet<SequenceId>>,
    queued: BTreeMap<(ModelId, Tenant), QueuedWork>,
}

/// Work that has not started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuedWork {
    pub requests: usize,
    pub choices: usize,
    /// Prompt tokens, counted once for each request.
    pub tokens: usize,
}

impl SequenceQueues {
    pub fn running(&self) -> &BTreeSet<SequenceId> {
        &self.running
    }

    /// Each tenant's oldest sequence that can be admitted.
    pub fn first_ready(&self) -> impl Iterator<Item = (Tenant, SequenceId)> {
        self.ready.iter().filter_map(|(tenant, ids)| Some((*tenant, *ids.first()?)))
    }

    #[cfg(test)]
    pub fn ready(&self) -> BTreeSet<SequenceId> {
        self.ready.values().flatten().copied().collect()
    }

    /// Records whether a waiting sequence can be admitted.
    pub fn set_ready(&mut self, tenant: Tenant, id: SequenceId, ready: bool) {
        if ready {
            self.ready.entry(tenant).or_default().insert(id);
        } else if let Some(ids) = self.ready.get_mut(&tenant) {
            ids.remove(&id);
            if ids.is_empty() {
                self.ready.remove(&tenant);
            }
        }
    }

    pub fn set_running(&mut self, tenant: Tenant, id: SequenceId) {
        self.set_ready(tenant, id, false);
        self.running.insert(id);
    }

    /// Removes a sequence from the running and ready sets.
    pub fn remove(&mut self, tenant: Tenant, id: SequenceId) {
        self.set_ready(tenant, id, false);
        self.running.remove(&id);
    }

    pub fn add_queued(&mut self, model: ModelId, tenant: Tenant, id: SequenceId, prompt: usize) {
        let queued = self.queued.entry((model, tenant)).or_default();
        queued.choices += 1;
        if id.choice == 0 {
            queued.requests += 1;
            queued.tokens += prompt;
        }
    }

    /// Removes queued work: the sequence has run for the first time, or has ended.
    pub fn remove_queued(&mut self, model: ModelId, tenant: Tenant, id: SequenceId, prompt: usize) {
        let Some(queued) = self.queued.get_mut(&(model, tenant)) else { return };
        queued.choices -= 1;
        if id.choice == 0 {
            queued.requests -= 1;
            queued.tokens -= prompt;
        }
        if queued.choices == 0 {
            self.queued.remove(&(model, tenant));
        }
    }

    pub fn queued(&self, of: impl Fn(ModelId, Tenant) -> bool) -> QueuedWork {
        let matching = self.queued.iter().filter(|((model, tenant), _)| of(*model, *tenant)).map(|(_, queued)| queued);
        matching.fold(QueuedWork::default(), |sum, queued| QueuedWork {
            requests: sum.requests + queued.requests,
            choices: sum.choices + queued.choices,
            tokens: sum.tokens + queued.tokens,
        })
    }
}
