//! Models that an admin installs over the API, from a small server that plays a hub. No network access.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use outpost::catalog::Catalog;
use outpost::display::hex;
use outpost::download::Authorization;
use outpost::hub::HubSettings;
use reqwest::Method;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

use crate::hub_server::{Fault, HubServer};
use crate::server::{Response, Server};
use crate::tiny_model::{self, TinyModel};
use crate::wait::until;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
const MODEL: &str = "hf:u/tiny-GGUF:F32";
const FILE: &str = "Tiny-F32.gguf";
const NAME: &str = "tiny-f32";
/// The size from which on a file has parts: one of 32 MiB, and one of 8.
const LARGE: usize = 40 << 20;

/// A hub with the repository `u/tiny-GGUF`.
struct Hub {
    server: HubServer,
    siblings: Vec<Value>,
}

impl Hub {
    fn with(files: &[(&str, &[u8])]) -> Self {
        let mut hub = Self { server: HubServer::start(), siblings: Vec::new() };
        for (name, content) in files {
            hub.list(name, content.len(), &sha256(content));
            let headers = vec![("X-Linked-Size", content.len().to_string())];
            hub.server.add_with_headers(&path(name), *content, headers);
        }
        hub
    }

    /// With one tiny model, padded to this size.
    fn of_size(bytes: usize) -> Self {
        let mut model = tiny();
        model.resize(bytes.max(model.len()), 0);
        Self::with(&[(FILE, &model)])
    }

    /// Adds a file to the list.
    fn list(&mut self, name: &str, size: usize, hash: &str) {
        self.siblings.push(json!({ "rfilename": name, "size": size, "lfs": { "sha256": hash, "size": size } }));
        let answer = json!({
            "sha": COMMIT, "gated": false, "cardData": { "license": "apache-2.0" }, "siblings": self.siblings,
        });
        self.server.add("/api/models/u/tiny-GGUF/revision/main", answer.to_string());
    }

    fn settings(&self) -> HubSettings {
        HubSettings {
            endpoint: self.server.url(""),
            token: None,
            ollama_registry: self.server.url(""),
            oci_credentials: None,
            oci_credentials_host: None,
            allowed_hosts: Vec::new(),
            connections: 2,
        }
    }

    fn start_server(&self) -> Server {
        Server::start_configured(&TinyModel::default(), |config| config.api_pulls = Some(self.settings()))
    }

    /// The next requests of the file: the probe and the header succeed, and then these faults come.
    fn fail_download(&self, faults: impl IntoIterator<Item = Fault>) {
        let fine = [Fault::CutAfter(1 << 30), Fault::CutAfter(1 << 30)];
        self.server.fail_next(&path(FILE), fine.into_iter().chain(faults));
    }
}

fn path(name: &str) -> String {
    format!("/u/tiny-GGUF/resolve/{COMMIT}/{name}")
}

fn tiny() -> Vec<u8> {
    tiny_model::bytes(&TinyModel { seed: 7, ..TinyModel::default() })
}

