//! Renders an [`Error`] as a response, in the format of OpenAI's API, or of Anthropic's, Ollama's or Cohere's for
//! their requests.
//!
//! Handlers and extractors return `Error`; actix keeps it inside the response, and `request_logging` renders it here
//! once the request id is known. Errors from actix itself are converted to the same format.

use std::borrow::Cow;

use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderValue};
use actix_web::web::Bytes;
use actix_web::{HttpResponse, ResponseError};
use serde::Serialize;

use crate::error::{Code, Error, Result};
use crate::http::api_format::ApiFormat;
use crate::http::{ndjson, sse};
use crate::ids::RequestId;
use crate::service::keys::secret::redact;

#[derive(Serialize)]
struct Body<'a> {
    error: Fields<'a>,
}

#[derive(Serialize)]
struct Fields<'a> {
    message: Cow<'a, str>,
    r#type: &'a str,
    code: &'a str,
    param: Option<Cow<'a, str>>,
    request_id: RequestId,
}

impl<'a> Body<'a> {
    fn new(error: &'a Error, request_id: RequestId) -> Self {
        Self {
            error: Fields {
                message: redact(error.message()),
                r#type: error.code().kind(),
                code: error.code().as_str(),
                param: error.param_name().map(redact),
                request_id,
            },
        }
    }
}

/// The error of Anthropic's API.
#[derive(Serialize)]
struct AnthropicBody<'a> {
    r#type: &'static str,
    error: AnthropicFields<'a>,
    request_id: Option<RequestId>,
}

#[derive(Serialize)]
struct AnthropicFields<'a> {
    r#type: &'static str,
    message: Cow<'a, str>,
    /// Not in Anthropic's own errors, as the field below.
    code: &'static str,
    param: Option<Cow<'a, str>>,
}

impl<'a> AnthropicBody<'a> {
    fn new(error: &'a Error, request_id: Option<RequestId>) -> Self {
        let (_, kind) = anthropic_status(error.code());
        let fields = AnthropicFields {
            r#type: kind,
            message: redact(error.message()),
            code: error.code().as_str(),
            param: error.param_name().map(redact),
        };
        Self { r#type: "error", error: fields, request_id }
    }
}

/// The error of Ollama's API.
#[derive(Serialize)]
struct OllamaBody<'a> {
    error: Cow<'a, str>,
}

impl<'a> OllamaBody<'a> {
    fn new(error: &'a Error) -> Self {
        Self { error: redact(error.message()) }
    }
}

/// The error of Cohere's API.
#[derive(Serialize)]
struct CohereBody<'a> {
    id: RequestId,
    message: Cow<'a, str>,
    /// Not in Cohere's own errors, as the field below.
    code: &'static str,
    param: Option<Cow<'a, str>>,
}

impl<'a> CohereBody<'a> {
    fn new(error: &'a Error, id: RequestId) -> Self {
        let (message, param) = (redact(error.message()), error.param_name().map(redact));
        Self { id, message, code: error.code().as_str(), param }
    }
}

