use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{Headers, Server};

const MOUNTS: [&str; 2] = ["/v1", "/openai/v1"];

fn tool(name: &str) -> Value {
    let schema = json!({ "type": "object", "properties": { "n": { "maximum": 1.50 } } });
    json!({ "type": "function", "function": { "name": name, "description": "d", "parameters": schema, "strict": true } })
}

fn all_fields() -> Value {
    json!({
        "name": "helper", "model": "tiny", "instructions": "Help.", "tools": [tool("look"), tool("look-2")],
        "memory": { "truncation": "auto", "last_messages": 8 }, "metadata": { "team": "a" },
    })
}

fn create(server: &Server, body: &Value) -> String {
    server.post("/v1/agents", body).ok()["id"].as_str().unwrap().to_owned()
}

#[test]
fn an_agent_has_all_its_fields_on_both_mounts() {
    let server = Server::start();
    for (mount, object) in [("/v1", "service.resource"), ("/openai/v1", "agent")] {
        let created = server.post(&format!("{mount}/agents"), &all_fields());
        assert_eq!(created.headers["etag"], "\"1\"");
        let created = created.ok();
        assert_eq!((&created["object"], &created["version"]), (&json!(object), &json!(1)));
        for (field, value) in all_fields().as_object().unwrap() {
            assert_eq!(&created[field], value, "{field}");
        }
        let path = format!("{mount}/agents/{}", created["id"].as_str().unwrap());
        assert_eq!(server.get(&path).ok(), created);
        let bare = server.post(&format!("{mount}/agents"), &json!({})).ok();
        assert_eq!((&bare["tools"], &bare["name"], &bare["memory"]), (&json!([]), &Value::Null, &Value::Null));
        let deleted_body = server.delete(&path).ok();
        let deleted = if mount == "/v1" { "service.resource" } else { "agent.deleted" };
        assert_eq!((&deleted_body["deleted"], &deleted_body["object"]), (&json!(true), &json!(deleted)));
        assert_eq!(server.get(&path).error_fields().0, 404);
        assert_eq!(server.get(&format!("{path}?version=1")).error_fields().0, 404);
        assert_eq!(server.get(&format!("{path}/versions")).error_fields().0, 404);
    }
}

#[test]
fn a_patch_keeps_absent_fields_and_clears_null_fields() {
    let server = Server::start();
    for mount in MOUNTS {
        let path = format!("{mount}/agents/{}", create(&server, &all_fields()));
        let changed = server.patch(&path, &json!({ "instructions": "Be brief." })).ok();
        let mut expected = all_fields();
        expected["instructions"] = json!("Be brief.");
        for (field, value) in expected.as_object().unwrap() {
            assert_eq!(&changed[field], value, "{field}");
        }
        for field in ["name", "model", "instructions", "memory", "metadata"] {
            assert_eq!(server.patch(&path, &json!({ field: null })).ok()[field], Value::Null);
        }
        let empty = server.patch(&path, &json!({ "tools": null })).ok();
        assert_eq!((&empty["tools"], &empty["version"]), (&json!([]), &json!(8)));
        assert_eq!(server.patch(&path, &json!({ "tools": [] })).ok()["version"], 8);
        assert_eq!(server.patch(&path, &json!({})).ok()["version"], 8, "a patch without changes creates no version");
    }
}

