//! `cargo bench --bench overload`: T7 over HTTP. A server with four places and a queue of 16, of which one
//! project has half, answers first as many clients as it has places for; then requests arrive at ten times
//! the rate at which it answered. Prints, for each of five runs, the tokens of whole answers a second at
//! capacity and under overload, their ratio, and the p99 of refusals and of `GET /healthz` meanwhile.
#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    dead_code,
    reason = "a measurement, not the program; it uses part of the test server"
)]

#[path = "../tests/common/clock.rs"]
mod clock;
#[path = "../tests/common/server.rs"]
mod server;
#[path = "../tests/common/tiny_model.rs"]
mod tiny_model;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::sleep_until;

const PLACES: usize = 4;
const QUEUE: usize = 16;
/// Places, and the half of the queue that one project may take.
const CAPACITY: usize = PLACES + QUEUE / 2;
const TIMES: f64 = 10.;
const TOKENS: usize = 64;
const RUNS: usize = 5;
const RUN: Duration = Duration::from_secs(8);

/// Idle connections, and what was measured.
struct Crowd {
    address: SocketAddr,
    request: Vec<u8>,
    idle: RefCell<Vec<TcpStream>>,
    /// Times of whole answers and of refusals.
    answered: RefCell<Vec<Instant>>,
    refused: RefCell<Vec<Duration>>,
}

/// Sends a request and reads the answer: its status.
async fn exchange(stream: &mut TcpStream, request: &[u8]) -> u16 {
    stream.write_all(request).await.unwrap();
    let mut bytes = Vec::with_capacity(4096);
    loop {
        assert!(stream.read_buf(&mut bytes).await.unwrap() > 0, "the server closed the connection");
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = std::str::from_utf8(&bytes[..end]).unwrap().to_ascii_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if bytes.len() >= end + 4 + length.parse::<usize>().unwrap() {
            let status: u16 = head[9..12].parse().unwrap();
            assert_eq!(status == 503, head.contains("retry-after: "), "{head}");
            return status;
        }
    }
}

impl Crowd {
    async fn ask(&self) -> u16 {
        let idle = self.idle.borrow_mut().pop();
        let mut stream = match idle {
            Some(stream) => stream,
            None => TcpStream::connect(self.address).await.unwrap(),
        };
        stream.set_nodelay(true).unwrap();
        let began = Instant::now();
        let status = exchange(&mut stream, &self.request).await;
        match status {
            200 => self.answered.borrow_mut().push(Instant::now()),
            503 => self.refused.borrow_mut().push(began.elapsed()),
            other => panic!("status {other}"),
        }
        self.idle.borrow_mut().push(stream);
        status
    }

    /// Answers a second from the first quarter of a run to its end.
    fn rate(&self, began: Instant) -> f64 {
        let (from, to) = (began + RUN / 4, began + RUN);
        let counted = self.answered.borrow().iter().filter(|at| (from..to).contains(*at)).count();
        counted as f64 / (to - from).as_secs_f64()
    }
}

/// As many clients as there are places, each asking again when it is answered.
async fn at_capacity(crowd: &Rc<Crowd>) -> f64 {
    let began = Instant::now();
    let clients = (0..CAPACITY).map(|_| async {
        while began.elapsed() < RUN {
            assert_eq!(crowd.ask().await, 200, "nobody is refused at capacity");
        }
    });
    futures_util::future::join_all(clients).await;
    crowd.rate(began)
}

/// So many requests a second, whatever becomes of those before.
async fn overloaded(crowd: &Rc<Crowd>, arrivals: f64) -> f64 {
    let began = Instant::now();
    let mut all = Vec::new();
    for at in 0.. {
        let due = began + Duration::from_secs_f64(f64::from(at) / arrivals);
        if due > began + RUN {
            break;
        }
        sleep_until(due.into()).await;
        let crowd = crowd.clone();
        all.push(spawn_local(async move { crowd.ask().await }));
    }
    for one in all {
        one.await.unwrap();
    }
    crowd.rate(began)
}

async fn health(address: SocketAddr) -> Duration {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let (began, mut taken) = (Instant::now(), Vec::new());
    while began.elapsed() < RUN {
        let sent = Instant::now();
        assert_eq!(exchange(&mut stream, b"GET /healthz HTTP/1.1\r\nhost: bench\r\n\r\n").await, 200);
        taken.push(sent.elapsed());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    p99(taken)
}

fn p99(mut taken: Vec<Duration>) -> Duration {
    taken.sort_unstable();
    taken.get(taken.len() * 99 / 100).copied().unwrap_or_default()
}

fn request(server: &server::Server) -> Vec<u8> {
    let content = "the sea and the hello stone ".repeat(12);
    let body = serde_json::json!({
        "model": server::MODEL, "max_tokens": TOKENS, "ignore_eos": true,
        "messages": [{ "role": "user", "content": content }],
    })
    .to_string();
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        server.admin,
        body.len()
    );
    [head, body].concat().into_bytes()
}

fn main() {
    let model = tiny_model::TinyModel { context: 4096, blocks: 8, width: 512, ..Default::default() };
    let server = server::Server::start_as(&model, |config| (config.max_running, config.max_queued) = (PLACES, QUEUE));
    let crowd = || {
        Rc::new(Crowd {
            address: server.address,
            request: request(&server),
            idle: RefCell::default(),
            answered: RefCell::default(),
            refused: RefCell::default(),
        })
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for run in 0..=RUNS {
        let (few, many) = (crowd(), crowd());
        let (peak, rate, health) = LocalSet::new().block_on(&runtime, async {
            let peak = at_capacity(&few).await;
            let (rate, health) = tokio::join!(overloaded(&many, peak * TIMES), health(server.address));
            (peak, rate, health)
        });
        let refused = many.refused.borrow();
        println!(
            "run {run}: {:.0} tokens/s at capacity, {:.0} under ten times that (ratio {:.2}); {} refused, p99 {:?}; /healthz p99 {health:?}",
            peak * TOKENS as f64,
            rate * TOKENS as f64,
            rate / peak,
            refused.len(),
            p99(refused.clone()),
        );
    }
}
