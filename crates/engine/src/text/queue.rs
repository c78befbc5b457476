//! The queue of generation requests, shared by callers and the compute thread.
//!
//! The lock is held only briefly, never while a network computes, so [`TextQueue::push`] returns at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use tokio::sync::mpsc;

use super::model::TextModel;
use super::prefix_disk::names::DiskRoot;
use super::prefix_disk::{PrefixDisk, TextNames};
use super::request::{DeltaResult, GenerationRequest};
use super::scheduler::{Full, Limits, ModelId, Request, Scheduler, SequenceTokens};
use crate::error::{Failure, Refused};
use crate::ids::{RequestId, Tenant};
use crate::kinds::RequestQueue;
use crate::runtime::Runtime;
use crate::runtime::backlog::retry_after;
use crate::runtime::catch_panic::lock_or_reset;
use crate::runtime::memory_budget::KvCache;
use outpost_models::state_layout::StateGroup;

/// Assumed length of a choice, in tokens, before any has ended.
const DEFAULT_CHOICE_TOKENS: f64 = 256.;
/// Weight of the newest step or choice in the moving averages.
const NEWEST_WEIGHT: f64 = 0.1;

pub struct TextQueue {
    runtime: Arc<Runtime>,
    /// Set at most once, before the first request.
    prefix_disk: OnceLock<Arc<PrefixDisk>>,
    state: Mutex<State>,
}

pub struct State {
    pub scheduler: Scheduler,
    /// Requests that have not started.
    pub waiting: BTreeMap<RequestId, QueuedRequest>,
    /// The requests that wait for blocks from disk, with the uptime of their submission.
    pub restoring: BTreeMap<RequestId, Duration>,
    /// The uptime at which the last block was read, or at which a request began to wait while no other did.
    pub last_restored: Duration,
    /// Number of resets of the scheduler after a panic. Requests that ran before are unknown to the new one.
    pub resets: u64,
    speed: Speed,
    /// Moving average of the tokens per choice; `None` before any has ended.
    choice_tokens: Option<f64>,
}

/// A request in the queue.
pub struct QueuedRequest {
    pub model: Arc<TextModel>,
    pub request: GenerationRequest,
    pub sender: mpsc::Sender<DeltaResult>,
    /// Channel room reserved for a failure, so that a slow client receives it too.
    pub failure_permit: mpsc::OwnedPermit<DeltaResult>,
    /// When it was submitted.
    pub submitted_at: Duration,
    disk: Option<DiskRoot>,
}

/// A prompt's place in the prefix cache on disk, and what is there.
struct PromptOnDisk {
    root: DiskRoot,
    names: TextNames,
    /// For each block, which groups have it.
    found: Vec<Vec<bool>>,
}

impl QueuedRequest {
    pub fn fail(self, failure: Failure) {
        drop(self.failure_permit.send(Err(failure)));
    }
}

/// The load of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Waiting requests.
    pub queued: usize,
    /// Their prompt tokens.
    pub queued_tokens: usize,
    /// Running choices.
    pub running: usize,
    /// Bytes of their KV blocks.
    pub kv_bytes: u64,
}

impl std::iter::Sum for Load {
    fn sum<I: Iterator<Item = Self>>(loads: I) -> Self {
        loads.fold(Self::default(), |total, load| Self {
            queued: total.queued + load.queued,
            queued_tokens: total.queued_tokens + load.queued_tokens,
            running: total.running + load.running,
            kv_bytes: total.kv_bytes + load.kv_bytes,
        })
    }
}

/// Tokens per second, as a moving average over steps. The first measured step counts in full.
#[derive(Debug, Default)]
struct Speed {
    tokens: f64,
    seconds: f64,
}

impl Speed {
    fn measure(&mut self, tokens: usize, took: Duration) {
        self.tokens += tokens as f64 - self.tokens * NEWEST_WEIGHT;
        self.seconds += took.as_secs_f64() - self.seconds * NEWEST_WEIGHT;
    }

    fn tokens_per_second(&self) -> Option<f64> {
        (self.seconds > 0.).then(|| self.tokens / self.seconds)
    }
}

impl State {
    /// Drops waiting requests whose clients have disconnected.
    pub fn sweep(&mut self) {
        let gone = self.waiting.extract_if(.., |_, queued| queued.sender.is_closed());
        gone.for_each(|(id, _)| self.scheduler.cancel(id));
    }

    /// Fails all requests that have not started.
    pub fn fail_waiting(&mut self, failure: &Failure) {
        for (id, queued) in std::mem::take(&mut self.waiting) {
            self.scheduler.cancel(id);
            queued.fail(failure.clone());
        }
    }

    /// Tokens computed per second; `None` before the first measurement.
    pub fn speed(&self) -> Option<f64> {
        self.speed.tokens_per_second()
    }

