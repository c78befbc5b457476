//! The queue of texts to embed or rank, shared by callers and the compute thread.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::oneshot;

use super::model::EncoderModel;
use super::scheduler::{EmbeddingScheduler, Vectors};
use crate::engine::error::{Failure, Refused};
use crate::engine::runtime::Runtime;
use crate::engine::runtime::backlog::{Backlog, retry_after};
use crate::engine::text::scheduler::Tenant;
use crate::models::encoder::Tokenized;

pub struct EmbeddingQueue {
    runtime: Arc<Runtime>,
    scheduler: Mutex<EmbeddingScheduler>,
}

impl EmbeddingQueue {
    pub fn new(runtime: Arc<Runtime>) -> Arc<Self> {
        Arc::new(Self { runtime, scheduler: Mutex::new(EmbeddingScheduler::new()) })
    }

    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// Locks the scheduler. If a panic poisoned it, its requests fail and it is replaced with an empty one.
    pub fn lock(&self) -> MutexGuard<'_, EmbeddingScheduler> {
        self.scheduler.lock().unwrap_or_else(|poisoned| {
            let mut scheduler = poisoned.into_inner();
            let fresh = scheduler.fresh();
            let broken = std::mem::replace(&mut *scheduler, fresh);
            broken.into_senders().for_each(|sender| drop(sender.send(Err(Failure::panicked()))));
            self.scheduler.clear_poison();
            scheduler
        })
    }

    /// The number of queued tokens.
    pub fn waiting_tokens(&self) -> usize {
        self.lock().waiting_tokens()
    }

    /// Queues the texts or refuses them at once. Dropping the receiver cancels.
    pub fn push(
        &self,
        model: &Arc<EncoderModel>,
        tenant: Tenant,
        texts: Vec<Tokenized>,
    ) -> Result<oneshot::Receiver<Vectors>, Refused> {
        let Runtime { settings, metrics, .. } = &*self.runtime;
        let new = texts.iter().map(|text| text.ids.len()).sum();
        let mut scheduler = self.lock();
        if self.runtime.is_shutting_down() {
            return Err(Refused::ShuttingDown);
        }
        let is_full = |scheduler: &EmbeddingScheduler| {
            let backlog =
                Backlog { new, waiting: scheduler.waiting_tokens(), own: scheduler.waiting_tokens_of(tenant) };
            backlog.is_full(settings.max_queued_texts, settings.tenant_divisor)
        };
        if is_full(&scheduler) {
            // Cancelled requests do not count.
            scheduler.sweep();
        }
        if is_full(&scheduler) {
            metrics.refuse(model.id(), "model_queue");
            let seconds = model.speed().map(|speed| scheduler.waiting_tokens() as f64 / speed);
            return Err(Refused::QueueFull { retry_after: retry_after(seconds) });
        }
        let receiver = scheduler.push(Arc::clone(model), tenant, texts);
        drop(scheduler);
        self.runtime.wake();
        Ok(receiver)
    }
}
