//! The rate limiter of one project, in memory. On a shared store, its requests wait here for leases.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::buckets::Buckets;
use super::lease::Lease;
use super::limiter_state::{AwaitedAnswer, State, StoredLimits};
use super::monthly_tokens::MonthlyTokens;
use super::rate_limit_status::RateLimitStatus;
use super::shared_levels::LeaseSource;
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::{Code, Error, Result};
use crate::ids::ProjectId;
use crate::storage::limits::LevelsRecord;

/// Exchanges that a request waits for. Others may take what it has waited for, but each exchange admits some of them.
const MAX_ROUNDS: usize = 1000;

/// One project's buckets and budget. The entry is created before its limits are read, so that a change, which
/// increments `generation`, is never missed. Until then, everything is admitted.
pub(super) struct ProjectLimiter {
    pub project: ProjectId,
    clock_rng: Arc<dyn ClockRng>,
    /// Where it gets leases, on a shared store.
    source: Option<Arc<dyn LeaseSource>>,
    generation: AtomicU64,
    state: Mutex<Option<State>>,
    /// Held by the request that reads the month's usage, on a shared store.
    pub month_reading: tokio::sync::Mutex<()>,
}

impl ProjectLimiter {
    /// Before its limits are loaded.
    pub fn new(project: ProjectId, clock_rng: Arc<dyn ClockRng>, source: Option<Arc<dyn LeaseSource>>) -> Self {
        let (generation, state) = (AtomicU64::default(), Mutex::default());
        Self { project, clock_rng, source, generation, state, month_reading: tokio::sync::Mutex::default() }
    }

    /// Whether several nodes share the limits.
    pub fn is_shared(&self) -> bool {
        self.source.is_some()
    }

