//! One request to one target, up to where its response begins. As long as nothing of it has been passed on, another target
//! may be tried.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use http1::header::{ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http1::{HeaderMap, HeaderValue, Request, StatusCode};
use hyper::body::Incoming;
use hyper_util::client::legacy;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::event_stream::{EventStream, MEDIA_TYPE};
use super::failure::Failure;
use super::metrics::Reason;
use super::payload::{PayloadBody, UpstreamCall};
use super::pool::Permit;
use super::refusal::Refusal;
use super::response::{Response, Shared, ShutdownPhase, note_failure};

/// Max bytes of an error response that are read.
const MAX_ERROR: usize = 64 << 10;
/// Bytes of a response whose reading may delay the other requests of a thread, so that another thread takes them over.
const LARGE_BODY: usize = 1 << 20;
/// Rest of a target that has too many requests and does not say how long to wait.
const DEFAULT_REST: Duration = Duration::from_secs(1);

/// Media types of texts. In place of a requested file, they are errors with a status of success.
const TEXTS: [&str; 3] = ["application/json", "text/html", "text/plain"];

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accept {
    /// The whole body, a JSON text.
    Whole,
    /// The first server-sent event.
    Events,
    /// The head of a response that is a file.
    Bytes,
}

/// The beginning of a response.
pub enum Answer {
    /// Its body has been read and makes sense.
    Whole(Box<Response>),
    Events(Box<EventStream>),
    Bytes(Box<Response>),
}

/// Why a target gave no answer.
#[derive(Debug, PartialEq, Eq)]
pub enum NoAnswer {
    /// The request is at fault; other targets would refuse it, too.
    Refused(Refusal),
    /// The target asks to be left alone for a while.
    Busy,
    /// `was_closed`: the connection was closed before the target answered. It may have been one that was kept from an
    /// earlier request, so the same target may be tried again.
    Failed {
        was_closed: bool,
    },
    /// The response is larger than the request allows.
    TooLarge,
    ShuttingDown,
}

impl From<Failure> for NoAnswer {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::ShuttingDown => Self::ShuttingDown,
            Failure::Refused(refusal) => Self::Refused(refusal),
            Failure::TooLarge => Self::TooLarge,
            Failure::Busy { .. } | Failure::Unavailable { .. } | Failure::Broken => Self::Failed { was_closed: false },
        }
    }
}

/// Reads a whole body. Returns whether it makes sense.
pub type ReadWhole<'a> = dyn FnMut(&[u8]) -> bool + Send + 'a;

/// Sends a request to the permit's target. `read` gets a body that is accepted as a whole. `may_forgive`: a connection
/// that the target has closed need not be its fault.
pub async fn attempt(
    call: &UpstreamCall,
    accept: Accept,
    read: &mut ReadWhole<'_>,
    may_forgive: bool,
    mut permit: Permit,
    shared: &Arc<Shared>,
) -> Result<Answer, NoAnswer> {
    let started = shared.clock_rng.uptime();
    let limit = permit.model().timeouts.first_byte;
    let request = match request(&permit, call, accept) {
        Ok(request) => request,
        Err(error) => return Err(failed(shared, &mut permit, Reason::Status, &error.to_string())),
    };
    shared.metrics.sent(&permit);
    let head = send(request, limit, may_forgive, &mut permit, shared).await?;
    let (head, body) = head.into_parts();
    let status = head.status;
    if status != StatusCode::OK {
        return Err(refuse(status, &head.headers, body, permit, shared).await);
    }
    let content_type = media_type(&head.headers);
    let is_plain = |coding: &HeaderValue| coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity");
    if !head.headers.get_all(CONTENT_ENCODING).iter().all(is_plain) {
        return Err(failed(shared, &mut permit, Reason::Malformed, "its response is compressed"));
    }
    let mut response = Response::new(body, content_type, call.max_bytes, permit, Arc::clone(shared));
    let elapsed = || shared.clock_rng.uptime().saturating_sub(started);
    match accept {
        Accept::Whole => {
            let body = response.whole().await?;
            let makes_sense = match body.len() {
                ..LARGE_BODY => read(&body),
                _ => tokio::task::block_in_place(|| read(&body)),
            };
            if !makes_sense {
                return Err(response.malformed("its response is not what was asked for").into());
            }
            answered(&mut response, shared, elapsed());
            Ok(Answer::Whole(Box::new(response)))
        }
        Accept::Bytes if TEXTS.contains(&response.content_type()) => {
            Err(response.malformed("its response is not a file").into())
        }
        Accept::Bytes => {
            answered(&mut response, shared, elapsed());
            Ok(Answer::Bytes(Box::new(response)))
        }
        Accept::Events if response.content_type() != MEDIA_TYPE => {
            Err(response.malformed("its response is not an event stream").into())
        }
        Accept::Events => {
            let mut events = EventStream::new(response);
            events.begin(limit.saturating_sub(elapsed()).max(Duration::from_millis(1))).await?;
            check_first(&mut events)?;
            answered(events.response(), shared, elapsed());
            Ok(Answer::Events(Box::new(events)))
        }
    }
}

/// Notes that the target works, as far as its response has arrived.
fn answered(response: &mut Response, shared: &Shared, took: Duration) {
    shared.metrics.answered(response.permit(), took);
    response.permit().answer();
}

