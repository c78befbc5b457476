//! Which addresses a download may connect to. A hub's redirects and DNS names come from outside; without this check they
//! could make this machine send requests to services of its own network (server-side request forgery).
//!
//! A host in a reference is no permission to reach private addresses. The only exception is this machine, and only on
//! the command line: a user who may run the command may open such connections anyway.

use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;
use std::sync::LazyLock;

use outpost_common::ip_network::Network;

/// Blocks that are not part of the public internet (IANA's special-purpose address registries).
const NOT_PUBLIC: [&str; 24] = [
    "0.0.0.0/8",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "::/96",
    "64:ff9b:1::/48",
    "100::/64",
    "2001::/23",
    "2001:db8::/32",
    "2002::/16",
    "fc00::/7",
    "fe80::/9",
    "ff00::/8",
];

static BLOCKS: LazyLock<Vec<Network>> = LazyLock::new(|| NOT_PUBLIC.iter().filter_map(|b| b.parse().ok()).collect());

/// A host that may have an address that is not public.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllowedHost {
    /// In lower case.
    pub host: String,
    /// `None`: all ports.
    pub port: Option<u16>,
}

/// The hosts that may have any address. All others must have public ones.
#[derive(Clone, Debug, Default)]
pub struct AddressPolicy {
    pub allowed: Vec<AllowedHost>,
}

impl AddressPolicy {
    /// Decides about a connection to `address`, one of the addresses of `host`.
    pub fn permits(&self, host: &str, port: u16, address: IpAddr) -> bool {
        let is_named = |allowed: &AllowedHost| {
            allowed.host.eq_ignore_ascii_case(host) && allowed.port.is_none_or(|allowed| allowed == port)
        };
        is_public(address) || self.allowed.iter().any(is_named)
    }
}

fn is_public(address: IpAddr) -> bool {
    if let IpAddr::V6(v6) = address.to_canonical() {
        // NAT64: the last 32 bits are the IPv4 address that is reached (RFC 6052).
        if let [0x64, 0xff9b, 0, 0, 0, 0, high, low] = v6.segments() {
            return is_public(IpAddr::V4(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low))));
        }
    }
    !BLOCKS.iter().any(|block| block.contains(address))
}

impl FromStr for AllowedHost {
    type Err = String;

    /// Parses `HOST` or `HOST:PORT`; an IPv6 address with a port needs brackets.
    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("'{text}' is not a host; write for example mirror.internal or mirror.internal:8443");
        let is_bare_v6 = text.parse::<std::net::Ipv6Addr>().is_ok();
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !is_bare_v6 && !text.ends_with(']') => (host, Some(port.parse().map_err(|_| bad())?)),
            _ => (text, None),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-._:".contains(&b);
        match !host.is_empty() && host.bytes().all(is_plain) {
            true => Ok(Self { host, port }),
            false => Err(bad()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_public_addresses_are_reached_without_being_named() {
        assert_eq!(BLOCKS.len(), NOT_PUBLIC.len());
        for private in [
            "127.0.0.1",
            "0.0.0.0",
            "10.1.2.3",
            "172.31.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::127.0.0.1",
            "fe80::1",
            "fd00::1",
            "fec0::1",
            "ff02::1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "2001:db8::1",
        ] {
            let address = private.parse().unwrap();
            assert!(!AddressPolicy::default().permits("hub.example", 443, address), "{private}");
        }
        for public in ["1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "64:ff9b::101:101"] {
            assert!(AddressPolicy::default().permits("hub.example", 443, public.parse().unwrap()), "{public}");
        }
    }

    #[test]
    fn a_named_host_may_have_any_address_at_its_port() {
        let policy = |text: &str| AddressPolicy { allowed: vec![text.parse().unwrap()] };
        let local: IpAddr = "10.0.0.1".parse().unwrap();
        assert!(policy("Mirror.internal").permits("mirror.internal", 9, local));
        assert!(policy("mirror.internal:8443").permits("mirror.internal", 8443, local));
        assert!(!policy("mirror.internal:8443").permits("mirror.internal", 22, local));
        assert!(!policy("mirror.internal").permits("evil-mirror.internal", 443, local));
        assert!(policy("[::1]:80").permits("::1", 80, "::1".parse().unwrap()));
        assert!(policy("::1").permits("::1", 81, "::1".parse().unwrap()));
        for bad in ["", "a b", "a:x", "a:70000", "http://a", "a/b"] {
            assert!(bad.parse::<AllowedHost>().is_err(), "{bad}");
        }
    }
}
