//! Places for requests of one kind: a bound for all, and a lower one for each project and each client address, so that
//! neither the clients of one project nor those at one address can keep out everyone else.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::{Code, Error, Result};
use crate::ids::ProjectId;
use crate::ip_network::ClientPrefix;

/// How many requests of one kind are running, in all and for each project and address.
pub struct Places {
    /// For messages: what too many of are running.
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

/// A place, free again when this is dropped.
pub struct Place {
    owners: [Option<Owner>; 2],
    places: Arc<Places>,
}

impl Places {
    /// Room for so many requests, and for so many of one project or address. `what` completes "Too many … at once".
    pub fn new(what: &'static str, of_all: usize, of_one: usize) -> Arc<Self> {
        Arc::new(Self { what, taken: Mutex::default(), of_all, of_one })
    }

    /// A place that counts for a project.
    pub fn take(self: &Arc<Self>, project: ProjectId) -> Result<Place> {
        self.take_from(project, None)
    }

    /// A place that counts for a project and an address. Without an address, only the other bounds apply.
    pub fn take_from(self: &Arc<Self>, project: ProjectId, address: Option<IpAddr>) -> Result<Place> {
        let Self { what, of_all, of_one, .. } = **self;
        let of_address = address.map_or(of_one, |address| self.of_address(address));
        let owners = [Some(Owner::Project(project)), address.map(|address| Owner::Address(ClientPrefix::of(address)))];
        let mut taken = self.lock();
        let free = |owner: Owner| {
            let most = if matches!(owner, Owner::Project(_)) { of_one } else { of_address };
            taken.by_owner.get(&owner).is_none_or(|own| *own < most)
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
        Ok(Place { owners, places: self.clone() })
    }

    /// Programs of this machine have three quarters: they may be all clients of a local proxy that is not named with
    /// `--trusted-proxy`.
    fn of_address(&self, address: IpAddr) -> usize {
        if address.to_canonical().is_loopback() { self.of_one.max(self.of_all * 3 / 4) } else { self.of_one }
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.lock();
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

    use super::{Place, Places};
    use crate::error::Result;
    use crate::ids::ProjectId;

    const OF_ALL: usize = 32;
    const OF_ONE: usize = 8;

    fn places() -> Arc<Places> {
        Places::new("files are being uploaded", OF_ALL, OF_ONE)
    }

    fn project(number: usize) -> ProjectId {
        ProjectId::from_bytes([u8::try_from(number).unwrap(); 16])
    }

    /// Takes places for one project after the other, all from one address, until there is none.
    fn fill(places: &Arc<Places>, address: &str) -> Vec<Place> {
        let take = |number| places.take_from(project(number), Some(address.parse().unwrap()));
        (0..OF_ALL + 1).map(take).map_while(Result::ok).collect()
    }

    #[test]
    fn no_project_takes_every_place_and_a_place_comes_back() {
        let places = places();
        let mut taken: Vec<_> = (0..OF_ONE).map(|_| places.take(project(0)).unwrap()).collect();
        assert!(places.take(project(0)).is_err());
        let others = (1..).flat_map(|number| [number; OF_ONE]).take(OF_ALL - OF_ONE);
        taken.extend(others.map(|number| places.take(project(number)).unwrap()));
        assert!(places.take(project(99)).is_err());
        taken.pop();
        assert!(places.take(project(99)).is_ok());
        drop(taken);
        let left = places.lock();
        assert!(left.all == 0 && left.by_owner.is_empty());
    }

    #[test]
    fn no_address_takes_every_place_whatever_its_projects() {
        let places = places();
        let taken = fill(&places, "192.0.2.1");
        assert_eq!(taken.len(), OF_ONE);
        assert!(places.take_from(project(99), Some("::ffff:192.0.2.1".parse().unwrap())).is_err());
        let network = fill(&places, "2001:db8::1");
        assert_eq!(network.len(), OF_ONE);
        assert!(places.take_from(project(99), Some("2001:db8::2".parse().unwrap())).is_err(), "the same network");
        assert!(places.take_from(project(99), Some("192.0.2.2".parse().unwrap())).is_ok());
        drop(taken);
        assert!(places.take_from(project(99), Some("192.0.2.1".parse().unwrap())).is_ok());
    }

    #[test]
    fn loopback_has_most_places_and_a_trusted_proxy_has_no_bound_of_its_own() {
        let local = places();
        assert_eq!(fill(&local, "127.0.0.1").len(), OF_ALL * 3 / 4);
        let proxied = places();
        let taken: Vec<_> = (0..OF_ALL).map(|number| proxied.take_from(project(number), None).unwrap()).collect();
        assert_eq!(taken.len(), OF_ALL);
    }
}
