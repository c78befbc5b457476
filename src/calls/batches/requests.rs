//! Runs the requests of one batch.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use futures_util::{Stream, StreamExt, stream};

use super::admission::{Admission, Slot};
use crate::calls::background::stop_signal::{StopSignal, stop_signal, stopping};
use crate::calls::background::{Settled, settle};
use crate::calls::errors;
use crate::clock_rng::ClockRng;
use crate::error::{Code, Error, Result};
use crate::ids::RequestId;
use crate::service::access::Access;
use crate::service::batches::{Batch, BatchEndpoint, BatchInput, BatchResult, Batches, NextStep, PendingRequest};
use crate::service::is_taken_over;
use crate::service::usage::{Meter, UsageRecorder};

/// Max requests of a batch that run at once.
const MAX_RUNNING: usize = 8;
/// The time until a request is tried again that the server has no room or budget for.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// The time between two looks at batches that have not ended, for their completion windows.
pub(super) const EXPIRY_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Runs one request as its endpoint does, with the bodies of OpenAI's API.
pub trait RequestRunner {
    /// The JSON body of the response. Usage is added to `recorder`.
    fn run(
        &self,
        access: Access,
        endpoint: BatchEndpoint,
        body: Arc<str>,
        recorder: Arc<UsageRecorder>,
    ) -> LocalBoxFuture<'static, Result<String>>;

    /// The JSON body for an error.
    fn error_body(&self, error: &Error, request_id: RequestId) -> Result<String>;
}

/// How the requests of a batch have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Complete,
    Expired,
    InputDeleted,
    /// The batch was cancelled, its project was archived, or the server stops.
    Interrupted,
}

/// A request that may begin.
struct Admitted {
    request: PendingRequest,
    access: Access,
    slot: Slot,
}

/// Where the requests come from.
struct Source {
    input: Option<BatchInput>,
}

/// Runs the requests of batches.
pub(super) struct Requests {
    pub batches: Batches,
    pub meter: Meter,
    pub clock_rng: Arc<dyn ClockRng>,
    pub runner: Box<dyn RequestRunner>,
    pub admission: Admission,
    pub stop: StopSignal,
}

impl Requests {
    /// Runs the requests of a batch that have no result yet.
    pub async fn run(&self, batch: &Batch) -> Result<Outcome> {
        let Some(input) = self.batches.input(batch).await? else { return Ok(Outcome::InputDeleted) };
        // Set when another process has taken the batch over.
        let (lost, is_lost) = stop_signal();
        let requests = self.admitted(batch, input, &is_lost).map(|admitted| async {
            match admitted? {
                Ok(admitted) => self.complete(batch, admitted, &is_lost).await,
                Err(outcome) => Ok(outcome),
            }
        });
        let mut requests = Box::pin(requests.buffer_unordered(MAX_RUNNING));
        let (mut changes, mut ended) = (self.batches.changes(), Ok(Outcome::Complete));
        loop {
            let may_have_changed = tokio::select! {
                next = requests.next() => match next {
                    Some(Ok(Outcome::Complete)) => false,
                    // The requests that still run end by themselves.
                    Some(other) => {
                        if !is_lost.is_set() {
                            ended = other;
                        }
                        false
                    }
                    None => return ended,
                },
                _ = changes.changed() => true,
                () = tokio::time::sleep(EXPIRY_CHECK_INTERVAL) => true,
            };
            if is_lost.is_set() {
                continue;
            }
            // The requests that still run are dropped then, and recorded as abandoned.
            if self.batches.is_expired(batch) {
                return Ok(Outcome::Expired);
            }
            if may_have_changed {
                match self.batches.is_in_progress(batch.id).await {
                    Ok(false) => return Ok(Outcome::Interrupted),
                    // The requests that still run are discarded, because the other process runs them again.
                    Err(error) if is_taken_over(&error) => {
                        lost.stop();
                        ended = Err(error);
                    }
                    _ => {}
                }
            }
        }
    }

