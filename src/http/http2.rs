//! HTTP/2 on one connection.
//!
//! actix's own dispatcher sets no bound on the streams of a connection, lets each have 16 MiB of headers, and waits
//! without end for a client to open the window of a stream. Here all three are bounded. A stream whose client does not
//! take the next chunk of its response within [`WRITE_TIMEOUT`] is reset, and what is behind it is dropped. If all
//! others wait for their client as well, the connection ends. A handler ends when its stream is reset or its connection
//! is gone.
//!
//! None of this can be configured in actix. The limits are 64 streams, 32 KiB of headers, and 20 s for the next 8 KiB
//! of a response. A single stalled stream is reset, so a page that leaves one download unread keeps its other streams.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use actix_http::{Request, Response};
use actix_service::Service;
use actix_web::HttpMessage;
use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::http::header::{self, HttpDate};
use actix_web::http::{Method, StatusCode};
use actix_web::rt::time::timeout;
use actix_web::web::Bytes;
use futures_util::future::{self, Either, poll_fn};
use h2::server::{Builder, SendResponse};
use h2::{Reason, RecvStream, SendStream};
use http::HeaderValue;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::connections::{Connection, WRITE_TIMEOUT};
use crate::clock_rng::ClockRng;

/// Streams of a connection at once. More are refused before a handler sees them.
const MAX_STREAMS: u32 = 64;

/// The longest list of headers, counted as RFC 9113 says.
const MAX_HEADER_LIST_BYTES: u32 = 32 << 10;

/// Bytes that a client may send without waiting, on a stream and on the connection.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 512 << 10;

/// A chunk of a response that must be taken within [`WRITE_TIMEOUT`], and that may wait in memory.
const CHUNK_BYTES: usize = 8 << 10;

/// How long to wait for the GOAWAY frame to be sent.
const GOAWAY_TIMEOUT: Duration = Duration::from_secs(1);

/// State that the streams of a connection share.
pub struct Shared<S> {
    pub app: Rc<S>,
    pub connection: Arc<Connection>,
    pub peer: Option<SocketAddr>,
    pub clock_rng: Arc<dyn ClockRng>,
}

/// Progress of the responses of a connection.
struct ResponseProgress {
    /// When its client last took something.
    progress: Cell<Instant>,
    /// Responses that wait for their client.
    waiting: Cell<usize>,
}

/// Serves a connection until it ends. After `stopping`, no stream is accepted any more.
pub async fn serve<S, B>(
    io: impl AsyncRead + AsyncWrite + Unpin,
    shared: Shared<S>,
    handshake: Duration,
    stopping: impl Future<Output = ()>,
) -> Result<(), h2::Error>
where
    S: Service<Request> + 'static,
    S::Response: Into<Response<B>>,
    S::Error: Into<Response<BoxBody>>,
    B: MessageBody + 'static,
{
    let mut builder = Builder::new();
    builder
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buffer_size(2 * CHUNK_BYTES);
    let Ok(connection) = timeout(handshake, builder.handshake::<_, Bytes>(io)).await else { return Ok(()) };
    let mut connection = connection?;
    let shared = Rc::new(shared);
    let flow = Rc::new(ResponseProgress { progress: Cell::new(Instant::now()), waiting: Cell::new(0) });
    // Dropped with the connection, which ends the handlers.
    let mut streams = JoinSet::new();
    let mut stopping = std::pin::pin!(stopping);
    let mut stopped = false;
    loop {
        tokio::select! {
            accepted = connection.accept() => match accepted.transpose()? {
                None => return Ok(()),
                Some((request, respond)) => {
                    streams.spawn_local(answer(shared.clone(), flow.clone(), request, respond));
                }
            },
            () = &mut stopping, if !stopped => {
                stopped = true;
                connection.graceful_shutdown();
            }
            Some(ended) = streams.join_next(), if !streams.is_empty() => {
                let stalled = |ended: &_| matches!(ended, Ok(Err(SendError::Stalled)));
                let mut any = stalled(&ended);
                while let Some(ended) = streams.try_join_next() {
                    any |= stalled(&ended);
                }
                if any && flow.waiting.get() == streams.len() && flow.progress.get().elapsed() >= WRITE_TIMEOUT / 2 {
                    connection.abrupt_shutdown(Reason::CANCEL);
                    let _gone = timeout(GOAWAY_TIMEOUT, poll_fn(|cx| connection.poll_closed(cx))).await;
                    return Ok(());
                }
            }
        }
    }
}

/// Answers one request, unless its stream is reset before.
async fn answer<S, B>(
    shared: Rc<Shared<S>>,
    flow: Rc<ResponseProgress>,
    request: http::Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) -> Result<(), SendError>
