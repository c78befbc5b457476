//! What HTTP is spoken over: a socket, with or without TLS.
//!
//! For HTTP/1 it also decides how far is read ahead. actix parses all requests that are in its read buffer, 128 KiB, and
//! queues them, some 5 KiB each, before it looks at its bound for the queue. So it gets no bytes beyond the request in
//! hand, that is, beyond the empty line after a head and the declared length of a body. What has been read already waits
//! here, the rest in the kernel, until the response is sent. The end of the stream is passed on at once, for that is how
//! a client leaves.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::connections::{Connection, Stream};
use super::sending::PIECE;

/// The name of HTTP/2 in a TLS handshake.
pub const HTTP2: &[u8] = b"h2";

/// What is read of a body at once whose end is not known. Requests behind it may be among that.
const SLICE: usize = 1024;

/// What is read while nothing may be passed on, to notice that the client leaves.
const PROBE: usize = 64;

pub struct Channel {
    io: Io,
    /// Only for HTTP/1: the frames of HTTP/2 are of many requests at once, and of writes that wait.
    gate: Option<Gate>,
}

enum Io {
    Plain(Stream),
    Tls(Box<TlsStream<Stream>>),
}

/// How far a client of HTTP/1 is read.
#[derive(Default)]
struct Gate {
    /// Read, but not passed on yet.
    ahead: Vec<u8>,
    /// The line that is being read has no characters so far.
    line_is_empty: bool,
    /// Nothing more is passed on until what was passed on is parsed.
    pause: bool,
    /// The client takes no more bytes at present.
    blocked: bool,
}

impl Channel {
    pub fn plain(stream: Stream) -> Self {
        Self { io: Io::Plain(stream), gate: Some(Gate::default()) }
    }

    /// After the handshake, in which client and server agree on the version of HTTP.
    pub async fn secure(acceptor: &TlsAcceptor, stream: Stream) -> io::Result<Self> {
        let bound = |session: &mut rustls::ServerConnection| session.set_buffer_limit(Some(PIECE));
        let stream = acceptor.accept_with(stream, bound).await?;
        let http1 = stream.get_ref().1.alpn_protocol() != Some(HTTP2);
        Ok(Self { io: Io::Tls(Box::new(stream)), gate: http1.then(Gate::default) })
    }

    pub fn is_http2(&self) -> bool {
        self.gate.is_none()
    }

    pub fn connection(&self) -> &Arc<Connection> {
        match &self.io {
            Io::Plain(stream) => stream.connection(),
            Io::Tls(stream) => stream.get_ref().0.connection(),
        }
    }

    fn written(&mut self, cx: &Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Some(gate) = &mut self.gate {
            let was_blocked = std::mem::replace(&mut gate.blocked, written.is_pending());
            if was_blocked && !gate.blocked {
                // A read may have been refused before this write.
                cx.waker().wake_by_ref();
            }
        }
        written
    }
}

trait Socket: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> Socket for S {}

impl Io {
    fn pin(&mut self) -> Pin<&mut dyn Socket> {
        match self {
            Self::Plain(stream) => Pin::new(stream),
            Self::Tls(stream) => Pin::new(&mut **stream),
        }
    }
}

impl Gate {
    fn poll_read(
        &mut self,
        io: Pin<&mut dyn Socket>,
        connection: &Connection,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.blocked {
            // The write wakes the task.
            return Poll::Pending;
        }
        if std::mem::take(&mut self.pause) {
            let end = self.probe(io, cx);
            if !self.ahead.is_empty() {
                cx.waker().wake_by_ref();
            }
            return end;
        }
        match connection.body_to_read() {
            None => self.read_head(io, cx, buf),
            Some(0) => {
                connection.withhold();
                self.probe(io, cx)
            }
            Some(u64::MAX) => {
                let read = ready!(self.read(io, cx, buf, SLICE))?;
                self.pause = read > PROBE;
                Poll::Ready(Ok(()))
            }
            Some(left) => {
                let read = ready!(self.read(io, cx, buf, usize::try_from(left).unwrap_or(usize::MAX)))?;
                connection.has_read(read);
                Poll::Ready(Ok(()))
            }
        }
    }

    /// Passes on at most `most` bytes, and returns how many these were.
    fn read(
        &mut self,
        io: Pin<&mut dyn Socket>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
        most: usize,
    ) -> Poll<io::Result<usize>> {
        let before = buf.filled().len();
        if !self.ahead.is_empty() {
            let count = self.ahead.len().min(most).min(buf.remaining());
            buf.put_slice(&self.ahead[..count]);
            self.ahead.drain(..count);
            if self.ahead.is_empty() {
                self.ahead = Vec::new();
            }
        } else if most >= buf.remaining() {
            ready!(io.poll_read(cx, buf))?;
        } else {
            let mut bytes = vec![0; most];
            let mut part = ReadBuf::new(&mut bytes);
            ready!(io.poll_read(cx, &mut part))?;
            buf.put_slice(part.filled());
        }
        Poll::Ready(Ok(buf.filled().len() - before))
    }

    /// Passes on bytes up to the end of a head.
    fn read_head(
        &mut self,
        io: Pin<&mut dyn Socket>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(self.read(io, cx, buf, usize::MAX))?;
        if let Some(end) = self.end_of_head(&buf.filled()[before..]) {
            let rest = &buf.filled()[before + end..];
            if !rest.is_empty() {
                self.ahead.splice(..0, rest.iter().copied());
                buf.set_filled(before + end);
            }
            self.pause = true;
        }
        Poll::Ready(Ok(()))
    }

