//! Generates the responses that are to be generated in the background, the oldest first; the projects share the slots. A
//! response goes through the same decoder, turn and encoder as one that a client waits for. [`ResponseCodec`] decodes and
//! encodes.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use tokio::sync::watch;

use super::item_format::{ItemFormat, ReasoningFormat};
use super::live::{LiveEnd, LiveResponses};
use super::shared_steps;
use crate::calls::background::stop_signal::{LoopStopper, StopSignal, stop_signal, stopping};
use crate::calls::background::{self, Attempt, Settled, Work, settle};
use crate::calls::errors::is_temporary;
use crate::calls::text::chat::{Chat, ChatCall};
use crate::calls::turn::Turn;
use crate::calls::turn::output::{OutputItems, TurnEvent};
use crate::clock_rng::ClockRng;
use crate::error::{Code, Error, Result};
use crate::ids::{ProjectId, ResponseId};
use crate::service::is_taken_over;
use crate::service::responses::{EndedResponse, OpenResponse, Responses, StartedResponse};
use crate::service::usage::{Meter, Outcome, UsageRecorder};

/// Max responses that are generated at once, of all projects.
const MAX_RUNNING: usize = 16;
/// Max responses of a project that are generated at once.
const MAX_RUNNING_PER_PROJECT: usize = 8;
/// The name under which the responses are metered.
const METERED_AS: &str = "BACKGROUND /responses";

/// Decodes the requests of responses and encodes the responses, in the format of their API.
pub trait ResponseCodec {
    /// Decodes what is needed to generate a response.
    fn decode(&self, started: &StartedResponse) -> LocalBoxFuture<'static, Result<DecodedResponse>>;

    /// The JSON of a response that cannot be generated. `response`: its JSON before.
    fn failed(&self, response: &str, error: &Error) -> Result<String>;
}

/// Encodes the response of a turn, as JSON.
pub type EncodeTurn = Box<dyn Fn(&Turn) -> Result<String>>;

/// A response that can be generated.
pub struct DecodedResponse {
    pub call: ChatCall,
    /// The output, still empty.
    pub output: OutputItems,
    pub reasoning: ReasoningFormat,
    /// Encodes the response with its complete output.
    pub encode: EncodeTurn,
}

/// Generates responses in the background. When it is stopped, running ones are given up; they begin again after the next
/// start.
pub struct BackgroundResponses {
    responses: Responses,
    meter: Meter,
    chat: Arc<Chat>,
    live: Arc<LiveResponses>,
    clock_rng: Arc<dyn ClockRng>,
    codec: Box<dyn ResponseCodec>,
    stop: StopSignal,
}

/// Why a response is no longer to be generated here.
enum Closed {
    /// It was cancelled or deleted.
    Ended,
    /// Another process generates it, for this reason.
    TakenOver(Error),
}

impl BackgroundResponses {
    pub fn new(
        responses: Responses,
        meter: Meter,
        chat: Arc<Chat>,
        live: Arc<LiveResponses>,
        clock_rng: Arc<dyn ClockRng>,
        codec: Box<dyn ResponseCodec>,
    ) -> (Self, LoopStopper) {
        let (stopper, stop) = stop_signal();
        (Self { responses, meter, chat, live, clock_rng, codec, stop }, stopper)
    }

    /// Runs until it is stopped.
    pub async fn run(self) {
        background::run(&self, &*self.clock_rng, &self.stop).await;
        self.live.close_all();
    }

    /// Generates a response that has not ended. Returns how the streams that follow it on this node end; `None` if the response
    /// is to be tried again.
    async fn try_to_generate(&self, id: ResponseId, model_attempts: &mut u32) -> Result<Option<LiveEnd>> {
        let changes = self.responses.changes();
        let Some(started) = self.responses.start(id).await? else { return Ok(Some(LiveEnd::Closed)) };
        let recorder = self.meter.open_in_background(&started.access, METERED_AS.to_owned()).await?;
        let recorder = Arc::new(recorder);
        let generated = tokio::select! {
            generated = self.generate(&started, Arc::clone(&recorder)) => generated,
            () = self.stop.wait() => Err(stopping()),
            closed = self.wait_until_closed(id, changes) => match closed {
                // The generated tokens are recorded when the recorder is dropped.
                Closed::Ended => return Ok(Some(LiveEnd::Closed)),
                Closed::TakenOver(error) => {
                    recorder.discard();
                    return Err(error);
                }
            },
        };
        let ended = match settle(generated, &recorder, model_attempts, is_temporary) {
            Settled::Stopped => return Ok(Some(LiveEnd::Closed)),
            Settled::Retry => return Ok(None),
            Settled::Ended(Ok(ended)) => ended,
            Settled::Ended(Err(error)) => self.failed(&started, &error)?,
        };
        self.responses.end(id, ended, &recorder, |error| self.failed(&started, error)).await?;
        Ok(Some(LiveEnd::Stored))
    }

