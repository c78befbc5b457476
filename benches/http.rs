//! `cargo bench --bench http`: compares an authenticated `GET /v1/models/{id}` with a bare actix handler
//! that sends the same bytes. Both run in one process and are measured alternately. Prints requests/s, p50 and
//! p99 of five runs each and the ratio of the medians. Then measures key creations by 16 and 64 clients, each
//! answered after its commit is on disk. `cargo bench --bench writes` measures the disk's own rate.
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

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use actix_web::{App, HttpResponse, HttpServer, web};
use outpost_testing::{fixtures, postgres, tiny_model};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const CLIENTS: usize = 64;
const WRITERS: [usize; 2] = [16, 64];
const RUNS: usize = 5;
const RUN: Duration = Duration::from_secs(3);

struct Measurement {
    rate: f64,
    p50: Duration,
    p99: Duration,
}

/// A server with one handler and nothing around it.
fn bare_server(body: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        actix_web::rt::System::new().block_on(async move {
            let respond = move || {
                let body = body.clone();
                async move { HttpResponse::Ok().content_type("application/json").body(body) }
            };
            let server = HttpServer::new(move || App::new().route("/v1/models/tiny", web::get().to(respond.clone())));
            server.workers(2).listen(listener).unwrap().run().await.unwrap();
        });
    });
    address
}

/// Sends requests one after the other until a time, and returns their latencies.
async fn client(address: SocketAddr, request: &[u8], until: Instant) -> Vec<Duration> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let (mut latencies, mut buffer) = (Vec::new(), vec![0; 16 * 1024]);
    while Instant::now() < until {
        let started = Instant::now();
        stream.write_all(request).await.unwrap();
        let mut filled = 0;
        while !is_complete(&buffer[..filled]) {
            let read = stream.read(&mut buffer[filled..]).await.unwrap();
            assert!(read > 0, "the server closed the connection");
            filled += read;
        }
        latencies.push(started.elapsed());
    }
    latencies
}

/// Whether the bytes are a complete 200 response.
fn is_complete(bytes: &[u8]) -> bool {
    let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { return false };
    let head = std::str::from_utf8(&bytes[..end]).unwrap().to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 200"), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    bytes.len() >= end + 4 + length.parse::<usize>().unwrap()
}

fn measure(address: SocketAddr, request: &str, clients: usize) -> Measurement {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let started = Instant::now();
    let mut latencies = runtime.block_on(async {
        let clients = (0..clients).map(|_| client(address, request.as_bytes(), started + RUN));
        futures_util::future::join_all(clients).await.concat()
    });
    let rate = latencies.len() as f64 / started.elapsed().as_secs_f64();
    latencies.sort();
    Measurement { rate, p50: latencies[latencies.len() / 2], p99: latencies[latencies.len() * 99 / 100] }
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

fn main() {
    let server = server::Server::start();
    let path = format!("/v1/models/{}", server::MODEL);
    let bare_address = bare_server(server.get(&path).text);
    let request = format!("GET {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {}\r\n\r\n", server.admin);
    let (mut outpost, mut bare) = (Vec::new(), Vec::new());
    for run in 0..=RUNS {
        let (a, b) = (measure(server.address, &request, CLIENTS), measure(bare_address, &request, CLIENTS));
        println!(
            "run {run}: outpost {:.0}/s p50 {:?} p99 {:?} | bare {:.0}/s p50 {:?} p99 {:?}",
            a.rate, a.p50, a.p99, b.rate, b.p50, b.p99
        );
        if run > 0 {
            outpost.push(a.rate);
            bare.push(b.rate); // run 0 warms up
        }
    }
    let (outpost, bare) = (median(outpost), median(bare));
    println!("median: outpost {outpost:.0}/s, bare {bare:.0}/s, ratio {:.2}", outpost / bare);
    measure_writes(&server);
}

fn measure_writes(server: &server::Server) {
    let (project, ..) = server.tenant("bench");
    let limits = serde_json::json!({ "quotas": { "api_keys": 1_000_000_000 } });
    server.patch(&format!("/v1/projects/{project}/rate-limits"), &limits).ok();
    let body = format!("{{\"name\":\"bench\",\"project_id\":\"{project}\"}}");
    let request = format!(
        "POST /v1/api-keys HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        server.admin,
        body.len()
    );
    for clients in WRITERS {
        let runs: Vec<Measurement> = (0..RUNS).map(|_| measure(server.address, &request, clients)).collect();
        let p99 = runs.iter().map(|run| run.p99).max().unwrap();
        let rate = median(runs.into_iter().map(|run| run.rate).collect());
        println!("{clients} clients: {rate:.0} acknowledged key creations/s over HTTP, worst p99 {p99:?}");
    }
}
