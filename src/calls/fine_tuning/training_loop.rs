//! Trains the jobs, one at a time. The projects take turns. A job that was interrupted goes on from its last saved state.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::pace::{Pace, Speed};
use super::preparation::{Prepared, Task, Unprepared, prepare};
use crate::calls::blocking::run_blocking;
use crate::calls::stop_signal::{LoopStopper, StopSignal, stop_signal};
use crate::clock_rng::ClockRng;
use crate::engine::{
    Engine, Failure, LoadError, Measurement, StepReport, TrainingCheckpoint, TrainingEvent, TrainingRun,
};
use crate::error::{Code, Error, Result};
use crate::ids::{JobId, ProjectId};
use crate::service::fine_tuning::{
    Hyperparameters, Job, JobError, JobState, Jobs, Level, NewAdapter, NewState, OpenJob, Progress,
};

/// The time until it tries again if memory or the disk is full.
const RETRY: Duration = Duration::from_secs(15);
/// The time between two reports of progress.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Events with measurements of a job, at most about this many.
const MAX_METRICS: u32 = 1000;

/// Trains the jobs that are queued. When it is stopped, the training that runs saves its state.
pub struct TrainingLoop {
    engine: Engine,
    jobs: Jobs,
    clock: Arc<dyn ClockRng>,
    stop: StopSignal,
    /// When a job of each project was last begun, as a count.
    turns: HashMap<ProjectId, u64>,
    /// The job that waits, and why.
    waiting: Option<(JobId, String)>,
}

/// Why a training was not completed.
enum Interruption {
    /// The job has failed.
    Failed(JobError),
    /// The job was paused, cancelled or changed, or the server stops. Nothing is to be done.
    Stopped,
    /// It is to be tried again later.
    Later(String),
}

impl From<Error> for Interruption {
    fn from(error: Error) -> Self {
        match error.code() {
            Code::InsufficientQuota => Self::Failed(job_error(error.code().as_str(), error.message(), None)),
            _ => Self::Later(error.to_string()),
        }
    }
}

fn job_error(code: &str, message: impl Into<String>, param: Option<&str>) -> JobError {
    JobError { code: code.to_owned(), message: message.into(), param: param.map(str::to_owned) }
}

impl TrainingLoop {
    pub fn new(engine: Engine, jobs: Jobs, clock: Arc<dyn ClockRng>) -> (Self, LoopStopper) {
        let (stopper, stop) = stop_signal();
        (Self { engine, jobs, clock, stop, turns: HashMap::new(), waiting: None }, stopper)
    }

    /// Runs until it is stopped.
    pub async fn run(mut self) {
        while !self.stop.is_set() {
            let wait = match self.next().await {
                Ok(Some(job)) => self.train(job).await,
                Ok(None) => Some(Duration::MAX),
                Err(error) => {
                    tracing::warn!(%error, "the queue of fine-tuning jobs cannot be read");
                    Some(RETRY)
                }
            };
            if let Some(wait) = wait {
                tokio::select! {
                    () = self.jobs.changed() => {}
                    () = self.stop.wait() => {}
                    () = tokio::time::sleep(wait.min(Duration::from_secs(3600))) => {}
                }
            }
        }
    }

    /// The job to train next: of the project whose turn is longest ago one that was interrupted, else the oldest.
    async fn next(&self) -> Result<Option<OpenJob>> {
        let mut jobs = self.jobs.open_jobs().await?;
        jobs.retain(|open| open.job.state != JobState::Paused);
        let turn = |open: &OpenJob| {
            let interrupted = open.job.state == JobState::Running;
            (self.turns.get(&open.job.project).copied().unwrap_or(0), !interrupted, open.job.id)
        };
        Ok(jobs.into_iter().min_by_key(turn))
    }

    /// Trains a job. Returns how long to wait before the next.
    async fn train(&mut self, open: OpenJob) -> Option<Duration> {
        let (id, project) = (open.job.id, open.job.project);
        let turn = self.turns.values().max().copied().unwrap_or(0) + 1;
        self.turns.insert(project, turn);
        let outcome = self.attempt(open).await;
        let failed = match outcome {
            // Its end is stored.
            Ok(()) => Ok(()),
            Err(Interruption::Stopped) => self.jobs.meter(id).await,
            Err(Interruption::Failed(error)) => {
                tracing::info!(job = %id, code = error.code, "a fine-tuning job has failed");
                self.jobs.fail(id, error).await
            }
            Err(Interruption::Later(reason)) => {
                tracing::warn!(job = %id, reason, "a fine-tuning job cannot go on now");
                self.say_waiting(id, reason).await;
                return Some(RETRY);
            }
        };
        failed.err().map(|error| {
            tracing::warn!(job = %id, %error, "the end of a training cannot be stored");
            RETRY
        })
    }

    /// Adds an event that says why a job waits, unless the last one said so.
    async fn say_waiting(&mut self, id: JobId, reason: String) {
        let waiting = Some((id, reason.clone()));
        if self.waiting != waiting {
            let message = format!("The training waits and is tried again: {}.", reason.trim_end_matches('.'));
            // If the disk is full, there is no room for it.
            if self.jobs.add_event(id, Level::Warn, message).await.is_ok() {
                self.waiting = waiting;
            }
        }
    }