    /// Records a step of `tokens` tokens that took `took`.
    pub fn measure(&mut self, tokens: usize, took: Duration) {
        self.speed.measure(tokens, took);
    }

    /// Records the length of a choice that has ended.
    pub fn record_choice_length(&mut self, generated: usize) {
        let newest = generated as f64;
        self.choice_tokens = Some(self.choice_tokens.map_or(newest, |mean| mean + (newest - mean) * NEWEST_WEIGHT));
    }

    /// The expected length of a choice, in tokens.
    pub fn expected_tokens(&self) -> u32 {
        self.choice_tokens.unwrap_or(DEFAULT_CHOICE_TOKENS).ceil() as u32
    }

    /// When half of the work ahead of a new request will be done, at the current speed and choice length.
    fn retry_after(&self, full: Full, tenant: Tenant) -> Duration {
        let expected = self.expected_tokens();
        let work = match full {
            Full::Model => self.scheduler.remaining_work(expected, |_| true),
            Full::Tenant => {
                let of_tenant = self.scheduler.remaining_work(expected, |one| one == tenant);
                of_tenant.saturating_mul(self.scheduler.tenants() as u64)
            }
        };
        let seconds = self.speed().map(|speed| work as f64 / speed.max(0.1));
        retry_after(seconds.filter(|_| self.choice_tokens.is_some()))
    }

    /// Replaces the scheduler and resubmits requests that have not started. The caller must fail running ones.
    fn reset(&mut self, runtime: &Runtime) {
        self.resets += 1;
        self.scheduler = self.scheduler.new_empty();
        self.restoring.clear();
        for (_, queued) in std::mem::take(&mut self.waiting) {
            match self.scheduler.submit(scheduler_request(runtime, &queued.model, &queued.request, queued.disk)) {
                Ok(id) => drop(self.waiting.insert(id, queued)),
                Err(_) => queued.fail(Failure::panicked()),
            }
        }
    }
}

/// A request as the scheduler sees it.
fn scheduler_request(
    runtime: &Runtime,
    model: &TextModel,
    request: &GenerationRequest,
    disk: Option<DiskRoot>,
) -> Request {
    Request {
        model: model.key,
        adapter: model.adapter().map(|adapter| adapter.key),
        groups: model.state_groups(runtime.settings.kv_type),
        tenant: request.tenant,
        prompt: request.prompt.clone(),
        choices: request.choices,
        max_tokens: request.max_tokens,
        long: is_long(model, request),
        prompt_logits: request.prompt_logprobs.is_some(),
        disk,
    }
}

fn is_long(model: &TextModel, request: &GenerationRequest) -> bool {
    model.network.is_long(request.prompt.len() + request.max_tokens as usize)
}

impl RequestQueue for TextQueue {
    fn new(runtime: Arc<Runtime>) -> Arc<Self> {
        let settings = &runtime.settings;
        let limits = Limits {
            running: settings.max_running,
            choices: settings.max_queued_requests,
            tokens: settings.max_queued_tokens,
            tenant_divisor: settings.tenant_divisor,
            logits: settings.step_limits().logits,
        };
        let state = State {
            scheduler: Scheduler::new(limits),
            waiting: BTreeMap::new(),
            restoring: BTreeMap::new(),
            last_restored: Duration::ZERO,
            resets: 0,
            speed: Speed::default(),
            choice_tokens: None,
        };
        let queue = Arc::new(Self { runtime, prefix_disk: OnceLock::new(), state: Mutex::new(state) });
        queue.runtime.set_kv_cache(Arc::<Self>::downgrade(&queue) as _);
        queue
    }
}

impl TextQueue {
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// Sets the prefix cache on disk.
    pub fn set_prefix_disk(&self, disk: &Arc<PrefixDisk>) {
        disk.attach(&self.runtime);
        let _ = self.prefix_disk.set(Arc::clone(disk));
    }

    /// The prefix cache on disk, if there is one.
    pub fn prefix_disk(&self) -> Option<&PrefixDisk> {
        self.prefix_disk.get().map(|disk| &**disk)
    }

    /// Looks for a prompt in the prefix cache on disk, which takes time in proportion to its length, so a request for which there is no
    /// room is refused before.
    fn find_on_disk(
        &self,
        disk: &PrefixDisk,
        model: &TextModel,
        request: &GenerationRequest,
    ) -> Result<PromptOnDisk, Refused> {
        let (tenant, prompt, choices) = (request.tenant, request.prompt.len(), request.choices as usize);
        let admits = |scheduler: &mut Scheduler| scheduler.admits(model.key, tenant, prompt, choices);
        self.admit(&mut self.lock(), model, tenant, admits)?;
        let root = model.disk_root(disk, &self.runtime, tenant, is_long(model, request));
        let names = disk.names(root, SequenceTokens::new(request.prompt.clone()).blocks_from(0));
        let groups = model.network.state_groups(self.runtime.settings.kv_type).len();
        let found = disk.find(&names, groups);
        Ok(PromptOnDisk { root, names, found })
    }

