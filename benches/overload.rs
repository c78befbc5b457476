//! `cargo bench --bench overload`: T7 over HTTP. A server with four places and a queue of 16, of which one
//! project has half, answers first as many clients as it has places for; then requests arrive at ten times
//! the rate at which it answered. Prints, for each of five runs, the tokens of answers a second at
//! capacity and under overload, and how long refusals and `GET /healthz` took meanwhile; in the end the
//! ratio of the sums. A refusal is recorded on the disk before it leaves: `TMPDIR=/dev/shm` tells its
//! time without the disk's, which `cargo bench --bench writes` gives.
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

use outpost::engine::Engine;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::sleep_until;

const PLACES: usize = 4;
const QUEUE: usize = 16;
/// Slots, and the half of the queue that one project may take.
const CAPACITY: usize = PLACES + QUEUE / 2;
const TIMES: f64 = 10.;
const TOKENS: usize = 128;
const RUNS: usize = 5;
const RUN: Duration = Duration::from_secs(8);

/// Those who ask: their idle connections, and what they measured.
struct Crowd {
    address: SocketAddr,
    request: Vec<u8>,
    idle: RefCell<Vec<TcpStream>>,
    /// How long refusals took.
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
            200 => {}
            503 => self.refused.borrow_mut().push(began.elapsed()),
            other => panic!("status {other}"),
        }
        self.idle.borrow_mut().push(stream);
        status
    }
}

/// Tokens generated a second, from the first quarter of a run to its end. All that begins is answered whole.
async fn goodput(engine: &Engine, began: Instant) -> f64 {
    let count = || {
        let text = engine.metrics();
        let line = text.lines().find_map(|line| line.strip_prefix("outpost_generated_tokens_total{"));
        line.map_or(0., |line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap())
    };
    sleep_until((began + RUN / 4).into()).await;
    let before = (count(), Instant::now());
    sleep_until((began + RUN).into()).await;
    (count() - before.0) / before.1.elapsed().as_secs_f64()
}

/// As many clients as there are places, each asking again when it is answered.
async fn at_capacity(crowd: &Crowd, began: Instant) {
    let clients = (0..CAPACITY).map(|_| async {
        while began.elapsed() < RUN {
            assert_eq!(crowd.ask().await, 200, "nobody is refused at capacity");
        }
    });
    futures_util::future::join_all(clients).await;
}

/// So many requests a second, whatever becomes of those before.
async fn overloaded(crowd: &Rc<Crowd>, began: Instant, arrivals: f64) {
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
}

/// Asks every twenty milliseconds whether the server lives, whatever became of the question before.
async fn health(address: SocketAddr, began: Instant) -> Vec<Duration> {
    let ask = |at: u32| async move {
        let due = began + Duration::from_millis(20) * at;
        sleep_until(due.into()).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        assert_eq!(exchange(&mut stream, b"GET /healthz HTTP/1.1\r\nhost: bench\r\n\r\n").await, 200);
        due.elapsed()
    };
    futures_util::future::join_all((0..RUN.as_millis() as u32 / 20).map(ask)).await
}

fn figures(mut taken: Vec<Duration>) -> String {
    taken.sort_unstable();
    let part = |percent: usize| taken.get(taken.len() * percent / 100).copied().unwrap_or_default();
    format!("p50 {:.1?} p99 {:.1?}", part(50), part(99))
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
            refused: RefCell::default(),
        })
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (mut all, mut refused, mut healthy) = ([0.; 2], Vec::new(), Vec::new());
    for run in 0..=RUNS {
        let (few, many) = (crowd(), crowd());
        let (peak, rate, health) = LocalSet::new().block_on(&runtime, async {
            let began = Instant::now();
            let (peak, ()) = tokio::join!(goodput(&server.engine, began), at_capacity(&few, began));
            let (began, arrivals) = (Instant::now(), TIMES * peak / TOKENS as f64);
            let busy = overloaded(&many, began, arrivals);
            let (rate, (), health) = tokio::join!(goodput(&server.engine, began), busy, health(server.address, began));
            (peak, rate, health)
        });
        let turned_away = many.refused.take();
        println!(
            "run {run}: {peak:.0} tokens/s at capacity, {rate:.0} under ten times that; {} refused, {}; /healthz {}",
            turned_away.len(),
            figures(turned_away.clone()),
            figures(health.clone()),
        );
        if run > 0 {
            all = [all[0] + peak, all[1] + rate]; // run 0 warms up
            refused.extend(turned_away);
            healthy.extend(health);
        }
    }
    println!("all: ratio {:.2}; refused {}; /healthz {}", all[1] / all[0], figures(refused), figures(healthy));
}
