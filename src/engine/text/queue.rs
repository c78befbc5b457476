//! The queue of chat requests: what callers and the compute thread both touch.
//!
//! The lock is held for moments only, never while a network computes, so [`TextQueue::push`] answers at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::mpsc;

use super::model::TextModel;
use super::request::{GenerationRequest, Sent};
use super::scheduler::{Full, Limits, ModelId, Request, RequestId, Scheduler, Tenant};
use crate::engine::error::{Failure, Refused};
use crate::engine::runtime::Runtime;
use crate::engine::runtime::backlog::retry_after;
use crate::engine::runtime::memory::KvCache;

/// Tokens of an answer that are assumed before any has ended.
const DEFAULT_ANSWER_TOKENS: f64 = 256.;
/// Weight of the newest step or answer in the moving averages.
const NEWEST: f64 = 0.1;

pub struct TextQueue {
    runtime: Arc<Runtime>,
    state: Mutex<State>,
}

pub struct State {
    pub scheduler: Scheduler,
    /// Requests of which nothing has run.
    pub waiting: BTreeMap<RequestId, QueuedRequest>,
    /// How often a panic has made the scheduler start anew. What runs then has no place in it any more.
    pub resets: u64,
    speed: Speed,
    /// Moving average of the tokens of an answer; `None` before any has ended.
    answer_tokens: Option<f64>,
}

/// A request in the queue.
pub struct QueuedRequest {
    pub model: Arc<TextModel>,
    pub request: GenerationRequest,
    pub sender: mpsc::Sender<Sent>,
    /// A place in the channel kept for a failure, so that a slow client learns of it, too.
    pub last: mpsc::OwnedPermit<Sent>,
    /// When it was submitted.
    pub at: Duration,
}

impl QueuedRequest {
    pub fn fail(self, failure: Failure) {
        drop(self.last.send(Err(failure)));
    }
}

/// The load of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Requests that wait.
    pub queued: usize,
    /// Prompt tokens of those.
    pub queued_tokens: usize,
    /// Answers being generated, each choice counted.
    pub running: usize,
    /// Memory that their keys and values take.
    pub kv_bytes: u64,
}

/// Tokens computed a second, as a moving average over steps. The first step that is measured counts in full.
#[derive(Debug, Default)]
struct Speed {
    tokens: f64,
    seconds: f64,
}

impl Speed {
    fn measure(&mut self, tokens: usize, took: Duration) {
        self.tokens += tokens as f64 - self.tokens * NEWEST;
        self.seconds += took.as_secs_f64() - self.seconds * NEWEST;
    }

    fn tokens_per_second(&self) -> Option<f64> {
        (self.seconds > 0.).then(|| self.tokens / self.seconds)
    }
}

impl State {
    /// Drops requests whose clients left before anything ran.
    pub fn sweep(&mut self) {
        let gone = self.waiting.extract_if(.., |_, queued| queued.sender.is_closed());
        gone.for_each(|(id, _)| self.scheduler.cancel(id));
    }

    /// Fails all requests of which nothing has run.
    pub fn fail_waiting(&mut self, failure: &Failure) {
        for (id, queued) in std::mem::take(&mut self.waiting) {
            self.scheduler.cancel(id);
            queued.fail(failure.clone());
        }
    }

    /// Tokens computed a second; `None` before any step was measured.
    pub fn speed(&self) -> Option<f64> {
        self.speed.tokens_per_second()
    }

    /// A step of so many tokens took so long.
    pub fn measure(&mut self, tokens: usize, took: Duration) {
        self.speed.measure(tokens, took);
    }

    /// An answer has ended after so many tokens.
    pub fn answer_ended(&mut self, generated: usize) {
        let newest = generated as f64;
        self.answer_tokens = Some(self.answer_tokens.map_or(newest, |mean| mean + (newest - mean) * NEWEST));
    }

    /// Tokens that an answer is expected to have.
    pub fn expected_tokens(&self) -> u32 {
        self.answer_tokens.unwrap_or(DEFAULT_ANSWER_TOKENS).ceil() as u32
    }

    /// When half of the work before a new request will be done, at the present speed and length of answers.
    fn retry_after(&self, full: Full, tenant: Tenant) -> Duration {
        let expected = self.expected_tokens();
        let work = match full {
            Full::Model => self.scheduler.work(expected, |_| true),
            Full::Tenant => {
                let own = self.scheduler.work(expected, |one| one == tenant);
                own.saturating_mul(self.scheduler.tenants() as u64)
            }
        };
        let seconds = self.speed().map(|speed| work as f64 / speed.max(0.1));
        retry_after(seconds.filter(|_| self.answer_tokens.is_some()))
    }

    /// A new scheduler with the requests of which nothing has run. What has run must be failed by its owner.
    fn reset(&mut self, runtime: &Runtime) {
        self.resets += 1;
        self.scheduler = self.scheduler.fresh();
        for (_, queued) in std::mem::take(&mut self.waiting) {
            match self.scheduler.submit(schedule(runtime, &queued.model, &queued.request)) {
                Ok(id) => drop(self.waiting.insert(id, queued)),
                Err(_) => queued.fail(Failure::panicked()),
            }
        }
    }
}

