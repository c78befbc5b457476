//! Trains the jobs, one at a time. The projects take turns. A job that was interrupted resumes from its last saved
//! state.
//!
//! If servers share the store, each claims a job before it trains it. A server that cannot train a job now leaves it to the
//! others, and tries again later.
//!
//! Training is limited by the processor or the memory: two jobs at once would each take twice as long and need twice
//! the memory.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::interruption::{Interruption, job_error, not_installed, not_prepared};
use super::preparation::{Prepared, Task, prepare};
use super::watched::Watched;
use crate::calls::background::stop_signal::{LoopStopper, StopSignal, stop_signal};
use crate::calls::background::{Claimed, with_claim};
use crate::calls::blocking::run_blocking;
use crate::clock_rng::ClockRng;
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::ids::{JobId, ProjectId};
use crate::service::fine_tuning::{Hyperparameters, Job, JobState, Jobs, Level, OpenJob};

/// The time until it tries again if memory or the disk is full.
const RETRY: Duration = Duration::from_secs(15);
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
    /// The order in which projects last started a job, as a count.
    turns: HashMap<ProjectId, u64>,
    /// The job that waits, and why.
    waiting: Option<(JobId, String)>,
    /// Open jobs that this server leaves to others, if there may be any.
    postponed: HashMap<JobId, Postponed>,
    /// Set if another server has been seen since this one started.
    has_seen_others: bool,
}

/// A job that this server tries again later.
#[derive(Clone, Copy, Default)]
struct Postponed {
    /// An uptime.
    until: Duration,
    /// The job's events say why this server cannot train it.
    is_reported: bool,
    /// The uptime since which no other server was there when this one could not train the job.
    alone_since: Option<Duration>,
}

impl TrainingLoop {
    pub fn new(engine: Engine, jobs: Jobs, clock: Arc<dyn ClockRng>) -> (Self, LoopStopper) {
        let (stopper, stop) = stop_signal();
        let (turns, postponed) = (HashMap::new(), HashMap::new());
        (Self { engine, jobs, clock, stop, turns, waiting: None, postponed, has_seen_others: false }, stopper)
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
    async fn next(&mut self) -> Result<Option<OpenJob>> {
        let mut jobs = self.jobs.open_jobs().await?;
        self.has_seen_others |= self.jobs.servers() > 1;
        self.postponed.retain(|id, _| jobs.iter().any(|open| open.job.id == *id));
        let now = self.clock.uptime();
        let is_due = |id: &JobId| self.postponed.get(id).is_none_or(|postponed| postponed.until <= now);
        jobs.retain(|open| open.job.state != JobState::Paused && is_due(&open.job.id));
        let turn = |open: &OpenJob| {
            let interrupted = open.job.state == JobState::Running;
            (self.turns.get(&open.job.project).copied().unwrap_or(0), !interrupted, open.job.id)
        };
        Ok(jobs.into_iter().min_by_key(turn))
    }

    /// Trains a job, unless another server does. Returns how long to wait before the next.
    async fn train(&mut self, open: OpenJob) -> Option<Duration> {
        let (id, jobs) = (open.job.id, self.jobs.clone());
        let training = async {
            let turn = self.turns.values().max().copied().unwrap_or(0) + 1;
            self.turns.insert(open.job.project, turn);
            let has_begun = open.resolved.is_some();
            let outcome = self.attempt(open).await;
            self.finish(id, has_begun, outcome).await
        };
        match with_claim(id, jobs.claim(id), training, jobs.release(id)).await {
            Ok(Claimed::Done(wait)) => wait,
            Ok(Claimed::Elsewhere | Claimed::TakenOver) => None,
            Err(error) => {
                tracing::warn!(job = %id, %error, "a fine-tuning job was interrupted; it is tried again");
                Some(RETRY)
            }
        }
    }

    /// Stores the outcome of a training. `has_begun`: the job was trained before. Returns the wait before the next job.
    async fn finish(
        &mut self,
        id: JobId,
        has_begun: bool,
        outcome: std::result::Result<(), Interruption>,
    ) -> Result<Option<Duration>> {
        match outcome {
            // Its end is stored.
            Ok(()) => Ok(None),
            Err(Interruption::Stopped) => self.jobs.meter(id).await.map(|()| None),
            Err(Interruption::TakenOver(error)) => Err(error),
            Err(Interruption::Unsuitable { reason, .. }) if self.others_may_train(id, has_begun) => {
                tracing::info!(job = %id, reason, "a fine-tuning job is left to other servers");
                self.postpone(id, UNSUITABLE_RETRY);
                self.say_unsuitable(id, &reason).await.map(|()| None)
            }
            Err(Interruption::Failed(error) | Interruption::Unsuitable { error, .. }) => {
                tracing::info!(job = %id, code = error.code, "a fine-tuning job has failed");
                self.jobs.fail(id, error).await.map(|()| None)
            }
            Err(Interruption::Later(reason)) => {
                tracing::warn!(job = %id, reason, "a fine-tuning job cannot go on now");
                self.say_waiting(id, reason).await;
                if !self.jobs.is_shared() {
                    return Ok(Some(RETRY));
                }
                self.postpone(id, RETRY);
                Ok(None)
            }
        }
    }

    /// Leaves a job to others for a time.
    fn postpone(&mut self, id: JobId, time: Duration) {
        let until = self.clock.uptime() + time;
        self.postponed.entry(id).or_default().until = until;
    }

    /// True if another server may train a job that this one cannot. It may be about to start, if it was seen before or
    /// has trained the job already.
    fn others_may_train(&mut self, id: JobId, has_begun: bool) -> bool {
        if !self.jobs.is_shared() || !(has_begun || self.has_seen_others) {
            return false;
        }
        let now = self.clock.uptime();
        let postponed = self.postponed.entry(id).or_default();
        if self.jobs.servers() > 1 {
            postponed.alone_since = None;
            return true;
        }
        now.saturating_sub(*postponed.alone_since.get_or_insert(now)) < MAX_ALONE
    }

    /// Adds an event that says why this server does not train a job, once.
    async fn say_unsuitable(&mut self, id: JobId, reason: &str) -> Result<()> {
        let postponed = self.postponed.entry(id).or_default();
        if !postponed.is_reported {
            let message = format!("A server cannot train the job and leaves it to others: {reason}.");
            self.jobs.add_event(id, Level::Warn, message).await?;
            postponed.is_reported = true;
        }
        Ok(())
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
        if self.postponed.contains_key(&id) {
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
