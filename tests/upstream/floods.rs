//! Targets that send more than they were asked for.

use std::io::Read;
use std::sync::mpsc;

use outpost_testing::fixtures::fixture;
use reqwest::Method;
use serde_json::{Value, json};

use crate::fake_target::{FakeTarget, Reply, chunk};
use crate::process::ServerProcess;
use crate::server::{Response, Server};
use crate::tiny_model::{self, TinyModel};
use crate::{REMOTE, chat_body, server_with, server_with_settings, upstream_toml, write_upstream};

/// Checks that a response was cut off because it is too large.
fn assert_cut_off(response: &Response, case: &str) {
    assert!(response.text.contains("sends more than the request allows"), "{case}: {:.300}", response.text);
    assert!(response.text.contains("model_unavailable"), "{case}: {:.300}", response.text);
}

/// A chunk whose choice has this delta.
fn delta(delta: &Value) -> Value {
    json!({ "choices": [{ "index": 0, "delta": delta }] })
}

/// Begins a stream, sends an event many times, and ends the text as if nothing was wrong.
fn flood(reply: &mut Reply<'_>, times: usize, event: &str) {
    reply.begin_events();
    reply.event(&chunk("a", None));
    (0..times).for_each(|_| reply.raw(event));
    reply.event(&chunk("b", Some("stop")));
    reply.raw("data: [DONE]\n\n");
}

#[test]
fn texts_far_beyond_their_limit_are_cut_off() {
    let text = "x".repeat(100 << 10);
    let call = json!({ "index": 0, "function": { "name": "f", "arguments": text } });
    let calls: Vec<Value> =
        (0..200).map(|index| json!({ "index": index, "function": { "name": "f".repeat(500) } })).collect();
    let event = |event: &Value| format!("data: {event}\n\n");
    for (case, times, event) in [
        ("text", 2, event(&delta(&json!({ "content": text })))),
        ("reasoning", 2, event(&delta(&json!({ "reasoning_content": text })))),
        ("arguments", 2, event(&delta(&json!({ "tool_calls": [call] })))),
        ("calls", 2, event(&delta(&json!({ "tool_calls": calls })))),
        ("empty deltas", 6000, event(&delta(&json!({})))),
        ("events without choices", 6000, event(&json!({ "choices": [] }))),
        ("unknown fields", 60, event(&json!({ "choices": [], "padding": text }))),
        ("comments", 60, format!(": {text}\n\n")),
    ] {
        let target = FakeTarget::start(move |_, _, reply| flood(reply, times, &event));
        let server = server_with(&[target.address]);
        for stream in [false, true] {
            let body = chat_body(json!({ "max_tokens": 5, "stream": stream }));
            let response = server.post("/v1/chat/completions", &body);
            assert_cut_off(&response, case);
            assert_eq!(response.status, if stream { 200 } else { 503 }, "{case}");
        }
        let failures = "reason=\"malformed\"} 2";
        assert!(server.get("/metrics").text.contains(failures), "{case}");
    }
}

#[test]
fn completions_far_beyond_their_limit_are_cut_off() {
    let event = json!({ "choices": [{ "index": 0, "text": "x".repeat(100 << 10) }] });
    let target = FakeTarget::start(move |_, _, reply| flood(reply, 2, &format!("data: {event}\n\n")));
    let response = server_with(&[target.address])
        .post("/v1/completions", &json!({ "model": REMOTE, "prompt": "hello", "max_tokens": 5 }));
    assert_cut_off(&response, "completion");
}

#[test]
fn the_connection_of_a_text_that_is_cut_off_is_closed() {
    let (noticed, closed) = mpsc::channel();
    let noticed = std::sync::Mutex::new(noticed);
    let target = FakeTarget::start(move |_, _, reply| {
        reply.begin_events();
        reply.event(&chunk(&"x".repeat(200 << 10), None));
        reply.wait_closed();
        noticed.lock().unwrap().send(()).unwrap();
    });
    let server = server_with(&[target.address]);
    assert_cut_off(&server.post("/v1/chat/completions", &chat_body(json!({ "max_tokens": 5 }))), "text");
    closed.recv_timeout(std::time::Duration::from_secs(60)).expect("the target's connection closes");
}

