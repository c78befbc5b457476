//! `cargo bench --bench overload`: goodput at capacity and under overload, over HTTP. The server has four slots and a
//! queue of 16, half of which one project can take. At first there are as many clients as fit in slots and queue. Then
//! requests arrive at ten times the rate at which the server completed them. Prints for each of five runs the generated
//! tokens per second in both cases, and the latencies of refusals and of `GET /healthz` under overload. Prints at the
//! end the ratio of the sums. A refusal is recorded on disk before the response is sent: with `TMPDIR=/dev/shm` its
//! latency excludes the disk's, which `cargo bench --bench writes` measures.
#![expect(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    dead_code,
    reason = "a benchmark, not the program; it uses part of the test server"
)]

#[path = "../tests/common/clock.rs"]
mod clock;
#[path = "../tests/common/server.rs"]
mod server;
#[path = "../tests/common/store_location.rs"]
#[expect(dead_code, reason = "tests use more of it")]
mod store_location;

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use outpost::engine::Engine;
use outpost_testing::{fixtures, postgres, tiny_model};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::sleep_until;

const SLOTS: usize = 4;
const QUEUE: usize = 16;
/// Slots, and the half of the queue that one project may take.
const CAPACITY: usize = SLOTS + QUEUE / 2;
const OVERLOAD: f64 = 10.;
const TOKENS: usize = 128;
const RUNS: usize = 5;
const RUN: Duration = Duration::from_secs(8);

/// The clients' idle connections, and what they measured.
struct Clients {
    address: SocketAddr,
    request: Vec<u8>,
    idle: RefCell<Vec<TcpStream>>,
    /// Latencies of refusals.
    refusals: RefCell<Vec<Duration>>,
}

/// Sends a request, reads the response, and returns its status.
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

impl Clients {
    async fn request_once(&self) -> u16 {
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
            503 => self.refusals.borrow_mut().push(began.elapsed()),
            other => panic!("status {other}"),
        }
        self.idle.borrow_mut().push(stream);
        status
    }
}

/// Generated tokens per second, from the first quarter of a run to its end. Every admitted request completes.
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

/// `CAPACITY` clients, each of which sends its next request after the response.
async fn run_at_capacity(clients: &Clients, began: Instant) {
    let loops = (0..CAPACITY).map(|_| async {
        while began.elapsed() < RUN {
            assert_eq!(clients.request_once().await, 200, "no request is refused at capacity");
        }
    });
    futures_util::future::join_all(loops).await;
}

/// Sends `arrivals` requests per second, without waiting for responses.
async fn run_overloaded(clients: &Rc<Clients>, began: Instant, arrivals: f64) {
    let mut requests = Vec::new();
    for index in 0.. {
        let due = began + Duration::from_secs_f64(f64::from(index) / arrivals);
        if due > began + RUN {
            break;
        }
        sleep_until(due.into()).await;
        let clients = clients.clone();
        requests.push(spawn_local(async move { clients.request_once().await }));
    }
    for request in requests {
        request.await.unwrap();
    }
}

/// Latencies of `GET /healthz`, sent every 20 ms without waiting for responses.
async fn health_latencies(address: SocketAddr, began: Instant) -> Vec<Duration> {
    let request = |index: u32| async move {
        let due = began + Duration::from_millis(20) * index;
        sleep_until(due.into()).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        assert_eq!(exchange(&mut stream, b"GET /healthz HTTP/1.1\r\nhost: bench\r\n\r\n").await, 200);
        due.elapsed()
    };
    futures_util::future::join_all((0..RUN.as_millis() as u32 / 20).map(request)).await
}

fn percentiles(mut latencies: Vec<Duration>) -> String {
    latencies.sort_unstable();
    let percentile = |percent: usize| latencies.get(latencies.len() * percent / 100).copied().unwrap_or_default();
    format!("p50 {:.1?} p99 {:.1?}", percentile(50), percentile(99))
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
    let server =
        server::Server::start_configured(&model, |config| (config.max_running, config.max_queued) = (SLOTS, QUEUE));
    let clients = || {
        Rc::new(Clients {
            address: server.address,
            request: request(&server),
            idle: RefCell::default(),
            refusals: RefCell::default(),
        })
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (mut sums, mut all_refusals, mut all_health) = ([0.; 2], Vec::new(), Vec::new());
    for run in 0..=RUNS {
        let (few, many) = (clients(), clients());
        let (peak, rate, health) = LocalSet::new().block_on(&runtime, async {
            let began = Instant::now();
            let (peak, ()) = tokio::join!(goodput(&server.engine, began), run_at_capacity(&few, began));
            let (began, arrivals) = (Instant::now(), OVERLOAD * peak / TOKENS as f64);
            let overload = run_overloaded(&many, began, arrivals);
            let health = health_latencies(server.address, began);
            let (rate, (), health) = tokio::join!(goodput(&server.engine, began), overload, health);
            (peak, rate, health)
        });
        let refusals = many.refusals.take();
        println!(
            "run {run}: {peak:.0} tokens/s at capacity, {rate:.0} at ten times the rate; {} refused, {}; /healthz {}",
            refusals.len(),
            percentiles(refusals.clone()),
            percentiles(health.clone()),
        );
        if run > 0 {
            sums = [sums[0] + peak, sums[1] + rate]; // run 0 warms up
            all_refusals.extend(refusals);
            all_health.extend(health);
        }
    }
    println!(
        "all: ratio {:.2}; refused {}; /healthz {}",
        sums[1] / sums[0],
        percentiles(all_refusals),
        percentiles(all_health)
    );
}
