//! Background work on a store that nodes share: one of them does each piece, and all look for work every second.
//!
//! Without other nodes, everything is granted at once, and loops look when something has changed.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use crate::error::Result;
use crate::storage::Store;
pub use crate::storage::work_leases::is_taken_over;
use crate::storage::work_leases::{self, Work};

/// The time between two looks at what other nodes may have changed.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Attempts to give work up while the database cannot be written, a second apart. Not endless, because a server that stops
/// waits for its loops.
const RELEASE_ATTEMPTS: u32 = 10;

/// Claims work. `false`: another live process has it.
pub(super) async fn claim(store: &Store, work: Work) -> Result<bool> {
    if store.cluster().is_none() {
        return Ok(true);
    }
    let peers = store.peers();
    store.write(move |tx| work_leases::claim(tx, work, |process| peers.is_alive(process))).await
}

/// Gives work up, so that any process may do what is left of it.
pub(super) async fn release(store: &Store, work: Work) {
    if store.cluster().is_none() {
        return;
    }
    for _ in 0..RELEASE_ATTEMPTS {
        match store.write(move |tx| work_leases::release(tx, work)).await {
            Ok(()) => return,
            Err(error) if error.code().is_failed_write() => {
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
            Err(_) => break,
        }
    }
    tracing::debug!(?work, "background work is not given up; its lease ends with this process");
}

/// Calls `look` every second while other nodes may change the store unseen. Ends when the set is dropped.
pub(super) fn look_every_second(store: &Store, look: impl Fn() + Send + 'static) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    if let Some(cluster) = store.cluster().cloned() {
        tasks.spawn(async move {
            let mut ticks = interval(LOOK_INTERVAL);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                // Without the database there is nothing to see.
                if cluster.is_current() {
                    look();
                }
            }
        });
    }
    tasks
}