#[test]
fn texts_of_honest_targets_are_not_cut_off() {
    // One event for each token, with all that servers add, comments and reasoning beyond the limit.
    let target = FakeTarget::start(|_, request, reply| {
        reply.begin_events();
        reply.event(&delta(&json!({ "reasoning_content": "hm ".repeat(10_000) })));
        let tokens = request.json()["max_tokens"].as_u64().unwrap();
        let tops = vec![json!({ "token": "longer", "logprob": -1.25, "bytes": [108, 111, 110, 103, 101, 114] }); 20];
        for _ in 0..tokens {
            let token = json!({ "token": " word", "logprob": -0.5, "top_logprobs": tops });
            let choice = json!({ "index": 0, "delta": { "content": " word" }, "logprobs": { "content": [token] } });
            reply.event(&json!({ "id": "x".repeat(100), "padding": "x".repeat(200), "choices": [choice] }));
            reply.raw(": keep-alive\n\n");
        }
        reply.event(&chunk("", Some("length")));
    });
    let server = server_with(&[target.address]);
    for logprobs in [false, true] {
        let mut body = chat_body(json!({ "max_tokens": 1000 }));
        if logprobs {
            (body["logprobs"], body["top_logprobs"]) = (json!(true), json!(20));
        }
        let response = server.post("/v1/chat/completions", &body).ok();
        assert_eq!(response["choices"][0]["message"]["content"].as_str().unwrap().len(), 5000);
        let found = response["choices"][0]["logprobs"]["content"].as_array().map_or(0, Vec::len);
        assert_eq!(found, if logprobs { 1000 } else { 0 });
    }
}

#[test]
fn lists_with_too_many_entries_are_refused() {
    let list = |entry: &str| format!("[{}]", vec![entry; 100_000].join(","));
    for event in [
        format!("{{\"choices\":{}}}", list("{}")),
        format!("{{\"choices\":[{{\"delta\":{{\"tool_calls\":{}}}}}]}}", list("{}")),
    ] {
        let target = FakeTarget::start(move |_, _, reply| flood(reply, 1, &format!("data: {event}\n\n")));
        let response = server_with(&[target.address]).post("/v1/chat/completions", &chat_body(json!({})));
        assert_eq!(response.error_fields().1, "model_unavailable");
    }
}

