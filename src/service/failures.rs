//! How many API keys that are not valid came from each address within the last minute.
//!
//! A bound of its own counts the guesses among them: keys that were well formed, so that it took a database read to
//! find out that they are not valid. Once an address has spent its guesses, nothing is read for it until its minute is
//! over. Once it has spent its failures, all further ones are answered 429 instead of 401. A script that goes on
//! sending a mistyped key therefore does not affect other clients at its address: their keys need none of what it spent.
//!
//! Requests that are checked at the same time may all pass before the first is counted. The excess is bounded by the
//! connections of the server, and none of them is told more than that its key failed.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Code, Error, Result};
use crate::ip_network::ClientPrefix;

/// From the first failure of an address on; then it starts afresh.
const WINDOW: Duration = Duration::from_secs(60);

/// Failures of an address within a window.
const BOUND: u32 = 20;

/// The same for loopback: programs of this machine, which could do more harm by other means, and all clients of a
/// local proxy that was not named with `--trusted-proxy`. It only stops endless loops: a hundred a second, which cost
/// less than a hundredth of a core.
const LOOPBACK_BOUND: u32 = 6_000;

/// Addresses per half of the table. With 40 bytes each and the free room of the hash tables, both halves together take
/// at most 6 MiB.
const HALF: usize = 32_768;

#[derive(Clone, Copy)]
struct Entry {
    /// Uptime of the first failure.
    since: Duration,
    failures: u32,
    guesses: u32,
}

/// Two halves, as in the cache of keys: a full young half becomes the old one, and the old one is dropped.
#[derive(Default)]
struct Table {
    young: HashMap<ClientPrefix, Entry>,
    old: HashMap<ClientPrefix, Entry>,
}

impl Table {
    /// The entry of an address, if its window still runs.
    fn get(&self, source: ClientPrefix, now: Duration) -> Option<Entry> {
        let entry = self.young.get(&source).or_else(|| self.old.get(&source));
        entry.copied().filter(|entry| now < entry.since + WINDOW)
    }

    fn put(&mut self, source: ClientPrefix, entry: Entry) {
        if self.young.len() >= HALF && !self.young.contains_key(&source) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(source, entry);
    }
}

/// Failed authentications by address.
#[derive(Default)]
pub(super) struct Failures {
    // Held for one or two lookups. Requests with a key that is known and valid do not take it.
    table: Mutex<Table>,
}

/// What a failed authentication had cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The text could not be a key, which costs no read.
    Malformed,
    /// The text could have been a key.
    Guess,
}

impl Failures {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// 429 if the address has spent its guesses: nothing is read for it. No bound applies without an address.
    pub fn admit(&self, address: Option<IpAddr>, now: Duration) -> Result<()> {
        let Some(address) = address else { return Ok(()) };
        match self.table().get(ClientPrefix::of(address), now) {
            Some(entry) if entry.guesses >= bound(address) => Err(throttled(entry, now)),
            _ => Ok(()),
        }
    }

    /// Counts a failure and returns how it is answered: 429 if the address had spent its failures, else `error`.
    pub fn count(&self, address: Option<IpAddr>, failure: Failure, now: Duration, error: Error) -> Error {
        let Some(address) = address else { return error };
        let (source, bound) = (ClientPrefix::of(address), bound(address));
        let entry = {
            let mut table = self.table();
            let mut entry = table.get(source, now).unwrap_or(Entry { since: now, failures: 0, guesses: 0 });
            entry.failures = entry.failures.saturating_add(1);
            entry.guesses = entry.guesses.saturating_add(u32::from(failure == Failure::Guess));
            table.put(source, entry);
            entry
        };
        if entry.failures == bound.saturating_add(1) {
            // Once per address and window.
            tracing::warn!(
                %address,
                "more than {bound} API keys that are not valid came from this address within a minute; further ones \
                 are answered 429. If it is the address of a proxy, name it with --trusted-proxy"
            );
        }
        if entry.failures > bound { throttled(entry, now) } else { error }
    }
}

fn bound(address: IpAddr) -> u32 {
    if address.to_canonical().is_loopback() { LOOPBACK_BOUND } else { BOUND }
}

