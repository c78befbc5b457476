//! Targets that tell token counts which cannot be true.

use serde_json::{Value, json};

use crate::chat::records;
use crate::fake_target::{FakeTarget, chunk};
use crate::server::{MODEL, Server};
use crate::{REMOTE, chat_body, server_with, server_with_settings};

/// More tokens than anything has.
const LIE: u64 = 4_294_967_295;

/// Limits the rate of the only project.
fn limit_tokens(server: &Server, tokens_per_minute: u64) {
    let project = server.get("/v1/projects").ok()["data"][0]["id"].as_str().unwrap().to_owned();
    let limits = json!({ "tokens_per_minute": tokens_per_minute });
    server.patch(&format!("/v1/projects/{project}/rate-limits"), &limits).ok();
}

/// Checks that the project can still use a model of this server.
fn assert_not_locked(server: &Server, case: &str) {
    let body = json!({ "model": MODEL, "max_tokens": 2, "messages": [{ "role": "user", "content": "x" }] });
    let response = server.post("/v1/chat/completions", &body);
    assert_eq!(response.status, 200, "{case}: {:?} {}", response.header("retry-after"), response.text);
}

#[test]
fn a_false_usage_of_a_text_is_estimated() {
    for (case, prompt, completion) in [
        ("completion", 3, LIE),
        ("one more than the limit", 3, 5 + 16 + 1),
        ("prompt", LIE, 2),
        ("more than fits", 3, 1 << 40),
        ("both", LIE, LIE),
        ("nothing", 0, 0),
        ("no completion", 3, 0),
    ] {
        let usage = json!({ "prompt_tokens": prompt, "completion_tokens": completion });
        let target = FakeTarget::start(move |_, _, reply| reply.chat(&["good", " day"], Some(usage.clone())));
        let server = server_with(&[target.address]);
        limit_tokens(&server, 50_000);
        for (path, body) in [
            ("/v1/chat/completions", chat_body(json!({ "max_tokens": 5 }))),
            ("/v1/messages", chat_body(json!({ "max_tokens": 5 }))),
        ] {
            let answer = server.post(path, &body).ok();
            let usage = &answer["usage"];
            let counts = ["prompt_tokens", "input_tokens"].iter().find_map(|name| usage[*name].as_u64());
            // Eleven bytes in one message.
            assert_eq!(counts, Some(7), "{case}: {answer}");
        }
        assert_not_locked(&server, case);
        let rows = records(server.stop().path());
        assert_eq!(rows, [(7, 2, true, "succeeded"), (7, 2, true, "succeeded")], "{case}");
    }
}

#[test]
fn a_false_usage_of_a_completion_is_estimated() {
    let target = FakeTarget::start(|_, _, reply| {
        reply.begin_events();
        reply.event(&json!({ "choices": [{ "index": 0, "text": "day", "finish_reason": "stop" }] }));
        reply.event(&json!({ "choices": [], "usage": { "prompt_tokens": 3, "completion_tokens": LIE } }));
    });
    let server = server_with(&[target.address]);
    limit_tokens(&server, 50_000);
    let answer = server.post("/v1/completions", &json!({ "model": REMOTE, "prompt": "eight by" })).ok();
    assert_eq!(answer["usage"]["total_tokens"], 2 + 1);
    assert_not_locked(&server, "completion");
}

#[test]
fn a_false_usage_of_inputs_is_estimated() {
    let embed = json!({ "model": REMOTE, "input": "eight by" });
    let rerank = json!({ "model": REMOTE, "query": "four", "documents": ["four"] });
    let answer = |name: &str, usage: Value| match name {
        "embedding" => json!({ "data": [{ "embedding": [1, 0] }], "usage": usage }),
        _ => json!({ "results": [{ "index": 0, "score": 1 }], "usage": usage }),
    };
    for (kind, path, body) in [("embedding", "/v1/embeddings", &embed), ("rerank", "/v1/rerank", &rerank)] {
        for usage in
            [json!({ "prompt_tokens": LIE }), json!({ "total_tokens": 1_u64 << 40 }), json!({ "prompt_tokens": 0 })]
        {
            let (text, case) = (answer(kind, usage.clone()), format!("{kind}: {usage}"));
            let target = FakeTarget::start(move |_, _, reply| reply.json(&text));
            let server = server_with_settings(&format!("kind = \"{kind}\""), &[target.address], "");
            limit_tokens(&server, 50_000);
            let told = server.post(path, body).ok();
            assert_eq!(told["usage"]["total_tokens"], 2, "{case}: {told}");
            assert_not_locked(&server, &case);
            let rows = records(server.stop().path());
            assert_eq!(rows, [(2, 0, true, "succeeded")], "{case}");
        }
    }
}

#[test]
fn hidden_reasoning_within_the_limit_is_counted_as_told() {
    let usage = json!({
        "prompt_tokens": 30, "completion_tokens": 900, "completion_tokens_details": { "reasoning_tokens": 890 },
        "prompt_tokens_details": { "cached_tokens": 4000 },
    });
    let target = FakeTarget::start(move |_, _, reply| reply.chat(&["ok"], Some(usage.clone())));
    let server = server_with(&[target.address]);
    let answer = server.post("/v1/chat/completions", &chat_body(json!({ "max_tokens": 1000 }))).ok();
    assert_eq!(answer["usage"]["completion_tokens_details"]["reasoning_tokens"], 890, "{answer}");
    assert_eq!(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 30, "{answer}");
    assert_eq!(records(server.stop().path()), [(30, 900, false, "succeeded")]);
}

#[test]
fn a_text_beyond_the_limit_of_the_request_is_counted_as_far_as_it_has_arrived() {
    let target = FakeTarget::start(|_, _, reply| {
        reply.begin_events();
        reply.event(&chunk(&"word ".repeat(100), Some("stop")));
        reply.event(&json!({ "choices": [], "usage": { "prompt_tokens": 3, "completion_tokens": 100 } }));
    });
    let server = server_with(&[target.address]);
    server.post("/v1/chat/completions", &chat_body(json!({ "max_tokens": 5 }))).ok();
    assert_eq!(records(server.stop().path()), [(3, 100, false, "succeeded")]);
}
