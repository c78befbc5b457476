//! Requests that exceed the server's capacity or memory are refused at once, with the reason and a remedy.

use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use outpost::engine::{GenerationRequest, Sampling, TextOptions};
use serde_json::{Value, json};

use crate::server::{MODEL, Response, Server};
use crate::slow_model;
use crate::tiny_model::{self, TinyModel};
use crate::wait::until;

fn chat(content: &str, max_tokens: u32) -> Value {
    json!({ "model": MODEL, "messages": [{ "role": "user", "content": content }], "max_tokens": max_tokens, "ignore_eos": true })
}

fn chat_body(server: &Server, body: &Value) -> Response {
    server.post("/v1/chat/completions", body)
}

fn seconds(response: &Response) -> u64 {
    response.headers["retry-after"].to_str().unwrap().parse().unwrap()
}

/// Sends `count` requests concurrently.
fn send_concurrently(server: &Server, count: usize, body: &Value) -> Vec<Response> {
    thread::scope(|scope| {
        let all: Vec<_> = (0..count).map(|_| scope.spawn(|| chat_body(server, body))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

fn wait_queued(server: &Server, queued: usize) {
    let load = || server.engine.load();
    until(|| format!("{queued} should wait: {:?}", load()), || load().queued == queued);
}

/// A server whose slots and a project's half of the queue are taken by these connections.
fn full_server(running: usize, queued: usize) -> (Server, Vec<TcpStream>) {
    // It computes 8,000 tokens for longer than any of these tests takes, also on a fast machine.
    let model = TinyModel { blocks: 8, width: 384, ..slow_model() };
    let server = Server::start_configured(&model, |config| {
        (config.max_running, config.max_queued, config.speculate) = (running, 2 * queued, false)
    });
    let mut long = chat("hello", 8_000);
    long["stream"] = json!(true);
    let capacity = (0..running + queued).map(|_| server.start_chat(&long)).collect();
    wait_queued(&server, queued);
    (server, capacity)
}

/// Ten times the capacity, from one project, which can take 2 slots and 4 positions in the queue.
#[test]
fn excess_requests_are_refused_at_once_and_the_rest_are_answered() {
    let (server, capacity) = full_server(2, 4);
    let before = server.engine.load();
    for refused in send_concurrently(&server, 54, &chat("hello", 20)) {
        assert_eq!(refused.error_fields(), (503, "overloaded".to_owned(), None));
        assert!((1..=600).contains(&seconds(&refused)), "{}", refused.text);
    }
    // No running request ended for that, and nothing was queued.
    let after = server.engine.load();
    assert_eq!((after.running, after.queued, after.queued_tokens), (2, 4, before.queued_tokens));
    assert_eq!(server.get("/healthz").status, 200);
    drop(capacity);
    server.wait_idle(Duration::from_secs(30));

    let (taken, refused): (Vec<_>, Vec<_>) =
        send_concurrently(&server, 60, &chat("hello", 20)).into_iter().partition(|response| response.status == 200);
    assert!(taken.len() >= 6, "{} taken", taken.len());
    assert!(taken.iter().all(|response| response.ok()["usage"]["completion_tokens"] == 20));
    assert!(refused.iter().all(|response| response.error_fields().0 == 503 && seconds(response) >= 1));
}

#[test]
fn a_full_queue_refuses_before_the_prompt_is_read() {
    let (server, _capacity) = full_server(1, 1);
    // A prompt that would be refused for its length is not examined.
    let response = chat_body(&server, &chat(&"sea ".repeat(20_000), 20));
    assert_eq!(response.error_fields(), (503, "overloaded".to_owned(), None));
}

fn figure(server: &Server, r#use: &str) -> u64 {
    let name = format!("outpost_memory_bytes{{device=\"cpu\",use=\"{}\"}} ", r#use);
    let text = server.get("/metrics").text;
    text.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
}

/// A server with memory for `models` models and 20 KV blocks of 4,096 bytes.
fn with_little_memory(models: u64) -> Server {
    let free = Server::start();
    free.post(&format!("/v1/models/{MODEL}/load"), &json!({})).ok();
    let (weights, scratch) = (figure(&free, "weights"), figure(&free, "scratch"));
    assert!(weights > 100_000 && scratch > 100_000, "{weights} {scratch}");
    Server::start_configured(&TinyModel::default(), |config| config.memory = models * weights + scratch + 20 * 4_096)
}

#[test]
fn memory_and_context_limits_give_different_errors() {
    let server = with_little_memory(1);
    let error_fields = |max_tokens| {
        let response = chat_body(&server, &chat("hello", max_tokens));
        let expected = (400, "context_length_exceeded".to_owned(), Some("max_tokens".to_owned()));
        assert_eq!(response.error_fields(), expected);
        response.json()["error"]["message"].as_str().unwrap().to_owned()
    };
    let message = error_fields(400);
    assert!(message.contains("needs 110 kB of memory; 81 kB are available"), "{message}");
    assert!(message.contains("--memory") && message.contains("--kv-type q8"), "{message}");
    let message = error_fields(600);
    assert!(message.contains("maximum context length is 512 tokens") && !message.contains("--memory"), "{message}");
    // A request without a maximum length gets the available context.
    let mut free = chat("hello", 1);
    free.as_object_mut().unwrap().remove("max_tokens");
    assert_eq!(chat_body(&server, &free).ok()["usage"]["total_tokens"], 320);
}

#[test]
fn the_error_for_a_model_that_never_fits_states_its_size() {
    let server = Server::start_configured(&TinyModel::default(), |config| config.memory = 300_000);
    let response = chat_body(&server, &chat("hello", 5));
    assert_eq!(response.error_fields(), (503, "model_unavailable".to_owned(), Some("model".to_owned())));
    assert!(
        response.text.contains("300 kB are available for models. Give the server more memory with --memory"),
        "{}",
        response.text
    );
}

#[test]
fn memory_used_by_other_models_gives_a_retryable_error() {
    let server = with_little_memory(2);
    tiny_model::write(&server.folder.path().join("models"), "other", &TinyModel::default());
    // Both models are loaded while no block is in use, because loading needs memory, too. The folder is read once a
    // second.
    for id in [MODEL, "other"] {
        until(|| format!("'{id}' is found"), || server.engine.models().load(id).is_ok());
    }
    // Responses that no client reads are paused, and keep both models in use.
    let hold = |id: &str| {
        let model = server.engine.models().load(id).unwrap();
        let sampling = Sampling { ignore_eos: true, ..Sampling::default() };
        let request = GenerationRequest {
            prompt: vec![7; 4].into(),
            prompt_logprobs: None,
            choices: 1,
            max_tokens: 200,
            sampling,
            grammar: None,
            reasoning: None,
            stop: Vec::new(),
            text: TextOptions::default(),
            logprobs: None,
            tenant: 1,
        };
        server.engine.submit(&model, request).unwrap()
    };
    let held_responses = [hold(MODEL), hold("other")];
    // Until then they are queued, as the requests below.
    until(|| "both are held", || server.engine.load().running == 2);
    // Each prompt needs 26 blocks. With both models loaded, there are 20.
    let body = |id: &str| {
        let mut body = chat(&"z".repeat(400), 5);
        body["model"] = json!(id);
        body
    };
    let responses = thread::scope(|scope| {
        let both = [MODEL, "other"].map(|id| scope.spawn(|| chat_body(&server, &body(id))));
        wait_queued(&server, 2);
        drop(held_responses);
        both.map(|one| one.join().unwrap())
    });
    let mut statuses = responses.each_ref().map(|response| response.status);
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 503], "{} {}", responses[0].text, responses[1].text);
    let refused = responses.iter().find(|response| response.status == 503).unwrap();
    assert_eq!(refused.error_fields(), (503, "overloaded".to_owned(), None));
    assert!(seconds(refused) >= 1 && refused.text.contains("--memory"), "{}", refused.text);
}
