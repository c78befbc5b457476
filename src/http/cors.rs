//! Cross-origin requests: lets pages of configured origins call the API from a browser (CORS of the Fetch standard).
//!
//! API keys are sent in a header, never as cookies, so requests with credentials in the sense of the standard are not
//! supported. A page therefore needs a key to do anything, and may send and read any header. The exception is a page of an
//! origin that is named explicitly, with `--keyless-project` (see `keyless`).
//!
//! This is not actix-cors, which answers preflights of other origins with errors in its own format. Without
//! credentials, little code is needed.

use actix_web::Error as ActixError;
use actix_web::HttpResponse;
use actix_web::body::{EitherBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::Method;
use actix_web::http::header::{self, HeaderValue};
use actix_web::middleware::Next;
use actix_web::web::Data;

use super::Api;
use super::api_format::below_own_prefix;
use super::response::Mount;
use crate::origin::Origin;

const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE";
/// Seconds that a browser may cache the result of a preflight; the most that Chromium accepts.
const MAX_AGE: &str = "7200";

/// Middleware around the routes. Without configured origins, and outside of the mounts, it changes nothing.
pub async fn cors<B: MessageBody + 'static>(
    request: ServiceRequest,
    next: Next<B>,
) -> Result<ServiceResponse<EitherBody<B>>, ActixError> {
    let origins = request.app_data::<Data<Api>>().map(|api| api.origins.load_full());
    let allowed = match origins {
        Some(origins) if !origins.is_empty() && is_api(request.path()) => allow(&origins, &request),
        _ => return Ok(next.call(request).await?.map_into_left_body()),
    };
    if let Some(origin) = &allowed
        && request.method() == Method::OPTIONS
        && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD)
    {
        let response = preflight(&request, origin);
        return Ok(request.into_response(response).map_into_right_body());
    }
    let mut response = next.call(request).await?.map_into_left_body();
    let headers = response.headers_mut();
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    if let Some(origin) = allowed {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("*"));
    }
    Ok(response)
}

/// True for paths of APIs that need a key.
fn is_api(path: &str) -> bool {
    Mount::of(path).is_some() || below_own_prefix(path).is_some()
}

/// The value of `Access-Control-Allow-Origin`; `None` if the request has no origin, several, or one that is not allowed.
fn allow(origins: &[Origin], request: &ServiceRequest) -> Option<HeaderValue> {
    let mut all = request.headers().get_all(header::ORIGIN);
    let sent = all.next().filter(|_| all.next().is_none())?;
    if origins.contains(&Origin::Any) {
        return Some(HeaderValue::from_static("*"));
    }
    let text = sent.to_str().ok()?;
    origins.iter().any(|origin| origin.matches(text)).then(|| sent.clone())
}

/// The response to the request in which a browser asks whether it may send the actual one.
fn preflight(request: &ServiceRequest, origin: &HeaderValue) -> HttpResponse {
    let mut response = HttpResponse::NoContent();
    response
        .insert_header((header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone()))
        .insert_header((header::ACCESS_CONTROL_ALLOW_METHODS, METHODS))
        .insert_header((header::ACCESS_CONTROL_MAX_AGE, MAX_AGE))
        .insert_header((header::VARY, "origin, access-control-request-headers"));
    // The wildcard would not include `Authorization`.
    if let Some(requested) = request.headers().get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        response.insert_header((header::ACCESS_CONTROL_ALLOW_HEADERS, requested.clone()));
    }
    response.finish()
}
