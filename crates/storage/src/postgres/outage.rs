//! Ends waits for a database that has stopped answering, long before their own deadlines.
//!
//! A connection that was cut silently looks like one whose answer takes long. The [membership](super::membership) polls
//! the database several times a second, so it soon knows the difference.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval};

use super::error::PostgresError;
use crate::cluster::Cluster;

/// Interval of the checks for answers.
const INTERVAL: Duration = Duration::from_millis(100);

/// Looks without an answer after which there is an outage: 0.9 seconds, so that requests are refused within a second.
const MAX_MISSES: u32 = 9;

/// Whether the database has not answered for about a second.
#[derive(Clone)]
pub(super) struct Outage(watch::Receiver<bool>);

impl Outage {
    /// An outage that never begins, for tests and commands.
    pub fn never() -> Self {
        Self(watch::channel(false).1)
    }

    pub fn has_begun(&self) -> bool {
        *self.0.borrow()
    }

    /// Runs a call, but not longer than until an outage begins.
    ///
    /// # Errors
    /// Those of the call, and [`PostgresError::Lost`] in an outage. Then the connection must not be used any more.
    pub async fn bound<T>(&self, call: impl Future<Output = Result<T, PostgresError>>) -> Result<T, PostgresError> {
        let mut outage = self.0.clone();
        let begins = async {
            // Nothing notices an outage any more if the sender is gone.
            if outage.wait_for(|has_begun| *has_begun).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            biased;
            () = begins => Err(lost()),
            result = call => result,
        }
    }
}

/// The error of a call in an outage.
pub(super) fn lost() -> PostgresError {
    PostgresError::lost("the database has not answered for a second")
}

/// An outage and the task that notices it, which counts the answers that the cluster notes.
pub(super) fn watch_answers(cluster: Arc<Cluster>) -> (Outage, impl Future<Output = ()> + Send) {
    let (sender, receiver) = watch::channel(false);
    let task = async move {
        let mut ticks = interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut seen, mut misses) = (cluster.answer_count(), 0);
        loop {
            ticks.tick().await;
            let count = cluster.answer_count();
            misses = if count == seen { misses + 1 } else { 0 };
            seen = count;
            let has_begun = misses >= MAX_MISSES;
            sender.send_if_modified(|last| std::mem::replace(last, has_begun) != has_begun);
        }
    };
    (Outage(receiver), task)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_ends_when_an_outage_begins() {
        let (sender, receiver) = watch::channel(false);
        let outage = Outage(receiver);
        assert_eq!(outage.bound(async { Ok(1) }).await, Ok(1));
        let waiting = outage.bound(std::future::pending::<Result<(), _>>());
        let (result, ()) = tokio::join!(waiting, async {
            sender.send_replace(true);
        });
        assert_eq!(result, Err(lost()));
        assert!(outage.has_begun());
        sender.send_replace(false);
        assert_eq!(outage.bound(async { Ok(2) }).await, Ok(2));
    }

    #[tokio::test]
    async fn without_a_membership_there_is_no_outage() {
        assert_eq!(Outage::never().bound(async { Ok(1) }).await, Ok(1));
    }
}
