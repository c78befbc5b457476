//! Walks all routes in `/openapi.json`, so that a new route is covered without a change of the tests.

use reqwest::Method;
use serde_json::{Value, json};

use crate::server::Server;

/// Whether an operation in the document needs no key.
fn is_public(operation: &Value) -> bool {
    operation["security"] == json!([{}])
}

/// `(method, path with well-formed IDs of no resource)` of every route that needs a key.
fn routes(server: &Server) -> Vec<(Method, String)> {
    let document = server.raw(Method::GET, "/openapi.json", None, &[], None).ok();
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in ["get", "post", "put", "patch", "delete"] {
            let Some(operation) = item.get(method).filter(|operation| !is_public(operation)) else { continue };
            if operation.is_object() && ["/v1", "/openai/v1", "/api/"].iter().any(|mount| path.starts_with(mount)) {
                let nothing = "0".repeat(32);
                let path = path
                    .replace("{project_id}", &format!("proj_{nothing}"))
                    .replace("{api_key_id}", &format!("key_{nothing}"))
                    .replace("{file_id}", &format!("file-{nothing}"))
                    .replace("{job_id}", &format!("ftjob-{nothing}"))
                    .replace("{pull_id}", &format!("pull_{nothing}"))
                    .replace("{batch_id}", &format!("batch_{nothing}"))
                    .replace("{conversation_id}", &format!("conv_{nothing}"))
                    .replace("{item_id}", &format!("msg_{nothing}00000000"))
                    .replace("{completion_id}", &format!("chatcmpl-{nothing}"))
                    .replace("{response_id}", &format!("resp_{nothing}"))
                    .replace("{agent_id}", &format!("agent_{nothing}"))
                    .replace("{digest}", "sha256:0")
                    .replace("{model_id}", "no-such-model");
                assert!(!path.contains('{'), "add an ID for {path} to the test");
                found.push((method.to_uppercase().parse().unwrap(), path));
            }
        }
    }
    found
}

/// The paths of [`routes`] that can be read.
pub fn get_routes(server: &Server) -> Vec<String> {
    routes(server).into_iter().filter(|(method, _)| *method == Method::GET).map(|(_, path)| path).collect()
}

#[test]
fn the_contracts_endpoints_are_on_both_mounts() {
    let server = Server::start();
    let document = server.raw(Method::GET, "/openapi.json", None, &[], None).ok();
    let expected = [
        ("get", "/api-keys"),
        ("post", "/api-keys"),
        ("put", "/api-keys/{api_key_id}"),
        ("patch", "/api-keys/{api_key_id}"),
        ("post", "/chat/completions"),
        ("put", "/conversations/{conversation_id}"),
        ("patch", "/agents/{agent_id}"),
        ("get", "/models/{model_id}"),
        ("patch", "/fine_tuning/jobs/{job_id}"),
        ("patch", "/projects/{project_id}/rate-limits"),
        ("get", "/projects/{project_id}/usage"),
        ("post", "/images/generations"),
        ("post", "/embeddings"),
        ("put", "/projects/{project_id}"),
        ("post", "/projects"),
    ];
    assert_eq!(expected.len(), 15);
    for mount in ["/v1", "/openai/v1"] {
        for (method, path) in expected {
            assert!(document["paths"][format!("{mount}{path}")][method].is_object(), "{method} {mount}{path}");
        }
    }
}

/// Every `$ref` below `value`.
fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| match value.as_str() {
            Some(path) if name == "$ref" => found.push(path.to_owned()),
            _ => references(value, found),
        }),
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

#[test]
fn every_reference_in_the_openapi_document_resolves() {
    let server = Server::start();
    let document = server.raw(Method::GET, "/openapi.json", None, &[], None).ok();
    let mut found = Vec::new();
    references(&document, &mut found);
    assert!(found.len() > 20);
    for path in found {
        assert!(document.pointer(path.trim_start_matches('#')).is_some(), "{path}");
    }
    let message = &document["components"]["schemas"]["Message"];
    assert_eq!(message["required"], json!(["role"]), "{message}");
}

#[test]
fn every_route_requires_a_key_and_returns_the_error_envelope() {
    let server = Server::start();
    let routes = routes(&server);
    assert!(routes.len() >= 60, "{routes:?}");
    for (method, path) in routes {
        let without_key = server.call(method.clone(), &path, None, Some(&json!({})));
        let code = if path.starts_with("/api/") { "" } else { "missing_api_key" };
        assert_eq!(without_key.error_fields(), (401, code.to_owned(), None), "{method} {path}");
        let foreign_field = json!({ "no_such_field": 1 });
        let response = server.call(method.clone(), &path, Some(&server.admin), Some(&foreign_field));
        if matches!(method, Method::DELETE) || path.contains("/archive") {
            continue; // takes no body
        }
        if method == Method::GET && path.starts_with("/api/") {
            continue; // ignores a body, as Ollama does
        }
        let (status, ..) = response.error_fields();
        assert!((400..500).contains(&status), "{method} {path}: {}", response.text);
    }
}

