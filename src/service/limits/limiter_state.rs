//! State and decisions of a project's limiter after the limits are loaded. Nothing here waits.

use std::time::Duration;

use tokio::sync::watch;

use super::bucket::{Bucket, Times};
use super::buckets::Buckets;
use super::lease::{Lease, Refusal};
use super::monthly_tokens::MonthlyTokens;
use super::rate_limit_status::RateLimitStatus;
use super::shared_levels::{Demand, Grant};
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
    changed: Option<(u64, Duration)>,
    rates: Rates,
    buckets: Buckets<Option<Bucket>>,
    month: MonthlyTokens,
    is_shared: bool,
    /// Shared store: what waiting requests are told, and whether an answer is awaited.
    answers: watch::Sender<LastAnswer>,
    pub is_asking: bool,
}

/// The last answer of the shared store.
#[derive(Clone, Debug, Default)]
struct LastAnswer {
    /// Counts the answers. One that wakes all waiting requests counts twice.
    count: u64,
    /// Why the last one failed.
    failed: Option<(Code, String)>,
}

/// An answer of the shared store that is not here yet.
pub(super) struct AwaitedAnswer {
    answers: watch::Receiver<LastAnswer>,
    /// The answers before it.
    before: u64,
}

impl AwaitedAnswer {
    /// # Errors
    /// If the store does not answer.
    pub async fn wait(mut self) -> Result<()> {
        let arrived = self.answers.wait_for(|last| last.count > self.before).await.map_err(Error::internal)?;
        arrived.failed.clone().map_or(Ok(()), |(code, message)| Err(Error::new(code, message)))
    }
}

/// Whether something was taken; otherwise an error for the client, or the answer after which it can be tried again because
/// it needs a lease.
pub(super) type Taken = Result<Result<()>, AwaitedAnswer>;

impl State {
    /// Begins with what is stored.
    pub fn new(generation: u64, read: StoredLimits, is_shared: bool, clock_rng: &dyn ClockRng) -> Self {
        let now = clock_rng.uptime();
        let since = read.levels.map_or(Duration::ZERO, |levels| levels.at.until(clock_rng.now()));
        let buckets = Buckets::sizes(&read.rates).zip(Buckets::levels(read.levels)).map(|(size, level)| {
            let full = TokenBucket::full(size?, now);
            Some(new_bucket(level.map_or(full, |level| full.resumed(level, since)), is_shared))
        });
        let StoredLimits { rates, month, .. } = read;
        let answers = watch::Sender::default();
        Self { loaded: generation, changed: None, rates, buckets, month, is_shared, answers, is_asking: false }
    }

    /// The uptime until which the buckets refill at the loaded rates.
    fn refill_until(&self, now: Duration) -> Duration {
        self.changed.map_or(now, |(_, at)| at.min(now))
    }

    fn times(&self, now: Duration) -> Times {
        Times { now, refill_until: self.refill_until(now) }
    }

    /// The rates have changed, and are to be loaded.
    pub fn invalidate(&mut self, generation: u64, now: Duration) {
        self.changed = Some((generation, self.refill_until(now)));
    }

    /// Applies new rates.
    pub fn change(&mut self, generation: u64, rates: Rates, now: Duration) {
        // Of two concurrent loads the later one may finish first.
        if generation >= self.loaded {
            // The old rates hold until the change, the new ones since.
            let times = self.times(now);
            self.changed = self.changed.filter(|(latest, _)| *latest > generation);
            self.buckets = self.buckets.zip(Buckets::sizes(&rates)).map(|(old, size)| {
                let size = size?;
                Some(match old {
                    Some(old) => old.changed(size, times),
                    None => new_bucket(TokenBucket::full(size, times.refill_until), self.is_shared),
                })
            });
            (self.loaded, self.rates) = (generation, rates);
        }
        // Requests that wait for a lease of a bucket that does not exist any more must not wait any longer.
        self.wake_all(None);
    }

    /// Takes one request, if a rate is set.
    pub fn take_request(&mut self, now: Duration) -> Taken {
        let times = self.times(now);
        let taken = self.buckets.requests.as_mut().map_or(Ok(()), |bucket| bucket.take(1, times));
        self.outcome(taken, self.rates.requests_per_minute, "requests")
    }

    /// Takes the tokens of a prompt from the budget and, if `is_rated`, from the rate. `now`: wall clock and uptime.
    pub fn take_tokens(&mut self, prompt: u64, is_rated: bool, now: (Timestamp, Duration)) -> Taken {
        if let Err(error) = self.check_budget(prompt, now.0) {
            return Ok(Err(error));
        }
        let times = self.times(now.1);
        let bucket = self.buckets.tokens.as_mut().filter(|_| is_rated);
        let taken = bucket.map_or(Ok(()), |bucket| bucket.take(prompt, times));
        let outcome = self.outcome(taken, self.rates.tokens_per_minute, "tokens")?;
        if outcome.is_ok() {
            self.month.held = self.month.held.saturating_add(prompt);
        }
        Ok(outcome)
    }

    /// Takes audio from the rate.
    pub fn take_audio(&mut self, millis: u64, now: Duration) -> Taken {
        let times = self.times(now);
        let taken = self.buckets.audio.as_mut().map_or(Ok(()), |bucket| bucket.take(millis, times));
        self.outcome(taken, self.rates.audio_seconds_per_minute, "seconds of audio")
    }

