//! Rate limits of two nodes over one PostgreSQL database.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::Instant;

use outpost_testing::needs_postgres;
use reqwest::Method;
use serde_json::{Value, json};

use crate::database::Database;
use crate::server::{Response, Server};
use crate::tiny_model::TinyModel;
use crate::wait;

fn set(server: &Server, project: &str, limits: &Value) {
    server.patch(&format!("/v1/projects/{project}/rate-limits"), limits).ok();
}

/// A cheap request. Another status than 200 or 429 means that the machine is too busy; then it is sent again.
fn models(server: &Server, key: &str) -> Response {
    loop {
        let response = server.call(Method::GET, "/v1/models", Some(key), None);
        if response.status != 503 {
            return response;
        }
    }
}

fn is_admitted(server: &Server, key: &str) -> bool {
    let response = models(server, key);
    assert!([200, 429].contains(&response.status), "{}", response.text);
    response.status == 200
}

fn wait_for_limit(server: &Server, project: &str, key: &str, limit: &str) {
    let path = format!("/v1/projects/{project}/rate-limits");
    let has_heard = || {
        let response = server.call(Method::GET, &path, Some(key), None);
        response.header("x-ratelimit-limit-requests") == Some(limit)
    };
    wait::until(|| "the other node hears of a changed limit", has_heard);
}

#[test]
fn two_nodes_admit_together_what_one_would() {
    needs_postgres!();
    const RATE: f64 = 10.0;
    const BURST: f64 = 20.0;
    let servers = Database::new().serve_two(&TinyModel::default());
    let (project, _, key) = servers[0].tenant("t");
    set(&servers[0], &project, &json!({ "requests_per_minute": 600, "burst_limit": 20 }));
    wait_for_limit(&servers[1], &project, &key, "600");
    let (admitted, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let began = Instant::now();
    let since = || u64::try_from(began.elapsed().as_millis()).unwrap();
    // When each node last refused a request that it had just received: then the bucket was empty.
    let refused: [AtomicU64; 2] = Default::default();
    thread::scope(|scope| {
        for (server, refused) in servers.iter().zip(&refused) {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !stop.load(SeqCst) {
                        let sent = since();
                        match is_admitted(server, &key) {
                            true => admitted.fetch_add(1, SeqCst),
                            false => refused.fetch_max(sent, SeqCst),
                        };
                    }
                });
            }
        }
        wait::until(
            || "both nodes refuse requests after five seconds",
            || refused.iter().all(|refused| refused.load(SeqCst) > 5_000),
        );
        stop.store(true, SeqCst);
    });
    let ended = began.elapsed().as_secs_f64();
    let empty = refused.iter().map(|refused| refused.load(SeqCst)).min().unwrap();
    let total = admitted.load(SeqCst) as f64;
    assert!(total <= BURST + RATE * ended, "{total} in {ended} s");
    // A quarter of the bucket in the lease of each node, and what may be lost while the bucket is full in the beginning.
    let least = BURST + RATE * (empty as f64 / 1000.0) - 2.0 * BURST / 4.0 - RATE;
    assert!(total >= least, "{total} in {ended} s, at least {least}");
}

#[test]
fn a_changed_limit_holds_on_both_nodes_and_a_restart_of_both_refills_nothing() {
    needs_postgres!();
    let database = Database::new();
    let [first, second] = database.serve_two(&TinyModel::default());
    let (project, _, key) = first.tenant("t");
    set(&first, &project, &json!({ "requests_per_minute": 1, "burst_limit": 4, "tokens_per_minute": 1000 }));
    wait_for_limit(&second, &project, &key, "1");
    let mut left = Vec::new();
    for server in [&first, &second, &first, &second] {
        let response = models(server, &key);
        assert_eq!(response.status, 200);
        left.push(response.header("x-ratelimit-remaining-requests").unwrap().to_owned());
        assert_eq!(response.header("x-ratelimit-limit-tokens"), Some("1000"));
    }
    assert_eq!(left, ["3", "2", "1", "0"], "both show the shared bucket");
    assert!(!is_admitted(&first, &key) && !is_admitted(&second, &key));

    set(&first, &project, &json!({ "requests_per_minute": 2, "burst_limit": 10 }));
    wait_for_limit(&second, &project, &key, "2");
    let refused = models(&second, &key);
    assert_eq!(refused.error_fields(), (429, "rate_limit_exceeded".to_owned(), None), "a change adds nothing");
    assert!(!is_admitted(&first, &key));

    let (one, two) = (first.stop(), second.stop());
    let [first, second] = [("a", one), ("b", two)].map(|(node, folder)| database.serve_in(node, folder));
    assert!(!is_admitted(&second, &key) && !is_admitted(&first, &key), "a restart of all nodes adds nothing");
    set(&second, &project, &json!({ "requests_per_minute": null }));
    assert!(is_admitted(&second, &key));
    wait::until(|| "the other node hears of a removed limit", || is_admitted(&first, &key));
}
