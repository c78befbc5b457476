//! The queue of speech requests: what callers, the compute thread and the speech thread touch.

use std::sync::{Arc, Mutex, MutexGuard};

use super::job::SpeechJob;
use super::request::SpokenPart;
use crate::engine::error::{Failure, Refused};
use crate::engine::jobs::{Events, Job, JobScheduler};
use crate::engine::runtime::Runtime;
use crate::engine::runtime::backlog::Backlog;
use crate::engine::runtime::catch_panic::lock_or_reset;

/// The spoken parts of a request. Dropping it cancels those that are not spoken yet.
pub type SpeechParts = Events<SpokenPart>;

pub struct SpeechQueue {
    runtime: Arc<Runtime>,
    scheduler: Mutex<JobScheduler<SpeechJob>>,
}

impl SpeechQueue {
    pub fn new(runtime: Arc<Runtime>) -> Arc<Self> {
        Arc::new(Self { runtime, scheduler: Mutex::new(JobScheduler::new()) })
    }

    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// The scheduler. A panic may have left it in any state: then all requests fail, and it starts anew.
    pub fn lock(&self) -> MutexGuard<'_, JobScheduler<SpeechJob>> {
        lock_or_reset(&self.scheduler, |scheduler| {
            let fresh = scheduler.new_empty();
            let broken = std::mem::replace(scheduler, fresh);
            broken.into_jobs().for_each(|job| job.fail(Failure::panicked()));
        })
    }

    /// Parts of texts that wait.
    pub fn waiting(&self) -> usize {
        self.lock().waiting(None)
    }

    /// Takes the request or refuses it, at once.
    pub fn push(&self, job: SpeechJob) -> Result<SpeechParts, Refused> {
        let (new, tenant) = (job.remaining(), job.tenant);
        let mut scheduler = self.lock();
        self.runtime.admit_work(
            job.model.id(),
            self.runtime.settings.max_queued_speech_parts,
            &mut *scheduler,
            |queue| Backlog { new, waiting: queue.waiting(None), own: queue.waiting(Some(tenant)) },
            JobScheduler::drop_cancelled,
            JobScheduler::seconds,
        )?;
        let parts = scheduler.push(job, self.runtime.clock.uptime());
        drop(scheduler);
        self.runtime.wake();
        Ok(parts)
    }
}
