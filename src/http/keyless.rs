//! Requests without an API key, for clients that send none (`--keyless-project`). They act with a key of that project that
//! may only call models.
//!
//! What is accepted must come from a program on this machine. The peer's address excludes other machines, and the host
//! name DNS rebinding. A web page on this machine is recognised by what browsers add to its requests: `Origin` and
//! `Sec-Fetch-Site`. A proxy on this machine is recognised only by the headers that it adds.

use actix_web::HttpRequest;
use actix_web::http::Method;
use actix_web::http::header::{self, HeaderMap, HeaderName};

use super::Api;
use super::api_format::is_ollama;
use crate::ids::KeyId;
use crate::origin::Origin;

/// VS Code lists models with Ollama's API, and then chats here.
const OPENAI_CHAT: &str = "/v1/chat/completions";

/// Where Anthropic's clients send the key.
pub const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// What proxies add to a request.
const FORWARDED: [HeaderName; 4] =
    [header::FORWARDED, header::VIA, HeaderName::from_static("x-forwarded-for"), HeaderName::from_static("x-real-ip")];

/// The key of a request that has none, if the operator and the request allow it.
pub fn key(api: &Api, request: &HttpRequest) -> Option<KeyId> {
    let key = api.keyless?;
    let headers = request.headers();
    let is_served = is_ollama(request.path()) || (request.path() == OPENAI_CHAT && request.method() == Method::POST);
    let is_local = request.peer_addr().is_some_and(|peer| peer.ip().to_canonical().is_loopback());
    let is_accepted = is_served
        && is_local
        && !has_credentials(headers)
        && !FORWARDED.iter().any(|name| headers.contains_key(name))
        && api.hosts.is_local(request)
        && is_own_program(headers, &api.origins.load());
    is_accepted.then_some(key)
}

/// Whether a request has any credentials. Some clients send an empty key if none is configured.
fn has_credentials(headers: &HeaderMap) -> bool {
    let is_empty = |value: &str| value.trim().is_empty() || value.trim().eq_ignore_ascii_case("bearer");
    let sent = headers.get_all(header::AUTHORIZATION).chain(headers.get_all(API_KEY));
    sent.into_iter().any(|value| !value.to_str().is_ok_and(is_empty))
}

/// Whether a request is not from a web page, except for a page of an origin that the operator has named. Any origin (`*`)
/// names none. A header that is sent more than once must be acceptable each time.
fn is_own_program(headers: &HeaderMap, origins: &[Origin]) -> bool {
    let is_named = |origin: &str| origins.iter().any(|named| *named != Origin::Any && named.matches(origin));
    match headers.contains_key(header::ORIGIN) {
        true => headers.get_all(header::ORIGIN).all(|origin| origin.to_str().is_ok_and(is_named)),
        // Absent unless a browser sends the request; `none` if its user does.
        false => headers.get_all(SEC_FETCH_SITE).all(|site| site == "none"),
    }
}

#[cfg(test)]
mod tests {
    use actix_web::http::header::HeaderValue;

    use super::*;

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn only_an_empty_key_counts_as_none() {
        for none in [&[][..], &[("authorization", "Bearer")], &[("authorization", " bearer  ")], &[("x-api-key", "")]] {
            assert!(!has_credentials(&headers(none)), "{none:?}");
        }
        for some in [
            &[("authorization", "Bearer x")][..],
            &[("authorization", "Basic eA==")],
            &[("x-api-key", "x")],
            &[("authorization", "Bearer"), ("authorization", "Bearer x")],
        ] {
            assert!(has_credentials(&headers(some)), "{some:?}");
        }
    }

    #[test]
    fn web_pages_need_a_named_origin() {
        let named: [Origin; 2] = [Origin::Any, "https://app.example.org".parse().unwrap()];
        for own in [
            &[][..],
            &[("sec-fetch-site", "none")],
            &[("sec-fetch-site", "none"), ("sec-fetch-site", "none")],
            &[("origin", "https://app.example.org"), ("sec-fetch-site", "cross-site")],
        ] {
            assert!(is_own_program(&headers(own), &named), "{own:?}");
        }
        for page in [
            &[("origin", "https://evil.example")][..],
            &[("origin", "null")],
            &[("origin", "http://localhost:8080")],
            &[("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "same-site")],
            &[("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "cross-site"), ("sec-fetch-site", "none")],
            &[("sec-fetch-site", "none, cross-site")],
            &[("origin", "https://app.example.org"), ("origin", "https://evil.example")],
            &[("origin", "https://evil.example"), ("origin", "https://app.example.org")],
        ] {
            assert!(!is_own_program(&headers(page), &named), "{page:?}");
        }
        assert!(!is_own_program(&headers(&[("origin", "https://app.example.org")]), &[Origin::Any]));
    }
}
