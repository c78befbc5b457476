//! Validates HTTP/1 requests before the HTTP library parses them.
//!
//! The library answers a malformed request itself, without a body. It drops a request whose chunked body is malformed
//! in the middle. This module reads the bytes first. It replaces a malformed head with a small request of its own,
//! which [`super::request_logging`] answers with an ordinary error. It terminates a malformed body and reports an error
//! to its reader. In both cases the connection is closed after the response, and further input is discarded.
//!
//! The library parses and queues all requests that it can read, about 5 KiB each, before it answers the first.
//! Therefore it gets the head of a request only after the response to the previous request is sent. Data that a client
//! sends early waits in the kernel, except [`READ_BYTES`] bytes, which are read to detect that the client disconnects.
//!
//! actix has no hooks to change any of this. It also accepts lines that end with a bare LF, and reads the body of a
//! request that offers a WebSocket upgrade until the connection ends; `Upgrade` headers are therefore removed, as RFC
//! 9110 allows. It parses up to 128 KiB of pipelined requests before it checks the limit of its queue: 200 requests of
//! 50 bytes took 1.1 MB. If a client disconnects with unread pipelined requests, the server notices at its next write.

mod chunked_decoder;
mod head;

use std::cell::{Cell, OnceCell};
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use actix_web::dev::{Extensions, Payload, ServiceRequest};
use actix_web::error::PayloadError;
use actix_web::http::header;
use actix_web::web::Bytes;
use actix_web::{HttpMessage, HttpRequest};
use futures_util::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use super::transport::Transport;
use crate::error::Error;
use chunked_decoder::{ChunkedDecoder, Progress};
use head::{Body, HeadError, Scan};

/// The request that replaces a malformed one.
const STAND_IN_REQUEST: &[u8] = b"GET /.malformed HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
const STAND_IN_PATH: &str = "/.malformed";
/// How long, and how many bytes, to read after refusing a request. Closing a socket with unread input resets it, and
/// the client may lose the response.
const LINGER: Duration = Duration::from_secs(2);
const MAX_DISCARDED: usize = 4 << 20;
const READ_BYTES: usize = 8 << 10;

/// State shared between a connection and its requests.
#[derive(Default)]
pub struct ConnectionState {
    /// The reason why the connection's last request is refused.
    error: OnceCell<HeadError>,
    /// Set if the body of the last request is malformed.
    broken: Cell<bool>,
    /// Requests whose responses are sent or dropped.
    done: Cell<u64>,
    /// Wakes the connection's reader when a response is done.
    waiting: Cell<Option<Waker>>,
}

impl ConnectionState {
    /// The state of the request's connection; `None` over HTTP/2.
    pub fn of(request: &HttpRequest) -> Option<Rc<Self>> {
        request.conn_data::<Rc<Self>>().cloned()
    }

    /// The error for a request that replaces a refused one.
    pub fn refusal(&self, request: &HttpRequest) -> Option<Error> {
        let error = self.error.get().filter(|_| request.path() == STAND_IN_PATH)?;
        Some(error.error())
    }

    /// Reports a malformed chunked body as an error to its reader.
    pub fn check_body(self: &Rc<Self>, request: &mut ServiceRequest) {
        if request.headers().contains_key(header::TRANSFER_ENCODING) {
            let checked = CheckedBody { payload: request.take_payload(), shared: Rc::clone(self), over: false };
            request.set_payload(Payload::Stream { payload: Box::pin(checked) });
        }
    }

    /// True if the connection closes after the response to this request.
    pub fn is_broken(&self) -> bool {
        self.broken.get()
    }
}

/// Marks a request as in flight. Dropping it lets the connection read the next request.
pub struct InFlight(Rc<ConnectionState>);

impl InFlight {
    pub fn new(shared: Rc<ConnectionState>) -> Self {
        Self(shared)
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.done.set(self.0.done.get() + 1);
        if let Some(waiting) = self.0.waiting.take() {
            waiting.wake();
        }
    }
}

/// A chunked body that ends with an error if it is malformed.
struct CheckedBody {
    payload: Payload,
    shared: Rc<ConnectionState>,
    over: bool,
}

impl Stream for CheckedBody {
    type Item = Result<Bytes, PayloadError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.over {
            return Poll::Ready(None);
        }
        let item = ready!(Pin::new(&mut self.payload).poll_next(cx));
        self.over = !matches!(item, Some(Ok(_)));
        Poll::Ready(match item {
            None if self.shared.broken.get() => Some(Err(PayloadError::EncodingCorrupted)),
            item => item,
        })
    }
}

