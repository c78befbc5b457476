//! OpenAI's SDKs get OpenAI's bodies on `/v1` too; all other clients get the envelope.

use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{MODEL, Server};
use crate::tiny_model::TinyModel;

/// What OpenAI's SDKs send, besides other headers.
const SDK: &[(&str, &str)] = &[("content-type", "application/json"), ("x-stainless-lang", "python")];
const OTHERS: &[(&str, &str)] = &[("content-type", "application/json"), ("user-agent", "OpenAI/Go 1.0")];

fn call(server: &Server, path: &str, headers: &[(&str, &str)], body: Option<Value>) -> Value {
    let method = if body.is_some() { Method::POST } else { Method::GET };
    let body = body.map(|body| body.to_string().into_bytes());
    server.raw(method, path, Some(&server.admin), headers, body).ok()
}

fn calls() -> Vec<(&'static str, &'static str, Option<Value>)> {
    let messages = json!([{ "role": "user", "content": "hello" }]);
    vec![
        (
            "/v1/chat/completions",
            "chat.completion",
            Some(json!({ "model": MODEL, "messages": messages, "max_tokens": 1 })),
        ),
        ("/v1/completions", "text_completion", Some(json!({ "model": MODEL, "prompt": "hello", "max_tokens": 1 }))),
        ("/v1/models", "list", None),
        ("/v1/files", "list", None),
    ]
}

#[test]
fn sdks_get_their_own_format_on_both_mounts() {
    let server = Server::start();
    for (path, object, body) in calls() {
        let ours = call(&server, path, OTHERS, body.clone());
        assert_eq!((&ours["object"], &ours["status"]), (&json!("service.resource"), &json!("succeeded")), "{path}");
        let theirs = call(&server, path, SDK, body);
        assert_eq!((&theirs["object"], theirs.get("status")), (&json!(object), None), "{path}: {theirs}");
    }
}

#[test]
fn the_envelope_can_be_made_strict() {
    let server = Server::start_configured(&TinyModel::default(), |config| config.strict_envelope = true);
    for (path, _, body) in calls() {
        assert_eq!(call(&server, path, SDK, body)["object"], "service.resource", "{path}");
    }
    let (path, object, body) = calls().remove(0);
    assert_eq!(call(&server, &format!("/openai{path}"), SDK, body)["object"], object);
}

#[test]
fn an_idempotent_request_is_the_same_one_in_both_formats() {
    let server = Server::start();
    let body = || Some(json!({ "name": "p", "environment": "test" }));
    let with_key = |headers: &[(&'static str, &'static str)]| [headers, &[("idempotency-key", "one")]].concat();
    let first = call(&server, "/v1/projects", &with_key(OTHERS), body());
    for (path, headers) in [("/v1/projects", SDK), ("/openai/v1/projects", OTHERS)] {
        assert_eq!(call(&server, path, &with_key(headers), body())["id"], first["id"], "{path}");
    }
}

#[test]
fn the_fingerprint_stays_while_the_model_does() {
    let fingerprint = |server: &Server, path: &str, more: Value| {
        let mut body = json!({ "model": MODEL, "max_tokens": 1, "stream": true });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let streamed = server.post(path, &body).text;
        body["stream"] = json!(false);
        let whole = server.post(path, &body).ok();
        let fingerprint = whole["system_fingerprint"].as_str().unwrap().to_owned();
        let field = format!("\"system_fingerprint\":\"{fingerprint}\"");
        let mut chunks = streamed.lines().filter(|line| line.starts_with("data: {"));
        assert!(chunks.all(|chunk| chunk.contains(&field)), "{fingerprint} {streamed}");
        fingerprint
    };
    let both = |server: &Server| {
        let messages = json!({ "messages": [{ "role": "user", "content": "hello" }] });
        let chat = fingerprint(server, "/v1/chat/completions", messages);
        assert_eq!(chat, fingerprint(server, "/v1/completions", json!({ "prompt": "hello" })));
        chat
    };
    let server = Server::start();
    let first = both(&server);
    assert!(first.strip_prefix("fp_").is_some_and(|digits| digits.len() == 16), "{first}");
    let server = Server::start_in(server.stop());
    assert_eq!(both(&server), first);
    let other = Server::start_with(&TinyModel { seed: 2, ..TinyModel::default() });
    assert_ne!(both(&other), first);
}