/// The status and the type that Anthropic's API has for an error.
fn anthropic_status(code: Code) -> (u16, &'static str) {
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

/// The last event of a stream that fails after it began. `recorded`: whether its usage was recorded. `None`: the
/// request has no id.
pub fn in_stream(error: &Error, request_id: Option<RequestId>, recorded: Result<()>) -> Option<sse::Event> {
    log_stream_failure(error, request_id, recorded);
    request_id.map(|id| sse::data(&Body::new(error, id)))
}

/// Like [`in_stream`], in the format of Anthropic's API.
pub fn anthropic_in_stream(error: &Error, request_id: Option<RequestId>, recorded: Result<()>) -> sse::Event {
    log_stream_failure(error, request_id, recorded);
    sse::named("error", &AnthropicBody::new(error, request_id))
}

/// The code and the message of an error that ends a stream of the Responses API.
pub fn responses_in_stream(
    error: &Error,
    request_id: Option<RequestId>,
    recorded: Result<()>,
) -> (&'static str, Cow<'_, str>) {
    log_stream_failure(error, request_id, recorded);
    // The only code of OpenAI's API for what is not the client's fault.
    let code = if error.code().status() >= 500 { "server_error" } else { error.code().as_str() };
    (code, redact(error.message()))
}

/// Like [`in_stream`], as a line in the format of Ollama's API.
pub fn ollama_in_stream(error: &Error, request_id: Option<RequestId>, recorded: Result<()>) -> Bytes {
    log_stream_failure(error, request_id, recorded);
    ndjson::line(&OllamaBody::new(error))
}

pub fn log_stream_failure(error: &Error, request_id: Option<RequestId>, recorded: Result<()>) {
    if let Err(unrecorded) = recorded {
        tracing::warn!(%unrecorded, "the usage of a failed stream is not recorded");
    }
    if let Some(cause) = error.cause() {
        tracing::error!(request_id = request_id.map(|id| id.to_string()), %cause, "stream failed");
    }
}

/// The full response to `error`.
pub fn render(error: &Error, request_id: RequestId, format: ApiFormat) -> HttpResponse {
    let mut response = match format {
        ApiFormat::OpenAi => HttpResponse::build(error.status_code()).json(Body::new(error, request_id)),
        ApiFormat::Ollama => HttpResponse::build(error.status_code()).json(OllamaBody::new(error)),
        ApiFormat::Cohere => HttpResponse::build(error.status_code()).json(CohereBody::new(error, request_id)),
        ApiFormat::Anthropic => {
            let (status, _) = anthropic_status(error.code());
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            HttpResponse::build(status).json(AnthropicBody::new(error, Some(request_id)))
        }
    };
    let headers = response.headers_mut();
    if error.code().status() == 401 {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if matches!(error.code(), Code::InsufficientQuota | Code::InsufficientStorage) {
        // OpenAI's clients obey this header: retrying does not help when a budget is exhausted or the disk is full.
        headers.insert(header::HeaderName::from_static("x-should-retry"), HeaderValue::from_static("false"));
    }
    if let Some(wait) = error.wait() {
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        // Rounded up, because a retry that is too early fails again.
        let millis = u64::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
        headers.insert(header::HeaderName::from_static("retry-after-ms"), HeaderValue::from(millis));
    }
    response
}

/// Converts an error from actix (an incomplete payload, a bad path).
pub fn translate(error: &actix_web::Error) -> Error {
    let status = error.as_response_error().status_code();
    let code = match status.as_u16() {
        404 => Code::NotFound,
        405 => Code::MethodNotAllowed,
        408 => Code::RequestTimeout,
        413 => Code::RequestTooLarge,
        415 => Code::UnsupportedEncoding,
        431 => Code::HeaderTooLarge,
        400..=499 => Code::InvalidParameter,
        _ => return Error::internal(error.to_string()),
    };
    let message = match code {
        Code::NotFound => "There is nothing at this path. /openapi.json lists every path.",
        Code::MethodNotAllowed => {
            "This path does not support the method. /openapi.json lists the methods of every path."
        }
        Code::RequestTimeout => "The request did not arrive in time. Send it faster, or check the connection.",
        Code::RequestTooLarge => "The request is too large. Send less in one request.",
        Code::UnsupportedEncoding => "The body's encoding is not accepted. Send the body uncompressed.",
        Code::HeaderTooLarge => "The headers are too large. Send fewer or shorter headers.",
        _ => "The request could not be read. Check its path, its headers and the encoding of its body.",
    };
    Error::new(code, message).with_cause(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{ApiFormat, render};
    use crate::error::{Code, Error};
    use crate::ids::RequestId;

    #[test]
    fn the_wait_in_milliseconds_is_rounded_up() {
        for (micros, millis) in [(1, "1"), (1_000, "1"), (1_001, "2")] {
            let error = Error::new(Code::RateLimited, "Too many.").retry_after(Duration::from_micros(micros));
            let response = render(&error, RequestId::from_bytes([0; 16]), ApiFormat::OpenAi);
            assert_eq!(response.headers().get("retry-after-ms").unwrap(), millis);
            assert_eq!(response.headers().get("retry-after").unwrap(), "1");
        }
    }
}
