//! A clock that a test can move.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use outpost::app::SystemClockRng;
use outpost::clock_rng::{ClockRng, Timestamp};

/// The machine's time and randomness, shifted by what the test says.
#[derive(Default)]
pub struct ShiftedClock {
    machine: SystemClockRng,
    shift_millis: AtomicI64,
    passed_millis: AtomicU64,
}

impl ShiftedClock {
    pub fn advance(&self, by: Duration) {
        self.shift_millis.fetch_add(i64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }

    /// Time passes on every clock, not only that on the wall.
    pub fn pass(&self, by: Duration) {
        self.passed_millis.fetch_add(u64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
        self.advance(by);
    }

    pub fn go_back(&self, by: Duration) {
        self.shift_millis.fetch_sub(i64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }
}

impl ClockRng for ShiftedClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.machine.now().as_millis() + self.shift_millis.load(Ordering::SeqCst))
    }

    fn uptime(&self) -> Duration {
        self.machine.uptime() + Duration::from_millis(self.passed_millis.load(Ordering::SeqCst))
    }

    fn fill(&self, bytes: &mut [u8]) {
        self.machine.fill(bytes);
    }
}
