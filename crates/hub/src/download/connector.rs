//! Connects to servers: resolves names, checks the addresses, and uses the proxies of the environment
//! (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`). A proxy resolves names itself, so the check of addresses does
//! not apply to it.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http1::{HeaderValue, Uri};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower_service::Service;

use super::address_policy::AddressPolicy;
use outpost_common::tls_roots::{self, Trust};

/// Max bytes of a proxy's answer to CONNECT.
const MAX_PROXY_ANSWER: usize = 8 << 10;

/// Why no connection was opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    #[error("{host} has the private address {address}")]
    Private { host: String, address: IpAddr },
    #[error("{0}")]
    Setup(String),
    #[error(transparent)]
    Io(#[from] io::Error),
}

#[derive(Clone)]
pub(super) struct Connector {
    pub policy: Arc<AddressPolicy>,
    pub proxies: Arc<Matcher>,
    pub timeout: Duration,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<ServerStream>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let connected = tokio::time::timeout(connector.timeout, connector.connect(&uri)).await;
            connected.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into())).map(TokioIo::new)
        })
    }
}

impl Connector {
    async fn connect(&self, uri: &Uri) -> Result<ServerStream, ConnectError> {
        let Target { host, port, is_https } = Target::of(uri)?;
        if let Some(proxy) = self.proxies.intercept(uri) {
            // The proxy resolves names, but an address, and the name of this machine, need no resolving.
            let named = if host == "localhost" { Some(IpAddr::V4(Ipv4Addr::LOCALHOST)) } else { host.parse().ok() };
            if let Some(address) = named.filter(|address| !self.policy.permits(&host, port, *address)) {
                return Err(ConnectError::Private { host, address });
            }
            return through_proxy(&proxy, &host, port, is_https).await;
        }
        let tcp = self.connect_checked(&host, port).await?;
        let io = if is_https { encrypt(Box::new(tcp), &host).await? } else { Box::new(tcp) };
        Ok(ServerStream { io, is_proxied: false })
    }

    /// Connects to one of the permitted addresses of a host. The address that is checked is the one that is used, so a
    /// name that changes in between changes nothing.
    async fn connect_checked(&self, host: &str, port: u16) -> Result<TcpStream, ConnectError> {
        let mut failed = None;
        for address in tokio::net::lookup_host((host, port)).await? {
            if !self.policy.permits(host, port, address.ip()) {
                failed.get_or_insert(ConnectError::Private { host: host.to_owned(), address: address.ip() });
                continue;
            }
            match TcpStream::connect(address).await {
                Ok(tcp) => return no_delay(tcp),
                Err(error) => failed = Some(error.into()),
            }
        }
        Err(failed.unwrap_or_else(|| ConnectError::Setup("the name has no address".to_owned())))
    }
}

struct Target {
    host: String,
    port: u16,
    is_https: bool,
}

impl Target {
    fn of(uri: &Uri) -> Result<Self, ConnectError> {
        let host = uri.host().ok_or_else(|| ConnectError::Setup("the URL has no host".to_owned()))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let is_https = uri.scheme_str() == Some("https");
        Ok(Self { host, port: uri.port_u16().unwrap_or(if is_https { 443 } else { 80 }), is_https })
    }
}

async fn through_proxy(proxy: &Intercept, host: &str, port: u16, is_https: bool) -> Result<ServerStream, ConnectError> {
    if !matches!(proxy.uri().scheme_str(), Some("http" | "https")) {
        let text = "the proxy of the environment is a SOCKS proxy, which is not supported; use an HTTP proxy";
        return Err(ConnectError::Setup(text.to_owned()));
    }
    let address = Target::of(proxy.uri())?;
    let tcp = TcpStream::connect((address.host.as_str(), address.port)).await;
    let tcp = tcp.map_err(|error| ConnectError::Setup(format!("the proxy {} fails: {error}", address.host)))?;
    let mut io: Box<dyn Stream> = Box::new(no_delay(tcp)?);
    if address.is_https {
        io = encrypt(io, &address.host).await?;
    }
    if !is_https {
        // hyper then sends the whole URL; the client adds the proxy's password.
        return Ok(ServerStream { io, is_proxied: true });
    }
    open_tunnel(&mut io, host, port, proxy.basic_auth()).await?;
    Ok(ServerStream { io: encrypt(io, host).await?, is_proxied: false })
}

/// Asks a proxy for a tunnel (RFC 9110, section 9.3.6).
async fn open_tunnel(
    io: &mut Box<dyn Stream>,
    host: &str,
    port: u16,
    password: Option<&HeaderValue>,
) -> Result<(), ConnectError> {
    let authority = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let mut request = format!("CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n");
    if let Some(password) = password.and_then(|value| value.to_str().ok()) {
        request.push_str(&format!("Proxy-Authorization: {password}\r\n"));
    }
    io.write_all(format!("{request}\r\n").as_bytes()).await?;
    io.flush().await?;
    let mut answer = Vec::new();
    // Byte by byte: what follows belongs to the tunnel.
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() == MAX_PROXY_ANSWER {
            return Err(ConnectError::Setup("the proxy's answer is too long".to_owned()));
        }
        answer.push(io.read_u8().await?);
    }
    let status = answer.get(9..12).unwrap_or_default();
    match (answer.starts_with(b"HTTP/1."), status) {
        (true, [b'2', _, _]) => Ok(()),
        (true, b"407") => Err(ConnectError::Setup("the proxy wants a user and password, or refuses these".to_owned())),
        (true, status) => {
            Err(ConnectError::Setup(format!("the proxy refuses with status {}", String::from_utf8_lossy(status))))
        }
        (false, _) => Err(ConnectError::Setup("the proxy does not speak HTTP".to_owned())),
    }
}

async fn encrypt(io: Box<dyn Stream>, host: &str) -> Result<Box<dyn Stream>, ConnectError> {
    let Trust(config) = tls_roots::trust_system().map_err(ConnectError::Setup)?;
    let name = ServerName::try_from(host.to_owned()).map_err(|error| ConnectError::Setup(error.to_string()))?;
    Ok(Box::new(TlsConnector::from(config).connect(name, io).await?))
}

fn no_delay(tcp: TcpStream) -> Result<TcpStream, ConnectError> {
    tcp.set_nodelay(true)?;
    Ok(tcp)
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A connection to a server, perhaps through a proxy.
pub(super) struct ServerStream {
    io: Box<dyn Stream>,
    /// Requests go to a proxy, which needs the whole URL.
    is_proxied: bool,
}

impl Connection for ServerStream {
    fn connected(&self) -> Connected {
        Connected::new().proxy(self.is_proxied)
    }
}

impl AsyncRead for ServerStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_read(context, buffer)
    }
}

impl AsyncWrite for ServerStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(context)
    }
}
