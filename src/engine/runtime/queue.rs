//! Everything that callers and the worker both touch: the scheduler, and what newcomers bring.
//!
//! The lock is held for moments only, never during a step: `submit` answers at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use crate::engine::embedding::{EncoderModel, Texts, Vectors};
use crate::engine::error::Failure;
use crate::engine::error::Refused;
use crate::engine::image::{ImageEvents, ImageModel, ImageQueue, ImageRequest, PromptIds};
use crate::engine::runtime::memory::{Budget, Lease};
use crate::engine::runtime::metrics::Metrics;
use crate::engine::settings::Settings;
use crate::engine::text::model::TextModel;
use crate::engine::text::request::{Generation, Sent};
use crate::engine::text::scheduler::{Full, Limits, ModelId, Request, RequestId, Scheduler, Tenant};
use crate::models::encoder::Tokenized;

/// When to come again, at the latest, while it is not known how fast the model is and how long its answers are: by then
/// more is known.
const SOON: f64 = 5.;
/// Tokens of an answer that are assumed before any has ended.
const USUAL: f64 = 256.;
/// How much the newest step or answer counts in the means of late.
const NEWEST: f64 = 0.1;
/// How often a worker that waits for slow readers looks again though nobody woke it.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

pub struct Shared {
    pub settings: Settings,
    pub budget: Arc<Budget>,
    pub metrics: Metrics,
    inbox: Mutex<Inbox>,
    wake: Condvar,
}

/// How far shutting down has come; it only goes forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Gate {
    Open,
    /// Nothing new; what runs goes on.
    Draining,
    /// What runs ends too.
    Aborting,
    /// The worker ends.
    Closed,
}

pub struct Inbox {
    pub scheduler: Scheduler,
    /// Requests of which nothing has run.
    pub arrivals: BTreeMap<RequestId, Arrival>,
    /// What is to become vectors.
    pub texts: Texts,
    /// What is to be painted.
    pub images: ImageQueue,
    speed: Speed,
    /// Tokens of an answer of late; `None` before any has ended.
    length: Option<f64>,
    gate: Gate,
    signal: bool,
}

/// A request in the queue.
pub struct Arrival {
    pub model: Arc<TextModel>,
    pub request: Generation,
    pub sender: mpsc::Sender<Sent>,
    /// A place in the channel kept for bad news: a reader that is slow learns it too.
    pub last: mpsc::OwnedPermit<Sent>,
    /// When it was submitted.
    pub at: Duration,
}

/// What a request brings to a queue that counts what is to be done, not requests.
struct Bulk<'a> {
    /// What it brings, and what may wait.
    more: usize,
    most: usize,
    /// What waits: of all, and of its tenant.
    waiting: &'a dyn Fn(&Inbox) -> [usize; 2],
    /// How long that takes, about; `None` where nothing was measured yet.
    seconds: &'a dyn Fn(&Inbox) -> Option<f64>,
}

impl Bulk<'_> {
    /// Whoever has nothing in the queue may bring what one request can.
    fn is_full(&self, inbox: &Inbox, tenant_part: usize) -> bool {
        let [all, own] = (self.waiting)(inbox);
        (all > 0 && all + self.more > self.most) || (own > 0 && own + self.more > self.most / tenant_part)
    }
}

/// What the engine is busy with.
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

impl Inbox {
    /// Forgets requests whose callers left before anything ran.
    pub fn sweep(&mut self) {
        let gone = self.arrivals.extract_if(.., |_, arrival| arrival.sender.is_closed());
        gone.for_each(|(id, _)| self.scheduler.cancel(id));
        self.texts.sweep();
        self.images.drop_cancelled();
    }

    /// Tokens a second of late; `None` before any step was measured.
    pub fn speed(&self) -> Option<f64> {
        self.speed.tokens_per_second()
    }

    /// A step of so many tokens took so long.
    pub fn measure(&mut self, tokens: usize, took: Duration) {
        self.speed.measure(tokens, took);
    }

    /// An answer has ended after so many tokens.
    pub fn ended(&mut self, generated: usize) {
        let newest = generated as f64;
        self.length = Some(self.length.map_or(newest, |length| length + (newest - length) * NEWEST));
    }

    /// Tokens of an answer of late.
    pub fn usual(&self) -> u32 {
        self.length.unwrap_or(USUAL).ceil() as u32
    }

