//! Trains the jobs, one at a time. The projects take turns. A job that was interrupted resumes from its last saved
//! state.
//!
//! If servers share the store, a server that cannot train a job now leaves it to the others, and tries again later.
//!
//! Training is limited by the processor or the memory: two jobs at once would each take twice as long and need twice
//! the memory.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use super::interruption::{Interruption, job_error, not_installed, not_prepared};
use super::preparation::{Prepared, Task, prepare};
use super::watched::Watched;
use crate::calls::background::stop_signal::{LoopStopper, StopSignal, stop_signal};
use crate::calls::background::{self, Attempt, Work};
use crate::calls::blocking::run_blocking;
use crate::clock_rng::ClockRng;
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::ids::{JobId, ProjectId};
use crate::service::fine_tuning::{Hyperparameters, Job, JobState, Jobs, Level, OpenJob};

/// The time until a server tries again whether it can train a job that it could not.
const UNSUITABLE_RETRY: Duration = Duration::from_secs(60);
/// How long a job that this server cannot train waits while no other one is there. One may be starting again.
const MAX_ALONE: Duration = Duration::from_secs(600);

/// Trains the jobs that are queued. When it is stopped, the training that runs saves its state.
pub struct TrainingLoop {
    engine: Engine,
    jobs: Jobs,
    clock: Arc<dyn ClockRng>,
    stop: StopSignal,
    /// Set if another server has been seen since this one started.
    has_seen_others: Cell<bool>,
}

/// Why a job is tried again.
#[derive(Default)]
pub(in crate::calls) struct Setback {
    /// The last event that says so.
    message: Option<String>,
    /// The uptime since which no other server was there when this one could not train the job.
    alone_since: Option<Duration>,
}

impl TrainingLoop {
    pub fn new(engine: Engine, jobs: Jobs, clock: Arc<dyn ClockRng>) -> (Self, LoopStopper) {
        let (stopper, stop) = stop_signal();
        (Self { engine, jobs, clock, stop, has_seen_others: Cell::new(false) }, stopper)
    }

    /// Runs until it is stopped.
    pub async fn run(self) {
        background::run(&self, &*self.clock, &self.stop).await;
    }

    /// True if another server may train a job that this one cannot. It may be about to start, if it was seen before or
    /// has trained the job already.
    fn others_may_train(&self, setback: &mut Setback, has_begun: bool) -> bool {
        if !self.jobs.is_shared() || !(has_begun || self.has_seen_others.get()) {
            return false;
        }
        if self.jobs.servers() > 1 {
            setback.alone_since = None;
            return true;
        }
        let now = self.clock.uptime();
        now.saturating_sub(*setback.alone_since.get_or_insert(now)) < MAX_ALONE
    }

    /// Adds an event that says why a job is tried again, unless the last one said so.
    async fn say(&self, id: JobId, setback: &mut Setback, message: String) {
        if setback.message.as_ref() == Some(&message) {
            return;
        }
        // If the disk is full, there is no room for it.
        if self.jobs.add_event(id, Level::Warn, message.clone()).await.is_ok() {
            setback.message = Some(message);
        }
    }

    async fn train(&self, open: OpenJob, setback: &Setback) -> std::result::Result<(), Interruption> {
        let id = open.job.id;
        if setback.message.is_some() {
            self.require_model(&open.job.model).await?;
        }
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
        Watched::new((&self.jobs, &*self.clock, &self.stop), id, progress).follow(run).await
    }

    /// Looks for the model of a job that was left to others, before anything large is read again.
    async fn require_model(&self, id: &str) -> std::result::Result<(), Interruption> {
        let (models, model) = (self.engine.clone(), id.to_owned());
        let found = run_blocking(move || Ok(models.models().find(&model).is_some())).await?;
        if found { Ok(()) } else { Err(not_installed(id)) }
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
        let (engine, job, has_begun) = (self.engine.clone(), job.clone(), resolved.is_some());
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
            Ok(prepare(&engine, task).map_err(|unprepared| not_prepared(&job.model, has_begun, unprepared)))
        };
        run_blocking(work).await?
    }
}

impl Work for TrainingLoop {
    const NAME: &'static str = "fine-tuning jobs";
    const RETRY_DELAY: Duration = Duration::from_secs(15);

    type Id = JobId;
    type Piece = OpenJob;
    type Memo = Setback;

    fn changes(&self) -> watch::Receiver<()> {
        self.jobs.changes()
    }

    /// Those that were interrupted come first.
    async fn open(&self) -> Result<Vec<OpenJob>> {
        let mut jobs = self.jobs.open_jobs().await?;
        self.has_seen_others.set(self.has_seen_others.get() || self.jobs.servers() > 1);
        jobs.retain(|open| open.job.state != JobState::Paused);
        jobs.sort_by_key(|open| open.job.state != JobState::Running);
        Ok(jobs)
    }

    fn key(open: &OpenJob) -> (JobId, ProjectId) {
        (open.job.id, open.job.project)
    }

    fn may_begin(&self, _: &OpenJob, running: &[OpenJob]) -> bool {
        running.is_empty()
    }

    /// What a job lacks on the only server, such as memory, the next one would lack, too.
    fn keeps_place(&self) -> bool {
        !self.jobs.is_shared()
    }

    async fn claim(&self, id: JobId) -> Result<bool> {
        self.jobs.claim(id).await
    }

    async fn release(&self, id: JobId) {
        self.jobs.release(id).await;
    }

    async fn attempt(&self, open: OpenJob, setback: &mut Setback) -> Result<Attempt> {
        let (id, has_begun) = (open.job.id, open.resolved.is_some());
        match self.train(open, setback).await {
            // Its end is stored.
            Ok(()) => Ok(Attempt::Done),
            Err(Interruption::Stopped) => self.jobs.meter(id).await.map(|()| Attempt::Done),
            Err(Interruption::TakenOver(error)) => Err(error),
            Err(Interruption::Unsuitable { reason, .. }) if self.others_may_train(setback, has_begun) => {
                tracing::info!(job = %id, reason, "a fine-tuning job is left to other servers");
                let message = format!("A server cannot train the job and leaves it to others: {reason}.");
                self.say(id, setback, message).await;
                Ok(Attempt::Again(UNSUITABLE_RETRY))
            }
            Err(Interruption::Failed(error) | Interruption::Unsuitable { error, .. }) => {
                tracing::info!(job = %id, code = error.code, "a fine-tuning job has failed");
                self.jobs.fail(id, error).await.map(|()| Attempt::Done)
            }
            Err(Interruption::Later(reason)) => {
                tracing::warn!(job = %id, reason, "a fine-tuning job cannot go on now");
                let message = format!("The training waits and is tried again: {}.", reason.trim_end_matches('.'));
                self.say(id, setback, message).await;
                Ok(Attempt::Again(Self::RETRY_DELAY))
            }
        }
    }
}
