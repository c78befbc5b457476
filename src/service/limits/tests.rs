//! Limiters of several nodes over shared levels in memory.

mod arithmetic;
mod nodes;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::limiter_state::StoredLimits;
use super::monthly_tokens::MonthlyTokens;
use super::project_limiter::ProjectLimiter;
use super::rate_limit_status::RateLimitStatus;
use super::shared_levels::{self, Answered, Demand, LeaseSource};
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::{Code, Error, Result};
use crate::ids::ProjectId;
use crate::storage::limits::{LevelsRecord, Rates};

/// A clock that a test moves.
#[derive(Default)]
struct Clock(AtomicU64);

impl Clock {
    fn pass(&self, millis: u64) {
        self.0.fetch_add(millis, SeqCst);
    }
}

impl ClockRng for Clock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(1_700_000_000_000 + i64::try_from(self.0.load(SeqCst)).unwrap())
    }

    fn uptime(&self) -> Duration {
        Duration::from_millis(self.0.load(SeqCst))
    }

    fn fill(&self, _: &mut [u8]) {}
}

/// The levels of one project, as a database would have them.
#[derive(Default)]
struct Database {
    clock: Arc<Clock>,
    levels: Mutex<Option<LevelsRecord>>,
    exchanges: AtomicUsize,
    /// Answers only when the test says so.
    is_slow: Mutex<bool>,
    waiting: Mutex<Vec<(Demand, Answered)>>,
    is_lost: Mutex<bool>,
}

impl Database {
    fn answer(&self, demand: &Demand, answered: Answered) {
        if *self.is_lost.lock().unwrap() {
            return answered(Err(Error::new(Code::StorageUnavailable, "The database is lost.")));
        }
        let mut levels = self.levels.lock().unwrap();
        let (new, grant) = shared_levels::exchange(demand, self.clock.now(), *levels);
        *levels = Some(new);
        drop(levels);
        answered(Ok(grant));
    }

    fn answer_all(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap());
        waiting.into_iter().for_each(|(demand, answered)| self.answer(&demand, answered));
    }
}

impl LeaseSource for Database {
    fn demand(&self, _: ProjectId, demand: Demand, answered: Answered) {
        self.exchanges.fetch_add(1, SeqCst);
        match *self.is_slow.lock().unwrap() {
            true => self.waiting.lock().unwrap().push((demand, answered)),
            false => self.answer(&demand, answered),
        }
    }
}

/// Several nodes and their database.
struct Nodes {
    clock: Arc<Clock>,
    database: Arc<Database>,
    limiters: Vec<Arc<ProjectLimiter>>,
}

impl Nodes {
    fn new(count: usize, rates: Rates) -> Self {
        let database = Arc::new(Database::default());
        let clock = database.clock.clone();
        let source: Arc<dyn LeaseSource> = database.clone();
        let project = ProjectId::from_bytes([1; 16]);
        let new = |_| Arc::new(ProjectLimiter::new(project, clock.clone(), Some(source.clone())));
        let limiters = (0..count).map(new).collect();
        let nodes = Self { clock, database, limiters };
        (0..count).for_each(|node| nodes.load(node, rates));
        nodes
    }

    /// Loads limits as after a change.
    fn load(&self, node: usize, rates: Rates) {
        let limiter = &self.limiters[node];
        limiter.invalidate();
        let month = MonthlyTokens::new(self.clock.now(), 0);
        let stored = StoredLimits { rates, levels: *self.database.levels.lock().unwrap(), month };
        limiter.load(limiter.stale_generation().unwrap(), stored);
    }

    fn exchanges(&self) -> usize {
        self.database.exchanges.load(SeqCst)
    }

    async fn admit(&self, node: usize) -> Result<(RateLimitStatus, Result<()>)> {
        self.limiters[node].take_request().await
    }

    async fn is_admitted(&self, node: usize) -> bool {
        self.admit(node).await.unwrap().1.is_ok()
    }

    async fn take_tokens(&self, node: usize, tokens: u64) -> Result<()> {
        self.limiters[node].take_tokens(tokens, true).await
    }

    /// Lets requests in until one is refused.
    async fn admit_all(&self, node: usize) -> u64 {
        let mut admitted = 0;
        while self.is_admitted(node).await {
            admitted += 1;
        }
        admitted
    }

    /// What the server does twice a second.
    fn exchange_leases(&self) {
        self.limiters.iter().for_each(ProjectLimiter::exchange_if_due);
    }
}

fn requests(rate: u64, burst: u64) -> Rates {
    Rates { requests_per_minute: Some(rate), burst_limit: Some(burst), ..Rates::default() }
}

fn tokens(rate: u64) -> Rates {
    Rates { tokens_per_minute: Some(rate), ..Rates::default() }
}