#[test]
fn every_change_creates_a_version_and_old_versions_stay_readable() {
    let server = Server::start();
    let id = create(&server, &json!({ "instructions": "1" }));
    let path = format!("/v1/agents/{id}");
    for number in 2..=7 {
        let changed = server.patch(&path, &json!({ "instructions": number.to_string() }));
        assert_eq!(changed.headers["etag"], format!("\"{number}\"").as_str());
        assert_eq!(changed.ok()["version"], number);
    }
    let old = server.get(&format!("{path}?version=3"));
    assert_eq!((old.headers["etag"].clone(), &old.json()["instructions"]), ("\"3\"".parse().unwrap(), &json!("3")));
    for absent in ["0", "8", "99999999999"] {
        let refused = server.get(&format!("{path}?version={absent}")).error_fields();
        assert_eq!(refused, (404, "not_found".to_owned(), Some("version".to_owned())));
    }
    assert_eq!(server.get(&format!("{path}?version=x")).error_fields().0, 400);

    let (mut seen, mut next) = (Vec::new(), String::new());
    loop {
        let page = server.get(&format!("{path}/versions?limit=3{next}")).ok();
        seen.extend(page["data"].as_array().unwrap().iter().map(|item| item["version"].as_u64().unwrap()));
        match page["has_more"].as_bool().unwrap() {
            true if seen.len() == 3 => next = format!("&cursor={}", page["next_cursor"].as_str().unwrap()),
            true => next = format!("&after={}", page["last_id"].as_str().unwrap()),
            false => break,
        }
    }
    assert_eq!(seen, [7, 6, 5, 4, 3, 2, 1]);
    let other = create(&server, &json!({}));
    let page = server.get(&format!("{path}/versions?limit=1")).ok();
    let foreign = format!("/v1/agents/{other}/versions?cursor={}", page["next_cursor"].as_str().unwrap());
    assert_eq!(server.get(&foreign).error_fields().2.as_deref(), Some("cursor"));
    let item = &page["data"][0];
    assert_eq!((&item["object"], &item["id"]), (&json!("agent.version"), &json!(format!("{id}@7"))));
}

#[test]
fn every_write_checks_the_version() {
    let server = Server::start();
    let path = format!("/v1/agents/{}", create(&server, &json!({})));
    let matching = |method: Method, tag: &str, body: Option<Value>| {
        let headers: Headers<'_> = &[("content-type", "application/json"), ("if-match", tag)];
        let body = body.map(|body| body.to_string().into_bytes());
        server.raw(method, &path, Some(&server.admin), headers, body)
    };
    let stale = server.patch(&path, &json!({ "name": "x", "version": 3 }));
    assert_eq!(stale.error_fields(), (409, "conflict".to_owned(), Some("version".to_owned())));
    assert_eq!(matching(Method::PATCH, "\"3\"", Some(json!({ "name": "x" }))).error_fields().0, 412);
    assert_eq!(matching(Method::DELETE, "\"3\"", None).error_fields().0, 412);
    assert_eq!(matching(Method::PATCH, "\"1\"", Some(json!({ "name": "x" }))).ok()["version"], 2);
    assert_eq!(server.patch(&path, &json!({ "name": "y", "version": 2 })).ok()["version"], 3);
    matching(Method::DELETE, "*", None).ok();
}

