//! The clock that grace periods are measured on. It never goes back.
//!
//! The time of day can be set back, and then a secret that a rotation had ended would live again.
//! So this clock runs on with the uptime where the time of day falls behind. Each change of a key,
//! each observed end and a clean stop keep the moment in the store, and whoever loads a key goes on
//! from there: a restart does not turn the clock back either. (A crash may, to the last change.)

use std::sync::atomic::{AtomicI64, Ordering::SeqCst};

use crate::clock_rng::{ClockRng, Timestamp};

/// How far the clock is ahead of the uptime, in milliseconds.
pub(super) struct Steady(AtomicI64);

impl Default for Steady {
    fn default() -> Self {
        Self(AtomicI64::new(i64::MIN))
    }
}

impl Steady {
    /// The time of day, or later where that was set back.
    pub fn now(&self, clock_rng: &dyn ClockRng) -> Timestamp {
        self.reach(clock_rng.now(), clock_rng)
    }

    /// Goes on from `moment`, if it is not past it already.
    pub fn reach(&self, moment: Timestamp, clock_rng: &dyn ClockRng) -> Timestamp {
        let uptime = i64::try_from(clock_rng.uptime().as_millis()).unwrap_or(i64::MAX);
        let ahead = moment.as_millis().saturating_sub(uptime);
        let ahead = self.0.fetch_max(ahead, SeqCst).max(ahead);
        Timestamp::from_millis(uptime.saturating_add(ahead))
    }
}
