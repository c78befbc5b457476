//! A token bucket with integer arithmetic, without rounding errors.
//!
//! The level is in units of 1/60,000,000,000 token, so that a rate of `n` per minute refills exactly `n` units per
//! nanosecond.

use std::time::Duration;

pub(super) const PARTS_PER_TOKEN: i128 = 60_000_000_000;

/// Rate and capacity of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketSize {
    /// Refill per minute.
    pub rate: u64,
    pub capacity: u64,
}

impl BucketSize {
    /// The capacity in parts of a token.
    pub fn capacity_parts(&self) -> i128 {
        i128::from(self.capacity) * PARTS_PER_TOKEN
    }

    /// Parts of a token that refill in a time.
    pub fn inflow(&self, passed: Duration) -> i128 {
        i128::from(self.rate).saturating_mul(i128::try_from(passed.as_nanos()).unwrap_or(i128::MAX))
    }
}

/// Refills steadily up to its capacity. The level may be negative after a request that cost more than was known in
/// advance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    size: BucketSize,
    level: i128,
    /// Uptime of `level`.
    at: Duration,
}

impl TokenBucket {
    /// A full bucket.
    pub fn full(size: BucketSize, now: Duration) -> Self {
        Self { size, level: size.capacity_parts(), at: now }
    }

    /// The bucket resumed from `level`, stored `since` ago.
    #[must_use]
    pub fn resumed(self, level: i128, since: Duration) -> Self {
        let level = level.saturating_add(self.size.inflow(since)).min(self.size.capacity_parts());
        Self { level, ..self }
    }

    /// The same bucket with another level at a point of the uptime.
    #[must_use]
    pub fn at_level(self, level: i128, at: Duration) -> Self {
        Self { level: level.min(self.size.capacity_parts()), at, ..self }
    }

    /// The same level with another size; the change adds nothing.
    #[must_use]
    pub fn changed(mut self, size: BucketSize, now: Duration) -> Self {
        self.refill(now);
        Self { size, level: self.level.min(size.capacity_parts()), at: self.at }
    }

    /// Takes `amount`, or returns how long to wait. An amount above the capacity is granted when the bucket is full and
    /// leaves a negative level.
    pub fn take(&mut self, amount: u64, now: Duration) -> Result<(), Duration> {
        self.refill(now);
        let cost = i128::from(amount) * PARTS_PER_TOKEN;
        let deficit = cost.min(self.size.capacity_parts()) - self.level;
        if deficit > 0 {
            return Err(self.time_for(deficit));
        }
        self.level -= cost;
        Ok(())
    }

    /// Charges an amount that is already used. A negative `amount` is a refund.
    pub fn settle(&mut self, amount: i128, now: Duration) {
        self.refill(now);
        self.level = self.level.saturating_sub(amount.saturating_mul(PARTS_PER_TOKEN)).min(self.size.capacity_parts());
    }

    /// The bucket refilled until `now`.
    #[must_use]
    pub fn refilled(mut self, now: Duration) -> Self {
        self.refill(now);
        self
    }

    fn refill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.at);
        self.level = self.level.saturating_add(self.size.inflow(passed)).min(self.size.capacity_parts());
        self.at = self.at.max(now);
    }

    /// The amount available now.
    pub fn remaining(&self) -> u64 {
        u64::try_from((self.level / PARTS_PER_TOKEN).max(0)).unwrap_or(u64::MAX)
    }

    /// Time until the bucket is full.
    pub fn reset(&self) -> Duration {
        self.time_for(self.size.capacity_parts() - self.level)
    }

    pub fn size(&self) -> BucketSize {
        self.size
    }

    pub fn level(&self) -> i128 {
        self.level
    }

    /// How long it takes to refill by `parts`.
    pub(super) fn time_for(&self, parts: i128) -> Duration {
        let rate = i128::from(self.size.rate.max(1));
        let nanos = (parts.max(0) + rate - 1) / rate;
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::{BucketSize, TokenBucket};

    const START: Duration = Duration::from_secs(100);

    fn full(rate: u64, capacity: u64) -> TokenBucket {
        TokenBucket::full(BucketSize { rate, capacity }, START)
    }

    #[test]
    fn a_burst_is_granted_before_the_rate_applies() {
        let mut bucket = full(60, 10);
        assert_eq!((0..20).filter(|_| bucket.take(1, START).is_ok()).count(), 10);
        assert_eq!(bucket.take(1, START), Err(Duration::from_secs(1)));
        let later = START + Duration::from_secs(1);
        assert_eq!(bucket.take(1, later), Ok(()));
        assert!(bucket.take(1, later).is_err());
    }

    #[test]
    fn a_cost_above_the_capacity_is_granted_when_full_and_leaves_a_debt() {
        let mut bucket = full(60, 10);
        assert_eq!(bucket.take(30, START), Ok(()));
        assert_eq!(bucket.remaining(), 0);
        assert_eq!(bucket.take(1, START), Err(Duration::from_secs(21)));
    }

    #[test]
    fn a_changed_limit_adds_no_tokens() {
        let mut bucket = full(60, 10);
        while bucket.take(1, START).is_ok() {}
        let mut wider = bucket.changed(BucketSize { rate: 600, capacity: 100 }, START);
        assert!(wider.take(1, START).is_err());
        assert_eq!(full(60, 10).changed(BucketSize { rate: 60, capacity: 4 }, START).remaining(), 4);
    }

    proptest! {
        #[test]
        fn the_bucket_never_grants_more_than_it_refills(rate in 1..1_000_000_u64, burst in 1..10_000_u64, steps in prop::collection::vec(0..5_000_000_u64, 1..200)) {
            let mut bucket = full(rate, burst);
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
            let mut bucket = full(rate, taken);
            bucket.take(taken, START).unwrap();
            let wait = bucket.take(1, START).unwrap_err();
            prop_assert!(bucket.take(1, START + wait.saturating_sub(Duration::from_nanos(1_000))).is_err() || wait < Duration::from_micros(1));
            prop_assert!(bucket.take(1, START + wait).is_ok());
        }
    }
}
