//! The memory that models and caches may take. Everything is leased before it is allocated.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug)]
pub(super) struct Budget {
    total: u64,
    used: Mutex<Used>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Used {
    weights: u64,
    kv: u64,
}

/// What a lease is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Weights,
    Kv,
}

/// Memory that is taken as long as this lives.
#[derive(Debug)]
pub(super) struct Lease {
    budget: Arc<Budget>,
    purpose: Purpose,
    pub bytes: u64,
}

impl Budget {
    pub fn new(total: u64) -> Arc<Self> {
        Arc::new(Self { total, used: Mutex::default() })
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    /// Bytes leased for caches.
    pub fn kv(&self) -> u64 {
        self.lock().kv
    }

    pub fn lease(self: &Arc<Self>, purpose: Purpose, bytes: u64) -> Option<Lease> {
        let mut used = self.lock();
        let free = self.total.saturating_sub(used.weights).saturating_sub(used.kv);
        if bytes > free {
            return None;
        }
        *used.part(purpose) += bytes;
        Some(Lease { budget: Arc::clone(self), purpose, bytes })
    }

    fn lock(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Used {
    fn part(&mut self, purpose: Purpose) -> &mut u64 {
        match purpose {
            Purpose::Weights => &mut self.weights,
            Purpose::Kv => &mut self.kv,
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        *self.budget.lock().part(self.purpose) -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::{Budget, Purpose};

    #[test]
    fn leases_end_with_their_owner() {
        let budget = Budget::new(100);
        let weights = budget.lease(Purpose::Weights, 60).unwrap();
        assert!(budget.lease(Purpose::Kv, 41).is_none());
        let kv = budget.lease(Purpose::Kv, 40).unwrap();
        assert_eq!(budget.kv(), 40);
        drop(kv);
        drop(weights);
        assert!(budget.lease(Purpose::Kv, 100).is_some());
    }
}
