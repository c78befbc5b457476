//! T8: a crowd of clients that send slowly, send nothing or do not read, and what others notice of it.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::process::{MODEL, Serving, folder};
use crate::slow_clients::connect;
use crate::tiny_model::TinyModel;

/// What a client of the crowd does.
#[derive(Clone, Copy)]
enum Kind {
    SlowHeader,
    SlowBody,
    Idle,
    /// Asks for the API document many times, with a key or without one.
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
    fn join(serving: &Serving, kind: Kind) -> Self {
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

    /// Goes on; false if the server has closed the connection.
    fn go_on(&mut self) -> bool {
        match self.kind {
            Kind::SlowHeader | Kind::SlowBody => self.connection.write_all(b" ").is_ok(),
            Kind::Idle => {
                let mut byte = [0];
                matches!(self.connection.read(&mut byte), Err(error) if error.kind() == ErrorKind::WouldBlock)
            }
            // Its own silence is what it does.
            Kind::NotReading { .. } => self.connection.take_error().is_ok_and(|error| error.is_none()),
        }
    }
}

/// Memory of the server, in bytes.
fn resident(serving: &Serving) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", serving.child.id())).unwrap();
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).unwrap().to_owned();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

/// A crowd of so many, kept up until `during` ends. Members whose connection is closed come back.
fn with_crowd<T>(serving: &Serving, size: usize, during: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    let kinds = KINDS.into_iter().cycle().take(size);
    let mut members: Vec<Member> = kinds.map(|kind| Member::join(serving, kind)).collect();
    std::thread::scope(|scope| {
        let crowd = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                for member in &mut members {
                    if !member.go_on() {
                        *member = Member::join(serving, member.kind);
                    }
                }
                std::thread::sleep(Duration::from_secs(1));
            }
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(during));
        over.store(true, Ordering::Relaxed);
        crowd.join().unwrap();
        done.unwrap_or_else(|cause| std::panic::resume_unwind(cause))
    })
}

/// How long each of so many requests with a key took, on one connection, sorted.
fn latencies(serving: &Serving, requests: usize) -> Vec<Duration> {
    let client = reqwest::blocking::Client::builder().timeout(Duration::from_secs(30)).build().unwrap();
    let (url, key) = (format!("{}/v1/models", serving.url), serving.key());
    let ask = |_| {
        let begun = Instant::now();
        let answer = client.get(&url).bearer_auth(&key).send().unwrap();
        assert_eq!(answer.status(), 200);
        answer.bytes().unwrap();
        begun.elapsed()
    };
    let mut took: Vec<Duration> = (0..requests).map(ask).collect();
    took.sort();
    took
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
}

/// The most memory for each member of a crowd, watched for some seconds while `others` go on.
fn memory_of_each(serving: &Serving, size: usize, others: impl FnOnce() + Send) -> u64 {
    // What the first connections of a process leave behind for good is no price of a connection.
    with_crowd(serving, size / 4, || std::thread::sleep(Duration::from_secs(2)));
    let before = resident(serving);
    let mut most = before;
    with_crowd(serving, size, || {
        std::thread::scope(|scope| {
            let others = scope.spawn(others);
            let begun = Instant::now();
            while !others.is_finished() || begun.elapsed() < Duration::from_secs(5) {
                most = most.max(resident(serving));
                std::thread::sleep(Duration::from_millis(50));
            }
            others.join().unwrap();
        });
    });
    (most - before) / u64::try_from(size).unwrap()
}

#[test]
fn a_crowd_of_slow_clients_takes_little_memory_and_others_are_answered() {
    let folder = folder(&TinyModel::default());
    let serving = Serving::start(folder.path(), &[]);
    latencies(&serving, 50);
    let each = memory_of_each(&serving, 100, || {
        latencies(&serving, 100);
        let alive = reqwest::blocking::get(format!("{}/healthz", serving.url)).unwrap();
        assert_eq!(alive.status(), 200);
    });
    assert!(each <= 64 << 10, "{each} bytes for each");
}

/// `cargo test --release --test cli client_flood -- --ignored --nocapture`
#[test]
#[ignore = "a minute on an otherwise idle machine"]
fn a_thousand_slow_clients_do_not_slow_others_down() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let folder = folder(&TinyModel::default());
    let serving = Serving::start(folder.path(), &[]);
    latencies(&serving, 500);
    let alone = latencies(&serving, 5000);
    let mut beside = Vec::new();
    let each = memory_of_each(&serving, 1000, || beside = latencies(&serving, 20_000));
    for (what, took) in [("alone", &alone), ("beside 1,000", &beside)] {
        println!("{what}: p50 {:?}, p99 {:?}", percentile(took, 50), percentile(took, 99));
    }
    println!("memory: {each} bytes for each connection");
    assert!(each <= 64 << 10);
    assert!(percentile(&beside, 99).as_secs_f64() <= 1.5 * percentile(&alone, 99).as_secs_f64());
}
