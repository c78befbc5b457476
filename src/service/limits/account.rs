//! What the limiter knows of one project, in memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::bucket::Bucket;
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::{Code, Error, Result};
use crate::storage::limits::{LevelsRecord, Rates};

/// One project's buckets and budget. Its entry is made before its limits are read, so that a
/// change of them, which raises `generation`, is never missed.
#[derive(Default)]
pub(super) struct Account {
    generation: AtomicU64,
    state: Mutex<Option<State>>,
}

struct State {
    /// The generation that the rates are of.
    loaded: u64,
    rates: Rates,
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
    month: Month,
}

/// Tokens used in a calendar month.
#[derive(Clone, Copy, Debug)]
pub(super) struct Month {
    pub ends: Timestamp,
    pub used: u64,
    /// Taken for requests that still run.
    pub held: u64,
}

/// A bucket as response headers tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gauge {
    pub limit: u64,
    pub remaining: u64,
    pub reset: Duration,
}

/// Where a project stands after a request was let in or refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    pub requests: Option<Gauge>,
    pub tokens: Option<Gauge>,
}

/// What is read from the store for an account.
pub(super) struct Loaded {
    pub rates: Rates,
    pub levels: Option<LevelsRecord>,
    pub month: Month,
}

impl Account {
    fn state(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The limits have changed on disk.
    pub fn outdate(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
    }

    /// The generation to load, unless what is known is right.
    pub fn outdated(&self) -> Option<u64> {
        let now = self.generation.load(Ordering::Acquire);
        let known = self.state().as_ref().map(|state| state.loaded);
        (known != Some(now)).then_some(now)
    }

    /// Takes over what was read after `generation` was noted.
    pub fn load(&self, generation: u64, read: Loaded, clock_rng: &dyn ClockRng) {
        let now = clock_rng.uptime();
        let mut guard = self.state();
        match &mut *guard {
            Some(state) => state.change(generation, read.rates, now),
            empty => {
                let since = read.levels.map_or(Duration::ZERO, |levels| levels.at.until(clock_rng.now()));
                let resume = |bucket: Bucket, level: Option<i128>| match level {
                    Some(level) => bucket.resumed(level, since),
                    None => bucket,
                };
                let levels = read.levels;
                *empty = Some(State {
                    loaded: generation,
                    rates: read.rates,
                    requests: requests(&read.rates, now).map(|b| resume(b, levels.and_then(|levels| levels.requests))),
                    tokens: tokens(&read.rates, now).map(|b| resume(b, levels.and_then(|levels| levels.tokens))),
                    month: read.month,
                });
            }
        }
    }

    /// Takes one request from the bucket, if there is one.
    pub fn take_request(&self, now: Duration) -> (Standing, Result<()>) {
        let mut guard = self.state();
        let Some(state) = &mut *guard else { return (Standing::default(), Ok(())) };
        let taken = state.requests.as_mut().map_or(Ok(()), |bucket| bucket.take(1, now));
        let rate = state.rates.requests_per_minute.unwrap_or_default();
        (state.standing(), taken.map_err(|wait| limited(format!("{rate} requests a minute"), wait)))
    }

    /// Where the project stands, for a request that costs nothing.
    pub fn standing(&self) -> Standing {
        self.state().as_ref().map(State::standing).unwrap_or_default()
    }

    /// Takes the tokens of a prompt; `now` on both clocks.
    pub fn take_tokens(&self, prompt: u64, now: (Timestamp, Duration)) -> Result<()> {
        let mut guard = self.state();
        let Some(state) = &mut *guard else { return Ok(()) };
        state.month.roll(now.0);
        let would = state.month.used.saturating_add(state.month.held).saturating_add(prompt);
        if let Some(budget) = state.rates.token_budget.filter(|budget| would > *budget) {
            let (used, ends) = (state.month.used, state.month.ends);
            let text = format!(
                "The project's budget is {budget} tokens a month; {used} are used, and this request needs at least {prompt}. It begins anew at {ends}, or have 'token_budget' raised."
            );
            return Err(Error::new(Code::InsufficientQuota, text));
        }
        if let Some(bucket) = &mut state.tokens {
            let rate = bucket.rate();
            bucket.take(prompt, now.1).map_err(|wait| limited(format!("{rate} tokens a minute"), wait))?;
        }
        state.month.held = state.month.held.saturating_add(prompt);
        Ok(())
    }

    /// Books what a request really used in place of the `held` tokens of its prompt.
    pub fn settle(&self, held: u64, used: u64, now: (Timestamp, Duration)) {
        let mut guard = self.state();
        let Some(state) = &mut *guard else { return };
        state.month.roll(now.0);
        state.month.held = state.month.held.saturating_sub(held);
        state.month.used = state.month.used.saturating_add(used);
        if let Some(bucket) = &mut state.tokens {
            bucket.settle(i128::from(used) - i128::from(held), now.1);
        }
    }

    /// What has to be kept so that a restart gives nothing away; none for a project without limits.
    pub fn levels(&self, at: Timestamp) -> Option<LevelsRecord> {
        let guard = self.state();
        let state = guard.as_ref()?;
        let level = |bucket: Option<Bucket>| bucket.map(|bucket| bucket.level());
        let (requests, tokens) = (level(state.requests), level(state.tokens));
        (requests.is_some() || tokens.is_some()).then_some(LevelsRecord { at, requests, tokens })
    }
}

impl State {
    fn change(&mut self, generation: u64, rates: Rates, now: Duration) {
        // Of two loads at once the later one may finish first.
        if generation < self.loaded {
            return;
        }
        let keep = |old: Option<Bucket>, new: Option<Bucket>, burst: Option<u64>| match (old, new) {
            (Some(old), Some(new)) => Some(old.changed(new.rate(), burst.unwrap_or(new.rate()), now)),
            (_, new) => new,
        };
        self.requests = keep(self.requests, requests(&rates, now), rates.burst_limit);
        self.tokens = keep(self.tokens, tokens(&rates, now), None);
        (self.loaded, self.rates) = (generation, rates);
    }

    fn standing(&self) -> Standing {
        let gauge =
            |bucket: Bucket| Gauge { limit: bucket.rate(), remaining: bucket.remaining(), reset: bucket.reset() };
        Standing { requests: self.requests.map(gauge), tokens: self.tokens.map(gauge) }
    }
}

fn requests(rates: &Rates, now: Duration) -> Option<Bucket> {
    rates.requests_per_minute.map(|rate| Bucket::new(rate, rates.burst_limit.unwrap_or(rate), now))
}

fn tokens(rates: &Rates, now: Duration) -> Option<Bucket> {
    rates.tokens_per_minute.map(|rate| Bucket::new(rate, rate, now))
}

impl Month {
    /// The month of `now`, nothing used in it yet.
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
