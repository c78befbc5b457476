//! The amounts that tenants have been served: virtual token counters.
//!
//! (Sheng et al. 2024, "Fairness in Serving Large Language Models", <https://arxiv.org/abs/2401.00588>.) The tenant
//! with waiting work and the lowest counter is next. A tenant that returns after being idle is lifted to the lowest
//! counter of the active tenants: idle time earns no credit.

use std::collections::BTreeMap;

use crate::ids::Tenant;

/// The cost of a prefilled token and of a generated token.
const PROMPT_COST: u64 = 1;
const GENERATED_COST: u64 = 2;

#[derive(Debug, Default)]
pub struct FairShares {
    counters: BTreeMap<Tenant, Counter>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    served: u64,
    /// Waiting and running sequences.
    sequences: usize,
}

impl FairShares {
    /// Counts a new sequence of the tenant.
    pub fn add_sequence(&mut self, tenant: Tenant) {
        let floor = self.floor();
        let counter = self.counters.entry(tenant).or_default();
        if counter.sequences == 0 {
            counter.served = counter.served.max(floor.unwrap_or(0));
        }
        counter.sequences += 1;
    }

    /// Counts a sequence of the tenant as ended. Drops counters that no longer matter.
    pub fn remove_sequence(&mut self, tenant: Tenant) {
        if let Some(counter) = self.counters.get_mut(&tenant) {
            counter.sequences = counter.sequences.saturating_sub(1);
        }
        match self.floor() {
            None => self.counters.clear(),
            Some(floor) => self.counters.retain(|_, counter| counter.sequences > 0 || counter.served > floor),
        }
    }

    pub fn charge(&mut self, tenant: Tenant, prompt: usize, generated: usize) {
        if let Some(counter) = self.counters.get_mut(&tenant) {
            let cost = prompt as u64 * PROMPT_COST + generated as u64 * GENERATED_COST;
            counter.served = counter.served.saturating_add(cost);
        }
    }

    /// Tenants with sequences that wait or run.
    pub fn at_work(&self) -> usize {
        self.counters.values().filter(|counter| counter.sequences > 0).count()
    }

    pub fn served(&self, tenant: Tenant) -> u64 {
        self.counters.get(&tenant).map_or(0, |counter| counter.served)
    }

    /// The lowest counter among tenants with work.
    fn floor(&self) -> Option<u64> {
        self.counters.values().filter(|counter| counter.sequences > 0).map(|counter| counter.served).min()
    }
}

#[cfg(test)]
mod tests {
    use super::FairShares;

    #[test]
    fn idle_tenants_gain_no_credit_and_keep_their_debt() {
        let mut shares = FairShares::default();
        shares.add_sequence(1);
        shares.charge(1, 100, 50);
        shares.add_sequence(2);
        assert_eq!((shares.served(1), shares.served(2)), (200, 200), "lifted to the active tenants");
        shares.charge(2, 0, 100);
        shares.remove_sequence(2);
        assert_eq!(shares.served(2), 400);
        shares.add_sequence(2);
        assert_eq!(shares.served(2), 400, "the debt stays");
        shares.remove_sequence(2);
        shares.charge(1, 300, 0);
        shares.add_sequence(3);
        shares.remove_sequence(3);
        assert_eq!(shares.counters.len(), 1, "counters below the floor are dropped");
    }
}
