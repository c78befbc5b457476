//! Needs of browsers and simple HTTP clients: requests from pages of other origins, trailing slashes, and HEAD.

use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{Headers, Response, Server};
use crate::tiny_model::TinyModel;

const PAGE: &str = "https://app.example.org";
const PATHS: [&str; 2] = ["/v1/models", "/openai/v1/models"];
const PREFLIGHT: Headers<'static> = &[
    ("access-control-request-method", "POST"),
    ("access-control-request-headers", "authorization,content-type,idempotency-key,x-stainless-os"),
];

fn start(origins: &[&str]) -> Server {
    Server::start_configured(&TinyModel::default(), |config| {
        config.cors_origins = origins.iter().map(|origin| origin.parse().unwrap()).collect();
    })
}

fn ask(server: &Server, method: Method, path: &str, origin: &str, more: Headers<'_>) -> Response {
    let headers: Vec<_> = [("origin", origin)].into_iter().chain(more.iter().copied()).collect();
    server.raw(method, path, None, &headers, None)
}

#[test]
fn a_preflight_of_a_configured_origin_needs_no_key() {
    let server = start(&["http://localhost:3000", PAGE]);
    for path in ["/v1/models", "/openai/v1/chat/completions", "/v1/nothing", "/v1/models/"] {
        for origin in [PAGE, "http://localhost:3000"] {
            let response = ask(&server, Method::OPTIONS, path, origin, PREFLIGHT);
            assert_eq!((response.status, response.text.as_str()), (204, ""), "{path}");
            assert_eq!(response.header("access-control-allow-origin"), Some(origin));
            assert_eq!(response.header("access-control-allow-methods"), Some("GET, HEAD, POST, PUT, PATCH, DELETE"));
            assert_eq!(response.header("access-control-allow-headers"), Some(PREFLIGHT[1].1));
            assert_eq!(response.header("access-control-max-age"), Some("7200"));
            assert_eq!(response.header("access-control-allow-credentials"), None);
            assert!(response.header("vary").unwrap().contains("origin") && response.header("x-request-id").is_some());
        }
    }
}

