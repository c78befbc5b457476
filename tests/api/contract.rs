//! The fifteen endpoints of the service's contract: each field of its tables, on both mounts.
//!
//! A row has valid values for the fields of an endpoint. The test checks that a request with all fields succeeds, that
//! a request with only the required fields succeeds, and that the error for a missing field or a field of another type
//! names the field.

use reqwest::Method;
use serde_json::{Map, Value, json};

use crate::server::{EMBEDDER, IMAGE_MODEL, MODEL, Response, Server};

struct Endpoint {
    number: u8,
    method: Method,
    path: String,
    fields: Vec<Field>,
}

struct Field {
    name: &'static str,
    good: Value,
    wrong: Value,
    required: bool,
}

fn required(name: &'static str, good: Value, wrong: Value) -> Field {
    Field { name, good, wrong, required: true }
}

fn optional(name: &'static str, good: Value, wrong: Value) -> Field {
    Field { name, good, wrong, required: false }
}

/// The resources that the requests refer to.
struct World {
    project: String,
    key: String,
    agent: String,
    job: String,
}

fn setup(server: &Server) -> World {
    let text = |value: &Value| value["id"].as_str().unwrap().to_owned();
    let project = text(&server.post("/v1/projects", &json!({ "name": "contract" })).ok());
    let key = text(&server.post("/v1/api-keys", &json!({ "name": "k", "project_id": project })).ok());
    let agent = text(&server.post("/v1/agents", &json!({ "name": "a" })).ok());
    let file = upload(server, &server.admin);
    let job = text(&server.post("/v1/fine_tuning/jobs", &json!({ "model": MODEL, "training_file": file })).ok());
    World { project, key, agent, job }
}

/// Uploads a training file in the same way as OpenAI's clients.
pub fn upload(server: &Server, key: &str) -> String {
    let line = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#;
    let body = format!(
        "--x\r\ncontent-disposition: form-data; name=\"purpose\"\r\n\r\nfine-tune\r\n--x\r\ncontent-disposition: form-data; name=\"file\"; filename=\"t.jsonl\"\r\ncontent-type: application/octet-stream\r\n\r\n{line}\n\r\n--x--\r\n"
    );
    let headers = [("content-type", "multipart/form-data; boundary=x")];
    let response = server.raw(Method::POST, "/v1/files", Some(key), &headers, Some(body.into_bytes()));
    response.ok()["id"].as_str().unwrap().to_owned()
}

fn endpoints(setup: &World) -> Vec<Endpoint> {
    let World { project, key, agent, job } = setup;
    let name = || required("name", json!("a name"), json!(5));
    let messages = || json!([{ "role": "system", "content": "s" }, { "role": "user", "content": "hi" }, { "role": "assistant", "content": "ho" }, { "role": "user", "content": "?" }]);
    let tools = json!([{ "type": "function", "function": { "name": "f", "parameters": { "type": "object" } } }]);
    let later = "2999-01-01T00:00:00Z";
    let conversation = "conv_000000000000000000000000000000ff";
    let row = |number, method, path: String, fields| Endpoint { number, method, path, fields };
    vec![
        row(
            1,
            Method::GET,
            "/api-keys".into(),
            vec![
                required("project_id", json!(project), json!("proj_none")),
                optional("limit", json!(5), json!("five")),
            ],
        ),
        row(
            2,
            Method::POST,
            "/api-keys".into(),
            vec![
                name(),
                required("project_id", json!(project), json!(7)),
                optional("expires_at", json!(later), json!("tomorrow")),
            ],
        ),
        row(
            3,
            Method::PUT,
            format!("/api-keys/{key}"),
            vec![
                optional("grace_period_seconds", json!(60), json!("long")),
                optional("reason", json!("leaked"), json!(1)),
            ],
        ),
        row(
            4,
            Method::PATCH,
            format!("/api-keys/{key}"),
            vec![name(), optional("expires_at", json!(later), json!(12))],
        ),
        row(
            5,
            Method::POST,
            "/chat/completions".into(),
            vec![
                required("model", json!(MODEL), json!(1)),
                required("messages", messages(), json!("hi")),
                optional("stream", json!(false), json!("yes")),
                optional("max_tokens", json!(3), json!("few")),
            ],
        ),
        row(
            6,
            Method::PUT,
            format!("/conversations/{conversation}"),
            vec![required("messages", messages(), json!({})), optional("metadata", json!({ "a": 1 }), json!([]))],
        ),
        row(
            7,
            Method::PATCH,
            format!("/projects/{project}/rate-limits"),
            vec![
                optional("requests_per_minute", json!(6000), json!("many")),
                optional("burst_limit", json!(6000), json!(true)),
            ],
        ),
        row(
            8,
            Method::GET,
            format!("/projects/{project}/usage"),
            vec![
                optional("start_time", json!("2026-11-01T00:00:00Z"), json!("once")),
                optional("end_time", json!("2026-11-02T00:00:00Z"), json!("now")),
            ],
        ),
        row(
            9,
            Method::PATCH,
            format!("/fine_tuning/jobs/{job}"),
            vec![optional("name", json!("a name"), json!(5)), optional("metadata", json!({ "a": 1 }), json!("b"))],
        ),
        row(
            10,
            Method::PATCH,
            format!("/agents/{agent}"),
            vec![optional("instructions", json!("Be brief."), json!({})), optional("tools", tools, json!("none"))],
        ),
        row(
            11,
            Method::GET,
            format!("/models/{MODEL}"),
            vec![
                optional("include_limits", json!(true), json!("perhaps")),
                optional("project_id", json!(project), json!("proj_none")),
            ],
        ),
        row(
            12,
            Method::POST,
            "/images/generations".into(),
            vec![
                required("model", json!(IMAGE_MODEL), json!(1)),
                required("prompt", json!("a cat"), json!(["a cat"])),
                optional("size", json!("64x64"), json!("large")),
            ],
        ),
        row(
            13,
            Method::POST,
            "/embeddings".into(),
            vec![
                required("model", json!(EMBEDDER), json!(1)),
                required("input", json!(["a", "b"]), json!({})),
                optional("dimensions", json!(32), json!("all")),
            ],
        ),
        row(
            14,
            Method::PUT,
            format!("/projects/{project}"),
            vec![name(), optional("environment", json!("test"), json!(1))],
        ),
        row(
            15,
            Method::POST,
            "/projects".into(),
            vec![
                name(),
                optional("environment", json!("test"), json!(1)),
                optional("metadata", json!({ "a": 1 }), json!("b")),
            ],
        ),
    ]
}

