use std::path::Path;

use outpost::clock_rng::Timestamp;
use outpost::storage::{limits, quota_usage};
use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{Headers, Response, Server};
use crate::store_location::{check_store, open_store};

const MOUNTS: [&str; 2] = ["/v1", "/openai/v1"];

pub fn user_message(text: &str) -> Value {
    json!({ "role": "user", "content": text })
}

pub fn create(server: &Server, body: &Value) -> String {
    server.post("/v1/conversations", body).ok()["id"].as_str().unwrap().to_owned()
}

/// A write with `If-Match`.
fn write_if_match(server: &Server, method: Method, path: &str, tag: &str, body: Option<&Value>) -> Response {
    let headers: Headers<'_> = &[("content-type", "application/json"), ("if-match", tag)];
    server.raw(method, path, Some(&server.admin), headers, body.map(|body| body.to_string().into_bytes()))
}

/// One message of each kind that can be stored.
pub fn all_message_kinds() -> Value {
    json!([
        { "role": "developer", "content": "Be brief." },
        { "role": "system", "content": [{ "type": "text", "text": "Be kind.", "cache": { "ttl": 1.50 } }] },
        { "role": "user", "name": "ada", "content": [
            { "type": "text", "text": "What is this? \u{1F980}" },
            { "type": "image_url", "image_url": { "url": "https://example.org/a.png", "detail": "low" } },
            { "type": "input_audio", "input_audio": { "data": "AAAA", "format": "wav" } },
            { "type": "file", "file": { "file_id": "file-1" } },
        ] },
        { "role": "assistant", "content": null, "tool_calls": [
            { "id": "call_1", "type": "function", "function": { "name": "look", "arguments": "{\"x\": 1}" } },
        ] },
        { "role": "tool", "tool_call_id": "call_1", "content": "a crab" },
        { "role": "assistant", "content": null, "refusal": "I will not say." },
        { "role": "assistant", "content": "A crab.", "refusal": null, "annotations": [], "audio": null },
    ])
}

#[test]
fn a_conversation_returns_its_exact_content_on_both_mounts() {
    let server = Server::start();
    for (mount, object) in [("/v1", "service.resource"), ("/openai/v1", "conversation")] {
        let metadata = json!({ "topic": "crabs", "nested": [1, { "a": null }] });
        let created = server
            .post(&format!("{mount}/conversations"), &json!({ "messages": all_message_kinds(), "metadata": metadata }));
        assert_eq!(created.headers["etag"], "\"1\"");
        let created = created.ok();
        assert_eq!(
            (&created["object"], &created["version"], &created["message_count"]),
            (&json!(object), &json!(1), &json!(7))
        );
        assert_eq!(created.get("messages"), None, "the response to a write omits the transcript");
        assert_eq!(created.get("status"), (mount == "/v1").then_some(&json!("succeeded")));
        let path = format!("{mount}/conversations/{}", created["id"].as_str().unwrap());
        let read = server.get(&path);
        assert_eq!(read.headers["etag"], "\"1\"");
        let read = read.ok();
        assert_eq!((&read["messages"], &read["metadata"]), (&all_message_kinds(), &metadata));
        for field in ["id", "object", "version", "project_id", "created_at", "updated_at"] {
            assert_eq!(read[field], created[field], "{field}");
        }
        let deleted_body = server.delete(&path).ok();
        let deleted = if mount == "/v1" { "service.resource" } else { "conversation.deleted" };
        assert_eq!(
            (&deleted_body["deleted"], &deleted_body["object"], &deleted_body["id"]),
            (&json!(true), &json!(deleted), &created["id"])
        );
        assert_eq!(server.get(&path).error_fields().0, 404);
        assert_eq!(server.delete(&path).error_fields().0, 404);
    }
}

