//! Takes from the leases of a limiter, and gets leases from the shared store.

use std::sync::Arc;
use std::time::Duration;

use super::lease_source::{Attempt, Leasing};
use super::leased_bucket::LeasedBucket;
use super::project_limiter::ProjectLimiter;
use crate::clock_rng::ClockRng;
use crate::error::{Code, Error, Result};

/// Exchanges that a request waits for. Others may take what it has waited for, but each exchange admits some of them.
const MAX_ROUNDS: usize = 1000;

/// Runs `attempt`, and again after each exchange while it needs a lease. Without a shared store it never waits.
///
/// # Errors
/// If the database does not answer.
pub async fn with_lease<T>(
    limiter: &Arc<ProjectLimiter>,
    clock_rng: &Arc<dyn ClockRng>,
    attempt: impl Fn(&ProjectLimiter) -> Attempt<T>,
) -> Result<T> {
    for _ in 0..MAX_ROUNDS {
        let attempted = attempt(limiter);
        let Some(leasing) = &limiter.leasing else { return attempted.into_done() };
        let now = clock_rng.uptime();
        ask(limiter, clock_rng, |lease| lease.wants_more() || lease.owes(now));
        match attempted {
            Attempt::Done(outcome) => return Ok(outcome),
            Attempt::NeedsLease(answers) => wait_for_answer(leasing, answers).await?,
        }
    }
    let text = "Too many requests wait for the project's rate limit. Try again shortly, with backoff.";
    Err(Error::new(Code::Overloaded, text))
}

/// Exchanges the leases with the store if `is_wanted` for one of them and no exchange is on its way. Does not wait.
pub fn ask(limiter: &Arc<ProjectLimiter>, clock_rng: &Arc<dyn ClockRng>, is_wanted: impl Fn(&LeasedBucket) -> bool) {
    let Some(leasing) = &limiter.leasing else { return };
    let Some(demand) = limiter.demand(clock_rng.uptime(), is_wanted) else { return };
    let (asking, clock_rng) = (limiter.clone(), clock_rng.clone());
    let answered = Box::new(move |answer| {
        asking.answer(&demand, answer, clock_rng.uptime());
        // For requests that have come meanwhile.
        ask(&asking, &clock_rng, LeasedBucket::wants_more);
    });
    leasing.source.demand(limiter.project, demand, answered);
}

/// Exchanges debts and leases that were not used for a while.
pub fn ask_if_due(limiter: &Arc<ProjectLimiter>, clock_rng: &Arc<dyn ClockRng>, now: Duration) {
    ask(limiter, clock_rng, |lease| lease.is_due(now));
}

/// Returns all leases to the store, and repays debts.
pub async fn return_all(limiter: &Arc<ProjectLimiter>, clock_rng: &Arc<dyn ClockRng>) -> Result<()> {
    let Some(leasing) = &limiter.leasing else { return Ok(()) };
    // The first exchange may have been on its way already.
    for _ in 0..2 {
        let seen = leasing.answers.borrow().count;
        limiter.give_up_leases();
        ask_if_due(limiter, clock_rng, clock_rng.uptime());
        if limiter.is_asking() {
            wait_for_answer(leasing, seen).await?;
        }
    }
    Ok(())
}

/// Waits until more than `count` answers have arrived.
async fn wait_for_answer(leasing: &Leasing, count: u64) -> Result<()> {
    let mut answers = leasing.answers.subscribe();
    let answer = answers.wait_for(|answer| answer.count > count).await.map_err(Error::internal)?.clone();
    match answer.failed {
        Some((code, message)) => Err(Error::new(code, message)),
        None => Ok(()),
    }
}
