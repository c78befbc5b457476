//! T26: certificates are replaced while connections are open; stalled handshakes and old versions end.

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

use crate::process::{MODEL, Serving, command, folder};
use crate::tiny_model::TinyModel;
use crate::wait::until;

/// A certificate of its own and its key, as PEM.
struct Pair {
    cert: String,
    key: String,
}

impl Pair {
    fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        Self { cert: made.cert.pem(), key: made.signing_key.serialize_pem() }
    }

    fn der(&self) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(self.cert.as_bytes()).unwrap()
    }

    fn install(&self, folder: &Path) {
        replace(folder, "key.pem", &self.key);
        replace(folder, "cert.pem", &self.cert);
    }
}

/// What a client needs to trust these certificates alone.
pub fn trusting(certificates: impl IntoIterator<Item = CertificateDer<'static>>) -> ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    certificates.into_iter().for_each(|certificate| roots.add(certificate).unwrap());
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

/// A client's side of a TLS connection that trusts these certificates alone.
pub fn session(certificates: impl IntoIterator<Item = CertificateDer<'static>>) -> ClientConnection {
    ClientConnection::new(Arc::new(trusting(certificates)), "127.0.0.1".try_into().unwrap()).unwrap()
}

/// As certificate tools do it: a new file takes the old one's name.
fn replace(folder: &Path, name: &str, text: &str) {
    let part = folder.join("part");
    fs::write(&part, text).unwrap();
    fs::rename(part, folder.join(name)).unwrap();
}

struct Secure {
    _folder: tempfile::TempDir,
    serving: Serving,
    pairs: [Pair; 2],
}

type Connection = StreamOwned<ClientConnection, TcpStream>;

impl Secure {
    fn start(model: &TinyModel) -> Self {
        let folder = folder(model);
        let pairs = [Pair::new(), Pair::new()];
        pairs[0].install(folder.path());
        let arguments = ["serve", "--listen", "127.0.0.1:0", "--tls-cert", "cert.pem", "--tls-key", "key.pem"];
        let mut start = command(folder.path(), &arguments);
        start.stderr(File::create(folder.path().join("log")).unwrap());
        let serving = Serving::start_as(folder.path(), start);
        Self { _folder: folder, serving, pairs }
    }

    fn path(&self) -> &Path {
        self._folder.path()
    }

    fn socket(&self) -> TcpStream {
        let socket = TcpStream::connect(self.serving.url.trim_start_matches("https://")).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        socket
    }

    /// A new connection that trusts the certificates of this test alone.
    fn connect(&self) -> Connection {
        StreamOwned::new(session(self.pairs.iter().map(Pair::der)), self.socket())
    }

    /// Which of the two certificates a new handshake gets.
    fn certificate(&self) -> usize {
        let mut connection = self.connect();
        alive(&mut connection);
        let shown = connection.conn.peer_certificates().unwrap()[0].clone().into_owned();
        self.pairs.iter().position(|pair| pair.der() == shown).unwrap()
    }

    fn wait_for(&self, what: &str, met: impl Fn(&Self) -> bool) {
        until(|| format!("{what}: {}", self.log()), || met(self));
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path().join("log")).unwrap()
    }
}

/// One request on a connection that stays open.
fn alive(connection: &mut Connection) {
    write!(connection, "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"{\"status\":\"ok\"}") {
        let mut byte = [0];
        connection.read_exact(&mut byte).unwrap();
        answer.push(byte[0]);
    }
    assert!(answer.starts_with(b"HTTP/1.1 200"));
}

#[test]
fn sighup_loads_a_new_certificate_and_open_connections_go_on() {
    let secure = Secure::start(&TinyModel { context: 8192, blocks: 4, width: 256, ..TinyModel::default() });
    let mut kept = secure.connect();
    alive(&mut kept);
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

    secure.pairs[1].install(secure.path());
    secure.serving.signal("HUP");
    secure.wait_for("the new certificate", |secure| secure.certificate() == 1);
    secure.wait_for("the signal", |secure| secure.log().contains("SIGHUP received"));
    alive(&mut kept);
    let mut rest = String::new();
    let _closed_without_notice = stream.read_to_string(&mut rest);
    assert!(rest.contains("\"content\""), "the stream had ended before");
    assert!(rest.contains("data: [DONE]"), "…{}", &rest[rest.len().saturating_sub(300)..]);
    alive(&mut kept);
}

#[test]
fn changed_files_are_noticed_and_bad_ones_leave_the_old_certificate() {
    let secure = Secure::start(&TinyModel::default());
    let mut kept = secure.connect();
    alive(&mut kept);
    secure.pairs[1].install(secure.path());
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
    let told = secure.log().lines().filter(|line| line.contains("is not loaded again")).count();
    assert!(told <= 5, "a file that stays bad is told once: {}", secure.log());

    secure.pairs[0].install(secure.path());
    secure.wait_for("the good files", |secure| secure.certificate() == 0);
    alive(&mut kept);
}

#[test]
fn a_stalled_handshake_is_closed_and_delays_nobody() {
    let secure = Secure::start(&TinyModel::default());
    // Nothing at all, and the beginning of a hello.
    for sent in [&[][..], &[0x16, 3, 1, 2, 0, 1, 0]] {
        let mut stalled = secure.socket();
        stalled.write_all(sent).unwrap();
        let began = Instant::now();
        assert_eq!(secure.certificate(), 0, "others are served meanwhile");
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
    // `handshake_failure` or `protocol_version`: the cipher suites are as old.
    assert!([40, 70].contains(&alert[6]), "{alert:?}");
}
