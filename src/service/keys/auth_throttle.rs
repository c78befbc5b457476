//! Throttling of failed authentications by client address.
//!
//! Well-formed keys that are not valid cost a database read and have a limit of their own. Once an address has reached
//! it, nothing is read for that address until its minute is over. Once it has reached the limit of all failures,
//! further failures are answered 429 instead of 401. Valid keys are not affected, so a script that keeps sending a
//! mistyped key does not lock out other clients at its address.
//!
//! Concurrent requests may all pass before the first failure is counted. The number of connections limits the excess,
//! and each gets only the error of its own key.
//!
//! A valid key works from a throttled address, because many clients can share one behind NAT. This does not help an
//! attacker: a secret has 256 random bits, so no rate of guesses finds one. The limit protects the database, and limits
//! how many response times an attacker can measure. Malformed keys, which broken clients send, never prevent a new key
//! from working. Failures with the correct secret of a revoked or expired key are not counted, because it was not
//! guessed.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::error::{Code, Error, Result};
use crate::ip_network::ClientPrefix;

/// Starts with the first failure of an address.
const WINDOW: Duration = Duration::from_secs(60);

/// Max failures of an address within a window.
const MAX_FAILURES: u32 = 20;

/// Max failures of loopback: local programs, and all clients of a local proxy that was not named with
/// `--trusted-proxy`. It only stops endless loops: a hundred failures a second cost less than a hundredth of a core.
const MAX_LOOPBACK_FAILURES: u32 = 6_000;

/// Addresses per half of the table. Both halves together take at most 6 MiB.
const HALF_CAPACITY: usize = 32_768;

#[derive(Clone, Copy)]
struct Entry {
    /// Uptime of the first failure.
    since: Duration,
    failures: u32,
    unknown_keys: u32,
}

/// Two halves, as in the key cache: a full young half replaces the old one.
#[derive(Default)]
struct Table {
    young: HashMap<ClientPrefix, Entry>,
    old: HashMap<ClientPrefix, Entry>,
}

impl Table {
    /// The entry of an address, if its window has not ended.
    fn get(&self, source: ClientPrefix, now: Duration) -> Option<Entry> {
        let entry = self.young.get(&source).or_else(|| self.old.get(&source));
        entry.copied().filter(|entry| now < entry.since + WINDOW)
    }

    fn put(&mut self, source: ClientPrefix, entry: Entry) {
        if self.young.len() >= HALF_CAPACITY && !self.young.contains_key(&source) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(source, entry);
    }
}

/// Failed authentications by address.
#[derive(Default)]
pub(super) struct AuthThrottle {
    // Held for one or two lookups. Requests with a key that is known and valid do not take it.
    table: Mutex<Table>,
}

/// The kind of a failed authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AuthFailure {
    /// Malformed; costs no read.
    Malformed,
    /// Well-formed but not valid; costs a read.
    Unknown,
}

impl AuthThrottle {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// 429 if the address has reached the limit of well-formed keys. Without an address, no limit applies.
    pub fn admit(&self, address: Option<IpAddr>, now: Duration) -> Result<()> {
        let Some(address) = address else { return Ok(()) };
        match self.table().get(ClientPrefix::of(address), now) {
            Some(entry) if entry.unknown_keys >= bound(address) => Err(throttled(entry, now)),
            _ => Ok(()),
        }
    }

