//! Removal of what has expired. If nodes share the store, one of them does it for all.

use std::sync::Arc;

use super::background_work;
use crate::clock_rng::ClockRng;
use crate::error::Result;
use crate::storage::work_leases::{self, Work};
use crate::storage::{Store, WriteTx, idempotency_keys};

/// Idempotency keys that are removed per transaction.
const SWEEP_BATCH: usize = 256;

/// The maintenance service.
#[derive(Clone)]
pub struct Maintenance {
    store: Store,
    clock_rng: Arc<dyn ClockRng>,
}

impl Maintenance {
    pub fn new(store: Store, clock_rng: Arc<dyn ClockRng>) -> Self {
        Self { store, clock_rng }
    }

    /// Whether this process is the one that removes what has expired. It stays so while it is alive.
    pub async fn is_due_here(&self) -> bool {
        let claimed = background_work::claim(&self.store, Work::Maintenance).await;
        claimed.unwrap_or_else(|error| {
            tracing::warn!(%error, "expired records are not removed now");
            false
        })
    }

    /// Removes work leases of processes that are gone, and on a shared store expired idempotency keys, which are removed
    /// with each new one otherwise.
    pub async fn sweep(&self) -> Result<()> {
        self.remove_dead_leases().await?;
        if self.store.cluster().is_none() {
            return Ok(());
        }
        loop {
            let now = self.clock_rng.now();
            let removed = self.store.write(move |tx| idempotency_keys::sweep(tx, now, SWEEP_BATCH)).await?;
            if removed < SWEEP_BATCH {
                return Ok(());
            }
        }
    }

    /// Only a copy of a shared store has such leases without other nodes.
    async fn remove_dead_leases(&self) -> Result<()> {
        loop {
            let peers = self.store.peers();
            let dead = self.store.read(move |tx| work_leases::dead(tx, |process| peers.is_alive(process))).await?;
            if dead.is_empty() {
                return Ok(());
            }
            let peers = self.store.peers();
            let removed = move |tx: &WriteTx| work_leases::remove_dead(tx, &dead, |process| peers.is_alive(process));
            self.store.write(removed).await?;
        }
    }
}
