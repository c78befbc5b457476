//! How fast a training is.

use std::time::Duration;

use crate::engine::StepReport;

/// Measures the speed of a training since it began or went on.
pub struct Pace {
    began: Duration,
    /// The step before the first of this run.
    first: Option<u32>,
    /// Tokens of this run.
    tokens: u64,
}

/// The mean speed so far.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    pub tokens_per_second: f32,
    /// Seconds until the last step.
    pub time_left: f32,
}

impl Pace {
    /// `now`: the uptime.
    pub fn new(now: Duration) -> Self {
        Self { began: now, first: None, tokens: 0 }
    }

    pub fn step(&mut self, now: Duration, report: &StepReport) -> Speed {
        let first = *self.first.get_or_insert(report.step - 1);
        self.tokens += report.tokens;
        let seconds = now.saturating_sub(self.began).as_secs_f32().max(1e-3);
        let step_seconds = seconds / (report.step - first) as f32;
        Speed {
            tokens_per_second: self.tokens as f32 / seconds,
            time_left: step_seconds * (report.steps - report.step) as f32,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Pace, Speed};
    use crate::engine::{Measurement, StepReport};

    #[test]
    fn steps_before_this_run_do_not_count() {
        let report = |step| StepReport {
            step,
            steps: 20,
            measured: Measurement { loss: 1., accuracy: 0. },
            learning_rate: 0.,
            gradient_norm: 0.,
            tokens: 30,
            trained_tokens: 30,
            took: Duration::ZERO,
        };
        let mut pace = Pace::new(Duration::from_secs(100));
        pace.step(Duration::from_secs(102), &report(11));
        let speed = pace.step(Duration::from_secs(104), &report(12));
        assert_eq!(speed, Speed { tokens_per_second: 15., time_left: 16. });
    }
}
