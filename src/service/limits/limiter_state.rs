//! What the limiter of a project knows, once the limits are loaded.

use std::time::Duration;

use super::bucket::{Bucket, Times};
use super::bucket_size::{BucketSize, Buckets};
use super::exchange::{Demand, Grant};
use super::lease_source::{Attempt, LastAnswer};
use super::leased_bucket::LeasedBucket;
use super::monthly_tokens::MonthlyTokens;
use super::rate_limit_status::RateLimitStatus;
use super::token_bucket::TokenBucket;
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::{Code, Error, Result};
use crate::storage::limits::{LevelsRecord, Rates};

/// The stored limits of a project.
pub(super) struct StoredLimits {
    pub rates: Rates,
    pub levels: Option<LevelsRecord>,
    pub month: MonthlyTokens,
}

/// Rates, buckets and budget of a project.
pub(super) struct State {
    /// The generation of the loaded rates.
    pub loaded: u64,
    /// A change that is not loaded yet: the latest generation, and the uptime of the first change since the last load.
    /// Until it is loaded, the buckets do not refill, because the new rates are not known.
    pub changed: Option<(u64, Duration)>,
    pub rates: Rates,
    pub buckets: Buckets<Option<Bucket>>,
    pub month: MonthlyTokens,
    /// Shared store: the number of answers, and whether the next one is awaited.
    pub answers: u64,
    pub is_asking: bool,
}

impl State {
    /// Begins with what is stored.
    pub fn new(generation: u64, read: StoredLimits, is_shared: bool, clock_rng: &dyn ClockRng) -> Self {
        let now = clock_rng.uptime();
        let since = read.levels.map_or(Duration::ZERO, |levels| levels.at.until(clock_rng.now()));
        let level = |of: fn(LevelsRecord) -> Option<i128>| read.levels.and_then(of);
        let levels = Buckets {
            requests: level(|levels| levels.requests),
            tokens: level(|levels| levels.tokens),
            audio: level(|levels| levels.audio),
        };
        let buckets = BucketSize::of(&read.rates).zip(levels).map(|(size, level)| {
            let size = size?;
            let full = size.full(now);
            Some(new_bucket(size, level.map_or(full, |level| full.resumed(level, since)), is_shared))
        });
        let StoredLimits { rates, month, .. } = read;
        Self { loaded: generation, changed: None, rates, buckets, month, answers: 0, is_asking: false }
    }

    /// The uptime until which the buckets refill at the loaded rates.
    pub fn refill_until(&self, now: Duration) -> Duration {
        self.changed.map_or(now, |(_, at)| at.min(now))
    }

    pub fn times(&self, now: Duration) -> Times {
        Times { now, refill_until: self.refill_until(now) }
    }

    pub fn change(&mut self, generation: u64, rates: Rates, is_shared: bool, now: Duration) {
        // Of two concurrent loads the later one may finish first.
        if generation < self.loaded {
            return;
        }
        // The old rates hold until the change, the new ones since.
        let times = self.times(now);
        self.changed = self.changed.filter(|(latest, _)| *latest > generation);
        self.buckets = self.buckets.zip(BucketSize::of(&rates)).map(|(old, size)| {
            let size = size?;
            Some(match old {
                Some(old) => old.changed(size, times),
                None => new_bucket(size, size.full(times.refill_until), is_shared),
            })
        });
        (self.loaded, self.rates) = (generation, rates);
    }

    pub fn check_budget(&mut self, prompt: u64, now: Timestamp) -> Result<()> {
        self.month.roll(now);
        let used = self.month.known();
        let would = used.saturating_add(self.month.held).saturating_add(prompt);
        let Some(budget) = self.rates.token_budget.filter(|budget| would > *budget) else { return Ok(()) };
        let ends = self.month.ends;
        let text = format!(
            "The project's budget is {budget} tokens per month; {used} are used, and this request needs at least {prompt}. It begins anew at {ends}, or have 'token_budget' raised."
        );
        Err(Error::new(Code::InsufficientQuota, text))
    }

    pub fn leases(&self) -> impl Iterator<Item = LeasedBucket> + use<> {
        self.buckets.map(|bucket| bucket?.leased()).into_array().into_iter().flatten()
    }

    /// A request has been noted for the next demand. If the answer to an earlier one is on its way, it waits for the one
    /// after that.
    pub fn needs_lease<T>(&self) -> Attempt<T> {
        Attempt::NeedsLease(self.answers + u64::from(self.is_asking))
    }

    /// An answer after which requests that have come since its demand wait for the next one.
    pub fn next_answer(&mut self) -> LastAnswer {
        self.answers += 1;
        LastAnswer { count: self.answers, failed: None }
    }

    /// An answer after which all requests that wait try again.
    pub fn wake_all(&mut self, failed: Option<(Code, String)>) -> LastAnswer {
        self.answers += 2;
        self.each_lease(LeasedBucket::stop_waiting);
        LastAnswer { count: self.answers, failed }
    }

    pub fn each_lease(&mut self, f: impl Fn(&mut LeasedBucket)) {
        let leases = self.buckets.as_mut().map(|bucket| bucket.as_mut().and_then(Bucket::as_leased));
        leases.into_array().into_iter().flatten().for_each(f);
    }

    pub fn answer(&mut self, demand: &Demand, grant: Grant, now: Duration) {
        let answers = demand.zip(grant).zip(self.buckets.as_mut()).into_array();
        for ((demand, grant), bucket) in answers {
            // A limit that was removed meanwhile has no bucket any more.
            if let (Some(demand), Some(grant), Some(lease)) =
                (demand, grant, bucket.as_mut().and_then(Bucket::as_leased))
            {
                lease.answer(&grant, demand.size, now);
            }
        }
    }

    pub fn status(&self, now: Duration) -> RateLimitStatus {
        let known = self.buckets.map(|bucket| Some(bucket?.known(now)));
        RateLimitStatus::new(known)
    }
}

/// A bucket of this process, or one without a lease.
fn new_bucket(size: BucketSize, bucket: TokenBucket, is_shared: bool) -> Bucket {
    if is_shared { Bucket::Leased(LeasedBucket::new(size, bucket)) } else { Bucket::Own(bucket) }
}
