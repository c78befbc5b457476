//! Shows the progress of a training on standard error: a bar on a terminal, else a line every 10 %.

use std::io::{IsTerminal, Write, stderr};

use indicatif::{ProgressBar, ProgressStyle};

use crate::calls::fine_tuning::Speed;
use crate::display::{SanitizedWriter, format_count};
use crate::engine::{Measurement, StepReport};

pub struct Progress {
    /// `None`: lines are printed.
    bar: Option<ProgressBar>,
    /// Tenths of the steps that were reported.
    tenths: u32,
    validation_loss: Option<f32>,
}

impl Progress {
    pub fn for_stderr() -> Self {
        let bar = stderr().is_terminal().then(|| {
            let template = "step {pos}/{len} {bar:24} {msg}";
            ProgressBar::no_length()
                .with_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        Self { bar, tenths: 0, validation_loss: None }
    }

    pub fn step(&mut self, report: &StepReport, speed: Speed) {
        let StepReport { step, steps, measured, .. } = *report;
        let text = self.measurements(measured, speed);
        if let Some(bar) = &self.bar {
            bar.set_length(steps.into());
            bar.set_position(step.into());
            bar.set_message(text);
            return;
        }
        let tenths = (u64::from(step) * 10 / u64::from(steps.max(1))) as u32;
        if tenths > self.tenths || step == 1 {
            self.tenths = tenths;
            say(&format!("step {step}/{steps}: {text}"));
        }
    }

    pub fn validation(&mut self, step: u32, measured: Measurement) {
        self.validation_loss = Some(measured.loss);
        if self.bar.is_none() {
            say(&format!("step {step}: validation loss {:.4}", measured.loss));
        }
    }

    /// A message for the user.
    pub fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| say(text)),
            None => say(text),
        }
    }

    /// Keeps the bar as it is: a training that was ended early must not look complete.
    pub fn finish(&self) {
        self.bar.iter().for_each(ProgressBar::abandon);
    }

    fn measurements(&self, measured: Measurement, speed: Speed) -> String {
        let validation = match self.validation_loss.filter(|_| self.bar.is_some()) {
            Some(loss) => format!(", validation {loss:.4}"),
            None => String::new(),
        };
        let tokens = format_count(speed.tokens_per_second as u64);
        format!("loss {:.4}{validation}, {tokens} tokens/s, {} left", measured.loss, duration(speed.time_left))
    }
}

/// Seconds as `1h 02m`, `3m 20s` or `12s`.
fn duration(seconds: f32) -> String {
    let seconds = seconds.ceil() as u64;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds}s"),
        (0, minutes) => format!("{minutes}m {:02}s", seconds % 60),
        (hours, minutes) => format!("{hours}h {minutes:02}m"),
    }
}

/// Errors are ignored: progress output is optional.
fn say(text: &str) {
    let _unread = writeln!(SanitizedWriter(stderr()), "{text}");
}

#[cfg(test)]
mod tests {
    use super::duration;

    #[test]
    fn durations_have_two_units() {
        let shown = [0., 11.2, 200., 3720., 90_000.].map(duration);
        assert_eq!(shown, ["0s", "12s", "3m 20s", "1h 02m", "25h 00m"]);
    }
}
