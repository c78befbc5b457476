//! Rate limits, budgets and quotas of a project.

use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{MODEL, Response, Server};

const MOUNTS: [&str; 2] = ["/v1", "/openai/v1"];

fn set(server: &Server, project: &str, limits: &Value) -> Value {
    server.patch(&format!("/v1/projects/{project}/rate-limits"), limits).ok()
}

fn models(server: &Server, key: &str) -> Response {
    server.call(Method::GET, "/v1/models", Some(key), None)
}

fn chat(server: &Server, key: &str, tokens: u32) -> Response {
    let body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "hi" }], "max_tokens": tokens, "ignore_eos": true });
    server.call(Method::POST, "/v1/chat/completions", Some(key), Some(&body))
}

#[test]
fn limits_are_read_and_changed_on_both_mounts() {
    let server = Server::start();
    let (project, _, key) = server.tenant("t");
    for mount in MOUNTS {
        let path = format!("{mount}/projects/{project}/rate-limits");
        let call = |method: Method, body: Value| server.call(method, &path, Some(&key), Some(&body)).ok();
        let changed = call(Method::PATCH, json!({ "requests_per_minute": 600 }));
        assert_eq!((&changed["requests_per_minute"], &changed["burst_limit"]), (&json!(600), &json!(600)));
        assert_eq!(changed["id"], project);
        let changed = call(
            Method::PATCH,
            json!({ "burst_limit": 700, "tokens_per_minute": 5, "audio_seconds_per_minute": 60, "token_budget": 9 }),
        );
        assert_eq!(
            changed["effective"],
            json!({ "requests_per_minute": 600, "burst_limit": 700, "tokens_per_minute": 5, "audio_seconds_per_minute": 60, "token_budget": 9 })
        );
        let read = server.call(Method::GET, &path, Some(&key), None).ok();
        assert_eq!(read["burst_limit"], 700);
        assert_eq!(read["holds"]["api_keys"], 1);
        let cleared = call(
            Method::PATCH,
            json!({ "requests_per_minute": null, "tokens_per_minute": null, "audio_seconds_per_minute": null, "token_budget": null }),
        );
        assert_eq!(
            cleared["effective"],
            json!({ "requests_per_minute": null, "burst_limit": null, "tokens_per_minute": null, "audio_seconds_per_minute": null, "token_budget": null })
        );
    }
    let events = server.get(&format!("/v1/audit-events?project_id={project}&limit=1")).ok();
    assert_eq!(events["data"][0]["action"], "project.limits_updated");
    let old = json!({ "requests_per_minute": 600, "burst_limit": 700, "tokens_per_minute": 5, "audio_seconds_per_minute": 60, "token_budget": 9 });
    let new = json!({ "requests_per_minute": null, "burst_limit": null, "tokens_per_minute": null, "audio_seconds_per_minute": null, "token_budget": null });
    assert_eq!(events["data"][0]["detail"], json!({ "old": old, "new": new }), "the event has only the changed fields");
}

#[test]
fn limits_out_of_range_are_refused_by_name() {
    let server = Server::start();
    let (project, _, key) = server.tenant("t");
    let path = format!("/v1/projects/{project}/rate-limits");
    let cases = [
        (json!({ "requests_per_minute": 0 }), "requests_per_minute"),
        (json!({ "requests_per_minute": 1_000_001 }), "requests_per_minute"),
        (json!({ "requests_per_minute": -5 }), "requests_per_minute"),
        (json!({ "requests_per_minute": "many" }), "requests_per_minute"),
        (json!({ "burst_limit": 5 }), "burst_limit"),
        (json!({ "requests_per_minute": 10, "burst_limit": 101 }), "burst_limit"),
        (json!({ "requests_per_minute": 10, "burst_limit": 0 }), "burst_limit"),
        (json!({ "tokens_per_minute": 0 }), "tokens_per_minute"),
        (json!({ "audio_seconds_per_minute": 0 }), "audio_seconds_per_minute"),
        (json!({ "audio_seconds_per_minute": 1_000_001 }), "audio_seconds_per_minute"),
        (json!({ "token_budget": -1 }), "token_budget"),
        (json!({ "requests_per_second": 1 }), "requests_per_second"),
    ];
    for (body, param) in cases {
        let refused = server.call(Method::PATCH, &path, Some(&key), Some(&body)).error_fields();
        assert_eq!(refused, (400, "invalid_parameter".to_owned(), Some(param.to_owned())), "{body}");
    }
    for body in [json!({ "ceiling": { "requests_per_minute": 5 } }), json!({ "quotas": { "api_keys": 5 } })] {
        let refused = server.call(Method::PATCH, &path, Some(&key), Some(&body)).error_fields();
        assert_eq!((refused.0, refused.1.as_str()), (403, "insufficient_scope"), "{body}");
    }
}

