//! Server-sent events: framing and headers (WHATWG HTML, "Server-sent events").

use std::convert::Infallible;
use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::http::header;
use actix_web::web::Bytes;
use futures_util::{Stream, StreamExt};
use serde::Serialize;

use crate::json_lines;

/// Bytes of one or more whole events.
pub type Event = Bytes;

/// Interval of keep-alive comments.
pub const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// A JSON value as one event, in one `data:` line.
pub fn data(value: &impl Serialize) -> Event {
    let mut bytes = b"data: ".to_vec();
    if let Err(cause) = json_lines::write(&mut bytes, value) {
        tracing::error!(%cause, "an event could not be encoded");
        return keep_alive();
    }
    bytes.extend_from_slice(b"\n\n");
    bytes.into()
}

/// Like [`data`], with an event name.
pub fn named(name: &str, value: &impl Serialize) -> Event {
    [b"event: ", name.as_bytes(), b"\n", &*data(value)].concat().into()
}

/// The end of a stream.
pub fn done() -> Event {
    Bytes::from_static(b"data: [DONE]\n\n")
}

/// A comment: clients skip it, proxies see that the connection is alive.
pub fn keep_alive() -> Event {
    Bytes::from_static(b": keep-alive\n\n")
}

/// Two events in one write.
pub fn join(first: Event, second: Event) -> Event {
    [first, second].concat().into()
}

/// A streamed response of `events`.
pub fn response(events: impl Stream<Item = Event> + 'static) -> HttpResponse {
    HttpResponse::Ok()
        .content_type("text/event-stream; charset=utf-8")
        .insert_header((header::CACHE_CONTROL, "no-cache, no-transform"))
        .insert_header(("x-accel-buffering", "no"))
        .streaming(events.map(Ok::<_, Infallible>))
}