    /// Generates a response. An error means that generation did not begin, or that the server stops; a later failure is an
    /// ended response. Usage is added to `recorder`.
    async fn generate(&self, started: &StartedResponse, recorder: Arc<UsageRecorder>) -> Result<EndedResponse> {
        let StartedResponse { stored, request, access, .. } = started;
        let live = self.live.keep(stored.id);
        if request.keeps_steps {
            // Streams follow it.
            recorder.defer();
        }
        let DecodedResponse { call, output, reasoning, encode } = self.codec.decode(started).await?;
        let chat = self.chat.start(access, call, recorder).await?;
        let format = ItemFormat { response: stored.id, calls: chat.call_ids, reasoning };
        let mut turn = Turn::new(chat, output, Arc::clone(&self.clock_rng));
        // On a shared store, a response that is generated again has another number.
        let number = self.responses.is_shared().then(|| self.random_number());
        live.start(number, format);
        let observe = |event: TurnEvent| {
            if request.keeps_steps {
                live.extend(event.steps);
            }
        };
        let followed = request.keeps_steps.then_some(&*live);
        let generated = tokio::select! {
            generated = turn.generate(observe) => generated,
            never = shared_steps::publish(&self.responses, stored.id, number, followed) => match never {},
        };
        let (response, outcome) = match generated {
            Ok(()) => (encode(&turn)?, Outcome::Succeeded),
            Err(error) if error.code() == Code::ShuttingDown => return Err(error),
            Err(error) => (self.codec.failed(&stored.response, &error)?, Outcome::of_status(error.code().status())),
        };
        let steps = match request.keeps_steps {
            true => Some(live.with_output(serde_json::to_string).map_err(Error::internal)?),
            false => None,
        };
        Ok(EndedResponse { response, steps, outcome })
    }

    /// The end of a response that cannot be generated.
    fn failed(&self, started: &StartedResponse, error: &Error) -> Result<EndedResponse> {
        let response = self.codec.failed(&started.stored.response, error)?;
        let steps = started.request.keeps_steps.then(String::new);
        Ok(EndedResponse { response, steps, outcome: Outcome::of_status(error.code().status()) })
    }

    fn random_number(&self) -> u64 {
        let mut bytes = [0; 8];
        self.clock_rng.fill(&mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Resolves when a response is not to be generated here any more.
    async fn wait_until_closed(&self, id: ResponseId, mut changes: watch::Receiver<()>) -> Closed {
        loop {
            match self.responses.is_open(id).await {
                Ok(false) => return Closed::Ended,
                Err(error) if is_taken_over(&error) => return Closed::TakenOver(error),
                _ => {}
            }
            // If the sender is gone, the server is gone.
            let _ = changes.changed().await;
        }
    }
}

impl Work for BackgroundResponses {
    const NAME: &'static str = "responses";
    const RETRY_DELAY: Duration = Duration::from_secs(2);

    type Id = ResponseId;
    type Piece = OpenResponse;
    /// The attempts that found its model unavailable.
    type Memo = u32;

    fn changes(&self) -> watch::Receiver<()> {
        self.responses.changes()
    }

    async fn open(&self) -> Result<Vec<OpenResponse>> {
        self.responses.open().await
    }

    fn key(response: &OpenResponse) -> (ResponseId, ProjectId) {
        (response.id, response.project)
    }

    fn may_begin(&self, response: &OpenResponse, running: &[OpenResponse]) -> bool {
        let of_project = running.iter().filter(|other| other.project == response.project).count();
        running.len() < MAX_RUNNING && of_project < MAX_RUNNING_PER_PROJECT
    }

    fn keeps_place(&self) -> bool {
        false
    }

    async fn claim(&self, id: ResponseId) -> Result<bool> {
        self.responses.claim(id).await
    }

    async fn release(&self, id: ResponseId) {
        self.responses.release(id).await;
    }

    async fn attempt(&self, OpenResponse { id, .. }: OpenResponse, model_attempts: &mut u32) -> Result<Attempt> {
        let attempted = self.try_to_generate(id, model_attempts).await;
        let end = match &attempted {
            Ok(end) => *end,
            // Streams that followed this attempt cannot go on with the steps of the other process.
            Err(error) => is_taken_over(error).then_some(LiveEnd::Closed),
        };
        end.inspect(|end| self.live.close(id, *end));
        Ok(if attempted?.is_some() { Attempt::Done } else { Attempt::Again(Self::RETRY_DELAY) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_cannot_be_used_is_tried_five_times() {
        let error = |code| Error::new(code, "");
        assert!((0..4).all(|tried| is_temporary(&error(Code::ModelUnavailable), tried)));
        assert!(!is_temporary(&error(Code::ModelUnavailable), 4));
        assert!(is_temporary(&error(Code::RateLimited), 9));
        assert!(!is_temporary(&error(Code::InsufficientQuota), 0));
    }
}
