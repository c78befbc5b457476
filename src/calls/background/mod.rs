//! Background work: pieces of work in the store that processes claim, do and give up.
//!
//! A loop looks at the store when something changes, begins what its schedule admits and waits for what has ended. If nodes
//! share the store, each claims a piece before it does it, so that no two of them do the same.

pub mod stop_signal;

use std::fmt::Display;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::watch;

use self::stop_signal::StopSignal;
use crate::error::{Code, Error, Result};
use crate::service::is_taken_over;
use crate::service::usage::UsageRecorder;

/// One kind of background work.
pub(super) trait Work {
    /// A piece of work that has not ended.
    type Open;
    /// A piece of work that begins now.
    type Next;
    /// The outcome of an attempt.
    type Outcome;
    /// Which pieces run and which wait.
    type Schedule: Default;

    /// Changes when there may be other work.
    fn changes(&self) -> watch::Receiver<()>;

    /// All work that has not ended and that no other process does, the oldest first.
    async fn open(&self) -> Result<Vec<Self::Open>>;

    /// Chooses what begins now. Also returns the time until the next look if nothing changes.
    fn begin(&self, schedule: &mut Self::Schedule, open: Vec<Self::Open>) -> (Vec<Self::Next>, Duration);

    /// Does a piece of work, as far as it can be done now.
    async fn attempt(&self, next: Self::Next) -> Self::Outcome;

    /// Called after an attempt.
    fn end(&self, schedule: &mut Self::Schedule, outcome: Self::Outcome);

    /// The time until the next look if the store cannot be read. `error`: why.
    fn unreadable(&self, error: &Error) -> Duration;
}

/// Does all work of a kind until it is stopped. Then it waits for what runs.
pub(super) async fn run<W: Work>(work: &W, stop: &StopSignal) {
    let (mut schedule, mut attempts) = (W::Schedule::default(), FuturesUnordered::new());
    let mut changes = work.changes();
    while !stop.is_set() {
        changes.mark_unchanged();
        let wait = match work.open().await {
            Ok(open) => {
                let (next, wait) = work.begin(&mut schedule, open);
                attempts.extend(next.into_iter().map(|next| work.attempt(next)));
                wait
            }
            Err(error) => work.unreadable(&error),
        };
        tokio::select! {
            Some(outcome) = attempts.next() => work.end(&mut schedule, outcome),
            _ = changes.changed() => {}
            () = stop.wait() => {}
            () = tokio::time::sleep(wait) => {}
        }
    }
    while attempts.next().await.is_some() {}
}

/// What became of work that this process tried to claim.
pub(super) enum Claimed<T> {
    Done(T),
    /// Another process had claimed it.
    Elsewhere,
    /// Another process has taken it over meanwhile.
    TakenOver,
}

/// Claims the work `id`, does it and gives it up.
pub(super) async fn with_claim<T>(
    id: impl Display,
    claim: impl Future<Output = Result<bool>>,
    work: impl Future<Output = Result<T>>,
    release: impl Future<Output = ()>,
) -> Result<Claimed<T>> {
    if !claim.await? {
        return Ok(Claimed::Elsewhere);
    }
    match work.await {
        Err(error) if is_taken_over(&error) => {
            tracing::info!(%id, "another server has taken background work over");
            Ok(Claimed::TakenOver)
        }
        done => {
            release.await;
            done.map(Claimed::Done)
        }
    }
}

/// What became of a metered attempt.
pub(super) enum Settled<T> {
    /// It has ended, and its usage is to be recorded.
    Ended(Result<T>),
    /// The server stops.
    Stopped,
    /// It is to be tried again. `is_model_unavailable`: because its model cannot be used now.
    Retry { is_model_unavailable: bool },
}

/// Decides whether an attempt has ended. The usage of one that begins again is discarded. `is_temporary`: of errors.
pub(super) fn settle<T>(
    result: Result<T>,
    recorder: &UsageRecorder,
    is_temporary: impl FnOnce(&Error) -> bool,
) -> Settled<T> {
    match result {
        Err(error) if error.code() == Code::ShuttingDown => {
            recorder.discard();
            Settled::Stopped
        }
        Err(error) if is_temporary(&error) => {
            recorder.discard();
            Settled::Retry { is_model_unavailable: error.code() == Code::ModelUnavailable }
        }
        result => Settled::Ended(result),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::stop_signal::{LoopStopper, stop_signal};
    use super::*;

    /// Numbers that are done two at a time. The loop is stopped by the last one.
    struct Numbers {
        open: RefCell<Vec<u32>>,
        changes: watch::Sender<()>,
        stopper: LoopStopper,
    }

    impl Work for Numbers {
        type Open = u32;
        type Next = u32;
        type Outcome = u32;
        type Schedule = Vec<u32>;

        fn changes(&self) -> watch::Receiver<()> {
            self.changes.subscribe()
        }

        async fn open(&self) -> Result<Vec<u32>> {
            Ok(self.open.borrow().clone())
        }

        fn begin(&self, running: &mut Vec<u32>, open: Vec<u32>) -> (Vec<u32>, Duration) {
            let waiting = open.into_iter().filter(|number| !running.contains(number));
            let next: Vec<u32> = waiting.take(2 - running.len()).collect();
            running.extend(&next);
            (next, Duration::from_secs(3600))
        }

        async fn attempt(&self, number: u32) -> u32 {
            tokio::task::yield_now().await;
            self.open.borrow_mut().retain(|open| *open != number);
            if self.open.borrow().is_empty() {
                self.stopper.stop();
            }
            number
        }

        fn end(&self, running: &mut Vec<u32>, number: u32) {
            running.retain(|running| *running != number);
        }

        fn unreadable(&self, _error: &Error) -> Duration {
            Duration::ZERO
        }
    }

    #[tokio::test]
    async fn all_work_is_done() {
        let (stopper, stop) = stop_signal();
        let numbers = Numbers { open: RefCell::new((0..7).collect()), changes: watch::channel(()).0, stopper };
        run(&numbers, &stop).await;
        assert!(numbers.open.borrow().is_empty());
    }

    #[tokio::test]
    async fn only_claimed_work_is_done_and_given_up() {
        let released = RefCell::new(0);
        let attempt = async |is_free: bool, result: Result<u32>| {
            let release = async { *released.borrow_mut() += 1 };
            with_claim(1, async { Ok(is_free) }, async { result }, release).await
        };
        assert!(matches!(attempt(true, Ok(5)).await, Ok(Claimed::Done(5))));
        assert!(attempt(true, Err(Error::internal("broken"))).await.is_err());
        assert_eq!(*released.borrow(), 2);
        assert!(matches!(attempt(false, Ok(5)).await, Ok(Claimed::Elsewhere)));
        assert_eq!(*released.borrow(), 2);
    }
}
