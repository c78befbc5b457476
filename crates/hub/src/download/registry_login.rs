//! Tokens of registries that speak the OCI distribution API
//! (<https://distribution.github.io/distribution/spec/auth/token/>).
//!
//! A registry answers a request without a valid token with status 401 and a challenge: it names a server, the realm, that
//! gives tokens. The realm gets the user's credentials, so it must be as safe as the registry: its URL has https, or it is on
//! this machine like the registry. Only the registry's own answer counts, not that of a server to which it redirects.
//!
//! Registries and their token servers usually have different hosts, so a same-origin rule would exclude most of them,
//! and a registry that names a malicious server could just as well ask for the account itself. The rule is therefore
//! about encryption, and about who may name the server. `OUTPOST_OCI_REGISTRY` ties the account to one registry, for a
//! server whose administrators may name any registry.

use std::sync::{Mutex, PoisonError};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;

use super::authorization::Authorization;
use super::error::{DownloadError, Refusal};
use super::location::{Location, Origin};

/// Max bytes of a realm's answer.
pub(super) const MAX_TOKEN_ANSWER_BYTES: u64 = 256 << 10;
/// Max bytes of a challenge.
const MAX_CHALLENGE_BYTES: usize = 4096;

/// Access to a repository of a registry. A token is renewed when the registry no longer accepts it.
#[derive(Debug)]
pub struct RegistryLogin {
    registry: Origin,
    /// The scope for realms that are not told another one.
    scope: String,
    credentials: Option<Authorization>,
    current: Mutex<Option<Authorization>>,
}

/// How to log in.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    /// The registry itself takes the credentials.
    Basic(Authorization),
    /// A realm gives a token.
    Token { location: Location, credentials: Option<Authorization> },
}

impl RegistryLogin {
    /// `credentials`: of a user of the registry. They are not used if the registry would get them unencrypted.
    pub fn new(registry: &Location, repository: &str, credentials: Option<Authorization>) -> Self {
        let registry = registry.origin().clone();
        let credentials = credentials.filter(|_| registry.is_https || registry.is_loopback());
        Self { registry, scope: format!("repository:{repository}:pull"), credentials, current: Mutex::default() }
    }

    pub fn has_credentials(&self) -> bool {
        self.credentials.is_some()
    }

    pub(super) fn current(&self) -> Option<Authorization> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Keeps what the registry will accept for the next requests.
    pub(super) fn keep(&self, authorization: Authorization) -> Authorization {
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(authorization.clone());
        authorization
    }

    /// How to answer a refusal; `None` if a login does not help.
    pub(super) fn challenge(&self, refusal: &Refusal) -> Result<Option<Challenge>, DownloadError> {
        if refusal.status.as_u16() != 401 || *refusal.location.origin() != self.registry {
            return Ok(None);
        }
        let text = refusal.challenge.as_deref().filter(|text| text.len() <= MAX_CHALLENGE_BYTES).unwrap_or_default();
        let (scheme, parameters) = text.split_once(' ').unwrap_or((text, ""));
        match scheme.to_ascii_lowercase().as_str() {
            "basic" => Ok(self.credentials.clone().map(Challenge::Basic)),
            "bearer" => {
                let token = self.token_challenge(parameters);
                token.map(Some).map_err(|why| DownloadError::protocol(&refusal.location, why))
            }
            _ => Ok(None),
        }
    }

    fn token_challenge(&self, parameters: &str) -> Result<Challenge, String> {
        let parameters = parse_parameters(parameters);
        let find = |name: &str| parameters.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str());
        let realm = find("realm").filter(|realm| !realm.contains('#')).ok_or("it names no server that gives tokens")?;
        let mut url = realm.to_owned();
        for (name, value) in [("service", find("service")), ("scope", find("scope").or(Some(&self.scope)))] {
            if let Some(value) = value {
                let separator = if url.contains('?') { '&' } else { '?' };
                url.push_str(&format!("{separator}{name}={}", utf8_percent_encode(value, NON_ALPHANUMERIC)));
            }
        }
        let location = Location::parse(&url).map_err(|why| format!("the server that gives tokens {why}"))?;
        let (realm, is_own) = (location.origin(), *location.origin() == self.registry);
        let is_safe = realm.is_https || (realm.is_loopback() && self.registry.is_loopback());
        match is_safe || is_own {
            true => Ok(Challenge::Token { location, credentials: self.credentials.clone() }),
            false => Err(format!("the server that gives tokens, {location}, is not encrypted")),
        }
    }
}

/// The parameters of a challenge (RFC 9110, section 11.2). Names are in lower case.
fn parse_parameters(mut text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    while let Some((name, rest)) = text.split_once('=') {
        let name = name.trim_matches([',', ' ', '\t']).to_ascii_lowercase();
        let (value, rest) = match rest.strip_prefix('"') {
            Some(quoted) => unquote(quoted),
            None => {
                let (value, rest) = rest.split_once(',').unwrap_or((rest, ""));
                (value.trim().to_owned(), rest)
            }
        };
        found.push((name, value));
        text = rest;
    }
    found
}