    async fn attempt(&self, open: OpenJob) -> std::result::Result<(), Interruption> {
        let id = open.job.id;
        let saved = self.jobs.saved_state(id).await?;
        let prepared = self.prepare(&open.job, open.requested, open.resolved, saved).await?;
        let Prepared { model, data, examples, options, resolved, saved } = prepared;
        let message = match open.saved_step {
            Some(step) => format!("The training goes on after step {step}."),
            None => format!("The training begins with {examples} examples."),
        };
        if self.stop.is_set() || !self.jobs.start(id, resolved, message).await? {
            return Err(Interruption::Stopped);
        }
        let run = self.engine.train(model, data, options, saved);
        let run = run.map_err(|refused| Interruption::Later(refused.to_string()))?;
        let progress = open.job.progress.unwrap_or_default();
        Watched::new(self, id, progress).follow(run).await
    }

    /// Reads the files, tokenises the examples and loads the model.
    async fn prepare(
        &self,
        job: &Job,
        requested: Hyperparameters,
        resolved: Option<Hyperparameters>,
        saved: Option<Vec<u8>>,
    ) -> std::result::Result<Prepared, Interruption> {
        let file_error = |error: Error| match error.code() {
            Code::InvalidParameter => {
                let param = error.param_name().unwrap_or("training_file").to_owned();
                Interruption::Failed(job_error(&format!("invalid_{param}"), error.message(), Some(&param)))
            }
            _ => error.into(),
        };
        let training = self.jobs.file_content(job.training_file, "training_file").await.map_err(file_error)?;
        let validation = match job.validation_file {
            Some(file) => Some(self.jobs.file_content(file, "validation_file").await.map_err(file_error)?),
            None => None,
        };
        let (engine, job) = (self.engine.clone(), job.clone());
        let work = move || {
            let task = Task {
                model: &job.model,
                method: job.method,
                requested,
                resolved,
                seed: job.seed,
                training: &training,
                validation: validation.as_deref(),
                saved,
            };
            Ok(prepare(&engine, task).map_err(|unprepared| not_prepared(&job.model, unprepared)))
        };
        run_blocking(work).await?
    }
}

/// Why a job of the model `id` cannot be trained, now or at all.
fn not_prepared(id: &str, unprepared: Unprepared) -> Interruption {
    match unprepared {
        Unprepared::Data { param, problem } => {
            let text = format!("The file of '{param}' cannot be trained on: {problem}.");
            Interruption::Failed(job_error(&format!("invalid_{param}"), text, Some(param)))
        }
        Unprepared::Model(error @ LoadError::OutOfMemory { .. }) => Interruption::Later(error.to_string()),
        Unprepared::Model(LoadError::NotFound) => {
            let text = format!("The model '{id}' is no longer installed. Install it and create the job again.");
            Interruption::Failed(job_error("model_not_found", text, Some("model")))
        }
        Unprepared::Model(error @ LoadError::TooLarge { .. }) => {
            let text = format!(
                "The training does not fit into memory: {error}. Shorten the examples, lower lora_rank, use a smaller model, or give the server more memory with --memory."
            );
            Interruption::Failed(job_error("out_of_memory", text, None))
        }
        Unprepared::Model(error) => {
            let reason = match error {
                LoadError::Unusable { reason, .. } => reason,
                error => error.to_string(),
            };
            let text = format!("The model '{id}' cannot be trained: {reason}.");
            Interruption::Failed(job_error("model_unavailable", text, Some("model")))
        }
    }
}

/// A training whose events are stored.
struct Watched<'a> {
    training: &'a TrainingLoop,
    id: JobId,
    progress: Progress,
    pace: Pace,
    /// Tokens since the beginning of the training.
    trained_tokens: u64,
    reported: Duration,
}

impl<'a> Watched<'a> {
    /// `progress`: of the job so far.
    fn new(training: &'a TrainingLoop, id: JobId, progress: Progress) -> Self {
        let began = training.clock.uptime();
        Self { training, id, progress, pace: Pace::new(began), trained_tokens: 0, reported: began }
    }

    async fn follow(mut self, mut run: TrainingRun) -> std::result::Result<(), Interruption> {
        let TrainingLoop { jobs, stop, .. } = self.training;
        let mut stopped = false;
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
                () = jobs.changed() => match jobs.state(self.id).await? {
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
        let now = self.training.clock.uptime();
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
        Ok(self.training.jobs.report(self.id, self.progress, self.trained_tokens, metrics).await?)
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
        self.training.jobs.report(self.id, self.progress, self.trained_tokens, metrics).await?;
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
        Ok(self.training.jobs.save(self.id, new).await?)
    }
}

/// Why a training has failed in the engine.
fn failed(failure: Failure) -> Interruption {
    let text = format!("The training has failed: {failure}.");
    match failure {
        Failure::ShuttingDown => Interruption::Stopped,
        Failure::Device { .. } | Failure::OutOfMemory => Interruption::Later(failure.to_string()),
        Failure::Internal(_) => Interruption::Failed(job_error("internal_error", text, None)),
        _ => Interruption::Failed(job_error("training_failed", text, None)),
    }
}
