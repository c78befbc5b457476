//! Limits: rate limits, token budgets and quotas of a project.
//!
//! A project sets its own rates below the ceiling that an admin sets; only admins set quotas. The limiter works in
//! memory on the monotonic clock. Its bucket levels are stored with each answered request, so that a restart does not
//! refill them.

mod policy;
mod project_limiter;
mod token_bucket;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

pub use policy::{LimitsPatch, ProjectLimits, QuotasPatch, RatesPatch};
pub use project_limiter::{BucketStatus, RateLimitStatus};

use project_limiter::{MonthlyTokens, ProjectLimiter, StoredLimits};

use super::access::Access;
use super::audit::AuditEntry;
use super::authorize;
use super::usage::window;
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::Result;
use crate::ids::ProjectId;
use crate::storage::limits::{self, LimitsRecord};
use crate::storage::{LevelsRecord, Reader, Record, Store, Table, Watcher, WriteTx, quota_usage};

const SHARDS: usize = 16;

/// The limits service and the limiter. Clones share it.
#[derive(Clone)]
pub struct Limits {
    store: Store,
    clock_rng: Arc<dyn ClockRng>,
    limiters: Arc<ProjectLimiters>,
}

/// An entry per project that has sent a request since the start.
struct ProjectLimiters {
    clock_rng: Arc<dyn ClockRng>,
    shards: [Mutex<HashMap<ProjectId, Arc<ProjectLimiter>>>; SHARDS],
}

