//! The transport under HTTP: a socket, with or without TLS.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::connections::{Connection, Stream};

/// Max bytes that the HTTP layer buffers before it writes to the socket.
pub const CHUNK_BYTES: usize = 32 << 10;

/// The ALPN name of HTTP/2.
pub const HTTP2: &[u8] = b"h2";

pub struct Transport {
    io: Io,
    is_http2: bool,
}

enum Io {
    Plain(Stream),
    Tls(Box<TlsStream<Stream>>),
}

impl Transport {
    pub fn plain(stream: Stream) -> Self {
        Self { io: Io::Plain(stream), is_http2: false }
    }

    /// A TLS stream after the handshake, which negotiated the HTTP version (ALPN).
    pub async fn secure(acceptor: &TlsAcceptor, stream: Stream) -> io::Result<Self> {
        let bound = |session: &mut rustls::ServerConnection| session.set_buffer_limit(Some(CHUNK_BYTES));
        let stream = acceptor.accept_with(stream, bound).await?;
        let is_http2 = stream.get_ref().1.alpn_protocol() == Some(HTTP2);
        Ok(Self { io: Io::Tls(Box::new(stream)), is_http2 })
    }

    pub fn is_http2(&self) -> bool {
        self.is_http2
    }

    pub fn connection(&self) -> &Arc<Connection> {
        match &self.io {
            Io::Plain(stream) => stream.connection(),
            Io::Tls(stream) => stream.get_ref().0.connection(),
        }
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

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.get_mut().io.pin().poll_read(cx, buf)
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().io.pin().poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().io.pin().poll_write_vectored(cx, bufs)
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