fn throttled(entry: Entry, now: Duration) -> Error {
    let wait = (entry.since + WINDOW).saturating_sub(now);
    let text = format!(
        "Too many API keys that are not valid came from your address within a minute. Check the key that you send \
         (it starts with 'opk_'), and try again in {} seconds.",
        wait.as_secs() + u64::from(wait.subsec_nanos() > 0)
    );
    Error::new(Code::RateLimited, text).retry_after(wait)
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv6Addr};
    use std::time::Duration;

    use super::{BOUND, Failure, Failures, HALF, LOOPBACK_BOUND, WINDOW};
    use crate::error::{Code, Error};

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    fn fail(failures: &Failures, address: Option<IpAddr>, failure: Failure, now: Duration) -> Error {
        failures.count(address, failure, now, Error::new(Code::InvalidApiKey, "wrong"))
    }

    fn fail_often(failures: &Failures, from: Option<IpAddr>, failure: Failure, times: u32, now: Duration) {
        for _ in 0..times {
            assert_eq!(fail(failures, from, failure, now).code(), Code::InvalidApiKey);
        }
    }

    #[test]
    fn an_address_that_has_spent_its_failures_waits_for_the_end_of_its_minute() {
        let (failures, from, start) = (Failures::default(), address("203.0.113.9"), Duration::from_secs(7));
        fail_often(&failures, from, Failure::Guess, BOUND, start);
        let later = start + Duration::from_secs(20);
        for refused in [fail(&failures, from, Failure::Guess, later), failures.admit(from, later).unwrap_err()] {
            assert_eq!((refused.code(), refused.wait()), (Code::RateLimited, Some(Duration::from_secs(40))));
        }
        assert!(failures.admit(address("203.0.113.10"), later).is_ok(), "its neighbour has all of its own");
        let over = start + WINDOW;
        assert!(failures.admit(from, over).is_ok());
        fail_often(&failures, from, Failure::Guess, BOUND, over);
    }

    #[test]
    fn texts_that_cannot_be_keys_spend_no_guesses() {
        let (failures, from, now) = (Failures::default(), address("203.0.113.9"), Duration::ZERO);
        fail_often(&failures, from, Failure::Malformed, BOUND, now);
        assert_eq!(fail(&failures, from, Failure::Malformed, now).code(), Code::RateLimited);
        assert!(failures.admit(from, now).is_ok());
    }

    #[test]
    fn an_ipv6_network_counts_as_one_address_and_a_mapped_address_as_its_own() {
        let (failures, now) = (Failures::default(), Duration::ZERO);
        fail_often(&failures, address("2001:db8:0:1::1"), Failure::Guess, BOUND, now);
        assert!(failures.admit(address("2001:db8:0:1:ffff::2"), now).is_err());
        assert!(failures.admit(address("2001:db8:0:2::1"), now).is_ok());
        fail_often(&failures, address("::ffff:203.0.113.9"), Failure::Guess, BOUND, now);
        assert!(failures.admit(address("203.0.113.9"), now).is_err());
    }

    #[test]
    fn loopback_has_a_bound_of_its_own_and_no_address_has_none() {
        let (failures, now) = (Failures::default(), Duration::ZERO);
        for from in ["127.0.0.1", "::1"] {
            fail_often(&failures, address(from), Failure::Guess, LOOPBACK_BOUND, now);
            assert_eq!(failures.admit(address(from), now).unwrap_err().code(), Code::RateLimited, "{from}");
        }
        fail_often(&failures, None, Failure::Guess, LOOPBACK_BOUND + 1, now);
        assert!(failures.admit(None, now).is_ok());
    }

    #[test]
    fn the_table_is_bounded_and_forgets_the_oldest() {
        let (failures, now) = (Failures::default(), Duration::ZERO);
        let network = |index: usize| Some(IpAddr::V6(Ipv6Addr::from((index as u128) << 64 | 1 << 127)));
        for index in 0..3 * HALF {
            fail(&failures, network(index), Failure::Guess, now);
        }
        let table = failures.table();
        assert!(table.young.len() + table.old.len() <= 2 * HALF);
        let known = |index| network(index).is_some_and(|one| table.get(super::ClientPrefix::of(one), now).is_some());
        assert!(known(3 * HALF - 1) && known(2 * HALF) && !known(0));
    }
}