#[test]
fn comments_do_not_keep_a_text_open_that_does_not_go_on() {
    let target = FakeTarget::start(|_, _, reply| {
        reply.begin_events();
        reply.event(&chunk("one", None));
        while reply.try_raw(b": ping\n\n") {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    });
    let server = server_with_settings("kind = \"chat\"", &[target.address], "[timeouts]\nevent = 0.3\n");
    let response = server.post("/v1/chat/completions", &chat_body(json!({ "max_tokens": 5 })));
    assert_eq!((response.error_fields().1.as_str(), target.count()), ("model_unavailable", 1));
    assert!(server.get("/metrics").text.contains("reason=\"timeout\"} 1"));
}

#[test]
fn heads_that_are_too_large_are_refused() {
    for headers in ["x-a: b\r\n".repeat(1000), format!("x-a: {}\r\n", "b".repeat(1 << 20))] {
        let target = FakeTarget::start(move |_, _, reply| reply.status(200, &headers, "{}"));
        let response = server_with(&[target.address]).post("/v1/chat/completions", &chat_body(json!({})));
        assert_eq!(response.error_fields().1, "model_unavailable");
    }
}

#[test]
fn a_refusal_is_read_up_to_a_limit() {
    let target = FakeTarget::start(|_, _, reply| {
        reply.raw("HTTP/1.1 400 X\r\ncontent-type: application/json\r\n\r\n{\"error\":{\"message\":\"bad n\"},\"x\":[");
        while reply.try_raw(&b"[],".repeat(1000)) {}
    });
    let response = server_with(&[target.address]).post("/v1/chat/completions", &chat_body(json!({})));
    assert_eq!(response.error_fields().0, 400);
}

/// A JSON object with a field of this many bytes of empty lists after its other fields, which `start` begins.
fn padded(start: &str, bytes: usize) -> String {
    format!("{start},\"usage\":[{}[]]}}", "[],".repeat(bytes / 3))
}

#[test]
fn whole_responses_far_beyond_what_was_asked_for_are_refused() {
    let embedding = "{\"data\":[{\"index\":0,\"embedding\":[1,0]}]";
    let ranked = "{\"results\":[{\"index\":0,\"relevance_score\":1}]";
    let embed = json!({ "model": REMOTE, "input": "hello" });
    let rerank = json!({ "model": REMOTE, "query": "q", "documents": ["hello"] });
    let draw = json!({ "model": REMOTE, "prompt": "tide" });
    for (kind, path, body, start, bytes) in [
        ("embedding", "/v1/embeddings", &embed, embedding, 1 << 20),
        ("rerank", "/v1/rerank", &rerank, ranked, 1 << 20),
        ("image", "/v1/images/generations", &draw, "{\"data\":[{\"b64_json\":\"\"}]", 24 << 20),
    ] {
        let whole = padded(start, bytes);
        let target =
            FakeTarget::start(move |_, _, reply| reply.status(200, "content-type: application/json\r\n", &whole));
        let server = server_with_settings(&format!("kind = \"{kind}\""), &[target.address], "");
        let response = server.post(path, body);
        assert_cut_off(&response, kind);
        assert_eq!(response.status, 503, "{kind}");
        assert!(server.get("/metrics").text.contains("reason=\"malformed\"} 1"), "{kind}");
    }
    // What is not asked for is skipped if it is small.
    for (kind, path, body, start) in
        [("embedding", "/v1/embeddings", &embed, embedding), ("rerank", "/v1/rerank", &rerank, ranked)]
    {
        let whole = padded(start, 3000);
        let target =
            FakeTarget::start(move |_, _, reply| reply.status(200, "content-type: application/json\r\n", &whole));
        let server = server_with_settings(&format!("kind = \"{kind}\""), &[target.address], "");
        server.post(path, body).ok();
    }
}

#[test]
fn speech_far_longer_than_its_text_is_cut_off_and_charged_as_far_as_it_was_sent() {
    let target = FakeTarget::start(|_, _, reply| {
        reply.raw("HTTP/1.1 200 OK\r\ncontent-type: audio/pcm\r\n\r\n");
        // Two minutes for five characters.
        (0..120).for_each(|_| reply.raw(&"\x01".repeat(48_000)));
    });
    let server = server_with_settings("kind = \"speech\"", &[target.address], "");
    let body = json!({ "model": REMOTE, "voice": "a", "input": "hello", "response_format": "pcm" });
    let mut connection = server.begin("/v1/audio/speech", &server.admin, &body);
    connection.set_read_timeout(Some(std::time::Duration::from_secs(20))).unwrap();
    let mut received = Vec::new();
    let _may_break_off = connection.read_to_end(&mut received);
    assert!(received.len() < 40 * 48_000, "{}", received.len());
    let project = server.get("/v1/projects").ok()["data"][0]["id"].as_str().unwrap().to_owned();
    let usage = server.get(&format!("/v1/projects/{project}/usage")).ok();
    let charged = usage["audio_processing"]["output_seconds"].as_f64().unwrap();
    // The last part may be lost when the connection is closed.
    assert!(charged > 1.0 && charged < received.len() as f64 / 48_000.0 + 2.0, "{charged}, {}", received.len());
}

#[test]
fn transcripts_far_longer_than_their_audio_are_refused() {
    let whole = padded("{\"text\":\"One.\"", 1 << 20);
    let target = FakeTarget::start(move |_, _, reply| reply.status(200, "content-type: application/json\r\n", &whole));
    let text = upstream_toml("kind = \"transcription\"", &[target.address]);
    let server = Server::start_configured(&TinyModel::default(), |config| {
        write_upstream(&config.paths.models, REMOTE, &text);
        config.sandbox = Some(env!("CARGO_BIN_EXE_outpost").into());
    });
    let file = std::fs::read(fixture("audio/mono-8k.wav")).unwrap();
    let mut form = format!("--xYz\r\ncontent-disposition: form-data; name=\"model\"\r\n\r\n{REMOTE}\r\n").into_bytes();
    form.extend(b"--xYz\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n");
    form.extend(file);
    form.extend(b"\r\n--xYz--\r\n");
    let headers = [("content-type", "multipart/form-data; boundary=xYz")];
    let response = server.raw(Method::POST, "/v1/audio/transcriptions", Some(&server.admin), &headers, Some(form));
    assert_cut_off(&response, "transcript");
}

/// A server process with a chat model and an embedding model on a target.
fn serve(target: &FakeTarget) -> (tempfile::TempDir, ServerProcess) {
    let folder = tempfile::tempdir().unwrap();
    let models = folder.path().join("models");
    tiny_model::write(&models, crate::process::MODEL, &TinyModel::default());
    for (id, kind) in [(REMOTE, "chat"), ("vectors", "embedding")] {
        write_upstream(&models, id, &upstream_toml(&format!("kind = \"{kind}\""), &[target.address]));
    }
    let serving = ServerProcess::start(folder.path(), &["--memory", "1GiB"]);
    (folder, serving)
}

/// A field of the server's status in MB, such as its resident memory.
fn megabytes(serving: &ServerProcess, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", serving.child.id())).unwrap();
    let line = text.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
}

/// The growth of the server's memory by requests to a target that sends up to `bytes`, in MB, with its error codes.
fn growth(bytes: usize) -> [(u64, String); 2] {
    let target = FakeTarget::start(move |_, request, reply| {
        let piece = match request.path.as_str() {
            "/v1/embeddings" => {
                reply.raw("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n");
                reply.raw("{\"data\":[{\"index\":0,\"embedding\":[1,0]}],\"usage\":[");
                "[],".repeat(300_000)
            }
            _ => {
                reply.begin_events();
                format!("data: {}\n\n", chunk(&"x".repeat(900_000), None))
            }
        };
        let _all_is_sent = (0..bytes / piece.len()).all(|_| reply.try_raw(piece.as_bytes()));
        if request.path == "/v1/embeddings" {
            reply.raw("[]]}");
        }
    });
    let (_folder, serving) = serve(&target);
    let chat = chat_body(json!({ "max_tokens": 5 }));
    let embed = json!({ "model": "vectors", "input": "hello" });
    [("/v1/chat/completions", chat), ("/v1/embeddings", embed)].map(|(path, body)| {
        std::fs::write(format!("/proc/{}/clear_refs", serving.child.id()), "5").unwrap();
        let before = megabytes(&serving, "VmRSS:");
        let answer: Value = serving.request(Method::POST, path, Some(&body)).json().unwrap();
        let growth = megabytes(&serving, "VmHWM:").saturating_sub(before);
        (growth, answer["error"]["code"].as_str().unwrap_or("none").to_owned())
    })
}

#[test]
fn floods_take_little_memory() {
    for (growth, code) in growth(60 << 20) {
        assert_eq!(code, "model_unavailable");
        assert!(growth < 40, "{growth} MB");
    }
}

/// `cargo test --test upstream floods -- --ignored --nocapture`
#[test]
#[ignore = "sends gigabytes to a server that takes them"]
fn large_floods_take_no_more_memory_than_small_ones() {
    for (growth, code) in growth(1 << 30) {
        println!("{growth} MB, {code}");
        assert!(growth < 40, "{growth} MB");
    }
}
