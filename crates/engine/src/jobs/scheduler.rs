//! Decides which result is computed next, as a pure state machine.
//!
//! Results are computed one at a time. The tenant that was served least is next, and of its jobs the one that was served
//! least. A tenant without jobs starts at the lowest served amount among those with jobs.

use std::collections::BTreeMap;
use std::time::Duration;

use super::events::{Events, Sender, StallDetector, channel};
use super::job::Job;
use super::tenant_costs::TenantCosts;
use crate::error::Failure;
use crate::ids::{RequestId, Tenant};

/// Weight of the newest result in the moving average of speed.
const NEWEST_WEIGHT: f64 = 0.3;
/// Results that may wait for the client before the job is paused.
const MAX_UNRECEIVED: usize = 2;

/// A job in the queue, or being computed.
pub struct QueuedJob<J: Job> {
    pub job: J,
    pub sender: Sender<J::Event>,
    served: f64,
}

impl<J: Job> QueuedJob<J> {
    pub fn fail(self, failure: Failure) {
        self.sender.send(Err(failure));
    }
}

/// The queue of jobs.
pub struct JobScheduler<J: Job> {
    jobs: BTreeMap<RequestId, QueuedJob<J>>,
    next: RequestId,
    /// Stall detectors, also for jobs whose results are all computed.
    watches: Vec<StallDetector<J::Event>>,
    /// The tenant whose job was taken for a result, and is not in the queue.
    computing: Option<Tenant>,
    served: TenantCosts,
    /// Moving average of seconds per unit of cost; `None` before the first result.
    seconds_per_work: Option<f64>,
}

impl<J: Job> JobScheduler<J> {
    pub fn new() -> Self {
        let (jobs, watches, served) = (BTreeMap::new(), Vec::new(), TenantCosts::default());
        Self { jobs, next: 0, watches, computing: None, served, seconds_per_work: None }
    }

    /// An empty scheduler. Request IDs continue from this one.
    pub fn new_empty(&self) -> Self {
        Self { next: self.next, ..Self::new() }
    }

    /// All jobs.
    pub fn into_jobs(self) -> impl Iterator<Item = QueuedJob<J>> {
        self.jobs.into_values()
    }

    /// Results that wait to be computed, in total or for a tenant.
    pub fn waiting(&self, of: Option<Tenant>) -> usize {
        let jobs = self.jobs.values().filter(|one| of.is_none_or(|tenant| one.job.tenant() == tenant));
        jobs.map(|one| one.job.remaining()).sum()
    }

    /// Estimated seconds until the queue is empty; `None` before the first result.
    pub fn seconds(&self) -> Option<f64> {
        Some(self.jobs.values().map(|one| one.job.remaining_work()).sum::<f64>() * self.seconds_per_work?)
    }

    pub fn push(&mut self, job: J, now: Duration) -> Events<J::Event> {
        let (sender, events, watch) = channel(now);
        self.watches.push(watch);
        let active = self.jobs.values().map(|one| one.job.tenant()).chain(self.computing);
        self.served.arrive(job.tenant(), active);
        let own = self.jobs.values().filter(|one| one.job.tenant() == job.tenant());
        let served = own.map(|one| one.served).min_by(f64::total_cmp).unwrap_or(0.);
        self.insert(QueuedJob { job, sender, served });
        events
    }

    fn insert(&mut self, job: QueuedJob<J>) {
        self.jobs.insert(self.next, job);
        self.next += 1;
    }

    /// The next job, for one result. Jobs of slow clients wait.
    pub fn next_job(&mut self) -> Option<QueuedJob<J>> {
        let rank = |one: &QueuedJob<J>| (self.served.of(one.job.tenant()), one.served);
        let ready = self.jobs.iter().filter(|(_, one)| one.sender.unreceived() < MAX_UNRECEIVED);
        let next = ready.min_by(|(_, one), (_, other)| {
            let ((a, b), (c, d)) = (rank(one), rank(other));
            a.total_cmp(&c).then(b.total_cmp(&d))
        });
        let id = *next?.0;
        let taken = self.jobs.remove(&id)?;
        self.computing = Some(taken.job.tenant());
        Some(taken)
    }

    /// Returns a job after one result that took `seconds`.
    pub fn requeue(&mut self, mut queued: QueuedJob<J>, seconds: f64) {
        let work = queued.job.work();
        if seconds > 0. && work > 0. {
            let newest = seconds / work;
            self.seconds_per_work = Some(
                self.seconds_per_work
                    .map_or(newest, |seconds_per_work| seconds_per_work + (newest - seconds_per_work) * NEWEST_WEIGHT),
            );
        }
        queued.job.advance();
        queued.served += work;
        self.served.add(queued.job.tenant(), work);
        self.computing = None;
        if queued.job.remaining() > 0 {
            self.insert(queued);
        }
        self.reset_if_empty();
    }

