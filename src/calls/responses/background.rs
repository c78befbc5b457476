//! Generates the responses that are to be generated in the background, the oldest first; the projects share the slots. A
//! response goes through the same decoder, turn and encoder as one that a client waits for. [`ResponseCodec`] decodes and
//! encodes.
//!
//! If nodes share the store, each claims a response before it tries to generate it, and gives it up afterwards.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use tokio::sync::watch;
use tokio::time::Instant;

use super::item_format::{ItemFormat, ReasoningFormat};
use super::live::{LiveEnd, LiveResponses};
use super::shared_steps;
use crate::calls::background::stop_signal::{LoopStopper, StopSignal, stop_signal, stopping};
use crate::calls::background::{self, Claimed, Settled, Work, settle, with_claim};
use crate::calls::chat::{Chat, ChatCall};
use crate::calls::errors::is_temporary;
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
/// The delay until a response that could not begin is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(2);
/// The interval at which an idle loop looks for responses.
const IDLE_WAIT: Duration = Duration::from_secs(3600);
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

/// The outcome of an attempt.
pub(in crate::calls) enum Attempt {
    /// This process has stored the end of what it generated.
    Stored,
    /// The response has ended otherwise, or the server stops.
    Done,
    /// Another node generates it. Streams on this one follow that.
    Elsewhere,
    /// It is to be tried again. `is_model_unavailable`: because its model cannot be used now.
    Retry { is_model_unavailable: bool },
}

/// Why a response is no longer to be generated here.
enum Closed {
    /// It was cancelled or deleted.
    Ended,
    /// Another process generates it, for this reason.
    TakenOver(Error),
}

/// Responses that run or wait, by what this process knows of them.
#[derive(Default)]
pub(in crate::calls) struct Schedule {
    running: HashMap<ResponseId, ProjectId>,
    delayed: HashMap<ResponseId, Delay>,
}

/// A response that is tried again later.
#[derive(Clone, Copy)]
struct Delay {
    until: Instant,
    /// Attempts to use its model.
    model_attempts: u32,
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
        background::run(&self, &self.stop).await;
        self.live.close_all();
    }

    async fn claim_and_generate(&self, id: ResponseId, model_attempts: u32) -> Result<Attempt> {
        let (claim, release) = (self.responses.claim(id), self.responses.release(id));
        Ok(match with_claim(id, claim, self.try_to_generate(id, model_attempts), release).await? {
            Claimed::Done(attempt) => attempt,
            Claimed::Elsewhere => Attempt::Elsewhere,
            Claimed::TakenOver => Attempt::Done,
        })
    }

    async fn try_to_generate(&self, id: ResponseId, model_attempts: u32) -> Result<Attempt> {
        let changes = self.responses.changes();
        let Some(started) = self.responses.start(id).await? else { return Ok(Attempt::Done) };
        let recorder = self.meter.open_in_background(&started.access, METERED_AS.to_owned()).await?;
        let recorder = Arc::new(recorder);
        let generated = tokio::select! {
            generated = self.generate(&started, Arc::clone(&recorder)) => generated,
            () = self.stop.wait() => Err(stopping()),
            closed = self.wait_until_closed(id, changes) => match closed {
                // The generated tokens are recorded when the recorder is dropped.
                Closed::Ended => return Ok(Attempt::Done),
                Closed::TakenOver(error) => {
                    recorder.discard();
                    return Err(error);
                }
            },
        };
        let ended = match settle(generated, &recorder, |error| is_temporary(error, model_attempts)) {
            Settled::Stopped => return Ok(Attempt::Done),
            Settled::Retry { is_model_unavailable } => return Ok(Attempt::Retry { is_model_unavailable }),
            Settled::Ended(Ok(ended)) => ended,
            Settled::Ended(Err(error)) => self.failed(&started, &error)?,
        };
        self.responses.end(id, ended, &recorder, |error| self.failed(&started, error)).await?;
        Ok(Attempt::Stored)
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
    type Open = OpenResponse;
    /// With the earlier attempts to use its model.
    type Next = (ResponseId, u32);
    type Outcome = (ResponseId, Attempt);
    type Schedule = Schedule;

    fn changes(&self) -> watch::Receiver<()> {
        self.responses.changes()
    }

    async fn open(&self) -> Result<Vec<OpenResponse>> {
        self.responses.open().await
    }

    fn begin(&self, schedule: &mut Schedule, open: Vec<OpenResponse>) -> (Vec<Self::Next>, Duration) {
        let next = schedule.start_due(&open, Instant::now());
        (next, if schedule.delayed.is_empty() { IDLE_WAIT } else { RETRY_DELAY })
    }

    async fn attempt(&self, (id, model_attempts): Self::Next) -> Self::Outcome {
        let attempt = self.claim_and_generate(id, model_attempts).await.unwrap_or_else(|error| {
            tracing::warn!(response = %id, %error, "a response in the background was interrupted; it is tried again");
            Attempt::Retry { is_model_unavailable: false }
        });
        match attempt {
            Attempt::Stored => self.live.close(id, LiveEnd::Stored),
            Attempt::Done => self.live.close(id, LiveEnd::Closed),
            Attempt::Elsewhere | Attempt::Retry { .. } => {}
        }
        (id, attempt)
    }

    fn end(&self, schedule: &mut Schedule, (id, attempt): Self::Outcome) {
        schedule.finish(id, &attempt, Instant::now());
    }

    fn unreadable(&self, error: &Error) -> Duration {
        tracing::warn!(%error, "the open responses could not be read; it is tried again");
        RETRY_DELAY
    }
}