/// A request as the scheduler sees it.
fn schedule(runtime: &Runtime, model: &TextModel, request: &GenerationRequest) -> Request {
    Request {
        model: model.key,
        block_bytes: model.block_bytes(runtime.settings.kv_type),
        tenant: request.tenant,
        prompt: request.prompt.clone(),
        choices: request.choices,
        max_tokens: request.max_tokens,
        long: model.network.is_long(request.prompt.len() + request.max_tokens as usize),
    }
}

impl TextQueue {
    pub fn new(runtime: Arc<Runtime>) -> Arc<Self> {
        let settings = &runtime.settings;
        let limits = Limits {
            running: settings.max_running,
            requests: settings.max_queued_requests,
            tokens: settings.max_queued_tokens,
            tenant_divisor: settings.tenant_divisor,
        };
        let state = State {
            scheduler: Scheduler::new(limits),
            waiting: BTreeMap::new(),
            resets: 0,
            speed: Speed::default(),
            answer_tokens: None,
        };
        Arc::new(Self { runtime, state: Mutex::new(state) })
    }

    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// The state. Where a panic has left it, nobody knows: then the scheduler starts anew.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| {
            let mut state = poisoned.into_inner();
            state.reset(&self.runtime);
            self.state.clear_poison();
            state
        })
    }

    /// After a panic: the scheduler starts anew with the requests of which nothing has run.
    pub fn reset(&self) {
        self.lock().reset(&self.runtime);
    }

    pub fn load(&self) -> Load {
        let counts = self.lock().scheduler.counts();
        let (queued, queued_tokens) = (counts.queued, counts.queued_tokens);
        Load { queued, queued_tokens, running: counts.running, kv_bytes: counts.held_bytes }
    }

    /// Drops what is cached of a model that is no longer loaded.
    pub fn forget(&self, model: ModelId) {
        self.lock().scheduler.forget(model);
        self.runtime.wake();
    }

    /// BlockPool of the model take so many bytes from now on.
    pub fn set_block_bytes(&self, model: ModelId, bytes: u64) {
        self.lock().scheduler.set_block_bytes(model, bytes);
    }

    /// Refuses a request that the queue has no place for now, whatever its prompt.
    pub fn check(&self, model: &TextModel, tenant: Tenant) -> Result<(), Refused> {
        self.ask(&mut self.lock(), model, tenant, |scheduler| scheduler.admits(model.key, tenant, 0))
    }

    fn ask<T>(
        &self,
        state: &mut State,
        model: &TextModel,
        tenant: Tenant,
        ask: impl Fn(&mut Scheduler) -> Result<T, Full>,
    ) -> Result<T, Refused> {
        if self.runtime.is_shutting_down() {
            return Err(Refused::ShuttingDown);
        }
        let asked = ask(&mut state.scheduler).or_else(|_| {
            // Requests whose clients have left hold no place.
            state.sweep();
            ask(&mut state.scheduler)
        });
        asked.map_err(|full| {
            let reason = if full == Full::Model { "model_queue" } else { "project_queue" };
            self.runtime.metrics.refuse(model.id(), reason);
            Refused::QueueFull { retry_after: state.retry_after(full, tenant) }
        })
    }

    /// Takes the request or refuses it, at once. `capacity`: pieces that may wait for the client.
    pub fn push(
        &self,
        model: &Arc<TextModel>,
        request: GenerationRequest,
        capacity: usize,
    ) -> Result<mpsc::Receiver<Sent>, Refused> {
        let (sender, receiver) = mpsc::channel(capacity + 1);
        let Ok(last) = sender.clone().try_reserve_owned() else { return Err(Refused::ShuttingDown) };
        let (tenant, at) = (request.tenant, self.runtime.clock.uptime());
        let mut state = self.lock();
        self.runtime.faults.point("text.push");
        let new = || schedule(&self.runtime, model, &request);
        let id = self.ask(&mut state, model, tenant, |scheduler| scheduler.submit(new()))?;
        state.waiting.insert(id, QueuedRequest { model: Arc::clone(model), request, sender, last, at });
        drop(state);
        self.runtime.wake();
        Ok(receiver)
    }
}

impl KvCache for TextQueue {
    fn shrink(&self, room: u64, then: &mut dyn FnMut(u64)) {
        let mut state = self.lock();
        state.scheduler.shrink(room);
        then(state.scheduler.used_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_counts_in_full_and_slow_steps_by_their_time() {
        let mut speed = Speed::default();
        assert_eq!(speed.tokens_per_second(), None);
        speed.measure(400, Duration::from_secs(1));
        assert_eq!(speed.tokens_per_second(), Some(400.));
        (0..50).for_each(|_| speed.measure(40, Duration::from_millis(100)));
        assert!((speed.tokens_per_second().unwrap() - 400.).abs() < 1.);
        // One second of 10 tokens weighs as much as ten steps of a tenth.
        speed.measure(10, Duration::from_secs(1));
        let after = speed.tokens_per_second().unwrap();
        assert!((150. ..300.).contains(&after), "{after}");
    }
}
