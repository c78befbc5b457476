//! T6: a client that leaves frees its place in the engine, in every phase and by every way out.

use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use crate::image_generation::painter;
use crate::server::{MODEL, Server};
use crate::slow;
use crate::wait::until;

/// Sends a chat request and leaves the connection open.
fn begin(server: &Server, stream: bool, prompt_words: usize) -> TcpStream {
    server.begin_chat(&json!({
        "model": MODEL, "stream": stream, "ignore_eos": true, "max_tokens": 1500,
        "messages": [{ "role": "user", "content": "zq ".repeat(prompt_words) }],
    }))
}

/// Tokens generated since the start.
fn generated(server: &Server) -> u64 {
    let metrics = server.engine.metrics();
    let counts = metrics.lines().filter(|line| line.starts_with("outpost_generated_tokens_total{"));
    counts.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

/// Leaves by FIN, or by RST.
fn leave(connection: TcpStream, abruptly: bool) {
    if abruptly {
        socket2::SockRef::from(&connection).set_linger(Some(Duration::ZERO)).unwrap();
    }
    drop(connection);
}

#[test]
fn leaving_frees_the_engine_in_prefill_and_in_decode() {
    let server = Server::start_with(&slow());
    for stream in [false, true] {
        for abruptly in [false, true] {
            for in_decode in [false, true] {
                let mut connection = begin(&server, stream, if in_decode { 5 } else { 1500 });
                server.wait_running();
                if in_decode && stream {
                    let mut first = [0; 512];
                    assert!(connection.read(&mut first).unwrap() > 0);
                } else if in_decode {
                    let before = generated(&server);
                    until(|| "a token is generated", || generated(&server) > before);
                }
                leave(connection, abruptly);
                // One step plus 100 ms, with room for a busy test machine.
                server.wait_idle(Duration::from_secs(2));
                assert_eq!(
                    server.engine.load().kv_bytes,
                    0,
                    "stream {stream}, abruptly {abruptly}, decode {in_decode}"
                );
            }
        }
    }
}

#[test]
fn two_hundred_departures_leave_no_place_taken() {
    let server = Server::start_with(&slow());
    let before = server.engine.load();
    for round in 0..50 {
        let crowd: Vec<TcpStream> = (0..4).map(|one| begin(&server, one % 2 == 0, 40)).collect();
        if round % 2 == 0 {
            server.wait_running();
        }
        for (one, connection) in crowd.into_iter().enumerate() {
            leave(connection, one < 2);
        }
    }
    server.wait_idle(Duration::from_secs(30));
    let after = server.engine.load();
    assert_eq!((after.running, after.queued, after.kv_bytes), (before.running, before.queued, before.kv_bytes));
    let answer = server.post(
        "/v1/chat/completions",
        &json!({ "model": MODEL, "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 3, "ignore_eos": true }),
    );
    assert_eq!(answer.ok()["usage"]["completion_tokens"], 3, "the engine serves on");
}

#[test]
fn leaving_frees_the_painter_while_queued_and_between_steps() {
    let server = painter();
    let asked = json!({
        "model": "sd1", "prompt": "a red house", "size": "64x64", "steps": 500, "n": 10, "scheduler": "ddim", "stream": true,
    });
    for abruptly in [false, true] {
        for between_steps in [false, true] {
            // The first is painted, the second waits behind it.
            let crowd: Vec<TcpStream> =
                (0..2).map(|_| server.begin("/v1/images/generations", &server.admin, &asked)).collect();
            if between_steps {
                let mut first = [0; 512];
                assert!((&crowd[0]).read(&mut first).unwrap() > 0);
            }
            crowd.into_iter().for_each(|connection| leave(connection, abruptly));
            let left = std::time::Instant::now();
            let small = json!({ "model": "sd1", "prompt": "a red house", "size": "16x16", "steps": 2 });
            server.post("/v1/images/generations", &small).ok();
            // A step, 100 ms and the small picture, with room for a busy test machine; the large ones take half a minute.
            assert!(left.elapsed() < Duration::from_secs(10), "abruptly {abruptly}, between steps {between_steps}");
        }
    }
}
