//! Usage reports: exact window bounds, grouping, and complete totals after retention.

use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{MODEL, Server};

fn usage(server: &Server, project: &str, query: &str) -> Value {
    server.get(&format!("/v1/projects/{project}/usage{query}")).ok()
}

fn chat(server: &Server, key: &str, tokens: u32) -> (u64, u64) {
    let body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "hi" }], "max_tokens": tokens, "ignore_eos": true });
    let response = server.call(Method::POST, "/v1/chat/completions", Some(key), Some(&body)).ok();
    let count = |name: &str| response["usage"][name].as_u64().unwrap();
    (count("prompt_tokens"), count("completion_tokens"))
}

#[test]
fn cached_prompt_tokens_are_reported_and_metered_separately() {
    let server = Server::start();
    let ask = |key: &str, stream: bool| {
        let words = "Tell me about the sea and the stars. ".repeat(5);
        let body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": words }], "max_tokens": 2,
            "stream": stream, "stream_options": stream.then(|| json!({ "include_usage": true })) });
        let response = server.call(Method::POST, "/openai/v1/chat/completions", Some(key), Some(&body));
        let last = response.text.lines().filter_map(|line| line.strip_prefix("data: {")).next_back();
        let whole = last.map_or_else(|| response.text.clone(), |line| format!("{{{line}"));
        let usage = &serde_json::from_str::<Value>(&whole).unwrap()["usage"];
        let count = |value: &Value| value.as_u64().unwrap();
        (count(&usage["prompt_tokens"]), count(&usage["prompt_tokens_details"]["cached_tokens"]))
    };
    let (own, _, key) = server.tenant("own");
    let (other, _, foreign) = server.tenant("other");
    let (prompt, cold) = ask(&key, false);
    assert_eq!(cold, 0);
    for stream in [false, true] {
        let (again, warm) = ask(&key, stream);
        assert!(again == prompt && warm < prompt && warm + 16 >= prompt, "{warm} of {prompt}");
    }
    assert_eq!(ask(&foreign, false), (prompt, 0), "another project's prompt is not reported as cached");
    let tokens = |project: &str| usage(&server, project, "")["tokens"].clone();
    let (_, warm) = ask(&key, false);
    assert_eq!((&tokens(&own)["input"], &tokens(&own)["cached"]), (&json!(4 * prompt), &json!(3 * warm)));
    assert_eq!((&tokens(&other)["input"], &tokens(&other)["cached"]), (&json!(prompt), &json!(0)));
}

#[test]
fn every_request_is_counted_regardless_of_outcome() {
    let server = Server::start();
    let (project, key_id, key) = server.tenant("t");
    let (input, output) = chat(&server, &key, 7);
    server.call(Method::GET, "/openai/v1/models", Some(&key), None).ok();
    for (method, path) in
        [(Method::GET, "/v1/nowhere"), (Method::DELETE, "/v1/models"), (Method::GET, "/v1/api-keys/key_1")]
    {
        assert!(server.call(method, path, Some(&key), None).status >= 400);
    }
    let no_model = json!({ "model": "none", "messages": [{ "role": "user", "content": "hi" }] });
    assert_eq!(server.call(Method::POST, "/v1/chat/completions", Some(&key), Some(&no_model)).status, 404);
    server.call(Method::GET, "/v1/models", Some("opk_nobody"), None).error_fields();

    let report = usage(&server, &project, "?group_by=endpoint,model,api_key_id");
    assert_eq!(report["object"], "service.resource");
    assert!(report["id"].as_str().unwrap().starts_with("usage_"));
    assert_eq!(report["requests"], 6);
    assert_eq!(
        report["requests_by_outcome"],
        json!({ "succeeded": 2, "refused": 4, "limited": 0, "failed": 0, "abandoned": 0 })
    );
    assert_eq!(report["tokens"], json!({ "input": input, "cached": 0, "output": output, "total": input + output }));
    let audio = json!({ "seconds": 0.0, "input_seconds": 0.0, "output_seconds": 0.0 });
    assert_eq!((&report["image_generations"], &report["audio_processing"]), (&json!(0), &audio));
    assert_eq!(report["storage"], json!({ "bytes": 0, "bytes_at_end": 0 }));
    let groups: Vec<(&str, Option<&str>, u64)> = report["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|group| {
            assert_eq!(group["api_key_id"], key_id);
            (group["endpoint"].as_str().unwrap(), group["model"].as_str(), group["requests"].as_u64().unwrap())
        })
        .collect();
    let expected = [
        ("DELETE /models", None, 1),
        ("GET (unknown)", None, 1),
        ("GET /api-keys/{api_key_id}", None, 1),
        ("GET /models", None, 1),
        ("POST /chat/completions", None, 1),
        ("POST /chat/completions", Some(MODEL), 1),
    ];
    assert_eq!(groups, expected, "the name of an unknown model is not stored");
}

