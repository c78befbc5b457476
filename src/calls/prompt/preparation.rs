//! Admission of prompt rendering and tokenising: limited in number, in all and per project, and in memory.
//!
//! Rendering makes several copies of a text. Requests with large texts therefore run one at a time; the others do not
//! wait for them.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::calls::blocking::run_blocking;
use crate::engine::TokenizeLimits;
use crate::error::{Error, Result};
use crate::ids::ProjectId;
use crate::service::limits::concurrency_limit::ConcurrencyLimit;

/// Requests that may prepare or wait at once; more are refused.
const MAX_REQUESTS: usize = 128;
/// Max requests of one project that may prepare or wait at once.
const MAX_PROJECT_REQUESTS: usize = 64;
/// Text size from which requests run one at a time.
const LARGE_BYTES: usize = 256 << 10;

/// Admits requests to prompt preparation.
#[derive(Clone)]
pub(in crate::calls) struct PromptPreparation {
    slots: Arc<ConcurrencyLimit>,
    large: Arc<Semaphore>,
}

impl PromptPreparation {
    pub fn new() -> Self {
        Self {
            slots: ConcurrencyLimit::new("prompts are being prepared", MAX_REQUESTS, MAX_PROJECT_REQUESTS),
            large: Arc::new(Semaphore::new(1)),
        }
    }

    /// Runs `work` on `bytes` of text off the async threads. Dropping the future cancels it at its next check of the
    /// bound. Fails with 503 if too many requests are being prepared.
    pub async fn run<T: Send + 'static>(
        &self,
        project: ProjectId,
        bytes: usize,
        work: impl FnOnce(TokenizeLimits) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let slot = self.slots.acquire(project)?;
        let permit = self.large_permit(bytes).await?;
        // Held by this future alone, so the work notices when the client disconnects.
        let request = Arc::new(());
        let bound = TokenizeLimits::default().with_request(&request);
        let done = run_blocking(move || {
            let _held = (slot, permit);
            work(bound)
        });
        let done = done.await;
        drop(request);
        done
    }

    async fn large_permit(&self, bytes: usize) -> Result<Option<OwnedSemaphorePermit>> {
        if bytes < LARGE_BYTES {
            return Ok(None);
        }
        let permit = self.large.clone().acquire_owned().await;
        permit.map(Some).map_err(|error| Error::internal(error.to_string()))
    }
}
