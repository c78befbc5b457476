//! The items of conversations: OpenAI's view of the stored messages.

use std::collections::HashSet;

use reqwest::Method;
use serde_json::{Value, json};

use crate::conversations::{all_message_kinds, create, quota_usage_of, user_message};
use crate::server::{Headers, Response, Server};

const MOUNTS: [&str; 2] = ["/v1", "/openai/v1"];

fn id(value: &Value) -> &str {
    value["id"].as_str().unwrap()
}

/// The items of a conversation in the order of the transcript.
fn items(server: &Server, conversation: &str) -> Vec<Value> {
    let page = server.get(&format!("/openai/v1/conversations/{conversation}/items?order=asc&limit=100")).ok();
    assert_eq!((&page["object"], &page["has_more"]), (&json!("list"), &json!(false)));
    page["data"].as_array().unwrap().clone()
}

fn ids(items: &[Value]) -> Vec<String> {
    items.iter().map(|item| id(item).to_owned()).collect()
}

fn messages(server: &Server, conversation: &str) -> Value {
    server.get(&format!("/v1/conversations/{conversation}")).ok()["messages"].take()
}

fn call(call_id: &str) -> Value {
    json!({ "type": "function_call", "call_id": call_id, "name": "look", "arguments": "{}" })
}

fn reasoning(text: &str) -> Value {
    json!({ "type": "reasoning", "summary": [], "content": [{ "type": "reasoning_text", "text": text }] })
}

