//! The client address of a request, for limits per address.
//!
//! A connection's peer is the client, unless the peer is a proxy that the operator has named with `--trusted-proxy`.
//! Such a proxy appends the address of its client to `X-Forwarded-For` or `Forwarded`, so these headers are read from
//! right to left: each entry was written by the hop to its right, and only entries from trusted proxies are used. The
//! first address that is not a trusted proxy is the client. The client itself sent everything to the left of it.
//!
//! Limits per address never apply to a trusted proxy. If it forwards no readable address, its requests are not
//! throttled, and the log says so once. Otherwise all clients of the proxy would share one limit, so any of them could
//! lock out the others.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use actix_web::HttpRequest;
use actix_web::http::header::{self, HeaderMap, HeaderName};
use arc_swap::ArcSwap;

use crate::ip_network::Network;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Trusted proxies. They can be replaced while the server runs.
#[derive(Debug, Default)]
pub struct TrustedProxies {
    networks: ArcSwap<Vec<Network>>,
    /// Set once the missing forwarded address of a proxy was logged.
    warned: AtomicBool,
}

impl TrustedProxies {
    pub fn new(networks: Vec<Network>) -> Self {
        Self { networks: ArcSwap::from_pointee(networks), warned: AtomicBool::new(false) }
    }

    /// Open connections of a proxy that is new keep the bounds of their address.
    pub fn replace(&self, networks: Vec<Network>) {
        self.networks.store(Arc::new(networks));
    }

    /// True for addresses of trusted proxies, which are exempt from limits per address.
    pub fn contain(&self, address: IpAddr) -> bool {
        self.networks.load().iter().any(|network| network.contains(address))
    }

    /// The address to use for limits per address. `None` if only a trusted proxy's address is known: such limits never
    /// apply to a proxy.
    pub fn client(&self, request: &HttpRequest) -> Option<IpAddr> {
        let peer = request.peer_addr()?.ip();
        let client = self.client_of(peer, request.headers());
        if client.is_none() && !self.warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                proxy = %peer,
                "a trusted proxy sent no client address that can be read, or only that of a trusted proxy. Bounds by \
                 address do not apply to such requests: have it set X-Forwarded-For. This is said once"
            );
        }
        client
    }

    fn client_of(&self, peer: IpAddr, headers: &HeaderMap) -> Option<IpAddr> {
        let peer = peer.to_canonical();
        if !self.contain(peer) {
            return Some(peer);
        }
        // Only one of the two headers is used: a proxy that appends to one forwards the other as the client sent it.
        let (name, read): (_, fn(&str) -> Option<IpAddr>) = match headers.contains_key(&X_FORWARDED_FOR) {
            true => (X_FORWARDED_FOR, address),
            false => (header::FORWARDED, forwarded_for),
        };
        let lines: Vec<&str> = headers.get_all(name).map(|value| value.to_str().unwrap_or_default()).collect();
        let hops = lines.iter().rev().flat_map(|line| line.rsplit(','));
        // Entries beyond an invalid one are not trusted: it is unknown which hop wrote them.
        hops.map_while(read).find(|hop| !self.contain(*hop))
    }
}

/// The address of an entry of `X-Forwarded-For`; some proxies add the port.
fn address(entry: &str) -> Option<IpAddr> {
    let entry = entry.trim();
    let found = match entry.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) if port.is_empty() || port.starts_with(':') => IpAddr::V6(address.parse().ok()?),
        Some(_) => return None,
        None => match entry.split_once(':') {
            Some((address, port)) if !port.contains(':') => IpAddr::V4(address.parse().ok()?),
            _ => entry.parse().ok()?,
        },
    };
    Some(found.to_canonical())
}

