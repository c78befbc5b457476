//! Links that sign a browser in.

use std::time::Duration;

use outpost::control_socket::{self, Reply, Request};
use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{Headers, Response, Server};
use crate::tiny_model::TinyModel;

const JSON: (&str, &str) = ("content-type", "application/json");
const SECOND: Duration = Duration::from_secs(1);

/// The token of a new link, as `outpost sign-in` gets it.
fn new_token(server: &Server) -> String {
    match control_socket::send(&server.folder.path().join("data"), &Request::SignIn).unwrap() {
        Some(Reply::SignInLink { url }) => {
            url.strip_prefix(&format!("{}/#sign-in=", server.url)).unwrap_or_else(|| panic!("{url}")).to_owned()
        }
        other => panic!("{other:?}"),
    }
}

fn redeem_with(server: &Server, headers: Headers<'_>, token: &str) -> Response {
    server.raw(Method::POST, "/sign-in", None, headers, Some(json!({ "token": token }).to_string().into_bytes()))
}

fn redeem(server: &Server, token: &str) -> Response {
    redeem_with(server, &[JSON], token)
}

fn secret(response: &Response) -> String {
    response.ok()["secret"].as_str().unwrap().to_owned()
}

fn assert_refused(response: &Response) {
    assert_eq!(response.error_fields(), (401, "invalid_sign_in_link".to_owned(), None), "{}", response.text);
    assert!(response.text.contains("outpost sign-in"), "{}", response.text);
}

#[test]
fn a_link_gives_an_admin_key_of_twelve_hours_once() {
    let server = Server::start();
    let token = new_token(&server);
    assert!(token.starts_with("ol_") && token.len() == 25, "{token}");
    let first = redeem_with(&server, &[JSON, ("sec-fetch-site", "same-origin")], &token);
    assert_eq!(first.header("cache-control"), Some("no-store"));
    let key = secret(&first);
    let me = server.call(Method::GET, "/v1/me", Some(&key), None).ok();
    assert_eq!((&me["name"], &me["scopes"]), (&json!("browser sign-in"), &json!(["admin", "project", "inference"])));
    assert_ne!(key, server.admin);
    assert_refused(&redeem(&server, &token));

    let audit = server.get("/v1/audit-events?limit=100&action=api_key.created").ok();
    let row = audit["data"].as_array().unwrap().iter().find(|row| row["target"] == me["id"]).unwrap();
    assert_eq!((&row["actor"], &row["detail"]["name"]), (&Value::Null, &json!("browser sign-in")), "{row}");

    server.clock.pass(12 * 3600 * SECOND - 60 * SECOND);
    server.call(Method::GET, "/v1/me", Some(&key), None).ok();
    server.clock.pass(60 * SECOND);
    assert_eq!(server.call(Method::GET, "/v1/me", Some(&key), None).error_fields().1, "expired_api_key");
}

#[test]
fn a_link_expires_after_ten_minutes() {
    let server = Server::start();
    let (used, late) = (new_token(&server), new_token(&server));
    server.clock.pass(595 * SECOND);
    redeem(&server, &used).ok();
    server.clock.pass(5 * SECOND);
    assert_refused(&redeem(&server, &late));
}

#[test]
fn sixteen_links_are_valid_at_a_time_and_a_restart_ends_them() {
    let server = Server::start();
    let tokens: Vec<String> = (0..17).map(|_| new_token(&server)).collect();
    assert_refused(&redeem(&server, &tokens[0]));
    for token in &tokens[1..16] {
        redeem(&server, token).ok();
    }
    let server = Server::start_in(server.stop());
    assert_refused(&redeem(&server, &tokens[16]));
}

