//! Connects to a target, with TLS if its address says so. Proxies of the environment are not used: requests go exactly
//! where `upstream.toml` says.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http1::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower_service::Service;

use outpost_common::tls_roots::Trust;

/// Connects to one target.
#[derive(Clone)]
pub struct Connector {
    tcp: HttpConnector,
    trust: Option<Trust>,
    /// For the connection with its TLS handshake.
    timeout: Duration,
}

impl Connector {
    /// `trust`: for `https`.
    pub fn new(trust: Option<Trust>, timeout: Duration) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(timeout));
        Self { tcp, trust, timeout }
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TargetStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.tcp.poll_ready(context).map_err(io::Error::other)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (trust, limit) = (self.trust.clone(), self.timeout);
        let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
        let connecting = self.tcp.call(uri);
        Box::pin(async move {
            let connect = async {
                let tcp = connecting.await.map_err(io::Error::other)?.into_inner();
                let Some(Trust(config)) = trust else { return Ok(TargetStream::Plain(tcp)) };
                let name = ServerName::try_from(host).map_err(io::Error::other)?;
                Ok(TargetStream::Tls(Box::new(TlsConnector::from(config).connect(name, tcp).await?)))
            };
            let connected = tokio::time::timeout(limit, connect).await;
            connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map(TokioIo::new)
        })
    }
}

/// A connection to a target.
pub enum TargetStream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection for TargetStream {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for TargetStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for TargetStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
