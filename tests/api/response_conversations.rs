//! Responses that continue a stored conversation.

use serde_json::{Value, json};

use crate::conversations::{create, user_message};
use crate::reasoning;
use crate::responses::{PATH, assembled, body, calling_model, events, model, send, text_of, tool};
use crate::server::{Headers, Server};
use crate::slow_model;
use crate::tiny_model::TinyModel;

fn message(role: &str, text: &str) -> Value {
    json!({ "role": role, "content": text })
}

fn stored(server: &Server, conversation: &str) -> Value {
    server.get(&format!("/v1/conversations/{conversation}")).ok()
}

fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The text and the number of input tokens.
fn result(response: &Value) -> (String, Value) {
    (text_of(response).to_owned(), response["usage"]["input_tokens"].clone())
}

#[test]
fn a_response_continues_the_transcript_and_is_added_to_it() {
    let server = Server::start_with(&model());
    let history = [message("developer", "Be brief."), message("user", "ab"), message("assistant", "cd")];
    for is_streamed in [false, true] {
        let conversation = create(&server, &json!({ "items": history }));
        let mut whole = history.to_vec();
        let mut messages = whole.clone();
        for (turn, text) in ["the sea", "the land"].into_iter().enumerate() {
            whole.push(message("user", text));
            let more = json!({ "instructions": "Speak Latin." });
            let by_hand = send(&server, with(more.clone(), json!({ "input": whole }))).ok();
            let named = if turn == 0 { json!(conversation) } else { json!({ "id": conversation }) };
            let own = with(more, json!({ "input": text, "conversation": named, "store": is_streamed }));
            let counted = server.post("/v1/responses/input_tokens", &body(own.clone())).ok();
            let response = send(&server, with(own, json!({ "stream": is_streamed })));
            let response = if is_streamed { assembled(&response.text) } else { response.ok() };
            assert_eq!(result(&response), result(&by_hand));
            assert_eq!(counted["input_tokens"], response["usage"]["input_tokens"]);
            assert_eq!(response["conversation"], json!({ "id": conversation }));
            assert_eq!(response["previous_response_id"], Value::Null);
            let is_stored = server.get(&format!("{PATH}/{}", response["id"].as_str().unwrap())).status == 200;
            assert_eq!(is_stored, is_streamed, "the turn is added in both cases");
            messages.push(user_message(text));
            messages.push(message("assistant", text_of(&response)));
            let now = stored(&server, &conversation);
            assert_eq!((&now["messages"], &now["version"]), (&json!(messages), &json!(turn + 2)));
            whole.push(message("assistant", text_of(&response)));
        }
        let items = server.get(&format!("/openai/v1/conversations/{conversation}/items?limit=1")).ok();
        assert_eq!(items["data"][0]["content"][0]["text"], whole.last().unwrap()["content"]);
    }
    assert_eq!(send(&server, json!({})).ok().get("conversation"), None);
}

#[test]
fn the_input_continues_the_last_message() {
    let server = Server::start_with(&model());
    let by_hand = send(&server, json!({ "input": [message("user", "a\nb\nc")] })).ok();
    let pending = [message("user", "a"), message("user", "b")];
    let conversation = create(&server, &json!({ "items": pending }));
    let response = send(&server, json!({ "input": "c", "conversation": conversation })).ok();
    assert_eq!(result(&response), result(&by_hand));
    let texts = ["a", "b", "c"].map(user_message);
    assert_eq!(stored(&server, &conversation)["messages"].as_array().unwrap()[..3], texts);
    // Without an input, the model answers the conversation.
    let conversation = create(&server, &json!({ "items": [message("user", "a\nb\nc")] }));
    for truncation in ["disabled", "auto"] {
        let more = json!({ "input": null, "conversation": conversation, "truncation": truncation });
        let counted = server.post("/v1/responses/input_tokens", &body(more)).ok();
        assert_eq!(counted["input_tokens"], by_hand["usage"]["input_tokens"]);
    }
    let response = send(&server, json!({ "input": null, "conversation": conversation })).ok();
    assert_eq!(result(&response), result(&by_hand));
    assert_eq!(stored(&server, &conversation)["message_count"], 2);
}

#[test]
fn a_call_is_answered_with_the_next_response() {
    let server = Server::start_with(&calling_model());
    let conversation = create(&server, &json!({}));
    let tools = json!({ "tools": [tool("look")], "max_output_tokens": 300, "conversation": conversation });
    let first = send(&server, with(tools.clone(), json!({ "tool_choice": "required" }))).ok();
    let called = first["output"].as_array().unwrap().last().unwrap();
    let output = json!({ "type": "function_call_output", "call_id": called["call_id"], "output": "water" });
    let mut by_hand = vec![message("user", "the sea")];
    by_hand.extend(first["output"].as_array().unwrap().iter().cloned());
    by_hand.push(output.clone());
    let by_hand = send(&server, json!({ "input": by_hand, "tools": [tool("look")] })).ok();
    let own = with(tools, json!({ "input": [output], "max_output_tokens": 24 }));
    let second = send(&server, own).ok();
    assert_eq!(second["usage"]["input_tokens"], by_hand["usage"]["input_tokens"]);
    let items = server.get(&format!("/openai/v1/conversations/{conversation}/items?order=asc")).ok();
    let items = items["data"].as_array().unwrap().clone();
    let call = items.iter().find(|item| item["type"] == "function_call").unwrap();
    for field in ["call_id", "name", "arguments"] {
        assert_eq!(call[field], called[field], "{field}");
    }
    let result = items.iter().find(|item| item["type"] == "function_call_output").unwrap();
    assert_eq!((&result["call_id"], &result["output"]), (&called["call_id"], &json!("water")));
}

