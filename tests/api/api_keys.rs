use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::server::Server;

fn is_accepted(server: &Server, secret: &str) -> bool {
    let response = server.call(Method::GET, "/v1/models", Some(secret), None);
    assert!(matches!(response.status, 200 | 401), "{}", response.text);
    response.status == 200
}

fn text(value: &Value, field: &str) -> String {
    value[field].as_str().unwrap_or_else(|| panic!("{field} in {value}")).to_owned()
}

#[test]
fn a_secret_is_shown_once_and_works() {
    let server = Server::start();
    let (project, id, secret) = server.tenant("web");
    assert!(is_accepted(&server, &secret));
    let read = server.get(&format!("/v1/api-keys/{id}"));
    let listed = server.get(&format!("/v1/api-keys?project_id={project}"));
    for response in [read, listed] {
        assert_eq!(response.status, 200);
        assert!(!response.text.contains(&secret) && !response.text.contains("\"secret\""), "{}", response.text);
    }
}

#[test]
fn both_mounts_have_the_contracts_fields() {
    let server = Server::start();
    let (project, _, _) = server.tenant("shape");
    for (mount, object) in [("/v1", "service.resource"), ("/openai/v1", "organization.project.api_key")] {
        let created = server.post(&format!("{mount}/api-keys"), &json!({ "name": "k", "project_id": project })).ok();
        assert_eq!(created["object"], object);
        assert_eq!(created["secret"], created["value"]);
        assert_eq!(created["scopes"], json!(["project", "inference"]));
        let listed = server.get(&format!("{mount}/api-keys?project_id={project}")).ok();
        assert_eq!(listed["data"][0]["object"], "organization.project.api_key");
        assert_eq!(listed["data"][0]["id"], created["id"]);
    }
    let body = json!({ "project_id": project, "limit": 1 });
    let by_body = server.call(Method::GET, "/v1/api-keys", Some(&server.admin), Some(&body)).ok();
    assert_eq!(by_body["data"].as_array().unwrap().len(), 1, "a JSON body of a GET is read");
    let mixed = server.call(Method::GET, "/v1/api-keys?limit=2", Some(&server.admin), Some(&body)).error_fields();
    assert_eq!(mixed, (400, "invalid_parameter".to_owned(), Some("limit".to_owned())));
}

#[test]
fn the_old_secret_of_a_rotated_key_works_until_its_grace_period_ends() {
    let server = Server::start();
    let (project, id, old) = server.tenant("rotating");
    let path = format!("/v1/api-keys/{id}");
    let rotated = server.put(&path, &json!({ "grace_period_seconds": 60, "reason": "yearly" })).ok();
    let new = text(&rotated, "secret");
    assert_eq!(
        (text(&rotated, "id"), text(&rotated, "project_id"), text(&rotated, "name")),
        (id, project, "rotating".into())
    );
    assert!(is_accepted(&server, &old) && is_accepted(&server, &new));
    server.clock.advance(Duration::from_secs(59));
    assert!(is_accepted(&server, &old));
    server.clock.advance(Duration::from_secs(2));
    assert!(!is_accepted(&server, &old) && is_accepted(&server, &new));
}

#[test]
fn rotation_without_grace_ends_the_old_secret_at_once() {
    let server = Server::start();
    let (_, id, old) = server.tenant("hard");
    let rotated = server.raw(Method::PUT, &format!("/v1/api-keys/{id}"), Some(&server.admin), &[], None).ok();
    assert!(!is_accepted(&server, &old) && is_accepted(&server, &text(&rotated, "secret")));
}

#[test]
fn a_revoked_key_is_refused_from_the_next_request() {
    let server = Server::start();
    let (_, id, secret) = server.tenant("revoked");
    assert!(is_accepted(&server, &secret));
    assert_eq!(server.delete(&format!("/v1/api-keys/{id}")).ok()["state"], "revoked");
    let refused = server.call(Method::GET, "/v1/models", Some(&secret), None);
    assert_eq!(refused.error_fields(), (401, "revoked_api_key".to_owned(), None));
    assert_eq!(refused.headers["www-authenticate"], "Bearer");
}