#[test]
fn other_origins_and_other_paths_are_answered_as_before() {
    let server = start(&[PAGE]);
    for origin in ["https://evil.example", "http://app.example.org", "https://app.example.org:8443", "null", ""] {
        let response = ask(&server, Method::OPTIONS, "/v1/models", origin, PREFLIGHT);
        assert_eq!(response.error_fields().0, 401, "{origin}");
        assert_eq!(response.header("access-control-allow-origin"), None, "{origin}");
        let response = ask(&server, Method::GET, "/v1/models", origin, &[]);
        assert_eq!((response.header("access-control-allow-origin"), response.header("vary")), (None, Some("origin")));
    }
    // The page is one of two.
    for origins in [[PAGE, "https://evil.example"], ["https://evil.example", PAGE]] {
        let headers = origins.map(|origin| ("origin", origin));
        let response = server.raw(Method::GET, "/v1/models", None, &headers, None);
        assert_eq!(response.header("access-control-allow-origin"), None, "{origins:?}");
    }
    // An OPTIONS request that is no preflight.
    assert_eq!(ask(&server, Method::OPTIONS, "/v1/models", PAGE, &[]).error_fields().0, 401);
    for path in ["/", "/healthz", "/openapi.json", "/metrics", "/v1x/models"] {
        for (method, headers) in [(Method::OPTIONS, PREFLIGHT), (Method::GET, &[] as Headers<'_>)] {
            let response = ask(&server, method, path, PAGE, headers);
            assert_eq!(response.header("access-control-allow-origin"), None, "{path}");
            assert!(response.status != 204, "{path}");
        }
    }
}

#[test]
fn without_the_option_no_page_may_call_the_api() {
    let server = Server::start();
    for path in PATHS {
        let response = ask(&server, Method::OPTIONS, path, PAGE, PREFLIGHT);
        assert_eq!(response.error_fields().0, 401);
        let with_key = server.raw(Method::OPTIONS, path, Some(&server.admin), PREFLIGHT, None);
        assert_eq!(with_key.error_fields().0, 405);
        for response in [response, with_key, ask(&server, Method::GET, path, PAGE, &[])] {
            assert_eq!((response.header("access-control-allow-origin"), response.header("vary")), (None, None));
        }
    }
}

#[test]
fn errors_and_streams_can_be_read_by_the_page() {
    for (configured, allowed) in [(PAGE, PAGE), ("*", "*")] {
        let server = start(&[configured]);
        let (project, _, key) = server.tenant("t");
        server.patch(&format!("/v1/projects/{project}/rate-limits"), &json!({ "requests_per_minute": 4 })).ok();
        let call = |method: Method, path: &str, key: Option<&str>, body: Option<Value>| {
            let headers = [("origin", PAGE), ("content-type", "application/json")];
            server.raw(method, path, key, &headers, body.map(|body| body.to_string().into_bytes()))
        };
        let chat = json!({ "model": "tiny", "messages": [{ "role": "user", "content": "a" }], "stream": true, "max_tokens": 2 });
        let key = Some(key.as_str());
        let cases = [
            (401, call(Method::GET, "/v1/models", None, None)),
            (200, call(Method::POST, "/openai/v1/chat/completions", key, Some(chat.clone()))),
            (404, call(Method::GET, "/v1/nothing", key, None)),
            (405, call(Method::DELETE, "/v1/models", key, None)),
            (400, call(Method::POST, "/v1/chat/completions", key, Some(json!({})))),
            (429, call(Method::POST, "/v1/chat/completions", key, Some(chat))),
        ];
        for (status, response) in cases {
            assert_eq!(response.status, status, "{}", response.text);
            assert_eq!(response.header("access-control-allow-origin"), Some(allowed));
            assert_eq!(response.header("access-control-expose-headers"), Some("*"));
            assert_eq!(response.header("vary"), Some("origin"));
            if status == 200 {
                assert!(response.text.ends_with("data: [DONE]\n\n"), "{}", response.text);
            }
        }
        assert_eq!(ask(&server, Method::OPTIONS, "/v1/models", PAGE, PREFLIGHT).status, 204);
    }
}

#[test]
fn a_trailing_slash_makes_no_difference() {
    let server = Server::start();
    let gets = crate::routes::get_routes(&server);
    assert!(gets.len() >= 20, "{gets:?}");
    for path in gets.iter().map(String::as_str).chain(["/healthz", "/readyz", "/openapi.json", "/metrics"]) {
        let (plain, slashed) = (server.get(path), server.get(&format!("{path}/?x=1")));
        assert_eq!(plain.status, slashed.status, "{path}: {}", slashed.text);
        if plain.status != 200 {
            assert_eq!(plain.error_fields(), slashed.error_fields(), "{path}");
        }
    }
    for mount in ["/v1", "/openai/v1"] {
        let project = server.post(&format!("{mount}/projects/"), &json!({ "name": "p" })).ok()["id"].clone();
        let path = format!("{mount}/projects/{}/", project.as_str().unwrap());
        assert_eq!(server.put(&path, &json!({ "name": "q" })).ok()["name"], "q");
        assert_eq!(server.get(&format!("{mount}/")).error_fields().0, 404);
    }
    assert_eq!(server.delete("/v1/models/").headers["allow"], "GET, HEAD");
}

#[test]
fn head_is_get_without_the_body() {
    let server = Server::start();
    let key = Some(server.admin.as_str());
    let mut paths = crate::routes::get_routes(&server);
    paths.extend(["/", "/assets/js/main.js", "/healthz", "/readyz", "/openapi.json", "/v1/nothing"].map(str::to_owned));
    for path in paths {
        for key in [key, None] {
            let [get, head] = [Method::GET, Method::HEAD].map(|method| server.raw(method, &path, key, &[], None));
            assert_eq!((head.status, head.bytes.len()), (get.status, 0), "{path}");
            let names = |response: &Response| {
                let mut names: Vec<_> = response.headers.keys().map(|name| name.as_str().to_owned()).collect();
                names.sort();
                names
            };
            assert_eq!(names(&head), names(&get), "{path}");
            assert_eq!(head.header("content-type"), get.header("content-type"), "{path}");
            let length: usize = head.header("content-length").unwrap().parse().unwrap();
            // IDs and times differ, but not by much.
            assert!(length.abs_diff(get.bytes.len()) < 8, "{path}: {length}");
        }
    }
    let post_only = server.raw(Method::HEAD, "/v1/embeddings", key, &[], None);
    assert_eq!((post_only.status, post_only.header("allow"), post_only.bytes.len()), (405, Some("POST"), 0));
}