#[test]
fn numbers_beyond_float_precision_are_preserved() {
    let server = Server::start();
    let part = r#"{"type":"text","text":"x","exact":[12345678901234567890123, 1.10, "a  b"]}"#;
    let body = format!("{{\"messages\": [ {{ \"role\": \"user\",\n \"content\": [{part}] }} ]}}");
    let headers: Headers<'_> = &[("content-type", "application/json")];
    let created =
        server.raw(Method::POST, "/v1/conversations", Some(&server.admin), headers, Some(body.into_bytes())).ok();
    let text = server.get(&format!("/v1/conversations/{}", created["id"].as_str().unwrap())).text;
    assert!(text.contains(r#""exact":[12345678901234567890123,1.10,"a  b"]"#), "{text}");
}

#[test]
fn put_replaces_a_transcript_or_creates_it() {
    let server = Server::start();
    for (number, mount) in MOUNTS.into_iter().enumerate() {
        let path = format!("{mount}/conversations/conv_{number}0000000000000000000000000000001");
        let created = server
            .put(&path, &json!({ "messages": [user_message("a"), user_message("b")], "metadata": { "k": 1 } }))
            .ok();
        assert_eq!((&created["version"], &created["message_count"]), (&json!(1), &json!(2)));
        let replaced = server.put(&path, &json!({ "messages": [user_message("c")] })).ok();
        assert_eq!((&replaced["version"], &replaced["metadata"]), (&json!(2), &Value::Null));
        assert_eq!(server.get(&path).ok()["messages"], json!([user_message("c")]));
        assert_eq!(server.put(&path, &json!({ "messages": [] })).ok()["message_count"], 0);
        assert_eq!(server.get(&path).ok()["messages"], json!([]));
        let malformed =
            server.put(&format!("{mount}/conversations/conv_xyz"), &json!({ "messages": [] })).error_fields();
        assert_eq!((malformed.0, malformed.1.as_str()), (404, "not_found"));
    }
}

#[test]
fn messages_and_metadata_change_independently() {
    let server = Server::start();
    let id = create(&server, &json!({ "messages": [user_message("a")] }));
    let path = format!("/openai/v1/conversations/{id}");
    let more = json!({ "messages": [user_message("b"), { "role": "assistant", "content": "c" }] });
    let longer = server.post(&format!("{path}/messages"), &more);
    assert_eq!(longer.headers["etag"], "\"2\"");
    assert_eq!(longer.ok()["message_count"], 3);
    let marked = server.patch(&path, &json!({ "metadata": { "a": 1 } })).ok();
    assert_eq!(
        (&marked["version"], &marked["metadata"], &marked["message_count"]),
        (&json!(3), &json!({ "a": 1 }), &json!(3))
    );
    assert_eq!(server.patch(&path, &json!({})).ok()["version"], 3, "a patch without changes creates no version");
    assert_eq!(server.patch(&path, &json!({ "metadata": { "a": 1 } })).ok()["version"], 3);
    let cleared = server.patch(&path, &json!({ "metadata": null })).ok();
    assert_eq!((&cleared["version"], &cleared["metadata"]), (&json!(4), &Value::Null));
    let texts: Vec<Value> =
        server.get(&path).ok()["messages"].as_array().unwrap().iter().map(|m| m["content"].clone()).collect();
    assert_eq!(json!(texts), json!(["a", "b", "c"]));
}

#[test]
fn an_invalid_message_is_refused_with_the_field_path() {
    let server = Server::start();
    let id = create(&server, &json!({}));
    let call = |change: Value| {
        let mut call = json!({ "id": "c", "type": "function", "function": { "name": "f", "arguments": "{}" } });
        call.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        json!({ "role": "assistant", "content": null, "tool_calls": [call] })
    };
    let part = |part: Value| json!({ "role": "user", "content": [{ "type": "text", "text": "x" }, part] });
    let cases = [
        (json!("hello"), ""),
        (json!({ "content": "x" }), ".role"),
        (json!({ "role": "robot", "content": "x" }), ".role"),
        (json!({ "role": 7, "content": "x" }), ".role"),
        (json!({ "role": "user" }), ".content"),
        (json!({ "role": "user", "content": null }), ".content"),
        (json!({ "role": "user", "content": 7 }), ".content"),
        (json!({ "role": "user", "content": [] }), ".content"),
        (json!({ "role": "tool", "tool_call_id": "call_1" }), ".content"),
        (part(json!("x")), ".content[1].type"),
        (part(json!({ "type": "video" })), ".content[1].type"),
        (part(json!({ "type": "text" })), ".content[1].text"),
        (part(json!({ "type": "image_url", "image_url": "x" })), ".content[1].image_url.url"),
        (part(json!({ "type": "input_audio", "input_audio": { "data": "" } })), ".content[1].input_audio.format"),
        (part(json!({ "type": "file" })), ".content[1].file"),
        (part(json!({ "type": "refusal", "refusal": 1 })), ".content[1].refusal"),
        (json!({ "role": "user", "content": "x", "name": 1 }), ".name"),
        (json!({ "role": "user", "content": "x", "refusal": {} }), ".refusal"),
        (json!({ "role": "user", "content": "x", "mood": "good" }), ".mood"),
        (json!({ "role": "assistant", "content": "x", "audio": { "id": "a" } }), ".audio"),
        (json!({ "role": "tool", "content": "x" }), ".tool_call_id"),
        (json!({ "role": "user", "content": "x", "tool_call_id": "c" }), ".tool_call_id"),
        (json!({ "role": "user", "content": "x", "tool_calls": [{}] }), ".tool_calls"),
        (json!({ "role": "assistant", "content": "x", "tool_calls": {} }), ".tool_calls"),
        (call(json!({ "id": "" })), ".tool_calls[0].id"),
        (call(json!({ "type": "custom" })), ".tool_calls[0].type"),
        (call(json!({ "function": { "name": "f" } })), ".tool_calls[0].function.arguments"),
        (call(json!({ "function": { "arguments": "" } })), ".tool_calls[0].function.name"),
    ];
    for (message, field_path) in cases {
        let body = json!({ "messages": [user_message("fine"), message] });
        for mount in MOUNTS {
            let path = format!("{mount}/conversations");
            let responses = [
                server.post(&path, &body),
                server.put(&format!("{path}/{id}"), &body),
                server.post(&format!("{path}/{id}/messages"), &body),
            ];
            for response in responses {
                let expected = (400, "invalid_parameter".to_owned(), Some(format!("messages[1]{field_path}")));
                assert_eq!(response.error_fields(), expected, "{message}: {}", response.text);
            }
        }
    }
    assert_eq!(server.get(&format!("/v1/conversations/{id}")).ok()["version"], 1);
}

#[test]
fn other_invalid_fields_are_named() {
    let server = Server::start();
    let id = create(&server, &json!({}));
    let path = format!("/v1/conversations/{id}");
    let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    let deep: Value = json!({ "role": "user", "content": [{ "type": "text", "text": deep }] });
    server.put(&path, &json!({ "messages": [deep] })).ok();
    let cases = [
        (server.put(&path, &json!({})), "messages"),
        (server.put(&path, &json!({ "messages": "x" })), "messages"),
        (server.put(&path, &json!({ "messages": [], "metadata": [] })), "metadata"),
        (server.put(&path, &json!({ "messages": [], "project_id": "p" })), "project_id"),
        (server.put(&path, &json!({ "messages": [], "version": -1 })), "version"),
        (server.post(&format!("{path}/messages"), &json!({ "messages": [] })), "messages"),
        (
            server.post(&format!("{path}/messages"), &json!({ "messages": [user_message("x")], "metadata": {} })),
            "metadata",
        ),
        (server.patch(&path, &json!({ "metadata": "x" })), "metadata"),
        (server.patch(&path, &json!({ "metadata": { "x": "y".repeat(17_000) } })), "metadata"),
        (server.patch(&path, &json!({ "messages": [] })), "messages"),
        (server.post("/v1/conversations", &json!({ "project_id": 7 })), "project_id"),
        (server.get("/v1/conversations?limit=0"), "limit"),
        (server.get("/v1/conversations?cursor=x"), "cursor"),
    ];
    for (response, param) in cases {
        assert_eq!(
            response.error_fields(),
            (400, "invalid_parameter".to_owned(), Some(param.to_owned())),
            "{}",
            response.text
        );
    }
    let nowhere = json!({ "project_id": "proj_00000000000000000000000000000000" });
    assert_eq!(server.post("/v1/conversations", &nowhere).error_fields().2.as_deref(), Some("project_id"));
}

#[test]
fn a_conversation_has_size_limits() {
    let server = Server::start();
    let many = |count: usize| json!({ "messages": vec![user_message("x"); count] });
    assert_eq!(server.post("/v1/conversations", &many(4097)).error_fields().2.as_deref(), Some("messages"));
    let id = create(&server, &many(4096));
    let path = format!("/v1/conversations/{id}/messages");
    let (status, _, param) = server.post(&path, &many(1)).error_fields();
    assert_eq!((status, param.as_deref()), (400, Some("messages")));

    let id = create(&server, &json!({ "messages": [user_message(&"x".repeat(5 << 20))] }));
    let path = format!("/v1/conversations/{id}/messages");
    let more = server.post(&path, &json!({ "messages": [user_message(&"x".repeat(4 << 20))] }));
    assert_eq!(more.error_fields().2.as_deref(), Some("messages"));
    assert!(more.text.contains("8388608"), "{}", more.text);
}

#[test]
fn every_write_checks_the_version() {
    let server = Server::start();
    let id = create(&server, &json!({ "messages": [user_message("a")] }));
    let path = format!("/v1/conversations/{id}");
    let append = format!("{path}/messages");
    let stale = |response: Response, status: u16, code: &str, param: &str| {
        assert_eq!(response.error_fields(), (status, code.to_owned(), Some(param.to_owned())), "{}", response.text);
        assert!(
            response.text.contains('1') && response.text.contains('7'),
            "both versions are named: {}",
            response.text
        );
    };
    let put = json!({ "messages": [user_message("b")], "version": 7 });
    let patch = json!({ "metadata": { "a": 1 }, "version": 7 });
    stale(server.put(&path, &put), 409, "conflict", "version");
    stale(server.patch(&path, &patch), 409, "conflict", "version");
    stale(server.post(&append, &put), 409, "conflict", "version");
    let (plain, meta) = (json!({ "messages": [user_message("b")] }), json!({ "metadata": { "a": 1 } }));
    stale(write_if_match(&server, Method::PUT, &path, "\"7\"", Some(&plain)), 412, "precondition_failed", "If-Match");
    stale(write_if_match(&server, Method::PATCH, &path, "\"7\"", Some(&meta)), 412, "precondition_failed", "If-Match");
    stale(
        write_if_match(&server, Method::POST, &append, "\"7\"", Some(&plain)),
        412,
        "precondition_failed",
        "If-Match",
    );
    stale(write_if_match(&server, Method::DELETE, &path, "\"7\"", None), 412, "precondition_failed", "If-Match");
    assert_eq!(write_if_match(&server, Method::PUT, &path, "7", Some(&plain)).error_fields().0, 400);

    assert_eq!(write_if_match(&server, Method::POST, &append, "\"1\"", Some(&plain)).ok()["version"], 2);
    assert_eq!(write_if_match(&server, Method::POST, &append, "*", Some(&plain)).ok()["version"], 3);
    assert_eq!(server.put(&path, &json!({ "messages": [], "version": 3 })).ok()["version"], 4);
    write_if_match(&server, Method::DELETE, &path, "\"3\", \"4\"", None).ok();

    let absent = write_if_match(&server, Method::PUT, &path, "*", Some(&plain)).error_fields();
    assert_eq!((absent.0, absent.1.as_str()), (412, "precondition_failed"));
    assert_eq!(server.put(&path, &json!({ "messages": [], "version": 4 })).error_fields().0, 409);
    assert_eq!(server.put(&path, &json!({ "messages": [], "version": 0 })).ok()["version"], 1);
    assert_eq!(server.put(&path, &json!({ "messages": [], "version": 0 })).error_fields().0, 409);
}

#[test]
fn concurrent_appends_lose_nothing() {
    let server = Server::start();
    let id = create(&server, &json!({}));
    let path = format!("/v1/conversations/{id}");
    let mut versions: Vec<u64> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..16)
            .map(|client| {
                scope.spawn({
                    let (server, path) = (&server, &path);
                    move || append_eight(server, path, client)
                })
            })
            .collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    versions.sort_unstable();
    assert_eq!(versions, (2..=129).collect::<Vec<u64>>(), "each write creates another version");
    let whole = server.get(&path).ok();
    let messages = whole["messages"].as_array().unwrap();
    assert_eq!((messages.len(), &whole["version"]), (128, &json!(129)));
    for client in 0..16 {
        let mine: Vec<&str> =
            messages.iter().filter_map(|m| m["content"].as_str()?.strip_prefix(&format!("{client}:"))).collect();
        assert_eq!(mine, ["0", "1", "2", "3", "4", "5", "6", "7"], "in the order of client {client}");
    }
}

/// Appends eight messages. Half of the clients state the version that they expect, and retry until it matches.
fn append_eight(server: &Server, path: &str, client: usize) -> Vec<u64> {
    let append = format!("{path}/messages");
    let one = |number: usize| {
        let body = json!({ "messages": [user_message(&format!("{client}:{number}"))] });
        if client.is_multiple_of(2) {
            return server.post(&append, &body).ok()["version"].as_u64().unwrap();
        }
        loop {
            let tag = server.get(path).headers["etag"].to_str().unwrap().to_owned();
            let response = write_if_match(server, Method::POST, &append, &tag, Some(&body));
            match response.status {
                200 => return response.json()["version"].as_u64().unwrap(),
                412 => {}
                _ => panic!("{}", response.text),
            }
        }
    };
    (0..8).map(one).collect()
}

#[test]
fn an_idempotency_key_appends_once() {
    let server = Server::start();
    let id = create(&server, &json!({}));
    let path = format!("/v1/conversations/{id}/messages");
    let headers: Headers<'_> =
        &[("content-type", "application/json"), ("idempotency-key", "k1"), ("if-match", "\"1\"")];
    let send = |text: &str| {
        let body = json!({ "messages": [user_message(text)] }).to_string().into_bytes();
        server.raw(Method::POST, &path, Some(&server.admin), headers, Some(body))
    };
    let (first, second) = (send("a"), send("a"));
    assert_eq!(
        (first.headers.get("idempotent-replayed"), &second.headers["idempotent-replayed"]),
        (None, &"true".parse().unwrap())
    );
    assert_eq!((first.headers["etag"].clone(), first.ok()), (second.headers["etag"].clone(), second.ok()));
    assert_eq!(send("b").error_fields().1, "idempotency_conflict");
    assert_eq!(server.get(&format!("/v1/conversations/{id}")).ok()["message_count"], 1);
}

#[test]
fn conversations_of_other_projects_and_for_inference_keys_are_403() {
    let server = Server::start();
    let (project, _, mine) = server.tenant("mine");
    let theirs = create(&server, &json!({ "messages": [user_message("secret")] }));
    let narrow = json!({ "name": "k", "project_id": project, "scopes": ["inference"] });
    let narrow = server.post("/v1/api-keys", &narrow).ok()["secret"].as_str().unwrap().to_owned();
    let body = json!({ "messages": [user_message("x")] });
    let own = server.call(Method::POST, "/v1/conversations", Some(&mine), Some(&body)).ok();
    assert_eq!(own["project_id"], project.as_str());
    let own = own["id"].as_str().unwrap();
    for mount in MOUNTS {
        for (key, id, code) in [(&mine, theirs.as_str(), "project_mismatch"), (&narrow, own, "insufficient_scope")] {
            let path = format!("{mount}/conversations/{id}");
            let attempts = [
                (Method::GET, path.clone(), None),
                (Method::PUT, path.clone(), Some(&body)),
                (Method::POST, format!("{path}/messages"), Some(&body)),
                (Method::DELETE, path.clone(), None),
            ];
            for (method, path, body) in attempts {
                let refused = server.call(method.clone(), &path, Some(key), body).error_fields();
                assert_eq!((refused.0, refused.1.as_str()), (403, code), "{method} {path}");
            }
            let patch = server.call(Method::PATCH, &path, Some(key), Some(&json!({ "metadata": {} }))).error_fields();
            assert_eq!((patch.0, patch.1.as_str()), (403, code));
        }
        let list = format!("{mount}/conversations");
        let unknown = format!("{mount}/conversations/conv_{}", "a".repeat(32));
        for (path, method) in [(&list, Method::GET), (&list, Method::POST), (&unknown, Method::PUT)] {
            let sent = (method != Method::GET).then_some(&body);
            assert_eq!(server.call(method, path, Some(&narrow), sent).error_fields().1, "insufficient_scope");
        }
        let other = format!(
            "{mount}/conversations?project_id={}",
            server.get("/v1/conversations").ok()["data"][0]["project_id"].as_str().unwrap()
        );
        assert_eq!(server.call(Method::GET, &other, Some(&mine), None).error_fields().1, "project_mismatch");
    }
    assert_eq!(server.get(&format!("/v1/conversations/{theirs}")).ok()["version"], 1);
}

#[test]
fn a_listing_omits_messages() {
    let server = Server::start();
    let (project, _, mine) = server.tenant("listing");
    let created: Vec<String> =
        (0..5).map(|_| create(&server, &json!({ "project_id": project, "messages": [user_message("x")] }))).collect();
    create(&server, &json!({}));
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page =
            server.call(Method::GET, &format!("/openai/v1/conversations?limit=2{cursor}"), Some(&mine), None).ok();
        for item in page["data"].as_array().unwrap() {
            assert_eq!(
                (&item["object"], &item["message_count"], item.get("messages")),
                (&json!("conversation"), &json!(1), None)
            );
            seen.push(item["id"].as_str().unwrap().to_owned());
        }
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen, created.into_iter().rev().collect::<Vec<_>>());
}