/// The value up to the closing quote, and what follows.
fn unquote(text: &str) -> (String, &str) {
    let (mut value, mut characters) = (String::new(), text.char_indices());
    while let Some((index, character)) = characters.next() {
        match character {
            '"' => return (value, text.get(index + 1..).unwrap_or_default()),
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            _ => value.push(character),
        }
    }
    (value, "")
}

/// The token in a realm's answer.
pub(super) fn read_token(answer: &[u8]) -> Option<Authorization> {
    #[derive(Deserialize)]
    struct Answer {
        token: Option<String>,
        access_token: Option<String>,
    }
    let Answer { token, access_token } = serde_json::from_slice(answer).ok()?;
    Authorization::bearer(&token.filter(|token| !token.is_empty()).or(access_token)?)
}

#[cfg(test)]
mod tests {
    use http1::StatusCode;

    use super::*;

    fn login(registry: &str) -> RegistryLogin {
        let registry = Location::parse(registry).unwrap();
        RegistryLogin::new(&registry, "u/m", Authorization::basic("user", "secret"))
    }

    fn answer(registry: &str, challenge: &str) -> Result<Option<Challenge>, String> {
        let location = Location::parse(&format!("{registry}/v2/u/m/manifests/latest")).unwrap();
        let (status, challenge) = (StatusCode::UNAUTHORIZED, Some(challenge.to_owned()));
        let refusal = Refusal { location, status, code: None, message: None, challenge, wait: None };
        login(registry).challenge(&refusal).map_err(|error| error.to_string())
    }

    fn asked(registry: &str, challenge: &str) -> (String, bool) {
        match answer(registry, challenge).unwrap().unwrap() {
            Challenge::Token { location, credentials } => (location.uri().to_string(), credentials.is_some()),
            Challenge::Basic(_) => panic!("basic"),
        }
    }

    #[test]
    fn a_realm_is_asked_for_the_scope_of_the_challenge() {
        let registry = "https://r.example";
        let full = r#"Bearer realm="https://auth.example/token?x=1",service="r.example",scope="repository:u/m:pull""#;
        let url = "https://auth.example/token?x=1&service=r%2Eexample&scope=repository%3Au%2Fm%3Apull";
        assert_eq!(asked(registry, full), (url.to_owned(), true));
        let url = "https://auth.example/?scope=repository%3Au%2Fm%3Apull";
        assert_eq!(asked(registry, r#"bearer Realm="https://auth.example/""#), (url.to_owned(), true));
        let escaped = asked(registry, r#"Bearer service="a\"b", realm=https://auth.example/t"#).0;
        assert!(escaped.contains("service=a%22b"), "{escaped}");
        assert_eq!(answer(registry, "Negotiate"), Ok(None));
        assert!(matches!(answer(registry, "Basic realm=\"x\""), Ok(Some(Challenge::Basic(_)))));
    }

    #[test]
    fn credentials_go_to_safe_servers_only() {
        for (registry, realm) in [
            ("https://r.example", "http://r.example/token"),
            ("https://r.example", "http://127.0.0.1/token"),
            ("http://127.0.0.1:5000", "http://auth.example/token"),
            ("http://mirror.internal", "http://auth.internal/token"),
            ("https://r.example", "ftp://r.example"),
            ("https://r.example", "https://u:p@r.example"),
            ("https://r.example", ""),
        ] {
            let challenge = format!("Bearer realm=\"{realm}\"");
            assert!(answer(registry, &challenge).is_err(), "{registry} {realm}");
        }
        // Unencrypted, but its own: without credentials.
        assert!(!asked("http://mirror.internal", r#"Bearer realm="http://mirror.internal/t""#).1);
        assert!(asked("http://127.0.0.1:5000", r#"Bearer realm="http://127.0.0.1:5001/t""#).1);
        assert_eq!(answer("http://mirror.internal", "Basic realm=x"), Ok(None));
    }

    #[test]
    fn tokens_are_read_from_both_fields() {
        let bearer = Authorization::bearer("t");
        assert_eq!(read_token(br#"{"token":"t","expires_in":300}"#), bearer);
        assert_eq!(read_token(br#"{"token":"","access_token":"t"}"#), bearer);
        for bad in ["{}", "[]", "x", r#"{"token":"a\nb"}"#] {
            assert_eq!(read_token(bad.as_bytes()), None, "{bad}");
        }
    }

    #[test]
    fn any_challenge_is_parsed_without_a_panic() {
        for odd in ["Bearer", "Bearer =", "Bearer realm=\"", "Bearer realm=\"\\", "Bearer a=b=c,é=\"é\"", " ", "="] {
            let _refused_or_ignored = answer("https://r.example", odd);
        }
    }
}
