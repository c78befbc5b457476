//! Web origins, as browsers send them in the header `Origin` (RFC 6454).

use std::str::FromStr;

/// An origin whose pages may call the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Any,
    /// Scheme, host and port, in lower case and without the scheme's default port.
    Exact(String),
}

impl Origin {
    /// True if a request with this `Origin` header is from the origin.
    pub fn matches(&self, header: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Exact(origin) => origin.eq_ignore_ascii_case(header),
        }
    }
}

impl FromStr for Origin {
    type Err = String;

    /// Reads `*` or `scheme://host[:port]`.
    fn from_str(text: &str) -> Result<Self, String> {
        if text == "*" {
            return Ok(Self::Any);
        }
        let hint = || {
            format!(
                "'{text}' is not an origin; write scheme and host without a path, such as https://app.example.org or http://localhost:3000, or * for any"
            )
        };
        let lower = text.to_ascii_lowercase();
        let (scheme, authority) = lower.split_once("://").filter(|(scheme, _)| is_scheme(scheme)).ok_or_else(hint)?;
        let (host, port) = split_port(authority);
        if !is_host(host) || port.is_some_and(|port| port.parse::<u16>().is_err() || port.starts_with('+')) {
            return Err(hint());
        }
        let is_default = matches!((scheme, port), ("http", Some("80")) | ("https", Some("443")));
        Ok(Self::Exact(if is_default { format!("{scheme}://{host}") } else { lower }))
    }
}

fn is_scheme(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

/// The host and the port. A colon inside the brackets of an IPv6 address separates no port.
fn split_port(authority: &str) -> (&str, Option<&str>) {
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (authority, None),
    }
}

fn is_host(text: &str) -> bool {
    match text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c)),
    }
}

#[cfg(test)]
mod tests {
    use super::Origin;

    #[test]
    fn an_origin_is_a_scheme_a_host_and_a_port() {
        for (text, origin) in [
            ("https://app.example.org", "https://app.example.org"),
            ("HTTPS://App.Example.org:443", "https://app.example.org"),
            ("http://localhost:3000", "http://localhost:3000"),
            ("http://127.0.0.1:80", "http://127.0.0.1"),
            ("http://[::1]:5173", "http://[::1]:5173"),
            ("https://[::1]", "https://[::1]"),
            ("chrome-extension://abcdef", "chrome-extension://abcdef"),
        ] {
            assert_eq!(text.parse(), Ok(Origin::Exact(origin.to_owned())), "{text}");
        }
        assert_eq!("*".parse(), Ok(Origin::Any));
        for text in [
            "",
            "null",
            "app.example.org",
            "https://",
            "https://*.example.org",
            "https://app.example.org/",
            "https://app.example.org/path",
            "https://user@app.example.org",
            "https://app.example.org:port",
            "https://app.example.org:+1",
            "https://app.example.org:99999",
            "http://[::1",
            "http://::1",
            "1http://a",
        ] {
            assert!(text.parse::<Origin>().unwrap_err().contains("not an origin"), "{text}");
        }
    }

    #[test]
    fn exact_origins_match_only_themselves() {
        let origin: Origin = "https://App.example.org".parse().unwrap();
        assert!(origin.matches("https://app.example.org"));
        for other in ["http://app.example.org", "https://app.example.org:8443", "https://app.example.org.evil", "null"]
        {
            assert!(!origin.matches(other), "{other}");
        }
        assert!(Origin::Any.matches("null"));
    }
}
