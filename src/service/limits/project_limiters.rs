//! The limiters of all projects.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::project_limiter::ProjectLimiter;
use super::shared_levels::LeaseSource;
use crate::clock_rng::ClockRng;
use crate::ids::ProjectId;
use crate::storage::limits::LimitsRecord;
use crate::storage::{Record, Table, Watcher};

const SHARDS: usize = 16;

/// An entry per project that has sent a request since the start.
pub(super) struct ProjectLimiters {
    clock_rng: Arc<dyn ClockRng>,
    /// On a shared store.
    source: Option<Arc<dyn LeaseSource>>,
    shards: [Mutex<HashMap<ProjectId, Arc<ProjectLimiter>>>; SHARDS],
}

impl ProjectLimiters {
    /// `source`: where limiters get leases, on a shared store.
    pub fn new(clock_rng: Arc<dyn ClockRng>, source: Option<Arc<dyn LeaseSource>>) -> Self {
        Self { clock_rng, source, shards: Default::default() }
    }

    pub fn are_shared(&self) -> bool {
        self.source.is_some()
    }

    fn with<T>(&self, project: ProjectId, f: impl FnOnce(&mut HashMap<ProjectId, Arc<ProjectLimiter>>) -> T) -> T {
        let [.., last] = project.to_bytes();
        f(&mut self.shards[usize::from(last) % SHARDS].lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn get(&self, project: ProjectId) -> Arc<ProjectLimiter> {
        let new = || Arc::new(ProjectLimiter::new(project, self.clock_rng.clone(), self.source.clone()));
        self.with(project, |limiters| limiters.entry(project).or_insert_with(new).clone())
    }

    pub fn all(&self) -> Vec<Arc<ProjectLimiter>> {
        let of = |shard: &Mutex<HashMap<_, Arc<ProjectLimiter>>>| {
            shard.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect::<Vec<_>>()
        };
        self.shards.iter().flat_map(of).collect()
    }
}

impl Watcher for ProjectLimiters {
    fn changed(&self, table: Table, key: &[u8]) {
        if table != LimitsRecord::TABLE {
            return;
        }
        let Ok(project) = key.try_into().map(ProjectId::from_bytes) else { return self.changes_unknown() };
        if let Some(limiter) = self.with(project, |limiters| limiters.get(&project).cloned()) {
            limiter.invalidate();
        }
    }

    fn changes_unknown(&self) {
        self.all().iter().for_each(|limiter| limiter.invalidate());
    }
}
