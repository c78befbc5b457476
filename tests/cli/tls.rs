//! Replacement of certificates while connections are open, stalled handshakes, and old TLS versions.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::json;

use crate::process::{MODEL, ServerProcess, command, folder};
use crate::tiny_model::TinyModel;
use crate::wait::until;

/// A self-signed certificate and its key, as PEM.
pub struct Pair {
    cert: String,
    key: String,
}

impl Pair {
    fn new() -> Self {
        let certified = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        Self { cert: certified.cert.pem(), key: certified.signing_key.serialize_pem() }
    }

    pub fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.cert.as_bytes()).unwrap()
    }

    pub fn install_certificate(&self, folder: &Path) {
        replace(folder, "key.pem", &self.key);
        replace(folder, "cert.pem", &self.cert);
    }
}

/// A client configuration that trusts only these certificates.
pub fn client_config(certificates: impl IntoIterator<Item = CertificateDer<'static>>) -> ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    certificates.into_iter().for_each(|certificate| roots.add(certificate).unwrap());
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

/// The client side of a TLS connection that trusts only these certificates.
pub fn session(certificates: impl IntoIterator<Item = CertificateDer<'static>>) -> ClientConnection {
    ClientConnection::new(Arc::new(client_config(certificates)), "127.0.0.1".try_into().unwrap()).unwrap()
}

/// Replaces a file by renaming another one, as certificate tools do.
fn replace(folder: &Path, name: &str, text: &str) {
    let temporary = folder.join("part");
    fs::write(&temporary, text).unwrap();
    fs::rename(temporary, folder.join(name)).unwrap();
}

/// A server whose certificate is in `cert.pem` and `key.pem` of its folder.
pub struct Secure {
    _folder: tempfile::TempDir,
    pub serving: ServerProcess,
    /// The first one is installed.
    pub pairs: [Pair; 2],
}

pub type Connection = StreamOwned<ClientConnection, TcpStream>;

impl Secure {
    pub fn start(model: &TinyModel) -> Self {
        let folder = folder(model);
        let pairs = [Pair::new(), Pair::new()];
        pairs[0].install_certificate(folder.path());
        let arguments = ["serve", "--listen", "127.0.0.1:0", "--tls-cert", "cert.pem", "--tls-key", "key.pem"];
        let mut start = command(folder.path(), &arguments);
        start.stderr(File::create(folder.path().join("log")).unwrap());
        let serving = ServerProcess::start_command(folder.path(), start);
        Self { _folder: folder, serving, pairs }
    }

    pub fn path(&self) -> &Path {
        self._folder.path()
    }

    fn socket(&self) -> TcpStream {
        let socket = TcpStream::connect(self.serving.url.trim_start_matches("https://")).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        socket
    }

    /// Opens a connection that trusts only the certificates of this test.
    pub fn connect(&self) -> Connection {
        StreamOwned::new(session(self.pairs.iter().map(Pair::der)), self.socket())
    }

    /// The index of the certificate that a new handshake gets.
    pub fn certificate(&self) -> usize {
        let mut connection = self.connect();
        assert_alive(&mut connection);
        let shown = connection.conn.peer_certificates().unwrap()[0].clone().into_owned();
        self.pairs.iter().position(|pair| pair.der() == shown).unwrap()
    }

    pub fn wait_for(&self, what: &str, met: impl Fn(&Self) -> bool) {
        until(|| format!("{what}: {}", self.log()), || met(self));
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path().join("log")).unwrap()
    }
}

/// Sends a request on a connection, which stays open. The response must be `200`.
pub fn request(connection: &mut Connection) -> std::io::Result<()> {
    write!(connection, "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")?;
    let mut response = Vec::new();
    while !response.ends_with(b"{\"status\":\"ok\"}") {
        let mut byte = [0];
        connection.read_exact(&mut byte)?;
        response.push(byte[0]);
    }
    match response.starts_with(b"HTTP/1.1 200") {
        true => Ok(()),
        false => Err(std::io::Error::other(String::from_utf8_lossy(&response).into_owned())),
    }
}

fn assert_alive(connection: &mut Connection) {
    request(connection).unwrap();
}

