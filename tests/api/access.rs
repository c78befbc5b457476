use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{Headers, MODEL, Server};

/// Requests to another project's resources.
fn requests_to(project: &str, key: &str) -> Vec<(Method, String, Option<Value>)> {
    vec![
        (Method::GET, format!("/projects/{project}"), None),
        (Method::PUT, format!("/projects/{project}"), Some(json!({ "name": "taken" }))),
        (Method::POST, format!("/projects/{project}/archive"), Some(json!({}))),
        (Method::GET, format!("/api-keys?project_id={project}"), None),
        (Method::POST, "/api-keys".to_owned(), Some(json!({ "name": "k", "project_id": project }))),
        (Method::GET, format!("/api-keys/{key}"), None),
        (Method::PUT, format!("/api-keys/{key}"), Some(json!({}))),
        (Method::PATCH, format!("/api-keys/{key}"), Some(json!({ "name": "taken" }))),
        (Method::DELETE, format!("/api-keys/{key}"), None),
        (Method::GET, format!("/audit-events?project_id={project}"), None),
        (Method::GET, format!("/models/{MODEL}?project_id={project}"), None),
    ]
}

#[test]
fn a_project_key_cannot_access_another_projects_resources_on_either_mount() {
    let server = Server::start();
    let (_, _, mine) = server.tenant("mine");
    let (project, key, _) = server.tenant("theirs");
    let before = server.get(&format!("/v1/api-keys/{key}")).text;
    for mount in ["/v1", "/openai/v1"] {
        for (method, path, body) in requests_to(&project, &key) {
            let response = server.call(method.clone(), &format!("{mount}{path}"), Some(&mine), body.as_ref());
            let (status, code, _) = response.error_fields();
            assert_eq!(status, 403, "{method} {path}: {}", response.text);
            assert!(["project_mismatch", "insufficient_scope"].contains(&code.as_str()), "{method} {path}: {code}");
        }
    }
    let after = server.get(&format!("/v1/api-keys/{key}")).text;
    let stable = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    assert_eq!(stable(&before), stable(&after));
}

#[test]
fn unknown_resources_are_404_for_every_key() {
    let server = Server::start();
    let (_, _, mine) = server.tenant("mine");
    let missing = ["/v1/projects/proj_00000000000000000000000000000000", "/v1/projects/nonsense", "/v1/api-keys/key_1"];
    for path in missing {
        for key in [&mine, &server.admin] {
            let (status, code, _) = server.call(Method::GET, path, Some(key), None).error_fields();
            assert_eq!((status, code.as_str()), (404, "not_found"), "{path}");
        }
    }
}

#[test]
fn a_key_can_grant_only_its_own_permissions() {
    let server = Server::start();
    let (project, _, mine) = server.tenant("climbing");
    let wide = json!({ "name": "k", "project_id": project, "scopes": ["admin"] });
    let (status, code, param) = server.call(Method::POST, "/v1/api-keys", Some(&mine), Some(&wide)).error_fields();
    assert_eq!((status, code.as_str(), param.as_deref()), (403, "insufficient_scope", Some("scopes")));

    // A project key cannot obtain an admin key of its own project by rotating it.
    let admin_key = server.post("/v1/api-keys", &wide).ok();
    let path = format!("/v1/api-keys/{}", admin_key["id"].as_str().unwrap());
    for method in [Method::PUT, Method::DELETE] {
        let (status, code, _) = server.call(method, &path, Some(&mine), None).error_fields();
        assert_eq!((status, code.as_str()), (403, "insufficient_scope"));
    }
    assert_eq!(server.call(Method::POST, "/v1/projects", Some(&mine), Some(&json!({ "name": "x" }))).status, 403);
}

#[test]
fn a_key_can_call_only_its_allowed_models() {
    let server = Server::start();
    let (project, _, _) = server.tenant("narrow");
    let narrow = json!({ "name": "k", "project_id": project, "models": ["another"], "scopes": ["inference"] });
    let secret = server.post("/v1/api-keys", &narrow).ok()["secret"].as_str().unwrap().to_owned();
    let chat = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 1 });
    let refused = server.call(Method::POST, "/v1/chat/completions", Some(&secret), Some(&chat)).error_fields();
    assert_eq!((refused.0, refused.1.as_str()), (403, "model_not_allowed"));
    let listed = server.call(Method::GET, "/v1/models", Some(&secret), None).ok();
    assert_eq!(listed["data"], json!([]));
    let inference_only =
        server.call(Method::GET, &format!("/v1/projects/{project}"), Some(&secret), None).error_fields();
    assert_eq!((inference_only.0, inference_only.1.as_str()), (403, "insufficient_scope"));
}

#[test]
fn invalid_credentials_get_401_before_anything_else_is_checked() {
    let server = Server::start();
    let (_, _, secret) = server.tenant("t");
    let mut wrong_check = secret.clone();
    let last = if wrong_check.pop() == Some('0') { '1' } else { '0' };
    wrong_check.push(last);
    let cases: [(&str, Headers<'_>, &str); 6] = [
        ("no header", &[], "missing_api_key"),
        ("another scheme", &[("authorization", "Basic dXNlcjpwYXNz")], "missing_api_key"),
        ("no token", &[("authorization", "Bearer ")], "missing_api_key"),
        ("garbage", &[("authorization", "Bearer hello")], "invalid_api_key"),
        ("OpenAI's form", &[("authorization", "Bearer sk-proj-0123456789")], "invalid_api_key"),
        ("wrong check digits", &[("authorization", &format!("Bearer {wrong_check}"))], "invalid_api_key"),
    ];
    for (name, headers, code) in cases {
        for path in ["/v1/models", "/openai/v1/chat/completions", "/v1/nothing/here"] {
            let response = server.raw(Method::POST, path, None, headers, Some(b"{broken".to_vec()));
            assert_eq!(response.error_fields(), (401, code.to_owned(), None), "{name} at {path}");
            assert_eq!(response.headers["www-authenticate"], "Bearer", "{name}");
        }
    }
}