    /// Counts a failure and returns the error to answer with: 429 if the address has reached its limit, else `error`.
    pub fn record(&self, address: Option<IpAddr>, failure: AuthFailure, now: Duration, error: Error) -> Error {
        let Some(address) = address else { return error };
        let (source, bound) = (ClientPrefix::of(address), bound(address));
        let entry = {
            let mut table = self.table();
            let mut entry = table.get(source, now).unwrap_or(Entry { since: now, failures: 0, unknown_keys: 0 });
            entry.failures = entry.failures.saturating_add(1);
            entry.unknown_keys = entry.unknown_keys.saturating_add(u32::from(failure == AuthFailure::Unknown));
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
    if address.to_canonical().is_loopback() { MAX_LOOPBACK_FAILURES } else { MAX_FAILURES }
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

    use super::{AuthFailure, AuthThrottle, HALF_CAPACITY, MAX_FAILURES, MAX_LOOPBACK_FAILURES, WINDOW};
    use crate::error::{Code, Error};

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    fn fail(failures: &AuthThrottle, address: Option<IpAddr>, failure: AuthFailure, now: Duration) -> Error {
        failures.record(address, failure, now, Error::new(Code::InvalidApiKey, "wrong"))
    }

    fn fail_often(failures: &AuthThrottle, from: Option<IpAddr>, failure: AuthFailure, times: u32, now: Duration) {
        for _ in 0..times {
            assert_eq!(fail(failures, from, failure, now).code(), Code::InvalidApiKey);
        }
    }

    #[test]
    fn a_throttled_address_waits_until_its_minute_ends() {
        let (failures, from, start) = (AuthThrottle::default(), address("203.0.113.9"), Duration::from_secs(7));
        fail_often(&failures, from, AuthFailure::Unknown, MAX_FAILURES, start);
        let later = start + Duration::from_secs(20);
        for refused in [fail(&failures, from, AuthFailure::Unknown, later), failures.admit(from, later).unwrap_err()] {
            assert_eq!((refused.code(), refused.wait()), (Code::RateLimited, Some(Duration::from_secs(40))));
        }
        assert!(failures.admit(address("203.0.113.10"), later).is_ok(), "its neighbour has all of its own");
        let over = start + WINDOW;
        assert!(failures.admit(from, over).is_ok());
        fail_often(&failures, from, AuthFailure::Unknown, MAX_FAILURES, over);
    }

    #[test]
    fn malformed_keys_do_not_count_as_guesses() {
        let (failures, from, now) = (AuthThrottle::default(), address("203.0.113.9"), Duration::ZERO);
        fail_often(&failures, from, AuthFailure::Malformed, MAX_FAILURES, now);
        assert_eq!(fail(&failures, from, AuthFailure::Malformed, now).code(), Code::RateLimited);
        assert!(failures.admit(from, now).is_ok());
    }

    #[test]
    fn ipv6_networks_count_as_one_address_and_mapped_addresses_as_ipv4() {
        let (failures, now) = (AuthThrottle::default(), Duration::ZERO);
        fail_often(&failures, address("2001:db8:0:1::1"), AuthFailure::Unknown, MAX_FAILURES, now);
        assert!(failures.admit(address("2001:db8:0:1:ffff::2"), now).is_err());
        assert!(failures.admit(address("2001:db8:0:2::1"), now).is_ok());
        fail_often(&failures, address("::ffff:203.0.113.9"), AuthFailure::Unknown, MAX_FAILURES, now);
        assert!(failures.admit(address("203.0.113.9"), now).is_err());
    }

    #[test]
    fn loopback_has_its_own_limit_and_unknown_addresses_have_none() {
        let (failures, now) = (AuthThrottle::default(), Duration::ZERO);
        for from in ["127.0.0.1", "::1"] {
            fail_often(&failures, address(from), AuthFailure::Unknown, MAX_LOOPBACK_FAILURES, now);
            assert_eq!(failures.admit(address(from), now).unwrap_err().code(), Code::RateLimited, "{from}");
        }
        fail_often(&failures, None, AuthFailure::Unknown, MAX_LOOPBACK_FAILURES + 1, now);
        assert!(failures.admit(None, now).is_ok());
    }

    #[test]
    fn the_table_is_bounded_and_evicts_the_oldest() {
        let (failures, now) = (AuthThrottle::default(), Duration::ZERO);
        let network = |index: usize| Some(IpAddr::V6(Ipv6Addr::from((index as u128) << 64 | 1 << 127)));
        for index in 0..3 * HALF_CAPACITY {
            fail(&failures, network(index), AuthFailure::Unknown, now);
        }
        let table = failures.table();
        assert!(table.young.len() + table.old.len() <= 2 * HALF_CAPACITY);
        let known = |index| network(index).is_some_and(|one| table.get(super::ClientPrefix::of(one), now).is_some());
        assert!(known(3 * HALF_CAPACITY - 1) && known(2 * HALF_CAPACITY) && !known(0));
    }
}
