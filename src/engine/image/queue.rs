//! The queue of image requests: what callers, the compute thread and the image thread touch.

use std::sync::{Arc, Mutex, MutexGuard};

use super::events::ImageEvents;
use super::model::{ImageModel, PromptIds};
use super::request::ImageRequest;
use super::scheduler::ImageScheduler;
use crate::engine::error::{Failure, Refused};
use crate::engine::runtime::Runtime;
use crate::engine::runtime::backlog::{Backlog, retry_after};

pub struct ImageQueue {
    runtime: Arc<Runtime>,
    scheduler: Mutex<ImageScheduler>,
}

impl ImageQueue {
    pub fn new(runtime: Arc<Runtime>) -> Arc<Self> {
        Arc::new(Self { runtime, scheduler: Mutex::new(ImageScheduler::new()) })
    }

    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// The scheduler. A panic may have left it in any state: then all requests fail, and it starts anew.
    pub fn lock(&self) -> MutexGuard<'_, ImageScheduler> {
        self.scheduler.lock().unwrap_or_else(|poisoned| {
            let mut scheduler = poisoned.into_inner();
            let fresh = scheduler.fresh();
            let broken = std::mem::replace(&mut *scheduler, fresh);
            broken.into_jobs().for_each(|job| job.fail(Failure::panicked()));
            self.scheduler.clear_poison();
            scheduler
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
        let Runtime { settings, metrics, clock, .. } = &*self.runtime;
        let (new, tenant) = (request.seeds.len(), request.tenant);
        let mut scheduler = self.lock();
        if self.runtime.is_shutting_down() {
            return Err(Refused::ShuttingDown);
        }
        let is_full = |scheduler: &ImageScheduler| {
            let backlog = Backlog { new, waiting: scheduler.waiting(None), own: scheduler.waiting(Some(tenant)) };
            backlog.is_full(settings.max_queued_images, settings.tenant_divisor)
        };
        if is_full(&scheduler) {
            // Requests whose clients have left hold no place.
            scheduler.drop_cancelled();
        }
        if is_full(&scheduler) {
            metrics.refuse(model.id(), "model_queue");
            return Err(Refused::QueueFull { retry_after: retry_after(scheduler.seconds()) });
        }
        let events = scheduler.push(Arc::clone(model), request, prompts, clock.uptime());
        drop(scheduler);
        self.runtime.wake();
        Ok(events)
    }
}
