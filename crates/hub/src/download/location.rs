//! URLs of downloads.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use http1::Uri;

/// A URL with the scheme `http` or `https`, a host and no user. It is displayed without its query, which may be a signature.
#[derive(Clone, PartialEq, Eq)]
pub struct Location(Arc<Parts>);

#[derive(PartialEq, Eq)]
struct Parts {
    uri: Uri,
    origin: Origin,
}

/// Scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    pub is_https: bool,
    /// In lower case, without the brackets of an IPv6 address.
    pub host: String,
    pub port: u16,
}

impl Origin {
    /// Whether the host is this machine, by its name or address.
    pub fn is_loopback(&self) -> bool {
        self.host == "localhost" || self.host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl Location {
    /// Parses a URL.
    ///
    /// # Errors
    /// Why it is not one. The text does not repeat the URL.
    pub fn parse(url: &str) -> Result<Self, &'static str> {
        let uri: Uri = url.parse().map_err(|_| "is not a URL")?;
        let is_https = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err("does not begin with https://"),
        };
        let authority = uri.authority().filter(|authority| !authority.host().is_empty()).ok_or("has no host")?;
        if authority.as_str().contains('@') {
            return Err("has a user or a password");
        }
        if authority.port_u16().is_none() && authority.as_str() != authority.host() {
            return Err("has a port that is not a number from 1 to 65535");
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
        let port = authority.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        Ok(Self(Arc::new(Parts { origin: Origin { is_https, host, port }, uri })))
    }

    /// The URL that `reference`, the value of a `Location` header, means at this one.
    pub fn join(&self, reference: &str) -> Result<Self, &'static str> {
        let scheme = if self.0.origin.is_https { "https" } else { "http" };
        let authority = self.0.uri.authority().map_or("", |authority| authority.as_str());
        let is_absolute = reference.split_once("://").is_some_and(|(scheme, _)| {
            !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
        });
        match reference {
            _ if is_absolute => Self::parse(reference),
            _ if reference.starts_with("//") => Self::parse(&format!("{scheme}:{reference}")),
            _ if reference.starts_with('/') => Self::parse(&format!("{scheme}://{authority}{reference}")),
            _ if reference.starts_with('?') => {
                Self::parse(&format!("{scheme}://{authority}{}{reference}", self.0.uri.path()))
            }
            _ => {
                let folder = self.0.uri.path().rsplit_once('/').map_or("", |(folder, _)| folder);
                Self::parse(&format!("{scheme}://{authority}{folder}/{reference}"))
            }
        }
    }

    pub fn origin(&self) -> &Origin {
        &self.0.origin
    }

    /// The path, without the query.
    pub fn path(&self) -> &str {
        self.0.uri.path()
    }

    pub(super) fn uri(&self) -> &Uri {
        &self.0.uri
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.0.origin.is_https { "https" } else { "http" };
        let authority = self.0.uri.authority().map_or("", |authority| authority.as_str());
        write!(f, "{scheme}://{authority}{}", self.0.uri.path())
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::Location;

    #[test]
    fn references_of_redirects_are_resolved() {
        let base = Location::parse("https://hub.example:8443/a/b/resolve/main/c.gguf?x=1").unwrap();
        for (reference, expected) in [
            ("https://cdn.example/f?Signature=s", "https://cdn.example/f"),
            ("//cdn.example/f", "https://cdn.example/f"),
            ("/api/f", "https://hub.example:8443/api/f"),
            ("d.gguf", "https://hub.example:8443/a/b/resolve/main/d.gguf"),
            ("?y=2", "https://hub.example:8443/a/b/resolve/main/c.gguf"),
            ("f?next=http://x", "https://hub.example:8443/a/b/resolve/main/f"),
        ] {
            assert_eq!(base.join(reference).unwrap().to_string(), expected, "{reference}");
        }
        assert!(base.join("file:///etc/passwd").is_err());
    }

    #[test]
    fn only_plain_web_urls_are_accepted() {
        for bad in ["", "a", "ftp://a/b", "https://", "https://u:p@a/b", "https://a:99999/", "https://a b/", "https:/a"]
        {
            assert!(Location::parse(bad).is_err(), "{bad}");
        }
        let origin = |url: &str| Location::parse(url).unwrap().origin().clone();
        assert_eq!(origin("https://A.example/x"), origin("https://a.example:443/y"));
        assert_ne!(origin("https://a.example/"), origin("http://a.example/"));
        assert_eq!(origin("http://[::1]:8/").host, "::1");
        assert!(origin("http://[::1]:8/").is_loopback() && origin("http://127.9.9.9").is_loopback());
        assert!(!origin("http://localhost.example").is_loopback());
    }
}
