//! A client that disconnects frees its slot in the engine, in every phase, by FIN and by RST.

use std::io::Read;
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use crate::image_generation::start_server;
use crate::server::{MODEL, Server};
use crate::slow_model;
use crate::wait::until;

/// Sends a chat request and leaves the connection open.
fn begin(server: &Server, stream: bool, prompt_words: usize) -> TcpStream {
    server.start_chat(&json!({
        "model": MODEL, "stream": stream, "ignore_eos": true, "max_tokens": 1500,
        "messages": [{ "role": "user", "content": "zq ".repeat(prompt_words) }],
    }))
}

/// Tokens generated since the start.
fn generated_tokens(server: &Server) -> u64 {
    let metrics = server.engine.metrics();
    let counts = metrics.lines().filter(|line| line.starts_with("outpost_generated_tokens_total{"));
    counts.map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

/// Closes the connection with FIN, or abruptly with RST.
fn disconnect(connection: TcpStream, abruptly: bool) {
    if abruptly {
        socket2::SockRef::from(&connection).set_linger(Some(Duration::ZERO)).unwrap();
    }
    drop(connection);
}

#[test]
fn a_disconnect_frees_the_engine_during_prefill_and_decode() {
    let server = Server::start_with(&slow_model());
    for stream in [false, true] {
        for abruptly in [false, true] {
            for in_decode in [false, true] {
                let mut connection = begin(&server, stream, if in_decode { 5 } else { 1500 });
                server.wait_running();
                if in_decode && stream {
                    let mut first = [0; 512];
                    assert!(connection.read(&mut first).unwrap() > 0);
                } else if in_decode {
                    let before = generated_tokens(&server);
                    until(|| "a token is generated", || generated_tokens(&server) > before);
                }
                disconnect(connection, abruptly);
                // One step plus 100 ms, with a margin for a busy machine.
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
fn two_hundred_disconnects_leave_no_slot_taken() {
    let server = Server::start_with(&slow_model());
    let before = server.engine.load();
    for round in 0..50 {
        let crowd: Vec<TcpStream> = (0..4).map(|one| begin(&server, one % 2 == 0, 40)).collect();
        if round % 2 == 0 {
            server.wait_running();
        }
        for (one, connection) in crowd.into_iter().enumerate() {
            disconnect(connection, one < 2);
        }
    }
    server.wait_idle(Duration::from_secs(30));
    let after = server.engine.load();
    assert_eq!((after.running, after.queued, after.kv_bytes), (before.running, before.queued, before.kv_bytes));
    let response = server.post(
        "/v1/chat/completions",
        &json!({ "model": MODEL, "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 3, "ignore_eos": true }),
    );
    assert_eq!(response.ok()["usage"]["completion_tokens"], 3, "the engine still serves requests");
}

#[test]
fn a_disconnect_frees_the_image_thread_while_queued_and_between_steps() {
    let server = start_server();
    let request_body = json!({
        "model": "sd1", "prompt": "a red house", "size": "64x64", "steps": 500, "n": 10, "scheduler": "ddim", "stream": true,
    });
    for abruptly in [false, true] {
        for between_steps in [false, true] {
            // The first image is generated, the second is queued.
            let crowd: Vec<TcpStream> =
                (0..2).map(|_| server.begin("/v1/images/generations", &server.admin, &request_body)).collect();
            if between_steps {
                let mut first = [0; 512];
                assert!((&crowd[0]).read(&mut first).unwrap() > 0);
            }
            crowd.into_iter().for_each(|connection| disconnect(connection, abruptly));
            let left = std::time::Instant::now();
            let small = json!({ "model": "sd1", "prompt": "a red house", "size": "16x16", "steps": 2 });
            server.post("/v1/images/generations", &small).ok();
            // A step, 100 ms and the small image, with a margin for a busy machine. The large images take half a minute.
            assert!(left.elapsed() < Duration::from_secs(10), "abrupt {abruptly}, between steps {between_steps}");
        }
    }
}
