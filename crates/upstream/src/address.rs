//! The address of a target: where requests go. Only `upstream.toml` sets it.

use http1::Uri;

/// The base URL of a target's API, such as `https://gpu1.internal:8000/v1`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// Without a slash at the end.
    base: String,
    host: String,
    /// Host and port, for logs and metrics.
    authority: String,
    is_https: bool,
}

impl Address {
    /// Parses a URL. The error does not repeat it.
    pub fn parse(url: &str) -> Result<Self, &'static str> {
        if url.contains(['?', '#']) {
            return Err("must not have a query or a fragment");
        }
        let base = url.trim_end_matches('/');
        let uri: Uri = base.parse().map_err(|_| "is not a URL such as https://gpu1.internal:8000/v1")?;
        let is_https = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err("must begin with http:// or https://"),
        };
        let authority = uri.authority().filter(|authority| !authority.host().is_empty()).ok_or("has no host")?;
        if authority.as_str().contains('@') {
            return Err("must not have a user or a password; use key_file or key_env");
        }
        if authority.port_u16().is_none() && authority.as_str() != authority.host() {
            return Err("has a port that is not a number from 1 to 65535");
        }
        let (host, authority) = (authority.host().to_owned(), authority.as_str().to_owned());
        Ok(Self { base: base.to_owned(), host, authority, is_https })
    }

    /// The URL of an operation, such as `chat/completions`.
    pub fn url(&self, operation: &str) -> Result<Uri, http1::uri::InvalidUri> {
        format!("{}/{operation}", self.base).parse()
    }

    /// Host and port. Without the path, which may tell more than an operator wants to see in metrics.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    pub fn host(&self) -> &str {
        &self.host
    }

    pub fn is_https(&self) -> bool {
        self.is_https
    }
}

#[cfg(test)]
mod tests {
    use super::Address;

    #[test]
    fn operations_are_below_the_base() {
        for (url, expected) in [
            ("http://a", "http://a/chat/completions"),
            ("https://a:8443/v1/", "https://a:8443/v1/chat/completions"),
            ("http://[::1]:80/x/v1", "http://[::1]:80/x/v1/chat/completions"),
        ] {
            assert_eq!(Address::parse(url).unwrap().url("chat/completions").unwrap().to_string(), expected);
        }
        assert_eq!(Address::parse("https://a:8443/secret").unwrap().authority(), "a:8443");
    }

    #[test]
    fn addresses_that_are_not_plain_urls_are_refused() {
        for url in [
            "",
            "a",
            "a:80/v1",
            "ftp://a",
            "http://",
            "http://u:p@a/v1",
            "http://a/v1?x=1",
            "http://a/#x",
            "http://a b",
            "http://a:99999",
            "http://a:x",
            "unix:///run/a",
        ] {
            let refused = Address::parse(url).unwrap_err();
            assert!(url.is_empty() || !refused.contains("p@a"), "{url}: {refused}");
        }
    }
}
