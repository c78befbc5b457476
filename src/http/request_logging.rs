//! Middleware around every request: its id, its error body and its log line.
//!
//! The line is written when the body of the response has been sent, or when the client has disconnected. So a stream's
//! line has its whole duration and its tokens.

use std::cell::OnceCell;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::ConnectionType;
use actix_web::http::header::{HeaderName, HeaderValue};
use actix_web::middleware::Next;
use actix_web::web::Bytes;
use actix_web::{Error as ActixError, HttpMessage, HttpRequest, web};

use super::Api;
use super::api_format::{self, ApiFormat};
use super::error;
use super::http1::ConnectionState;
use crate::clock_rng::ClockRng;
use crate::display::shorten;
use crate::error::Error;
use crate::ids::RequestId;
use crate::service::keys::secret::redact;
use crate::service::usage::{Amounts, Outcome, UsageRecorder};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const CLIENT_REQUEST_ID: HeaderName = HeaderName::from_static("x-client-request-id");

/// Paths that monitoring systems request every few seconds.
const PROBES: [&str; 5] = ["/healthz", "/readyz", "/health", "/ping", "/metrics"];

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
    let mut line = LogLine::new(&request, id, api.clock_rng.clone());
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
    let api_format = api_format::of(response.request());
    let mut response = match response.response().error() {
        Some(failure) => {
            let rendered = render(failure, id, api_format);
            let headers = response.headers().clone();
            let mut response = response.into_response(rendered);
            keep_headers(&mut response, headers);
            response
        }
        None => response,
    };
    if let Ok(value) = HeaderValue::from_str(&id.to_string()) {
        if let Some(name) = api_format.request_id_header {
            response.headers_mut().insert(HeaderName::from_static(name), value.clone());
        }
        response.headers_mut().insert(REQUEST_ID, value);
    }
    if connection.is_some_and(|connection| connection.is_broken()) {
        response.response_mut().head_mut().set_connection_type(ConnectionType::Close);
    }
    line.status = Some(response.status().as_u16());
    Ok(response.map_body(|_, body| BoxBody::new(LoggedBody { body, _line: line })))
}

/// Adds the usage of the request to its log line.
pub fn log_usage(request: &ServiceRequest, recorder: &Arc<UsageRecorder>) {
    if let Some(UsageSlot(slot)) = request.extensions().get() {
        // The first recorder stays: a request has only one.
        let _set = slot.set(Arc::clone(recorder));
    }
}

/// Where the request's recorder is left for its log line.
struct UsageSlot(Rc<OnceCell<Arc<UsageRecorder>>>);

/// The log line of a request, written when it is dropped. It has no headers, prompts or secrets, not even a secret in
/// the path. The client's own request id is escaped, so that it cannot forge a line.
struct LogLine {
    id: RequestId,
    client_request_id: Option<String>,
    method: String,
    path: String,
    clock_rng: Arc<dyn ClockRng>,
    started: Duration,
    recorder: Rc<OnceCell<Arc<UsageRecorder>>>,
    /// `None` until there is a response.
    status: Option<u16>,
}

impl LogLine {
    fn new(request: &ServiceRequest, id: RequestId, clock_rng: Arc<dyn ClockRng>) -> Self {
        let theirs = request.headers().get(&CLIENT_REQUEST_ID).and_then(|value| value.to_str().ok());
        let recorder = Rc::default();
        request.extensions_mut().insert(UsageSlot(Rc::clone(&recorder)));
        Self {
            id,
            client_request_id: theirs.map(|text| redact(text).chars().take(128).collect()),
            method: shorten(request.method().as_str()),
            path: redact(request.path()).into_owned(),
            started: clock_rng.uptime(),
            clock_rng,
            recorder,
            status: None,
        }
    }

    /// True for successful probes, whose lines would fill the log every few seconds.
    fn is_successful_probe(&self) -> bool {
        PROBES.contains(&self.path.as_str()) && self.status.is_some_and(|status| status < 400)
    }
}

impl Drop for LogLine {
    fn drop(&mut self) {
        let took = self.clock_rng.uptime().saturating_sub(self.started);
        let usage = self.recorder.get().map(|recorder| recorder.summary());
        let usage = usage.as_ref();
        let count = |of: fn(&Amounts) -> u64| usage.map(|usage| of(&usage.amounts)).filter(|count| *count > 0);
        // The status of a stream is sent before its outcome is known.
        let is_undecided = self.status.is_none() || self.recorder.get().is_some_and(|recorder| recorder.is_deferred());
        let outcome = usage.map(|usage| usage.outcome.unwrap_or(Outcome::Abandoned)).filter(|_| is_undecided);
        // The level of a line must be constant.
        macro_rules! write_line {
            ($level:ident) => {
                tracing::$level!(
                    request_id = %self.id,
                    client_request_id = self.client_request_id,
                    method = self.method,
                    path = self.path,
                    status = self.status,
                    outcome = outcome.map(Outcome::as_str),
                    project = usage.map(|usage| tracing::field::display(usage.project)),
                    key = usage.map(|usage| tracing::field::display(usage.key)),
                    model = usage.and_then(|usage| usage.model.as_deref()),
                    input_tokens = count(|amounts| amounts.input),
                    output_tokens = count(|amounts| amounts.output),
                    images = count(|amounts| amounts.images),
                    micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
                    "request"
                )
            };
        }
        match self.is_successful_probe() {
            true => write_line!(debug),
            false => write_line!(info),
        }
    }
}

/// A body whose end is logged.
struct LoggedBody {
    /// Declared first, so that it is dropped, and its usage counted, before the line is written.
    body: BoxBody,
    _line: LogLine,
}

impl MessageBody for LoggedBody {
    type Error = Box<dyn std::error::Error>;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        Pin::new(&mut self.get_mut().body).poll_next(cx)
    }
}

/// Headers set by inner layers (`Allow` on a 405) survive the rendering of the body.
fn keep_headers(response: &mut ServiceResponse, headers: actix_web::http::header::HeaderMap) {
    for (name, value) in headers {
        if !response.headers().contains_key(&name) {
            response.headers_mut().insert(name, value);
        }
    }
}

fn render(failure: &ActixError, id: RequestId, api: &ApiFormat) -> actix_web::HttpResponse {
    let translated;
    let ours = match failure.as_error::<Error>() {
        Some(ours) => ours,
        None => {
            translated = error::translate(failure);
            &translated
        }
    };
    log_cause(ours, id);
    error::render(ours, id, api)
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
