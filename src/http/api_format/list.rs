//! The list of the APIs, and the one that a request is for.

use actix_web::HttpRequest;

use super::{ApiFormat, OPENAI};
use crate::http::routes::anthropic_messages::api_format::ANTHROPIC;
use crate::http::routes::cohere::api_format::COHERE;
use crate::http::routes::ollama::api_format::OLLAMA;

/// Every API, in the order of their errors in the OpenAPI document.
pub const APIS: [&ApiFormat; 4] = [&OPENAI, &ANTHROPIC, &OLLAMA, &COHERE];

/// The API that a request is for.
pub fn of(request: &HttpRequest) -> &'static ApiFormat {
    let with_prefix = split_prefix(request.path()).map(|(api, _)| api);
    with_prefix.or_else(|| APIS.into_iter().find(|api| (api.is_for)(request))).unwrap_or(&OPENAI)
}

/// The path below the prefix of an API that has its own, from its slash on.
pub fn below_own_prefix(path: &str) -> Option<&str> {
    split_prefix(path).map(|(_, rest)| rest)
}

fn split_prefix(path: &str) -> Option<(&'static ApiFormat, &str)> {
    APIS.into_iter().find_map(|api| {
        let rest = path.strip_prefix(api.prefix?)?;
        rest.starts_with('/').then_some((api, rest))
    })
}
