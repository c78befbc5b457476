//! Limits: rate limits, token budgets and quotas of a project.
//!
//! A project sets its own rates below the ceiling that an admin sets; only admins set quotas. The limiter works in
//! memory on the monotonic clock. Its bucket levels are stored with each answered request, so that a restart does not
//! refill them. [`quotas`] limit what a project holds, and a [`ConcurrencyLimit`](concurrency_limit::ConcurrencyLimit) what runs at
//! once.
//!
//! On a store that several nodes share, the stored levels are those of all nodes together, and each node takes
//! [leases](shared_levels) of them. Together, `n` nodes under a load that is always above a rate of `r` per second admit in `T`
//! seconds at most `burst + r·T`, as one process would, and at least that without what is idle in leases: of each
//! node at most what the rate gives in a second, for two seconds after its last request. A node that is killed loses its
//! lease once. From a moment in which leases are open, they are added to the burst. For budgets see [`monthly_tokens`].

mod bucket;
mod buckets;
pub mod concurrency_limit;
mod lease;
mod limiter_state;
mod monthly_tokens;
mod policy;
mod project_limiter;
mod project_limiters;
pub mod quotas;
mod rate_limit_status;
mod shared_levels;
#[cfg(test)]
mod tests;
mod token_bucket;

use std::sync::Arc;

pub use policy::{LimitsPatch, ProjectLimits, QuotasPatch, RatesPatch};
pub use rate_limit_status::{BucketStatus, RateLimitStatus};

use buckets::Buckets;
use limiter_state::StoredLimits;
use monthly_tokens::MonthlyTokens;
use project_limiter::ProjectLimiter;
use project_limiters::ProjectLimiters;
use shared_levels::SharedLevels;

use super::access::Access;
use super::access::authorize;
use super::audit::AuditEntry;
use super::usage::window;
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::Result;
use crate::ids::ProjectId;
use crate::storage::limits::{self, LimitsRecord};
use crate::storage::{LevelsRecord, Reader, Store, Watcher, WriteTx, quota_usage};

/// The limits service and the limiter. Clones share it.
#[derive(Clone)]
pub struct Limits {
    store: Store,
    clock_rng: Arc<dyn ClockRng>,
    limiters: Arc<ProjectLimiters>,
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

/// Tokens that a request of this node has used and that are not recorded yet. Dropped once they are.
pub(super) struct UnrecordedTokens {
    limiter: Arc<ProjectLimiter>,
    tokens: u64,
}

impl Drop for UnrecordedTokens {
    fn drop(&mut self) {
        self.limiter.with_month(|month, _| month.recorded(self.tokens));
    }
}

impl std::fmt::Debug for UnrecordedTokens {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "UnrecordedTokens({})", self.tokens)
    }
}

impl Limits {
    pub fn new(store: Store, clock_rng: Arc<dyn ClockRng>) -> Self {
        let source = SharedLevels::of(&store, &clock_rng);
        let limiters = Arc::new(ProjectLimiters::new(clock_rng.clone(), source));
        let watcher: Arc<dyn Watcher> = limiters.clone();
        store.watch(Arc::downgrade(&watcher));
        Self { store, clock_rng, limiters }
    }

    /// Admits a request of `project`, or refuses it with 429. Returns the rate limit status in both cases.
    ///
    /// # Errors
    /// If the store does not answer.
    pub async fn admit(&self, project: ProjectId) -> Result<(RateLimitStatus, Result<()>)> {
        self.limiter(project).await?.take_request().await
    }

    /// The rate limit status of `project`; takes nothing.
    pub async fn status(&self, project: ProjectId) -> Result<RateLimitStatus> {
        Ok(self.limiter(project).await?.status())
    }

    /// Reserves the tokens of a prompt from budget and, if `is_rated`, rate.
    pub(super) async fn reserve_tokens(
        &self,
        project: ProjectId,
        prompt: u64,
        is_rated: bool,
    ) -> Result<TokenReservation> {
        let limiter = self.limiters.get(project);
        self.refresh_month(&limiter).await?;
        limiter.take_tokens(prompt, is_rated).await?;
        Ok(TokenReservation { limiter, tokens: prompt })
    }