/// A turn with an item of each kind.
fn turn() -> Value {
    json!([
        { "role": "user", "content": "What is there?" },
        reasoning("I look."),
        { "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "Wait." }] },
        call("call_1"),
        call("call_2"),
        { "type": "function_call_output", "call_id": "call_1", "output": "sea" },
        { "type": "function_call_output", "call_id": "call_2", "output": "land" },
    ])
}

#[test]
fn every_message_has_items() {
    let server = Server::start();
    let conversation = create(&server, &json!({ "messages": all_message_kinds() }));
    let found = items(&server, &conversation);
    let kinds: Vec<_> = found.iter().map(|item| (item["type"].as_str().unwrap(), item["role"].as_str())).collect();
    let message = |role| ("message", Some(role));
    let expected = [
        message("developer"),
        message("system"),
        message("user"),
        ("function_call", None),
        ("function_call_output", None),
        message("assistant"),
        message("assistant"),
    ];
    assert_eq!(kinds, expected);
    assert_eq!(found[2]["content"][1]["type"], "input_image");
    assert_eq!(found[5]["content"], json!([{ "type": "refusal", "refusal": "I will not say." }]));
    assert_eq!(ids(&found).into_iter().collect::<HashSet<_>>().len(), 7);
    for item in &found {
        let path = format!("/conversations/{conversation}/items/{}", id(item));
        assert_eq!(server.get(&format!("/openai/v1{path}")).ok(), *item);
        let mut enveloped = item.clone();
        for (name, value) in [("object", "service.resource"), ("status", "succeeded"), ("state", "completed")] {
            enveloped[name] = json!(value);
        }
        assert_eq!(server.get(&format!("/v1{path}")).ok(), enveloped);
    }
    let enveloped = server.get(&format!("/v1/conversations/{conversation}/items")).ok();
    assert_eq!((&enveloped["object"], &enveloped["status"]), (&json!("service.resource"), &json!("succeeded")));
    let newest: Vec<Value> = found.into_iter().rev().collect();
    assert_eq!(enveloped["data"], json!(newest), "the last item comes first");
}

#[test]
fn items_are_stored_as_messages() {
    let server = Server::start();
    for mount in MOUNTS {
        let created =
            server.post(&format!("{mount}/conversations"), &json!({ "items": turn(), "metadata": { "a": "b" } }));
        let created = created.ok();
        assert_eq!((&created["message_count"], &created["metadata"]), (&json!(4), &json!({ "a": "b" })));
        let conversation = id(&created).to_owned();
        let path = format!("{mount}/conversations/{conversation}/items");
        let more = json!([{ "role": "user", "content": "a" }, { "role": "user", "content": "b" }, reasoning("lost")]);
        let added = server.post(&path, &json!({ "items": more, "version": 1 }));
        assert_eq!(
            (added.header("etag"), added.header("x-outpost-ignored")),
            (Some("\"2\""), Some("items[2] reasoning"))
        );
        let added = added.ok();
        let stored = items(&server, &conversation);
        assert_eq!(added["data"], json!(stored[7..]), "neighbouring messages stay apart");
        assert_eq!((&added["first_id"], &added["last_id"]), (&stored[7]["id"], &stored[8]["id"]));
        let calls =
            |id: &str| json!({ "id": id, "type": "function", "function": { "name": "look", "arguments": "{}" } });
        let expected = json!([
            user_message("What is there?"),
            { "role": "assistant", "content": "Wait.", "reasoning_content": "I look.", "tool_calls": [calls("call_1"), calls("call_2")] },
            { "role": "tool", "content": "sea", "tool_call_id": "call_1" },
            { "role": "tool", "content": "land", "tool_call_id": "call_2" },
            user_message("a"),
            user_message("b"),
        ]);
        assert_eq!(messages(&server, &conversation), expected);
        for (sent, stored) in turn().as_array().unwrap().iter().zip(&stored) {
            assert_eq!(stored["status"], "completed");
            for field in ["role", "call_id", "name", "arguments", "output"] {
                assert_eq!(stored[field], sent[field], "{field}");
            }
        }
        let hosted = server.post(&path, &json!({ "items": [{ "type": "web_search_call", "id": "ws_1" }] }));
        assert_eq!(hosted.header("x-outpost-ignored"), Some("items[0] web_search_call"));
        assert_eq!((&hosted.ok()["data"], hosted.header("etag")), (&json!([]), Some("\"2\"")), "nothing was stored");
    }
}

#[test]
fn items_are_listed_in_pages() {
    let server = Server::start();
    let conversation = id(&server.post("/v1/conversations", &json!({ "items": turn() })).ok()).to_owned();
    let path = format!("/openai/v1/conversations/{conversation}/items");
    let all = ids(&items(&server, &conversation));
    for order in ["asc", "desc"] {
        let mut expected = all.clone();
        if order == "desc" {
            expected.reverse();
        }
        for limit in [1, 2, 3, 7, 8] {
            let (mut found, mut after) = (Vec::new(), String::new());
            loop {
                let page = server.get(&format!("{path}?order={order}&limit={limit}{after}&include=x")).ok();
                let data = page["data"].as_array().unwrap();
                found.extend(ids(data));
                assert_eq!((&page["first_id"], &page["last_id"]), (&data[0]["id"], &data[data.len() - 1]["id"]));
                if page["has_more"] == json!(false) {
                    break;
                }
                assert_eq!(data.len(), limit);
                after = format!("&after={}", page["last_id"].as_str().unwrap());
            }
            assert_eq!(found, expected, "{order} by {limit}");
        }
    }
    let end = server.get(&format!("{path}?after={}", all[0])).ok();
    assert_eq!((&end["data"], &end["first_id"], &end["last_id"]), (&json!([]), &Value::Null, &Value::Null));
    let elsewhere = id(&server.post("/v1/conversations", &json!({ "items": turn() })).ok()).to_owned();
    let foreign = ids(&items(&server, &elsewhere)).remove(0);
    let gone = all[1].replace("rs_", "fco_");
    for (query, param) in [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("order=up", "order"),
        ("after=x", "after"),
        (&*format!("after={foreign}"), "after"),
        (&*format!("after={gone}"), "after"),
    ] {
        let refused = server.get(&format!("{path}?{query}")).error_fields();
        assert_eq!(refused, (400, "invalid_parameter".to_owned(), Some(param.to_owned())), "{query}");
    }
}

#[test]
fn deleting_an_item_leaves_the_others_and_their_ids() {
    let server = Server::start();
    let (project, ..) = server.tenant("items");
    let size = |value: &Value| value.to_string().len() as u64;
    let conversation = create(&server, &json!({ "project_id": project, "items": turn() }));
    let path = format!("/openai/v1/conversations/{conversation}");
    let mut expected = items(&server, &conversation);
    let mut version = 1;
    // The first call, the text, the user's message, the reasoning, a result.
    for (index, count) in [(3, 4), (2, 4), (0, 3), (0, 3), (1, 2)] {
        let removed = expected.remove(index);
        let item = format!("{path}/items/{}", id(&removed));
        let reply = server.delete(&item);
        version += 1;
        assert_eq!(reply.header("etag"), Some(&*format!("\"{version}\"")));
        let reply = reply.ok();
        assert_eq!(
            (&reply["object"], &reply["id"], &reply["message_count"]),
            (&json!("conversation"), &json!(conversation), &json!(count))
        );
        assert_eq!(items(&server, &conversation), expected);
        for again in [server.get(&item), server.delete(&item)] {
            assert_eq!(again.error_fields().1, "not_found");
        }
    }
    let whole = messages(&server, &conversation);
    assert_eq!(whole[0]["content"], Value::Null);
    assert_eq!(whole.as_array().unwrap().len(), 2);
    server.post(&format!("{path}/items"), &json!({ "items": [{ "role": "user", "content": "And now?" }] })).ok();
    let listed = server.get(&format!("/v1/conversations?project_id={project}")).ok();
    assert_eq!(listed["data"][0]["preview"], "And now?", "a gap at the beginning does not hide the preview");

    let (bytes, all) =
        (messages(&server, &conversation).as_array().unwrap().iter().map(size).sum(), items(&server, &conversation));
    let server = Server::start_in(checked(server, &project, bytes));
    assert_eq!(items(&server, &conversation), all);
    // Rows are never used again, so the old items are gone.
    let replaced = json!({ "messages": vec![user_message("new"); 5] });
    server.put(&path.replace("/openai", ""), &replaced).ok();
    let new = items(&server, &conversation);
    assert_eq!(new.len(), 5);
    assert!(ids(&new).iter().all(|new| !ids(&all).contains(new)));
    assert_eq!(server.get(&format!("{path}/items/{}", id(&all[0]))).status, 404);
    for item in &new {
        server.delete(&format!("{path}/items/{}", id(item))).ok();
    }
    assert_eq!((items(&server, &conversation), messages(&server, &conversation)), (vec![], json!([])));
    server.post(&format!("{path}/items"), &json!({ "items": turn() })).ok();
    let bytes = messages(&server, &conversation).as_array().unwrap().iter().map(size).sum();
    let server = Server::start_in(checked(server, &project, bytes));
    server.delete(&path).ok();
    checked(server, &project, 0);
}

/// Stops a server, and checks its database and the project's stored bytes.
fn checked(server: Server, project: &str, bytes: u64) -> tempfile::TempDir {
    let folder = server.stop();
    assert_eq!(quota_usage_of(folder.path(), project).bytes, bytes);
    folder
}

#[test]
fn invalid_items_are_named() {
    let server = Server::start();
    let conversation = create(&server, &json!({ "messages": [user_message("x")] }));
    let other = create(&server, &json!({ "messages": [user_message("x")] }));
    let path = format!("/v1/conversations/{conversation}/items");
    let user = json!({ "role": "user", "content": "x" });
    let many = json!({ "items": vec![user.clone(); 4097] });
    let full = json!({ "items": vec![user.clone(); 4096] });
    let both = json!({ "items": [user], "messages": [user] });
    let cases = [
        (server.post(&path, &json!({})), "items"),
        (server.post(&path, &json!({ "items": "x" })), "items"),
        (server.post(&path, &json!({ "items": [1] })), "items[0].type"),
        (server.post(&path, &json!({ "items": [{ "type": "compaction" }] })), "items[0].encrypted_content"),
        (server.post(&path, &json!({ "items": [{ "type": "item_reference", "id": "msg_1" }] })), "items[0].type"),
        (server.post(&path, &json!({ "items": [user, { "role": "user" }] })), "items[1].content"),
        (server.post(&path, &json!({ "items": [user], "messages": [] })), "messages"),
        (server.post(&path, &many), "items"),
        (server.post(&path, &full), "items"),
        (server.post("/v1/conversations", &many), "items"),
        (server.post("/v1/conversations", &both), "items"),
        (server.post("/v1/conversations", &json!({ "items": [{ "role": "x", "content": "" }] })), "items[0].role"),
    ];
    for (response, param) in cases {
        let expected = (400, "invalid_parameter".to_owned(), Some(param.to_owned()));
        assert_eq!(response.error_fields(), expected, "{}", response.text);
    }
    let foreign = items(&server, &other).remove(0);
    let nothing = "0".repeat(40);
    for item in [id(&foreign), "msg_1", &format!("msg_{nothing}"), &id(&foreign).replace("msg", "rs")] {
        for response in [server.get(&format!("{path}/{item}")), server.delete(&format!("{path}/{item}"))] {
            assert_eq!(response.error_fields(), (404, "not_found".to_owned(), None), "{}", response.text);
        }
    }
    assert_eq!(server.get(&format!("/v1/conversations/{conversation}")).ok()["version"], 1);
}

fn write(server: &Server, method: Method, path: &str, headers: Headers<'_>, body: &Value) -> Response {
    let headers = [&[("content-type", "application/json")], headers].concat();
    server.raw(method, path, Some(&server.admin), &headers, Some(body.to_string().into_bytes()))
}

#[test]
fn writes_of_items_check_versions_and_idempotency_keys_and_are_audited() {
    let server = Server::start();
    let conversation = create(&server, &json!({ "items": [{ "role": "user", "content": "classified" }] }));
    let first = ids(&items(&server, &conversation)).remove(0);
    let path = format!("/openai/v1/conversations/{conversation}");
    let (list, item) = (format!("{path}/items"), format!("{path}/items/{first}"));
    let body = json!({ "items": [{ "role": "user", "content": "classified, too" }] });
    let stale: Headers<'_> = &[("if-match", "\"7\"")];
    for response in [
        write(&server, Method::POST, &list, stale, &body),
        server.raw(Method::DELETE, &item, Some(&server.admin), stale, None),
        write(&server, Method::POST, &path, stale, &json!({ "metadata": {} })),
    ] {
        assert_eq!(response.error_fields(), (412, "precondition_failed".to_owned(), Some("If-Match".to_owned())));
    }
    let behind = json!({ "items": body["items"], "version": 7 });
    assert_eq!(server.post(&list, &behind).error_fields().1, "conflict");

    let once: Headers<'_> = &[("idempotency-key", "k"), ("if-match", "\"1\"")];
    let added = [0, 1].map(|_| write(&server, Method::POST, &list, once, &body));
    assert_eq!([added[0].header("idempotent-replayed"), added[1].header("idempotent-replayed")], [None, Some("true")]);
    assert_eq!(added[0].ok()["data"], added[1].ok()["data"]);
    assert_eq!(items(&server, &conversation).len(), 2);

    let updated = server.post(&path, &json!({ "metadata": { "topic": "classified" } })).ok();
    assert_eq!((&updated["metadata"], &updated["version"]), (&json!({ "topic": "classified" }), &json!(3)));
    server.delete(&item).ok();
    let log = server.get("/v1/audit-events?limit=4");
    assert!(!log.text.contains("classified"), "{}", log.text);
    let actions: Vec<Value> = log.ok()["data"].as_array().unwrap().iter().map(|row| row["action"].clone()).collect();
    let expected = ["item_deleted", "updated", "appended", "created"].map(|what| json!(format!("conversation.{what}")));
    assert_eq!(actions, expected);
}
