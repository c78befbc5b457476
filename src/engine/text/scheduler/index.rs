//! Which sequences wait and which run, so that no step looks at all of them.

use std::collections::{BTreeMap, BTreeSet};

use super::ids::{ModelId, SequenceId, Tenant};

#[derive(Debug, Default)]
pub struct Index {
    running: BTreeSet<SequenceId>,
    /// Waiting sequences that can be admitted. No entry is empty.
    ready: BTreeMap<Tenant, BTreeSet<SequenceId>>,
    queued: BTreeMap<(ModelId, Tenant), Queued>,
}

/// Work of which nothing has run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queued {
    pub requests: usize,
    pub choices: usize,
    /// Prompt tokens, counted once for each request.
    pub tokens: usize,
}

impl Index {
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

    /// A waiting sequence can be admitted from now on, or cannot.
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

    /// A sequence neither runs nor can be admitted.
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

    /// The sequence has run for the first time, or has ended before.
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

    pub fn queued(&self, of: impl Fn(ModelId, Tenant) -> bool) -> Queued {
        let parts = self.queued.iter().filter(|((model, tenant), _)| of(*model, *tenant)).map(|(_, queued)| queued);
        parts.fold(Queued::default(), |sum, part| Queued {
            requests: sum.requests + part.requests,
            choices: sum.choices + part.choices,
            tokens: sum.tokens + part.tokens,
        })
    }
}
