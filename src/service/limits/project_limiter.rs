//! The rate limiter of one project, in memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::bucket_size::Buckets;
use super::exchange::{Demand, Grant};
use super::lease_source::{Attempt, LastAnswer, LeaseSource, Leasing};
use super::leased_bucket::{LeasedBucket, Refusal};
use super::limiter_state::{State, StoredLimits};
use super::monthly_tokens::MonthlyTokens;
use super::rate_limit_status::RateLimitStatus;
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::{Code, Error, Result};
use crate::ids::ProjectId;
use crate::storage::limits::LevelsRecord;

/// One project's buckets and budget. The entry is created before its limits are read, so that a change, which
/// increments `generation`, is never missed.
pub(super) struct ProjectLimiter {
    pub project: ProjectId,
    generation: AtomicU64,
    state: Mutex<Option<State>>,
    /// On a shared store.
    pub leasing: Option<Leasing>,
}

impl ProjectLimiter {
    /// Before its limits are loaded. `source`: where it gets leases, on a shared store.
    pub fn new(project: ProjectId, source: Option<Arc<dyn LeaseSource>>) -> Self {
        let leasing = source.map(Leasing::new);
        Self { project, generation: AtomicU64::default(), state: Mutex::default(), leasing }
    }

    fn state(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the loaded limits as outdated since `now`.
    pub fn invalidate(&self, now: Duration) {
        let mut guard = self.state();
        let generation = self.generation.fetch_add(1, Ordering::AcqRel) + 1;
        if let Some(state) = &mut *guard {
            state.changed = Some((generation, state.refill_until(now)));
        }
    }

    /// The generation to load, if the loaded limits are outdated.
    pub fn stale_generation(&self) -> Option<u64> {
        let now = self.generation.load(Ordering::Acquire);
        let known = self.state().as_ref().map(|state| state.loaded);
        (known != Some(now)).then_some(now)
    }

    /// Applies limits that were read after `generation` was noted.
    pub fn load(&self, generation: u64, read: StoredLimits, clock_rng: &dyn ClockRng) {
        let now = clock_rng.uptime();
        let is_shared = self.leasing.is_some();
        let mut guard = self.state();
        match &mut *guard {
            Some(state) => {
                state.change(generation, read.rates, is_shared, now);
                // Requests that wait for a lease of a bucket that does not exist any more must not wait any longer.
                let answer = state.wake_all(None);
                drop(guard);
                self.publish(answer);
            }
            empty => *empty = Some(State::new(generation, read, is_shared, clock_rng)),
        }
    }

    /// Tells waiting requests of an answer.
    fn publish(&self, answer: LastAnswer) {
        if let Some(leasing) = &self.leasing {
            leasing.answers.send_if_modified(|last| {
                let is_newer = answer.count > last.count;
                if is_newer {
                    *last = answer;
                }
                is_newer
            });
        }
    }

    /// Takes one request from the bucket, if a rate is set.
    pub fn take_request(&self, now: Duration) -> Attempt<(RateLimitStatus, Result<()>)> {
        let mut guard = self.state();
        let Some(state) = &mut *guard else { return Attempt::Done((RateLimitStatus::default(), Ok(()))) };
        let times = state.times(now);
        let taken = match state.buckets.requests.as_mut().map_or(Ok(()), |bucket| bucket.take(1, times)) {
            Err(Refusal::NeedsLease) => return state.needs_lease(),
            Err(Refusal::Wait(wait)) => {
                let rate = state.rates.requests_per_minute.unwrap_or_default();
                Err(limited(format!("{rate} requests per minute"), wait))
            }
            Ok(()) => Ok(()),
        };
        Attempt::Done((state.status(now), taken))
    }

    /// The status without taking a request.
    pub fn status(&self, now: Duration) -> RateLimitStatus {
        self.state().as_ref().map(|state| state.status(now)).unwrap_or_default()
    }

    /// Takes the tokens of a prompt from the budget and, if `is_rated`, from the rate. `now`: wall clock and uptime.
    pub fn take_tokens(&self, prompt: u64, is_rated: bool, now: (Timestamp, Duration)) -> Attempt<Result<()>> {
        let mut guard = self.state();
        let Some(state) = &mut *guard else { return Attempt::Done(Ok(())) };
        if let Err(error) = state.check_budget(prompt, now.0) {
            return Attempt::Done(Err(error));
        }
        let times = state.times(now.1);
        let rate = state.rates.tokens_per_minute.unwrap_or_default();
        let bucket = state.buckets.tokens.as_mut().filter(|_| is_rated);
        match bucket.map_or(Ok(()), |bucket| bucket.take(prompt, times)) {
            Err(Refusal::NeedsLease) => return state.needs_lease(),
            Err(Refusal::Wait(wait)) => {
                return Attempt::Done(Err(limited(format!("{rate} tokens per minute"), wait)));
            }
            Ok(()) => {}
        }
        state.month.held = state.month.held.saturating_add(prompt);
        Attempt::Done(Ok(()))
    }

    /// Replaces the `held` tokens of a request's prompt by the tokens that it used. On a shared store, they are not
    /// recorded until [`Self::recorded`].
    pub fn settle(&self, held: u64, used: u64, is_rated: bool, now: (Timestamp, Duration)) {
        let mut guard = self.state();
        let Some(state) = &mut *guard else { return };
        state.month.roll(now.0);
        state.month.held = state.month.held.saturating_sub(held);
        match self.leasing {
            Some(_) => state.month.add_unrecorded(used),
            None => state.month.used = state.month.used.saturating_add(used),
        }
        let times = state.times(now.1);
        if let Some(bucket) = state.buckets.tokens.as_mut().filter(|_| is_rated) {
            bucket.settle(i128::from(used) - i128::from(held), times);
        }
    }

    /// Takes audio from the rate.
    pub fn take_audio(&self, millis: u64, now: Duration) -> Attempt<Result<()>> {
        let mut guard = self.state();
        let Some(state) = &mut *guard else { return Attempt::Done(Ok(())) };
        let times = state.times(now);
        let rate = state.rates.audio_seconds_per_minute.unwrap_or_default();
        match state.buckets.audio.as_mut().map_or(Ok(()), |bucket| bucket.take(millis, times)) {
            Err(Refusal::NeedsLease) => state.needs_lease(),
            Err(Refusal::Wait(wait)) => {
                Attempt::Done(Err(limited(format!("{rate} seconds of audio per minute"), wait)))
            }
            Ok(()) => Attempt::Done(Ok(())),
        }
    }

    /// Replaces the `held` milliseconds of a request's audio by those that it used.
    pub fn settle_audio(&self, held: u64, used: u64, now: Duration) {
        let mut guard = self.state();
        let Some(state) = &mut *guard else { return };
        let times = state.times(now);
        if let Some(bucket) = &mut state.buckets.audio {
            bucket.settle(i128::from(used) - i128::from(held), times);
        }
    }

    /// The levels to store, so that a restart does not refill the buckets; `None` without limits, or on a shared store,
    /// which has them.
    pub fn levels(&self, at: Timestamp) -> Option<LevelsRecord> {
        let guard = self.state();
        let Buckets { requests, tokens, audio } = guard.as_ref()?.buckets.map(|bucket| bucket?.own_level());
        let limited = requests.is_some() || tokens.is_some() || audio.is_some();
        limited.then_some(LevelsRecord { at, requests, tokens, audio })
    }

    /// What the leases ask of the shared store now, if `is_wanted` for one of them and no answer is awaited.
    pub fn demand(&self, now: Duration, is_wanted: impl Fn(&LeasedBucket) -> bool) -> Option<Demand> {
        let mut guard = self.state();
        let state = guard.as_mut()?;
        if state.is_asking || !state.leases().any(|lease| is_wanted(&lease)) {
            return None;
        }
        state.is_asking = true;
        Some(state.buckets.as_mut().map(|bucket| Some(bucket.as_mut()?.as_leased()?.demand(now))))
    }

    /// Applies the answer to a demand.
    pub fn answer(&self, demand: &Demand, answer: Result<Grant>, now: Duration) {
        let mut guard = self.state();
        let Some(state) = &mut *guard else { return };
        state.is_asking = false;
        let answer = match answer {
            Ok(grant) => {
                state.answer(demand, grant, now);
                match state.leases().any(|lease| lease.must_ask_again()) {
                    true => state.next_answer(),
                    false => state.wake_all(None),
                }
            }
            Err(error) => state.wake_all(Some((error.code(), error.message().to_owned()))),
        };
        drop(guard);
        self.publish(answer);
    }

    /// Whether an answer is awaited.
    pub fn is_asking(&self) -> bool {
        self.state().as_ref().is_some_and(|state| state.is_asking)
    }

    /// Returns all leases with the next exchange.
    pub fn give_up_leases(&self) {
        if let Some(state) = &mut *self.state() {
            state.each_lease(LeasedBucket::give_up);
        }
    }

    /// Runs `f` with the month's tokens, once the limits are loaded; with whether there is a budget.
    pub fn with_month<T>(&self, now: Timestamp, f: impl FnOnce(&mut MonthlyTokens, bool) -> T) -> Option<T> {
        let mut guard = self.state();
        let state = guard.as_mut()?;
        state.month.roll(now);
        Some(f(&mut state.month, state.rates.token_budget.is_some()))
    }
}

fn limited(rate: String, wait: Duration) -> Error {
    let text = format!("The project's rate limit of {rate} is reached. Try again after the time in Retry-After.");
    Error::new(Code::RateLimited, text).retry_after(wait)
}
