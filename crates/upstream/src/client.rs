//! Sends requests to the targets of upstream models.
//!
//! Connections belong to two threads of their own and not to an actix worker, so that a busy worker does not delay
//! others, and the parsing of events does not take its time. There is no HTTP/2: the servers that run models speak
//! HTTP/1.1.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};

use super::attempt::{Accept, Answer, NoAnswer, ReadWhole, attempt};
use super::config::UpstreamModel;
use super::event_stream::EventStream;
use super::failure::Failure;
use super::metrics::Metrics;
use super::payload::UpstreamCall;
use super::pool::{NoTarget, Pool};
use super::response::{Response, Shared, ShutdownPhase};
use outpost_common::clock_rng::ClockRng;

/// Attempts that a request makes at most.
const MAX_ATTEMPTS: usize = 3;
/// Threads that send requests and read responses.
const THREADS: usize = 2;
/// When a client is to try again at the earliest after the targets have failed.
const MIN_WAIT: Duration = Duration::from_secs(1);

/// The client of all upstream models. Clones share it. Its connections belong to threads of its own, which start with the
/// first request.
#[derive(Clone)]
pub struct UpstreamClient {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    /// By the model's ID.
    pools: Mutex<HashMap<String, Arc<Pool>>>,
    runtime: OnceLock<Option<Runtime>>,
}

/// Work on the client's threads. Dropping it stops the work.
pub struct Task<T> {
    running: JoinHandle<T>,
    abort: AbortHandle,
}

impl UpstreamClient {
    pub fn new(clock_rng: Arc<dyn ClockRng>) -> Self {
        let (phase, _) = watch::channel(ShutdownPhase::Running);
        let shared = Arc::new(Shared { clock_rng, metrics: Metrics::new(), phase });
        Self { inner: Arc::new(Inner { shared, pools: Mutex::default(), runtime: OnceLock::new() }) }
    }

    /// Runs `work` on the client's threads. Requests must be sent and responses be read there.
    pub fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<Task<T>, Failure> {
        let runtime = self.inner.runtime.get_or_init(start_runtime).as_ref();
        let running = runtime.ok_or(Failure::Unavailable { wait: MIN_WAIT })?.spawn(work);
        Ok(Task { abort: running.abort_handle(), running })
    }

    /// Sends a request and returns what `read` makes of the whole response, and the response, which has been read. If
    /// `read` makes nothing of it, another target is tried.
    pub async fn whole<T: Send>(
        &self,
        call: &UpstreamCall,
        mut read: impl FnMut(&[u8]) -> Option<T> + Send,
    ) -> Result<(T, Response), Failure> {
        let mut told = None;
        let mut read_into = |body: &[u8]| {
            told = read(body);
            told.is_some()
        };
        match (self.send(call, Accept::Whole, &mut read_into).await?, told) {
            (Answer::Whole(response), Some(told)) => Ok((told, *response)),
            _ => Err(Failure::Broken),
        }
    }

    /// Sends a request and waits for the first event of the response.
    pub async fn events(&self, call: &UpstreamCall) -> Result<EventStream, Failure> {
        match self.send(call, Accept::Events, &mut |_| false).await? {
            Answer::Events(events) => Ok(*events),
            Answer::Whole(_) | Answer::Bytes(_) => Err(Failure::Broken),
        }
    }

    /// Sends a request and waits for the head of the response. Text instead of a file is a failure of the target.
    pub async fn bytes(&self, call: &UpstreamCall) -> Result<Response, Failure> {
        match self.send(call, Accept::Bytes, &mut |_| false).await? {
            Answer::Bytes(response) => Ok(*response),
            Answer::Whole(_) | Answer::Events(_) => Err(Failure::Broken),
        }
    }

    async fn send(&self, call: &UpstreamCall, accept: Accept, read: &mut ReadWhole<'_>) -> Result<Answer, Failure> {
        let shared = &self.inner.shared;
        let pool = self.pool(&call.model);
        let (mut tried, mut was_closed_before) = (Vec::new(), false);
        let mut last = None;
        for _ in 0..MAX_ATTEMPTS {
            if *shared.phase.borrow() != ShutdownPhase::Running {
                return Err(Failure::ShuttingDown);
            }
            let permit = match pool.choose(shared.clock_rng.uptime(), &tried) {
                Ok(permit) => permit,
                Err(none) => {
                    last.get_or_insert(if none.is_busy {
                        NoAnswer::Busy
                    } else {
                        NoAnswer::Failed { was_closed: false }
                    });
                    break;
                }
            };
            let index = permit.index();
            match attempt(call, accept, read, !was_closed_before, permit, shared).await {
                Ok(answer) => return Ok(answer),
                Err(NoAnswer::Refused(refusal)) => return Err(Failure::Refused(refusal)),
                Err(NoAnswer::ShuttingDown) => return Err(Failure::ShuttingDown),
                Err(NoAnswer::Failed { was_closed: true }) if !was_closed_before => was_closed_before = true,
                Err(other) => {
                    tried.push(index);
                    last = Some(other);
                }
            }
        }
        let NoTarget { wait, .. } = pool.refusal(shared.clock_rng.uptime());
        let wait = wait.max(MIN_WAIT);
        Err(match last {
            Some(NoAnswer::Busy) => Failure::Busy { wait },
            Some(NoAnswer::TooLarge) => Failure::TooLarge,
            _ => Failure::Unavailable { wait },
        })
    }

    /// The targets of a model. Their states begin anew when the model's file has changed.
    fn pool(&self, model: &Arc<UpstreamModel>) -> Arc<Pool> {
        let mut pools = self.pools();
        if let Some(pool) = pools.get(&model.id).filter(|pool| Arc::ptr_eq(&pool.model, model)) {
            return Arc::clone(pool);
        }
        let pool = Arc::new(Pool::new(Arc::clone(model)));
        pools.insert(model.id.clone(), Arc::clone(&pool));
        pool
    }

    fn pools(&self) -> MutexGuard<'_, HashMap<String, Arc<Pool>>> {
        self.inner.pools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses new requests, or also fails those that run.
    pub fn advance(&self, to: ShutdownPhase) {
        self.inner.shared.phase.send_if_modified(|phase| {
            let is_later = to > *phase;
            *phase = to.max(*phase);
            is_later
        });
    }

    /// Metrics as OpenMetrics text.
    pub fn metrics(&self) -> String {
        let pools: Vec<Arc<Pool>> = self.pools().values().cloned().collect();
        self.inner.shared.metrics.encode(&pools)
    }
}

/// `None` if the operating system cannot start the threads.
fn start_runtime() -> Option<Runtime> {
    let built = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .thread_name("upstream")
        .enable_all()
        .build();
    built.inspect_err(|error| tracing::error!(%error, "the threads for upstream models cannot start")).ok()
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take().flatten() {
            // Dropping it would wait, which is not allowed on an async thread.
            runtime.shutdown_background();
        }
    }
}

impl<T> Task<T> {
    /// Waits for the result.
    pub async fn join(mut self) -> Result<T, Failure> {
        (&mut self.running).await.map_err(|_| Failure::ShuttingDown)
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.abort.abort();
    }
}
