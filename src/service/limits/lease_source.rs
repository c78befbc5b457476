//! Where limiters get leases: the exchanges of a shared store.

use std::sync::Arc;

use tokio::sync::watch;

use super::exchange::{self, Demand, Grant};
use crate::clock_rng::ClockRng;
use crate::error::{Code, Error, Result};
use crate::ids::ProjectId;
use crate::storage::limits::LevelsRecord;
use crate::storage::{Exchanges, Store};

/// Called with the answer to a demand, once and on any thread.
pub type Answered = Box<dyn FnOnce(Result<Grant>) + Send>;

/// Answers demands for leases.
pub trait LeaseSource: Send + Sync {
    /// Queues a demand. After an error it may have been carried out nevertheless.
    fn demand(&self, project: ProjectId, demand: Demand, answered: Answered);
}

/// What the limiter of a shared store has in addition.
pub struct Leasing {
    pub source: Arc<dyn LeaseSource>,
    pub answers: watch::Sender<LastAnswer>,
    /// Held by the request that reads the month's usage.
    pub month_reading: tokio::sync::Mutex<()>,
}

/// The last answer of the shared store.
#[derive(Clone, Debug, Default)]
pub struct LastAnswer {
    /// Counts the answers. One that wakes all waiting requests counts twice.
    pub count: u64,
    /// Why the last one failed.
    pub failed: Option<(Code, String)>,
}

/// An attempt to take something.
pub enum Attempt<T> {
    Done(T),
    /// It needs a lease. It can be repeated after more than so many answers.
    NeedsLease(u64),
}

impl Leasing {
    pub fn new(source: Arc<dyn LeaseSource>) -> Self {
        Self { source, answers: watch::Sender::default(), month_reading: tokio::sync::Mutex::default() }
    }
}

impl<T> Attempt<T> {
    /// The outcome, where no lease is ever needed.
    pub fn into_done(self) -> Result<T> {
        match self {
            Self::Done(outcome) => Ok(outcome),
            Self::NeedsLease(_) => Err(Error::internal("a limiter without a shared store needs a lease")),
        }
    }
}

/// The levels in a shared store.
pub struct SharedLevels {
    exchanges: Exchanges,
    clock_rng: Arc<dyn ClockRng>,
}

impl SharedLevels {
    /// `None` if this process has the store for itself.
    pub fn of(store: &Store, clock_rng: &Arc<dyn ClockRng>) -> Option<Arc<dyn LeaseSource>> {
        let exchanges = store.exchanges()?;
        Some(Arc::new(Self { exchanges, clock_rng: clock_rng.clone() }))
    }
}

impl LeaseSource for SharedLevels {
    fn demand(&self, project: ProjectId, demand: Demand, answered: Answered) {
        // A test may set the clock.
        let set_clock = (!self.clock_rng.follows_database()).then(|| self.clock_rng.clone());
        let change = move |now, old: Option<LevelsRecord>| {
            let now = set_clock.as_ref().map_or(now, |clock_rng| clock_rng.now());
            exchange::exchange(&demand, now, old)
        };
        self.exchanges.send(project.to_bytes().to_vec(), change, answered);
    }
}
