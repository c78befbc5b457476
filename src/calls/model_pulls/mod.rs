//! Pulls of models that admins request over the API. One runs at a time, and others wait.
//!
//! A pull continues when its client leaves, and an equal request joins it. Its state is in memory: a restart forgets
//! it, but the downloaded parts stay on the disk, and the next pull of the model resumes from there.
//!
//! The server opens connections only in this module's [`installer`], only if it was started with `--allow-pull`, and only
//! because an admin asks for it. Which private addresses it may reach, and which secrets it sends where, is decided by the
//! settings of the server and never by a request.
//!
//! Pulls are off by default, because a firewall or an audit may depend on a server that opens no connection by itself.
//! `--allow-pull` is therefore an option of the operator and not a setting that an admin key can change. If a request
//! could name the hub, secrets or private hosts, every admin key could make the server send requests into its own
//! network, or send its secrets to another host.
//!
//! Storing each pull, with a lease and its recovery, would be a lot of machinery for something that a user repeats with
//! one click. Only the downloaded parts are worth keeping. The audit log has what must be known later.

mod errors;
mod installer;
mod job;
mod metrics;
mod plan;
mod progress;
mod pull_loop;
mod queue;
mod request;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::sync::{Mutex, Notify, Semaphore, watch};

use self::installer::Installer;
use self::job::Job;
pub use self::job::{Pull, PullFailure, PullState, PullStatus};
use self::metrics::Metrics;
pub use self::plan::{PlanCandidate, PlanFile, PullPlan};
pub use self::pull_loop::PullLoop;
use self::queue::PullQueue;
pub use self::request::PullRequest;
use crate::calls::blocking::run_blocking;
use crate::clock_rng::ClockRng;
use crate::disk_space::DiskReserve;
use crate::engine::Engine;
use crate::error::{Code, Error, Result};
use crate::hub::HubSettings;
use crate::ids::PullId;
use crate::service::access::Access;
use crate::service::audit::pull_log::{PullEnd, PullLog};

/// Max plans that are made at once.
const MAX_PLANS: usize = 2;
/// Min time between two reports of a pull's progress.
const REPORT_INTERVAL: Duration = Duration::from_millis(250);

/// The pulls of this server.
#[derive(Clone)]
pub struct ModelPulls(Arc<Inner>);

struct Inner {
    /// `None`: pulls are not allowed.
    installer: Option<Installer>,
    queue: PullQueue,
    /// Something was queued.
    queued: Notify,
    /// Held while a pull is queued, so that two equal requests do not queue two.
    queueing: Mutex<()>,
    plans: Arc<Semaphore>,
    log: PullLog,
    clock_rng: Arc<dyn ClockRng>,
    metrics: Metrics,
}

impl ModelPulls {
    /// `hub`: where models of hubs come from; `None`: pulls are not allowed. `reserve`: of the disk with the models folder.
    pub fn new(
        hub: Option<HubSettings>,
        engine: Engine,
        log: PullLog,
        clock_rng: Arc<dyn ClockRng>,
        reserve: DiskReserve,
    ) -> Self {
        let installer = hub.map(|hub| Installer { hub, engine, clock_rng: clock_rng.clone(), reserve });
        Self(Arc::new(Inner {
            installer,
            queue: PullQueue::default(),
            queued: Notify::new(),
            queueing: Mutex::default(),
            plans: Arc::new(Semaphore::new(MAX_PLANS)),
            log,
            clock_rng,
            metrics: Metrics::new(),
        }))
    }

    /// 403 if the key is not an admin's, or the server does not allow pulls.
    fn admit(&self, access: &Access) -> Result<&Installer> {
        access.require_admin()?;
        self.0.installer.as_ref().ok_or_else(|| {
            let text = "This server was started without --allow-pull, so it downloads no models. The operator can start it with this option, or install a model with 'outpost models pull NAME'.";
            Error::new(Code::PullsDisabled, text)
        })
    }

    /// Queues a pull, or joins an equal one that has not ended.
    pub async fn start(&self, access: &Access, request: PullRequest) -> Result<PullWatch> {
        self.admit(access)?;
        let _one = self.0.queueing.lock().await;
        if let Some(job) = self.0.queue.find_equal(&request, access) {
            return Ok(PullWatch::new(job));
        }
        self.0.queue.require_room()?;
        let id = PullId::generate(&*self.0.clock_rng);
        let recorded = self.0.log.requested(access, id, request.model()).await?;
        // A server that was restarted since, or another one, does not know the pull that a repeated request has begun.
        if recorded != id && self.0.queue.has(recorded) {
            return self.0.queue.find(recorded, access).map(PullWatch::new);
        }
        let job = Arc::new(Job::new(recorded, request, access.clone(), self.0.clock_rng.now()));
        self.0.queue.push(Arc::clone(&job))?;
        self.0.queued.notify_one();
        Ok(PullWatch::new(job))
    }

