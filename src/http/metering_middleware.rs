//! Middleware for rate limits and usage metering of every request of a mount.
//!
//! A request is charged to its project's rate limit before its body is read. Its usage is durable before the response
//! is sent; a stream closes its usage recorder itself.
//!
//! Management requests count too: the limit protects the server, not only the models. Only requests that read or change
//! the limits themselves do not count.

use std::sync::Arc;
use std::time::Duration;

use actix_web::body::{EitherBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::Method;
use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use actix_web::middleware::Next;
use actix_web::{Error as ActixError, HttpMessage, web};

use super::Api;
use super::api_format::below_own_prefix;
use super::connections::Connection;
use super::request_logging::log_usage;
use super::response::Mount;
use super::response_budget::{Client, Room, RoomBody};
use crate::error::{Error, Result};
use crate::service::access::Access;
use crate::service::limits::{BucketStatus, RateLimitStatus};
use crate::service::usage::{Outcome, UsageRecorder};

/// The usage recorder of the current request.
pub type SharedRecorder = Arc<UsageRecorder>;

/// Requests to this path are never rate limited, so that a limit that is too low can be raised.
const UNMETERED_ROUTE: &str = "/projects/{project_id}/rate-limits";

/// Middleware of the mounts and of the APIs with a prefix of their own, inside authentication.
pub async fn meter<B: MessageBody + Unpin + 'static>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<RoomBody<EitherBody<B>>>, ActixError> {
    let (Some(api), Some(access)) = (request.app_data::<web::Data<Api>>().cloned(), caller(&request)) else {
        return Err(Error::internal("metering is outside the two mounts, or before authentication").into());
    };
    let pattern = request.match_pattern();
    let route = pattern.as_deref().and_then(route);
    let recorder = Arc::new(api.services.meter.open(&access, endpoint(request.method(), route)));
    request.extensions_mut().insert(recorder.clone());
    log_usage(&request, &recorder);
    let room = room(&api, &access, &request);
    let (status, admitted) = match admit(&api, &access, route).await {
        Ok(found) => found,
        Err(error) => (RateLimitStatus::default(), Err(error)),
    };
    let response = match admitted {
        Ok(()) => next.call(request).await?.map_into_left_body(),
        Err(error) => request.error_response(error).map_into_right_body(),
    };
    let (mut response, held) = match room.settle(response.response().body().size()) {
        Ok(held) => (response, held),
        Err(error) => (into_error(response, error), None),
    };
    if !recorder.is_deferred() {
        let outcome = Outcome::of_status(response.status().as_u16());
        if let Err(error) = recorder.close(outcome).await {
            response = into_error(response, error);
        }
    }
    set_rate_limit_headers(response.headers_mut(), &status);
    let connection = response.request().conn_data::<Arc<Connection>>().cloned();
    Ok(response.map_body(|_, body| RoomBody::new(body, held, connection)))
}

/// The room that the request's handler takes for its response.
fn room(api: &Api, access: &Access, request: &ServiceRequest) -> Room {
    let connection = Connection::of(request.request()).map(|connection| connection.number());
    let client = Client { key: Some((access.project(), access.key())), connection };
    let room = Room::new(Arc::clone(&api.response_budget), client);
    request.extensions_mut().insert(room.clone());
    room
}

fn into_error<B>(response: ServiceResponse<EitherBody<B>>, error: Error) -> ServiceResponse<EitherBody<B>> {
    response.into_response(actix_web::HttpResponse::from_error(error)).map_into_right_body()
}

/// The route as usage records have it: without the prefix of its mount. Routes of APIs with a prefix of their own keep it,
/// because others have the same names.
fn route(pattern: &str) -> Option<&str> {
    match Mount::of(pattern) {
        Some((_, route)) => Some(route).filter(|route| route.len() > 1),
        None => Some(pattern).filter(|pattern| below_own_prefix(pattern).is_some_and(|rest| rest.len() > 1)),
    }
}

fn caller(request: &ServiceRequest) -> Option<Access> {
    request.extensions().get::<Access>().cloned()
}

async fn admit(api: &Api, access: &Access, route: Option<&str>) -> Result<(RateLimitStatus, Result<()>)> {
    if route == Some(UNMETERED_ROUTE) {
        return Ok((api.services.limits.status(access.project()).await?, Ok(())));
    }
    api.services.limits.admit(access.project()).await
}

/// Method and path below the mount, in the form of the route table. Both come from small sets,
/// regardless of what the client sent.
fn endpoint(method: &Method, route: Option<&str>) -> String {
    let known = [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
    let method = known.iter().find(|known| *known == method).map_or("OTHER", Method::as_str);
    format!("{method} {}", route.unwrap_or("(unknown)"))
}

fn set_rate_limit_headers(headers: &mut HeaderMap, status: &RateLimitStatus) {
    for (kind, bucket_status) in
        [("requests", status.requests), ("tokens", status.tokens), ("audio-seconds", status.audio)]
    {
        let Some(BucketStatus { limit, remaining, reset }) = bucket_status else { continue };
        let values =
            [("limit", limit.to_string()), ("remaining", remaining.to_string()), ("reset", format_reset(reset))];
        for (name, value) in values {
            let name = HeaderName::try_from(format!("x-ratelimit-{name}-{kind}"));
            if let (Ok(name), Ok(value)) = (name, HeaderValue::try_from(value)) {
                headers.insert(name, value);
            }
        }
    }
}

/// A duration as OpenAI's headers write it: `20ms`, `1.5s`, `6m0s`.
fn format_reset(wait: Duration) -> String {
    let millis = wait.as_nanos().div_ceil(1_000_000);
    let (seconds, rest) = (millis / 1000, millis % 1000);
    match (seconds / 60, seconds) {
        (0, 0) => format!("{rest}ms"),
        (0, _) if rest == 0 => format!("{seconds}s"),
        (0, _) => format!("{seconds}.{}s", format!("{rest:03}").trim_end_matches('0')),
        (minutes, _) => format!("{minutes}m{}s", (millis - minutes * 60_000).div_ceil(1000)),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::format_reset;

    #[test]
    fn durations_have_openais_format() {
        let cases = [
            (0, "0ms"),
            (20, "20ms"),
            (1000, "1s"),
            (1500, "1.5s"),
            (59_120, "59.12s"),
            (360_000, "6m0s"),
            (61_001, "1m2s"),
        ];
        for (millis, text) in cases {
            assert_eq!(format_reset(Duration::from_millis(millis)), text);
        }
        assert_eq!(format_reset(Duration::from_nanos(1)), "1ms");
    }
}
