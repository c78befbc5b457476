//! The amount that each tenant was served. The tenant with the least is next.

use std::collections::HashMap;

use crate::ids::Tenant;

/// The cost of what tenants were served, in seconds or another unit.
#[derive(Debug, Default)]
pub struct TenantCosts(HashMap<Tenant, f64>);

impl TenantCosts {
    /// Counts from when a tenant's work arrives. `active`: the tenants whose work has not ended. One that is not among them
    /// starts at the lowest cost of these, unless its own is higher: idle time earns no credit, and what it was served stays
    /// counted.
    pub fn arrive(&mut self, tenant: Tenant, active: impl Iterator<Item = Tenant>) {
        let mut lowest: Option<f64> = None;
        for other in active {
            if other == tenant {
                return;
            }
            let cost = self.of(other);
            lowest = Some(lowest.map_or(cost, |lowest| lowest.min(cost)));
        }
        let own = self.0.entry(tenant).or_default();
        *own = own.max(lowest.unwrap_or(0.0));
    }

    pub fn add(&mut self, tenant: Tenant, cost: f64) {
        *self.0.entry(tenant).or_default() += cost;
    }

    pub fn of(&self, tenant: Tenant) -> f64 {
        self.0.get(&tenant).copied().unwrap_or(0.0)
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::TenantCosts;

    #[test]
    fn idle_tenants_gain_no_credit_and_keep_their_debt() {
        let mut costs = TenantCosts::default();
        costs.arrive(1, [].into_iter());
        costs.add(1, 10.0);
        costs.arrive(2, [1].into_iter());
        costs.add(2, 100.0);
        assert_eq!((costs.of(1), costs.of(2)), (10.0, 110.0));
        // The first tenant was away meanwhile, and so was a new one.
        for tenant in [1, 3] {
            costs.arrive(tenant, [2].into_iter());
            assert_eq!(costs.of(tenant), 110.0);
        }
        costs.add(3, 50.0);
        costs.arrive(3, [1, 2].into_iter());
        assert_eq!(costs.of(3), 160.0, "a debt remains");
        costs.arrive(2, [2, 3].into_iter());
        assert_eq!(costs.of(2), 110.0, "nothing changes for a tenant with work");
    }
}
