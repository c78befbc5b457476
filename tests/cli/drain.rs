//! SIGTERM while streams are open.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::process::{MODEL, ServerProcess, folder, read_rest, run};
use crate::tiny_model::TinyModel;
use crate::wait::until;

/// The sum of all series of a metric.
fn metric(serving: &ServerProcess, name: &str) -> usize {
    let text = read_rest(serving.request(reqwest::Method::GET, "/metrics", None));
    let lines = text.lines().filter(|line| line.split(['{', ' ']).next() == Some(name));
    lines.map(|line| line.rsplit_once(' ').unwrap().1.parse::<usize>().unwrap()).sum()
}

/// The results of a hundred clients with a stream each, when the server is stopped while some streams run and the others
/// are queued.
fn clients_during_shutdown(serving: &ServerProcess, tokens: u32) -> Vec<(u16, String)> {
    let body = json!({
        "model": MODEL, "stream": true, "max_tokens": tokens, "ignore_eos": true,
        "messages": [{ "role": "user", "content": "go on" }],
    });
    let ended = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let send_request = || {
            let response = serving.request(reqwest::Method::POST, "/v1/chat/completions", Some(&body));
            let outcome = (response.status().as_u16(), read_rest(response));
            ended.fetch_add(1, Ordering::Relaxed);
            outcome
        };
        let clients: Vec<_> = (0..100).map(|_| scope.spawn(send_request)).collect();
        let count = |name: &str| metric(serving, name);
        let active = || count("outpost_answers_running") + count("outpost_requests_queued");
        until(|| "all have been taken in", || active() + ended.load(Ordering::Relaxed) >= 100);
        until(|| "some are answered", || count("outpost_generated_tokens_total") > 0);
        serving.signal("TERM");
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    })
}

fn ended_with_error(text: &str) -> bool {
    text.contains("\"code\":\"shutting_down\"") && !text.contains("[DONE]")
}

#[test]
fn streams_that_outlast_the_drain_end_with_an_error_event() {
    let folder = folder(&TinyModel { context: 8192, blocks: 4, width: 256, ..TinyModel::default() });
    let mut serving = ServerProcess::start(folder.path(), &["--drain-seconds", "3"]);
    let outcomes = clients_during_shutdown(&serving, 8000);
    assert_eq!(serving.wait(Duration::from_secs(3)), Some(0));
    let begun = outcomes.iter().filter(|(_, text)| text.contains("\"content\"")).count();
    assert!(begun > 0, "some streams had begun");
    for (status, text) in &outcomes {
        assert!(*status == 503 || ended_with_error(text), "{status}: …{}", &text[text.len().saturating_sub(300)..]);
    }
    assert!(run(folder.path(), &["check"]).status.success());
}

#[test]
fn streams_complete_and_the_store_is_clean_after_a_stop() {
    // Long responses of a slow model: requests are queued when the signal comes.
    let folder = folder(&TinyModel { context: 8192, blocks: 4, width: 256, ..TinyModel::default() });
    let mut serving = ServerProcess::start(folder.path(), &[]);
    let outcomes = clients_during_shutdown(&serving, 400);
    let stopped = Instant::now();
    assert_eq!(serving.wait(Duration::from_secs(30)), Some(0));
    assert!(stopped.elapsed() < Duration::from_secs(30));
    let mut finished = 0;
    for (status, text) in &outcomes {
        let ended_well = text.trim_end().ends_with("data: [DONE]");
        let refused = *status == 503;
        assert!(
            ended_well || ended_with_error(text) || refused,
            "{status}: …{}",
            &text[text.len().saturating_sub(300)..]
        );
        finished += usize::from(ended_well);
    }
    assert!(finished > 0, "streams that ran when the signal came completed");
    assert!(run(folder.path(), &["check"]).status.success());
}

#[test]
fn until_the_stop_delay_is_over_requests_are_answered_but_the_server_is_not_ready() {
    let folder = folder(&TinyModel::default());
    let mut serving = ServerProcess::start(folder.path(), &["--stop-delay-seconds", "600"]);
    let get = |path: &str| serving.request(reqwest::Method::GET, path, None);
    assert_eq!((get("/readyz").status(), get("/readyz").headers().get("connection")), (reqwest::StatusCode::OK, None));
    serving.signal("TERM");
    until(|| "the balancer is told", || get("/readyz").status() == 503);
    assert!(get("/health").status() == 503 && get("/ping").status() == 503);
    for path in ["/healthz", "/v1/models"] {
        let response = get(path);
        assert_eq!((response.status().as_u16(), response.headers()["connection"].to_str().unwrap()), (200, "close"));
    }
    serving.signal("TERM");
    assert_eq!(serving.wait(Duration::from_secs(30)), Some(0));
}