    /// Replaces a reservation by the tokens used. `is_rated` as in [`Self::reserve_tokens`]. What is returned is kept until
    /// the usage is recorded.
    pub(super) fn settle(
        &self,
        project: ProjectId,
        reservation: Option<TokenReservation>,
        used: u64,
        is_rated: bool,
    ) -> Option<Arc<UnrecordedTokens>> {
        let (limiter, held) = match reservation {
            Some(TokenReservation { limiter, tokens }) => (limiter, tokens),
            None if used > 0 => (self.limiters.get(project), 0),
            None => return None,
        };
        limiter.settle_tokens(held, used, is_rated);
        let counts = limiter.is_shared() && used > 0;
        counts.then(|| Arc::new(UnrecordedTokens { limiter, tokens: used }))
    }

    /// Counts tokens against the budget that were recorded without a reservation, such as those of a training.
    pub(super) fn add_used(&self, project: ProjectId, tokens: u64) {
        drop(self.settle(project, None, tokens, false));
    }

    /// Reserves audio from the rate.
    pub(super) async fn reserve_audio(&self, project: ProjectId, millis: u64) -> Result<AudioReservation> {
        let limiter = self.limiters.get(project);
        limiter.take_audio(millis).await?;
        Ok(AudioReservation { limiter, millis })
    }

    /// Raises a reservation to `millis` of audio that is generated already. The rate may go into debt.
    pub(super) fn raise_audio(&self, reservation: &mut AudioReservation, millis: u64) {
        reservation.limiter.settle_audio(reservation.millis, millis);
        reservation.millis = millis;
    }

    /// Replaces a reservation by the milliseconds of audio used.
    pub(super) fn settle_audio(&self, project: ProjectId, reservation: Option<AudioReservation>, used: u64) {
        let (limiter, held) = match reservation {
            Some(AudioReservation { limiter, millis }) => (limiter, millis),
            None if used > 0 => (self.limiters.get(project), 0),
            None => return,
        };
        limiter.settle_audio(held, used);
    }

    /// Whether several nodes may share the limits, and [`Self::exchange_leases`] must be called about twice a second.
    pub fn are_shared(&self) -> bool {
        self.limiters.are_shared()
    }

    /// Exchanges debts and unused leases with the store. Does not wait.
    pub fn exchange_leases(&self) {
        self.limiters.all().iter().for_each(ProjectLimiter::exchange_if_due);
    }

    /// Returns all leases to the store, before it closes.
    ///
    /// # Errors
    /// If the store does not answer. Then they are lost.
    pub async fn return_leases(&self) -> Result<()> {
        let limiters = self.limiters.all();
        let returned = limiters.iter().map(ProjectLimiter::return_leases);
        futures_util::future::join_all(returned).await.into_iter().collect()
    }

    /// Reads the month's usage again if other nodes may have used tokens since.
    async fn refresh_month(&self, limiter: &ProjectLimiter) -> Result<()> {
        let is_old = || {
            let uptime = self.clock_rng.uptime();
            limiter.with_month(|month, has_budget| has_budget && month.is_old(uptime))
        };
        if !limiter.is_shared() || is_old() != Some(true) {
            return Ok(());
        }
        let _one_at_a_time = limiter.month_reading.lock().await;
        if is_old() != Some(true) {
            return Ok(());
        }
        let (now, began, project) = (self.clock_rng.now(), self.clock_rng.uptime(), limiter.project);
        limiter.with_month(|month, _| month.begin_reading());
        let used = self.store.read(move |tx| window::tokens_since(tx, project, now.month_start())).await?;
        limiter.with_month(|month, _| month.end_reading(began, now.next_month(), used));
        Ok(())
    }

    /// The bucket levels to store with a usage record.
    pub(super) fn levels(&self, project: ProjectId) -> Option<LevelsRecord> {
        self.limiters.get(project).levels()
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
                Ok(StoredLimits { rates: policy::effective(&record), levels, month: MonthlyTokens::new(now, used) })
            });
            limiter.load(generation, read.await?);
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
            // Otherwise each process refills its own buckets at the old rates until now.
            let sizes = (Buckets::sizes(&policy::effective(&old)), Buckets::sizes(&policy::effective(&new)));
            if tx.process().is_some() && sizes.0 != sizes.1 {
                let levels = shared_levels::with_new_rates(limits::levels(tx, project)?, sizes, now);
                limits::put_levels(tx, project, &levels)?;
            }
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