/// The address of an element of `Forwarded` (RFC 7239): `for=192.0.2.1;proto=https`, `for="[2001:db8::1]:4711"`.
///
/// Elements are split at every comma, also within quotes: an unclosed quote of a client must not hide what the
/// proxy appended.
fn forwarded_for(element: &str) -> Option<IpAddr> {
    let mut pairs = element.split(';').filter_map(|pair| pair.split_once('='));
    let (_, node) = pairs.find(|(name, _)| name.trim().eq_ignore_ascii_case("for"))?;
    let node = node.trim();
    address(node.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(node))
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};

    use super::TrustedProxies;

    fn client(proxies: &[&str], peer: &str, headers: &[(&'static str, &'static str)]) -> Option<String> {
        let proxies = TrustedProxies::new(proxies.iter().map(|one| one.parse().unwrap()).collect());
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        proxies.client_of(peer.parse().unwrap(), &map).map(|address| address.to_string())
    }

    const PROXIES: &[&str] = &["10.0.0.0/8", "fd00::1"];

    fn behind(headers: &[(&'static str, &'static str)]) -> Option<String> {
        client(PROXIES, "10.0.0.1", headers)
    }

    #[test]
    fn only_headers_of_trusted_proxies_are_used() {
        let forged = &[("x-forwarded-for", "198.51.100.7"), ("forwarded", "for=198.51.100.7")];
        assert_eq!(client(&[], "10.0.0.1", forged).as_deref(), Some("10.0.0.1"));
        assert_eq!(client(PROXIES, "203.0.113.9", forged).as_deref(), Some("203.0.113.9"));
        assert_eq!(client(PROXIES, "::ffff:203.0.113.9", &[]).as_deref(), Some("203.0.113.9"));
        assert_eq!(client(PROXIES, "::ffff:10.0.0.1", forged).as_deref(), Some("198.51.100.7"));
        assert_eq!(client(PROXIES, "fd00::1", forged).as_deref(), Some("198.51.100.7"));
    }

    #[test]
    fn replaced_proxies_apply_at_once() {
        let network = |text: &str| vec![text.parse().unwrap()];
        let proxies = TrustedProxies::new(network("10.0.0.1"));
        proxies.replace(network("10.0.0.2"));
        assert_eq!(["10.0.0.1", "10.0.0.2"].map(|address| proxies.contain(address.parse().unwrap())), [false, true]);
    }

    #[test]
    fn the_rightmost_address_that_is_not_a_proxy_is_the_client() {
        let cases = [
            ("203.0.113.9", "203.0.113.9"),
            ("198.51.100.7, 203.0.113.9", "203.0.113.9"),
            ("198.51.100.7,203.0.113.9 , 10.0.0.2,10.0.0.3", "203.0.113.9"),
            ("nonsense, 203.0.113.9", "203.0.113.9"),
            ("203.0.113.9:4711", "203.0.113.9"),
            ("::ffff:203.0.113.9", "203.0.113.9"),
            ("2001:db8::1", "2001:db8::1"),
            ("[2001:db8::1]", "2001:db8::1"),
            ("[2001:db8::1]:4711", "2001:db8::1"),
        ];
        for (value, expected) in cases {
            assert_eq!(behind(&[("x-forwarded-for", value)]).as_deref(), Some(expected), "{value}");
        }
        let lines =
            [("x-forwarded-for", "198.51.100.7"), ("x-forwarded-for", "203.0.113.9"), ("x-forwarded-for", "10.0.0.2")];
        assert_eq!(behind(&lines).as_deref(), Some("203.0.113.9"));
    }

    #[test]
    fn the_second_header_is_used_if_the_first_is_absent() {
        let cases = [
            ("for=203.0.113.9", "203.0.113.9"),
            ("for=198.51.100.7, For = \"203.0.113.9:80\" ;proto=https", "203.0.113.9"),
            ("proto=https;for=\"[2001:db8::1]:4711\", for=10.0.0.2", "2001:db8::1"),
            ("for=\"198.51.100.7, for=203.0.113.9", "203.0.113.9"),
        ];
        for (value, expected) in cases {
            assert_eq!(behind(&[("forwarded", value)]).as_deref(), Some(expected), "{value}");
        }
        let both = [("forwarded", "for=198.51.100.7"), ("x-forwarded-for", "203.0.113.9")];
        assert_eq!(behind(&both).as_deref(), Some("203.0.113.9"));
    }

    #[test]
    fn entries_beyond_an_invalid_address_are_ignored() {
        let values = [
            "",
            "unknown",
            "203.0.113.9, ",
            "203.0.113.9, unknown, 10.0.0.2",
            "[::1",
            "[::1]x",
            "1.2.3.4.5",
            "10.0.0.2",
        ];
        for value in values {
            assert_eq!(behind(&[("x-forwarded-for", value)]), None, "{value}");
        }
        for value in
            ["", "for=unknown", "for=_hidden", "proto=https", "for=203.0.113.9, by=10.0.0.2", "for=\"203.0.113.9"]
        {
            assert_eq!(behind(&[("forwarded", value)]), None, "{value}");
        }
        assert_eq!(behind(&[]), None, "a proxy that forwards no address");
    }
}
