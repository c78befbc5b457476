//! More than the server can do at once, or has memory for: refused at once, with the reason and a remedy.

use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use outpost::engine::{GenerationRequest, Sampling};
use serde_json::{Value, json};

use crate::server::{Answer, MODEL, Server};
use crate::slow;
use crate::tiny_model::{self, TinyModel};
use crate::wait::until;

fn chat(content: &str, max_tokens: u32) -> Value {
    json!({ "model": MODEL, "messages": [{ "role": "user", "content": content }], "max_tokens": max_tokens, "ignore_eos": true })
}

fn ask(server: &Server, body: &Value) -> Answer {
    server.post("/v1/chat/completions", body)
}

fn seconds(answer: &Answer) -> u64 {
    answer.headers["retry-after"].to_str().unwrap().parse().unwrap()
}

/// Sends so many requests at once.
fn storm(server: &Server, count: usize, body: &Value) -> Vec<Answer> {
    thread::scope(|scope| {
        let all: Vec<_> = (0..count).map(|_| scope.spawn(|| ask(server, body))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    })
}

fn wait_queued(server: &Server, queued: usize) {
    let load = || server.engine.load();
    until(|| format!("{queued} should wait: {:?}", load()), || load().queued == queued);
}

/// A server whose places and a project's half of the queue are taken, by these connections.
fn full(running: usize, queued: usize) -> (Server, Vec<TcpStream>) {
    let server = Server::start_as(&slow(), |config| (config.max_running, config.max_queued) = (running, 2 * queued));
    let mut long = chat("hello", 8_000);
    long["stream"] = json!(true);
    let capacity = (0..running + queued).map(|_| server.begin_chat(&long)).collect();
    wait_queued(&server, queued);
    (server, capacity)
}

/// T7: ten times the capacity, of a project that may have half of the queue: 2 places and 4 that wait.
#[test]
fn what_is_too_much_is_refused_at_once_and_the_rest_is_answered() {
    let (server, capacity) = full(2, 4);
    let before = server.engine.load();
    for refused in storm(&server, 54, &chat("hello", 20)) {
        assert_eq!(refused.refusal(), (503, "overloaded".to_owned(), None));
        assert!((1..=600).contains(&seconds(&refused)), "{}", refused.text);
    }
    // Nobody had to end for that, and nothing was put into the queue.
    let after = server.engine.load();
    assert_eq!((after.running, after.queued, after.queued_tokens), (2, 4, before.queued_tokens));
    assert_eq!(server.get("/healthz").status, 200);
    drop(capacity);
    server.wait_idle(Duration::from_secs(30));

    let (taken, refused): (Vec<_>, Vec<_>) =
        storm(&server, 60, &chat("hello", 20)).into_iter().partition(|answer| answer.status == 200);
    assert!(taken.len() >= 6, "{} taken", taken.len());
    assert!(taken.iter().all(|answer| answer.ok()["usage"]["completion_tokens"] == 20));
    assert!(refused.iter().all(|answer| answer.refusal().0 == 503 && seconds(answer) >= 1));
}

#[test]
fn a_full_queue_refuses_before_the_prompt_is_read() {
    let (server, _capacity) = full(1, 1);
    // A prompt that would be refused for its length is not looked at.
    let answer = ask(&server, &chat(&"sea ".repeat(20_000), 20));
    assert_eq!(answer.refusal(), (503, "overloaded".to_owned(), None));
}

fn figure(server: &Server, r#use: &str) -> u64 {
    let name = format!("outpost_memory_bytes{{use=\"{}\"}} ", r#use);
    let text = server.get("/metrics").text;
    text.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
}

/// A server with memory for so many of the models and 20 KV blocks of 4,096 bytes.
fn short_of_memory(models: u64) -> Server {
    let free = Server::start();
    free.post(&format!("/v1/models/{MODEL}/load"), &json!({})).ok();
    let (weights, scratch) = (figure(&free, "weights"), figure(&free, "scratch"));
    assert!(weights > 100_000 && scratch > 100_000, "{weights} {scratch}");
    Server::start_as(&TinyModel::default(), |config| config.memory = models * weights + scratch + 20 * 4_096)
}

#[test]
fn what_memory_cannot_hold_is_told_from_what_the_context_cannot() {
    let server = short_of_memory(1);
    let refusal = |max_tokens| {
        let answer = ask(&server, &chat("hello", max_tokens));
        let expected = (400, "context_length_exceeded".to_owned(), Some("max_tokens".to_owned()));
        assert_eq!(answer.refusal(), expected);
        answer.json()["error"]["message"].as_str().unwrap().to_owned()
    };
    let message = refusal(400);
    assert!(message.contains("needs 110 kB of memory; 81 kB are available"), "{message}");
    assert!(message.contains("--memory") && message.contains("--kv-type q8"), "{message}");
    let message = refusal(600);
    assert!(message.contains("context of 512 tokens") && !message.contains("--memory"), "{message}");
    // Whoever asks for no length gets what there is.
    let mut free = chat("hello", 1);
    free.as_object_mut().unwrap().remove("max_tokens");
    assert_eq!(ask(&server, &free).ok()["usage"]["total_tokens"], 320);
}

#[test]
fn a_model_that_never_fits_says_what_it_takes() {
    let server = Server::start_as(&TinyModel::default(), |config| config.memory = 300_000);
    let answer = ask(&server, &chat("hello", 5));
    assert_eq!(answer.refusal(), (503, "model_unavailable".to_owned(), Some("model".to_owned())));
    assert!(
        answer.text.contains("300 kB are available for models. Give the server more memory with --memory"),
        "{}",
        answer.text
    );
}

#[test]
fn memory_that_other_models_hold_is_worth_another_try() {
    let server = short_of_memory(2);
    tiny_model::write(&server.folder.path().join("models"), "other", &TinyModel::default());
    // Both are read while no block is taken: reading needs room, too. The folder is read again once a second.
    for id in [MODEL, "other"] {
        until(|| format!("'{id}' is found"), || server.engine.models().load(id).is_ok());
    }
    // Answers that nobody reads pause, and keep both models in use.
    let hold = |id: &str| {
        let model = server.engine.models().load(id).unwrap();
        let sampling = Sampling { ignore_eos: true, ..Sampling::default() };
        let request = GenerationRequest {
            prompt: vec![7; 4].into(),
            choices: 1,
            max_tokens: 200,
            sampling,
            grammar: None,
            stop: Vec::new(),
            logprobs: None,
            tenant: 1,
        };
        server.engine.submit(&model, request).unwrap()
    };
    let held = [hold(MODEL), hold("other")];
    // Each prompt needs 26 blocks of the 20 that are there while both models are.
    let body = |id: &str| {
        let mut body = chat(&"z".repeat(400), 5);
        body["model"] = json!(id);
        body
    };
    let answers = thread::scope(|scope| {
        let both = [MODEL, "other"].map(|id| scope.spawn(|| ask(&server, &body(id))));
        wait_queued(&server, 2);
        drop(held);
        both.map(|one| one.join().unwrap())
    });
    let mut statuses = answers.each_ref().map(|answer| answer.status);
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 503], "{} {}", answers[0].text, answers[1].text);
    let refused = answers.iter().find(|answer| answer.status == 503).unwrap();
    assert_eq!(refused.refusal(), (503, "overloaded".to_owned(), None));
    assert!(seconds(refused) >= 1 && refused.text.contains("--memory"), "{}", refused.text);
}
