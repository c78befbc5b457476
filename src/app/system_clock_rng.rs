//! The only file that reads the clock and the operating system's random generator.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ring::rand::{SecureRandom, SystemRandom};

use crate::clock_rng::{ClockRng, Timestamp};

/// The machine's clocks and random generator.
pub struct SystemClockRng {
    started: Instant,
    random: SystemRandom,
}

impl SystemClockRng {
    #[expect(clippy::disallowed_methods, reason = "the composition root reads the clock for everyone")]
    pub fn new() -> Self {
        Self { started: Instant::now(), random: SystemRandom::new() }
    }
}

impl Default for SystemClockRng {
    fn default() -> Self {
        Self::new()
    }
}

impl ClockRng for SystemClockRng {
    #[expect(clippy::disallowed_methods, reason = "the composition root reads the clock for everyone")]
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    #[expect(clippy::panic, reason = "no key or id may be made when the system has no randomness to give")]
    fn fill(&self, bytes: &mut [u8]) {
        if self.random.fill(bytes).is_err() {
            panic!("the operating system's random generator failed");
        }
    }
}
