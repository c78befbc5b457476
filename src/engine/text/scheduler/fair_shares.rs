//! Who has been served how much: virtual token counters.
//!
//! (Sheng et al. 2024, "Fairness in Serving Large Language Models",
//! <https://arxiv.org/abs/2401.00588>.) Whoever has work waiting and the lowest counter is next.
//! Who comes back after a rest starts level with the lowest of those who have work: idleness saves
//! nothing up.

use std::collections::BTreeMap;

use super::ids::Tenant;

/// What a computed prompt token and a generated token cost.
const PROMPT: u64 = 1;
const GENERATED: u64 = 2;

#[derive(Debug, Default)]
pub struct FairShares {
    counters: BTreeMap<Tenant, Counter>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    served: u64,
    /// Sequences that wait or run.
    work: usize,
}

impl FairShares {
    /// A sequence of the tenant waits from now on.
    pub fn arrive(&mut self, tenant: Tenant) {
        let floor = self.floor();
        let counter = self.counters.entry(tenant).or_default();
        if counter.work == 0 {
            counter.served = counter.served.max(floor.unwrap_or(0));
        }
        counter.work += 1;
    }

    /// A sequence of the tenant is gone. Counters that say nothing any more are dropped.
    pub fn depart(&mut self, tenant: Tenant) {
        if let Some(counter) = self.counters.get_mut(&tenant) {
            counter.work = counter.work.saturating_sub(1);
        }
        match self.floor() {
            None => self.counters.clear(),
            Some(floor) => self.counters.retain(|_, counter| counter.work > 0 || counter.served > floor),
        }
    }

    pub fn charge(&mut self, tenant: Tenant, prompt: usize, generated: usize) {
        if let Some(counter) = self.counters.get_mut(&tenant) {
            let cost = prompt as u64 * PROMPT + generated as u64 * GENERATED;
            counter.served = counter.served.saturating_add(cost);
        }
    }

    pub fn served(&self, tenant: Tenant) -> u64 {
        self.counters.get(&tenant).map_or(0, |counter| counter.served)
    }

    /// The lowest counter among those who have work.
    fn floor(&self) -> Option<u64> {
        self.counters.values().filter(|counter| counter.work > 0).map(|counter| counter.served).min()
    }
}

#[cfg(test)]
mod tests {
    use super::FairShares;

    #[test]
    fn a_rest_saves_nothing_up_and_debts_stay() {
        let mut shares = FairShares::default();
        shares.arrive(1);
        shares.charge(1, 100, 50);
        shares.arrive(2);
        assert_eq!((shares.served(1), shares.served(2)), (200, 200), "level with those at work");
        shares.charge(2, 0, 100);
        shares.depart(2);
        assert_eq!(shares.served(2), 400);
        shares.arrive(2);
        assert_eq!(shares.served(2), 400, "what was taken is still owed");
        shares.depart(2);
        shares.charge(1, 300, 0);
        shares.arrive(3);
        shares.depart(3);
        assert_eq!(shares.counters.len(), 1, "counters below everybody's are forgotten");
    }
}