    /// Drops events that were not received in time.
    pub fn drop_stalled(&mut self, now: Duration, timeout: Duration) {
        let watched = self.watches.len();
        self.watches.retain_mut(|watch| watch.check(now, timeout));
        if self.watches.len() < watched {
            self.drop_cancelled();
        }
    }

    /// True while a client may still receive results.
    pub fn has_receivers(&self) -> bool {
        !self.watches.is_empty()
    }

    /// Drops jobs whose clients are gone.
    pub fn drop_cancelled(&mut self) {
        self.jobs.retain(|_, one| !one.sender.is_closed());
        self.reset_if_empty();
    }

    /// Fails waiting jobs; `started`: also those with some results.
    pub fn fail_all(&mut self, failure: &Failure, started: bool) {
        let failed = self.jobs.extract_if(.., |_, one| started || !one.job.has_begun());
        failed.for_each(|(_, one)| one.fail(failure.clone()));
        self.reset_if_empty();
    }

    /// With an empty queue, served amounts have no meaning.
    fn reset_if_empty(&mut self) {
        if self.jobs.is_empty() {
            self.served.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A job with some results of equal cost. Events are numbers of results.
    struct Count {
        tenant: Tenant,
        results: usize,
        next: usize,
    }

    impl Job for Count {
        type Event = usize;

        fn tenant(&self) -> Tenant {
            self.tenant
        }

        fn remaining(&self) -> usize {
            self.results - self.next
        }

        fn work(&self) -> f64 {
            1.
        }

        fn remaining_work(&self) -> f64 {
            self.remaining() as f64
        }

        fn has_begun(&self) -> bool {
            self.next > 0
        }

        fn advance(&mut self) {
            self.next += 1;
        }
    }

    fn push(jobs: &mut JobScheduler<Count>, tenant: Tenant, results: usize) -> Events<usize> {
        jobs.push(Count { tenant, results, next: 0 }, Duration::ZERO)
    }

    /// The order in which results are computed, with their tenants.
    fn run_all(jobs: &mut JobScheduler<Count>) -> Vec<(Tenant, usize)> {
        let mut order = Vec::new();
        while let Some(next) = jobs.next_job() {
            order.push((next.job.tenant, next.job.next));
            jobs.requeue(next, 0.001);
        }
        order
    }

    #[test]
    fn tenants_take_turns() {
        let mut jobs = JobScheduler::new();
        let _receivers = [(1, 3), (2, 2)].map(|(tenant, results)| push(&mut jobs, tenant, results));
        assert_eq!((jobs.waiting(None), jobs.waiting(Some(2)), jobs.seconds()), (5, 2, None));
        assert_eq!(run_all(&mut jobs), [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2)]);
        assert_eq!((jobs.waiting(None), jobs.seconds()), (0, Some(0.)));
    }

    #[test]
    fn cancelled_jobs_are_dropped() {
        let mut jobs = JobScheduler::new();
        drop(push(&mut jobs, 1, 3));
        let _stays = push(&mut jobs, 1, 1);
        jobs.drop_cancelled();
        assert_eq!(jobs.waiting(None), 1);
    }

    #[test]
    fn a_closing_queue_finishes_begun_jobs() {
        let mut jobs = JobScheduler::new();
        let mut started = push(&mut jobs, 1, 2);
        let taken = jobs.next_job().unwrap();
        jobs.requeue(taken, 0.001);
        let mut waits = push(&mut jobs, 2, 1);
        jobs.fail_all(&Failure::ShuttingDown, false);
        assert_eq!(waits.try_next(), Some(Some(Err(Failure::ShuttingDown))));
        assert_eq!((jobs.waiting(None), started.try_next()), (1, None));
        jobs.fail_all(&Failure::ShuttingDown, true);
        assert_eq!(started.try_next(), Some(Some(Err(Failure::ShuttingDown))));
    }

    #[test]
    fn stalled_clients_get_no_more_results() {
        let mut jobs = JobScheduler::new();
        let [mut slow, mut quick] = [(1, 4), (2, 4)].map(|(tenant, results)| push(&mut jobs, tenant, results));
        let mut computed = Vec::new();
        while let Some(next) = jobs.next_job() {
            next.sender.send(Ok(next.job.next));
            computed.push(next.job.tenant);
            jobs.requeue(next, 0.001);
            quick.try_next();
        }
        assert_eq!(computed, [1, 2, 1, 2, 2, 2]);
        let timeout = Duration::from_secs(60);
        jobs.drop_stalled(timeout, timeout);
        assert_eq!(jobs.waiting(Some(1)), 2);
        jobs.drop_stalled(timeout * 2, timeout);
        assert_eq!((jobs.waiting(None), jobs.has_receivers()), (0, false));
        assert_eq!(slow.try_next(), Some(Some(Err(Failure::ClientStalled))));
        assert_eq!(slow.close(), 2, "they were computed");
    }
}
