//! Upstream models in the models API, in metrics, and when their files change.

use std::fs;

use serde_json::json;

use crate::fake_target::FakeTarget;
use crate::server::{MODEL, Server};
use crate::tiny_model::TinyModel;
use crate::{REMOTE, chat_body, server_with, upstream_toml, write_upstream};

#[test]
fn the_models_api_shows_upstream_models_without_their_addresses() {
    let target = FakeTarget::chatting("ok");
    let text = upstream_toml("kind = \"chat\"\ncontext = 4096", &[target.address]);
    let server = Server::start_configured(&TinyModel::default(), |config| {
        let models = &config.paths.models;
        write_upstream(models, REMOTE, &text);
        write_upstream(models, "vectors", &text.replace("\"chat\"", "\"embedding\"\ndimensions = 8"));
        write_upstream(models, "bad", "kind = \"chat\"\n[[target]]\nurl = \"http://user:secret@host/\"");
        write_upstream(models, "worse", "kind = \"chat\"\nurl = \"http://secret\"");
    });
    let listed = server.get("/v1/models");
    let model =
        |id: &str| listed.ok()["data"].as_array().unwrap().iter().find(|model| model["id"] == id).unwrap().clone();
    let remote = model(REMOTE);
    assert_eq!(
        (&remote["format"], &remote["context_window"], &remote["loaded"]),
        (&json!("upstream"), &json!(4096), &json!(true))
    );
    assert_eq!(remote["capabilities"]["chat_completions"], true);
    assert_eq!(
        (&model("vectors")["capabilities"]["embeddings"], &model(MODEL)["format"]),
        (&json!(true), &json!("gguf"))
    );
    assert_eq!(
        model("bad")["problem"],
        "upstream.toml: target[0]: url must not have a user or a password; use key_file or key_env"
    );
    assert!(model("worse")["problem"].as_str().unwrap().contains("unknown field `url`"));
    let one = server.get(&format!("/v1/models/{REMOTE}"));
    for text in [&listed.text, &one.text] {
        let address = target.address.to_string();
        assert!(
            ![address.as_str(), "127.0.0.1", "there", "secret"].iter().any(|secret| text.contains(secret)),
            "{text}"
        );
    }
    let unusable = server
        .post("/v1/chat/completions", &json!({ "model": "bad", "messages": [{ "role": "user", "content": "x" }] }));
    assert_eq!(unusable.error_fields().1, "model_unavailable");
    server.post(&format!("/v1/models/{REMOTE}/load"), &json!({})).ok();
    // A model of this server is not affected.
    server
        .post(
            "/v1/chat/completions",
            &json!({ "model": MODEL, "max_tokens": 2, "messages": [{ "role": "user", "content": "x" }] }),
        )
        .ok();
}

#[test]
fn a_changed_file_holds_from_the_next_request_on() {
    let (first, second) = (FakeTarget::chatting("first"), FakeTarget::chatting("second"));
    let server = server_with(&[first.address]);
    let models = server.folder.path().join("models");
    let content =
        || server.post("/v1/chat/completions", &chat_body(json!({}))).ok()["choices"][0]["message"]["content"].clone();
    assert_eq!(content(), "first");
    fs::write(models.join("key"), "a-key").unwrap();
    let text = upstream_toml("kind = \"chat\"", &[second.address]);
    write_upstream(&models, REMOTE, &format!("{text}key_file = \"../key\"\n"));
    assert_eq!(content(), "second");
    assert_eq!(second.last().header("authorization"), Some("Bearer a-key"));
    fs::write(models.join("key"), "another-key").unwrap();
    assert_eq!(content(), "second");
    assert_eq!(second.last().header("authorization"), Some("Bearer another-key"));
    fs::remove_dir_all(models.join(REMOTE)).unwrap();
    assert_eq!(server.post("/v1/chat/completions", &chat_body(json!({}))).status, 404);
}

#[test]
fn keys_need_permission_for_upstream_models() {
    let target = FakeTarget::chatting("ok");
    let server = server_with(&[target.address]);
    let project = server.get("/v1/projects").ok()["data"][0]["id"].clone();
    let key = server.post("/v1/api-keys", &json!({ "name": "k", "project_id": project, "models": [MODEL] })).ok();
    let secret = key["secret"].as_str().unwrap();
    let response =
        server.call(reqwest::Method::POST, "/v1/chat/completions", Some(secret), Some(&chat_body(json!({}))));
    assert_eq!(response.error_fields().1, "model_not_allowed");
    assert_eq!(target.count(), 0);
}

#[test]
fn metrics_name_hosts_but_neither_paths_nor_keys() {
    let target = FakeTarget::start(|number, _, reply| match number {
        0 => reply.chat(&["ok"], None),
        _ => reply.status(500, "", "{}"),
    });
    let server = server_with(&[target.address]);
    let models = server.folder.path().join("models");
    fs::write(models.join("key"), "a-key").unwrap();
    let text = upstream_toml("kind = \"chat\"", &[target.address]).replace("/v1", "/hidden/v1");
    write_upstream(&models, REMOTE, &format!("{text}key_file = \"../key\"\n"));
    let statuses = [0, 1].map(|_| server.post("/v1/chat/completions", &chat_body(json!({}))).status);
    assert_eq!(statuses, [200, 503]);
    let metrics = server.get("/metrics").text;
    let label = format!("{{model=\"remote\",target=\"{}\"", target.address);
    for line in [
        format!("outpost_upstream_requests_total{label}}} 2"),
        format!("outpost_upstream_failures_total{label},reason=\"status\"}} 1"),
        format!("outpost_upstream_breaker_open{label}}} 0"),
        format!("outpost_upstream_requests_running{label}}} 0"),
    ] {
        assert!(metrics.contains(&line), "{line} is not in\n{metrics}");
    }
    assert!(metrics.contains("outpost_upstream_time_to_first_byte_seconds_count"));
    assert!(!metrics.contains("a-key") && !metrics.contains("hidden"), "{metrics}");
    assert_eq!(metrics.matches("# EOF").count(), 1);
    assert!(metrics.ends_with("# EOF\n"));
}