impl Schedule {
    /// The responses that are tried now, each with the earlier attempts to use its model.
    fn start_due(&mut self, open: &[OpenResponse], now: Instant) -> Vec<(ResponseId, u32)> {
        self.delayed.retain(|id, _| open.iter().any(|response| response.id == *id));
        let is_due = |id: &ResponseId| self.delayed.get(id).is_none_or(|delay| delay.until <= now);
        let mut waiting: Vec<&OpenResponse> =
            open.iter().filter(|response| !self.running.contains_key(&response.id) && is_due(&response.id)).collect();
        let mut begun = Vec::new();
        while self.running.len() < MAX_RUNNING {
            let of_project =
                |response: &OpenResponse| self.running.values().filter(|project| **project == response.project).count();
            let next = waiting.iter().enumerate().map(|(at, response)| (of_project(response), response.id, at)).min();
            let Some((running, _, at)) = next else { break };
            if running >= MAX_RUNNING_PER_PROJECT {
                break;
            }
            let OpenResponse { id, project } = *waiting.remove(at);
            self.running.insert(id, project);
            begun.push((id, self.delayed.get(&id).map_or(0, |delay| delay.model_attempts)));
        }
        begun
    }

    fn finish(&mut self, id: ResponseId, attempt: &Attempt, now: Instant) {
        self.running.remove(&id);
        let before = self.delayed.remove(&id);
        if let Attempt::Retry { is_model_unavailable } = attempt {
            let model_attempts = before.map_or(0, |delay| delay.model_attempts) + u32::from(*is_model_unavailable);
            self.delayed.insert(id, Delay { until: now + RETRY_DELAY, model_attempts });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(project: u8, id: u8) -> OpenResponse {
        OpenResponse { id: ResponseId::from_bytes([id; 16]), project: ProjectId::from_bytes([project; 16]) }
    }

    fn ids(begun: &[(ResponseId, u32)]) -> Vec<u8> {
        begun.iter().map(|(id, _)| id.to_bytes()[0]).collect()
    }

    #[test]
    fn projects_share_the_slots() {
        let mut responses: Vec<OpenResponse> = (0..20).map(|id| open(1, id)).collect();
        responses.extend([open(2, 100), open(2, 101)]);
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        let begun = schedule.start_due(&responses, now);
        assert_eq!(ids(&begun), [0, 100, 1, 101, 2, 3, 4, 5, 6, 7]);
        assert!(schedule.start_due(&responses, now).is_empty(), "those of one project have their bound");
        schedule.finish(ResponseId::from_bytes([1; 16]), &Attempt::Done, now);
        let left: Vec<OpenResponse> = responses.into_iter().filter(|response| response.id.to_bytes()[0] != 1).collect();
        assert_eq!(ids(&schedule.start_due(&left, now)), [8]);
    }

    #[test]
    fn a_response_that_waits_keeps_no_slot() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        let responses = [open(1, 1)];
        let id = responses[0].id;
        for tried in 0..3 {
            let at = now + RETRY_DELAY * tried;
            assert_eq!(schedule.start_due(&responses, at), [(id, tried)]);
            schedule.finish(id, &Attempt::Retry { is_model_unavailable: true }, at);
            assert!(schedule.start_due(&responses, at).is_empty() && schedule.running.is_empty());
        }
        assert!(schedule.start_due(&[], now).is_empty() && schedule.delayed.is_empty());
    }

    #[test]
    fn a_model_that_cannot_be_used_is_tried_five_times() {
        let error = |code| Error::new(code, "");
        assert!((0..4).all(|tried| is_temporary(&error(Code::ModelUnavailable), tried)));
        assert!(!is_temporary(&error(Code::ModelUnavailable), 4));
        assert!(is_temporary(&error(Code::RateLimited), 9));
        assert!(!is_temporary(&error(Code::InsufficientQuota), 0));
    }
}