#[test]
fn reasoning_is_kept_with_the_turn() {
    let server = reasoning::start(reasoning::OPEN);
    let conversation = create(&server, &json!({}));
    let response = send(&server, json!({ "conversation": conversation, "max_reasoning_tokens": 8 })).ok();
    assert_eq!(response["output"][0]["type"], "reasoning");
    let text = &response["output"][0]["content"][0]["text"];
    assert_eq!(stored(&server, &conversation)["messages"][1]["reasoning_content"], *text);
    let items = server.get(&format!("/openai/v1/conversations/{conversation}/items?order=asc")).ok();
    let kinds: Vec<&str> =
        items["data"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["message", "reasoning", "message"]);
    assert_eq!(items["data"][1]["content"][0]["text"], *text);
}

#[test]
fn invalid_combinations_are_refused_by_field() {
    let server = Server::start_with(&model());
    let image = json!([{ "type": "input_image", "image_url": "https://example.org/a.png" }]);
    let image = create(&server, &json!({ "items": [{ "role": "user", "content": image }] }));
    let orphan = json!({ "type": "function_call_output", "call_id": "c", "output": "r" });
    let orphans = create(&server, &json!({ "items": [orphan] }));
    let empty = create(&server, &json!({}));
    let full = create(&server, &json!({ "messages": vec![user_message("x"); 4095] }));
    let previous = send(&server, json!({})).ok()["id"].clone();
    for (more, status, param) in [
        (json!({ "conversation": empty, "previous_response_id": previous }), 400, "conversation"),
        (json!({ "conversation": "mine" }), 404, "conversation"),
        (json!({ "conversation": { "id": format!("conv_{}", "0".repeat(32)) } }), 404, "conversation"),
        (json!({ "conversation": image }), 400, "conversation"),
        (json!({ "conversation": orphans }), 400, "conversation"),
        (json!({ "conversation": full }), 400, "conversation"),
        (json!({ "conversation": empty, "input": null }), 400, "input"),
        (json!({ "conversation": empty, "input": [] }), 400, "input"),
        (json!({ "conversation": empty, "input": [orphan] }), 400, "input"),
        (json!({ "conversation": empty, "input": [{ "role": "user" }] }), 400, "input[0].content"),
    ] {
        for stream in [false, true] {
            let response = send(&server, with(more.clone(), json!({ "stream": stream })));
            let (found, _, named) = response.error_fields();
            assert_eq!((found, named.as_deref()), (status, Some(param)), "{more}: {}", response.text);
            assert!(!response.text.contains("conversation_id"), "{}", response.text);
        }
    }
    let if_match = |body: &Value, tag: &str| {
        let headers: Headers<'_> = &[("content-type", "application/json"), ("if-match", tag)];
        let bytes = body.to_string().into_bytes();
        server.raw(reqwest::Method::POST, PATH, Some(&server.admin), headers, Some(bytes))
    };
    let turn = body(json!({ "conversation": empty }));
    assert_eq!(if_match(&turn, "\"2\"").error_fields().1, "precondition_failed");
    assert_eq!(if_match(&body(json!({})), "\"1\"").error_fields().2.as_deref(), Some("If-Match"));
    assert_eq!(stored(&server, &empty)["version"], 1);
    if_match(&turn, "\"1\"").ok();
    assert_eq!(stored(&server, &empty)["version"], 2);
    let hosted = json!([{ "type": "web_search_call", "id": "ws_1" }, message("user", "a")]);
    let reply = send(&server, json!({ "conversation": empty, "input": hosted, "moderation": { "x": 1 } }));
    assert_eq!(reply.header("x-outpost-ignored"), Some("input[0] web_search_call, moderation"));
}

#[test]
fn a_conversation_that_is_too_long_is_refused_or_truncated() {
    let server = Server::start_with(&TinyModel { context: 128, ..model() });
    let history = [message("system", "Be brief."), message("user", &"word ".repeat(200)), message("assistant", "Yes.")];
    let conversation = create(&server, &json!({ "messages": history }));
    let own = json!({ "conversation": conversation });
    let refused = send(&server, own.clone());
    assert_eq!(refused.error_fields().1, "context_length_exceeded");
    assert!(refused.text.contains("truncation"), "{}", refused.text);
    let truncated = send(&server, with(own, json!({ "truncation": "auto" })));
    assert_eq!(truncated.header("x-outpost-truncated-messages"), Some("2"));
    let short = send(&server, json!({ "input": [message("system", "Be brief."), message("user", "the sea")] })).ok();
    assert_eq!(result(&truncated.ok()), result(&short));
    assert_eq!(stored(&server, &conversation)["message_count"], 5);
}

#[test]
fn a_concurrent_change_of_the_conversation_gives_a_conflict() {
    let server = Server::start_with(&slow_model());
    for stream in [false, true] {
        let conversation = create(&server, &json!({}));
        let more =
            json!({ "conversation": conversation, "stream": stream, "max_output_tokens": 150, "ignore_eos": true });
        let response = std::thread::scope(|scope| {
            let response = scope.spawn(|| send(&server, more));
            server.wait_running();
            server.patch(&format!("/v1/conversations/{conversation}"), &json!({ "metadata": { "a": 1 } })).ok();
            response.join().unwrap()
        });
        if stream {
            let events = events(&response.text);
            let [.., error, failed] = events.as_slice() else { panic!("{}", response.text) };
            assert_eq!((&error["code"], &error["param"]), (&json!("conflict"), &json!("conversation")));
            assert_eq!(failed["response"]["status"], "failed");
        } else {
            let expected = (409, "conflict".to_owned(), Some("conversation".to_owned()));
            assert_eq!(response.error_fields(), expected, "{}", response.text);
        }
        assert_eq!(stored(&server, &conversation)["message_count"], 0);
    }
}
