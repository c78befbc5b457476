//! Requests that are repeated with their idempotency key take effect once.

use std::collections::HashSet;
use std::time::Duration;

use std::sync::Arc;

use outpost::ids::KeyId;
use outpost::service::{Scope, Scopes};
use outpost::storage::keys;
use reqwest::Method;
use serde_json::{Value, json};

use crate::batches::upload_batch;
use crate::clock::ShiftedClock;
use crate::server::{MODEL, Response, Server};
use crate::store_location::open_store;
use crate::upload::file;

fn send(server: &Server, method: Method, path: &str, body: &Value, key: &str) -> Response {
    let headers = [("content-type", "application/json"), ("idempotency-key", key)];
    server.raw(method, path, Some(&server.admin), &headers, Some(body.to_string().into_bytes()))
}

#[test]
fn fifty_identical_concurrent_requests_have_one_effect_and_one_response() {
    let server = Server::start();
    let body = json!({ "name": "once", "metadata": { "a": 1 } });
    let responses: Vec<Value> = std::thread::scope(|scope| {
        let all: Vec<_> =
            (0..50).map(|_| scope.spawn(|| send(&server, Method::POST, "/v1/projects", &body, "k-1").ok())).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let different: HashSet<String> = responses.iter().map(ToString::to_string).collect();
    assert_eq!(different.len(), 1);
    let projects = server.get("/v1/projects?limit=100").ok();
    assert_eq!(projects["data"].as_array().unwrap().iter().filter(|project| project["name"] == "once").count(), 1);
    let events = server.get("/v1/audit-events?limit=100").ok();
    let created = events["data"].as_array().unwrap().iter().filter(|event| event["action"] == "project.created");
    assert_eq!(created.count(), 2, "the default project and this one");
}

#[test]
fn a_replay_is_marked_and_survives_a_restart() {
    let server = Server::start();
    let body = json!({ "name": "kept" });
    let first = send(&server, Method::POST, "/v1/projects", &body, "k");
    assert!(!first.headers.contains_key("idempotent-replayed"));
    let server_again = Server::start_in(server.stop());
    let second = send(&server_again, Method::POST, "/v1/projects", &body, "k");
    assert_eq!(second.headers["idempotent-replayed"], "true");
    assert_eq!(second.json(), first.json());
    let strict = send(&server_again, Method::POST, "/openai/v1/projects", &body, "k").ok();
    assert_eq!((&strict["id"], &strict["object"]), (&first.json()["id"], &json!("organization.project")));
    // The first result, not the current state.
    let id = first.json()["id"].as_str().unwrap().to_owned();
    server_again.put(&format!("/v1/projects/{id}"), &json!({ "name": "renamed" })).ok();
    assert_eq!(send(&server_again, Method::POST, "/v1/projects", &body, "k").json(), first.json());
    server_again.clock.advance(Duration::from_secs(24 * 3600 + 1));
    let third = send(&server_again, Method::POST, "/v1/projects", &body, "k").ok();
    assert_ne!(third["id"], first.json()["id"], "the idempotency key expires after a day");
}

#[test]
fn a_key_that_has_expired_since_can_be_created_and_changed_again() {
    let server = Server::start();
    let (project, _, _) = server.tenant("t");
    let expiry = |seconds| outpost::clock_rng::ClockRng::now(&*server.clock).after(Duration::from_secs(seconds));
    let body = json!({ "project_id": project, "name": "short-lived", "expires_at": expiry(60) });
    let created = send(&server, Method::POST, "/v1/api-keys", &body, "create").ok();
    let path = format!("/v1/api-keys/{}", created["id"].as_str().unwrap());
    let change = json!({ "name": "short-lived", "expires_at": expiry(120) });
    let changed = send(&server, Method::PATCH, &path, &change, "change").ok();
    server.clock.advance(Duration::from_secs(200));
    let again = send(&server, Method::POST, "/v1/api-keys", &body, "create");
    assert_eq!((again.header("idempotent-replayed"), &again.ok()["id"]), (Some("true"), &created["id"]));
    let again = send(&server, Method::PATCH, &path, &change, "change");
    assert_eq!(
        (again.header("idempotent-replayed"), &again.ok()["updated_at"]),
        (Some("true"), &changed["updated_at"])
    );
    let new = send(&server, Method::POST, "/v1/api-keys", &body, "another").error_fields();
    assert_eq!(new, (400, "invalid_parameter".to_owned(), Some("expires_at".to_owned())));
}

#[test]
fn a_different_request_with_the_same_key_is_422() {
    let server = Server::start();
    let (project, key_id, _) = server.tenant("t");
    send(&server, Method::POST, "/v1/projects", &json!({ "name": "a" }), "k").ok();
    let conflict = (422, "idempotency_conflict".to_owned(), Some("Idempotency-Key".to_owned()));
    assert_eq!(send(&server, Method::POST, "/v1/projects", &json!({ "name": "b" }), "k").error_fields(), conflict);
    let path = format!("/v1/projects/{project}");
    assert_eq!(send(&server, Method::PUT, &path, &json!({ "name": "a" }), "k").error_fields(), conflict);
    let patched = send(&server, Method::PATCH, &format!("/v1/api-keys/{key_id}"), &json!({ "name": "x" }), "k2");
    patched.ok();
    let other = send(&server, Method::PATCH, &format!("/v1/api-keys/{key_id}"), &json!({ "name": "y" }), "k2");
    assert_eq!(other.error_fields(), conflict);
    // A refused request has no effect, so its idempotency key can be used again.
    assert_eq!(send(&server, Method::POST, "/v1/projects", &json!({ "name": "" }), "k3").status, 400);
    send(&server, Method::POST, "/v1/projects", &json!({ "name": "c" }), "k3").ok();
}

#[test]
fn a_secret_is_never_repeated() {
    let server = Server::start();
    let (project, _, _) = server.tenant("t");
    let new = json!({ "name": "k", "project_id": project });
    let first = send(&server, Method::POST, "/v1/api-keys", &new, "k").ok();
    let again = send(&server, Method::POST, "/v1/api-keys", &new, "k");
    let secret = first["secret"].as_str().unwrap();
    assert!(!again.text.contains(secret));
    assert_eq!(
        (&again.json()["id"], &again.json()["secret"], &again.json()["value"]),
        (&first["id"], &Value::Null, &Value::Null)
    );
    assert!(again.json()["note"].as_str().unwrap().contains("not repeated"));
    let path = format!("/v1/api-keys/{}", first["id"].as_str().unwrap());
    let rotated = send(&server, Method::PUT, &path, &json!({}), "r").ok();
    let repeated = send(&server, Method::PUT, &path, &json!({}), "r").ok();
    assert_eq!(repeated["secret"], Value::Null);
    let secret = rotated["secret"].as_str().unwrap();
    assert_eq!(server.call(Method::GET, "/v1/models", Some(secret), None).status, 200, "rotated once, not twice");
}

#[test]
fn idempotency_keys_are_per_api_key_and_printable() {
    let server = Server::start();
    let (_, _, one) = server.tenant("one");
    let (project, _, other) = server.tenant("other");
    let headers = [("content-type", "application/json"), ("idempotency-key", "shared")];
    let body = json!({ "name": "mine", "project_id": project }).to_string().into_bytes();
    let refused = server.raw(Method::POST, "/v1/api-keys", Some(&one), &headers, Some(body.clone()));
    assert_eq!(refused.status, 403);
    server.raw(Method::POST, "/v1/api-keys", Some(&other), &headers, Some(body)).ok();
    let long = "x".repeat(256);
    for bad in ["", long.as_str(), "\u{e4}"] {
        let refused = send(&server, Method::POST, "/v1/projects", &json!({ "name": "p" }), bad).error_fields();
        assert_eq!(refused, (400, "invalid_parameter".to_owned(), Some("Idempotency-Key".to_owned())), "{bad:?}");
    }
}

/// Restarts the server with other permissions of a key. The API never changes them.
fn with_permissions(server: Server, key: &str, scopes: Scopes, models: Option<&str>) -> Server {
    let folder = server.stop();
    let store = open_store(&folder.path().join("data"), Arc::new(ShiftedClock::default()));
    let (id, models): (KeyId, _) = (key.parse().unwrap(), models.map(|model| vec![model.to_owned()]));
    let change = store.enqueue(move |tx| {
        let mut record = keys::find(tx, id)?.unwrap();
        (record.fields.scopes, record.fields.models) = (scopes, models.clone());
        keys::replace(tx, id, &record)
    });
    change.unwrap().blocking_recv().unwrap().unwrap();
    store.shutdown();
    Server::start_in(folder)
}

#[test]
fn a_replay_needs_every_permission_that_the_request_needed() {
    let server = Server::start();
    let (project, key_id, key) = server.tenant("t");
    let input = upload_batch(&server, &key, &crate::batches::short_lines(1)).ok()["id"].clone();
    let training = file(&server, &key);
    let batch = json!({ "input_file_id": input, "endpoint": "/v1/completions", "completion_window": "24h" });
    let job = json!({ "model": MODEL, "training_file": training });
    let new_key = json!({ "name": "k", "project_id": project, "scopes": ["inference"], "models": [MODEL] });
    // What each request needs besides the scope `project`: the scope `inference`, and the model.
    let requests = [
        ("/v1/conversations", json!({ "project_id": project }), false, false),
        ("/v1/agents", json!({ "name": "a", "model": MODEL, "project_id": project }), false, false),
        ("/v1/api-keys", new_key, true, true),
        ("/v1/batches", batch, true, false),
        ("/v1/fine_tuning/jobs", job, true, true),
    ];
    let post = |server: &Server, path: &str, body: &Value| {
        let headers = [("content-type", "application/json"), ("idempotency-key", path)];
        server.raw(Method::POST, path, Some(&key), &headers, Some(body.to_string().into_bytes()))
    };
    let first: Vec<Value> =
        requests.iter().map(|(path, body, ..)| post(&server, path, body).ok()["id"].clone()).collect();
    let mut server = server;
    let [project, inference] = [Scope::Project, Scope::Inference].map(|scope| Scopes::from_iter([scope]));
    let both = Scopes::from_iter([Scope::Project, Scope::Inference]);
    for (scopes, models) in [(project, None), (inference, None), (both, Some("other")), (both, None)] {
        server = with_permissions(server, &key_id, scopes, models);
        for ((path, body, needs_inference, needs_model), first) in requests.iter().zip(&first) {
            let response = post(&server, path, body);
            let has_scopes =
                scopes.contains(Scope::Project) && (!*needs_inference || scopes.contains(Scope::Inference));
            let is_allowed = has_scopes && !(*needs_model && models.is_some());
            match is_allowed {
                true => assert_eq!(&response.ok()["id"], first, "{path}"),
                false => assert!([403, 404].contains(&response.error_fields().0), "{path} {scopes}: {}", response.text),
            }
        }
    }
}