impl ProjectLimiters {
    fn with<T>(&self, project: ProjectId, f: impl FnOnce(&mut HashMap<ProjectId, Arc<ProjectLimiter>>) -> T) -> T {
        let [.., last] = project.to_bytes();
        f(&mut self.shards[usize::from(last) % SHARDS].lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn get(&self, project: ProjectId) -> Arc<ProjectLimiter> {
        self.with(project, |limiters| limiters.entry(project).or_default().clone())
    }
}

impl Watcher for ProjectLimiters {
    fn changed(&self, table: Table, key: &[u8]) {
        if table != LimitsRecord::TABLE {
            return;
        }
        let Ok(project) = key.try_into().map(ProjectId::from_bytes) else { return self.changes_unknown() };
        if let Some(limiter) = self.with(project, |limiters| limiters.get(&project).cloned()) {
            limiter.invalidate(self.clock_rng.uptime());
        }
    }

    fn changes_unknown(&self) {
        let now = self.clock_rng.uptime();
        for shard in &self.shards {
            let limiters = shard.lock().unwrap_or_else(PoisonError::into_inner);
            limiters.values().for_each(|limiter| limiter.invalidate(now));
        }
    }
}

/// Tokens reserved by a running request, settled when its usage is recorded.
pub(super) struct TokenReservation {
    limiter: Arc<ProjectLimiter>,
    pub tokens: u64,
}

/// Audio reserved by a running request, settled when its usage is recorded.
pub(super) struct AudioReservation {
    limiter: Arc<ProjectLimiter>,
    millis: u64,
}

impl Limits {
    pub fn new(store: Store, clock_rng: Arc<dyn ClockRng>) -> Self {
        let limiters = Arc::new(ProjectLimiters { clock_rng: clock_rng.clone(), shards: Default::default() });
        let watcher: Arc<dyn Watcher> = limiters.clone();
        store.watch(Arc::downgrade(&watcher));
        Self { store, clock_rng, limiters }
    }

    /// Admits a request of `project`, or refuses it with 429. Returns the rate limit status in both cases.
    pub async fn admit(&self, project: ProjectId) -> Result<(RateLimitStatus, Result<()>)> {
        Ok(self.limiter(project).await?.take_request(self.clock_rng.uptime()))
    }

    /// The rate limit status of `project`; takes nothing.
    pub async fn status(&self, project: ProjectId) -> Result<RateLimitStatus> {
        Ok(self.limiter(project).await?.status())
    }

    /// Reserves the tokens of a prompt from budget and, if `is_rated`, rate.
    pub(super) fn reserve_tokens(&self, project: ProjectId, prompt: u64, is_rated: bool) -> Result<TokenReservation> {
        let limiter = self.limiters.get(project);
        limiter.take_tokens(prompt, is_rated, (self.clock_rng.now(), self.clock_rng.uptime()))?;
        Ok(TokenReservation { limiter, tokens: prompt })
    }

    /// Replaces a reservation by the tokens used. `is_rated` as in [`Self::reserve_tokens`].
    pub(super) fn settle(&self, project: ProjectId, reservation: Option<TokenReservation>, used: u64, is_rated: bool) {
        let now = (self.clock_rng.now(), self.clock_rng.uptime());
        match reservation {
            Some(reservation) => reservation.limiter.settle(reservation.tokens, used, is_rated, now),
            None if used > 0 => self.limiters.get(project).settle(0, used, is_rated, now),
            None => {}
        }
    }

    /// Reserves audio from the rate.
    pub(super) fn reserve_audio(&self, project: ProjectId, millis: u64) -> Result<AudioReservation> {
        let limiter = self.limiters.get(project);
        limiter.take_audio(millis, self.clock_rng.uptime())?;
        Ok(AudioReservation { limiter, millis })
    }

    /// Raises a reservation to `millis` of audio that is generated already. The rate may go into debt.
    pub(super) fn raise_audio(&self, reservation: &mut AudioReservation, millis: u64) {
        reservation.limiter.settle_audio(reservation.millis, millis, self.clock_rng.uptime());
        reservation.millis = millis;
    }

    /// Replaces a reservation by the milliseconds of audio used.
    pub(super) fn settle_audio(&self, project: ProjectId, reservation: Option<AudioReservation>, used: u64) {
        let now = self.clock_rng.uptime();
        match reservation {
            Some(AudioReservation { limiter, millis }) => limiter.settle_audio(millis, used, now),
            None if used > 0 => self.limiters.get(project).settle_audio(0, used, now),
            None => {}
        }
    }

    /// The bucket levels to store with a usage record.
    pub(super) fn levels(&self, project: ProjectId) -> Option<LevelsRecord> {
        self.limiters.get(project).levels(self.clock_rng.now())
    }

    /// The limiter with the current limits.
    async fn limiter(&self, project: ProjectId) -> Result<Arc<ProjectLimiter>> {
        let limiter = self.limiters.get(project);
        // The generation is noted before the snapshot begins; later changes are loaded by the next request.
        if let Some(generation) = limiter.stale_generation() {
            let now = self.clock_rng.now();
            let read = self.store.read(move |tx| {
                let record = limits::of(tx, project)?;
                let levels = limits::levels(tx, project)?;
                let used = window::tokens_since(tx, project, now.month_start())?;
                Ok(StoredLimits {
                    rates: policy::effective(&record),
                    levels,
                    month: MonthlyTokens { used, ..MonthlyTokens::of(now) },
                })
            });
            limiter.load(generation, read.await?, &*self.clock_rng);
        }
        Ok(limiter)
    }

    pub async fn get(&self, access: &Access, project: ProjectId) -> Result<ProjectLimits> {
        let (access, now) = (access.clone(), self.clock_rng.now());
        let read = self.store.read(move |tx| {
            authorize::project(tx, &access, project)?;
            view(tx, project, limits::of(tx, project)?, now)
        });
        read.await
    }

    /// Updates limits, effective immediately: from now on the buckets refill at the new rates.
    pub async fn update(&self, access: &Access, project: ProjectId, change: LimitsPatch) -> Result<ProjectLimits> {
        let now = self.clock_rng.now();
        let entry = AuditEntry::new(&self.clock_rng, Some(access), "project.limits_updated");
        let by_admin = change.is_admins();
        let permit = move |tx: &WriteTx, caller: &Access| {
            if by_admin { caller.require_admin() } else { authorize::manage_project(project)(tx, caller) }
        };
        let run = move |tx: &WriteTx, caller: &Access| {
            let living = authorize::project(tx, caller, project)?;
            authorize::require_active(&living)?;
            if change.is_admins() {
                caller.require_admin()?;
            }
            let old = limits::of(tx, project)?;
            let new = LimitsRecord { updated_at: Some(now), ..change.apply(old)? };
            limits::put(tx, project, &new)?;
            entry.write(tx, project, project, &policy::difference(&old, &new))?;
            view(tx, project, new, now)
        };
        authorize::write(&self.store, access, now, permit, run).await
    }
}

fn view(tx: &impl Reader, project: ProjectId, record: LimitsRecord, now: Timestamp) -> Result<ProjectLimits> {
    let used = window::tokens_since(tx, project, now.month_start())?;
    Ok(ProjectLimits::new(project, record, quota_usage::of(tx, project)?, used))
}