#[test]
fn conversations_of_an_archived_project_are_read_only() {
    let server = Server::start();
    let (project, _, _) = server.tenant("old");
    let id = create(&server, &json!({ "project_id": project, "messages": [user_message("x")] }));
    server.post(&format!("/v1/projects/{project}/archive"), &json!({})).ok();
    let path = format!("/v1/conversations/{id}");
    let body = json!({ "messages": [user_message("y")] });
    for response in [
        server.put(&path, &body),
        server.post(&format!("{path}/messages"), &body),
        server.patch(&path, &json!({ "metadata": { "a": 1 } })),
        server.delete(&path),
        server.post("/v1/conversations", &json!({ "project_id": project })),
    ] {
        assert_eq!((response.status, response.error_fields().1.as_str()), (409, "conflict"));
    }
    assert_eq!(server.get(&path).ok()["message_count"], 1, "they can still be read");
}

/// The quota usage of a project of a stopped server.
pub fn quota_usage_of(folder: &Path, project: &str) -> quota_usage::QuotaUsageRecord {
    let (data, project) = (folder.join("data"), project.parse().unwrap());
    let found = check_store(&data);
    assert!(found.is_clean(), "{:?}", found.problems);
    with_store(&data, move |tx| quota_usage::of(tx, project))
}

