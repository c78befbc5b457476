//! Stored chat completions: reading, listing, metadata, deletion and isolation.

use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{MODEL, Response, Server};

const PATH: &str = "/openai/v1/chat/completions";

fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn body(more: Value) -> Value {
    let messages = json!([
        { "role": "system", "content": "Be brief." },
        { "role": "user", "content": [{ "type": "text", "text": "the " }, { "type": "text", "text": "sea" }] },
    ]);
    with(json!({ "model": MODEL, "messages": messages, "max_tokens": 3, "seed": 1, "store": true }), more)
}

fn send(server: &Server, more: Value) -> Response {
    server.post(PATH, &body(more))
}

fn id(completion: &Value) -> String {
    completion["id"].as_str().unwrap().to_owned()
}

/// The IDs of a listing.
fn listed(server: &Server, query: &str) -> Vec<String> {
    let page = server.get(&format!("{PATH}{query}")).ok();
    let ids: Vec<String> = page["data"].as_array().unwrap().iter().map(id).collect();
    assert_eq!((&page["first_id"], &page["last_id"]), (&json!(ids.first()), &json!(ids.last())));
    ids
}

#[test]
fn a_stored_completion_is_read_as_it_was_sent() {
    let server = Server::start();
    let options = json!({ "metadata": { "team": "a" }, "logprobs": true, "top_logprobs": 2, "n": 2 });
    let whole = send(&server, options.clone()).ok();
    let stored = server.get(&format!("{PATH}/{}", id(&whole))).ok();
    assert_eq!(stored, with(whole.clone(), json!({ "metadata": { "team": "a" } })));
    let enveloped = server.get(&format!("/v1/chat/completions/{}", id(&whole))).ok();
    assert_eq!((&enveloped["object"], &enveloped["choices"]), (&json!("service.resource"), &whole["choices"]));
    // A stream stores what it has sent.
    let streamed = send(&server, with(options, json!({ "stream": true }))).text;
    let chunks = streamed.lines().filter_map(|line| line.strip_prefix("data: {"));
    let chunks: Vec<Value> = chunks.map(|chunk| serde_json::from_str(&format!("{{{chunk}")).unwrap()).collect();
    let stored = server.get(&format!("{PATH}/{}", id(&chunks[0]))).ok();
    assert_eq!((&stored["choices"], &stored["object"]), (&whole["choices"], &json!("chat.completion")));
    assert_eq!(stored["usage"]["completion_tokens"], whole["usage"]["completion_tokens"]);
}

#[test]
fn only_completions_with_store_are_stored() {
    let server = Server::start();
    for more in [json!({ "store": false }), json!({ "store": null }), json!({ "store": false, "metadata": "free" })] {
        let completion = send(&server, more).ok();
        assert_eq!(server.get(&format!("{PATH}/{}", id(&completion))).error_fields().0, 404);
    }
    let refused = send(&server, json!({ "metadata": "text" }));
    assert_eq!(refused.error_fields(), (400, "invalid_parameter".to_owned(), Some("metadata".to_owned())));
    assert!(listed(&server, "").is_empty());
}

#[test]
fn completions_are_listed_in_pages_and_by_model_and_metadata() {
    let server = Server::start();
    let teams = ["a", "b", "a", "b", "a"];
    let ids: Vec<String> =
        teams.iter().map(|team| id(&send(&server, json!({ "metadata": { "team": team } })).ok())).collect();
    let latest: Vec<String> = ids.iter().rev().cloned().collect();
    assert_eq!(listed(&server, ""), ids);
    assert_eq!(listed(&server, "?order=desc"), latest);
    assert_eq!(listed(&server, &format!("?limit=2&after={}", ids[1])), ids[2..4]);
    assert_eq!(listed(&server, &format!("?limit=2&order=desc&after={}", ids[1])), ids[..1]);
    let page = |query: &str| server.get(&format!("{PATH}{query}")).ok()["has_more"].clone();
    assert_eq!((page("?limit=4"), page("?limit=5")), (json!(true), json!(false)));
    assert_eq!(listed(&server, "?metadata[team]=a"), [&ids[0], &ids[2], &ids[4]].map(String::clone));
    assert_eq!(listed(&server, "?metadata%5Bteam%5D=a&limit=1&order=desc"), [ids[4].clone()]);
    assert!(listed(&server, "?metadata[team]=a&metadata[other]=x").is_empty());
    assert_eq!(listed(&server, &format!("?model={MODEL}")), ids);
    assert!(listed(&server, "?model=another").is_empty());
    for (query, param) in
        [("?limit=0", "limit"), ("?limit=101", "limit"), ("?order=up", "order"), ("?after=x", "after")]
    {
        let (status, _, named) = server.get(&format!("{PATH}{query}")).error_fields();
        assert_eq!((status, named.as_deref()), (400, Some(param)), "{query}");
    }
}

