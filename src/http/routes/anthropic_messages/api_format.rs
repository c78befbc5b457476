//! The requests and the errors of Anthropic's API.

use actix_web::HttpRequest;
use serde_json::{Value, json};

use crate::error::{Code, Error};
use crate::http::api_format::{ApiFormat, OPENAI, code_schema};
use crate::http::response::Mount;
use crate::ids::RequestId;
use crate::service::keys::secret::redact;

/// The header that Anthropic's clients send.
const ANTHROPIC_VERSION: &str = "anthropic-version";

pub const ANTHROPIC: ApiFormat = ApiFormat {
    is_for,
    tag: Some("messages"),
    request_id_header: Some("request-id"),
    error_status: |code| status_and_type(code).0,
    error_body,
    error_name: "AnthropicError",
    error_description: "An error of Anthropic's API; `error.code` identifies it.",
    error_schema,
    ..OPENAI
};

/// True for requests to the Messages API, and for those with the header of Anthropic's clients.
pub fn is_for(request: &HttpRequest) -> bool {
    let is_message = Mount::of(request.path()).is_some_and(|(_, path)| {
        path.strip_prefix("/messages").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    });
    is_message || request.headers().contains_key(ANTHROPIC_VERSION)
}

/// The status and the type that Anthropic's API has for an error.
fn status_and_type(code: Code) -> (u16, &'static str) {
    match code {
        Code::Overloaded | Code::ShuttingDown => (529, "overloaded_error"),
        code => match code.status() {
            401 => (401, "authentication_error"),
            403 => (403, "permission_error"),
            404 => (404, "not_found_error"),
            413 => (413, "request_too_large"),
            429 => (429, "rate_limit_error"),
            status @ 500.. => (status, "api_error"),
            status => (status, "invalid_request_error"),
        },
    }
}

/// Anthropic's own errors have no `code` and no `param`.
pub fn error_body(error: &Error, request_id: Option<RequestId>) -> Value {
    let (_, kind) = status_and_type(error.code());
    json!({
        "type": "error",
        "error": {
            "type": kind,
            "message": redact(error.message()),
            "code": error.code().as_str(),
            "param": error.param_name().map(redact),
        },
        "request_id": request_id,
    })
}

fn error_schema() -> Value {
    json!({
        "type": "object",
        "required": ["type", "error", "request_id"],
        "properties": {
            "type": { "const": "error" },
            "error": {
                "type": "object",
                "required": ["type", "message", "code", "param"],
                "properties": {
                    "type": { "type": "string" },
                    "message": { "type": "string" },
                    "code": code_schema(),
                    "param": { "type": ["string", "null"] },
                },
            },
            "request_id": { "type": "string" },
        },
    })
}
