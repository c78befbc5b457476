use reqwest::Method;
use serde_json::json;

use crate::server::{Headers, MODEL, Server};

const JSON: (&str, &str) = ("content-type", "application/json");

#[test]
fn unreadable_bodies_are_refused_with_the_reason() {
    let server = Server::start();
    let deep = format!("{{\"name\": \"x\", \"metadata\": {}1{}}}", "[".repeat(100_000), "]".repeat(100_000));
    let cases: Vec<(&str, Vec<u8>, Headers<'_>, u16)> = vec![
        ("malformed", b"{\"name\": ".to_vec(), &[JSON], 400),
        ("trailing", b"{\"name\": \"x\"} {}".to_vec(), &[JSON], 400),
        ("deep", deep.into_bytes(), &[JSON], 400),
        ("broken UTF-8", b"{\"name\": \"\xff\xfe\"}".to_vec(), &[JSON], 400),
        ("lone surrogate", br#"{"name": "\ud800"}"#.to_vec(), &[JSON], 400),
        ("wrong type", b"[1, 2]".to_vec(), &[JSON], 400),
        ("twice", b"{\"name\": \"x\", \"name\": \"y\"}".to_vec(), &[JSON], 400),
        ("form", b"name=x".to_vec(), &[("content-type", "application/x-www-form-urlencoded")], 400),
        ("no content type", b"{\"name\": \"x\"}".to_vec(), &[], 400),
        ("compressed", b"\x1f\x8b".to_vec(), &[JSON, ("content-encoding", "gzip")], 415),
        ("compressed twice", b"\x1f\x8b".to_vec(), &[JSON, ("content-encoding", "identity, gzip")], 415),
        ("on two lines", b"{}".to_vec(), &[JSON, ("content-encoding", "identity"), ("content-encoding", "br")], 415),
        ("two types", b"{\"name\": \"x\"}".to_vec(), &[JSON, ("content-type", "text/plain")], 400),
        ("huge", vec![b' '; 9 << 20], &[JSON], 413),
    ];
    for (name, body, headers, status) in cases {
        let response = server.raw(Method::POST, "/v1/projects", Some(&server.admin), headers, Some(body));
        assert_eq!(response.error_fields().0, status, "{name}: {}", response.text);
    }
    assert_eq!(server.get("/v1/projects").ok()["data"].as_array().unwrap().len(), 1, "no project was created");
}

#[test]
fn a_body_whose_content_encoding_is_identity_is_accepted() {
    let server = Server::start();
    for encoding in ["identity", "IDENTITY", " identity ", "identity,\tIdentity , ", "", ","] {
        let headers = [JSON, ("content-encoding", encoding)];
        let body = Some(b"{\"name\": \"plain\"}".to_vec());
        server.raw(Method::POST, "/v1/projects", Some(&server.admin), &headers, body).ok();
    }
    let twice = [JSON, ("content-encoding", "identity"), ("content-encoding", "identity")];
    let body = Some(b"{\"name\": \"plain\"}".to_vec());
    server.raw(Method::POST, "/v1/projects", Some(&server.admin), &twice, body).ok();
}

#[test]
fn a_byte_order_mark_before_a_body_is_skipped_but_other_encodings_are_refused() {
    let server = Server::start();
    let send =
        |body: &[u8]| server.raw(Method::POST, "/v1/projects", Some(&server.admin), &[JSON], Some(body.to_vec()));
    send("\u{feff}{\"name\": \"marked\"}".as_bytes()).ok();
    assert_eq!(send("\u{feff}".as_bytes()).error_fields().2.as_deref(), Some("name"));
    let text = "{\"name\": \"wide\"}";
    let little: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let big: Vec<u8> = "\u{feff}".encode_utf16().chain(text.encode_utf16()).flat_map(u16::to_be_bytes).collect();
    for body in [little, big] {
        let response = send(&body);
        assert_eq!(response.error_fields().0, 400);
        assert!(response.text.contains("UTF-16") && response.text.contains("Send it as UTF-8"), "{}", response.text);
    }
    let ollama = format!("\u{feff}{}", json!({ "model": MODEL })).into_bytes();
    server.raw(Method::POST, "/api/show", Some(&server.admin), &[], Some(ollama)).ok();
}

#[test]
fn a_number_that_cannot_be_kept_is_refused_by_name() {
    let server = Server::start();
    let send = |path: &str, body: &str| {
        server.raw(Method::POST, path, Some(&server.admin), &[JSON], Some(body.as_bytes().to_vec()))
    };
    let conversation = |number: &str| format!(r#"{{"metadata": {{"a": [1, {{"b": {number}}}]}}}}"#);
    for number in ["18446744073709551616", "-9223372036854775809", "0.1234567890123456789"] {
        let refused = send("/v1/conversations", &conversation(number));
        assert_eq!(refused.error_fields().0, 400, "{}", refused.text);
        assert!(refused.text.contains(number) && refused.text.contains("metadata.a[1].b"), "{}", refused.text);
    }
    for number in ["18446744073709551615", "9007199254740993", "-9223372036854775808", "0.1", "1.0"] {
        let made = send("/v1/conversations", &conversation(number));
        assert_eq!(made.status, 200, "{}", made.text);
        assert!(made.text.replace(' ', "").contains(&format!("\"b\":{number}")), "{}", made.text);
    }
}

#[test]
fn a_key_that_is_sent_twice_is_refused() {
    let server = Server::start();
    let bearer = format!("Bearer {}", server.admin);
    let get = |headers: Headers<'_>| server.raw(Method::GET, "/v1/models", None, headers, None);
    get(&[("x-api-key", &server.admin)]).ok();
    for headers in [
        [("x-api-key", &*server.admin), ("x-api-key", "opk_other")],
        [("x-api-key", "opk_other"), ("x-api-key", &*server.admin)],
        [("authorization", &bearer), ("authorization", &bearer)],
    ] {
        let refused = get(&headers);
        assert_eq!((refused.status, refused.text.contains("sent more than once")), (401, true), "{}", refused.text);
    }
}

#[test]
fn an_array_is_not_accepted_as_an_object() {
    let server = Server::start();
    let (_, key, secret) = server.tenant("arrays");
    let rotated = server.put(&format!("/v1/api-keys/{key}"), &json!([null, null]));
    assert_eq!(rotated.error_fields().0, 400, "{}", rotated.text);
    assert_eq!(server.call(Method::GET, "/v1/models", Some(&secret), None).status, 200, "nothing was rotated");
    let chat = server.post("/v1/chat/completions", &json!({ "model": MODEL, "messages": [["user", "hi"]] }));
    assert_eq!(
        chat.error_fields(),
        (400, "invalid_parameter".to_owned(), Some("messages[0]".to_owned())),
        "{}",
        chat.text
    );
}

#[test]
fn an_invalid_field_is_named() {
    let server = Server::start();
    let (project, _, _) = server.tenant("fields");
    let long = "x".repeat(300);
    let cases = [
        ("/v1/projects", json!({}), "name"),
        ("/v1/projects", json!({ "name": 5 }), "name"),
        ("/v1/projects", json!({ "name": "" }), "name"),
        ("/v1/projects", json!({ "name": "  " }), "name"),
        ("/v1/projects", json!({ "name": "a\u{0}b" }), "name"),
        ("/v1/projects", json!({ "name": long }), "name"),
        ("/v1/projects", json!({ "name": "x", "metadata": [] }), "metadata"),
        ("/v1/projects", json!({ "name": "x", "nmae": "y" }), "nmae"),
        ("/v1/api-keys", json!({ "name": "x" }), "project_id"),
        ("/v1/api-keys", json!({ "name": "x", "project_id": project, "expires_at": "tomorrow" }), "expires_at"),
        (
            "/v1/api-keys",
            json!({ "name": "x", "project_id": project, "expires_at": "2020-01-01T00:00:00Z" }),
            "expires_at",
        ),
        ("/v1/api-keys", json!({ "name": "x", "project_id": project, "scopes": ["root"] }), "scopes"),
    ];
    for (path, body, param) in cases {
        let response = server.post(path, &body);
        let (status, code, named) = response.error_fields();
        assert_eq!((status, code.as_str()), (400, "invalid_parameter"), "{body}");
        let named = named.unwrap_or_else(|| panic!("no param for {body}: {}", response.text));
        assert!(named.starts_with(param), "{body} names {named}: {}", response.text);
    }
}

#[test]
fn pagination_parameters_are_checked() {
    let server = Server::start();
    for (query, param) in [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=many", "limit"),
        ("cursor=made-up", "cursor"),
        ("limit=1&limit=2", "limit"),
        ("limit=many&order=up", "limit"),
    ] {
        let (status, _, named) = server.get(&format!("/v1/projects?{query}")).error_fields();
        assert_eq!((status, named.as_deref()), (400, Some(param)), "{query}");
    }
}

#[test]
fn an_invalid_chat_request_is_refused_by_field() {
    let server = Server::start();
    let hello = json!([{ "role": "user", "content": "hi" }]);
    let with = |field: &str, value: serde_json::Value| {
        let mut body = json!({ "model": MODEL, "messages": hello, "max_tokens": 2 });
        body[field] = value;
        body
    };
    let cases = [
        (with("messages", json!([])), "messages"),
        (with("messages", json!([{ "role": "robot", "content": "x" }])), "messages[0].role"),
        (with("messages", json!([{ "role": "user" }])), "messages[0].content"),
        (with("messages", json!([{ "role": "user", "content": 5 }])), "messages[0].content"),
        (
            with(
                "messages",
                json!([{ "role": "user", "content": [{ "type": "image_url", "image_url": { "url": "x" } }] }]),
            ),
            "messages[0].content[0].type",
        ),
        (with("temperature", json!(3)), "temperature"),
        (with("temperature", json!("hot")), "temperature"),
        (with("top_p", json!(-1)), "top_p"),
        (with("n", json!(0)), "n"),
        (with("n", json!(1000)), "n"),
        (with("max_tokens", json!(0)), "max_tokens"),
        (with("max_tokens", json!(-2)), "max_tokens"),
        (with("max_completion_tokens", json!(9)), "max_completion_tokens"),
        (with("stop", json!(["a", "x".repeat(999)])), "stop[1]"),
        (with("logit_bias", json!({ "x": 1 })), "logit_bias.x"),
        (with("logit_bias", json!({ "1": 1000 })), "logit_bias.1"),
        (with("logit_bias", json!({ "99999999": 1 })), "logit_bias.99999999"),
        (with("top_logprobs", json!(5)), "top_logprobs"),
        (with("stream_options", json!({ "include_usage": true })), "stream_options"),
        (with("functions", json!([{ "name": "f" }])), "functions"),
        (with("function_call", json!({ "name": "f" })), "function_call"),
        (with("temprature", json!(1)), "temprature"),
    ];
    for (body, param) in cases {
        for mount in ["/v1", "/openai/v1"] {
            let response = server.post(&format!("{mount}/chat/completions"), &body);
            let (status, code, named) = response.error_fields();
            assert_eq!((status, code.as_str()), (400, "invalid_parameter"), "{body}: {}", response.text);
            assert_eq!(named.as_deref(), Some(param), "{}", response.text);
        }
    }
    let unknown = server.post("/v1/chat/completions", &with("model", json!("gpt-5"))).error_fields();
    assert_eq!(unknown, (404, "model_not_found".to_owned(), Some("model".to_owned())));
}
