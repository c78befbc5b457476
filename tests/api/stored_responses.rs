//! Stored responses: chains, reading, deletion and isolation.

use reqwest::Method;
use serde_json::{Value, json};

use crate::responses::{PATH, body, calling_model, events, model, send, text_of, tool};
use crate::server::{Response, Server};

fn id(response: &Value) -> String {
    response["id"].as_str().unwrap().to_owned()
}

fn next(server: &Server, previous: &str, text: &str) -> Response {
    send(server, json!({ "input": text, "previous_response_id": previous }))
}

fn not_found(response: &Response) {
    let expected = (400, "previous_response_not_found".to_owned(), Some("previous_response_id".to_owned()));
    assert_eq!(response.error_fields(), expected);
}

#[test]
fn a_chain_of_responses_is_the_whole_conversation() {
    let server = Server::start_with(&model());
    let user = |text: &str| json!({ "role": "user", "content": text });
    let first = send(&server, json!({ "instructions": "Be brief." })).ok();
    let second = next(&server, &id(&first), "and the land").ok();
    let third = send(
        &server,
        json!({ "input": "and the sky", "previous_response_id": second["id"], "instructions": "Be long.", "stream": true, "store": false }),
    );
    let mut items = vec![user("the sea")];
    items.extend(first["output"].as_array().unwrap().iter().cloned());
    items.push(user("and the land"));
    let whole = send(&server, json!({ "input": items })).ok();
    // The instructions of the first response are not passed on.
    assert_eq!(
        (text_of(&second), &second["usage"]["input_tokens"]),
        (text_of(&whole), &whole["usage"]["input_tokens"])
    );
    assert_eq!((&second["previous_response_id"], &second["instructions"]), (&first["id"], &Value::Null));
    items.extend(second["output"].as_array().unwrap().iter().cloned());
    items.push(user("and the sky"));
    let whole = send(&server, json!({ "input": items, "instructions": "Be long." })).ok();
    let third = &events(&third.text).pop().unwrap()["response"];
    assert_eq!((text_of(third), &third["usage"]["input_tokens"]), (text_of(&whole), &whole["usage"]["input_tokens"]));
    let counted =
        body(json!({ "input": "and the sky", "previous_response_id": second["id"], "instructions": "Be long." }));
    let counted = server.post("/v1/responses/input_tokens", &counted).ok();
    assert_eq!(counted["input_tokens"], third["usage"]["input_tokens"]);
    not_found(&next(&server, &id(third), "it was not stored"));
    assert_eq!(server.get(&format!("{PATH}/{}", id(third))).status, 404);
}

#[test]
fn responses_survive_a_restart_and_the_check_finds_no_problem() {
    let server = Server::start_with(&model());
    let first = send(&server, json!({})).ok();
    let streamed = send(&server, json!({ "stream": true, "previous_response_id": first["id"] }));
    let last = events(&streamed.text).pop().unwrap();
    let before = next(&server, &id(&last["response"]), "go on").ok();
    let folder = server.stop();
    let report = crate::store_location::check_store(&folder.path().join("data"));
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!((report.records["responses"], report.records["response_contents"]), (3, 3));
    let server = Server::start_in(folder);
    for response in [&first, &last["response"], &before] {
        assert_eq!(server.get(&format!("{PATH}/{}", id(response))).ok(), *response);
    }
    let after = next(&server, &id(&last["response"]), "go on").ok();
    assert_eq!(text_of(&after), text_of(&before));
}

#[test]
fn a_deleted_response_cannot_be_read_or_continued() {
    let server = Server::start_with(&model());
    let first = id(&send(&server, json!({})).ok());
    let second = id(&next(&server, &first, "on").ok());
    let third = id(&next(&server, &second, "on").ok());
    let path = format!("/openai/v1/responses/{second}");
    assert_eq!(server.delete(&path).ok(), json!({ "id": second, "object": "response", "deleted": true }));
    assert_eq!(server.get(&path).error_fields().0, 404);
    assert_eq!(server.delete(&path).error_fields().0, 404);
    for previous in [&second, &third] {
        let refused = next(&server, previous, "on");
        not_found(&refused);
        assert!(refused.text.contains(&second), "the missing one is named: {}", refused.text);
    }
    next(&server, &first, "on").ok();
    for bad in ["resp_none".to_owned(), format!("resp_{}", "0".repeat(32))] {
        not_found(&next(&server, &bad, "on"));
    }
    let audit = server.get("/v1/audit-events?action=response&limit=100").ok();
    let actions: Vec<&str> =
        audit["data"].as_array().unwrap().iter().map(|row| row["action"].as_str().unwrap()).collect();
    assert_eq!(actions.iter().filter(|action| **action == "response.deleted").count(), 1, "{audit}");
    assert_eq!(actions.iter().filter(|action| **action == "response.created").count(), 4, "{audit}");
}