fn sha256(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

fn pull(server: &Server, more: Value) -> Response {
    let mut body = json!({ "model": MODEL });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.post("/v1/models/pull", &body)
}

/// Queues a pull and returns its ID.
fn begin(server: &Server) -> String {
    let response = pull(server, json!({}));
    assert_eq!(response.status, 202, "{}", response.text);
    response.json()["id"].as_str().unwrap().to_owned()
}

fn read(server: &Server, id: &str) -> Value {
    server.get(&format!("/v1/model-pulls/{id}")).ok()
}

fn wait_for(server: &Server, id: &str, holds: impl Fn(&Value) -> bool) -> Value {
    until(|| format!("the pull is {}", read(server, id)), || holds(&read(server, id)));
    read(server, id)
}

fn wait_for_state(server: &Server, id: &str, state: &str) -> Value {
    wait_for(server, id, |pull| pull["state"] == state)
}

/// The data of server-sent events, without the mark of the end.
fn events(response: &Response) -> Vec<Value> {
    assert_eq!((response.status, response.header("content-type")), (200, Some("text/event-stream; charset=utf-8")));
    let (events, end) = response.text.trim_end().rsplit_once("\n\n").unwrap();
    assert_eq!(end, "data: [DONE]");
    let data = events.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    data.map(|text| serde_json::from_str(text).unwrap()).collect()
}

fn audit(server: &Server) -> Vec<Value> {
    server.get("/v1/audit-events?action=model_pull").ok()["data"].as_array().unwrap().clone()
}

fn actions(server: &Server) -> Vec<String> {
    audit(server).iter().map(|row| row["action"].as_str().unwrap().to_owned()).collect()
}

fn chat(server: &Server, model: &str) -> Response {
    let message = json!({ "role": "user", "content": "hello" });
    server.post("/v1/chat/completions", &json!({ "model": model, "max_tokens": 2, "messages": [message] }))
}

/// The routes of pulls, with a body.
fn routes() -> [(Method, String, Option<Value>); 4] {
    let one = format!("/v1/model-pulls/pull_{}", "0".repeat(32));
    [
        (Method::POST, "/v1/models/pull".to_owned(), Some(json!({ "model": MODEL }))),
        (Method::GET, "/v1/model-pulls".to_owned(), None),
        (Method::GET, one.clone(), None),
        (Method::DELETE, one, None),
    ]
}

#[test]
fn without_the_option_nothing_is_pulled() {
    let server = Server::start();
    let (_, _, tenant) = server.tenant("t");
    for (method, path, body) in routes() {
        let refused = server.call(method.clone(), &path, Some(&server.admin), body.as_ref());
        assert_eq!(refused.error_fields(), (403, "pulls_disabled".to_owned(), None), "{method} {path}");
        assert!(refused.text.contains("--allow-pull"), "{}", refused.text);
        let not_admin = server.call(method, &path, Some(&tenant), body.as_ref());
        assert_eq!(not_admin.error_fields(), (403, "insufficient_scope".to_owned(), None));
    }
    assert_eq!(pull(&server, json!({ "dry_run": true })).error_fields().1, "pulls_disabled");
    assert!(!server.get("/metrics").text.contains("outpost_model_pulls"));
}

#[test]
fn only_admins_pull() {
    let hub = Hub::of_size(0);
    let server = hub.start_server();
    let (_, _, tenant) = server.tenant("t");
    for (method, path, body) in routes() {
        let refused = server.call(method, &path, Some(&tenant), body.as_ref());
        assert_eq!(refused.error_fields(), (403, "insufficient_scope".to_owned(), None), "{path}");
    }
    let ollama = server.call(Method::POST, "/api/pull", Some(&tenant), Some(&json!({ "model": "hf.co/u/tiny-GGUF" })));
    assert_eq!(ollama.error_fields().0, 403);
    assert!(hub.server.requests().is_empty(), "no connection was opened");
}

#[test]
fn a_stream_reports_the_progress_and_ends_with_the_model() {
    let hub = Hub::of_size(0);
    for mount in ["/v1", "/openai/v1"] {
        let server = hub.start_server();
        let body = json!({ "model": "hf.co/u/tiny-GGUF", "stream": true });
        let events = events(&server.post(&format!("{mount}/models/pull"), &body));
        let last = events.last().unwrap();
        assert_eq!((&last["object"], &last["status"]), (&json!("model.pull"), &json!("succeeded")), "{last}");
        let size = json!(tiny().len());
        assert_eq!((&last["total_bytes"], &last["completed_bytes"]), (&size, &size));
        assert_eq!((&last["name"], &last["license"]), (&json!(NAME), &json!("apache-2.0")));
        assert_eq!((&last["revision"], &last["model"]), (&json!(COMMIT), &json!("hf:u/tiny-GGUF")));
        let model = &last["installed_model"];
        assert_eq!((&model["id"], &model["capabilities"]["chat_completions"]), (&json!(NAME), &json!(true)));
        let states: Vec<&str> = events.iter().map(|event| event["status"].as_str().unwrap()).collect();
        let known = ["queued", "resolving", "downloading", "verifying", "installing", "succeeded"];
        let order: Vec<_> = states.iter().map(|state| known.iter().position(|one| one == state).unwrap()).collect();
        assert!(order.is_sorted(), "{states:?}");
        assert!(events.iter().all(|event| event["id"] == last["id"] && event["error"].is_null()));

        assert_eq!(chat(&server, NAME).status, 200);
        let listed = server.get(&format!("{mount}/model-pulls")).ok();
        assert_eq!((&listed["data"][0]["id"], &listed["data"][0]["status"]), (&last["id"], &json!("succeeded")));
        let metrics = server.get("/metrics").text;
        assert!(metrics.contains("outpost_model_pulls_ended_total{result=\"succeeded\"} 1"), "{metrics}");
        assert!(metrics.contains(&format!("outpost_model_pulls_installed_bytes_total {size}")), "{metrics}");
        assert_eq!(metrics.matches("# EOF").count(), 1);
        // Once more: it is installed already.
        let again = pull(&server, json!({ "stream": true }));
        assert_eq!(self::events(&again).last().unwrap()["status"], "succeeded", "{}", again.text);
    }
}

#[test]
fn every_pull_is_in_the_audit_log() {
    let hub = Hub::of_size(0);
    let server = hub.start_server();
    let id = begin(&server);
    wait_for_state(&server, &id, "succeeded");
    let rows = audit(&server);
    assert_eq!(actions(&server), ["model_pull.succeeded", "model_pull.requested"]);
    let key = &server.get("/v1/me").ok()["id"];
    assert!(rows.iter().all(|row| row["target"] == id && row["actor"] == *key), "{rows:?}");
    assert_eq!(rows[1]["detail"], json!({ "model": MODEL }));
    let detail = &rows[0]["detail"];
    assert_eq!((&detail["name"], &detail["bytes"]), (&json!(NAME), &json!(tiny().len())));
    assert_eq!((&detail["license"], &detail["revision"]), (&json!("apache-2.0"), &json!(COMMIT)));
}

#[test]
fn an_equal_request_joins_the_pull() {
    let hub = Hub::of_size(0);
    hub.fail_download([Fault::StallAfter(100)]);
    let server = hub.start_server();
    let id = begin(&server);
    wait_for_state(&server, &id, "downloading");
    let other = server.post("/v1/models/pull", &json!({ "model": "https://huggingface.co/u/tiny-GGUF:F32" }));
    assert_eq!((other.status, &other.json()["id"]), (202, &json!(id)));
    // Another name is another pull, which waits.
    let second = pull(&server, json!({ "name": "second" })).json();
    assert_eq!(second["state"], "queued");
    let ids = |server: &Server| -> Vec<Value> {
        let pulls = server.get("/v1/model-pulls").ok();
        pulls["data"].as_array().unwrap().iter().map(|pull| pull["id"].clone()).collect()
    };
    assert_eq!(ids(&server), [second["id"].clone(), json!(id)]);
    assert_eq!(actions(&server), ["model_pull.requested"; 2]);
    // A client that leaves does not end it.
    drop(server.begin("/v1/models/pull", &server.admin, &json!({ "model": MODEL, "stream": true })));
    assert_eq!(read(&server, &id)["state"], "downloading");

    let waiting = second["id"].as_str().unwrap();
    assert_eq!(server.delete(&format!("/v1/model-pulls/{waiting}")).ok()["state"], "cancelled");
    assert_eq!(server.delete(&format!("/v1/model-pulls/{id}")).ok()["state"], "cancelled");
    let again = begin(&server);
    assert_ne!(again, id, "a cancelled pull is not joined");
    wait_for_state(&server, &again, "succeeded");
}

#[test]
fn a_cancelled_pull_is_continued_by_the_next() {
    let hub = Hub::of_size(LARGE);
    // The third request only asks for the length. Then one part arrives, and the other one does not.
    hub.fail_download([Fault::CutAfter(1 << 30), Fault::StallAfter(1 << 20), Fault::CutAfter(1 << 30)]);
    let server = hub.start_server();
    let id = begin(&server);
    wait_for(&server, &id, |pull| pull["completed_bytes"].as_u64().unwrap() > 8 << 20);
    // The shorter part is complete once no further bytes come.
    let shorter = (8 << 20) + (1 << 20);
    wait_for(&server, &id, |pull| {
        let done = pull["completed_bytes"].as_u64().unwrap();
        done == shorter || done == (32 << 20) + (1 << 20)
    });
    let before = Instant::now();
    let cancelled = server.delete(&format!("/v1/model-pulls/{id}")).ok();
    assert!(before.elapsed() < Duration::from_secs(5), "{:?}", before.elapsed());
    assert_eq!((&cancelled["state"], &cancelled["error"]["code"]), (&json!("cancelled"), &json!("conflict")));
    assert_eq!(actions(&server)[0], "model_pull.cancelled");
    let refused = server.delete(&format!("/v1/model-pulls/{id}")).error_fields();
    assert_eq!(refused, (409, "conflict".to_owned(), None));
    assert_eq!(server.get(&format!("/v1/models/{NAME}")).status, 404);

    hub.server.forget_requests();
    let again = begin(&server);
    wait_for_state(&server, &again, "succeeded");
    let ranges: Vec<_> = hub.server.requests_for(&path(FILE)).iter().filter_map(|it| it.range()).collect();
    let parts = [(0, (32 << 20) - 1), (32 << 20, LARGE - 1)];
    let fetched: Vec<_> = parts.iter().filter(|part| ranges.contains(part)).collect();
    assert_eq!(fetched.len(), 1, "only the missing part is fetched: {ranges:?}");
    assert_eq!(chat(&server, NAME).status, 200);
}

#[test]
fn a_server_that_stops_ends_its_pull_and_the_next_one_goes_on() {
    let hub = Hub::of_size(0);
    hub.fail_download([Fault::StallAfter(100)]);
    let server = hub.start_server();
    let id = begin(&server);
    wait_for_state(&server, &id, "downloading");
    let waiting = pull(&server, json!({ "name": "second" })).json()["id"].clone();
    let mut follower = server.begin("/v1/models/pull", &server.admin, &json!({ "model": MODEL, "stream": true }));
    let mut text = String::new();
    while !text.contains("data: ") {
        let mut bytes = [0; 4096];
        let read = follower.read(&mut bytes).unwrap();
        text.push_str(std::str::from_utf8(&bytes[..read]).unwrap());
    }
    let before = Instant::now();
    server.begin_stop();
    follower.read_to_string(&mut text).unwrap();
    for part in [&id, "\"status\":\"cancelled\"", "\"code\":\"shutting_down\"", "data: [DONE]"] {
        assert!(text.contains(part), "'{part}' is not in {text}");
    }
    let folder = server.stop();
    assert!(before.elapsed() < Duration::from_secs(10), "{:?}", before.elapsed());

    let server = Server::start_in_configured(folder, |config| config.api_pulls = Some(hub.settings()));
    assert_eq!(server.get("/v1/model-pulls").ok()["data"], json!([]));
    assert_eq!(server.get(&format!("/v1/model-pulls/{id}")).error_fields().0, 404);
    let rows = audit(&server);
    let ended: Vec<_> = rows.iter().filter(|row| row["action"] == "model_pull.cancelled").collect();
    assert_eq!(ended.len(), 2, "{rows:?}");
    assert!(ended.iter().all(|row| row["actor"].is_null()) && ended.iter().any(|row| row["target"] == waiting));
    let again = begin(&server);
    wait_for_state(&server, &again, "succeeded");
}

#[test]
fn failures_are_reported_and_install_nothing() {
    let mut hub = Hub::of_size(0);
    hub.list("other-Q8_0.gguf", 1000, &"0".repeat(64));
    hub.fail_download([Fault::WrongBytes]);
    let server = hub.start_server();
    let failed = |more: Value| {
        let id = pull(&server, more).json()["id"].as_str().unwrap().to_owned();
        let pull = wait_for_state(&server, &id, "failed");
        assert_eq!((&pull["state"], pull["ended_at"].is_string()), (&json!("failed"), true));
        let error = &pull["error"];
        (error["code"].as_str().unwrap().to_owned(), error["message"].as_str().unwrap().to_owned())
    };
    let (code, message) = failed(json!({}));
    assert!(code == "pull_failed" && message.contains("has the hash"), "{code}: {message}");
    let (code, message) = failed(json!({ "model": "hf:u/none" }));
    assert!(code == "not_found" && message.contains("no repository 'u/none'"), "{code}: {message}");
    let (code, message) = failed(json!({ "model": "hf:u/tiny-GGUF:Q2_K" }));
    assert!(code == "invalid_parameter" && message.contains("it has: F32, Q8_0"), "{code}: {message}");
    let (code, message) = failed(json!({ "sha256": "1".repeat(64) }));
    assert!(
        code == "invalid_parameter" && message.starts_with("the given sha256 of Tiny-F32.gguf is 111"),
        "{code}: {message}"
    );
    let (code, message) = failed(json!({ "name": crate::server::MODEL }));
    assert!(code == "conflict" && message.contains("send 'force' to replace it"), "{code}: {message}");
    assert_eq!(server.get("/v1/models").ok()["data"].as_array().unwrap().len(), 1);
    let rows = audit(&server);
    let row = rows.iter().find(|row| row["action"] == "model_pull.failed").unwrap();
    assert_eq!(row["detail"]["error"]["code"], "conflict", "{row}");
    assert!(server.get("/metrics").text.contains("outpost_model_pulls_ended_total{result=\"failed\"} 5"));
}

#[test]
fn requests_that_cannot_be_right_are_refused_at_once() {
    let hub = Hub::of_size(0);
    let server = hub.start_server();
    for (more, param, text) in [
        (json!({ "model": "ftp://x/y" }), "model", "hf:USER/REPO"),
        (json!({ "sha256": "12" }), "sha256", "64 hexadecimal digits"),
        (json!({ "model": "all-minilm-l6-v2", "name": "n" }), "name", "not for models of the catalog"),
        (json!({ "model": "all-minilm-l6-v2", "force": true }), "force", "not for models of the catalog"),
        (json!({ "stream": true, "dry_run": true }), "stream", "dry_run"),
        (json!({ "endpoint": "http://10.0.0.1" }), "endpoint", "endpoint"),
    ] {
        let refused = pull(&server, more.clone());
        assert_eq!(refused.error_fields(), (400, "invalid_parameter".to_owned(), Some(param.to_owned())), "{more}");
        assert!(refused.text.contains(text), "{}", refused.text);
    }
    let unknown = pull(&server, json!({ "model": "no-such-model" }));
    assert_eq!(unknown.error_fields(), (404, "not_found".to_owned(), Some("model".to_owned())));
    assert!(unknown.text.contains("smollm2-135m-instruct"), "{}", unknown.text);
    assert!(hub.server.requests().is_empty() && audit(&server).is_empty());
}

#[test]
fn a_dry_run_shows_what_there_is_and_downloads_nothing() {
    let mut hub = Hub::of_size(0);
    hub.list("tiny-Q1_0.gguf", 1000, &"0".repeat(64));
    hub.list("tiny-Q8_0.gguf", 9 << 30, &"1".repeat(64));
    let server = hub.start_server();
    let plan = pull(&server, json!({ "dry_run": true })).ok();
    assert_eq!((&plan["name"], &plan["installed"]), (&json!(NAME), &json!(false)));
    assert_eq!((&plan["license"], &plan["fits"]), (&json!("apache-2.0"), &json!(true)));
    assert_eq!((&plan["bytes"], &plan["files"][0]["name"]), (&json!(tiny().len()), &json!(FILE)));
    assert!(plan["memory_bytes"].as_u64().unwrap() > 0 && plan["disk_free_bytes"].as_u64().unwrap() > 0);
    let candidates = plan["candidates"].as_array().unwrap();
    let of = |quantization: &str| candidates.iter().find(|one| one["quantization"] == quantization).unwrap();
    assert_eq!((&of("F32")["chosen"], &of("F32")["fits"]), (&json!(true), &json!(true)));
    assert_eq!((&of("Q8_0")["chosen"], &of("Q8_0")["fits"]), (&json!(false), &json!(false)));
    assert!(of("Q1_0")["unsupported"].is_string() && of("F32")["unsupported"].is_null());
    assert_eq!(server.get("/v1/model-pulls").ok()["data"], json!([]));
    assert_eq!(server.get(&format!("/v1/models/{NAME}")).status, 404);
    let missing = pull(&server, json!({ "dry_run": true, "model": "hf:u/none" }));
    assert_eq!(missing.error_fields(), (404, "not_found".to_owned(), Some("model".to_owned())));

    let of_catalog = pull(&server, json!({ "dry_run": true, "model": "all-minilm-l6-v2" })).ok();
    assert_eq!((&of_catalog["license"], &of_catalog["fits"]), (&json!("apache-2.0"), &Value::Null));
    assert!(of_catalog["bytes"].as_u64().unwrap() > 90_000_000);
}

#[test]
fn a_repeated_idempotency_key_gives_the_same_pull() {
    let hub = Hub::of_size(0);
    let server = hub.start_server();
    let send = || {
        let headers = [("content-type", "application/json"), ("idempotency-key", "once")];
        let body = json!({ "model": MODEL }).to_string().into_bytes();
        server.raw(Method::POST, "/v1/models/pull", Some(&server.admin), &headers, Some(body))
    };
    let first = send().json()["id"].as_str().unwrap().to_owned();
    wait_for_state(&server, &first, "succeeded");
    let second = send();
    assert_eq!((second.status, &second.json()["id"]), (202, &json!(first)));
    assert_eq!(second.header("idempotent-replayed"), Some("true"));
    assert_eq!(actions(&server), ["model_pull.succeeded", "model_pull.requested"]);
}

#[test]
fn a_hub_cannot_lead_the_server_into_its_own_network() {
    let (hub, inner) = (Hub::of_size(0), HubServer::start());
    inner.add("/secret", tiny());
    hub.server.redirect(&path(FILE), inner.url("/secret"), Vec::new());
    let server = hub.start_server();
    let id = begin(&server);
    let message = wait_for_state(&server, &id, "failed")["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("no connection was opened") && message.contains("--pull-allowed-host 127.0.0.1"));
    assert!(inner.requests().is_empty());
    let allowed = inner.address.to_string().parse().unwrap();
    let settings = HubSettings { allowed_hosts: vec![allowed], ..hub.settings() };
    let server = Server::start_configured(&TinyModel::default(), |config| config.api_pulls = Some(settings));
    let id = begin(&server);
    wait_for_state(&server, &id, "succeeded");
}

#[test]
fn the_token_is_sent_to_the_hub_and_shown_to_nobody() {
    const TOKEN: &str = "hf_bad_secret_token";
    let hub = Hub::of_size(0);
    let code = vec![("X-Error-Code", "GatedRepo".to_owned())];
    hub.server.guard(&path(FILE), "Bearer hf_other", (403, code));
    let settings = HubSettings { token: Authorization::bearer(TOKEN), ..hub.settings() };
    assert!(!format!("{settings:?}").contains(TOKEN));
    let server = Server::start_configured(&TinyModel::default(), |config| config.api_pulls = Some(settings));
    let streamed = pull(&server, json!({ "stream": true }));
    let last = events(&streamed).pop().unwrap();
    assert!(
        last["error"]["message"].as_str().unwrap().contains("then ask the operator to set HF_TOKEN on the server"),
        "{last}"
    );
    let sent = hub.server.requests();
    assert!(sent.iter().any(|request| request.header("authorization") == Some(&format!("Bearer {TOKEN}"))));
    let id = last["id"].as_str().unwrap();
    let plan = pull(&server, json!({ "dry_run": true })).text;
    let texts = [streamed.text, plan, read(&server, id).to_string(), json!(audit(&server)).to_string()];
    assert!(texts.iter().all(|text| !text.contains(TOKEN)), "{texts:?}");
}

#[test]
fn a_key_with_a_list_of_models_pulls_only_those() {
    let hub = Hub::of_size(0);
    let server = hub.start_server();
    let project = server.get("/v1/me").ok()["project_id"].clone();
    let new = json!({ "name": "k", "project_id": project, "scopes": ["admin"], "models": ["mine"] });
    let key = server.post("/v1/api-keys", &new).ok()["secret"].as_str().unwrap().to_owned();
    let pull = |name: Value| {
        let body = json!({ "model": MODEL, "name": name, "stream": true });
        events(&server.call(Method::POST, "/v1/models/pull", Some(&key), Some(&body))).pop().unwrap()
    };
    let refused = pull(Value::Null);
    assert_eq!((&refused["status"], &refused["error"]["code"]), (&json!("failed"), &json!("model_not_allowed")));
    assert_eq!(pull(json!("mine"))["installed_model"]["id"], "mine");
}

/// Creates files with the sizes of a model of the catalog.
fn pretend_installed(models: &Path, name: &str) {
    for file in &Catalog::builtin().find(name).unwrap().files {
        let path = models.join(name).join(&file.name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::File::create(path).unwrap().set_len(file.bytes).unwrap();
    }
}

#[test]
fn a_model_of_the_catalog_is_installed() {
    let hub = Hub::of_size(0);
    let server = Server::start_configured(&TinyModel::default(), |config| {
        // It depends on this one.
        pretend_installed(&config.paths.models, "all-minilm-l6-v2");
        config.api_pulls = Some(hub.settings());
    });
    let last = events(&pull(&server, json!({ "model": "pictogram", "stream": true }))).pop().unwrap();
    assert_eq!((&last["status"], &last["name"]), (&json!("succeeded"), &json!("pictogram")), "{last}");
    assert_eq!(last["installed_model"]["id"], "pictogram");
    assert!(hub.server.requests().is_empty());
}

/// The lines of Ollama's stream.
fn lines(response: &Response) -> Vec<Value> {
    assert_eq!((response.status, response.header("content-type")), (200, Some("application/x-ndjson")));
    response.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn ollamas_clients_pull_models() {
    let hub = Hub::of_size(0);
    let server = hub.start_server();
    let model = "hf.co/u/tiny-GGUF:F32";
    let lines_of = |model: &str| lines(&server.post("/api/pull", &json!({ "model": model })));
    let all = lines_of(model);
    let layer = format!("pulling {}", &sha256(&tiny())[..12]);
    let mut statuses: Vec<&str> = all.iter().map(|line| line["status"].as_str().unwrap()).collect();
    statuses.dedup();
    assert_eq!(statuses, ["pulling manifest", &layer, "verifying sha256 digest", "writing manifest", "success"]);
    let last_of_layer = all.iter().rfind(|line| line["status"] == layer.as_str()).unwrap();
    let size = tiny().len();
    assert_eq!(
        *last_of_layer,
        json!({ "status": layer, "digest": format!("sha256:{}", sha256(&tiny())), "total": size, "completed": size })
    );
    assert_eq!(chat(&server, NAME).status, 200);
    let whole = server.post("/api/pull", &json!({ "model": "hf.co/u/tiny-GGUF:latest", "stream": false })).ok();
    assert_eq!(whole, json!({ "status": "success" }));

    let failed = lines_of("hf.co/u/none");
    assert_eq!(failed[0], json!({ "status": "pulling manifest" }));
    assert!(failed.last().unwrap()["error"].as_str().unwrap().contains("no repository 'u/none'"), "{failed:?}");
    let failed = server.post("/api/pull", &json!({ "model": "hf.co/u/none", "stream": false }));
    assert_eq!(failed.error_fields().0, 404);
}

#[test]
fn without_the_option_ollamas_clients_learn_how_to_install() {
    let server = Server::start();
    let refused = server.post("/api/pull", &json!({ "model": "hf.co/u/tiny-GGUF" }));
    assert_eq!(refused.error_fields().0, 403);
    assert!(refused.text.contains("--allow-pull") && refused.text.contains("outpost models pull"), "{}", refused.text);
}