#[test]
fn a_project_cannot_exceed_the_ceiling_that_an_admin_sets() {
    let server = Server::start();
    let (project, _, key) = server.tenant("t");
    let path = format!("/v1/projects/{project}/rate-limits");
    set(&server, &project, &json!({ "ceiling": { "requests_per_minute": 100, "token_budget": 1000 } }));
    let refused = |body: Value| server.call(Method::PATCH, &path, Some(&key), Some(&body)).error_fields();
    for (body, param) in [
        (json!({ "requests_per_minute": 101 }), "requests_per_minute"),
        (json!({ "requests_per_minute": 50, "burst_limit": 101 }), "burst_limit"),
        (json!({ "token_budget": 1001 }), "token_budget"),
    ] {
        assert_eq!(refused(body), (400, "invalid_parameter".to_owned(), Some(param.to_owned())));
    }
    // The project's own limits are kept, and the ceiling applies.
    assert_eq!(server.get(&path).ok()["effective"]["requests_per_minute"], 100);
    let own = server.call(Method::PATCH, &path, Some(&key), Some(&json!({ "requests_per_minute": 80 }))).ok();
    assert_eq!((&own["effective"]["requests_per_minute"], &own["effective"]["burst_limit"]), (&json!(80), &json!(80)));
    let lowered = set(&server, &project, &json!({ "ceiling": { "requests_per_minute": 10 } }));
    assert_eq!(
        (&lowered["requests_per_minute"], &lowered["effective"]["requests_per_minute"]),
        (&json!(80), &json!(10))
    );
    let lifted = set(&server, &project, &json!({ "ceiling": null }));
    assert_eq!(lifted["effective"]["requests_per_minute"], 80);
}

#[test]
fn rate_limit_headers_report_the_remaining_requests_and_the_retry_delay() {
    let server = Server::start();
    let (project, _, key) = server.tenant("t");
    let (_, _, other) = server.tenant("other");
    assert!(!models(&server, &key).headers.contains_key("x-ratelimit-limit-requests"));
    set(&server, &project, &json!({ "requests_per_minute": 20, "burst_limit": 3 }));
    for left in ["2", "1", "0"] {
        let response = models(&server, &key);
        assert_eq!(response.status, 200);
        assert_eq!(response.headers["x-ratelimit-limit-requests"], "20");
        assert_eq!(response.headers["x-ratelimit-remaining-requests"], left);
        assert!(response.headers["x-ratelimit-reset-requests"].to_str().unwrap().ends_with('s'));
    }
    let refused = models(&server, &key);
    assert_eq!(refused.error_fields(), (429, "rate_limit_exceeded".to_owned(), None));
    assert_eq!(refused.json()["error"]["type"], "rate_limit_error");
    assert_eq!(refused.headers["x-ratelimit-remaining-requests"], "0");
    let wait: u64 = refused.headers["retry-after-ms"].to_str().unwrap().parse().unwrap();
    assert!((1..=3000).contains(&wait), "{wait}");
    assert_eq!(refused.headers["retry-after"], wait.div_ceil(1000).to_string().as_str());
    assert_eq!(models(&server, &other).status, 200, "another project is not affected");
    // The retry delay is exact: a request is refused before its end and accepted after it.
    server.clock.pass(std::time::Duration::from_millis(wait));
    assert_eq!(models(&server, &key).status, 200);
    // The limits can be read and raised even when other requests are refused.
    let path = format!("/v1/projects/{project}/rate-limits");
    let raised = server.call(Method::PATCH, &path, Some(&key), Some(&json!({ "requests_per_minute": null })));
    raised.ok();
    assert_eq!(models(&server, &key).status, 200, "a change applies from the next request");
}

