//! Secrets of requests.

use std::fmt;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use http1::HeaderValue;

/// The value of an `Authorization` header. It is sent to the origin of the request's URL, and not after a redirect to
/// another one.
#[derive(Clone, PartialEq, Eq)]
pub struct Authorization(HeaderValue);

impl Authorization {
    /// `None` if the token has characters that a header cannot have.
    pub fn bearer(token: &str) -> Option<Self> {
        Self::new(&format!("Bearer {token}"))
    }

    /// `None` if the user has a colon.
    pub fn basic(user: &str, password: &str) -> Option<Self> {
        let encoded = BASE64_STANDARD.encode(format!("{user}:{password}"));
        Self::new(&format!("Basic {encoded}")).filter(|_| !user.contains(':'))
    }

    pub(super) fn header(&self) -> HeaderValue {
        self.0.clone()
    }

    fn new(text: &str) -> Option<Self> {
        let mut value = HeaderValue::from_str(text).ok()?;
        value.set_sensitive(true);
        Some(Self(value))
    }
}

impl fmt::Debug for Authorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authorization(..)")
    }
}
