//! A limit on concurrent requests of one kind: one bound for all, and a lower one for each project and each client
//! address, so that neither one project nor one address can keep out the others.
//!
//! Without the limit per address, a client with keys of four projects could take all slots. Behind a trusted proxy, the
//! forwarded address counts.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Code, Error, Result};
use crate::ids::ProjectId;
use crate::ip_network::ClientPrefix;

/// Counts running requests of one kind, in all and per project and address.
pub struct ConcurrencyLimit {
    /// Names the requests in error messages.
    what: &'static str,
    taken: Mutex<Taken>,
    of_all: usize,
    of_one: usize,
}

#[derive(Default)]
struct Taken {
    all: usize,
    by_owner: HashMap<Owner, usize>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Owner {
    Project(ProjectId),
    Address(ClientPrefix),
}

/// A slot, released on drop.
pub struct Slot {
    owners: [Option<Owner>; 2],
    limit: Arc<ConcurrencyLimit>,
}

impl ConcurrencyLimit {
    /// Allows `of_all` requests, and `of_one` per project or address. `what` completes "Too many … at once".
    pub fn new(what: &'static str, of_all: usize, of_one: usize) -> Arc<Self> {
        Arc::new(Self { what, taken: Mutex::default(), of_all, of_one })
    }

    /// Takes a slot for a project.
    pub fn acquire(self: &Arc<Self>, project: ProjectId) -> Result<Slot> {
        self.acquire_from(project, None)
    }

    /// Takes a slot for a project and an address. Without an address, only the other limits apply.
    pub fn acquire_from(self: &Arc<Self>, project: ProjectId, address: Option<IpAddr>) -> Result<Slot> {
        let Self { what, of_all, of_one, .. } = **self;
        let of_address = address.map_or(of_one, |address| self.of_address(address));
        let owners = [Some(Owner::Project(project)), address.map(|address| Owner::Address(ClientPrefix::of(address)))];
        let mut taken = self.lock();
        let free = |owner: Owner| {
            let max = if matches!(owner, Owner::Project(_)) { of_one } else { of_address };
            taken.by_owner.get(&owner).is_none_or(|own| *own < max)
        };
        if taken.all >= of_all || !owners.into_iter().flatten().all(free) {
            let by_address = address.map(|_| format!(", your address {of_address}")).unwrap_or_default();
            let text = format!(
                "Too many {what} at once: a project may have {of_one}{by_address}, all together {of_all}. Try again \
                 shortly, with backoff."
            );
            return Err(Error::new(Code::Overloaded, text));
        }
        taken.all += 1;
        owners.into_iter().flatten().for_each(|owner| *taken.by_owner.entry(owner).or_default() += 1);
        Ok(Slot { owners, limit: self.clone() })
    }

    /// Loopback may take three quarters of all slots: it may stand for all clients of a local proxy that is not named
    /// with `--trusted-proxy`.
    fn of_address(&self, address: IpAddr) -> usize {
        if address.to_canonical().is_loopback() { self.of_one.max(self.of_all * 3 / 4) } else { self.of_one }
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.limit.lock();
        taken.all -= 1;
        for owner in self.owners.into_iter().flatten() {
            if let Some(own) = taken.by_owner.get_mut(&owner) {
                *own -= 1;
                if *own == 0 {
                    taken.by_owner.remove(&owner);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{ConcurrencyLimit, Slot};
    use crate::error::Result;
    use crate::ids::ProjectId;

    const OF_ALL: usize = 32;
    const OF_ONE: usize = 8;

    fn limit() -> Arc<ConcurrencyLimit> {
        ConcurrencyLimit::new("files are being uploaded", OF_ALL, OF_ONE)
    }

    fn project(number: usize) -> ProjectId {
        ProjectId::from_bytes([u8::try_from(number).unwrap(); 16])
    }

    /// Takes slots for one project after the other, all from one address, until none is left.
    fn fill(limit: &Arc<ConcurrencyLimit>, address: &str) -> Vec<Slot> {
        let take = |number| limit.acquire_from(project(number), Some(address.parse().unwrap()));
        (0..OF_ALL + 1).map(take).map_while(Result::ok).collect()
    }

    #[test]
    fn no_project_takes_every_slot_and_a_dropped_slot_is_free_again() {
        let limit = limit();
        let mut taken: Vec<_> = (0..OF_ONE).map(|_| limit.acquire(project(0)).unwrap()).collect();
        assert!(limit.acquire(project(0)).is_err());
        let others = (1..).flat_map(|number| [number; OF_ONE]).take(OF_ALL - OF_ONE);
        taken.extend(others.map(|number| limit.acquire(project(number)).unwrap()));
        assert!(limit.acquire(project(99)).is_err());
        taken.pop();
        assert!(limit.acquire(project(99)).is_ok());
        drop(taken);
        let left = limit.lock();
        assert!(left.all == 0 && left.by_owner.is_empty());
    }

    #[test]
    fn no_address_takes_every_slot_with_several_projects() {
        let limit = limit();
        let taken = fill(&limit, "192.0.2.1");
        assert_eq!(taken.len(), OF_ONE);
        assert!(limit.acquire_from(project(99), Some("::ffff:192.0.2.1".parse().unwrap())).is_err());
        let network = fill(&limit, "2001:db8::1");
        assert_eq!(network.len(), OF_ONE);
        assert!(limit.acquire_from(project(99), Some("2001:db8::2".parse().unwrap())).is_err(), "the same network");
        assert!(limit.acquire_from(project(99), Some("192.0.2.2".parse().unwrap())).is_ok());
        drop(taken);
        assert!(limit.acquire_from(project(99), Some("192.0.2.1".parse().unwrap())).is_ok());
    }

    #[test]
    fn loopback_gets_most_slots_and_trusted_proxies_have_no_limit() {
        let local = limit();
        assert_eq!(fill(&local, "127.0.0.1").len(), OF_ALL * 3 / 4);
        let proxied = limit();
        let taken: Vec<_> = (0..OF_ALL).map(|number| proxied.acquire_from(project(number), None).unwrap()).collect();
        assert_eq!(taken.len(), OF_ALL);
    }
}