fn with_store<T: Send + 'static>(
    data: &Path,
    f: impl Fn(&outpost::storage::WriteTx) -> outpost::error::Result<T> + Send + 'static,
) -> T {
    let store = open_store(data, std::sync::Arc::new(outpost::app::SystemClockRng::new()));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let outcome = runtime.block_on(store.write(f)).unwrap();
    store.shutdown();
    outcome
}

#[test]
fn stored_bytes_are_exact_after_every_change() {
    let server = Server::start();
    let (project, ..) = server.tenant("bytes");
    let size = |value: &Value| value.to_string().len() as u64;
    let (one, two, meta) = (user_message("one"), user_message("two, longer \u{1F980}"), json!({ "a": [1, 2] }));
    let id = create(&server, &json!({ "project_id": project, "messages": [one, two], "metadata": meta }));
    let path = format!("/v1/conversations/{id}");
    server.post(&format!("{path}/messages"), &json!({ "messages": [one] })).ok();
    let folder = server.stop();
    let now = quota_usage_of(folder.path(), &project);
    assert_eq!((now.conversations, now.bytes), (1, 2 * size(&one) + size(&two) + size(&meta)));

    let server = Server::start_in(folder);
    server.put(&path, &json!({ "messages": [two] })).ok();
    server.patch(&path, &json!({ "metadata": { "b": 1 } })).ok();
    let folder = server.stop();
    assert_eq!(quota_usage_of(folder.path(), &project).bytes, size(&two) + size(&json!({ "b": 1 })));

    let server = Server::start_in(folder);
    server.delete(&path).ok();
    let folder = server.stop();
    let now = quota_usage_of(folder.path(), &project);
    assert_eq!((now.conversations, now.bytes), (0, 0));
}