    /// The requests, each when it may begin. The inner error ends them.
    fn admitted<'a>(
        &'a self,
        batch: &'a Batch,
        input: BatchInput,
        is_lost: &'a StopSignal,
    ) -> impl Stream<Item = Result<Result<Admitted, Outcome>>> + 'a {
        let source = Source { input: Some(input) };
        stream::unfold(source, move |mut source| async move {
            let input = source.input.take()?;
            let next = tokio::select! {
                next = self.next(batch, input) => next,
                () = self.stop.wait() => Ok(Some(Err(Outcome::Interrupted))),
                () = is_lost.wait() => Ok(Some(Err(Outcome::Interrupted))),
            };
            match next {
                Ok(Some(Ok((input, admitted)))) => Some((Ok(Ok(admitted)), Source { input: Some(input) })),
                Ok(Some(Err(outcome))) => Some((Ok(Err(outcome)), source)),
                Ok(None) => None,
                Err(error) => Some((Err(error), source)),
            }
        })
    }

    /// The next request when it may begin; `None` after the last.
    async fn next(&self, batch: &Batch, input: BatchInput) -> Result<Option<Result<(BatchInput, Admitted), Outcome>>> {
        let (access, slot) = loop {
            let slot = self.admission.acquire().await?;
            if self.batches.is_expired(batch) {
                return Ok(Some(Err(Outcome::Expired)));
            }
            match self.batches.next_step(batch.id).await? {
                NextStep::Run(access) => break (access, slot),
                NextStep::InputDeleted => return Ok(Some(Err(Outcome::InputDeleted))),
                NextStep::Stop => return Ok(Some(Err(Outcome::Interrupted))),
                NextStep::Wait => drop(slot),
            }
            tokio::time::sleep(RETRY_DELAY).await;
        };
        // Read only now, because a request may be large.
        match input.next().await {
            Ok((input, Some(request))) => Ok(Some(Ok((input, Admitted { request, access, slot })))),
            Ok((_, None)) => Ok(None),
            Err(error) if error.code() == Code::NotFound => Ok(Some(Err(Outcome::InputDeleted))),
            Err(error) => Err(error),
        }
    }

    /// Runs a request until it has a result, and stores that.
    async fn complete(&self, batch: &Batch, admitted: Admitted, is_lost: &StopSignal) -> Result<Outcome> {
        let Admitted { request, access, mut slot } = admitted;
        let mut model_attempts = 0;
        loop {
            let endpoint = batch.record.endpoint;
            let metered_as = format!("BATCH {}", endpoint.path().trim_start_matches("/v1"));
            let recorder = self.meter.open_for_batch(&access, metered_as).await?;
            let recorder = Arc::new(recorder);
            let run = self.runner.run(access.clone(), endpoint, request.body.clone(), recorder.clone());
            let answered = tokio::select! {
                answered = run => answered,
                () = self.stop.wait() => Err(stopping()),
                () = is_lost.wait() => Err(stopping()),
            };
            match settle(answered, &recorder, &mut model_attempts, is_temporary) {
                Settled::Stopped => return Ok(Outcome::Interrupted),
                Settled::Retry => {}
                Settled::Ended(answered) => {
                    let result = self.result(answered)?;
                    self.batches.record(batch.id, &request, &result, &recorder).await?;
                    return Ok(Outcome::Complete);
                }
            }
            // Others may run meanwhile.
            drop(slot);
            tokio::select! {
                () = tokio::time::sleep(RETRY_DELAY) => {}
                () = self.stop.wait() => return Ok(Outcome::Interrupted),
                () = is_lost.wait() => return Ok(Outcome::Interrupted),
            }
            slot = tokio::select! {
                slot = self.admission.acquire() => slot?,
                () = self.stop.wait() => return Ok(Outcome::Interrupted),
                () = is_lost.wait() => return Ok(Outcome::Interrupted),
            };
        }
    }

    fn result(&self, answered: Result<String>) -> Result<BatchResult> {
        let request_id = RequestId::generate(&*self.clock_rng);
        let (status, body) = match answered {
            Ok(body) => (200, body),
            Err(error) => {
                if let Some(cause) = error.cause() {
                    tracing::error!(%request_id, %cause, "a request of a batch failed");
                }
                (error.code().status(), self.runner.error_body(&error, request_id)?)
            }
        };
        Ok(BatchResult { status, request_id, body })
    }
}

/// True if a request should be tried again. A batch also waits for the budget of the next month.
fn is_temporary(error: &Error, model_attempts: u32) -> bool {
    error.code() == Code::InsufficientQuota || errors::is_temporary(error, model_attempts)
}
