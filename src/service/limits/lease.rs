//! A lease: the share of one node in a bucket that several nodes share.
//!
//! The lease covers most requests without the database. A lease is what the rate gives in a second, but at most a quarter
//! of the bucket, so that no node empties it for the others; or what the waiting requests cost, if that is more. Below a
//! quarter of it, the node asks for more in advance.

use std::time::Duration;

use super::shared_levels::{BucketDemand, BucketGrant};
use super::token_bucket::{BucketSize, PARTS_PER_TOKEN, TokenBucket};

/// How long a lease is kept before what is left of it is returned.
const LEASE_TIME: Duration = Duration::from_secs(2);

/// The time for whose refill a lease is enough.
const LEASE_SIZE: Duration = Duration::from_secs(1);

/// Pause after an answer that the bucket is empty, so that a busy node takes the refill in one exchange.
const PAUSE: Duration = Duration::from_millis(50);

/// For so long the last answer tells how long a refused request has to wait. Others may return leases meanwhile.
const ANSWER_VALID: Duration = Duration::from_millis(250);

/// Why a request is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It may be admitted after this time.
    Wait(Duration),
    /// The shared bucket must be asked.
    NeedsLease,
}

/// The lease of a bucket. Amounts are in parts of a token.
#[derive(Clone, Copy, Debug)]
pub struct Lease {
    /// The amount that this node may give away. Negative: a debt, which the next exchange repays.
    held: i128,
    /// Uptime when the debt arose.
    debt_since: Option<Duration>,
    /// Uptime when the lease is returned.
    ends: Duration,
    /// The amount that the next exchange returns.
    returning: i128,
    /// The shared bucket as the last answer showed it. It has refilled since.
    shared: TokenBucket,
    /// Uptime of the last answer for the current size.
    answered: Option<Duration>,
    /// Costs of the requests that wait for the next exchange: of the cheapest one, and of all together.
    need: i128,
    waiting: i128,
    /// The next exchange should fill up the lease.
    renews: bool,
}

impl Lease {
    /// An empty lease. `shared`: the bucket as the store showed it.
    pub fn new(shared: TokenBucket) -> Self {
        Self {
            held: 0,
            debt_since: None,
            ends: Duration::ZERO,
            returning: 0,
            shared,
            answered: None,
            need: 0,
            waiting: 0,
            renews: false,
        }
    }

    /// The lease of the bucket with another size. What is held goes back, because a change must not add tokens.
    #[must_use]
    pub fn changed(mut self, size: BucketSize, now: Duration) -> Self {
        if size == self.size() {
            return self;
        }
        self.returning = self.returning.saturating_add(self.held.max(0));
        let shared = self.shared.changed(size, now);
        Self { held: self.held.min(0), shared, answered: None, ..self }
    }

    fn size(&self) -> BucketSize {
        self.shared.size()
    }

    /// Takes `amount` tokens from the lease.
    pub fn take(&mut self, amount: u64, now: Duration) -> Result<(), Refusal> {
        let cost = i128::from(amount) * PARTS_PER_TOKEN;
        if now >= self.ends {
            // Meanwhile the bucket may have filled up, as if this had never been taken from it.
            self.give_up();
        }
        if self.held < cost {
            // A request that costs nothing waits until a debt is repaid.
            return Err(self.refuse(cost.max(1), now));
        }
        self.held -= cost;
        self.renews |= self.should_renew(cost, now);
        Ok(())
    }

    /// Asks the shared bucket, unless its last answer tells that it has too little.
    fn refuse(&mut self, cost: i128, now: Duration) -> Refusal {
        if let Some(answered) = self.answered.filter(|_| self.returning == 0) {
            let age = now.saturating_sub(answered);
            let lacks = |level: i128| cost.min(self.size().capacity_parts()) - level.saturating_add(self.held);
            let wait = self.shared.time_for(lacks(self.shared.refilled(now).level()));
            if age < PAUSE && lacks(self.shared.level()) > 0 {
                return Refusal::Wait(wait.max(PAUSE.saturating_sub(age)));
            }
            if age < ANSWER_VALID && !wait.is_zero() {
                return Refusal::Wait(wait);
            }
        }
        self.need = if self.need == 0 { cost } else { self.need.min(cost) };
        self.waiting = self.waiting.saturating_add(cost);
        Refusal::NeedsLease
    }