#[test]
fn quotas_limit_count_and_bytes() {
    let server = Server::start();
    let (project, ..) = server.tenant("small");
    let folder = server.stop();
    let id = project.parse().unwrap();
    with_store(&folder.path().join("data"), move |tx| {
        let quotas = limits::Quotas { conversations: Some(2), bytes: Some(300), ..limits::Quotas::default() };
        limits::put(
            tx,
            id,
            &limits::LimitsRecord {
                quotas,
                updated_at: Some(Timestamp::from_millis(0)),
                ..limits::LimitsRecord::default()
            },
        )
    });
    let server = Server::start_in(folder);
    let full = |response: Response| assert_eq!(response.error_fields().1, "insufficient_quota", "{}", response.text);
    let first = create(&server, &json!({ "project_id": project, "messages": [user_message(&"x".repeat(150))] }));
    full(
        server
            .post("/v1/conversations", &json!({ "project_id": project, "messages": [user_message(&"x".repeat(150))] })),
    );
    create(&server, &json!({ "project_id": project }));
    full(server.post("/v1/conversations", &json!({ "project_id": project })));
    let path = format!("/v1/conversations/{first}");
    full(server.post(&format!("{path}/messages"), &json!({ "messages": [user_message(&"x".repeat(150))] })));
    full(server.put(&path, &json!({ "messages": [user_message(&"x".repeat(300))] })));
    assert_eq!(server.get(&path).ok()["version"], 1);
    server.put(&path, &json!({ "messages": [user_message("x")] })).ok();
    server.post(&format!("{path}/messages"), &json!({ "messages": [user_message(&"x".repeat(150))] })).ok();
}