#[test]
fn sighup_loads_a_new_certificate_and_keeps_open_connections() {
    let secure = Secure::start(&TinyModel { context: 8192, blocks: 4, width: 256, ..TinyModel::default() });
    let mut keep_alive = secure.connect();
    assert_alive(&mut keep_alive);
    let mut stream = secure.connect();
    let body = json!({
        "model": MODEL, "stream": true, "max_tokens": 1500, "ignore_eos": true,
        "messages": [{ "role": "user", "content": "go on" }],
    })
    .to_string();
    write!(
        stream,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        secure.serving.key(),
        body.len()
    )
    .unwrap();
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while !line.contains("\"content\"") {
        line.clear();
        assert!(stream.read_line(&mut line).unwrap() > 0, "the stream did not begin");
    }
    assert_eq!(secure.certificate(), 0);

    secure.pairs[1].install_certificate(secure.path());
    secure.serving.signal("HUP");
    secure.wait_for("the new certificate", |secure| secure.certificate() == 1);
    secure.wait_for("the signal", |secure| secure.log().contains("SIGHUP received"));
    assert_alive(&mut keep_alive);
    let mut rest = String::new();
    let _closed_without_notice = stream.read_to_string(&mut rest);
    assert!(rest.contains("\"content\""), "the stream had ended before");
    assert!(rest.contains("data: [DONE]"), "…{}", &rest[rest.len().saturating_sub(300)..]);
    assert_alive(&mut keep_alive);
}

#[test]
fn changed_certificates_are_loaded_unless_they_are_invalid() {
    let secure = Secure::start(&TinyModel::default());
    let mut keep_alive = secure.connect();
    assert_alive(&mut keep_alive);
    secure.pairs[1].install_certificate(secure.path());
    secure.wait_for("the new certificate", |secure| secure.certificate() == 1);

    replace(secure.path(), "cert.pem", "no certificate");
    secure.wait_for("the bad file", |secure| secure.log().contains("the certificate file cert.pem cannot be used"));
    assert_eq!(secure.certificate(), 1);
    // The key of another certificate.
    replace(secure.path(), "cert.pem", &secure.pairs[0].cert);
    let together = "the certificate file cert.pem and the private key file key.pem cannot be used together";
    secure.wait_for("the bad pair", |secure| secure.log().contains(together));
    assert_eq!(secure.certificate(), 1);
    fs::remove_file(secure.path().join("key.pem")).unwrap();
    secure.wait_for("the missing file", |secure| secure.log().contains("the private key file key.pem cannot be used"));
    secure.serving.signal("HUP");
    assert_eq!(secure.certificate(), 1);
    std::thread::sleep(Duration::from_secs(3));
    let warnings = secure.log().lines().filter(|line| line.contains("is not loaded again")).count();
    assert!(warnings <= 5, "an invalid file is reported once: {}", secure.log());

    secure.pairs[0].install_certificate(secure.path());
    secure.wait_for("the good files", |secure| secure.certificate() == 0);
    assert_alive(&mut keep_alive);
}

#[test]
fn a_stalled_handshake_is_closed_and_delays_no_other_connection() {
    let secure = Secure::start(&TinyModel::default());
    // No bytes, and a partial ClientHello.
    for sent in [&[][..], &[0x16, 3, 1, 2, 0, 1, 0]] {
        let mut stalled = secure.socket();
        stalled.write_all(sent).unwrap();
        let began = Instant::now();
        assert_eq!(secure.certificate(), 0, "other clients are served");
        let end = stalled.read(&mut [0; 64]);
        let closed = matches!(&end, Ok(0)) || matches!(&end, Err(cause) if cause.kind() == ErrorKind::ConnectionReset);
        assert!(closed, "{end:?}");
        assert!(began.elapsed() < Duration::from_secs(5), "closed only after {:?}", began.elapsed());
    }
}

#[test]
fn tls_1_1_is_refused() {
    let secure = Secure::start(&TinyModel::default());
    let mut hello = vec![0x03, 0x02];
    hello.extend([7; 32]);
    // No session, one cipher suite (TLS_RSA_WITH_AES_128_CBC_SHA), no compression.
    hello.extend([0, 0, 2, 0x00, 0x2f, 1, 0]);
    let mut record = vec![0x16, 3, 1, 0, hello.len() as u8 + 4, 1, 0, 0, hello.len() as u8];
    record.extend(hello);
    let mut socket = secure.socket();
    socket.write_all(&record).unwrap();
    let mut alert = [0; 7];
    socket.read_exact(&mut alert).unwrap();
    assert_eq!((alert[0], alert[5]), (21, 2), "a fatal alert");
    // `handshake_failure` or `protocol_version`, because the cipher suites are old, too.
    assert!([40, 70].contains(&alert[6]), "{alert:?}");
}