    fn state(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wall clock and uptime.
    fn times(&self) -> (Timestamp, Duration) {
        (self.clock_rng.now(), self.clock_rng.uptime())
    }

    /// Marks the loaded limits as outdated.
    pub fn invalidate(&self) {
        let mut guard = self.state();
        let generation = self.generation.fetch_add(1, Ordering::AcqRel) + 1;
        if let Some(state) = &mut *guard {
            state.invalidate(generation, self.clock_rng.uptime());
        }
    }

    /// The generation to load, if the loaded limits are outdated.
    pub fn stale_generation(&self) -> Option<u64> {
        let now = self.generation.load(Ordering::Acquire);
        let known = self.state().as_ref().map(|state| state.loaded);
        (known != Some(now)).then_some(now)
    }

    /// Applies limits that were read after `generation` was noted.
    pub fn load(&self, generation: u64, read: StoredLimits) {
        match &mut *self.state() {
            Some(state) => state.change(generation, read.rates, self.clock_rng.uptime()),
            empty => *empty = Some(State::new(generation, read, self.is_shared(), &*self.clock_rng)),
        }
    }

    /// Takes one request from the bucket, if a rate is set. Returns the status in both cases.
    pub async fn take_request(self: &Arc<Self>) -> Result<(RateLimitStatus, Result<()>)> {
        let take = |state: &mut State| {
            let now = self.clock_rng.uptime();
            let taken = state.take_request(now)?;
            Ok((state.status(now), taken))
        };
        Ok(self.take(take).await?.unwrap_or_else(|| (RateLimitStatus::default(), Ok(()))))
    }

    /// Takes the tokens of a prompt from the budget and, if `is_rated`, from the rate.
    pub async fn take_tokens(self: &Arc<Self>, prompt: u64, is_rated: bool) -> Result<()> {
        self.take(|state| state.take_tokens(prompt, is_rated, self.times())).await?.unwrap_or(Ok(()))
    }

    /// Takes audio from the rate.
    pub async fn take_audio(self: &Arc<Self>, millis: u64) -> Result<()> {
        self.take(|state| state.take_audio(millis, self.clock_rng.uptime())).await?.unwrap_or(Ok(()))
    }

    /// Runs `attempt`, and again after each exchange while it needs a lease. `None`: the limits are not loaded. Without a
    /// shared store it never waits.
    async fn take<T>(self: &Arc<Self>, attempt: impl Fn(&mut State) -> Result<T, AwaitedAnswer>) -> Result<Option<T>> {
        for _ in 0..MAX_ROUNDS {
            let Some(attempted) = self.state().as_mut().map(&attempt) else { return Ok(None) };
            self.exchange_if(|lease, now| lease.wants_more() || lease.owes(now));
            match attempted {
                Ok(taken) => return Ok(Some(taken)),
                Err(answer) => answer.wait().await?,
            }
        }
        let text = "Too many requests wait for the project's rate limit. Try again shortly, with backoff.";
        Err(Error::new(Code::Overloaded, text))
    }

    /// Exchanges the leases with the store if `is_wanted` for one of them and no exchange is on its way. Does not wait.
    fn exchange_if(self: &Arc<Self>, is_wanted: fn(&Lease, Duration) -> bool) {
        let Some(source) = &self.source else { return };
        let now = self.clock_rng.uptime();
        let ask = |state: &mut State| {
            let asks = !state.is_asking && state.leases().any(|lease| is_wanted(lease, now));
            asks.then(|| state.demand(now))
        };
        // The answer may come before the call returns, and needs the lock.
        let Some(demand) = self.state().as_mut().and_then(ask) else { return };
        let limiter = self.clone();
        let answered = Box::new(move |answer| {
            if let Some(state) = &mut *limiter.state() {
                state.answer(&demand, answer, limiter.clock_rng.uptime());
            }
            // For requests that have come meanwhile.
            limiter.exchange_if(|lease, _| lease.wants_more());
        });
        source.demand(self.project, demand, answered);
    }

    /// Exchanges debts, and leases that were not used for a while.
    pub fn exchange_if_due(self: &Arc<Self>) {
        self.exchange_if(Lease::is_due);
    }

    /// Returns all leases to the store, and repays debts.
    pub async fn return_leases(self: &Arc<Self>) -> Result<()> {
        // The first exchange may have been on its way already.
        for _ in 0..2 {
            let Some(answer) = self.state().as_mut().map(State::give_up_leases) else { return Ok(()) };
            self.exchange_if_due();
            let is_asking = self.state().as_ref().is_some_and(|state| state.is_asking);
            if is_asking {
                answer.wait().await?;
            }
        }
        Ok(())
    }

    /// Replaces the `held` tokens of a request's prompt by the tokens that it used. On a shared store, they are not
    /// recorded yet.
    pub fn settle_tokens(self: &Arc<Self>, held: u64, used: u64, is_rated: bool) {
        if let Some(state) = &mut *self.state() {
            state.settle_tokens(held, used, is_rated, self.times());
        }
        self.exchange_if(Lease::owes);
    }

    /// Replaces the `held` milliseconds of a request's audio by those that it used.
    pub fn settle_audio(self: &Arc<Self>, held: u64, used: u64) {
        if let Some(state) = &mut *self.state() {
            state.settle_audio(held, used, self.clock_rng.uptime());
        }
        self.exchange_if(Lease::owes);
    }

    /// The status without taking a request.
    pub fn status(&self) -> RateLimitStatus {
        self.state().as_ref().map(|state| state.status(self.clock_rng.uptime())).unwrap_or_default()
    }

    /// The levels to store, so that a restart does not refill the buckets; `None` without limits, or on a shared store,
    /// which has them.
    pub fn levels(&self) -> Option<LevelsRecord> {
        let at = self.clock_rng.now();
        let levels: Buckets<_> = self.state().as_ref()?.own_levels();
        levels.into_array().iter().any(Option::is_some).then(|| levels.record(at))
    }

    /// Runs `f` with the month's tokens, once the limits are loaded; with whether there is a budget.
    pub fn with_month<T>(&self, f: impl FnOnce(&mut MonthlyTokens, bool) -> T) -> Option<T> {
        let mut guard = self.state();
        let (month, has_budget) = guard.as_mut()?.month(self.clock_rng.now());
        Some(f(month, has_budget))
    }
}
