//! State shared by the workloads of a device: the compute thread, the memory budget, the metrics and the shutdown phase.
//!
//! Each [`Workload`](workload::Workload) has its own queue. Callers push requests to it from any thread and
//! [wake](Runtime::wake) the compute thread, which runs the workloads in turn ([`supervised_worker`]).

pub mod backlog;
pub mod catch_panic;
pub mod fault_injection;
pub mod memory_budget;
pub mod metrics;
pub mod server_info;
pub mod supervised_worker;
pub mod turn_thread;
pub mod workload;

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use super::error::Failure;
use super::settings::Settings;
use fault_injection::FaultInjector;
use memory_budget::{KvCache, Lease, MemoryBudget, Reclaim};
use metrics::Metrics;
use outpost_common::clock_rng::ClockRng;
use outpost_models::ModelError;

/// Interval at which an idle compute thread checks for stalled clients.
const POLL: Duration = Duration::from_millis(250);

pub struct Runtime {
    pub settings: Settings,
    pub device: DeviceInfo,
    pub memory: Arc<MemoryBudget>,
    /// All devices share them.
    pub metrics: Arc<Metrics>,
    pub clock: Arc<dyn ClockRng>,
    /// When the runtime was created.
    started: Duration,
    pub faults: FaultInjector,
    /// Memory that can be freed for leases. Set once, by its owners.
    kv_cache: OnceLock<Weak<dyn KvCache>>,
    idle_models: OnceLock<Weak<dyn Reclaim>>,
    state: Mutex<State>,
    wake: Condvar,
}

/// Computes something small on the device, to find out whether it works. Returns the reason if it does not.
pub type DeviceCheck = Box<dyn Fn() -> Result<(), String> + Send>;

/// The number of a device among those of the engine.
pub type DeviceIndex = usize;

/// The device whose workloads share a runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    pub index: DeviceIndex,
    /// `cpu`, `cuda:0`.
    pub name: String,
}

impl DeviceInfo {
    /// The name without the number: `cpu`, `cuda`.
    pub fn kind(&self) -> &str {
        self.name.split(':').next().unwrap_or(&self.name)
    }
}

/// The phase of a shutdown. It only moves forward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ShutdownPhase {
    #[default]
    Running,
    /// No new requests; running ones continue.
    Draining,
    /// Running requests fail, too.
    Aborting,
    /// The compute thread exits.
    Closed,
}

#[derive(Debug, Default)]
struct State {
    phase: ShutdownPhase,
    /// Set if the compute thread was woken since its last round.
    signal: bool,
    /// The number of workloads that have panicked and not yet recovered.
    down: usize,
    /// The device has reported an error and was not checked since.
    device_error: bool,
    /// The device no longer works.
    device_lost: bool,
}

impl Runtime {
    /// `settings.memory_bytes` is the memory budget of the device.
    pub fn new(settings: Settings, device: DeviceInfo, metrics: Arc<Metrics>, clock: Arc<dyn ClockRng>) -> Self {
        let memory = MemoryBudget::new(settings.memory_bytes);
        let started = clock.uptime();
        Self {
            settings,
            device,
            memory,
            metrics,
            clock,
            started,
            faults: FaultInjector::default(),
            kv_cache: OnceLock::new(),
            idle_models: OnceLock::new(),
            state: Mutex::new(State::default()),
            wake: Condvar::new(),
        }
    }

    /// The time since the runtime was created.
    pub fn uptime(&self) -> Duration {
        self.clock.uptime().saturating_sub(self.started)
    }

    /// No code panics while it holds this lock, so poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the KV cache whose cached blocks are evicted for leases.
    pub fn set_kv_cache(&self, cache: Weak<dyn KvCache>) {
        let _ = self.kv_cache.set(cache);
    }

    /// Sets the owner of idle models, which [`Self::lease_reclaiming`] unloads.
    pub fn set_idle_models(&self, models: Weak<dyn Reclaim>) {
        let _ = self.idle_models.set(models);
    }

    /// Wakes the compute thread.
    pub fn wake(&self) {
        self.lock().signal = true;
        self.wake.notify_one();
    }

    /// Advances the shutdown to this phase. Never goes back.
    pub fn advance(&self, phase: ShutdownPhase) {
        let mut state = self.lock();
        state.phase = state.phase.max(phase);
        drop(state);
        self.wake();
    }

    pub fn phase(&self) -> ShutdownPhase {
        self.lock().phase
    }

    /// True once new requests are refused.
    pub fn is_shutting_down(&self) -> bool {
        self.phase() > ShutdownPhase::Running
    }

    /// True once running requests must fail.
    pub fn is_aborting(&self) -> bool {
        self.phase() >= ShutdownPhase::Aborting
    }

    /// True while every workload runs. A workload that has panicked counts as down until it has recovered; `/readyz` is
    /// 503 meanwhile.
    pub fn is_healthy(&self) -> bool {
        self.lock().down == 0
    }

    /// Whether the device no longer works.
    pub fn is_device_lost(&self) -> bool {
        self.lock().device_lost
    }

    /// The failure of requests whose model cannot be computed. After an error of the device, the compute thread checks
    /// whether it still works.
    pub fn model_failure(&self, id: &str, error: &ModelError) -> Failure {
        self.lock().device_error |= matches!(error, ModelError::Device(_));
        Failure::of_model(id, error)
    }

    /// Checks the device if it has reported an error.
    fn check_device(&self, check: &DeviceCheck) {
        if !std::mem::take(&mut self.lock().device_error) {
            return;
        }
        let checked = check();
        if let Err(reason) = &checked {
            tracing::error!(device = self.device.name, reason, "the device no longer works; restart the server");
        }
        self.lock().device_lost = checked.is_err();
    }

    fn set_down(&self, down: usize) {
        self.lock().down = down;
    }

    /// Leases memory for weights and for scratch buffers, both in bytes. Evicts cached KV blocks if needed.
    pub fn lease(&self, weights: u64, scratch: u64) -> Option<Lease> {
        let more = weights.saturating_add(scratch.saturating_sub(self.memory.scratch()));
        let max_bytes = self.memory.available().saturating_sub(more);
        let mut lease = None;
        let mut take = |used| lease = self.memory.lease(weights, scratch, used);
        match self.kv_cache.get().and_then(Weak::upgrade) {
            Some(cache) => cache.shrink(max_bytes, &mut take),
            None => take(0),
        }
        self.wake();
        lease
    }

    /// Leases memory, unloading idle models if needed.
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

    /// Unloads an idle model of the device. `false`: there is none.
    pub fn unload_idle(&self) -> bool {
        self.idle_models.get().and_then(Weak::upgrade).is_some_and(|models| models.reclaim(self.device.index))
    }

    /// Waits for work if the last round was `idle`. With `poll`, waits only for a short time, to check for stalled
    /// clients.
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
