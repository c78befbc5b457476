//! Renders an [`Error`] as a response, in the format of the request's API.
//!
//! Handlers and extractors return `Error`; actix keeps it inside the response, and `request_logging` renders it here
//! once the request id is known. Errors from actix itself are converted to the same format.

use actix_web::HttpResponse;
use actix_web::http::StatusCode;
use actix_web::http::header::{self, HeaderValue};

use crate::error::{Code, Error, Result};
use crate::http::api_format::{ApiFormat, OPENAI};
use crate::http::sse;
use crate::ids::RequestId;

/// The last event of a stream that fails after it began, in the format of OpenAI's API. `recorded`: whether its usage was
/// recorded. `None`: the request has no id.
pub fn in_stream(error: &Error, request_id: Option<RequestId>, recorded: Result<()>) -> Option<sse::Event> {
    log_stream_failure(error, request_id, recorded);
    request_id.map(|id| sse::data(&(OPENAI.error_body)(error, Some(id))))
}

/// Logs why a stream failed. `recorded`: whether its usage was recorded.
pub fn log_stream_failure(error: &Error, request_id: Option<RequestId>, recorded: Result<()>) {
    if let Err(unrecorded) = recorded {
        tracing::warn!(%unrecorded, "the usage of a failed stream is not recorded");
    }
    if let Some(cause) = error.cause() {
        tracing::error!(request_id = request_id.map(|id| id.to_string()), %cause, "stream failed");
    }
}

/// The full response to `error`, in the format of `api`.
pub fn render(error: &Error, request_id: RequestId, api: &ApiFormat) -> HttpResponse {
    let status = StatusCode::from_u16((api.error_status)(error.code())).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = HttpResponse::build(status).json((api.error_body)(error, Some(request_id)));
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

    use super::{OPENAI, render};
    use crate::error::{Code, Error};
    use crate::ids::RequestId;

    #[test]
    fn the_wait_in_milliseconds_is_rounded_up() {
        for (micros, millis) in [(1, "1"), (1_000, "1"), (1_001, "2")] {
            let error = Error::new(Code::RateLimited, "Too many.").retry_after(Duration::from_micros(micros));
            let response = render(&error, RequestId::from_bytes([0; 16]), &OPENAI);
            assert_eq!(response.headers().get("retry-after-ms").unwrap(), millis);
            assert_eq!(response.headers().get("retry-after").unwrap(), "1");
        }
    }
}