#[test]
fn windows_are_exact_to_the_millisecond() {
    let server = Server::start();
    let (project, _, key) = server.tenant("t");
    chat(&server, &key, 3);
    let all = usage(&server, &project, "");
    let folder = server.stop();
    let file = folder.path().join("usage.jsonl");
    export(&folder.path().join("data"), &file);
    let rows: Vec<Value> =
        std::fs::read_to_string(&file).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let row = rows.iter().find(|row| row["project_id"] == project.as_str()).unwrap();
    assert_eq!(
        (&row["endpoint"], &row["outcome"], &row["output_tokens"]),
        (&json!("POST /chat/completions"), &json!("succeeded"), &json!(3))
    );
    let at: outpost::clock_rng::Timestamp = row["time"].as_str().unwrap().parse().unwrap();
    let timestamp = |shift: i64| outpost::clock_rng::Timestamp::from_millis(at.as_millis() + shift);
    let server = Server::start_in(folder);
    let count = |from: i64, to: i64, width: &str| {
        let query = format!("?start_time={}&end_time={}&bucket_width={width}", timestamp(from), timestamp(to));
        usage(&server, &project, &query)["requests"].as_u64().unwrap()
    };
    assert_eq!(all["requests"], 1);
    for width in ["1m", "1h"] {
        assert_eq!(count(0, 1, width), 1, "the start is inclusive");
        assert_eq!(count(-5000, 0, width), 0, "the end is exclusive");
        assert_eq!(count(1, 5000, width), 0);
        assert_eq!(count(-86_400_000 * 9 / 10, 86_400_000 * 9 / 10, if width == "1m" { "1h" } else { width }), 1);
    }
}

/// `outpost usage export` without a server.
fn export(data: &std::path::Path, to: &std::path::Path) {
    let arguments: [&std::ffi::OsStr; 8] = [
        "outpost".as_ref(),
        "--data".as_ref(),
        data.as_ref(),
        "usage".as_ref(),
        "export".as_ref(),
        "--format".as_ref(),
        "jsonl".as_ref(),
        to.as_ref(),
    ];
    let store = crate::store_location::store_arguments(data).into_iter().map(Into::into);
    let code = outpost::cli::run(arguments.map(ToOwned::to_owned).into_iter().chain(store));
    assert_eq!(format!("{code:?}"), format!("{:?}", std::process::ExitCode::SUCCESS));
}

#[test]
fn buckets_cover_the_window_and_add_up_to_the_totals() {
    let server = Server::start();
    let (project, _, key) = server.tenant("t");
    for hours in [0, 5, 30, 49] {
        server.clock.advance(std::time::Duration::from_secs(hours * 3600));
        server.call(Method::GET, "/v1/models", Some(&key), None).ok();
    }
    for (width, expected_count) in [("1d", 31), ("1h", 24 * 30 + 1)] {
        let report = usage(&server, &project, &format!("?bucket_width={width}"));
        let buckets = report["data"].as_array().unwrap();
        assert!(buckets.len() >= expected_count - 1 && buckets.len() <= expected_count + 1, "{}", buckets.len());
        let sum: u64 = buckets.iter().map(|bucket| bucket["results"][0]["requests"].as_u64().unwrap()).sum();
        assert_eq!(sum, 4);
        assert_eq!(report["requests"], 4);
        assert_eq!(buckets[0]["start_time"], report["start_time"]);
        assert_eq!(buckets.last().unwrap()["end_time"], report["end_time"]);
        for pair in buckets.windows(2) {
            assert_eq!(pair[0]["end_time"], pair[1]["start_time"]);
        }
    }
    let strict = server.get(&format!("/openai/v1/projects/{project}/usage")).ok();
    assert_eq!(strict["object"], "page");
    assert!(strict["data"][0]["start_time"].is_i64());
}

