//! The in-memory rate limiter of one project.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::token_bucket::TokenBucket;
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::{Code, Error, Result};
use crate::storage::limits::{LevelsRecord, Rates};

const MILLIS_PER_SECOND: u64 = 1000;

/// One project's buckets and budget. The entry is created before its limits are read, so that a change, which
/// increments `generation`, is never missed.
#[derive(Default)]
pub(super) struct ProjectLimiter {
    generation: AtomicU64,
    state: Mutex<Option<State>>,
}

struct State {
    /// The generation of the loaded rates.
    loaded: u64,
    /// A change that is not loaded yet: the latest generation, and the uptime of the first change since the last load.
    /// Until it is loaded, the buckets do not refill, because the new rates are not known.
    changed: Option<(u64, Duration)>,
    rates: Rates,
    requests: Option<TokenBucket>,
    tokens: Option<TokenBucket>,
    /// In milliseconds of audio.
    audio: Option<TokenBucket>,
    month: MonthlyTokens,
}

/// Tokens used in a calendar month.
#[derive(Clone, Copy, Debug)]
pub(super) struct MonthlyTokens {
    pub ends: Timestamp,
    pub used: u64,
    /// Reserved by running requests.
    pub held: u64,
}

/// A bucket's status for response headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketStatus {
    pub limit: u64,
    pub remaining: u64,
    pub reset: Duration,
}

/// Rate limit status of a project after a request was admitted or refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RateLimitStatus {
    pub requests: Option<BucketStatus>,
    pub tokens: Option<BucketStatus>,
    /// In seconds of audio.
    pub audio: Option<BucketStatus>,
}

/// The stored limits of a project.
pub(super) struct StoredLimits {
    pub rates: Rates,
    pub levels: Option<LevelsRecord>,
    pub month: MonthlyTokens,
}

impl ProjectLimiter {
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
        let mut guard = self.state();
        match &mut *guard {
            Some(state) => state.change(generation, read.rates, now),
            empty => {
                let since = read.levels.map_or(Duration::ZERO, |levels| levels.at.until(clock_rng.now()));
                let resume = |bucket: TokenBucket, level: Option<i128>| match level {
                    Some(level) => bucket.resumed(level, since),
                    None => bucket,
                };
                let level = |of: fn(LevelsRecord) -> Option<i128>| read.levels.and_then(of);
                *empty = Some(State {
                    loaded: generation,
                    changed: None,
                    rates: read.rates,
                    requests: requests(&read.rates, now).map(|bucket| resume(bucket, level(|levels| levels.requests))),
                    tokens: tokens(&read.rates, now).map(|bucket| resume(bucket, level(|levels| levels.tokens))),
                    audio: audio(&read.rates, now).map(|bucket| resume(bucket, level(|levels| levels.audio))),
                    month: read.month,
                });
            }
        }
    }

    /// Takes one request from the bucket, if a rate is set.
    pub fn take_request(&self, now: Duration) -> (RateLimitStatus, Result<()>) {
        let mut guard = self.state();
        let Some(state) = &mut *guard else { return (RateLimitStatus::default(), Ok(())) };
        let until = state.refill_until(now);
        let taken = state.requests.as_mut().map_or(Ok(()), |bucket| bucket.take(1, until));
        let rate = state.rates.requests_per_minute.unwrap_or_default();
        (state.status(), taken.map_err(|wait| limited(format!("{rate} requests per minute"), wait)))
    }

    /// The status without taking a request.
    pub fn status(&self) -> RateLimitStatus {
        self.state().as_ref().map(State::status).unwrap_or_default()
    }

    /// Takes the tokens of a prompt from the budget and, if `is_rated`, from the rate. `now`: wall clock and uptime.
    pub fn take_tokens(&self, prompt: u64, is_rated: bool, now: (Timestamp, Duration)) -> Result<()> {
        let mut guard = self.state();
        let Some(state) = &mut *guard else { return Ok(()) };
        state.month.roll(now.0);
        let would = state.month.used.saturating_add(state.month.held).saturating_add(prompt);
        if let Some(budget) = state.rates.token_budget.filter(|budget| would > *budget) {
            let (used, ends) = (state.month.used, state.month.ends);
            let text = format!(
                "The project's budget is {budget} tokens per month; {used} are used, and this request needs at least {prompt}. It begins anew at {ends}, or have 'token_budget' raised."
            );
            return Err(Error::new(Code::InsufficientQuota, text));
        }
        let until = state.refill_until(now.1);
        if let Some(bucket) = state.tokens.as_mut().filter(|_| is_rated) {
            let rate = bucket.rate();
            bucket.take(prompt, until).map_err(|wait| limited(format!("{rate} tokens per minute"), wait))?;
        }
        state.month.held = state.month.held.saturating_add(prompt);
        Ok(())
    }

    /// Replaces the `held` tokens of a request's prompt by the tokens that it used.
    pub fn settle(&self, held: u64, used: u64, is_rated: bool, now: (Timestamp, Duration)) {
        let mut guard = self.state();
        let Some(state) = &mut *guard else { return };
        state.month.roll(now.0);
        state.month.held = state.month.held.saturating_sub(held);
        state.month.used = state.month.used.saturating_add(used);
        let until = state.refill_until(now.1);
        if let Some(bucket) = state.tokens.as_mut().filter(|_| is_rated) {
            bucket.settle(i128::from(used) - i128::from(held), until);
        }
    }

    /// Takes audio from the rate.
    pub fn take_audio(&self, millis: u64, now: Duration) -> Result<()> {
        let mut guard = self.state();
        let Some(state) = &mut *guard else { return Ok(()) };
        let until = state.refill_until(now);
        let Some(bucket) = &mut state.audio else { return Ok(()) };
        let rate = bucket.rate() / MILLIS_PER_SECOND;
        bucket.take(millis, until).map_err(|wait| limited(format!("{rate} seconds of audio per minute"), wait))
    }

    /// Replaces the `held` milliseconds of a request's audio by those that it used.
    pub fn settle_audio(&self, held: u64, used: u64, now: Duration) {
        let mut guard = self.state();
        let Some(state) = &mut *guard else { return };
        let until = state.refill_until(now);
        if let Some(bucket) = &mut state.audio {
            bucket.settle(i128::from(used) - i128::from(held), until);
        }
    }

    /// The levels to store, so that a restart does not refill the buckets; `None` without limits.
    pub fn levels(&self, at: Timestamp) -> Option<LevelsRecord> {
        let guard = self.state();
        let state = guard.as_ref()?;
        let level = |bucket: Option<TokenBucket>| bucket.map(|bucket| bucket.level());
        let (requests, tokens, audio) = (level(state.requests), level(state.tokens), level(state.audio));
        let limited = requests.is_some() || tokens.is_some() || audio.is_some();
        limited.then_some(LevelsRecord { at, requests, tokens, audio })
    }
}

