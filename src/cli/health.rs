//! `outpost health`: whether the local server accepts requests, for containers and scripts.

use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
use serde_json::Value;

use super::output::{Outcome, failure};
use crate::control_socket::{self, Reply, Request};

/// How long a connection, a read or a write may take.
const TIMEOUT: Duration = Duration::from_secs(5);
const MAX_RESPONSE_BYTES: u64 = 64 * 1024;

#[derive(Debug, Args)]
pub struct HealthArgs {
    /// Address of the server [default: that of the server that uses the data folder]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
}

/// Prints `ready` if `/readyz` says that the server is; the error is the reason why it is not.
pub fn run(data: &Path, args: HealthArgs, out: &mut dyn Write) -> Outcome {
    let (url, is_ours) = match args.url {
        Some(url) => (url, false),
        None => (url_of_server(data)?, true),
    };
    let response = Target::parse(&url)
        .ok_or_else(|| format!("'{url}' is not an address of a server; write for example http://127.0.0.1:8080"))?
        .get_readyz(is_ours)
        .map_err(|cause| format!("{url} does not answer: {cause}"))?;
    let (status, message) = parse(&response).ok_or_else(|| format!("{url} does not answer with HTTP"))?;
    if status != 200 {
        let reason = message.unwrap_or_else(|| format!("status {status}"));
        return Err(format!("{url} is not ready: {reason}").into());
    }
    writeln!(out, "ready")?;
    Ok(())
}

/// The address of the server that uses a data folder, for clients on this machine.
fn url_of_server(data: &Path) -> Result<String, Box<dyn Error>> {
    let folder = data.display();
    let unknown = |cause| format!("cannot ask the server of {folder} for its address: {cause}; name it with --url");
    match control_socket::send_within(data, &Request::Address, TIMEOUT).map_err(unknown)? {
        Some(Reply::Address { url }) => Ok(url),
        Some(other) => Err(failure(other)),
        None => Err(format!("no server uses the data folder {folder}").into()),
    }
}

/// The status of a response, and the message of its error.
fn parse(response: &str) -> Option<(u16, Option<String>)> {
    let (head, body) = response.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.split(' ').next()?.parse().ok()?;
    let message = |body: Value| body["error"]["message"].as_str().map(str::to_owned);
    Some((status, serde_json::from_str(body).ok().and_then(message)))
}

/// A server.
struct Target<'a> {
    is_secure: bool,
    /// As in the URL.
    authority: &'a str,
    host: &'a str,
    port: u16,
}

impl<'a> Target<'a> {
    /// Reads `http://HOST[:PORT]` or `https://HOST[:PORT]`.
    fn parse(url: &'a str) -> Option<Self> {
        let (scheme, authority) = url.strip_suffix('/').unwrap_or(url).split_once("://")?;
        let is_secure = match scheme {
            "http" => false,
            "https" => true,
            _ => return None,
        };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
            _ => (authority, if is_secure { 443 } else { 80 }),
        };
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let is_valid = !host.is_empty() && authority.chars().all(is_plain);
        is_valid.then_some(Self { is_secure, authority, host, port })
    }

    /// The response to `GET /readyz`, which needs no key. `is_ours`: whether the server itself has named the address.
    fn get_readyz(&self, is_ours: bool) -> io::Result<String> {
        let tcp = self.connect()?;
        let request = format!("GET /readyz HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", self.authority);
        if !self.is_secure {
            return exchange(tcp, &request);
        }
        if !is_ours && !tcp.peer_addr()?.ip().to_canonical().is_loopback() {
            return Err(io::Error::other("over HTTPS, only a server on this machine can be asked"));
        }
        exchange(self.secure(tcp)?, &request)
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let mut failure = io::Error::from(io::ErrorKind::NotFound);
        for address in (self.host, self.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, TIMEOUT) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(TIMEOUT))?;
                    stream.set_write_timeout(Some(TIMEOUT))?;
                    return Ok(stream);
                }
                Err(cause) => failure = cause,
            }
        }
        Err(failure)
    }

    /// A TLS session with a server on this machine. Its certificate is for its public name, and is not verified: the request
    /// has no secret.
    fn secure(&self, tcp: TcpStream) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
        let name = match self.host.parse::<IpAddr>() {
            Ok(ip) => ServerName::from(ip),
            Err(_) => ServerName::try_from(self.host.to_owned()).map_err(io::Error::other)?,
        };
        let provider = Arc::new(ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
            .with_no_client_auth();
        let session = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
        Ok(StreamOwned::new(session, tcp))
    }
}

fn exchange(mut stream: impl Read + Write, request: &str) -> io::Result<String> {
    stream.write_all(request.as_bytes())?;
    let mut response = Vec::new();
    // A server may close its connection without TLS's notice of the end.
    if let Err(cause) = stream.take(MAX_RESPONSE_BYTES).read_to_end(&mut response)
        && response.is_empty()
    {
        return Err(cause);
    }
    Ok(String::from_utf8_lossy(&response).into_owned())
}

/// Accepts every certificate.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
