//! Requests without an API key, for clients that have none (`--keyless-project`). They act with a key of that project that
//! may only call models. Most programs for local servers insist on some key, so their users enter a placeholder such as
//! `ollama`: what cannot be one of our keys counts as none.
//!
//! What is accepted must come from a program on this machine. The peer's address excludes other machines, and the host
//! name DNS rebinding. A web page on this machine is recognised by what browsers add to its requests: `Origin` and
//! `Sec-Fetch-Site`. A proxy on this machine is recognised only by the headers that it adds.
//!
//! A token that contains `opk_` is never a placeholder, so a mistyped key is refused and never acts for another
//! project. Any origin (`--cors-origin '*'`) does not count, because it was meant for pages that have a key. Every path
//! that calls models is included, because programs list models at one path and chat at another.

use actix_web::HttpRequest;
use actix_web::http::header::{self, HeaderMap, HeaderName, HeaderValue};

use super::Api;
use super::api_format::below_own_prefix;
use super::response::Mount;
use crate::ids::KeyId;
use crate::origin::Origin;
use crate::service::keys::secret::looks_like_key;

/// The first segments of the paths, below the mounts, that call models or list them.
const MODEL_PATHS: [&str; 19] = [
    "apply-template",
    "audio",
    "chat",
    "completion",
    "completions",
    "detokenize",
    "embeddings",
    "images",
    "infill",
    "messages",
    "models",
    "moderations",
    "props",
    "rerank",
    "reranking",
    "responses",
    "score",
    "tokenize",
    "tokenizer_info",
];

/// Where Anthropic's clients send the key.
pub const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Headers that proxies add to a request.
const FORWARDED: [HeaderName; 4] =
    [header::FORWARDED, header::VIA, HeaderName::from_static("x-forwarded-for"), HeaderName::from_static("x-real-ip")];

/// The key of a request that has none, if the operator and the request allow it.
pub fn key(api: &Api, request: &HttpRequest) -> Option<KeyId> {
    let key = api.keyless?;
    let headers = request.headers();
    let is_local = request.peer_addr().is_some_and(|peer| peer.ip().to_canonical().is_loopback());
    let is_accepted = calls_models(request.path())
        && is_local
        && !has_credentials(headers)
        && !FORWARDED.iter().any(|name| headers.contains_key(name))
        && api.hosts.is_local(request)
        && is_own_program(headers, &api.origins.load());
    is_accepted.then_some(key)
}

/// True for paths that call models or list them.
fn calls_models(path: &str) -> bool {
    let first_segment =
        |(_, rest): (Mount, &str)| rest.split('/').nth(1).is_some_and(|first| MODEL_PATHS.contains(&first));
    below_own_prefix(path).is_some() || Mount::of(path).is_some_and(first_segment)
}

/// True if a request has credentials that could be a key of this server, or that are of another kind than keys. Some
/// clients send an empty key if none is configured, and others a placeholder.
fn has_credentials(headers: &HeaderMap) -> bool {
    let is_placeholder = |value: &HeaderValue, scheme: &str| {
        let Ok(text) = value.to_str() else { return false };
        let text = text.trim();
        let is_of_scheme =
            text.is_empty() || text.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
        is_of_scheme && !looks_like_key(text)
    };
    let authorizations = headers.get_all(header::AUTHORIZATION).all(|value| is_placeholder(value, "bearer"));
    let keys = headers.get_all(API_KEY).all(|value| is_placeholder(value, ""));
    !(authorizations && keys)
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
    use super::*;

    fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn empty_keys_and_placeholders_count_as_none() {
        for none in [
            &[][..],
            &[("authorization", "Bearer")],
            &[("authorization", " bearer  ")],
            &[("authorization", "Bearer ollama"), ("x-api-key", "sk-no-key-required")],
            &[("authorization", "Bearer"), ("authorization", "Bearer x")],
            &[("x-api-key", "")],
        ] {
            assert!(!has_credentials(&headers(none)), "{none:?}");
        }
        for some in [
            &[("authorization", "Bearer opk_")][..],
            &[("authorization", "Bearer \"OPK_x\"")],
            &[("authorization", "Basic eA==")],
            &[("authorization", "ollama")],
            &[("x-api-key", "opk_x")],
            &[("authorization", "Bearer ollama"), ("x-api-key", "opk_x")],
            &[("authorization", "Bearer"), ("authorization", "Bearer opk_x")],
        ] {
            assert!(has_credentials(&headers(some)), "{some:?}");
        }
    }

    #[test]
    fn only_paths_of_models_are_served() {
        for path in [
            "/api/tags",
            "/v2/embed",
            "/v1/models",
            "/v1/models/a",
            "/openai/v1/chat/completions",
            "/v1/messages/count_tokens",
        ] {
            assert!(calls_models(path), "{path}");
        }
        for path in
            ["/v1/me", "/v1/api-keys", "/v1/modelsx", "/v1/model-pulls", "/v1", "/metrics", "/chat", "/api", "/v2"]
        {
            assert!(!calls_models(path), "{path}");
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
