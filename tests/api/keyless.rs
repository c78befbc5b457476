//! Requests without an API key, with `--keyless-project`: only from programs on this machine, and only to call models.

use std::net::UdpSocket;
use std::sync::Arc;

use outpost::app::App;
use reqwest::Method;
use serde_json::{Value, json};

use crate::clock::ShiftedClock;
use crate::server::{Headers, MODEL, Response, Server, config};
use crate::tiny_model::TinyModel;

fn start() -> Server {
    Server::start_configured(&TinyModel::default(), |config| {
        config.keyless_project = Some("default".to_owned());
        config.allowed_hosts = vec!["host.docker.internal".to_owned()];
        config.cors_origins = vec!["*".parse().unwrap(), "https://app.example.org".parse().unwrap()];
    })
}

fn tags(server: &Server, headers: Headers<'_>) -> Response {
    server.raw(Method::GET, "/api/tags", None, headers, None)
}

fn post(server: &Server, path: &str, body: &Value) -> Response {
    server.call(Method::POST, path, None, Some(body))
}

fn chat() -> Value {
    let messages = json!([{ "role": "user", "content": "the sea" }]);
    json!({ "model": MODEL, "messages": messages, "stream": false })
}

/// The key of such requests.
fn own_key(server: &Server) -> Value {
    let project = server.get("/v1/me").ok()["project_id"].as_str().unwrap().to_owned();
    let keys = server.get(&format!("/v1/api-keys?project_id={project}")).ok();
    let mut found = keys["data"].as_array().unwrap().iter().filter(|key| key["name"] == "requests without a key");
    let key = found.next().unwrap_or_else(|| panic!("{keys}")).clone();
    assert!(found.next().is_none(), "{keys}");
    key
}

#[test]
fn local_programs_may_call_models_without_a_key() {
    let server = start();
    tags(&server, &[]).ok();
    tags(&server, &[("authorization", "Bearer "), ("host", "localhost:8080")]).ok();
    tags(&server, &[("host", "[::1]:8080"), ("sec-fetch-site", "none")]).ok();
    tags(&server, &[("host", "host.docker.internal:8080")]).ok();
    tags(&server, &[("origin", "https://app.example.org")]).ok();
    let whole = post(&server, "/api/chat", &chat()).ok();
    assert_eq!(whole["done"], true);
    // VS Code chats there after it has listed the models.
    post(&server, "/v1/chat/completions", &chat()).ok();
    for path in ["/v1/models", "/openai/v1/models"] {
        server.raw(Method::GET, path, None, &[], None).ok();
    }
    // Its key is one of the project, which is metered and may only call models.
    let key = own_key(&server);
    assert_eq!(key["scopes"], json!(["inference"]));
    let project = key["project_id"].as_str().unwrap();
    let report = server.get(&format!("/v1/projects/{project}/usage?group_by=api_key_id")).ok();
    let groups = report["groups"].as_array().unwrap();
    let row = groups.iter().find(|row| row["api_key_id"] == key["id"]).unwrap_or_else(|| panic!("{report}"));
    assert_eq!(row["requests"], 9);
    assert_eq!(post(&server, "/api/chat", &json!({ "model": MODEL, "keep_alive": 0 })).ok()["done_reason"], "unload");
    assert_eq!(server.get(&format!("/v1/models/{MODEL}")).ok()["loaded"], true, "others may use it");
    for (path, body) in [
        ("/api/create", json!({ "model": "x", "from": MODEL })),
        ("/api/copy", json!({ "source": MODEL, "destination": "x" })),
    ] {
        assert_eq!(post(&server, path, &body).error_fields().0, 403);
    }
    let delete = server.call(Method::DELETE, "/api/delete", None, Some(&json!({ "model": MODEL })));
    assert_eq!(delete.error_fields().0, 403);
}

#[test]
fn a_placeholder_for_a_key_counts_as_none() {
    let server = start();
    for headers in [
        &[("authorization", "Bearer ollama")][..],
        &[("authorization", "Bearer sk-no-key-required")],
        &[("x-api-key", "dummy"), ("authorization", "Bearer dummy")],
    ] {
        for path in ["/api/tags", "/v1/models", "/openai/v1/models"] {
            server.raw(Method::GET, path, None, headers, None).ok();
        }
        let body = chat().to_string().into_bytes();
        let headers = [headers, &[("content-type", "application/json")]].concat();
        let chatted = server.raw(Method::POST, "/openai/v1/chat/completions", None, &headers, Some(body)).ok();
        assert_eq!(chatted["object"], "chat.completion");
        let refused = server.raw(Method::GET, "/v1/me", None, &headers, None);
        assert_eq!(refused.error_fields().0, 401, "{headers:?}");
    }
}