#[test]
fn the_audit_log_records_actions_without_message_content() {
    let server = Server::start();
    let id = create(&server, &json!({ "messages": [user_message("classified")] }));
    let path = format!("/v1/conversations/{id}");
    server.post(&format!("{path}/messages"), &json!({ "messages": [user_message("classified")] })).ok();
    server.put(&path, &json!({ "messages": [user_message("classified")] })).ok();
    server.patch(&path, &json!({ "metadata": { "note": "classified" } })).ok();
    server.delete(&path).ok();
    let log = server.get("/v1/audit-events?limit=5");
    assert!(!log.text.contains("classified"), "{}", log.text);
    let actions: Vec<String> =
        log.ok()["data"].as_array().unwrap().iter().map(|row| row["action"].as_str().unwrap().to_owned()).collect();
    let expected = ["deleted", "updated", "replaced", "appended", "created"].map(|what| format!("conversation.{what}"));
    assert_eq!(actions, expected);
}

#[test]
fn a_search_finds_conversations_by_message_text() {
    let server = Server::start();
    let red = create(
        &server,
        &json!({ "messages": [user_message("Which light is RED?"), { "role": "assistant", "content": "Port." }] }),
    );
    let parts = json!([{ "type": "text", "text": "Grün ist\nSteuerbord" }]);
    let green = create(
        &server,
        &json!({ "messages": [{ "role": "system", "content": "Be brief." }, { "role": "user", "content": parts }] }),
    );
    let ship = create(&server, &json!({ "metadata": { "ship": { "name": "Aurora" } } }));
    for mount in MOUNTS {
        let found = |text: &str| -> Vec<String> {
            let listed = server.get(&format!("{mount}/conversations?search={text}")).ok();
            assert_eq!(listed["has_more"], json!(false));
            listed["data"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()).collect()
        };
        assert_eq!(found("light%20is%20red"), [red.as_str()]);
        assert_eq!(found("GR%C3%9CN"), [green.as_str()]);
        assert_eq!(found("aurora"), [ship.as_str()]);
        // Field names and roles are not message text.
        for text in ["content", "user", "ship%22", "text"] {
            assert_eq!(found(text), [""; 0], "{text}");
        }
    }
    let listed = server.get("/v1/conversations").ok();
    let previews: Vec<_> = listed["data"].as_array().unwrap().iter().map(|one| one["preview"].clone()).collect();
    assert_eq!(previews, [Value::Null, json!("Grün ist Steuerbord"), json!("Which light is RED?")]);
    for (search, what) in [("", "0 characters"), (&*"x".repeat(201), "201 characters")] {
        let response = server.get(&format!("/v1/conversations?search={search}"));
        assert_eq!(response.error_fields(), (400, "invalid_parameter".to_owned(), Some("search".to_owned())));
        assert!(response.text.contains(what), "{}", response.text);
    }
}