/// A connection of HTTP/1.
pub struct ValidatedStream {
    transport: Transport,
    shared: Rc<ConnectionState>,
    state: State,
    /// Received bytes that are not parsed.
    input: Vec<u8>,
    /// Parsed bytes, and the position from which they are not passed on yet.
    out: Vec<u8>,
    passed_on: usize,
    /// Number of heads that were passed on.
    heads: u64,
    /// Set once the replacement for a malformed request was passed on.
    replacement_sent: bool,
    discarded: usize,
    linger: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug)]
enum State {
    /// Expects a head.
    Head(Scan),
    /// Expects this many bytes of a body.
    Body(u64),
    Chunked(ChunkedDecoder),
    /// No more input is passed on.
    Refused,
}

impl ValidatedStream {
    pub fn new(transport: Transport) -> Self {
        let (input, out, shared, state) = (Vec::new(), Vec::new(), Rc::default(), State::Head(Scan::default()));
        Self {
            transport,
            shared,
            state,
            input,
            out,
            passed_on: 0,
            heads: 0,
            replacement_sent: false,
            discarded: 0,
            linger: None,
        }
    }

    /// Makes the connection's state available to its requests.
    pub fn share(&self, extensions: &mut Extensions) {
        extensions.insert(Arc::clone(self.transport.connection()));
        extensions.insert(Rc::clone(&self.shared));
    }

    /// True while a request is in flight. The next one must wait.
    fn is_busy(&self) -> bool {
        self.shared.done.get() < self.heads
    }

    /// Parses the buffered input as far as possible.
    fn read(&mut self) {
        while !self.input.is_empty() {
            let busy = self.is_busy();
            let taken = match &mut self.state {
                State::Refused => return,
                State::Head(_) if busy => return,
                State::Head(scan) if scan.is_new() && self.input.starts_with(b"\r\n") => 2, // Some clients send CR LF after a body.
                State::Head(scan) => match head::end(&self.input, scan) {
                    Ok(None) => return,
                    Ok(Some(end)) => match head::check(self.input.get(..end).unwrap_or_default(), &mut self.out) {
                        Ok(body) => {
                            self.heads += 1;
                            self.state = match body {
                                Body::Length(0) => State::Head(Scan::default()),
                                Body::Length(length) => State::Body(length),
                                Body::Chunked => State::Chunked(ChunkedDecoder::Size),
                            };
                            end
                        }
                        Err(error) => return self.refuse(error),
                    },
                    Err(error) => return self.refuse(error),
                },
                State::Body(left) => {
                    let taken = self.input.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    if taken == 0 {
                        return;
                    }
                    self.out.extend(self.input.iter().take(taken));
                    *left -= taken as u64;
                    if *left == 0 {
                        self.state = State::Head(Scan::default());
                    }
                    taken
                }
                State::Chunked(chunks) => {
                    let (taken, progress) = chunks.read(&self.input, &mut self.out);
                    match progress {
                        Progress::Wanting => {
                            self.input.drain(..taken);
                            return;
                        }
                        Progress::Done => self.state = State::Head(Scan::default()),
                        Progress::Broken => {
                            self.shared.broken.set(true);
                            return self.close();
                        }
                    }
                    taken
                }
            };
            self.input.drain(..taken);
        }
        self.input = Vec::new(); // An idle connection keeps no buffer.
    }

    fn refuse(&mut self, error: HeadError) {
        let _first = self.shared.error.set(error);
        self.close();
    }

    fn close(&mut self) {
        self.state = State::Refused;
        self.input = Vec::new();
    }

    /// Copies parsed bytes to the HTTP library. Returns `false` if there are none.
    fn copy_out(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        let rest = self.out.get(self.passed_on..).unwrap_or_default();
        let part = rest.get(..rest.len().min(buf.remaining())).unwrap_or_default();
        if part.is_empty() {
            return false;
        }
        buf.put_slice(part);
        self.passed_on += part.len();
        if self.passed_on == self.out.len() {
            self.passed_on = 0;
            self.out = Vec::new(); // An idle connection keeps no buffer.
        }
        true
    }
}