where
    S: Service<Request>,
    S::Response: Into<Response<B>>,
    S::Error: Into<Response<BoxBody>>,
    B: MessageBody,
{
    let head_only = request.method() == Method::HEAD;
    let called = shared.app.call(translate(&shared, request));
    let outcome = {
        let reset = poll_fn(|cx| respond.poll_reset(cx));
        match future::select(std::pin::pin!(called), reset).await {
            Either::Left((outcome, _)) => outcome,
            Either::Right(_) => return Ok(()),
        }
    };
    let sent = match outcome {
        Ok(response) => send(&*shared.clock_rng, &flow, response.into(), respond, head_only).await,
        Err(error) => send(&*shared.clock_rng, &flow, error.into(), respond, head_only).await,
    };
    sent.inspect_err(|error| tracing::debug!(%error, "a response over HTTP/2 broke off"))
}

fn translate<S>(shared: &Shared<S>, request: http::Request<RecvStream>) -> Request {
    let (parts, body) = request.into_parts();
    let mut request = Request::with_payload(body.into());
    request.extensions_mut().insert(Arc::clone(&shared.connection));
    let head = request.head_mut();
    head.uri = parts.uri;
    head.method = parts.method;
    head.version = parts.version;
    head.headers = parts.headers.into();
    head.peer_addr = shared.peer;
    request
}

/// Why a response was not sent to its end.
#[derive(Debug, thiserror::Error)]
enum SendError {
    #[error(transparent)]
    Stream(#[from] h2::Error),
    #[error("its body failed: {0}")]
    Body(String),
    #[error("the client stopped reading")]
    Stalled,
}

async fn send<B: MessageBody>(
    clock_rng: &dyn ClockRng,
    flow: &ResponseProgress,
    response: Response<B>,
    mut respond: SendResponse<Bytes>,
    head_only: bool,
) -> Result<(), SendError> {
    let (response, body) = response.into_parts();
    let size = body.size();
    let head = head(clock_rng, &response, size);
    let end = head_only || size.is_eof();
    let mut stream = respond.send_response(head, end)?;
    if end {
        return Ok(());
    }
    let mut body = std::pin::pin!(body);
    loop {
        let next = {
            let reset = poll_fn(|cx| stream.poll_reset(cx));
            match future::select(poll_fn(|cx| body.as_mut().poll_next(cx)), reset).await {
                Either::Left((next, _)) => next,
                Either::Right(_) => return Ok(()),
            }
        };
        match next {
            None => return Ok(stream.send_data(Bytes::new(), true)?),
            Some(Ok(bytes)) => send_bytes(&mut stream, flow, bytes).await?,
            Some(Err(error)) => {
                stream.send_reset(Reason::INTERNAL_ERROR);
                return Err(SendError::Body(error.into().to_string()));
            }
        }
    }
}

async fn send_bytes(
    stream: &mut SendStream<Bytes>,
    flow: &ResponseProgress,
    mut bytes: Bytes,
) -> Result<(), SendError> {
    while !bytes.is_empty() {
        let chunk = bytes.split_to(bytes.len().min(CHUNK_BYTES));
        flow.waiting.set(flow.waiting.get() + 1);
        let sent = timeout(WRITE_TIMEOUT, send_chunk(stream, flow, chunk)).await;
        flow.waiting.set(flow.waiting.get() - 1);
        let Ok(sent) = sent else {
            stream.send_reset(Reason::CANCEL);
            return Err(SendError::Stalled);
        };
        sent?;
    }
    Ok(())
}

async fn send_chunk(
    stream: &mut SendStream<Bytes>,
    flow: &ResponseProgress,
    mut chunk: Bytes,
) -> Result<(), h2::Error> {
    while !chunk.is_empty() {
        stream.reserve_capacity(chunk.len());
        match poll_fn(|cx| stream.poll_capacity(cx)).await {
            // The stream is closed, and sending says so.
            None => return stream.send_data(chunk, false),
            Some(capacity) => {
                let part = chunk.split_to(chunk.len().min(capacity?));
                if !part.is_empty() {
                    flow.progress.set(Instant::now());
                }
                stream.send_data(part, false)?;
            }
        }
    }
    Ok(())
}

/// The head of a response, without what belongs to a connection of HTTP/1 (RFC 9113, section 8.2.2).
fn head(clock_rng: &dyn ClockRng, response: &Response<()>, size: BodySize) -> http::Response<()> {
    let mut head = http::Response::new(());
    *head.status_mut() = response.status();
    *head.version_mut() = http::Version::HTTP_2;
    let own = head.headers_mut();
    for (name, value) in response.headers() {
        let of_http1 = [header::CONNECTION, header::TRANSFER_ENCODING, header::UPGRADE].contains(name)
            || ["keep-alive", "proxy-connection"].contains(&name.as_str());
        if !of_http1 && *name != header::CONTENT_LENGTH {
            own.append(name, value.clone());
        }
    }
    if let BodySize::Sized(bytes) = size
        && response.status() != StatusCode::NO_CONTENT
    {
        own.insert(header::CONTENT_LENGTH, bytes.into());
    }
    if !own.contains_key(header::DATE) {
        let since = Duration::from_millis(u64::try_from(clock_rng.now().as_millis()).unwrap_or(0));
        let date = HttpDate::from(SystemTime::UNIX_EPOCH + since).to_string();
        if let Ok(date) = HeaderValue::try_from(date) {
            own.insert(header::DATE, date);
        }
    }
    head
}