#[test]
fn input_items_are_listed_in_pages() {
    let server = Server::start_with(&model());
    let texts = ["a", "b", "c"];
    let items: Vec<Value> = texts.iter().map(|text| json!({ "role": "user", "content": text })).collect();
    let first = id(&send(&server, json!({ "input": items })).ok());
    let list = |query: &str| server.get(&format!("{PATH}/{first}/input_items{query}"));
    let listed = |query: &str| {
        let page = list(query).ok();
        let items = page["data"].as_array().unwrap();
        let end = |item: Option<&Value>| item.map_or(Value::Null, |item| item["id"].clone());
        assert_eq!((&page["first_id"], &page["last_id"]), (&end(items.first()), &end(items.last())));
        let text = |item: &Value| {
            assert_eq!(
                (&item["type"], &item["status"], &item["role"]),
                (&json!("message"), &json!("completed"), &json!("user"))
            );
            assert_eq!(item["content"][0]["type"], "input_text");
            item["content"][0]["text"].as_str().unwrap().to_owned()
        };
        (
            items.iter().map(text).collect::<String>(),
            page["has_more"].as_bool().unwrap(),
            page["last_id"].as_str().unwrap_or_default().to_owned(),
        )
    };
    assert_eq!(listed("").0, "cba");
    assert_eq!(listed("?order=asc").0, "abc");
    let (page, more, last) = listed("?order=asc&limit=2&include[]=x");
    assert_eq!((page.as_str(), more), ("ab", true));
    let (page, more, _) = listed(&format!("?order=asc&limit=2&after={last}"));
    assert_eq!((page.as_str(), more), ("c", false));
    // A later response has only its own input.
    let second = id(&next(&server, &first, "d").ok());
    let own = server.get(&format!("{PATH}/{second}/input_items")).ok();
    assert_eq!((own["data"].as_array().unwrap().len(), &own["data"][0]["content"][0]["text"]), (1, &json!("d")));
    for (query, param) in [("?limit=0", "limit"), ("?order=up", "order"), ("?after=msg_none", "after")] {
        assert_eq!(list(query).error_fields().2.as_deref(), Some(param), "{query}");
    }
}

#[test]
fn items_of_stored_responses_can_be_referred_to() {
    let server = Server::start_with(&calling_model());
    let tools = json!([tool("look")]);
    let first = send(&server, json!({ "tools": tools, "tool_choice": "required", "max_output_tokens": 300 })).ok();
    let call = first["output"].as_array().unwrap().last().unwrap();
    let input = server.get(&format!("{PATH}/{}/input_items", id(&first))).ok()["data"][0].clone();
    let reference = |item: &Value| json!({ "type": "item_reference", "id": item["id"] });
    let result = json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "water" });
    let referred = json!({ "input": [reference(&input), reference(call), result], "tools": tools });
    let written = json!({ "input": [input, call, result], "tools": tools });
    let (referred, written) = (send(&server, referred).ok(), send(&server, written).ok());
    assert_eq!(
        (&referred["usage"]["input_tokens"], &referred["status"]),
        (&written["usage"]["input_tokens"], &written["status"])
    );
    let (_, _, stranger) = server.tenant("stranger");
    let foreign = body(json!({ "input": [reference(call)] }));
    let refused = server.call(Method::POST, PATH, Some(&stranger), Some(&foreign)).error_fields();
    assert_eq!(refused.2.as_deref(), Some("input[0].id"));
}

