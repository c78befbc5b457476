//! A clock that a test can move.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use outpost::app::SystemClockRng;
use outpost::clock_rng::{ClockRng, Timestamp};

/// The machine's clock and randomness, with an offset that the test sets.
#[derive(Default)]
pub struct ShiftedClock {
    machine: SystemClockRng,
    wall_clock_millis: AtomicI64,
    elapsed_millis: AtomicU64,
}

impl ShiftedClock {
    /// Moves the wall clock forward. Uptime does not change.
    pub fn advance(&self, by: Duration) {
        self.wall_clock_millis.fetch_add(i64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }

    /// Lets time pass: moves both the wall clock and the uptime forward.
    pub fn pass(&self, by: Duration) {
        self.elapsed_millis.fetch_add(u64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
        self.advance(by);
    }

    /// Sets the wall clock back.
    pub fn go_back(&self, by: Duration) {
        self.wall_clock_millis.fetch_sub(i64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }
}

impl ClockRng for ShiftedClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.machine.now().as_millis() + self.wall_clock_millis.load(Ordering::SeqCst))
    }

    fn uptime(&self) -> Duration {
        self.machine.uptime() + Duration::from_millis(self.elapsed_millis.load(Ordering::SeqCst))
    }

    fn fill(&self, bytes: &mut [u8]) {
        self.machine.fill(bytes);
    }

    fn follows_database(&self) -> bool {
        false
    }
}