/// Clients add parameters such as Codex's `client_version`.
#[test]
fn unknown_query_parameters_are_ignored_on_every_get() {
    let server = Server::start();
    let gets = get_routes(&server);
    assert!(gets.len() >= 20, "{gets:?}");
    for path in gets {
        let plain = server.get(&path);
        let more = server.get(&format!("{path}?client_version=1.0&client_version=%5B%5D&x[y]"));
        assert_eq!(plain.status, more.status, "{path}: {}", more.text);
        if plain.status != 200 {
            assert_eq!(plain.error_fields(), more.error_fields(), "{path}");
        }
    }
    for mount in ["/v1", "/openai/v1"] {
        server.get(&format!("{mount}/models?client_version=0.46.0&include_limits=true")).ok();
        let known = server.get(&format!("{mount}/models?client_version=0.46.0&include_limits=perhaps")).error_fields();
        assert_eq!(known, (400, "invalid_parameter".to_owned(), Some("include_limits".to_owned())));
        // In a body, an unknown field is refused.
        let path = format!("{mount}/models?client_version=0.46.0");
        let body = json!({ "client_version": "0.46.0" });
        let refused = server.call(Method::GET, &path, Some(&server.admin), Some(&body)).error_fields();
        assert_eq!(refused, (400, "invalid_parameter".to_owned(), Some("client_version".to_owned())));
    }
}

#[test]
fn every_operation_has_a_unique_name_and_documents_its_errors() {
    let server = Server::start();
    let document = server.raw(Method::GET, "/openapi.json", None, &[], None).ok();
    let mut names = std::collections::HashSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            let name = operation["operationId"].as_str().unwrap_or_else(|| panic!("{method} {path} has no name"));
            assert!(names.insert(name), "{method} {path} has the name of another operation: {name}");
            let error = match path {
                _ if path.starts_with("/api/") => "OllamaError",
                _ if path.starts_with("/v2/") => "CohereError",
                _ if path.contains("/v1/messages") => "AnthropicError",
                _ => "Error",
            };
            let documented = format!("#/components/responses/{error}");
            assert_eq!(operation["responses"]["default"]["$ref"], documented, "{method} {path}");
        }
    }
}

#[test]
fn an_unsupported_method_is_405_with_allow() {
    let server = Server::start();
    for (path, allow) in
        [("/v1/models", "GET, HEAD"), ("/v1/api-keys", "GET, HEAD, POST"), ("/openai/v1/embeddings", "POST")]
    {
        let response = server.call(Method::DELETE, path, Some(&server.admin), None);
        assert_eq!(response.error_fields(), (405, "method_not_allowed".to_owned(), None));
        assert_eq!(response.headers["allow"], allow);
    }
    let nowhere = server.get("/v1/nowhere").error_fields();
    assert_eq!(nowhere, (404, "not_found".to_owned(), None));
    assert_eq!(server.raw(Method::GET, "/nowhere", None, &[], None).error_fields().0, 404);
}

#[test]
fn only_health_and_signed_urls_need_no_key() {
    let server = Server::start();
    let document = server.raw(Method::GET, "/openapi.json", None, &[], None).ok();
    let open =
        |(path, item): (&String, &Value)| item.as_object().unwrap().values().any(is_public).then(|| path.clone());
    let open: Vec<String> = document["paths"].as_object().unwrap().iter().filter_map(open).collect();
    let probes = ["/healthz", "/readyz", "/health", "/ping", "/version"];
    assert!(probes.iter().all(|path| open.iter().any(|found| found == path)), "{open:?}");
    let others: Vec<&String> = open.iter().filter(|path| !probes.contains(&path.as_str())).collect();
    assert_eq!(others, ["/v1/images/files/{image_id}"]);
    let nothing = format!("/v1/images/files/pic_{}", "0".repeat(32));
    assert_eq!(server.raw(Method::GET, &nothing, None, &[], None).error_fields().1, "invalid_signature");
}

#[test]
fn health_needs_no_key() {
    let server = Server::start();
    for path in ["/healthz", "/readyz", "/health", "/ping", "/version"] {
        let response = server.raw(Method::GET, path, None, &[], None);
        assert_eq!(response.status, 200, "{}", response.text);
        assert!(response.headers.contains_key("x-request-id"));
        let _body: Value = response.json();
    }
}

#[test]
fn only_allowed_hosts_are_answered() {
    let server = Server::start_configured(&crate::tiny_model::TinyModel::default(), |config| {
        config.allowed_hosts = vec!["ai.example.org".to_owned()];
    });
    for path in ["/", "/healthz", "/v1/models", "/openapi.json", "/nowhere"] {
        for (host, own) in [("127.0.0.1", true), ("ai.example.org:8080", true), ("evil.example", false), ("", false)] {
            let response = server.raw(Method::GET, path, Some(&server.admin), &[("host", host)], None);
            assert_eq!(response.status != 421, own, "{host}{path}: {}", response.text);
            if !own {
                assert_eq!(response.error_fields(), (421, "misdirected_request".to_owned(), None));
            }
        }
    }
}

#[test]
fn the_dashboard_is_served_with_a_content_security_policy() {
    let server = Server::start();
    let page = server.raw(Method::GET, "/", None, &[], None);
    assert_eq!((page.status, page.headers["content-type"].to_str().unwrap()), (200, "text/html; charset=utf-8"));
    assert!(page.headers["content-security-policy"].to_str().unwrap().starts_with("default-src 'none'"));
    assert_eq!(server.raw(Method::GET, "/assets/../Cargo.toml", None, &[], None).status, 404);
    assert_eq!(server.raw(Method::GET, "/assets/%2e%2e/Cargo.toml", None, &[], None).status, 404);
    let same = server.raw(Method::GET, "/", None, &[("if-none-match", page.headers["etag"].to_str().unwrap())], None);
    assert_eq!((same.status, same.text.as_str()), (304, ""));
    let other = server.raw(Method::POST, "/", None, &[], None);
    assert_eq!(other.error_fields().0, 405);
    assert_eq!(other.headers["allow"], "GET, HEAD");
}