    /// Lets a new request wait for the blocks of its prompt that are on disk and not in memory.
    fn restore(&self, state: &mut State, id: RequestId, prompt: &PromptOnDisk) {
        if let Some(disk) = self.prefix_disk()
            && let Some(prefix) = state.scheduler.begin_restore(id, &prompt.found)
        {
            let now = self.runtime.clock.uptime();
            if state.restoring.is_empty() {
                state.last_restored = now;
            }
            state.restoring.insert(id, now);
            disk.read(&self.runtime, id, &prompt.names, &prefix.missing, &prefix.needed);
        }
    }

    /// Locks the state. After a panic under the lock its contents are unreliable, so the scheduler is reset.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        lock_or_reset(&self.state, |state| state.reset(&self.runtime))
    }

    /// After a panic: resets the scheduler and keeps the requests that have not started.
    /// Returns how often it was reset.
    pub fn reset(&self) -> u64 {
        let mut state = self.lock();
        state.reset(&self.runtime);
        state.resets
    }

    pub fn load(&self) -> Load {
        let counts = self.lock().scheduler.counts();
        let (queued, queued_tokens) = (counts.queued, counts.queued_tokens);
        Load { queued, queued_tokens, running: counts.running, kv_bytes: counts.held_bytes }
    }

    /// Drops the prefix cache of a model that is no longer loaded.
    pub fn remove_model(&self, model: ModelId) {
        self.lock().scheduler.remove_model(model);
        self.runtime.wake();
    }

    /// Sets the most queued requests of a model.
    pub fn set_max_queued(&self, requests: usize) {
        self.lock().scheduler.set_max_choices(requests);
    }

    /// Sets the bytes of the model's blocks.
    pub fn set_state_groups(&self, model: ModelId, groups: &[StateGroup]) {
        self.lock().scheduler.set_groups(model, groups);
    }

    /// Refuses a request if the queue is full, whatever its prompt.
    pub fn check(&self, model: &TextModel, tenant: Tenant) -> Result<(), Refused> {
        self.admit(&mut self.lock(), model, tenant, |scheduler| scheduler.admits(model.key, tenant, 0, 1))
    }

    fn admit<T>(
        &self,
        state: &mut State,
        model: &TextModel,
        tenant: Tenant,
        attempt: impl Fn(&mut Scheduler) -> Result<T, Full>,
    ) -> Result<T, Refused> {
        if self.runtime.is_shutting_down() {
            return Err(Refused::ShuttingDown);
        }
        let result = attempt(&mut state.scheduler).or_else(|_| {
            // Requests whose clients have disconnected must not take room.
            state.sweep();
            attempt(&mut state.scheduler)
        });
        result.map_err(|full| {
            let reason = if full == Full::Model { "model_queue" } else { "project_queue" };
            self.runtime.metrics.refuse(model.id(), reason);
            Refused::QueueFull { retry_after: state.retry_after(full, tenant) }
        })
    }

    /// Accepts or refuses the request at once. `capacity`: deltas buffered for a slow client.
    pub fn push(
        &self,
        model: &Arc<TextModel>,
        request: GenerationRequest,
        capacity: usize,
    ) -> Result<mpsc::Receiver<DeltaResult>, Refused> {
        let (sender, receiver) = mpsc::channel(capacity + 1);
        let Ok(failure_permit) = sender.clone().try_reserve_owned() else { return Err(Refused::ShuttingDown) };
        let (tenant, submitted_at) = (request.tenant, self.runtime.clock.uptime());
        let on_disk = self.prefix_disk().map(|disk| self.find_on_disk(disk, model, &request)).transpose()?;
        let disk = on_disk.as_ref().map(|prompt| prompt.root);
        let mut state = self.lock();
        self.runtime.faults.point("text.push");
        let new = || scheduler_request(&self.runtime, model, &request, disk);
        let id = self.admit(&mut state, model, tenant, |scheduler| scheduler.submit(new()))?;
        on_disk.iter().for_each(|prompt| self.restore(&mut state, id, prompt));
        let model = Arc::clone(model);
        state.waiting.insert(id, QueuedRequest { model, request, sender, failure_permit, submitted_at, disk });
        drop(state);
        self.runtime.wake();
        Ok(receiver)
    }
}

impl KvCache for TextQueue {
    fn shrink(&self, max_bytes: u64, then: &mut dyn FnMut(u64)) {
        let mut state = self.lock();
        state.scheduler.shrink(max_bytes);
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