fn request(permit: &Permit, call: &UpstreamCall, accept: Accept) -> Result<Request<PayloadBody>, http1::Error> {
    let target = permit.target();
    let payload = (call.payload)(&target.model);
    let accepted = match accept {
        Accept::Whole => "application/json",
        Accept::Events => MEDIA_TYPE,
        Accept::Bytes => "*/*",
    };
    let mut request = Request::post(target.address.url(call.operation)?)
        .header(CONTENT_TYPE, payload.content_type)
        .header(ACCEPT, accepted)
        .header(USER_AGENT, concat!("outpost/", env!("CARGO_PKG_VERSION")));
    if let Some(key) = &target.key {
        request = request.header(AUTHORIZATION, key.header().clone());
    }
    request.body(payload.body)
}

/// Waits for the head of the response.
async fn send(
    request: Request<PayloadBody>,
    limit: Duration,
    may_forgive: bool,
    permit: &mut Permit,
    shared: &Shared,
) -> Result<http1::Response<Incoming>, NoAnswer> {
    let mut phase = shared.phase.subscribe();
    let sending = permit.client().request(request);
    let sent = tokio::select! {
        sent = tokio::time::timeout(limit, sending) => sent,
        _ = phase.wait_for(|phase| *phase == ShutdownPhase::Aborting) => return Err(NoAnswer::ShuttingDown),
    };
    match sent {
        Ok(Ok(response)) => Ok(response),
        Ok(Err(error)) => {
            let (was_closed, cause) = (!error.is_connect(), root_cause(&error));
            if was_closed && may_forgive && permit.forgive_close() {
                let (model, target) = (permit.model().id.as_str(), permit.target().address.authority());
                tracing::info!(model, target, cause, "an upstream target has closed a connection");
                shared.metrics.failed(permit, Reason::Connection);
            } else {
                note_failure(shared, permit, Reason::Connection, &cause);
            }
            Err(NoAnswer::Failed { was_closed })
        }
        Err(_) => Err(failed(shared, permit, Reason::Timeout, "it does not answer within timeouts.first_byte")),
    }
}

/// The innermost cause of an error.
fn root_cause(error: &legacy::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}

/// Reads a response that is not a success.
async fn refuse(
    status: StatusCode,
    headers: &HeaderMap,
    body: Incoming,
    mut permit: Permit,
    shared: &Arc<Shared>,
) -> NoAnswer {
    let wait = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    let wait = wait.map(Duration::from_secs);
    match (status, wait) {
        (StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::UNPROCESSABLE_ENTITY, _) => {
            permit.succeed();
            let mut response = Response::new(body, media_type(headers), u64::MAX, permit, Arc::clone(shared));
            let text = response.beginning(MAX_ERROR).await;
            let permit = response.permit();
            NoAnswer::Refused(Refusal::parse(status.as_u16(), &text, permit.target(), &permit.model().id))
        }
        (StatusCode::TOO_MANY_REQUESTS, wait) | (StatusCode::SERVICE_UNAVAILABLE, wait @ Some(_)) => {
            let wait = wait.unwrap_or(DEFAULT_REST).max(DEFAULT_REST);
            let (model, target) = (permit.model().id.as_str(), permit.target().address.authority());
            tracing::info!(model, target, seconds = wait.as_secs(), "an upstream target is busy");
            shared.metrics.failed(&permit, Reason::Busy);
            permit.rest(shared.clock_rng.uptime(), wait);
            NoAnswer::Busy
        }
        _ => failed(shared, &mut permit, Reason::Status, &meaning(status)),
    }
}

/// The likely cause of a status in the target's settings, for the log.
fn meaning(status: StatusCode) -> String {
    let hint = match status.as_u16() {
        300..=399 => ": redirects are not followed; set url to the address that they lead to",
        401 | 403 => ": check key_file or key_env",
        404 => ": check url and model",
        _ => "",
    };
    format!("it answers with the status {}{hint}", status.as_u16())
}

/// The fields that tell whether an event is an error. It is read as far as it is needed: a value of any JSON takes many times
/// the memory of its text.
#[derive(Deserialize)]
struct FirstEvent<'a> {
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    object: Option<&'a RawValue>,
    #[serde(borrow)]
    code: Option<&'a RawValue>,
    #[serde(borrow, rename = "type")]
    kind: Option<&'a RawValue>,
}

/// A stream may begin with an error instead of an event. A longer one is left to the reader of the events.
fn check_first(events: &mut EventStream) -> Result<(), NoAnswer> {
    let is_possible = |event: &&str| event.len() <= MAX_ERROR && event.contains("error");
    let Some(first) = events.first().filter(is_possible) else { return Ok(()) };
    let Ok(event) = serde_json::from_str::<FirstEvent<'_>>(first) else { return Ok(()) };
    let error = match event.error {
        Some(error) => serde_json::from_str(error.get()).unwrap_or(event),
        None if event.object.is_some_and(|object| object.get() == "\"error\"") => event,
        None => return Ok(()),
    };
    let [code, kind] = [error.code, error.kind].map(|value| value.map_or("", RawValue::get));
    if ["400", "413", "422"].contains(&code) || ["\"invalid_request_error\"", "\"BadRequestError\""].contains(&kind) {
        let first = first.to_owned();
        let permit = events.response().permit();
        permit.succeed();
        return Err(NoAnswer::Refused(Refusal::parse(400, first.as_bytes(), permit.target(), &permit.model().id)));
    }
    Err(events.malformed("its event stream begins with an error").into())
}

/// The media type without its parameters, in lowercase.
fn media_type(headers: &HeaderMap) -> String {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

fn failed(shared: &Shared, permit: &mut Permit, reason: Reason, cause: &str) -> NoAnswer {
    note_failure(shared, permit, reason, cause);
    NoAnswer::Failed { was_closed: false }
}