    /// The plan of a pull: the model that it would install. Reads the list of files and headers from the hub, and is
    /// given up if the caller leaves.
    pub async fn plan(&self, access: &Access, request: PullRequest) -> Result<PullPlan> {
        let (installer, access) = (self.admit(access)?.clone(), access.clone());
        let permit = Arc::clone(&self.0.plans).try_acquire_owned().map_err(|_| {
            let text = format!("{MAX_PLANS} requests with 'dry_run' run already. Try again when they have ended.");
            Error::new(Code::Overloaded, text)
        })?;
        let cancel = CancelOnDrop(Arc::default());
        let cancelled = Arc::clone(&cancel.0);
        let work = move || {
            let _permit = permit;
            installer.plan(&access, &request, &cancelled)
        };
        run_blocking(work).await
    }

    /// The pulls that wait, run or have ended, as far as the key may see them, the newest first.
    pub fn list(&self, access: &Access) -> Result<Vec<Pull>> {
        self.admit(access)?;
        Ok(self.0.queue.list(access).iter().map(|job| job.snapshot()).collect())
    }

    pub fn get(&self, access: &Access, id: PullId) -> Result<Pull> {
        self.admit(access)?;
        self.0.queue.find(id, access).map(|job| job.snapshot())
    }

    /// Cancels a pull, and waits until it has ended. What has arrived is kept. 409 if it has ended.
    pub async fn cancel(&self, access: &Access, id: PullId) -> Result<Pull> {
        self.admit(access)?;
        let job = self.0.queue.find(id, access)?;
        if job.state().has_ended() {
            let text = format!("The pull has {} already.", ended_as(job.state()));
            return Err(Error::new(Code::Conflict, text));
        }
        job.cancel(Some(access.clone()));
        if self.0.queue.take(&job) {
            self.end(&job, Err(errors::cancelled(true))).await;
        }
        let mut watch = PullWatch::new(job);
        Ok(watch.ended().await)
    }

    /// Records how a pull has ended. `outcome`: the size of the model that is installed.
    async fn end(&self, job: &Job, outcome: Result<u64>) {
        let by = job.cancelled_by();
        let outcome = outcome.map_err(|error| if job.is_cancelled() { errors::cancelled(by.is_some()) } else { error });
        let (end, actor) = match &outcome {
            Ok(_) => (PullEnd::Succeeded, Some(&job.access)),
            Err(_) if job.is_cancelled() => (PullEnd::Cancelled, by.as_ref()),
            Err(_) => (PullEnd::Failed, Some(&job.access)),
        };
        let Pull { id, model, status, .. } = job.snapshot();
        let failure = outcome.as_ref().err().map(PullFailure::from);
        let error = failure.as_ref().map(|error| json!({ "code": error.code.as_str(), "message": error.message }));
        let detail = match outcome {
            Ok(bytes) => json!({
                "model": model, "name": status.name, "revision": status.revision, "license": status.license,
                "bytes": bytes,
            }),
            Err(_) => json!({ "model": model, "name": status.name, "error": error }),
        };
        let message = failure.as_ref().map(|failure| failure.message.as_str());
        tracing::info!(pull = %id, model, result = end.as_str(), error = message, "a pull has ended");
        if let Err(error) = self.0.log.ended((id, job.access.project()), actor, end, detail).await {
            tracing::warn!(pull = %id, %error, "the end of a pull is not in the audit log");
        }
        self.0.metrics.ended(end, outcome.unwrap_or(0));
        let ended_at = self.0.clock_rng.now();
        job.status.send_modify(|status| {
            status.state = PullState::Ended(end);
            status.error = failure;
            status.ended_at = Some(ended_at);
            (status.file, status.bytes_per_second, status.message) = (None, None, None);
        });
    }

    /// The metrics as OpenMetrics text; `None` if pulls are not allowed.
    pub fn metrics(&self) -> Option<String> {
        self.0.installer.as_ref().map(|_| self.0.metrics.encode())
    }
}

fn ended_as(state: PullState) -> &'static str {
    match state {
        PullState::Ended(PullEnd::Cancelled) => "been cancelled",
        other => other.as_str(),
    }
}

/// Sets a flag when it is dropped: the caller no longer waits.
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Follows a pull. Dropping it does not affect the pull.
pub struct PullWatch {
    job: Arc<Job>,
    status: watch::Receiver<PullStatus>,
    /// The state that was reported last.
    reported: Option<PullState>,
}

impl PullWatch {
    fn new(job: Arc<Job>) -> Self {
        let status = job.status.subscribe();
        Self { job, status, reported: None }
    }

    /// The pull now.
    pub fn now(&self) -> Pull {
        self.job.snapshot()
    }

    /// The pull at first, and then whenever it has changed, but not more than four times a second. `None` after its end.
    pub async fn next(&mut self) -> Option<Pull> {
        match self.reported {
            Some(state) if state.has_ended() => return None,
            Some(_) => {
                tokio::time::sleep(REPORT_INTERVAL).await;
                // The sender is in the job, which this holds.
                let _ = self.status.changed().await;
            }
            None => {}
        }
        self.status.mark_unchanged();
        let pull = self.job.snapshot();
        self.reported = Some(pull.status.state);
        Some(pull)
    }

    /// The pull when it has ended.
    pub async fn ended(&mut self) -> Pull {
        let _ = self.status.wait_for(|status| status.state.has_ended()).await;
        self.job.snapshot()
    }
}