impl ValidatedStream {
    /// Reads from the connection; 0 bytes are its end.
    fn fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut bytes = [0; READ_BYTES];
        let mut read = ReadBuf::new(&mut bytes);
        ready!(Pin::new(&mut self.transport).poll_read(cx, &mut read))?;
        if !matches!(self.state, State::Refused) {
            self.input.extend(read.filled());
        }
        Poll::Ready(Ok(read.filled().len()))
    }

    /// Discards input after a refusal. Ready at the end of the connection, or after too much input.
    fn discard(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.discarded < MAX_DISCARDED {
            match ready!(self.fill(cx)) {
                Ok(1..) => self.discarded += READ_BYTES,
                Ok(0) | Err(_) => break,
            }
        }
        self.discarded = MAX_DISCARDED;
        Poll::Ready(())
    }
}

impl AsyncRead for ValidatedStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        this.transport.connection().check(cx)?;
        loop {
            this.read();
            if this.copy_out(buf) {
                return Poll::Ready(Ok(()));
            }
            let busy = this.is_busy();
            match &mut this.state {
                State::Refused => {
                    let _end = this.discard(cx);
                    if busy {
                        // Nothing yet: even the end of the connection would cancel what is being answered.
                        this.shared.waiting.set(Some(cx.waker().clone()));
                        return Poll::Pending;
                    }
                    if this.shared.error.get().is_none() || std::mem::replace(&mut this.replacement_sent, true) {
                        return if this.shared.broken.get() { Poll::Ready(Ok(())) } else { Poll::Pending };
                    }
                    this.out.extend(STAND_IN_REQUEST);
                    continue;
                }
                // A large body goes past the buffers, but for its end.
                State::Body(left) if this.input.is_empty() && buf.remaining() as u64 <= *left => {
                    let before = buf.filled().len();
                    ready!(Pin::new(&mut this.transport).poll_read(cx, buf))?;
                    *left -= (buf.filled().len() - before) as u64;
                    if *left == 0 {
                        this.state = State::Head(Scan::default());
                    }
                    return Poll::Ready(Ok(()));
                }
                State::Head(_) if busy => {
                    this.shared.waiting.set(Some(cx.waker().clone()));
                    let left = this.input.is_empty() && ready!(this.fill(cx))? == 0;
                    return if left { Poll::Ready(Ok(())) } else { Poll::Pending };
                }
                _ => {}
            }
            if ready!(this.fill(cx))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl AsyncWrite for ValidatedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.transport).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_flush(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.transport).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.transport).poll_shutdown(cx))?;
        if matches!(self.state, State::Refused) {
            let linger = self.linger.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
            if linger.as_mut().poll(cx).is_pending() {
                ready!(self.discard(cx));
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::http::client_address::TrustedProxies;
    use crate::http::connections::Connections;

    async fn connect() -> (TcpStream, ValidatedStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (tcp, _) = listener.accept().await.unwrap();
        let (tcp, _) = Connections::new(16).accept(tcp, &TrustedProxies::default()).unwrap();
        (client, ValidatedStream::new(Transport::plain(tcp)))
    }

    /// The bytes that are passed on at once; `None` if there are none.
    async fn passed(stream: &mut ValidatedStream) -> Option<String> {
        let mut bytes = [0; 4096];
        let mut buf = ReadBuf::new(&mut bytes);
        let read = poll_fn(|cx| Poll::Ready(Pin::new(&mut *stream).poll_read(cx, &mut buf))).await;
        read.is_ready().then(|| String::from_utf8(buf.filled().to_vec()).unwrap())
    }

    /// The next bytes, as soon as there are any.
    async fn waited(stream: &mut ValidatedStream) -> String {
        for _ in 0..2_000 {
            if let Some(text) = passed(stream).await {
                return text;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("nothing is passed on");
    }

    #[tokio::test]
    async fn a_request_is_passed_on_after_the_previous_response() {
        let (mut client, mut stream) = connect().await;
        let first = "GET /1 HTTP/1.1\r\nhost: a\r\n\r\n";
        let second = "PUT /2 HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nbody";
        let third = "GET /3 HTTP/1.1\r\nhost: a\r\n\r\n";
        client.write_all(format!("{first}{second}{third}").as_bytes()).await.unwrap();
        for request in [first, second, third] {
            assert_eq!(waited(&mut stream).await, request);
            let in_flight = InFlight::new(Rc::clone(&stream.shared));
            assert_eq!(passed(&mut stream).await, None);
            drop(in_flight);
        }
        // The end is noticed while a request runs, for that is how a client leaves.
        client.write_all(first.as_bytes()).await.unwrap();
        assert_eq!(waited(&mut stream).await, first);
        let _in_flight = InFlight::new(Rc::clone(&stream.shared));
        assert_eq!(passed(&mut stream).await, None);
        drop(client);
        assert_eq!(waited(&mut stream).await, "");
    }
}
