//! Generates the responses that are to be generated in the background, the oldest first; the projects share the places. A
//! response goes through the same decoder, call and encoder as one that a client waits for, behind [`ResponseRunner`].

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;
use tokio::time::Instant;

use super::stop_signal::{LoopStopper, StopSignal, stop_signal};
use crate::error::{Code, Error, Result};
use crate::ids::{ProjectId, ResponseId};
use crate::service::responses::{EndedResponse, OpenResponse, Responses, StartedResponse};
use crate::service::usage::{Meter, UsageRecorder};

/// Max responses that are generated at once, of all projects.
const MAX_RUNNING: usize = 16;
/// Max responses of a project that are generated at once.
const MAX_RUNNING_PER_PROJECT: usize = 8;
/// The time until a response is tried again that the server has no room for.
const RETRY_DELAY: Duration = Duration::from_secs(2);
/// The time between two looks if there is nothing to do.
const IDLE_WAIT: Duration = Duration::from_secs(3600);
/// Attempts to use a model that cannot be used now; it may be for good.
const MAX_MODEL_ATTEMPTS: u32 = 5;
/// The name under which the responses are metered.
const METERED_AS: &str = "BACKGROUND /responses";

/// Generates a response as its endpoint does.
pub trait ResponseRunner {
    /// Generates a response. An error means that nothing was generated yet. Usage is added to `recorder`.
    fn run(
        &self,
        started: StartedResponse,
        recorder: Arc<UsageRecorder>,
    ) -> LocalBoxFuture<'static, Result<EndedResponse>>;

    /// The end of a response that cannot be generated.
    fn failed(&self, started: &StartedResponse, error: &Error) -> Result<EndedResponse>;

    /// Called when a response is not generated any more: it has ended, or the server stops.
    fn closed(&self, id: ResponseId);
}

/// Generates responses in the background. When it is stopped, running ones are given up; they begin again after the next
/// start.
pub struct BackgroundResponses {
    responses: Responses,
    meter: Meter,
    runner: Box<dyn ResponseRunner>,
    stop: StopSignal,
}

/// What became of an attempt.
enum Attempt {
    /// The response has ended, or the server stops.
    Done,
    /// It is to be tried again. `is_model`: because its model cannot be used.
    Later { is_model: bool },
}

/// Responses that run or wait, by what this process knows of them.
#[derive(Default)]
struct Schedule {
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
    pub fn new(responses: Responses, meter: Meter, runner: Box<dyn ResponseRunner>) -> (Self, LoopStopper) {
        let (stopper, stop) = stop_signal();
        (Self { responses, meter, runner, stop }, stopper)
    }