    /// When half of the work that stands before a newcomer will be done, at the speed and with
    /// answers of the length of late.
    fn retry_after(&self, full: Full, tenant: Tenant) -> Duration {
        let usual = self.usual();
        let work = match full {
            Full::Model => self.scheduler.work(usual, |_| true),
            Full::Tenant => {
                let own = self.scheduler.work(usual, |one| one == tenant);
                own.saturating_mul(self.scheduler.tenants() as u64)
            }
        };
        let seconds = self.speed().map(|speed| work as f64 / speed.max(0.1));
        retry_after(seconds.filter(|_| self.length.is_some()))
    }
}

/// When to come again where the work before a newcomer takes so long: half of it is done then.
fn retry_after(seconds: Option<f64>) -> Duration {
    Duration::from_secs_f64(seconds.map_or(SOON, |seconds| (seconds / 2.).clamp(1., 600.).ceil()))
}

/// How many tokens were computed in how much time; the older a step, the less it counts. There is no assumption to begin
/// with: the first step that is measured counts in full.
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

impl Shared {
    pub fn new(settings: Settings) -> Self {
        let limits = Limits {
            running: settings.max_running,
            requests: settings.max_queued_requests,
            tokens: settings.max_queued_tokens,
            tenant_part: settings.tenant_part,
        };
        let inbox = Inbox {
            scheduler: Scheduler::new(limits),
            arrivals: BTreeMap::new(),
            texts: Texts::new(),
            images: ImageQueue::new(),
            speed: Speed::default(),
            length: None,
            gate: Gate::Open,
            signal: false,
        };
        let budget = Budget::new(settings.memory_bytes);
        Self { settings, budget, metrics: Metrics::new(), inbox: Mutex::new(inbox), wake: Condvar::new() }
    }

    pub fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn wake(&self) {
        self.lock().signal = true;
        self.wake.notify_one();
    }

    pub fn load(&self) -> Load {
        let counts = self.lock().scheduler.counts();
        let (queued, queued_tokens) = (counts.queued, counts.queued_tokens);
        Load { queued, queued_tokens, running: counts.running, kv_bytes: counts.held_bytes }
    }

    /// Memory for weights and for the model's steps; cached blocks give way to them.
    pub fn lease(&self, weights: u64, scratch: u64) -> Option<Lease> {
        let mut inbox = self.lock();
        let more = weights.saturating_add(scratch.saturating_sub(self.budget.scratch()));
        inbox.scheduler.shrink(self.budget.room().saturating_sub(more));
        let lease = self.budget.lease(weights, scratch, inbox.scheduler.used_bytes());
        inbox.signal = true;
        drop(inbox);
        self.wake.notify_one();
        lease
    }

    /// Drops what is cached of a model that is no longer loaded.
    pub fn forget(&self, model: ModelId) {
        self.lock().scheduler.forget(model);
        self.wake();
    }

    /// Refuses whom the queue has no place for now, whatever the prompt.
    pub fn check(&self, model: &TextModel, tenant: Tenant) -> Result<(), Refused> {
        self.ask(&mut self.lock(), model, tenant, |scheduler| scheduler.admits(model.key, tenant, 0))
    }

    fn ask<T>(
        &self,
        inbox: &mut Inbox,
        model: &TextModel,
        tenant: Tenant,
        ask: impl Fn(&mut Scheduler) -> Result<T, Full>,
    ) -> Result<T, Refused> {
        if inbox.gate > Gate::Open {
            return Err(Refused::ShuttingDown);
        }
        let asked = ask(&mut inbox.scheduler).or_else(|_| {
            // Those who have left hold no place.
            inbox.sweep();
            ask(&mut inbox.scheduler)
        });
        asked.map_err(|full| {
            self.metrics.refuse(model.id(), if full == Full::Model { "model_queue" } else { "project_queue" });
            Refused::QueueFull { retry_after: inbox.retry_after(full, tenant) }
        })
    }

    /// Takes the request or refuses it, at once.
    pub fn push(
        &self,
        model: &Arc<TextModel>,
        request: Generation,
        capacity: usize,
        at: Duration,
    ) -> Result<mpsc::Receiver<Sent>, Refused> {
        let mut inbox = self.lock();
        let new = || Request {
            model: model.key,
            block_bytes: model.block_bytes(self.settings.kv_type),
            tenant: request.tenant,
            prompt: request.prompt.clone(),
            choices: request.choices,
            max_tokens: request.max_tokens,
            long: model.network.is_long(request.prompt.len() + request.max_tokens as usize),
        };
        let id = self.ask(&mut inbox, model, request.tenant, |scheduler| scheduler.submit(new()))?;
        let (sender, receiver) = mpsc::channel(capacity + 1);
        let Ok(last) = sender.clone().try_reserve_owned() else { return Err(Refused::ShuttingDown) };
        inbox.arrivals.insert(id, Arrival { model: Arc::clone(model), request, sender, last, at });
        inbox.signal = true;
        drop(inbox);
        self.wake.notify_one();
        Ok(receiver)
    }