#[test]
fn a_window_of_any_length_is_accepted_without_a_bucket_width() {
    let server = Server::start();
    let (project, _, key) = server.tenant("t");
    server.call(Method::GET, "/v1/models", Some(&key), None).ok();
    let windows = [
        ("", "1d"),
        ("?start_time=2000-01-01T12:00:00Z&end_time=2040-01-01T00:00:00Z", "10d"),
        ("?start_time=1970-01-01T00:00:00Z&end_time=9999-12-30T00:00:00Z", "1956d"),
    ];
    for (query, width) in windows {
        let report = usage(&server, &project, query);
        assert_eq!((&report["requests"], &report["bucket_width"]), (&json!(1), &json!(width)), "{query}");
        let buckets = report["data"].as_array().unwrap();
        assert!(buckets.len() <= 1_500, "{}", buckets.len());
        let sum: u64 = buckets.iter().map(|bucket| bucket["results"][0]["requests"].as_u64().unwrap()).sum();
        assert_eq!(sum, 1);
        assert_eq!(buckets[0]["start_time"], report["start_time"]);
        assert_eq!(buckets.last().unwrap()["end_time"], report["end_time"]);
        for pair in buckets.windows(2) {
            assert_eq!(pair[0]["end_time"], pair[1]["start_time"]);
        }
    }
}

#[test]
fn csv_usage_has_a_line_per_bucket_and_group() {
    let server = Server::start();
    let (project, _, key) = server.tenant("t");
    chat(&server, &key, 2);
    server.call(Method::GET, "/v1/models", Some(&key), None).ok();
    let path = format!("/v1/projects/{project}/usage?group_by=endpoint");
    let response = server.raw(Method::GET, &path, Some(&key), &[("accept", "text/csv")], None);
    assert_eq!(response.headers["content-type"], "text/csv; charset=utf-8");
    let lines: Vec<&str> = response.text.lines().collect();
    assert!(lines[0].starts_with("start_time,end_time,model,api_key_id,endpoint,requests,succeeded,"));
    assert_eq!(lines.len(), 3, "{}", response.text);
    assert!(lines[1].contains("GET /models,1,1,0,0,0,0,0,0,0,0,0.0"), "{}", lines[1]);
}

#[test]
fn invalid_windows_are_refused_by_name() {
    let server = Server::start();
    let (project, _, key) = server.tenant("t");
    let cases = [
        ("start_time=2026-01-02T00:00:00Z&end_time=2026-01-02T00:00:00Z", "start_time"),
        ("start_time=yesterday", "start_time"),
        ("end_time=2026-01-02", "end_time"),
        ("bucket_width=1w", "bucket_width"),
        ("bucket_width=1m", "bucket_width"),
        ("bucket_width=1d&start_time=2000-01-01T00:00:00Z", "bucket_width"),
        ("group_by=user", "group_by"),
    ];
    for (query, param) in cases {
        let path = format!("/v1/projects/{project}/usage?{query}");
        let refused = server.call(Method::GET, &path, Some(&key), None).error_fields();
        assert_eq!(refused, (400, "invalid_parameter".to_owned(), Some(param.to_owned())), "{query}");
    }
    // The same parameters in the body of the GET.
    let body = json!({ "start_time": "2026-01-02T00:00:00Z", "end_time": "2026-01-03T00:00:00Z" });
    let report = server.call(Method::GET, &format!("/v1/projects/{project}/usage"), Some(&key), Some(&body)).ok();
    assert_eq!(report["start_time"], "2026-01-02T00:00:00.000Z");
}

#[test]
fn storage_is_reported_for_now_and_for_the_end_of_the_window() {
    let server = Server::start();
    let (project, _, key) = server.tenant("t");
    let say = |text: &str| json!({ "messages": [{ "role": "user", "content": text }] });
    let call =
        |method: Method, path: &str, body: Option<Value>| server.call(method, path, Some(&key), body.as_ref()).ok();
    let timestamp = || {
        server.clock.advance(std::time::Duration::from_secs(3600));
        outpost::clock_rng::ClockRng::now(&*server.clock)
    };
    let empty = timestamp();
    let id = call(Method::POST, "/v1/conversations", Some(say("abc")))["id"].as_str().unwrap().to_owned();
    let small = timestamp();
    call(Method::POST, &format!("/v1/conversations/{id}/messages"), Some(say(&"x".repeat(1000))));
    let large = timestamp();
    let at_end = |end: outpost::clock_rng::Timestamp| {
        let storage = usage(&server, &project, &format!("?end_time={end}"))["storage"].clone();
        (storage["bytes_at_end"].as_u64().unwrap(), storage["bytes"].as_u64().unwrap())
    };
    let one = r#"{"role":"user","content":"abc"}"#.len() as u64;
    let both = 2 * one + 997;
    assert_eq!(at_end(empty), (0, both));
    assert_eq!(at_end(small), (one, both));
    assert_eq!(at_end(large), (both, both));
    call(Method::DELETE, &format!("/v1/conversations/{id}"), None);
    assert_eq!(at_end(large), (both, 0));
    assert_eq!(at_end(timestamp()), (0, 0));
}