    /// `rate`: of these `units` per minute.
    fn outcome(&self, taken: Result<(), Refusal>, rate: Option<u64>, units: &str) -> Taken {
        match taken {
            Ok(()) => Ok(Ok(())),
            Err(Refusal::Wait(wait)) => {
                let text = format!(
                    "The project's rate limit of {} {units} per minute is reached. Try again after the time in Retry-After.",
                    rate.unwrap_or_default()
                );
                Ok(Err(Error::new(Code::RateLimited, text).retry_after(wait)))
            }
            // It is noted for the next demand. If the answer to an earlier one is on its way, it waits for the one after that.
            Err(Refusal::NeedsLease) => Err(self.answer_after(u64::from(self.is_asking))),
        }
    }

    /// The answer after so many further ones.
    fn answer_after(&self, further: u64) -> AwaitedAnswer {
        let answers = self.answers.subscribe();
        let before = answers.borrow().count + further;
        AwaitedAnswer { answers, before }
    }

    fn check_budget(&mut self, prompt: u64, now: Timestamp) -> Result<()> {
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

    /// Replaces the `held` tokens of a request's prompt by the tokens that it used.
    pub fn settle_tokens(&mut self, held: u64, used: u64, is_rated: bool, now: (Timestamp, Duration)) {
        self.month.roll(now.0);
        self.month.held = self.month.held.saturating_sub(held);
        match self.is_shared {
            true => self.month.add_unrecorded(used),
            false => self.month.used = self.month.used.saturating_add(used),
        }
        let times = self.times(now.1);
        if let Some(bucket) = self.buckets.tokens.as_mut().filter(|_| is_rated) {
            bucket.settle(i128::from(used) - i128::from(held), times);
        }
    }

    /// Replaces the `held` milliseconds of a request's audio by those that it used.
    pub fn settle_audio(&mut self, held: u64, used: u64, now: Duration) {
        let times = self.times(now);
        if let Some(bucket) = &mut self.buckets.audio {
            bucket.settle(i128::from(used) - i128::from(held), times);
        }
    }

    /// The tokens of the month, and whether there is a budget.
    pub fn month(&mut self, now: Timestamp) -> (&mut MonthlyTokens, bool) {
        self.month.roll(now);
        (&mut self.month, self.rates.token_budget.is_some())
    }

    /// The levels of the buckets that this process has for itself.
    pub fn own_levels(&self) -> Buckets<Option<i128>> {
        self.buckets.map(|bucket| bucket?.own_level())
    }

    pub fn status(&self, now: Duration) -> RateLimitStatus {
        RateLimitStatus::new(self.buckets.map(|bucket| Some(bucket?.known(now))))
    }

    /// The leases, on a shared store.
    pub fn leases(&mut self) -> impl Iterator<Item = &mut Lease> {
        self.buckets.as_mut().map(|bucket| bucket.as_mut()?.lease()).into_array().into_iter().flatten()
    }

    /// The demands of the leases on the shared store. Its answer is awaited from now on.
    pub fn demand(&mut self, now: Duration) -> Demand {
        self.is_asking = true;
        self.buckets.as_mut().map(|bucket| Some(bucket.as_mut()?.lease()?.demand(now)))
    }

    /// Applies the answer to a demand.
    pub fn answer(&mut self, demand: &Demand, answer: Result<Grant>, now: Duration) {
        self.is_asking = false;
        let applied = answer.map(|grant| self.apply(demand, grant, now));
        let must_ask_again = applied.is_ok() && self.leases().any(|lease| lease.must_ask_again());
        match must_ask_again {
            // Requests that have come since the demand wait for the next answer.
            true => self.publish(1, None),
            false => self.wake_all(applied.err().map(|error| (error.code(), error.message().to_owned()))),
        }
    }

    fn apply(&mut self, demand: &Demand, grant: Grant, now: Duration) {
        let answers = demand.zip(grant).zip(self.buckets.as_mut()).into_array();
        for ((demand, grant), bucket) in answers {
            // A limit that was removed meanwhile has no bucket any more.
            if let (Some(demand), Some(grant), Some(lease)) = (demand, grant, bucket.as_mut().and_then(Bucket::lease)) {
                lease.answer(&grant, demand.size, now);
            }
        }
    }

    /// All requests that wait try again, or fail.
    fn wake_all(&mut self, failed: Option<(Code, String)>) {
        self.leases().for_each(Lease::stop_waiting);
        self.publish(2, failed);
    }

    fn publish(&self, answers: u64, failed: Option<(Code, String)>) {
        self.answers.send_modify(|last| *last = LastAnswer { count: last.count + answers, failed });
    }

    /// Gives all leases up, which the next exchange returns. Returns the next answer.
    pub fn give_up_leases(&mut self) -> AwaitedAnswer {
        self.leases().for_each(Lease::give_up);
        self.answer_after(0)
    }
}

/// A bucket of this process, or one of which it has no lease yet.
fn new_bucket(bucket: TokenBucket, is_shared: bool) -> Bucket {
    if is_shared { Bucket::Leased(Lease::new(bucket)) } else { Bucket::Own(bucket) }
}