    /// Where the first empty line ends. Lines may end with a line feed alone, as the parser has it.
    fn end_of_head(&mut self, bytes: &[u8]) -> Option<usize> {
        for (at, byte) in bytes.iter().enumerate() {
            match byte {
                b'\n' if self.line_is_empty => {
                    self.line_is_empty = false;
                    return Some(at + 1);
                }
                b'\n' => self.line_is_empty = true,
                b'\r' => {}
                _ => self.line_is_empty = false,
            }
        }
        None
    }

    /// Passes on nothing but the end of the stream. Keeps what else it reads.
    fn probe(&mut self, io: Pin<&mut dyn Socket>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            let mut bytes = [0; PROBE];
            let mut probe = ReadBuf::new(&mut bytes);
            ready!(io.poll_read(cx, &mut probe))?;
            if probe.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            self.ahead.extend_from_slice(probe.filled());
        }
        Poll::Pending
    }
}

impl AsyncRead for Channel {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let connection = Arc::clone(self.connection());
        let Self { io, gate } = self.get_mut();
        match gate {
            None => io.pin().poll_read(cx, buf),
            Some(gate) => {
                connection.check(cx)?;
                gate.poll_read(io.pin(), &connection, cx, buf)
            }
        }
    }
}

impl AsyncWrite for Channel {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = this.io.pin().poll_write(cx, buf);
        this.written(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = this.io.pin().poll_write_vectored(cx, bufs);
        this.written(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.io {
            Io::Plain(stream) => stream.is_write_vectored(),
            Io::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().io.pin().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().io.pin().poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use tokio::io::{AsyncWriteExt, DuplexStream};

    use super::*;
    use crate::http::connections::Connections;

    struct Served {
        gate: Gate,
        io: DuplexStream,
        connection: Arc<Connection>,
    }

    impl Served {
        /// What the gate passes on until it has the parser go to work.
        async fn passed(&mut self) -> String {
            let mut all = Vec::new();
            poll_fn(|cx| {
                loop {
                    let mut bytes = [0; 4096];
                    let mut buf = ReadBuf::new(&mut bytes);
                    match self.gate.poll_read(Pin::new(&mut self.io), &self.connection, cx, &mut buf) {
                        Poll::Ready(done) => done.unwrap(),
                        Poll::Pending => return Poll::Ready(()),
                    }
                    if buf.filled().is_empty() {
                        all.extend_from_slice(b"(end)");
                        return Poll::Ready(());
                    }
                    all.extend_from_slice(buf.filled());
                }
            })
            .await;
            String::from_utf8(all).unwrap()
        }
    }

    #[tokio::test]
    async fn nothing_is_passed_on_beyond_the_request_in_hand() {
        let connections = Connections::new(16);
        let connection = connections.open(None).unwrap();
        let (mut client, io) = tokio::io::duplex(8192);
        let mut served = Served { gate: Gate::default(), io, connection: Arc::clone(&connection) };
        let (first, second, third) =
            ("GET /1 HTTP/1.1\r\na: b\r\n\r\n", "GET /2 HTTP/1.1\nc: d\n\n", "PUT /3 HTTP/1.1\r\n\r\n");
        client.write_all(format!("{first}{second}{third}bodyGET /4").as_bytes()).await.unwrap();
        assert_eq!(served.passed().await, first);
        let running = connection.run(0);
        assert_eq!((served.passed().await, served.passed().await), (String::new(), String::new()));
        drop(running);
        assert_eq!(served.passed().await, second);
        assert_eq!(served.passed().await, third);
        let running = connection.run(4);
        assert_eq!((served.passed().await, served.passed().await), ("body".to_owned(), String::new()));
        drop(running);
        assert_eq!(served.passed().await, "GET /4");
        served.gate.blocked = true;
        client.write_all(b" HTTP/1.1\r\n").await.unwrap();
        assert_eq!(served.passed().await, "");
        served.gate.blocked = false;
        assert_eq!(served.passed().await, " HTTP/1.1\r\n");
    }

    #[tokio::test]
    async fn the_end_of_the_stream_is_passed_on_while_a_request_runs() {
        let connections = Connections::new(16);
        let connection = connections.open(None).unwrap();
        let (mut client, io) = tokio::io::duplex(8192);
        let mut served = Served { gate: Gate::default(), io, connection: Arc::clone(&connection) };
        client.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
        assert_eq!(served.passed().await, "GET / HTTP/1.1\r\n\r\n");
        let _running = connection.run(0);
        assert_eq!(served.passed().await, "");
        drop(client);
        assert_eq!(served.passed().await, "(end)");
    }

    #[tokio::test]
    async fn a_body_of_unknown_length_comes_in_slices() {
        let connections = Connections::new(16);
        let connection = connections.open(None).unwrap();
        let (mut client, io) = tokio::io::duplex(8192);
        let mut served = Served { gate: Gate::default(), io, connection: Arc::clone(&connection) };
        let running = connection.run(u64::MAX);
        client.write_all(&[b'x'; 4 * SLICE]).await.unwrap();
        assert_eq!((served.passed().await.len(), served.passed().await.len()), (SLICE, PROBE + SLICE));
        running.answered();
        assert_eq!(served.passed().await, "");
    }
}
