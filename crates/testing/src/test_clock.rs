//! A clock that a test advances.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use outpost_common::clock_rng::{ClockRng, Timestamp};

/// A clock that advances by a microsecond with each reading. Tests advance it further.
#[derive(Default)]
pub struct TestClock(AtomicU64);

impl TestClock {
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_micros() as u64, Ordering::Relaxed);
    }
}

impl ClockRng for TestClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(1_795_000_000_000)
    }

    fn uptime(&self) -> Duration {
        Duration::from_micros(self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn fill(&self, bytes: &mut [u8]) {
        bytes.fill(7);
    }
}