#[test]
fn all_other_requests_need_a_key() {
    let server = start();
    for headers in [
        &[("authorization", "Bearer opk_wrong")][..],
        &[("authorization", "Basic eDp5")],
        &[("x-api-key", "opk_wrong")],
        &[("origin", "https://evil.example")],
        &[("origin", "null")],
        &[("sec-fetch-site", "cross-site")],
        &[("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")],
        &[("origin", "https://app.example.org"), ("origin", "https://evil.example")],
        &[("host", "box.local")],
        &[("host", "workstation")],
        &[("host", "10.0.0.1")],
        &[("x-forwarded-for", "127.0.0.1")],
        &[("via", "1.1 proxy")],
    ] {
        assert_eq!(tags(&server, headers).error_fields().0, 401, "{headers:?}");
    }
    assert_eq!(tags(&server, &[("host", "evil.example")]).status, 421);
    for path in ["/v1/me", "/v1/conversations", "/v1/files", "/metrics"] {
        assert_eq!(server.raw(Method::GET, path, None, &[], None).error_fields().0, 401, "{path}");
    }
    for path in ["/v1/conversations", "/v1/agents", "/v1/api-keys"] {
        assert_eq!(post(&server, path, &chat()).error_fields().0, 401, "{path}");
    }
    // It is off unless it is asked for.
    let server = Server::start();
    assert_eq!(tags(&server, &[]).error_fields().0, 401);
}

#[test]
fn requests_from_other_machines_need_a_key() {
    let server = Server::start_configured(&TinyModel::default(), |config| {
        config.keyless_project = Some("default".to_owned());
        config.listen = "0.0.0.0:0".parse().unwrap();
    });
    let port = server.address.port();
    let get = |host: &str| reqwest::blocking::get(format!("http://{host}:{port}/api/tags")).unwrap().status().as_u16();
    assert_eq!(get("127.0.0.1"), 200);
    // An address of this machine that is not loopback, if it has one.
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    if socket.connect("192.0.2.1:9").is_ok() {
        let address = socket.local_addr().unwrap().ip();
        assert_eq!(get(&address.to_string()), 401, "{address}");
    }
}

#[test]
fn revoking_its_key_ends_it_until_the_next_start() {
    let server = start();
    let first = own_key(&server)["id"].as_str().unwrap().to_owned();
    // A restart uses the same key.
    let again =
        |folder| Server::start_in_configured(folder, |config| config.keyless_project = Some("default".to_owned()));
    let server = again(server.stop());
    tags(&server, &[]).ok();
    assert_eq!(own_key(&server)["id"], first);
    server.delete(&format!("/v1/api-keys/{first}")).ok();
    let refused = tags(&server, &[]);
    assert_eq!(refused.error_fields().0, 401);
    assert!(refused.text.contains("revoked"), "{}", refused.text);
    let server = again(server.stop());
    tags(&server, &[]).ok();
}

#[test]
fn an_archived_project_ends_it() {
    let server = Server::start();
    let (project, ..) = server.tenant("local");
    let server = Server::start_in_configured(server.stop(), |config| config.keyless_project = Some("local".to_owned()));
    tags(&server, &[]).ok();
    server.call(Method::POST, &format!("/v1/projects/{project}/archive"), Some(&server.admin), None).ok();
    let refused = tags(&server, &[]);
    assert_eq!(refused.error_fields().0, 401);
    assert!(refused.text.contains("archived"), "{}", refused.text);
}

#[test]
fn a_start_with_an_unusable_project_fails() {
    let server = Server::start();
    let (archived, ..) = server.tenant("old");
    server.call(Method::POST, &format!("/v1/projects/{archived}/archive"), Some(&server.admin), None).ok();
    let [first, _] = ["twice", "twice"].map(|name| server.tenant(name).0);
    let folder = server.stop();
    let error = |project: &str| {
        let config = outpost::config::Config { keyless_project: Some(project.to_owned()), ..config(folder.path()) };
        let system = actix_web::rt::System::new();
        let started = system.block_on(App::start(&config, Arc::new(ShiftedClock::default())));
        started.err().map(|error| error.to_string())
    };
    for (project, reason) in [
        ("none", "there is no project 'none'"),
        ("old", "the project 'old' is archived"),
        (&archived, "is archived"),
        ("twice", "2 projects are named 'twice'; give the ID"),
        ("proj_00000000000000000000000000000000", "there is no project"),
    ] {
        let error = error(project).unwrap_or_else(|| panic!("{project}"));
        assert!(error.starts_with("--keyless-project: ") && error.contains(reason), "{error}");
    }
    assert_eq!(error(&first), None);
}
