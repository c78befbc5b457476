//! The queue of image requests: what callers, the compute thread and the image thread touch.

use std::sync::{Arc, Mutex, MutexGuard};

use super::job::ImageJob;
use super::model::ImageModel;
use super::request::{ImageEvent, ImageRequest, PromptIds};
use crate::engine::error::{Failure, Refused};
use crate::engine::jobs::{Events, JobScheduler};
use crate::engine::runtime::Runtime;
use crate::engine::runtime::backlog::Backlog;
use crate::engine::runtime::catch_panic::lock_or_reset;

/// The events of a request. Dropping it cancels images that are not generated yet.
pub type ImageEvents = Events<ImageEvent>;

pub struct ImageQueue {
    runtime: Arc<Runtime>,
    scheduler: Mutex<JobScheduler<ImageJob>>,
}

impl ImageQueue {
    pub fn new(runtime: Arc<Runtime>) -> Arc<Self> {
        Arc::new(Self { runtime, scheduler: Mutex::new(JobScheduler::new()) })
    }

    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// The scheduler. A panic may have left it in any state: then all requests fail, and it starts anew.
    pub fn lock(&self) -> MutexGuard<'_, JobScheduler<ImageJob>> {
        lock_or_reset(&self.scheduler, |scheduler| {
            let fresh = scheduler.new_empty();
            let broken = std::mem::replace(scheduler, fresh);
            broken.into_jobs().for_each(|job| job.fail(Failure::panicked()));
        })
    }

    /// Images that wait.
    pub fn waiting(&self) -> usize {
        self.lock().waiting(None)
    }

    /// Takes the request or refuses it, at once. Dropping the receiver cancels.
    pub fn push(
        &self,
        model: &Arc<ImageModel>,
        request: ImageRequest,
        prompts: PromptIds,
    ) -> Result<ImageEvents, Refused> {
        let (new, tenant) = (request.seeds.len(), request.tenant);
        let mut scheduler = self.lock();
        self.runtime.admit_work(
            model.id(),
            self.runtime.settings.max_queued_images,
            &mut *scheduler,
            |queue| Backlog { new, waiting: queue.waiting(None), own: queue.waiting(Some(tenant)) },
            JobScheduler::drop_cancelled,
            JobScheduler::seconds,
        )?;
        let job = ImageJob { model: Arc::clone(model), request, prompts, embeds: None, next: 0 };
        let events = scheduler.push(job, self.runtime.clock.uptime());
        drop(scheduler);
        self.runtime.wake();
        Ok(events)
    }
}