#[test]
fn pages_of_other_sites_and_unusual_requests_are_refused_and_leave_the_link_valid() {
    let server = Server::start();
    let token = new_token(&server);
    for site in ["cross-site", "same-site", "none"] {
        let refused = redeem_with(&server, &[JSON, ("sec-fetch-site", site)], &token);
        assert_eq!(refused.error_fields().1, "invalid_sign_in_link", "{site}");
    }
    let both = [JSON, ("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")];
    assert_eq!(redeem_with(&server, &both, &token).status, 401);
    assert_eq!(redeem_with(&server, &[("content-type", "text/plain")], &token).status, 400);
    assert_eq!(redeem_with(&server, &[JSON, ("host", "evil.example")], &token).error_fields().0, 421);
    assert_eq!(redeem(&server, &"x".repeat(1100)).error_fields().0, 413);
    let post = |body: &str| server.raw(Method::POST, "/sign-in", None, &[JSON], Some(body.into())).error_fields();
    assert_eq!(post("{}"), (400, "invalid_parameter".to_owned(), Some("token".to_owned())));
    assert_eq!(post(&format!("{{\"token\":\"{token}\",\"key\":1}}")).2, Some("key".to_owned()));
    let other_method = server.raw(Method::GET, "/sign-in", None, &[], None);
    assert_eq!((other_method.error_fields().0, other_method.header("allow")), (405, Some("POST")));
    redeem(&server, &token).ok();
}

#[test]
fn wrong_tokens_are_limited_by_address_and_a_right_one_is_not() {
    let server = Server::start_configured(&TinyModel::default(), |config| {
        config.trusted_proxies = vec!["127.0.0.0/8".parse().unwrap()]
    });
    let token = new_token(&server);
    let from = |address, token: &str| redeem_with(&server, &[JSON, ("x-forwarded-for", address)], token);
    for _ in 0..20 {
        assert_refused(&from("203.0.113.9", "ol_0000000000000000000000"));
    }
    assert_eq!(from("203.0.113.9", "ol_0000000000000000000000").error_fields().0, 429);
    assert_refused(&from("203.0.113.10", &token[..24]));
    from("203.0.113.9", &token).ok();
}

/// A link's base is the address that users know.
#[test]
fn a_link_has_the_public_url() {
    let server = Server::start_configured(&TinyModel::default(), |config| {
        config.public_url = Some("https://ai.example.org/outpost".to_owned())
    });
    match control_socket::send(&server.folder.path().join("data"), &Request::SignIn).unwrap() {
        Some(Reply::SignInLink { url }) => assert!(url.starts_with("https://ai.example.org/outpost/#sign-in=ol_")),
        other => panic!("{other:?}"),
    }
}

/// Keys of earlier sign-ins do not fill the project's quota.
#[test]
fn expired_keys_of_browsers_are_revoked_at_the_next_sign_in() {
    let server = Server::start();
    let project = server.get("/v1/me").ok()["project_id"].as_str().unwrap().to_owned();
    let keys = || -> Vec<Value> {
        let list = server.get(&format!("/v1/api-keys?limit=100&project_id={project}")).ok()["data"]
            .as_array()
            .unwrap()
            .clone();
        list.into_iter().filter(|key| key["name"] == "browser sign-in").collect()
    };
    redeem(&server, &new_token(&server)).ok();
    server.clock.pass(3600 * SECOND);
    redeem(&server, &new_token(&server)).ok();
    assert!(keys().len() == 2 && keys().iter().all(|key| key["revoked_at"].is_null()));
    server.clock.pass(11 * 3600 * SECOND + SECOND);
    redeem(&server, &new_token(&server)).ok();
    let is_revoked: Vec<bool> = keys().iter().map(|key| !key["revoked_at"].is_null()).collect();
    assert_eq!(is_revoked, [false, false, true], "newest first");
    let audit = server.get("/v1/audit-events?limit=100&action=api_key.revoked").ok();
    assert_eq!(audit["data"].as_array().unwrap().len(), 1);
    let limits = server.get(&format!("/v1/projects/{project}/rate-limits")).ok();
    assert_eq!(limits["holds"]["api_keys"], 3, "{limits}");
}