#[test]
fn a_conversation_is_compacted_to_a_summary() {
    let server = Server::start_with(&model());
    let first = send(&server, json!({ "input": "the sea" })).ok();
    let compact = |more: Value| {
        let mut body = json!({ "model": crate::server::MODEL });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post(&format!("{PATH}/compact"), &body)
    };
    let reply = compact(json!({ "previous_response_id": first["id"], "input": "the land", "tools": [] }));
    assert_eq!(reply.header("x-outpost-ignored"), Some("tools"));
    assert_eq!(reply.header("x-outpost-truncated-messages"), Some("0"));
    let compacted = reply.ok();
    assert_eq!(compacted["object"], "response.compaction");
    let output = compacted["output"].as_array().unwrap();
    let texts: Vec<&Value> = output[..2].iter().map(|item| &item["content"][0]["text"]).collect();
    assert_eq!(texts, ["the sea", "the land"]);
    assert_eq!((output.len(), &output[2]["type"]), (3, &json!("compaction")));
    assert!(compacted["usage"]["output_tokens"].as_u64() > Some(0));
    // It is the beginning of another conversation, which is stored with it.
    let mut input = output.clone();
    input.push(json!({ "role": "user", "content": "go on" }));
    let next_one = send(&server, json!({ "input": input })).ok();
    let after = next(&server, &id(&next_one), "and on").ok();
    assert!(after["usage"]["input_tokens"].as_u64() > next_one["usage"]["input_tokens"].as_u64());
    // The oldest turns are left out if the whole conversation is too long.
    let mut long: Vec<Value> = Vec::new();
    for turn in 0..40 {
        long.push(json!({ "role": "user", "content": format!("question {turn} about the sea and the land") }));
        long.push(json!({ "role": "assistant", "content": format!("answer {turn} about the land and the sea") }));
    }
    let reply = compact(json!({ "input": long }));
    let left_out: usize = reply.header("x-outpost-truncated-messages").unwrap().parse().unwrap();
    assert!(left_out > 0 && left_out < 80, "{left_out}");
    reply.ok();
    let too_long =
        json!([{ "role": "user", "content": "word ".repeat(3000) }, { "role": "assistant", "content": "x" }]);
    assert_eq!(compact(json!({ "input": too_long })).error_fields().1, "context_length_exceeded");
    for (more, param) in [
        (json!({}), "input"),
        (json!({ "input": "x", "model": "none" }), "model"),
        (json!({ "previous_response_id": "resp_none" }), "previous_response_id"),
        (json!({ "input": [{ "type": "compaction", "encrypted_content": "gAAAAA==" }] }), "input[0].encrypted_content"),
    ] {
        assert_eq!(compact(more).error_fields().2.as_deref(), Some(param));
    }
}

#[test]
fn another_project_cannot_continue_a_response_nor_see_that_it_exists() {
    let server = Server::start_with(&model());
    let (_, _, owner) = server.tenant("owner");
    let (_, _, stranger) = server.tenant("stranger");
    let own = server.call(Method::POST, PATH, Some(&owner), Some(&body(json!({})))).ok();
    let more = body(json!({ "previous_response_id": own["id"] }));
    not_found(&server.call(Method::POST, PATH, Some(&stranger), Some(&more)));
    not_found(&server.call(Method::POST, "/v1/responses/input_tokens", Some(&stranger), Some(&more)));
    server.call(Method::POST, PATH, Some(&owner), Some(&more)).ok();
    server.post(PATH, &more).ok();
}

#[test]
fn what_a_stored_response_does_not_support_is_refused_by_name() {
    let server = Server::start_with(&model());
    let response = id(&send(&server, json!({})).ok());
    let streamed = server.get(&format!("{PATH}/{response}?stream=true&starting_after=3")).error_fields();
    assert_eq!(streamed, (400, "invalid_parameter".to_owned(), Some("stream".to_owned())));
    server.get(&format!("{PATH}/{response}?stream=false&include[]=x")).ok();
    let cancelled = server.post(&format!("{PATH}/{response}/cancel"), &json!({}));
    assert_eq!(cancelled.error_fields(), (400, "invalid_parameter".to_owned(), Some("response_id".to_owned())));
    let nothing = format!("{PATH}/resp_{}/cancel", "0".repeat(32));
    assert_eq!(server.post(&nothing, &json!({})).error_fields().0, 404);
}

#[test]
fn stored_responses_count_against_the_quota() {
    let server = Server::start_with(&model());
    let (project, _, key) = server.tenant("quota");
    let limits = format!("/v1/projects/{project}/rate-limits");
    let held_of = |quota: &str| server.get(&limits).ok()["holds"][quota].as_u64().unwrap();
    let held = || held_of("storage_bytes");
    let create = |more: Value| server.call(Method::POST, PATH, Some(&key), Some(&body(more)));
    create(json!({ "store": false })).ok();
    assert_eq!(held(), 0);
    let stored = create(json!({})).ok();
    assert!(held() > 500 && held_of("responses") == 1);
    server.patch(&limits, &json!({ "quotas": { "responses": 1 } })).ok();
    assert_eq!(create(json!({})).error_fields().1, "insufficient_quota");
    server.patch(&limits, &json!({ "quotas": { "responses": null } })).ok();
    server.patch(&limits, &json!({ "quotas": { "storage_bytes": held() } })).ok();
    assert_eq!(create(json!({})).error_fields().1, "insufficient_quota");
    create(json!({ "store": false })).ok();
    server.call(Method::DELETE, &format!("{PATH}/{}", id(&stored)), Some(&key), None).ok();
    assert_eq!((held(), held_of("responses")), (0, 0));
}
