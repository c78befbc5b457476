//! Stores what a training reports.

use std::time::Duration;

use serde_json::json;

use super::interruption::{Interruption, failed};
use super::pace::{Pace, Speed};
use crate::calls::background::stop_signal::StopSignal;
use crate::clock_rng::ClockRng;
use crate::engine::{Measurement, StepReport, TrainingCheckpoint, TrainingEvent, TrainingRun};
use crate::ids::JobId;
use crate::service::fine_tuning::{JobState, Jobs, NewAdapter, NewState, Progress};

/// The time between two reports of progress.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Events with measurements of a job, at most about this many.
const MAX_METRICS: u32 = 1000;

/// A training whose events are stored.
pub(super) struct Watched<'a> {
    jobs: &'a Jobs,
    clock: &'a dyn ClockRng,
    stop: &'a StopSignal,
    id: JobId,
    progress: Progress,
    pace: Pace,
    /// Tokens since the beginning of the training.
    trained_tokens: u64,
    reported: Duration,
}

impl<'a> Watched<'a> {
    /// `progress`: of the job so far.
    pub fn new(
        (jobs, clock, stop): (&'a Jobs, &'a dyn ClockRng, &'a StopSignal),
        id: JobId,
        progress: Progress,
    ) -> Self {
        let began = clock.uptime();
        Self { jobs, clock, stop, id, progress, pace: Pace::new(began), trained_tokens: 0, reported: began }
    }

    /// Stores what the training reports until it ends.
    pub async fn follow(mut self, mut run: TrainingRun) -> std::result::Result<(), Interruption> {
        let Self { jobs, stop, .. } = self;
        let (mut changes, mut stopped) = (jobs.changes(), false);
        // The job may have been paused since it was started.
        changes.mark_changed();
        loop {
            tokio::select! {
                event = run.next() => match event {
                    Some(TrainingEvent::Step(report)) => {
                        if !self.step(report).await? {
                            run.stop();
                        }
                    }
                    Some(TrainingEvent::Validation { measured, .. }) => self.validated(measured).await?,
                    Some(TrainingEvent::Checkpoint(checkpoint)) => {
                        if self.save(*checkpoint).await?.is_final() {
                            return Ok(());
                        }
                    }
                    Some(TrainingEvent::Complete) => return Ok(()),
                    Some(TrainingEvent::Stopped) | None => return Err(Interruption::Stopped),
                    Some(TrainingEvent::Failed(failure)) => return Err(failed(failure)),
                },
                _ = changes.changed() => match jobs.state(self.id).await? {
                    JobState::Running => {}
                    JobState::Paused | JobState::Queued => run.stop(),
                    JobState::Succeeded | JobState::Failed | JobState::Cancelled => return Err(Interruption::Stopped),
                },
                () = stop.wait(), if !stopped => {
                    stopped = true;
                    run.stop();
                }
            }
        }
    }

    /// Reports a step. `false`: the training is to stop.
    async fn step(&mut self, report: StepReport) -> std::result::Result<bool, Interruption> {
        let now = self.clock.uptime();
        let Speed { tokens_per_second, time_left } = self.pace.step(now, &report);
        self.trained_tokens = report.trained_tokens;
        self.progress = Progress {
            step: report.step,
            steps: report.steps,
            train_loss: report.measured.loss,
            train_accuracy: report.measured.accuracy,
            tokens_per_second,
            time_left,
            ..self.progress
        };
        let is_measured = report.step.is_multiple_of(report.steps.div_ceil(MAX_METRICS)) || report.step == report.steps;
        if !is_measured && now.saturating_sub(self.reported) < REPORT_INTERVAL {
            return Ok(true);
        }
        self.reported = now;
        let metrics = is_measured.then(|| {
            let StepReport { step, steps, measured: Measurement { loss, accuracy }, learning_rate, .. } = report;
            let metrics = json!({
                "step": step,
                "total_steps": steps,
                "train_loss": loss,
                "train_mean_token_accuracy": accuracy,
                "learning_rate": learning_rate,
                "gradient_norm": report.gradient_norm,
                "tokens": report.tokens,
                "tokens_per_second": report.tokens as f32 / report.took.as_secs_f32().max(1e-6),
            });
            (format!("Step {step}/{steps}: training loss={loss:.4}"), metrics.to_string())
        });
        Ok(self.jobs.report(self.id, self.progress, self.trained_tokens, metrics).await?)
    }

    async fn validated(&mut self, measured: Measurement) -> std::result::Result<(), Interruption> {
        let Measurement { loss, accuracy } = measured;
        (self.progress.valid_loss, self.progress.valid_accuracy) = (Some(loss), Some(accuracy));
        let Progress { step, steps, .. } = self.progress;
        let metrics = json!({
            "step": step,
            "total_steps": steps,
            "full_valid_loss": loss,
            "full_valid_mean_token_accuracy": accuracy,
        });
        let message = format!("Step {step}/{steps}: full validation loss={loss:.4}");
        let metrics = Some((message, metrics.to_string()));
        self.jobs.report(self.id, self.progress, self.trained_tokens, metrics).await?;
        Ok(())
    }

    async fn save(&self, checkpoint: TrainingCheckpoint) -> std::result::Result<JobState, Interruption> {
        let TrainingCheckpoint { step, tokens, state, adapter } = checkpoint;
        let config = adapter.as_ref().map(|adapter| String::from_utf8_lossy(&adapter.config).into_owned());
        let adapter = adapter.as_ref().zip(config.as_deref());
        let new = NewState {
            step,
            is_last: step == self.progress.steps,
            tokens,
            bytes: &state,
            adapter: adapter.map(|(files, config)| NewAdapter { config, weights: &files.weights }),
        };
        Ok(self.jobs.save(self.id, new).await?)
    }
}
