//! The queue of texts to embed or rank, shared by callers and the compute thread.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::oneshot;

use super::model::EncoderModel;
use super::scheduler::{EmbeddingScheduler, Vectors};
use crate::error::{Failure, Refused};
use crate::ids::Tenant;
use crate::kinds::RequestQueue;
use crate::runtime::Runtime;
use crate::runtime::backlog::Backlog;
use crate::runtime::catch_panic::lock_or_reset;
use outpost_models::encoder::Tokenized;

pub struct EmbeddingQueue {
    runtime: Arc<Runtime>,
    scheduler: Mutex<EmbeddingScheduler>,
}

impl RequestQueue for EmbeddingQueue {
    fn new(runtime: Arc<Runtime>) -> Arc<Self> {
        Arc::new(Self { runtime, scheduler: Mutex::new(EmbeddingScheduler::new()) })
    }

    /// Queued tokens.
    fn waiting(&self) -> usize {
        self.lock().waiting_tokens()
    }
}

impl EmbeddingQueue {
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// Locks the scheduler. If a panic poisoned it, its requests fail and it is replaced with an empty one.
    pub fn lock(&self) -> MutexGuard<'_, EmbeddingScheduler> {
        lock_or_reset(&self.scheduler, |scheduler| {
            let fresh = scheduler.new_empty();
            let broken = std::mem::replace(scheduler, fresh);
            broken.into_senders().for_each(|sender| drop(sender.send(Err(Failure::panicked()))));
        })
    }

    /// Queues the texts or refuses them at once. Dropping the receiver cancels.
    pub fn push(
        &self,
        model: &Arc<EncoderModel>,
        tenant: Tenant,
        texts: Vec<Tokenized>,
    ) -> Result<oneshot::Receiver<Vectors>, Refused> {
        let new = texts.iter().map(|text| text.ids.len()).sum();
        let mut scheduler = self.lock();
        self.runtime.admit_work(
            model.id(),
            self.runtime.settings.max_queued_texts,
            &mut *scheduler,
            |queue| Backlog { new, waiting: queue.waiting_tokens(), own: queue.waiting_tokens_of(tenant) },
            EmbeddingScheduler::sweep,
            |queue| Some(queue.waiting_tokens() as f64 / model.speed()?),
        )?;
        let receiver = scheduler.push(Arc::clone(model), tenant, texts);
        drop(scheduler);
        self.runtime.wake();
        Ok(receiver)
    }
}
