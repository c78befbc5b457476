//! Measures elapsed time.

use std::time::Duration;

use crate::clock_rng::ClockRng;

pub(super) struct Stopwatch<'a> {
    clock: &'a dyn ClockRng,
    began: Duration,
}

impl<'a> Stopwatch<'a> {
    pub fn start(clock: &'a dyn ClockRng) -> Self {
        Self { clock, began: clock.uptime() }
    }

    pub fn elapsed(&self) -> Duration {
        self.clock.uptime().saturating_sub(self.began)
    }
}