fn object<'a>(fields: impl Iterator<Item = (&'a str, &'a Value)>) -> Map<String, Value> {
    fields.map(|(name, value)| (name.to_owned(), value.clone())).collect()
}

/// Sends the fields of a GET in the query string, and those of other methods in the body.
fn send(server: &Server, mount: &str, endpoint: &Endpoint, fields: &Map<String, Value>) -> Response {
    let path = format!("{mount}{}", endpoint.path);
    if endpoint.method != Method::GET {
        return server.call(endpoint.method.clone(), &path, Some(&server.admin), Some(&Value::Object(fields.clone())));
    }
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let query: Vec<String> = fields.iter().map(|(name, value)| format!("{name}={}", plain(value))).collect();
    server.get(&format!("{path}?{}", query.join("&")))
}

fn assert_success(server: &Server, mount: &str, endpoint: &Endpoint, fields: &Map<String, Value>) {
    let response = send(server, mount, endpoint, fields);
    let what = format!("endpoint {} on {mount} with {fields:?}: {}", endpoint.number, response.text);
    assert_eq!(response.status, 200, "{what}");
    assert_eq!(response.headers["content-type"], "application/json", "{what}");
    let body = response.json();
    if mount == "/v1" {
        assert_eq!((&body["object"], &body["status"]), (&json!("service.resource"), &json!("succeeded")), "{what}");
        assert!(body["id"].as_str().is_some_and(|id| !id.is_empty()), "{what}");
    } else if endpoint.number == 12 {
        // OpenAI's image responses have no `object`.
        assert!(body["created"].is_i64() && body["data"][0]["b64_json"].is_string(), "{what}");
    } else {
        assert!(body["object"].as_str().is_some_and(|object| object != "service.resource"), "{what}");
    }
}

#[test]
fn each_field_of_the_fifteen_endpoints_is_accepted_required_and_validated() {
    let server = Server::with_all_workloads();
    let setup = setup(&server);
    for mount in ["/v1", "/openai/v1"] {
        let endpoints = endpoints(&setup);
        assert_eq!(endpoints.iter().map(|endpoint| endpoint.number).collect::<Vec<_>>(), (1..=15).collect::<Vec<_>>());
        for endpoint in &endpoints {
            let all = object(endpoint.fields.iter().map(|field| (field.name, &field.good)));
            assert_success(&server, mount, endpoint, &all);
            let must =
                object(endpoint.fields.iter().filter(|field| field.required).map(|field| (field.name, &field.good)));
            assert_success(&server, mount, endpoint, &must);
            for field in &endpoint.fields {
                let what = format!("endpoint {} on {mount}: {}", endpoint.number, field.name);
                let mut wrong = all.clone();
                wrong.insert(field.name.to_owned(), field.wrong.clone());
                let (status, code, param) = send(&server, mount, endpoint, &wrong).error_fields();
                let expected = if field.name == "project_id" && field.wrong.is_string() { 404 } else { 400 };
                assert_eq!(status, expected, "{what}: {code}");
                assert!(param.as_deref().is_some_and(|param| param.starts_with(field.name)), "{what}: {param:?}");
                if field.required {
                    let mut without = all.clone();
                    without.remove(field.name);
                    let missed = send(&server, mount, endpoint, &without).error_fields();
                    assert_eq!(missed, (400, "invalid_parameter".to_owned(), Some(field.name.to_owned())), "{what}");
                }
            }
        }
    }
}

#[test]
fn the_stream_of_endpoint_5_has_openais_format_on_both_mounts() {
    let server = Server::with_all_workloads();
    let body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "hi" }], "stream": true, "max_tokens": 3, "ignore_eos": true });
    for mount in ["/v1", "/openai/v1"] {
        let response = server.post(&format!("{mount}/chat/completions"), &body);
        assert!(response.headers["content-type"].to_str().unwrap().starts_with("text/event-stream"));
        assert!(response.text.ends_with("data: [DONE]\n\n"));
        for line in response.text.lines().filter_map(|line| line.strip_prefix("data: {")) {
            let chunk: Value = serde_json::from_str(&format!("{{{line}")).unwrap();
            assert_eq!(chunk["object"], "chat.completion.chunk");
        }
    }
}