    /// Runs until it is stopped.
    pub async fn run(self) {
        let (mut schedule, mut attempts) = (Schedule::default(), FuturesUnordered::new());
        let mut changes = self.responses.changes();
        while !self.stop.is_set() {
            changes.mark_unchanged();
            let mut wait = IDLE_WAIT;
            match self.responses.open().await {
                Ok(open) => {
                    let next = schedule.begin(&open, Instant::now());
                    attempts.extend(next.into_iter().map(|(id, tried)| self.attempt(id, tried)));
                }
                Err(error) => {
                    tracing::warn!(%error, "the responses in the background cannot be read");
                    wait = RETRY_DELAY;
                }
            }
            if !schedule.delayed.is_empty() {
                wait = RETRY_DELAY;
            }
            tokio::select! {
                Some((id, attempt)) = attempts.next() => schedule.end(id, &attempt, Instant::now()),
                _ = changes.changed() => {}
                () = self.stop.wait() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
        while attempts.next().await.is_some() {}
    }

    /// Tries to generate a response. `tried`: earlier attempts to use its model.
    async fn attempt(&self, id: ResponseId, tried: u32) -> (ResponseId, Attempt) {
        let attempt = self.try_to_generate(id, tried).await.unwrap_or_else(|error| {
            tracing::warn!(response = %id, %error, "a response in the background cannot go on now");
            Attempt::Later { is_model: false }
        });
        if matches!(attempt, Attempt::Done) {
            self.runner.closed(id);
        }
        (id, attempt)
    }

    async fn try_to_generate(&self, id: ResponseId, tried: u32) -> Result<Attempt> {
        let changes = self.responses.changes();
        let Some(started) = self.responses.start(id).await? else { return Ok(Attempt::Done) };
        let recorder = self.meter.open_in_background(&started.access, METERED_AS.to_owned()).await?;
        let recorder = Arc::new(recorder);
        let generated = tokio::select! {
            generated = self.runner.run(started.clone(), recorder.clone()) => generated,
            () = self.stop.wait() => Err(Error::new(Code::ShuttingDown, "The server is shutting down.")),
            // What was generated is recorded when the recorder is dropped.
            () = self.closed(id, changes) => return Ok(Attempt::Done),
        };
        let ended = match generated {
            Ok(ended) => ended,
            Err(error) if error.code() == Code::ShuttingDown => {
                recorder.discard();
                return Ok(Attempt::Done);
            }
            Err(error) if is_temporary(&error, tried) => {
                recorder.discard();
                return Ok(Attempt::Later { is_model: error.code() == Code::ModelUnavailable });
            }
            Err(error) => self.runner.failed(&started, &error)?,
        };
        if let Err(error) = self.responses.end(id, ended, &recorder).await {
            // It cannot be stored as it is.
            self.responses.end(id, self.runner.failed(&started, &error)?, &recorder).await?;
        }
        Ok(Attempt::Done)
    }

    /// Resolves when a response is cancelled or deleted.
    async fn closed(&self, id: ResponseId, mut changes: watch::Receiver<()>) {
        loop {
            if matches!(self.responses.is_open(id).await, Ok(false)) {
                return;
            }
            // If the sender is gone, the server is gone.
            let _ = changes.changed().await;
        }
    }
}

/// Whether a response is to be tried again. `tried`: earlier attempts to use its model.
fn is_temporary(error: &Error, tried: u32) -> bool {
    match error.code() {
        Code::RateLimited | Code::Overloaded | Code::StorageUnavailable => true,
        Code::ModelUnavailable => tried + 1 < MAX_MODEL_ATTEMPTS,
        _ => false,
    }
}

impl Schedule {
    /// The responses that are tried now, each with the earlier attempts to use its model.
    fn begin(&mut self, open: &[OpenResponse], now: Instant) -> Vec<(ResponseId, u32)> {
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

    fn end(&mut self, id: ResponseId, attempt: &Attempt, now: Instant) {
        self.running.remove(&id);
        let before = self.delayed.remove(&id);
        if let Attempt::Later { is_model } = attempt {
            let model_attempts = before.map_or(0, |delay| delay.model_attempts) + u32::from(*is_model);
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
    fn projects_share_the_places() {
        let mut responses: Vec<OpenResponse> = (0..20).map(|id| open(1, id)).collect();
        responses.extend([open(2, 100), open(2, 101)]);
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        let begun = schedule.begin(&responses, now);
        assert_eq!(ids(&begun), [0, 100, 1, 101, 2, 3, 4, 5, 6, 7]);
        assert!(schedule.begin(&responses, now).is_empty(), "those of one project have their bound");
        schedule.end(ResponseId::from_bytes([1; 16]), &Attempt::Done, now);
        let left: Vec<OpenResponse> = responses.into_iter().filter(|response| response.id.to_bytes()[0] != 1).collect();
        assert_eq!(ids(&schedule.begin(&left, now)), [8]);
    }

    #[test]
    fn a_response_that_waits_keeps_no_place() {
        let (mut schedule, now) = (Schedule::default(), Instant::now());
        let responses = [open(1, 1)];
        let id = responses[0].id;
        for tried in 0..3 {
            let at = now + RETRY_DELAY * tried;
            assert_eq!(schedule.begin(&responses, at), [(id, tried)]);
            schedule.end(id, &Attempt::Later { is_model: true }, at);
            assert!(schedule.begin(&responses, at).is_empty() && schedule.running.is_empty());
        }
        assert!(schedule.begin(&[], now).is_empty() && schedule.delayed.is_empty());
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
