//! A token bucket with integer arithmetic, without rounding errors.
//!
//! The level is in units of 1/60,000,000,000 token, so that a rate of `n` per minute refills exactly `n` units per
//! nanosecond.

use std::time::Duration;

pub(super) const PARTS_PER_TOKEN: i128 = 60_000_000_000;

/// Refills steadily up to its capacity. The level may be negative after a request that cost more than was known in
/// advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    /// Refill per minute.
    rate: u64,
    capacity: i128,
    level: i128,
    /// Uptime of `level`.
    at: Duration,
}

impl TokenBucket {
    /// A full bucket.
    pub fn new(rate: u64, capacity: u64, now: Duration) -> Self {
        let capacity = i128::from(capacity) * PARTS_PER_TOKEN;
        Self { rate, capacity, level: capacity, at: now }
    }

    /// The bucket resumed from `level`, stored `since` ago.
    #[must_use]
    pub fn resumed(self, level: i128, since: Duration) -> Self {
        let level = level.saturating_add(inflow(self.rate, since)).min(self.capacity);
        Self { level, ..self }
    }

    /// The same bucket with another level at a point of the uptime.
    #[must_use]
    pub fn at_level(self, level: i128, at: Duration) -> Self {
        Self { level: level.min(self.capacity), at, ..self }
    }

    /// The same level with another rate and capacity; the change adds nothing.
    #[must_use]
    pub fn changed(mut self, rate: u64, capacity: u64, now: Duration) -> Self {
        self.refill(now);
        let capacity = i128::from(capacity) * PARTS_PER_TOKEN;
        Self { rate, capacity, level: self.level.min(capacity), at: self.at }
    }

    /// Takes `amount`, or returns how long to wait. An amount above the capacity is granted when the bucket is full and
    /// leaves a negative level.
    pub fn take(&mut self, amount: u64, now: Duration) -> Result<(), Duration> {
        self.refill(now);
        let cost = i128::from(amount) * PARTS_PER_TOKEN;
        let deficit = cost.min(self.capacity) - self.level;
        if deficit > 0 {
            return Err(self.time_for(deficit));
        }
        self.level -= cost;
        Ok(())
    }

    /// Charges an amount that is already used. A negative `amount` is a refund.
    pub fn settle(&mut self, amount: i128, now: Duration) {
        self.refill(now);
        self.level = self.level.saturating_sub(amount.saturating_mul(PARTS_PER_TOKEN)).min(self.capacity);
    }

    /// The bucket refilled until `now`.
    #[must_use]
    pub fn refilled(mut self, now: Duration) -> Self {
        self.refill(now);
        self
    }

    fn refill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.at);
        self.level = self.level.saturating_add(inflow(self.rate, passed)).min(self.capacity);
        self.at = self.at.max(now);
    }

    /// The amount available now.
    pub fn remaining(&self) -> u64 {
        u64::try_from((self.level / PARTS_PER_TOKEN).max(0)).unwrap_or(u64::MAX)
    }

    /// Time until the bucket is full.
    pub fn reset(&self) -> Duration {
        self.time_for(self.capacity - self.level)
    }

    pub fn rate(&self) -> u64 {
        self.rate
    }

    pub fn level(&self) -> i128 {
        self.level
    }

    /// How long it takes to refill by `parts`.
    pub(super) fn time_for(&self, parts: i128) -> Duration {
        let rate = i128::from(self.rate.max(1));
        let nanos = (parts.max(0) + rate - 1) / rate;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Parts that a rate refills in a time.
pub(super) fn inflow(rate: u64, passed: Duration) -> i128 {
    i128::from(rate).saturating_mul(i128::try_from(passed.as_nanos()).unwrap_or(i128::MAX))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::TokenBucket;

    const START: Duration = Duration::from_secs(100);

    #[test]
    fn a_burst_is_granted_before_the_rate_applies() {
        let mut bucket = TokenBucket::new(60, 10, START);
        assert_eq!((0..20).filter(|_| bucket.take(1, START).is_ok()).count(), 10);
        assert_eq!(bucket.take(1, START), Err(Duration::from_secs(1)));
        let later = START + Duration::from_secs(1);
        assert_eq!(bucket.take(1, later), Ok(()));
        assert!(bucket.take(1, later).is_err());
    }

    #[test]
    fn a_cost_above_the_capacity_is_granted_when_full_and_leaves_a_debt() {
        let mut bucket = TokenBucket::new(60, 10, START);
        assert_eq!(bucket.take(30, START), Ok(()));
        assert_eq!(bucket.remaining(), 0);
        assert_eq!(bucket.take(1, START), Err(Duration::from_secs(21)));
    }

    #[test]
    fn a_changed_limit_adds_no_tokens() {
        let mut bucket = TokenBucket::new(60, 10, START);
        while bucket.take(1, START).is_ok() {}
        let mut wider = bucket.changed(600, 100, START);
        assert!(wider.take(1, START).is_err());
        assert_eq!(TokenBucket::new(60, 10, START).changed(60, 4, START).remaining(), 4);
    }

    proptest! {
        #[test]
        fn the_bucket_never_grants_more_than_it_refills(rate in 1..1_000_000_u64, burst in 1..10_000_u64, steps in prop::collection::vec(0..5_000_000_u64, 1..200)) {
            let mut bucket = TokenBucket::new(rate, burst, START);
            let (mut now, mut granted) = (START, 0_u128);
            for step in steps {
                now += Duration::from_nanos(step * 1000);
                while granted < 100_000 && bucket.take(1, now).is_ok() {
                    granted += 1;
                }
            }
            let inflow = u128::from(rate) * (now - START).as_nanos() / 60_000_000_000;
            prop_assert!(granted <= u128::from(burst) + inflow);
        }

        #[test]
        fn a_wait_is_exact_to_a_microsecond(rate in 1..1_000_000_u64, taken in 1..500_u64) {
            let mut bucket = TokenBucket::new(rate, taken, START);
            bucket.take(taken, START).unwrap();
            let wait = bucket.take(1, START).unwrap_err();
            prop_assert!(bucket.take(1, START + wait.saturating_sub(Duration::from_nanos(1_000))).is_err() || wait < Duration::from_micros(1));
            prop_assert!(bucket.take(1, START + wait).is_ok());
        }
    }
}
