//! Many clients that send slowly, send nothing or do not read, and their effect on other clients.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::process::{MODEL, ServerProcess, folder};
use crate::slow_clients::connect;
use crate::tiny_model::TinyModel;

/// The behavior of a client of the flood.
#[derive(Clone, Copy)]
enum Kind {
    SlowHeader,
    SlowBody,
    Idle,
    /// Requests the API document many times, with or without a key.
    NotReading {
        key: bool,
    },
}

const KINDS: [Kind; 5] =
    [Kind::SlowHeader, Kind::SlowBody, Kind::Idle, Kind::NotReading { key: false }, Kind::NotReading { key: true }];

struct Member {
    kind: Kind,
    connection: TcpStream,
}

impl Member {
    fn connect(serving: &ServerProcess, kind: Kind) -> Self {
        let connection = connect(serving);
        let key = serving.key();
        let opening = match kind {
            Kind::SlowHeader => "GET /healthz HTTP/1.1\r\nhost: localhost\r\nx-slow: ".to_owned(),
            Kind::SlowBody => format!(
                "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\
                 content-type: application/json\r\ncontent-length: 100000\r\n\r\n{{\"model\": \"{MODEL}\", "
            ),
            Kind::Idle => String::new(),
            Kind::NotReading { key: false } => "GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(200),
            Kind::NotReading { key: true } => {
                let authorization = format!("authorization: Bearer {key}");
                format!("GET /v1/models HTTP/1.1\r\nhost: localhost\r\n{authorization}\r\n\r\n").repeat(200)
            }
        };
        connection.set_nonblocking(true).unwrap();
        let mut member = Self { kind, connection };
        let _as_much_as_it_takes = member.connection.write(opening.as_bytes());
        member
    }

    /// Does the next step. Returns `false` if the server has closed the connection.
    fn proceed(&mut self) -> bool {
        match self.kind {
            Kind::SlowHeader | Kind::SlowBody => self.connection.write_all(b" ").is_ok(),
            Kind::Idle => {
                let mut byte = [0];
                matches!(self.connection.read(&mut byte), Err(error) if error.kind() == ErrorKind::WouldBlock)
            }
            // An idle client sends nothing.
            Kind::NotReading { .. } => self.connection.take_error().is_ok_and(|error| error.is_none()),
        }
    }
}

/// Resident memory of the server, in bytes.
fn resident_bytes(serving: &ServerProcess) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", serving.child.id())).unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap().to_owned();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// Runs a flood of `size` clients until `during` returns. Clients whose connection is closed reconnect.
fn with_flood<T>(serving: &ServerProcess, size: usize, during: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    let kinds = KINDS.into_iter().cycle().take(size);
    let mut members: Vec<Member> = kinds.map(|kind| Member::connect(serving, kind)).collect();
    std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for member in &mut members {
                    if !member.proceed() {
                        *member = Member::connect(serving, member.kind);
                    }
                }
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(during));
        over.store(true, Ordering::Relaxed);
        flood.join().unwrap();
        done.unwrap_or_else(|cause| std::panic::resume_unwind(cause))
    })
}

/// Sorted latencies of `requests` requests with a key on one connection.
fn latencies(serving: &ServerProcess, requests: usize) -> Vec<Duration> {
    let client = reqwest::blocking::Client::builder().timeout(Duration::from_secs(30)).build().unwrap();
    let (url, key) = (format!("{}/v1/models", serving.url), serving.key());
    let time_request = |_| {
        let begun = Instant::now();
        let response = client.get(&url).bearer_auth(&key).send().unwrap();
        assert_eq!(response.status(), 200);
        response.bytes().unwrap();
        begun.elapsed()
    };
    let mut latencies: Vec<Duration> = (0..requests).map(time_request).collect();
    latencies.sort();
    latencies
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

/// Peak memory per connection of a flood, measured for some seconds while `others` runs.
fn memory_per_connection(serving: &ServerProcess, size: usize, others: impl FnOnce() + Send) -> u64 {
    // Memory that stays allocated after the first connections of a process is not counted.
    with_flood(serving, size / 4, || std::thread::sleep(Duration::from_secs(2)));
    let before = resident_bytes(serving);
    let mut peak = before;
    with_flood(serving, size, || {
        std::thread::scope(|scope| {
            let others = scope.spawn(others);
            let begun = Instant::now();
            while !others.is_finished() || begun.elapsed() < Duration::from_secs(5) {
                peak = peak.max(resident_bytes(serving));
                std::thread::sleep(Duration::from_millis(50));
            }
            others.join().unwrap();
        });
    });
    (peak - before) / u64::try_from(size).unwrap()
}

#[test]
fn many_slow_clients_use_little_memory_and_others_are_answered() {
    let folder = folder(&TinyModel::default());
    let serving = ServerProcess::start(folder.path(), &[]);
    latencies(&serving, 50);
    let bytes_per_connection = memory_per_connection(&serving, 100, || {
        latencies(&serving, 100);
        let alive = reqwest::blocking::get(format!("{}/healthz", serving.url)).unwrap();
        assert_eq!(alive.status(), 200);
    });
    assert!(bytes_per_connection <= 64 << 10, "{bytes_per_connection} bytes per connection");
}

/// `cargo test --release --test cli client_flood -- --ignored --nocapture`
#[test]
#[ignore = "a minute on an otherwise idle machine"]
fn a_thousand_slow_clients_do_not_delay_other_requests() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let folder = folder(&TinyModel::default());
    let serving = ServerProcess::start(folder.path(), &[]);
    latencies(&serving, 500);
    let idle = latencies(&serving, 5000);
    let mut busy = Vec::new();
    let bytes_per_connection = memory_per_connection(&serving, 1000, || busy = latencies(&serving, 20_000));
    for (what, latencies) in [("idle", &idle), ("with 1,000 slow clients", &busy)] {
        println!("{what}: p50 {:?}, p99 {:?}", percentile(latencies, 50), percentile(latencies, 99));
    }
    println!("memory: {bytes_per_connection} bytes per connection");
    assert!(bytes_per_connection <= 64 << 10);
    assert!(percentile(&busy, 99).as_secs_f64() <= 1.5 * percentile(&idle, 99).as_secs_f64());
}
