//! The queue of transcriptions: what callers, the compute thread and the transcription thread touch.

use std::sync::{Arc, Mutex, MutexGuard};

use super::events::{Transcription, WindowSender, channels};
use super::model::TranscriptionModel;
use super::prepared_request::{Language, PreparedRequest};
use super::request::TranscriptionEvent;
use super::scheduler::TranscriptionScheduler;
use crate::error::{Failure, Refused};
use crate::kinds::RequestQueue;
use crate::runtime::Runtime;
use crate::runtime::backlog::Backlog;
use crate::runtime::catch_panic::lock_or_reset;

pub struct TranscriptionQueue {
    runtime: Arc<Runtime>,
    scheduler: Mutex<TranscriptionScheduler>,
}

impl RequestQueue for TranscriptionQueue {
    fn new(runtime: Arc<Runtime>) -> Arc<Self> {
        Arc::new(Self { runtime, scheduler: Mutex::new(TranscriptionScheduler::new()) })
    }

    /// Requests in the queue, including running ones.
    fn waiting(&self) -> usize {
        self.lock().requests(None)
    }
}

impl TranscriptionQueue {
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// The scheduler. A panic may have left it in any state: then all requests fail, and it starts anew.
    pub fn lock(&self) -> MutexGuard<'_, TranscriptionScheduler> {
        lock_or_reset(&self.scheduler, |scheduler| {
            let fresh = scheduler.new_empty();
            std::mem::replace(scheduler, fresh).fail_all(&Failure::panicked(), true);
        })
    }

    /// Takes the request or refuses it, at once.
    pub fn push(
        &self,
        model: &Arc<TranscriptionModel>,
        request: PreparedRequest,
    ) -> Result<(WindowSender, Transcription), Refused> {
        let (now, tenant) = (self.runtime.clock.uptime(), request.tenant);
        let mut scheduler = self.lock();
        self.runtime.admit_work(
            model.id(),
            self.runtime.settings.max_queued_transcriptions,
            &mut *scheduler,
            |queue| Backlog { new: 1, waiting: queue.requests(None), own: queue.requests(Some(tenant)) },
            |queue| queue.drop_ended(now),
            TranscriptionScheduler::seconds,
        )?;
        let (engine, (sender, transcription)) = channels(&self.runtime);
        if let Language::Known(token) = request.language {
            let code = token.and_then(|token| model.vocabulary().language_code(token)).unwrap_or("en");
            // The receiver is still here.
            let _ = engine.1.send(Ok(TranscriptionEvent::Language(code.to_owned())));
        }
        scheduler.push(Arc::clone(model), request, engine, now);
        Ok((sender, transcription))
    }
}