impl State {
    /// The uptime until which the buckets refill at the loaded rates.
    fn refill_until(&self, now: Duration) -> Duration {
        self.changed.map_or(now, |(_, at)| at.min(now))
    }

    fn change(&mut self, generation: u64, rates: Rates, now: Duration) {
        // Of two concurrent loads the later one may finish first.
        if generation < self.loaded {
            return;
        }
        // The old rates hold until the change, the new ones since.
        let now = self.refill_until(now);
        self.changed = self.changed.filter(|(latest, _)| *latest > generation);
        let update = |old: Option<TokenBucket>, new: Option<TokenBucket>, burst: Option<u64>| match (old, new) {
            (Some(old), Some(new)) => Some(old.changed(new.rate(), burst.unwrap_or(new.rate()), now)),
            (_, new) => new,
        };
        self.requests = update(self.requests, requests(&rates, now), rates.burst_limit);
        self.tokens = update(self.tokens, tokens(&rates, now), None);
        self.audio = update(self.audio, audio(&rates, now), None);
        (self.loaded, self.rates) = (generation, rates);
    }

    fn status(&self) -> RateLimitStatus {
        let bucket_status = |bucket: TokenBucket| BucketStatus {
            limit: bucket.rate(),
            remaining: bucket.remaining(),
            reset: bucket.reset(),
        };
        let audio_status = |bucket: TokenBucket| BucketStatus {
            limit: bucket.rate() / MILLIS_PER_SECOND,
            remaining: bucket.remaining() / MILLIS_PER_SECOND,
            reset: bucket.reset(),
        };
        RateLimitStatus {
            requests: self.requests.map(bucket_status),
            tokens: self.tokens.map(bucket_status),
            audio: self.audio.map(audio_status),
        }
    }
}

fn requests(rates: &Rates, now: Duration) -> Option<TokenBucket> {
    rates.requests_per_minute.map(|rate| TokenBucket::new(rate, rates.burst_limit.unwrap_or(rate), now))
}

fn tokens(rates: &Rates, now: Duration) -> Option<TokenBucket> {
    rates.tokens_per_minute.map(|rate| TokenBucket::new(rate, rate, now))
}

fn audio(rates: &Rates, now: Duration) -> Option<TokenBucket> {
    let millis = rates.audio_seconds_per_minute?.saturating_mul(MILLIS_PER_SECOND);
    Some(TokenBucket::new(millis, millis, now))
}

impl MonthlyTokens {
    /// The month of `now` without usage.
    pub fn of(now: Timestamp) -> Self {
        Self { ends: now.next_month(), used: 0, held: 0 }
    }

    fn roll(&mut self, now: Timestamp) {
        if now >= self.ends {
            *self = Self { held: self.held, ..Self::of(now) };
        }
    }
}

fn limited(rate: String, wait: Duration) -> Error {
    let text = format!("The project's rate limit of {rate} is reached. Try again after the time in Retry-After.");
    Error::new(Code::RateLimited, text).retry_after(wait)
}
