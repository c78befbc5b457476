//! What every workload shares: the compute thread, the memory budget, the metrics and the way to shut down.
//!
//! A [`Workload`](workload::Workload) brings its own queue. Callers put requests into that queue from any thread and
//! [wake](Runtime::wake) the compute thread, which gives each workload its turn ([`worker`]).

pub mod backlog;
pub mod faults;
pub mod memory;
pub mod metrics;
pub mod panics;
pub mod worker;
pub mod workload;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use super::settings::Settings;
use crate::clock_rng::ClockRng;
use faults::Faults;
use memory::{KvCache, Lease, MemoryBudget, Reclaim};
use metrics::Metrics;

/// How often a compute thread without work looks at slow clients, although nothing woke it.
const POLL: Duration = Duration::from_millis(250);

pub struct Runtime {
    pub settings: Settings,
    pub memory: Arc<MemoryBudget>,
    pub metrics: Metrics,
    pub clock: Arc<dyn ClockRng>,
    pub faults: Faults,
    /// Memory that leases may take over. Set once, by their owners.
    kv_cache: OnceLock<Weak<dyn KvCache>>,
    idle_models: OnceLock<Weak<dyn Reclaim>>,
    state: Mutex<State>,
    wake: Condvar,
}

/// How far shutting down has come. It only goes forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShutdownPhase {
    Running,
    /// No new requests; those that have begun go on.
    Draining,
    /// Requests that have begun end, too.
    Aborting,
    /// The compute thread ends.
    Closed,
}

#[derive(Debug)]
struct State {
    phase: ShutdownPhase,
    /// Something changed since the compute thread looked last.
    signal: bool,
    /// Workloads that have panicked and are not working again yet.
    down: usize,
}

impl Runtime {
    pub fn new(settings: Settings, clock: Arc<dyn ClockRng>) -> Self {
        let memory = MemoryBudget::new(settings.memory_bytes);
        Self {
            settings,
            memory,
            metrics: Metrics::new(),
            clock,
            faults: Faults::default(),
            kv_cache: OnceLock::new(),
            idle_models: OnceLock::new(),
            state: Mutex::new(State { phase: ShutdownPhase::Running, signal: false, down: 0 }),
            wake: Condvar::new(),
        }
    }

    /// Nothing in here can panic while the lock is held.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cached KV blocks give way to leases.
    pub fn set_kv_cache(&self, cache: Weak<dyn KvCache>) {
        let _ = self.kv_cache.set(cache);
    }

    /// Models that nobody uses give way to leases that ask for it.
    pub fn set_idle_models(&self, models: Weak<dyn Reclaim>) {
        let _ = self.idle_models.set(models);
    }

    /// Wakes the compute thread.
    pub fn wake(&self) {
        self.lock().signal = true;
        self.wake.notify_one();
    }

    /// Moves shutting down forward.
    pub fn advance(&self, phase: ShutdownPhase) {
        let mut state = self.lock();
        state.phase = state.phase.max(phase);
        drop(state);
        self.wake();
    }

    pub fn phase(&self) -> ShutdownPhase {
        self.lock().phase
    }

    /// Whether no new requests are taken.
    pub fn is_shutting_down(&self) -> bool {
        self.phase() > ShutdownPhase::Running
    }

    /// Whether requests that have begun must end.
    pub fn is_aborting(&self) -> bool {
        self.phase() >= ShutdownPhase::Aborting
    }

    /// Whether every workload works; `false` from a panic until the workload has recovered from it.
    pub fn is_healthy(&self) -> bool {
        self.lock().down == 0
    }

    fn set_down(&self, down: usize) {
        self.lock().down = down;
    }

    /// Memory for weights, and for the scratch of steps, both in bytes. Cached KV blocks give way to it.
    pub fn lease(&self, weights: u64, scratch: u64) -> Option<Lease> {
        let more = weights.saturating_add(scratch.saturating_sub(self.memory.scratch()));
        let room = self.memory.room().saturating_sub(more);
        let mut lease = None;
        let mut take = |used| lease = self.memory.lease(weights, scratch, used);
        match self.kv_cache.get().and_then(Weak::upgrade) {
            Some(cache) => cache.shrink(room, &mut take),
            None => take(0),
        }
        self.wake();
        lease
    }

    /// The same for bytes that idle models give way to, too.
    pub fn lease_reclaiming(&self, bytes: u64) -> Option<Lease> {
        loop {
            if let Some(lease) = self.lease(bytes, 0) {
                return Some(lease);
            }
            if !self.unload_idle() {
                return None;
            }
        }
    }

    /// Unloads a model that nobody uses. `false`: there is none.
    pub fn unload_idle(&self) -> bool {
        self.idle_models.get().and_then(Weak::upgrade).is_some_and(|models| models.reclaim())
    }

    /// Where the compute thread waits for work. `idle`: it found none in its last round. `poll`: a client that does not
    /// read may have to be looked at even if nothing changes.
    fn wait(&self, idle: bool, poll: bool) -> ShutdownPhase {
        let mut state = self.lock();
        while idle && !state.signal {
            if poll {
                state = self.wake.wait_timeout(state, POLL).unwrap_or_else(PoisonError::into_inner).0;
                break;
            }
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.signal = false;
        state.phase
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runtime").field("state", &self.lock()).finish_non_exhaustive()
    }
}
