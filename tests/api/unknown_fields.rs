//! Fields of requests that the server does not know: refused, or with `--ignore-unknown-fields` left out and named.

use serde_json::{Value, json};

use crate::server::{EMBEDDER, IMAGE_MODEL, MODEL, RERANKER, Server};
use crate::tiny_model::TinyModel;

fn chat(more: Value) -> Value {
    let mut body = json!({
        "model": MODEL, "max_tokens": 8, "temperature": 0, "messages": [{ "role": "user", "content": "the sea" }],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// A call of each endpoint with JSON bodies, without the field.
fn calls() -> [(&'static str, Value); 4] {
    [
        ("/v1/chat/completions", chat(json!({}))),
        ("/openai/v1/chat/completions", chat(json!({}))),
        ("/v1/completions", json!({ "model": MODEL, "prompt": "the sea", "max_tokens": 8, "temperature": 0 })),
        ("/openai/v1/tokenize", json!({ "model": MODEL, "prompt": "the sea" })),
    ]
}

#[test]
fn unknown_fields_are_refused_by_default() {
    let server = Server::start_with(&TinyModel::default());
    for (path, mut body) in calls() {
        server.post(path, &body).ok();
        body["mirostat_tau"] = json!(5);
        let error = server.post(path, &body).error_fields();
        assert_eq!(error, (400, "invalid_parameter".to_owned(), Some("mirostat_tau".to_owned())), "{path}");
    }
}

#[test]
fn unknown_fields_are_named_if_they_are_ignored() {
    let server = Server::start_configured(&TinyModel::default(), |config| config.ignore_unknown_fields = true);
    let content = |body: &Value| body["choices"][0].clone();
    for (path, body) in calls() {
        let plain = server.post(path, &body);
        assert_eq!(plain.header("x-outpost-ignored"), None, "{path}");
        let mut more = body.clone();
        // A field that is null asks for nothing.
        for (name, value) in [("dry_base", Value::Null), ("mirostat_tau", json!(5)), ("wonder\n", json!({ "a": [1] }))]
        {
            more[name] = value;
        }
        let reply = server.post(path, &more);
        assert_eq!(content(&reply.ok()), content(&plain.ok()), "{path}");
        let named = reply.header("x-outpost-ignored").unwrap();
        assert!(named.starts_with("mirostat_tau, wonder") && !named.contains("dry_base"), "{path}: {named}");
    }
    // What changes the output of OpenAI's servers, and a stream.
    let functions = json!([{ "name": "f", "parameters": {} }]);
    let reply = server.post("/openai/v1/chat/completions", &chat(json!({ "functions": functions, "stream": true })));
    assert_eq!((reply.status, reply.header("x-outpost-ignored")), (200, Some("functions")), "{}", reply.text);
    // Known fields are still checked.
    let error = server.post("/v1/chat/completions", &chat(json!({ "temperature": 9 }))).error_fields();
    assert_eq!(error.2.as_deref(), Some("temperature"));
    let project = server.post("/v1/projects", &json!({ "name": "p", "colour": "red" })).error_fields();
    assert_eq!(project.2.as_deref(), Some("colour"), "only calls of models ignore fields");
}

#[test]
fn every_kind_of_model_names_what_it_ignores() {
    let folder = Server::with_all_workloads().stop();
    let server = Server::start_in_configured(folder, |config| config.ignore_unknown_fields = true);
    for (path, body) in [
        ("/v1/embeddings", json!({ "model": EMBEDDER, "input": "a" })),
        ("/v1/rerank", json!({ "model": RERANKER, "query": "a", "documents": ["b"] })),
        ("/v1/images/generations", json!({ "model": IMAGE_MODEL, "prompt": "a", "size": "64x64", "steps": 1 })),
    ] {
        let mut more = body;
        more["wonder"] = json!(1);
        let reply = server.post(path, &more);
        assert_eq!((reply.status, reply.header("x-outpost-ignored")), (200, Some("wonder")), "{path}: {}", reply.text);
    }
}
