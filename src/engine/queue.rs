//! Requests that wait, and everything that callers and the worker both touch.
//!
//! The lock is held for moments only, never during a step: `submit` answers at once. Capacity is
//! bounded in requests and in prompt tokens; beyond it a request is refused, not kept.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;

use super::Settings;
use super::budget::Budget;
use super::request::{Failure, Generation, Refused, Sent};
use super::text::TextModel;

/// Tokens a second that are assumed before any were measured.
const UNMEASURED: f64 = 50.;
/// How often a worker with paused sequences looks again though nobody woke it.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

pub(super) struct Shared {
    pub settings: Settings,
    pub budget: Arc<Budget>,
    inbox: Mutex<Inbox>,
    wake: Condvar,
}

/// How far shutting down has come; it only goes forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Gate {
    Open,
    /// Nothing new; what runs goes on.
    Draining,
    /// What runs ends too.
    Aborting,
    /// The worker ends.
    Closed,
}

pub(super) struct Inbox {
    pub queue: VecDeque<Waiting>,
    /// Choices that run.
    pub places: usize,
    /// Tokens that running requests may still take.
    pub remaining: u64,
    /// Tokens a second, lately.
    pub speed: f64,
    gate: Gate,
    signal: bool,
}

/// A request in the queue.
pub(super) struct Waiting {
    pub model: Arc<TextModel>,
    pub request: Generation,
    pub sender: mpsc::Sender<Sent>,
    /// A place in the channel kept for bad news: a reader that is slow learns it too.
    pub last: mpsc::OwnedPermit<Sent>,
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
    /// Memory reserved for their caches.
    pub kv_bytes: u64,
}

impl Waiting {
    /// Tokens that the request may take at most.
    fn work(&self) -> u64 {
        work(&self.request)
    }
}

fn work(request: &Generation) -> u64 {
    request.prompt.len() as u64 + u64::from(request.choices) * u64::from(request.max_tokens)
}

impl Inbox {
    fn tokens(&self) -> usize {
        self.queue.iter().map(|waiting| waiting.request.prompt.len()).sum()
    }

    /// Whether a request of this prompt must be refused. Places that are free count as room, so
    /// that the answer does not depend on how soon the worker empties the queue.
    fn is_full(&self, settings: &Settings, prompt: usize) -> bool {
        let free = settings.max_running.saturating_sub(self.places);
        let requests = self.queue.len() >= settings.max_queued_requests.saturating_add(free);
        requests || (!self.queue.is_empty() && self.tokens().saturating_add(prompt) > settings.max_queued_tokens)
    }

    /// Forgets requests whose callers left.
    pub fn sweep(&mut self) {
        self.queue.retain(|waiting| !waiting.sender.is_closed());
    }

    /// The request to start next: of the tenant with the fewest running answers, the oldest.
    pub fn pick(&self, running: &HashMap<u128, usize>) -> Option<usize> {
        let busy = |waiting: &Waiting| running.get(&waiting.request.tenant).copied().unwrap_or(0);
        self.queue.iter().enumerate().min_by_key(|(index, waiting)| (busy(waiting), *index)).map(|(index, _)| index)
    }

    /// When a place will be free: what waits and runs, at the speed of late.
    fn retry_after(&self) -> Duration {
        let work = self.queue.iter().map(Waiting::work).fold(self.remaining, u64::saturating_add);
        Duration::from_secs_f64((work as f64 / self.speed.max(0.1)).clamp(1., 600.).ceil())
    }
}

impl Shared {
    pub fn new(settings: Settings, budget: Arc<Budget>) -> Self {
        let inbox = Inbox {
            queue: VecDeque::new(),
            places: 0,
            remaining: 0,
            speed: UNMEASURED,
            gate: Gate::Open,
            signal: false,
        };
        Self { settings, budget, inbox: Mutex::new(inbox), wake: Condvar::new() }
    }

    pub fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn wake(&self) {
        self.lock().signal = true;
        self.wake.notify_one();
    }

    pub fn load(&self) -> Load {
        let inbox = self.lock();
        let (queued, queued_tokens, running) = (inbox.queue.len(), inbox.tokens(), inbox.places);
        drop(inbox);
        Load { queued, queued_tokens, running, kv_bytes: self.budget.kv() }
    }

    /// Takes the request or refuses it, at once.
    pub fn push(
        &self,
        model: &Arc<TextModel>,
        request: Generation,
        capacity: usize,
    ) -> Result<mpsc::Receiver<Sent>, Refused> {
        let mut inbox = self.lock();
        if inbox.gate > Gate::Open {
            return Err(Refused::ShuttingDown);
        }
        let prompt = request.prompt.len();
        if inbox.is_full(&self.settings, prompt) {
            inbox.sweep();
        }
        if inbox.is_full(&self.settings, prompt) {
            return Err(Refused::QueueFull { retry_after: inbox.retry_after() });
        }
        let (sender, receiver) = mpsc::channel(capacity + 1);
        let Ok(last) = sender.clone().try_reserve_owned() else { return Err(Refused::ShuttingDown) };
        inbox.queue.push_back(Waiting { model: Arc::clone(model), request, sender, last });
        inbox.signal = true;
        drop(inbox);
        self.wake.notify_one();
        Ok(receiver)
    }

    /// Moves the gate forward and tells those in the queue.
    pub fn close(&self, gate: Gate) {
        let mut inbox = self.lock();
        inbox.gate = inbox.gate.max(gate);
        inbox.signal = true;
        let queue = std::mem::take(&mut inbox.queue);
        drop(inbox);
        self.wake.notify_one();
        for waiting in queue {
            drop(waiting.last.send(Err(Failure::ShuttingDown)));
        }
    }

    /// Where the worker rests. `idle`: the last step had nothing to do; `paused`: though there are
    /// sequences, whose readers are slow.
    pub fn rest(&self, idle: bool, paused: bool) -> Gate {
        let mut inbox = self.lock();
        while idle && !inbox.signal {
            if !paused {
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
