//! The levels of buckets that several nodes share, and the exchange in which a node takes leases of them.
//!
//! The levels are in the store. *Leases* are amounts that are deducted from a bucket when they are granted and that only one
//! node gives away. What is granted was in the bucket, so all nodes together admit at most what was in it and what it has
//! refilled since. A node returns what it does not use, and repays a debt, the tokens of requests that cost more than was
//! known in advance. If a node is killed, its lease is lost.
//!
//! All amounts are in the [parts of a token](super::token_bucket).
//!
//! One exchange with the database per request would limit every project to what a row's lock allows. Fixed shares per
//! node would admit a third of the rate if all clients use one of three nodes. Exchanges do not run in the writer's
//! serializable transactions, because every group of writes would conflict with the other nodes. The database's clock
//! refills the buckets, so the clocks of the nodes do not matter.

use std::sync::Arc;
use std::time::Duration;

use super::buckets::Buckets;
use super::token_bucket::BucketSize;
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::Result;
use crate::ids::ProjectId;
use crate::storage::limits::LevelsRecord;
use crate::storage::{Exchanges, Store};

/// The demand of a node on one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketDemand {
    pub size: BucketSize,
    /// The amount that the node has and keeps; not negative.
    pub held: i128,
    /// The amount that it returns.
    pub returned: i128,
    /// The amount that its requests have used beyond its lease.
    pub debt: i128,
    /// Time since the debt arose.
    pub debt_age: Duration,
    /// The cost of the cheapest request that waits; 0 if none does.
    pub need: i128,
    /// How much the node would like to have.
    pub want: i128,
}

/// The answer to a node's demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketGrant {
    /// Added to what the node has.
    pub granted: i128,
    /// Repaid by this exchange.
    pub debt: i128,
    /// The level of the bucket afterwards.
    pub level: i128,
}

/// The demands of a node on the buckets of a project.
pub type Demand = Buckets<Option<BucketDemand>>;

/// The grants for these demands.
pub type Grant = Buckets<Option<BucketGrant>>;

/// Exchanges at `now`. `old`: the stored levels; full buckets if there are none.
pub fn exchange(demand: &Demand, now: Timestamp, old: Option<LevelsRecord>) -> (LevelsRecord, Grant) {
    let at = old.map_or(now, |old| old.at);
    let old = Buckets::levels(old);
    let since = at.until(now);
    // The level of a bucket that this node does not know of stays.
    let both = demand.zip(old).map(|(demand, level)| match demand {
        Some(demand) => {
            let grant = demand.exchange(level, since);
            (Some(grant.level), Some(grant))
        }
        None => (level, None),
    });
    (both.map(|(level, _)| level).record(at.max(now)), both.map(|(_, grant)| grant))
}

impl BucketDemand {
    /// `level`: as it was `since` ago.
    fn exchange(&self, level: Option<i128>, since: Duration) -> BucketGrant {
        let capacity = self.size.capacity_parts();
        let refill = |level: i128, time| level.saturating_add(self.size.inflow(time)).min(capacity);
        // The debt is deducted from what there was when it arose, as if this node had the bucket for itself.
        let age = self.debt_age.min(since);
        let level = level.map_or(capacity, |level| refill(level, since.saturating_sub(age)));
        let level = refill(level.saturating_sub(self.debt), age);
        let level = level.saturating_add(self.returned).min(capacity);
        let is_enough = level.saturating_add(self.held) >= self.need.min(capacity);
        let lacking = self.need.saturating_sub(self.held).max(0);
        let wanted = self.want.saturating_sub(self.held);
        let granted = if is_enough { lacking.max(level.min(wanted)) } else { 0 };
        BucketGrant { granted, debt: self.debt, level: level.saturating_sub(granted) }
    }
}

/// The levels after the rates of a project have changed at `now`: refilled at the old rates until then. The change adds
/// nothing. A bucket that did not exist begins full.
pub fn with_new_rates(
    old: Option<LevelsRecord>,
    sizes: (Buckets<Option<BucketSize>>, Buckets<Option<BucketSize>>),
    now: Timestamp,
) -> LevelsRecord {
    let at = old.map_or(now, |old| old.at);
    let since = at.until(now);
    let changed = Buckets::levels(old).zip(sizes.0).zip(sizes.1).map(|((level, old), new)| {
        let (old, new) = old.zip(new)?;
        let level = level.map_or(old.capacity_parts(), |level| level.saturating_add(old.inflow(since)));
        Some(level.min(old.capacity_parts()).min(new.capacity_parts()))
    });
    changed.record(at.max(now))
}

/// Called with the answer to a demand, once and on any thread.
pub type Answered = Box<dyn FnOnce(Result<Grant>) + Send>;

/// Answers demands for leases.
pub trait LeaseSource: Send + Sync {
    /// Queues a demand. After an error it may have been carried out nevertheless.
    fn demand(&self, project: ProjectId, demand: Demand, answered: Answered);
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
            exchange(&demand, now, old)
        };
        self.exchanges.send(project.to_bytes().to_vec(), change, answered);
    }
}
