//! A queue of jobs: what callers, the compute thread and the thread of the jobs touch.

use std::sync::{Arc, Mutex, MutexGuard};

use super::events::Events;
use super::job::ComputedJob;
use super::scheduler::JobScheduler;
use crate::error::{Failure, Refused};
use crate::kinds::RequestQueue;
use crate::runtime::Runtime;
use crate::runtime::backlog::Backlog;
use crate::runtime::catch_panic::lock_or_reset;

pub struct JobQueue<J: ComputedJob> {
    runtime: Arc<Runtime>,
    scheduler: Mutex<JobScheduler<J>>,
}

impl<J: ComputedJob> RequestQueue for JobQueue<J> {
    fn new(runtime: Arc<Runtime>) -> Arc<Self> {
        Arc::new(Self { runtime, scheduler: Mutex::new(JobScheduler::new()) })
    }

    /// Results that wait to be computed.
    fn waiting(&self) -> usize {
        self.lock().waiting(None)
    }
}

impl<J: ComputedJob> JobQueue<J> {
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// The scheduler. A panic may have left it in any state: then all jobs fail, and it starts anew.
    pub fn lock(&self) -> MutexGuard<'_, JobScheduler<J>> {
        lock_or_reset(&self.scheduler, |scheduler| {
            let fresh = scheduler.new_empty();
            let broken = std::mem::replace(scheduler, fresh);
            broken.into_jobs().for_each(|job| job.fail(Failure::panicked()));
        })
    }

    /// Takes the job or refuses it, at once. Dropping the events cancels it.
    pub fn push(&self, job: J) -> Result<Events<J::Event>, Refused> {
        let (new, tenant) = (job.remaining(), job.tenant());
        let mut scheduler = self.lock();
        self.runtime.admit_work(
            job.model_id(),
            J::queue_limit(&self.runtime.settings),
            &mut *scheduler,
            |queue| Backlog { new, waiting: queue.waiting(None), own: queue.waiting(Some(tenant)) },
            JobScheduler::drop_cancelled,
            JobScheduler::seconds,
        )?;
        let events = scheduler.push(job, self.runtime.clock.uptime());
        drop(scheduler);
        self.runtime.wake();
        Ok(events)
    }
}