    /// Takes texts to become vectors or refuses them, at once.
    pub fn push_texts(
        &self,
        model: &Arc<EncoderModel>,
        tenant: Tenant,
        texts: Vec<Tokenized>,
    ) -> Result<oneshot::Receiver<Vectors>, Refused> {
        let bulk = Bulk {
            more: texts.iter().map(|text| text.ids.len()).sum(),
            most: self.settings.max_queued_texts,
            waiting: &|inbox| [inbox.texts.waiting(), inbox.texts.waiting_of(tenant)],
            seconds: &|inbox| Some(inbox.texts.waiting() as f64 / model.speed()?),
        };
        self.push_bulk(model.id(), &bulk, |inbox| inbox.texts.push(Arc::clone(model), tenant, texts))
    }

    /// Takes pictures to be painted or refuses them, at once.
    pub fn push_image_request(
        &self,
        model: &Arc<ImageModel>,
        request: ImageRequest,
        prompts: PromptIds,
        now: Duration,
    ) -> Result<ImageEvents, Refused> {
        let tenant = request.tenant;
        let bulk = Bulk {
            more: request.seeds.len(),
            most: self.settings.max_queued_images,
            waiting: &|inbox| [inbox.images.waiting(None), inbox.images.waiting(Some(tenant))],
            seconds: &|inbox| inbox.images.seconds(),
        };
        self.push_bulk(model.id(), &bulk, |inbox| inbox.images.push(Arc::clone(model), request, prompts, now))
    }

    /// Takes what a request brings, or refuses all of it.
    fn push_bulk<T>(&self, model: &str, bulk: &Bulk<'_>, push: impl FnOnce(&mut Inbox) -> T) -> Result<T, Refused> {
        let mut inbox = self.lock();
        if inbox.gate > Gate::Open {
            return Err(Refused::ShuttingDown);
        }
        if bulk.is_full(&inbox, self.settings.tenant_part) {
            // Those who have left hold no place.
            inbox.sweep();
        }
        if bulk.is_full(&inbox, self.settings.tenant_part) {
            self.metrics.refuse(model, "model_queue");
            return Err(Refused::QueueFull { retry_after: retry_after((bulk.seconds)(&inbox)) });
        }
        let receiver = push(&mut inbox);
        inbox.signal = true;
        drop(inbox);
        self.wake.notify_one();
        Ok(receiver)
    }

    /// Whether what runs shall end, too.
    pub fn is_aborting(&self) -> bool {
        self.lock().gate >= Gate::Aborting
    }

    /// Moves the gate forward and tells those in the queue.
    pub fn close(&self, gate: Gate) {
        let mut inbox = self.lock();
        inbox.gate = inbox.gate.max(gate);
        inbox.signal = true;
        let arrivals = std::mem::take(&mut inbox.arrivals);
        arrivals.keys().for_each(|id| inbox.scheduler.cancel(*id));
        let begun = inbox.gate >= Gate::Aborting;
        inbox.texts.fail_all(&Failure::ShuttingDown, begun);
        inbox.images.fail_all(&Failure::ShuttingDown, begun);
        drop(inbox);
        self.wake.notify_one();
        for arrival in arrivals.into_values() {
            drop(arrival.last.send(Err(Failure::ShuttingDown)));
        }
    }

    /// Where the worker rests. `idle`: the last step had nothing to do; `paused`: though there are
    /// sequences, whose readers are slow. Those of pictures may be, too.
    pub fn rest(&self, idle: bool, paused: bool) -> Gate {
        let mut inbox = self.lock();
        while idle && !inbox.signal {
            if !paused && !inbox.images.has_receivers() {
                inbox = self.wake.wait(inbox).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            inbox = self.wake.wait_timeout(inbox, LOOK_AGAIN).unwrap_or_else(PoisonError::into_inner).0;
            break;
        }
        inbox.signal = false;
        inbox.gate
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

    #[test]
    fn who_is_refused_before_anything_is_known_comes_again_soon() {
        assert_eq!(retry_after(None), Duration::from_secs(5));
        assert_eq!(retry_after(Some(0.5)), Duration::from_secs(1));
        assert_eq!(retry_after(Some(31.)), Duration::from_secs(16));
        assert_eq!(retry_after(Some(1e9)), Duration::from_secs(600));
    }
}