#[test]
fn metadata_is_replaced_and_completions_are_deleted() {
    let server = Server::start();
    let completion = send(&server, json!({ "metadata": { "team": "a" } })).ok();
    let path = format!("{PATH}/{}", id(&completion));
    let project = server.get("/v1/me").ok()["project_id"].as_str().unwrap().to_owned();
    let used = || server.get(&format!("/v1/projects/{project}/rate-limits")).ok()["holds"]["storage_bytes"].as_u64();
    let before = used();
    let changed = server.post(&path, &json!({ "metadata": { "team": "another" } })).ok();
    assert_eq!(changed, with(completion.clone(), json!({ "metadata": { "team": "another" } })));
    assert_eq!(used(), before.map(|bytes| bytes + 6));
    assert_eq!(listed(&server, "?metadata[team]=another"), [id(&completion)]);
    assert_eq!(server.post(&path, &json!({ "metadata": 1 })).error_fields().2.as_deref(), Some("metadata"));
    assert_eq!(server.post(&path, &json!({ "model": "x" })).error_fields().0, 400);
    let confirmed = server.delete(&path).ok();
    assert_eq!(confirmed, json!({ "id": completion["id"], "object": "chat.completion.deleted", "deleted": true }));
    for missing in [server.get(&path), server.delete(&path), server.post(&path, &json!({ "metadata": {} }))] {
        assert_eq!(missing.error_fields().0, 404);
    }
    let report = crate::store_location::check_store(&server.stop().path().join("data"));
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!((report.records["chat_completions"], report.records["chat_completion_contents"]), (0, 0));
}

#[test]
fn the_messages_of_a_request_are_listed() {
    let server = Server::start();
    let completion = id(&send(&server, json!({})).ok());
    let list = |query: &str| server.get(&format!("{PATH}/{completion}/messages{query}"));
    let page = list("").ok();
    let parts = json!([{ "type": "text", "text": "the " }, { "type": "text", "text": "sea" }]);
    let first =
        json!({ "id": format!("{completion}-0"), "role": "system", "content": "Be brief.", "content_parts": null });
    let second =
        json!({ "id": format!("{completion}-1"), "role": "user", "content": "the sea", "content_parts": parts });
    assert_eq!(page["data"], json!([first, second]));
    assert_eq!(list("?order=desc").ok()["data"], json!([second, first]));
    let page = list("?limit=1").ok();
    assert_eq!((&page["data"], &page["has_more"]), (&json!([first]), &json!(true)));
    assert_eq!(list(&format!("?after={completion}-0")).ok()["data"], json!([second]));
    assert_eq!(list("?after=x").error_fields().2.as_deref(), Some("after"));
}

#[test]
fn completions_belong_to_their_project_and_survive_a_restart() {
    let server = Server::start();
    let (_, _, ours) = server.tenant("ours");
    let (_, _, theirs) = server.tenant("theirs");
    let completion = server.call(Method::POST, PATH, Some(&ours), Some(&body(json!({})))).ok();
    let path = format!("{PATH}/{}", id(&completion));
    let list = |key: &str| server.call(Method::GET, PATH, Some(key), None).ok()["data"].as_array().unwrap().len();
    assert_eq!((list(&ours), list(&theirs)), (1, 0));
    for method in [Method::GET, Method::DELETE] {
        assert_eq!(server.call(method, &path, Some(&theirs), None).error_fields().0, 403);
    }
    let server = Server::start_in(server.stop());
    assert_eq!(server.get(&path).ok()["choices"], completion["choices"]);
}
