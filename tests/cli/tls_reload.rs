//! No request fails while the certificate is replaced under load.
//!
//! By hand, for longer and with figures:
//! `OUTPOST_RELOAD_SECONDS=60 cargo test --release --test cli tls_reload -- --nocapture`

use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustls::{ClientConnection, StreamOwned};

use crate::tiny_model::TinyModel;
use crate::tls::{Connection, Secure, request};

/// Clients that keep their connection, and as many that open one for each request.
const CLIENTS: usize = 16;
/// Replacements that SIGHUP announces, between two that the server finds by itself.
const SIGNALLED: usize = 5;
const PAUSE: Duration = Duration::from_millis(200);
/// Pause of a client that opens connections; it leaves the machine enough free ports.
const BETWEEN_CONNECTIONS: Duration = Duration::from_millis(10);

/// What a client has seen.
#[derive(Default)]
struct Seen {
    milliseconds: Vec<f64>,
    failures: Vec<String>,
    /// Handshakes with each of the two certificates.
    certificates: [usize; 2],
}

impl Seen {
    fn count(&mut self, sent: Instant, outcome: std::io::Result<()>) {
        match outcome {
            Ok(()) => self.milliseconds.push(sent.elapsed().as_secs_f64() * 1e3),
            Err(cause) => self.failures.push(cause.to_string()),
        }
    }
}

/// One connection with all requests.
fn keep_alive(secure: &Secure, stop: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    let mut connection = secure.connect();
    while !stop.load(Ordering::Relaxed) && seen.failures.is_empty() {
        let sent = Instant::now();
        let outcome = request(&mut connection);
        seen.count(sent, outcome);
    }
    seen
}

/// A connection for each request.
fn connect_anew(secure: &Secure, stop: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    while !stop.load(Ordering::Relaxed) {
        let sent = Instant::now();
        let mut connection: Connection = secure.connect();
        let outcome = request(&mut connection);
        seen.count(sent, outcome);
        if let Some(index) = certificate_of(secure, &connection) {
            seen.certificates[index] += 1;
        }
        std::thread::sleep(BETWEEN_CONNECTIONS);
    }
    seen
}

fn certificate_of(secure: &Secure, connection: &StreamOwned<ClientConnection, TcpStream>) -> Option<usize> {
    let shown = &connection.conn.peer_certificates()?[0];
    secure.pairs.iter().position(|pair| pair.der() == *shown)
}

#[test]
fn no_request_fails_while_certificates_are_replaced_under_load() {
    let seconds = std::env::var("OUTPOST_RELOAD_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    let secure = Secure::start(&TinyModel::default());
    let (stop, all) = (AtomicBool::new(false), Mutex::new(Vec::new()));
    let mut replaced = 0;
    std::thread::scope(|scope| {
        for client in 0..2 * CLIENTS {
            let (secure, stop, all) = (&secure, &stop, &all);
            let run = if client < CLIENTS { keep_alive } else { connect_anew };
            scope.spawn(move || {
                let seen = run(secure, stop);
                all.lock().unwrap().push((client < CLIENTS, seen));
            });
        }
        // The clients end whatever happens here.
        let _stop = StopAtEnd(&stop);
        let begun = Instant::now();
        while replaced == 0 || begun.elapsed() < Duration::from_secs(seconds) {
            for _ in 0..SIGNALLED {
                replaced += 1;
                secure.pairs[replaced % 2].install_certificate(secure.path());
                secure.serving.signal("HUP");
                std::thread::sleep(PAUSE);
            }
            let wanted = |secure: &Secure| secure.certificate() == replaced % 2;
            secure.wait_for("the certificate after SIGHUP", wanted);
            replaced += 1;
            secure.pairs[replaced % 2].install_certificate(secure.path());
            let wanted = |secure: &Secure| secure.certificate() == replaced % 2;
            secure.wait_for("the certificate without SIGHUP", wanted);
        }
    });
    let all = all.into_inner().unwrap();
    assert_eq!(all.len(), 2 * CLIENTS);
    for (name, kept) in [("keep-alive", true), ("new connections", false)] {
        let clients: Vec<&Seen> = all.iter().filter(|(of, _)| *of == kept).map(|(_, seen)| seen).collect();
        let failures: Vec<&String> = clients.iter().flat_map(|seen| &seen.failures).collect();
        assert!(failures.is_empty(), "{name}: {} requests failed, such as {}", failures.len(), failures[0]);
        assert!(clients.iter().all(|seen| !seen.milliseconds.is_empty()), "{name}: every client was served");
        let mut times: Vec<f64> = clients.iter().flat_map(|seen| seen.milliseconds.iter().copied()).collect();
        times.sort_by(f64::total_cmp);
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        println!(
            "{name}: {} requests, 0 failed, {replaced} certificates; ms p50 {:.1}, p99 {:.1}, max {:.1}",
            times.len(),
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
    let shown = |index: usize| all.iter().map(|(_, seen)| seen.certificates[index]).sum::<usize>();
    assert!(shown(0) > 0 && shown(1) > 0, "both certificates are used: {} and {}", shown(0), shown(1));
}

struct StopAtEnd<'a>(&'a AtomicBool);

impl Drop for StopAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