#[test]
fn a_search_continues_page_by_page() {
    let server = Server::start();
    let mut expected: Vec<String> = (0..12)
        .map(|at| {
            create(&server, &json!({ "messages": [user_message(&format!("noise {at}"))] }));
            create(&server, &json!({ "messages": [user_message(&format!("needle {at}"))] }))
        })
        .collect();
    expected.reverse();
    let (mut found, mut cursor) = (Vec::new(), String::new());
    for _ in 0..20 {
        let page = server.get(&format!("/v1/conversations?search=needle&limit=5{cursor}")).ok();
        found.extend(page["data"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap().to_owned()));
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(found, expected);
}

#[test]
fn a_long_search_ends_a_page_early_without_losing_results() {
    let server = Server::start();
    let needle = create(&server, &json!({ "messages": [user_message("needle")] }));
    let hay = "hay ".repeat(1_750_000);
    for _ in 0..6 {
        create(&server, &json!({ "messages": [user_message(&hay)] }));
    }
    let page = server.get("/v1/conversations?search=needle").ok();
    assert_eq!((&page["data"], &page["has_more"]), (&json!([]), &json!(true)), "one page searches less than 42 MB");
    let page =
        server.get(&format!("/v1/conversations?search=needle&cursor={}", page["next_cursor"].as_str().unwrap())).ok();
    assert_eq!((&page["data"][0]["id"], &page["has_more"]), (&json!(needle), &json!(false)));
}
