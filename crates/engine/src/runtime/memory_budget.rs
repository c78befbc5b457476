//! The memory budget for models and caches. Weights and scratch buffers are leased before the weights are read. The
//! remainder is available for KV blocks; the text scheduler stays within it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The KV cache, which frees cached blocks for leases.
pub trait KvCache: Send + Sync {
    /// Evicts cached blocks until all blocks together take at most `max_bytes` bytes, as far as possible, and calls
    /// `then` with the bytes that they still take. No block is allocated until `then` returns.
    fn shrink(&self, max_bytes: u64, then: &mut dyn FnMut(u64));
}

/// An owner of memory that it can free on request.
pub trait Reclaim: Send + Sync {
    /// Frees some of it on the device with this number. `false`: there is nothing to free.
    fn reclaim(&self, device: usize) -> bool;
}

#[derive(Debug)]
pub struct MemoryBudget {
    total: u64,
    leased: Mutex<Leased>,
}

#[derive(Debug, Default)]
struct Leased {
    weights: u64,
    /// Scratch bytes of each lease. Models compute one after another, so only the largest counts.
    scratch: Vec<u64>,
}

/// Reserved memory in bytes, released on drop.
#[derive(Debug)]
pub struct Lease {
    budget: Arc<MemoryBudget>,
    weights: u64,
    scratch: u64,
}

impl Leased {
    fn scratch(&self) -> u64 {
        self.scratch.iter().copied().max().unwrap_or(0)
    }
}

impl MemoryBudget {
    pub fn new(total: u64) -> Arc<Self> {
        Arc::new(Self { total, leased: Mutex::default() })
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    pub fn weights(&self) -> u64 {
        self.lock().weights
    }

    /// Bytes of the largest scratch buffer among the leases.
    pub fn scratch(&self) -> u64 {
        self.lock().scratch()
    }

    /// Bytes that weights and scratch leave for KV blocks.
    pub fn available(&self) -> u64 {
        let leased = self.lock();
        self.total.saturating_sub(leased.weights).saturating_sub(leased.scratch())
    }

    /// Reserves memory for weights and scratch if they fit together with `blocks` bytes of KV blocks.
    pub fn lease(self: &Arc<Self>, weights: u64, scratch: u64, blocks: u64) -> Option<Lease> {
        let mut leased = self.lock();
        let amounts = [leased.weights, weights, leased.scratch().max(scratch), blocks];
        let sum = amounts.into_iter().try_fold(0u64, u64::checked_add)?;
        if sum > self.total {
            return None;
        }
        leased.weights += weights;
        leased.scratch.push(scratch);
        drop(leased);
        Some(Lease { budget: Arc::clone(self), weights, scratch })
    }

    fn lock(&self) -> MutexGuard<'_, Leased> {
        self.leased.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lease {
    pub fn weights(&self) -> u64 {
        self.weights
    }

    pub fn scratch(&self) -> u64 {
        self.scratch
    }

    /// Bytes of the whole budget that it belongs to.
    pub fn budget_bytes(&self) -> u64 {
        self.budget.total()
    }

    /// Weights and scratch together.
    pub fn bytes(&self) -> u64 {
        self.weights + self.scratch
    }

    /// Keeps `weights` bytes for weights. The returned lease has the others, such as those that are only needed for loading.
    pub fn split(&mut self, weights: u64) -> Self {
        let rest = self.weights.saturating_sub(weights);
        self.weights -= rest;
        self.budget.lock().scratch.push(0);
        Self { budget: Arc::clone(&self.budget), weights: rest, scratch: 0 }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut leased = self.budget.lock();
        leased.weights -= self.weights;
        if let Some(index) = leased.scratch.iter().position(|bytes| *bytes == self.scratch) {
            leased.scratch.swap_remove(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::MemoryBudget;

    #[test]
    fn a_dropped_lease_is_released() {
        let budget = MemoryBudget::new(100);
        let weights = budget.lease(60, 0, 30).unwrap();
        assert_eq!(budget.available(), 40);
        assert!(budget.lease(11, 0, 30).is_none());
        drop(weights);
        assert!(budget.lease(u64::MAX, 1, 1).is_none());
        assert!(budget.lease(100, 0, 0).is_some());
        assert_eq!(budget.available(), 100);
    }

    #[test]
    fn only_the_largest_scratch_counts() {
        let budget = MemoryBudget::new(100);
        let small = budget.lease(10, 20, 0).unwrap();
        let large = budget.lease(10, 30, 0).unwrap();
        assert_eq!((budget.weights(), budget.scratch(), budget.available()), (20, 30, 50));
        assert!(budget.lease(1, 81, 0).is_none());
        drop(large);
        assert_eq!(budget.available(), 70);
        drop(small);
        assert_eq!((budget.weights(), budget.scratch()), (0, 0));
    }

    #[test]
    fn memory_used_only_for_loading_is_released() {
        let budget = MemoryBudget::new(100);
        let mut lease = budget.lease(90, 5, 0).unwrap();
        let loading = lease.split(60);
        assert_eq!((budget.available(), lease.bytes()), (5, 65));
        drop(loading);
        assert_eq!((budget.available(), lease.bytes()), (35, 65));
        drop(lease);
        assert_eq!(budget.available(), 100);
    }
}