#[test]
fn an_invalid_field_is_named() {
    let server = Server::start();
    let id = create(&server, &json!({}));
    let function = |change: Value| {
        let mut tool = tool("f");
        tool["function"].as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        json!({ "tools": [tool] })
    };
    let cases = [
        (json!({ "name": "" }), "name"),
        (json!({ "name": "x".repeat(257) }), "name"),
        (json!({ "model": "" }), "model"),
        (json!({ "model": 7 }), "model"),
        (json!({ "instructions": "x".repeat(256_001) }), "instructions"),
        (json!({ "metadata": [] }), "metadata"),
        (json!({ "memory": "auto" }), "memory"),
        (json!({ "memory": { "truncation": "maybe" } }), "memory.truncation"),
        (json!({ "memory": { "last_messages": 0 } }), "memory.last_messages"),
        (json!({ "memory": { "last_messages": 4097 } }), "memory.last_messages"),
        (json!({ "memory": { "last": 1 } }), "memory.last"),
        (json!({ "tools": {} }), "tools"),
        (json!({ "tools": vec![tool("f"); 129] }), "tools"),
        (json!({ "tools": ["f"] }), "tools[0]"),
        (json!({ "tools": [{ "type": "web_search" }] }), "tools[0].type"),
        (json!({ "tools": [{ "type": "function" }] }), "tools[0].function"),
        (json!({ "tools": [{ "type": "function", "function": { "name": "f" }, "x": 1 }] }), "tools[0].x"),
        (function(json!({ "name": "a b" })), "tools[0].function.name"),
        (function(json!({ "name": "x".repeat(129) })), "tools[0].function.name"),
        (function(json!({ "description": 1 })), "tools[0].function.description"),
        (function(json!({ "parameters": [] })), "tools[0].function.parameters"),
        (function(json!({ "strict": "yes" })), "tools[0].function.strict"),
        (function(json!({ "returns": {} })), "tools[0].function.returns"),
        (json!({ "tools": [tool("f"), tool("g"), tool("f")] }), "tools[2].function.name"),
        (json!({ "temperature": 1 }), "temperature"),
    ];
    for (body, param) in cases {
        for mount in MOUNTS {
            let responses =
                [server.post(&format!("{mount}/agents"), &body), server.patch(&format!("{mount}/agents/{id}"), &body)];
            for response in responses {
                let expected = (400, "invalid_parameter".to_owned(), Some(param.to_owned()));
                assert_eq!(response.error_fields(), expected, "{}", response.text);
            }
        }
    }
    let widest = json!({ "instructions": "\u{1F980}".repeat(256_000), "tools": (0..128).map(|n| tool(&format!("t{n}"))).collect::<Vec<_>>() });
    server.patch(&format!("/v1/agents/{id}"), &widest).ok();
}

#[test]
fn agents_of_other_projects_and_for_inference_keys_are_403() {
    let server = Server::start();
    let (project, _, mine) = server.tenant("mine");
    let theirs = create(&server, &json!({ "instructions": "secret" }));
    let own = create(&server, &json!({ "project_id": project }));
    let narrow = json!({ "name": "k", "project_id": project, "scopes": ["inference"] });
    let narrow = server.post("/v1/api-keys", &narrow).ok()["secret"].as_str().unwrap().to_owned();
    for mount in MOUNTS {
        for (key, id, code) in [(&mine, &theirs, "project_mismatch"), (&narrow, &own, "insufficient_scope")] {
            let path = format!("{mount}/agents/{id}");
            let attempts = [
                (Method::GET, path.clone(), None),
                (Method::GET, format!("{path}/versions"), None),
                (Method::PATCH, path.clone(), Some(json!({ "name": "x" }))),
                (Method::DELETE, path, None),
            ];
            for (method, path, body) in attempts {
                let refused = server.call(method.clone(), &path, Some(key), body.as_ref()).error_fields();
                assert_eq!((refused.0, refused.1.as_str()), (403, code), "{method} {path}");
            }
        }
        let listed = server.call(Method::GET, &format!("{mount}/agents"), Some(&mine), None).ok();
        assert_eq!(listed["data"].as_array().unwrap().len(), 1);
        assert_eq!((&listed["data"][0]["id"], &listed["data"][0]["object"]), (&json!(own), &json!("agent")));
        assert_eq!(server.call(Method::GET, &format!("{mount}/agents"), Some(&narrow), None).error_fields().0, 403);
    }
    assert_eq!(server.get(&format!("/v1/agents/{theirs}")).ok()["version"], 1);
}

#[test]
fn an_idempotency_key_creates_one_agent_and_one_version() {
    let server = Server::start();
    let send = |method: Method, path: &str, body: Value| {
        let headers: Headers<'_> = &[("content-type", "application/json"), ("idempotency-key", "once")];
        server.raw(method, path, Some(&server.admin), headers, Some(body.to_string().into_bytes()))
    };
    let (first, second) =
        (send(Method::POST, "/v1/agents", all_fields()), send(Method::POST, "/openai/v1/agents", all_fields()));
    assert_eq!(
        (&second.headers["idempotent-replayed"], first.ok()["id"].clone()),
        (&"true".parse().unwrap(), second.ok()["id"].clone())
    );
    assert_eq!(server.get("/v1/agents").ok()["data"].as_array().unwrap().len(), 1);
}