#[test]
fn an_expired_key_is_refused_and_an_extended_one_works_again() {
    let server = Server::start();
    let (project, _, _) = server.tenant("expiring");
    let expires = (server_now(&server) + jiff::SignedDuration::from_secs(3600)).to_string();
    let created =
        server.post("/v1/api-keys", &json!({ "name": "k", "project_id": project, "expires_at": expires })).ok();
    let secret = text(&created, "secret");
    assert!(is_accepted(&server, &secret));
    server.clock.advance(Duration::from_secs(3601));
    let refused = server.call(Method::GET, "/v1/models", Some(&secret), None).error_fields();
    assert_eq!(refused, (401, "expired_api_key".to_owned(), None));
    let path = format!("/v1/api-keys/{}", text(&created, "id"));
    let updated = server.patch(&path, &json!({ "name": "renamed" })).ok();
    assert!(!updated["expires_at"].is_null(), "an absent expires_at is kept");
    assert!(server.patch(&path, &json!({ "name": "renamed", "expires_at": null })).ok()["expires_at"].is_null());
    assert!(is_accepted(&server, &secret), "the credential is unchanged by a PATCH");
}

fn server_now(server: &Server) -> jiff::Timestamp {
    use outpost::clock_rng::ClockRng;
    jiff::Timestamp::from_millisecond(server.clock.now().as_millis()).unwrap()
}

#[test]
fn every_change_of_a_key_is_in_the_audit_log() {
    let server = Server::start();
    let (project, id, _) = server.tenant("audited");
    let path = format!("/v1/api-keys/{id}");
    server.put(&path, &json!({ "reason": "laptop lost" })).ok();
    server.patch(&path, &json!({ "name": "renamed" })).ok();
    server.delete(&path).ok();
    let log = server.get(&format!("/v1/audit-events?project_id={project}")).ok();
    let actions: Vec<&str> = log["data"].as_array().unwrap().iter().map(|e| e["action"].as_str().unwrap()).collect();
    assert_eq!(
        actions,
        ["api_key.revoked", "api_key.updated", "api_key.rotated", "api_key.created", "project.created"]
    );
    assert_eq!(log["data"][2]["detail"]["reason"], "laptop lost", "{log}");
    assert_eq!(log["data"][2]["target"], id);
}

#[test]
fn a_key_can_read_itself_and_its_last_use() {
    let server = Server::start();
    let (project, id, secret) = server.tenant("web");
    let path = format!("/v1/api-keys/{id}");
    assert_eq!(server.get(&path).ok()["last_used_at"], Value::Null, "the key was not used");
    for mount in ["/v1", "/openai/v1"] {
        let me = server.call(Method::GET, &format!("{mount}/me"), Some(&secret), None).ok();
        assert_eq!((&me["id"], &me["project_id"], &me["name"]), (&json!(id), &json!(project), &json!("web")));
        assert_eq!(me["project"], json!({ "id": project, "name": "web", "environment": null }));
        assert_eq!(me["scopes"], json!(["project", "inference"]));
        assert_eq!(me.get("secret"), None);
    }
    let inference = json!({ "name": "i", "project_id": project, "scopes": ["inference"] });
    let inference = text(&server.post("/v1/api-keys", &inference).ok(), "secret");
    server.call(Method::GET, "/v1/me", Some(&inference), None).ok();

    let used = |server: &Server| text(&server.get(&path).ok(), "last_used_at").parse::<jiff::Timestamp>().unwrap();
    let first = used(&server);
    server.clock.advance(Duration::from_secs(3600));
    assert_eq!(used(&server), first, "reading a key does not count as its use");
    // A refused request counts as use.
    assert_eq!(server.call(Method::GET, "/v1/nowhere", Some(&secret), None).status, 404);
    let second = used(&server);
    assert!(second.duration_since(first).as_secs() >= 3600, "{first} {second}");
    let listed = server.get(&format!("/v1/api-keys?project_id={project}")).ok();
    let listed = listed["data"].as_array().unwrap().iter().find(|key| key["id"] == json!(id)).unwrap().clone();
    assert_eq!(text(&listed, "last_used_at").parse::<jiff::Timestamp>().unwrap(), second);
    let server = Server::start_in(server.stop());
    assert_eq!(used(&server), second, "it is stored on disk");
}