    /// Charges tokens that are already used. A negative `amount` is a refund.
    pub fn settle(&mut self, amount: i128, now: Duration) {
        let parts = amount.saturating_mul(PARTS_PER_TOKEN);
        let had_none = self.held <= 0;
        self.held = self.held.saturating_sub(parts).min(self.size().capacity_parts());
        if had_none {
            self.ends = now + LEASE_TIME;
        }
        match self.held < 0 {
            true => self.debt_since = self.debt_since.or(Some(now)),
            false => self.debt_since = None,
        }
    }

    /// A full lease, unless requests need more.
    fn target(&self) -> i128 {
        self.size().inflow(LEASE_SIZE).min(self.size().capacity_parts() / 4)
    }

    /// True if requests of this cost will soon need more, and the shared bucket probably has it.
    fn should_renew(&self, cost: i128, now: Duration) -> bool {
        let target = self.target();
        self.held < target / 4
            && target >= cost.saturating_mul(2)
            && self.answered.is_some()
            && self.shared.refilled(now).level() >= target / 2
    }

    /// True if requests wait for the next exchange, or the lease should be filled up.
    pub fn wants_more(&self) -> bool {
        self.waiting > 0 || self.renews
    }

    /// True if a debt or an unused lease must be exchanged even without a request.
    pub fn is_due(&self, now: Duration) -> bool {
        self.held < 0 || self.returning > 0 || (self.held > 0 && now >= self.ends)
    }

    /// Whether a debt should be exchanged at once, because there was no exchange just before.
    pub fn owes(&self, now: Duration) -> bool {
        self.held < 0 && self.answered.is_none_or(|answered| now.saturating_sub(answered) >= PAUSE)
    }

    /// Returns the lease with the next exchange.
    pub fn give_up(&mut self) {
        self.returning = self.returning.saturating_add(self.held.max(0));
        self.held = self.held.min(0);
    }

    /// The demand of the next exchange. The returned amount is no longer held.
    pub fn demand(&mut self, now: Duration) -> BucketDemand {
        if now >= self.ends {
            self.give_up();
        }
        let want = if self.wants_more() { self.target().max(self.waiting) } else { 0 };
        let debt_age = self.debt_since.map_or(Duration::ZERO, |since| now.saturating_sub(since));
        let demand = BucketDemand {
            size: self.size(),
            held: self.held.max(0),
            returned: self.returning,
            debt: self.held.min(0).saturating_neg(),
            debt_age,
            need: self.need,
            want,
        };
        (self.returning, self.renews) = (0, false);
        self.stop_waiting();
        demand
    }

    /// Applies an answer.
    pub fn answer(&mut self, grant: &BucketGrant, size: BucketSize, now: Duration) {
        self.held = self.held.saturating_add(grant.debt);
        if self.held >= 0 {
            self.debt_since = None;
        }
        if size != self.size() {
            // Granted before the limit was changed.
            self.returning = self.returning.saturating_add(grant.granted);
            return;
        }
        self.held = self.held.saturating_add(grant.granted);
        if grant.granted > 0 {
            self.ends = now + LEASE_TIME;
        }
        self.shared = self.shared.at_level(grant.level, now);
        self.answered = Some(now);
    }

    /// True if requests have arrived since the last demand for which its answer does not suffice, and the bucket has
    /// more.
    pub fn must_ask_again(&self) -> bool {
        let available = self.shared.level().saturating_add(self.held);
        self.waiting > self.held && available >= self.need.min(self.size().capacity_parts())
    }

    /// The requests that wait try again.
    pub fn stop_waiting(&mut self) {
        (self.need, self.waiting) = (0, 0);
    }

    /// The bucket as far as this node knows it: the shared part and its own.
    pub fn known(&self, now: Duration) -> TokenBucket {
        let shared = self.shared.refilled(now);
        let own = self.held.saturating_add(self.returning);
        shared.at_level(shared.level().saturating_add(own), now)
    }
}
