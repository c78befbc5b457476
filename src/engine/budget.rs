//! The memory that models and caches may take. Weights are leased before they are read; what is left
//! is the room for KV blocks, which the scheduler keeps to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug)]
pub(super) struct Budget {
    total: u64,
    weights: AtomicU64,
}

/// Memory that is taken as long as this lives.
#[derive(Debug)]
pub(super) struct Lease {
    budget: Arc<Budget>,
    pub bytes: u64,
}

impl Budget {
    pub fn new(total: u64) -> Arc<Self> {
        Arc::new(Self { total, weights: AtomicU64::new(0) })
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    /// What weights leave to KV blocks.
    pub fn room(&self) -> u64 {
        self.total.saturating_sub(self.weights.load(Ordering::SeqCst))
    }

    /// Takes memory for weights if `blocks` bytes of KV blocks still fit beside them.
    pub fn lease(self: &Arc<Self>, bytes: u64, blocks: u64) -> Option<Lease> {
        let fits = |weights: u64| {
            let sum = weights.checked_add(bytes)?;
            (sum.checked_add(blocks)? <= self.total).then_some(sum)
        };
        self.weights.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits).ok()?;
        Some(Lease { budget: Arc::clone(self), bytes })
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.budget.weights.fetch_sub(self.bytes, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::Budget;

    #[test]
    fn leases_end_with_their_owner() {
        let budget = Budget::new(100);
        let weights = budget.lease(60, 30).unwrap();
        assert_eq!(budget.room(), 40);
        assert!(budget.lease(11, 30).is_none());
        drop(weights);
        assert!(budget.lease(u64::MAX, 1).is_none());
        assert!(budget.lease(100, 0).is_some());
        assert_eq!(budget.room(), 100);
    }
}
