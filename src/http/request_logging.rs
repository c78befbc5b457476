//! Middleware around every request: its id, its error body and its log line.

use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{HeaderName, HeaderValue};
use actix_web::http::{ConnectionType, Method};
use actix_web::middleware::Next;
use actix_web::{Error as ActixError, HttpMessage, HttpRequest, web};

use super::Api;
use super::error;
use super::http1::ConnectionState;
use crate::display::shorten;
use crate::error::Error;
use crate::ids::RequestId;
use crate::service::api_key_secret::redact;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const CLIENT_REQUEST_ID: HeaderName = HeaderName::from_static("x-client-request-id");

/// The id of the current request.
pub fn request_id(request: &HttpRequest) -> Option<RequestId> {
    request.extensions().get::<RequestId>().copied()
}

/// Middleware around everything: gives the request its id and renders its errors.
pub async fn log_request(
    mut request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, ActixError> {
    let Some(api) = request.app_data::<web::Data<Api>>().cloned() else {
        return Err(Error::internal("no application state").into());
    };
    let id = RequestId::generate(&*api.clock_rng);
    request.extensions_mut().insert(id);
    let started = api.clock_rng.uptime();
    // HEAD becomes GET before it is routed.
    let method = request.method().clone();
    let connection = ConnectionState::of(request.request());
    let refusal = connection.as_ref().and_then(|connection| connection.refusal(request.request()));
    let response = match refusal {
        Some(error) => request.error_response(error),
        None => {
            if let Some(connection) = &connection {
                connection.check_body(&mut request);
            }
            next.call(request).await?.map_into_boxed_body()
        }
    };
    let mut response = match response.response().error() {
        Some(failure) => {
            let rendered = render(failure, id);
            let headers = response.headers().clone();
            let mut response = response.into_response(rendered);
            keep_headers(&mut response, headers);
            response
        }
        None => response,
    };
    if let Ok(value) = HeaderValue::from_str(&id.to_string()) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    if connection.is_some_and(|connection| connection.is_broken()) {
        response.response_mut().head_mut().set_connection_type(ConnectionType::Close);
    }
    log_line(&response, &method, id, api.clock_rng.uptime().saturating_sub(started));
    Ok(response)
}

/// Headers set by inner layers (`Allow` on a 405) survive the rendering of the body.
fn keep_headers(response: &mut ServiceResponse, headers: actix_web::http::header::HeaderMap) {
    for (name, value) in headers {
        if !response.headers().contains_key(&name) {
            response.headers_mut().insert(name, value);
        }
    }
}

fn render(failure: &ActixError, id: RequestId) -> actix_web::HttpResponse {
    let translated;
    let ours = match failure.as_error::<Error>() {
        Some(ours) => ours,
        None => {
            translated = error::translate(failure);
            &translated
        }
    };
    log_cause(ours, id);
    error::render(ours, id)
}

fn log_cause(error: &Error, id: RequestId) {
    let cause = error.cause().map(ToString::to_string);
    match (error.code().status(), cause.as_deref().map(redact)) {
        (500.., Some(cause)) => {
            tracing::error!(request_id = %id, code = error.code().as_str(), %cause, "request failed")
        }
        (_, Some(cause)) => tracing::debug!(request_id = %id, code = error.code().as_str(), %cause, "request refused"),
        (_, None) => {}
    }
}

/// One line per request, without headers, prompts or secrets, not even a secret in the path. The
/// client's own request id is escaped, so that it cannot forge a line.
fn log_line(response: &ServiceResponse, method: &Method, id: RequestId, took: std::time::Duration) {
    let request = response.request();
    let theirs = request.headers().get(&CLIENT_REQUEST_ID).and_then(|value| value.to_str().ok());
    tracing::info!(
        request_id = %id,
        client_request_id = theirs.map(|text| redact(text).chars().take(128).collect::<String>()),
        method = &*shorten(method.as_str()),
        path = &*redact(request.path()),
        status = response.status().as_u16(),
        micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
        "request"
    );
}