#[test]
fn a_raised_rate_applies_from_the_time_of_the_change() {
    let server = Server::start();
    let (project, _, key) = server.tenant("t");
    set(&server, &project, &json!({ "requests_per_minute": 1, "burst_limit": 1 }));
    assert_eq!(models(&server, &key).status, 200);
    assert_eq!(models(&server, &key).status, 429);
    set(&server, &project, &json!({ "requests_per_minute": 600, "burst_limit": 600 }));
    // Ten requests per second from now on. At the old rate, less than a tenth of a request would be available.
    server.clock.pass(std::time::Duration::from_secs(5));
    let first = models(&server, &key);
    assert_eq!(first.status, 200, "{}", first.text);
    let left: u64 = first.headers["x-ratelimit-remaining-requests"].to_str().unwrap().parse().unwrap();
    assert!((48..=200).contains(&left), "{left}");
    // A lowered rate applies from the time of the change, too.
    set(&server, &project, &json!({ "requests_per_minute": 1, "burst_limit": 1 }));
    assert_eq!(models(&server, &key).status, 200);
    server.clock.pass(std::time::Duration::from_secs(5));
    let refused = models(&server, &key);
    assert_eq!(refused.status, 429);
    assert!(refused.headers["retry-after-ms"].to_str().unwrap().parse::<u64>().unwrap() > 40_000);
}

#[test]
fn a_restart_gives_no_free_burst() {
    let server = Server::start();
    let (project, _, key) = server.tenant("t");
    set(&server, &project, &json!({ "requests_per_minute": 2, "burst_limit": 4, "tokens_per_minute": 10 }));
    for _ in 0..4 {
        assert_eq!(models(&server, &key).status, 200);
    }
    assert_eq!(models(&server, &key).status, 429);
    let server = Server::start_in(server.stop());
    let refused = models(&server, &key);
    assert_eq!(refused.status, 429);
    assert!(refused.headers["retry-after"].to_str().unwrap().parse::<u64>().unwrap() <= 30);
    // A clock that was set forward during the restart cannot be distinguished from elapsed time. The refill is limited
    // to the capacity of the bucket.
    let folder = server.stop();
    let server = Server::start_in(folder);
    assert_eq!(models(&server, &key).status, 429);
}

#[test]
fn tokens_are_limited_per_minute_and_per_month() {
    let server = Server::start();
    let (project, _, key) = server.tenant("t");
    let first = chat(&server, &key, 5).ok();
    let total = first["usage"]["total_tokens"].as_u64().unwrap();
    set(&server, &project, &json!({ "tokens_per_minute": total }));
    let admitted = chat(&server, &key, 5);
    assert_eq!(admitted.status, 200, "{}", admitted.text);
    assert_eq!(admitted.headers["x-ratelimit-limit-tokens"], total.to_string().as_str());
    let refused = chat(&server, &key, 5);
    assert_eq!(refused.error_fields(), (429, "rate_limit_exceeded".to_owned(), None));
    assert_eq!(refused.headers["x-ratelimit-remaining-tokens"], "0");

    set(&server, &project, &json!({ "tokens_per_minute": null, "token_budget": 2 * total }));
    let spent = chat(&server, &key, 5);
    assert_eq!(spent.error_fields(), (429, "insufficient_quota".to_owned(), None));
    assert_eq!(spent.headers["x-should-retry"], "false");
    assert!(!spent.headers.contains_key("retry-after"));
    assert_eq!(models(&server, &key).status, 200, "only the token budget is exhausted");
    let seen = server.get(&format!("/v1/projects/{project}/rate-limits")).ok();
    assert_eq!(seen["tokens_this_month"], 2 * total);
    let server = Server::start_in(server.stop());
    assert_eq!(chat(&server, &key, 5).status, 429, "the usage survives a restart");
    server.clock.advance(std::time::Duration::from_secs(32 * 86_400));
    assert_eq!(chat(&server, &key, 5).status, 200, "a new month has a new budget");
}

#[test]
fn quotas_limit_the_resources_of_a_project() {
    let server = Server::start();
    let (project, _, key) = server.tenant("t");
    let set = set(&server, &project, &json!({ "quotas": { "api_keys": 2 } }));
    assert_eq!((&set["quotas"]["api_keys"], &set["holds"]["api_keys"]), (&json!(2), &json!(1)));
    let new = json!({ "name": "k", "project_id": project });
    let create = || server.call(Method::POST, "/v1/api-keys", Some(&key), Some(&new));
    let second = create().ok()["id"].as_str().unwrap().to_owned();
    let refused = create();
    assert_eq!(refused.error_fields(), (429, "insufficient_quota".to_owned(), None));
    assert!(refused.text.contains("api_keys"));
    server.delete(&format!("/v1/api-keys/{second}")).ok();
    create().ok();
}
