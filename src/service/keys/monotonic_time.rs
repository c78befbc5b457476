//! The clock for grace periods. It never goes back.
//!
//! If the wall clock is set back, a secret that a rotation had ended would become valid again. So this clock follows
//! the uptime when the wall clock falls behind. Each change of a key, each observed end and a clean stop store the
//! time, and loading a key continues from there, so a restart does not turn the clock back either. (A crash may, to the
//! last change.)
//!
//! If the clock once ran ahead, later values of `previous_valid_until` are ahead too. `expires_at` follows the system
//! clock alone, so that correcting a wrong clock does not disable a key.

use std::sync::atomic::{AtomicI64, Ordering::SeqCst};

use crate::clock_rng::{ClockRng, Timestamp};

/// How far the clock is ahead of the uptime, in milliseconds.
pub(super) struct MonotonicTime(AtomicI64);

impl Default for MonotonicTime {
    fn default() -> Self {
        Self(AtomicI64::new(i64::MIN))
    }
}

impl MonotonicTime {
    /// The wall-clock time, or later if the wall clock was set back.
    pub fn now(&self, clock_rng: &dyn ClockRng) -> Timestamp {
        self.reach(clock_rng.now(), clock_rng)
    }

    /// Advances the clock to `timestamp`, if it is not past it already.
    pub fn reach(&self, timestamp: Timestamp, clock_rng: &dyn ClockRng) -> Timestamp {
        let uptime = i64::try_from(clock_rng.uptime().as_millis()).unwrap_or(i64::MAX);
        let ahead = timestamp.as_millis().saturating_sub(uptime);
        let ahead = self.0.fetch_max(ahead, SeqCst).max(ahead);
        Timestamp::from_millis(uptime.saturating_add(ahead))
    }
}
