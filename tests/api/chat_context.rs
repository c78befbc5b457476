//! Chats with a stored conversation or an agent.

use std::io::Read;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::chat::counts;
use crate::server::{Headers, MODEL, Response, Server};
use crate::slow_model;

const MOUNTS: [&str; 2] = ["/v1", "/openai/v1"];

fn message(role: &str, text: &str) -> Value {
    json!({ "role": role, "content": text })
}

/// A chat request with a fixed seed.
fn chat_body(more: Value) -> Value {
    let mut body = json!({
        "model": MODEL, "messages": [message("user", "Tell me about the sea.")],
        "max_completion_tokens": 8, "temperature": 0, "ignore_eos": true,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn chat(server: &Server, mount: &str, more: Value) -> Response {
    server.post(&format!("{mount}/chat/completions"), &chat_body(more))
}

fn conversation(server: &Server, messages: Value) -> String {
    server.post("/v1/conversations", &json!({ "messages": messages })).ok()["id"].as_str().unwrap().to_owned()
}

fn agent(server: &Server, body: Value) -> String {
    server.post("/v1/agents", &body).ok()["id"].as_str().unwrap().to_owned()
}

fn stored_conversation(server: &Server, id: &str) -> Value {
    server.get(&format!("/v1/conversations/{id}")).ok()
}

fn response_text(response: &Value) -> &str {
    response["choices"][0]["message"]["content"].as_str().unwrap()
}

/// The JSON events of a stream, and whether it ended with `[DONE]`.
fn events(text: &str) -> (Vec<Value>, bool) {
    let data: Vec<&str> = text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
    let done = data.last() == Some(&"[DONE]");
    (data.iter().filter(|event| **event != "[DONE]").map(|event| serde_json::from_str(event).unwrap()).collect(), done)
}

#[test]
fn a_chat_continues_the_transcript_and_appends_its_turn() {
    let server = Server::start();
    let history = json!([message("system", "Be brief."), message("user", "ab"), message("assistant", "cd")]);
    for mount in MOUNTS {
        let id = conversation(&server, history.clone());
        let mut whole = history.as_array().unwrap().clone();
        whole.push(message("user", "Tell me about the sea."));
        let by_hand = chat(&server, mount, json!({ "messages": whole })).ok();
        assert_eq!((by_hand.get("conversation"), by_hand.get("truncated_messages")), (None, None));

        let response = chat(&server, mount, json!({ "conversation_id": id })).ok();
        assert_eq!(
            (response_text(&response), counts(&response["usage"])),
            (response_text(&by_hand), counts(&by_hand["usage"]))
        );
        assert_eq!(response["conversation"], json!({ "id": id, "version": 2 }));
        whole.push(message("assistant", response_text(&response)));
        let now = stored_conversation(&server, &id);
        assert_eq!((&now["messages"], &now["version"]), (&json!(whole), &json!(2)));

        whole.push(message("user", "More."));
        let by_hand = chat(&server, mount, json!({ "messages": whole })).ok();
        let next = json!({ "conversation_id": id, "messages": [message("user", "More.")] });
        assert_eq!(response_text(&chat(&server, mount, next).ok()), response_text(&by_hand));
    }
}

#[test]
fn a_streamed_turn_is_stored_before_the_stream_ends() {
    let server = Server::start();
    for mount in MOUNTS {
        let id = conversation(&server, json!([]));
        let whole = chat(&server, mount, json!({})).ok();
        let more = json!({ "conversation_id": id, "stream": true, "stream_options": { "include_usage": true } });
        let response = chat(&server, mount, more);
        let (events, done) = events(&response.text);
        assert!(done, "{}", response.text);
        let usage = events.last().unwrap();
        assert_eq!(usage["conversation"], json!({ "id": id, "version": 2 }));
        assert_eq!(counts(&usage["usage"]), counts(&whole["usage"]));
        assert!(events[..events.len() - 1].iter().all(|event| event.get("conversation").is_none()));
        let messages = json!([message("user", "Tell me about the sea."), message("assistant", response_text(&whole))]);
        assert_eq!(stored_conversation(&server, &id)["messages"], messages);
    }
}

#[test]
fn message_content_is_stored_as_sent() {
    let server = Server::start();
    let id = conversation(&server, json!([]));
    let rich = json!([{ "role": "user", "name": "ada", "content": [{ "type": "text", "text": "a", "x": 1.50 }] }]);
    chat(&server, "/v1", json!({ "conversation_id": id, "messages": rich })).ok();
    assert_eq!(stored_conversation(&server, &id)["messages"][0], rich[0]);
    let unknown = json!([{ "role": "user", "content": "a", "mood": "good" }]);
    let refused = chat(&server, "/v1", json!({ "conversation_id": id, "messages": unknown })).error_fields();
    assert_eq!(refused.2.as_deref(), Some("messages[0].mood"));
    chat(&server, "/v1", json!({ "messages": unknown })).ok();
}

#[test]
fn invalid_combinations_are_refused_by_field() {
    let server = Server::start();
    let id = conversation(&server, json!([]));
    let image = json!([{ "type": "image_url", "image_url": { "url": "https://example.org/a.png" } }]);
    let image_conversation = conversation(&server, json!([message("user", "a"), { "role": "user", "content": image }]));
    let orphan = json!([message("user", "a"), { "role": "tool", "tool_call_id": "c", "content": "b" }]);
    let orphan_conversation = conversation(&server, orphan);
    let full = conversation(&server, json!(vec![message("user", "x"); 4095]));
    let toolful = agent(&server, json!({ "tools": [{ "type": "function", "function": { "name": "f" } }] }));
    let nothing = "0".repeat(32);
    let cases = [
        (json!({ "conversation_id": id, "n": 2 }), 400, "n"),
        (json!({ "conversation_id": id, "truncation": "some" }), 400, "truncation"),
        (json!({ "truncation": "auto" }), 400, "truncation"),
        (json!({ "conversation_id": 7 }), 400, "conversation_id"),
        (json!({ "conversation_id": image_conversation }), 400, "conversation_id"),
        (json!({ "conversation_id": orphan_conversation }), 400, "conversation_id"),
        (json!({ "conversation_id": full }), 400, "conversation_id"),
        (json!({ "conversation_id": format!("conv_{nothing}") }), 404, "conversation_id"),
        (json!({ "conversation_id": "mine" }), 404, "conversation_id"),
        (json!({ "agent_id": format!("agent_{nothing}") }), 404, "agent_id"),
        (json!({ "agent_id": "mine" }), 404, "agent_id"),
        (
            json!({ "agent_id": toolful, "tool_choice": { "type": "function", "function": { "name": "g" } } }),
            400,
            "tool_choice.function.name",
        ),
        (json!({ "model": null }), 400, "model"),
        (json!({ "model": null, "agent_id": toolful, "tool_choice": "none" }), 400, "model"),
    ];
    for (more, status, param) in cases {
        for mount in MOUNTS {
            let response = chat(&server, mount, more.clone());
            let (found, _, named) = response.error_fields();
            assert_eq!((found, named.as_deref()), (status, Some(param)), "{more}: {}", response.text);
        }
    }
    let named = chat(&server, "/v1", json!({ "conversation_id": image_conversation })).text;
    assert!(named.contains("messages[1].content[0]") && named.contains("image_url"), "{named}");
    let without = chat(&server, "/v1", json!({ "agent_id": toolful, "tool_choice": "none" })).ok();
    let with = chat(&server, "/v1", json!({ "agent_id": toolful })).ok();
    let prompt = |response: &Value| response["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(prompt(&with) > prompt(&without) + 50, "the agent's tools are part of the prompt");
    chat(&server, "/v1", json!({ "truncation": "disabled" })).ok();
    assert_eq!(stored_conversation(&server, &id)["version"], 1);
}

#[test]
fn an_agents_instructions_and_model_apply() {
    let server = Server::start();
    let id = agent(&server, json!({ "model": MODEL, "instructions": "Be brief." }));
    for mount in MOUNTS {
        let by_hand = json!({ "messages": [message("system", "Be brief."), message("user", "ab")] });
        let by_hand = chat(&server, mount, by_hand).ok();
        let more = json!({ "agent_id": id, "model": null, "messages": [message("user", "ab")] });
        let response = chat(&server, mount, more).ok();
        assert_eq!(
            (response_text(&response), counts(&response["usage"])),
            (response_text(&by_hand), counts(&by_hand["usage"]))
        );
        assert_eq!(response["model"], MODEL);
    }
    let elsewhere = agent(&server, json!({ "model": "absent", "instructions": "Be brief." }));
    let unknown = chat(&server, "/v1", json!({ "agent_id": elsewhere, "model": null })).error_fields();
    assert_eq!((unknown.0, unknown.1.as_str()), (404, "model_not_found"));
    chat(&server, "/v1", json!({ "agent_id": elsewhere })).ok();

    let both = conversation(&server, json!([]));
    chat(&server, "/v1", json!({ "agent_id": id, "conversation_id": both })).ok();
    assert_eq!(
        stored_conversation(&server, &both)["message_count"],
        2,
        "an agent's instructions are not part of the transcript"
    );
}

#[test]
fn an_agents_message_limit_applies() {
    let server = Server::start();
    let history = [message("user", "a"), message("assistant", "b"), message("user", "c"), message("assistant", "d")];
    let id = agent(&server, json!({ "memory": { "last_messages": 3 } }));
    let stored_conversation = conversation(&server, json!(history));
    let response = chat(&server, "/v1", json!({ "agent_id": id, "conversation_id": stored_conversation })).ok();
    let by_hand = json!({ "messages": [history[2], history[3], message("user", "Tell me about the sea.")] });
    assert_eq!(counts(&response["usage"]), counts(&chat(&server, "/v1", by_hand).ok()["usage"]));
}

/// Twenty turns, which exceed the tiny model's context.
fn long_history() -> Vec<Value> {
    let turn = |number: usize| [message("user", &format!("{number} the sea")), message("assistant", "hello the hello")];
    std::iter::once(message("system", "Be brief.")).chain((0..20).flat_map(turn)).collect()
}

#[test]
fn a_too_long_conversation_is_refused_or_truncated() {
    let server = Server::start();
    let history = long_history();
    let id = conversation(&server, json!(history));
    let refused = chat(&server, "/v1", json!({ "conversation_id": id }));
    let (status, code, _) = refused.error_fields();
    assert_eq!((status, code.as_str()), (400, "context_length_exceeded"));
    assert!(refused.text.contains("512") && refused.text.contains("truncation"), "{}", refused.text);

    // The expected result: the fewest of the oldest turns are left out so that the rest fits with eight new tokens.
    let own = message("user", "Tell me about the sea.");
    let (dropped, by_hand) = (0..=20)
        .find_map(|turns| {
            let messages = history[..1].iter().chain(&history[1 + 2 * turns..]).chain([&own]).collect::<Vec<_>>();
            let response = chat(&server, "/openai/v1", json!({ "messages": messages }));
            (response.status == 200).then(|| (2 * turns, response.json()))
        })
        .unwrap();
    assert!(dropped > 0 && dropped < 40);
    for stream in [false, true] {
        let id = conversation(&server, json!(history));
        let mut more = json!({ "conversation_id": id, "truncation": "auto", "stream": stream });
        if stream {
            more["stream_options"] = json!({ "include_usage": true });
        }
        let response = chat(&server, "/openai/v1", more);
        assert_eq!(response.headers["x-outpost-truncated-messages"], dropped.to_string().as_str());
        let last = if stream { events(&response.text).0.pop().unwrap() } else { response.ok() };
        assert_eq!((&last["truncated_messages"], counts(&last["usage"])), (&json!(dropped), counts(&by_hand["usage"])));
        assert_eq!(stored_conversation(&server, &id)["message_count"], 43, "truncated messages are still stored");
    }
}

#[test]
fn truncation_leaves_space_for_the_response_and_keeps_the_request() {
    let server = Server::start();
    let id = conversation(&server, json!(long_history()));
    let auto = |more: Value| {
        let mut body = json!({ "conversation_id": id, "truncation": "auto" });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        chat(&server, "/v1", body)
    };
    let without_limit = auto(json!({ "max_completion_tokens": null, "stop": ["e", "a", "t"] })).ok();
    let prompt = without_limit["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(prompt <= 512 - 128, "a quarter of the context is reserved for the response: {prompt}");
    let huge = auto(json!({ "messages": [message("user", &"sea ".repeat(600))] })).error_fields();
    assert_eq!((huge.0, huge.1.as_str()), (400, "context_length_exceeded"));

    let agent = agent(&server, json!({ "memory": { "truncation": "auto" } }));
    let by_agent = json!({ "conversation_id": id, "agent_id": agent });
    assert!(chat(&server, "/v1", by_agent).ok()["truncated_messages"].as_u64().unwrap() > 0);
    let overruled = json!({ "conversation_id": id, "agent_id": agent, "truncation": "disabled" });
    assert_eq!(chat(&server, "/v1", overruled).error_fields().1, "context_length_exceeded");
    let short = conversation(&server, json!([]));
    let none = chat(&server, "/v1", json!({ "conversation_id": short, "truncation": "auto" })).ok();
    assert_eq!(none["truncated_messages"], 0);
}

#[test]
fn a_version_precondition_is_checked_before_generation() {
    let server = Server::start();
    let id = conversation(&server, json!([]));
    let send = |tag: &str, body: &Value| {
        let headers: Headers<'_> = &[("content-type", "application/json"), ("if-match", tag)];
        let body = body.to_string().into_bytes();
        server.raw(Method::POST, "/v1/chat/completions", Some(&server.admin), headers, Some(body))
    };
    let go_on = chat_body(json!({ "conversation_id": id }));
    let stale = send("\"2\"", &go_on).error_fields();
    assert_eq!(stale, (412, "precondition_failed".to_owned(), Some("If-Match".to_owned())));
    assert_eq!(send("\"1\"", &go_on).ok()["conversation"]["version"], 2);
    assert_eq!(send("\"1\"", &chat_body(json!({}))).error_fields().2.as_deref(), Some("If-Match"));
}

#[test]
fn a_concurrent_change_of_the_conversation_gives_a_conflict() {
    let server = Server::start_with(&slow_model());
    for stream in [false, true] {
        for delete in [false, true] {
            let id = conversation(&server, json!([]));
            let more = json!({ "conversation_id": id, "stream": stream, "max_completion_tokens": 150 });
            let response = std::thread::scope(|scope| {
                let response = scope.spawn(|| chat(&server, "/v1", more));
                server.wait_running();
                let path = format!("/v1/conversations/{id}");
                if delete {
                    server.delete(&path).ok();
                } else {
                    server.patch(&path, &json!({ "metadata": { "a": 1 } })).ok();
                }
                response.join().unwrap()
            });
            if stream {
                let (mut events, done) = events(&response.text);
                assert!(!done, "{}", response.text);
                assert_eq!(events.pop().unwrap()["error"]["code"], "conflict");
                let finished = events.iter().any(|event| !event["choices"][0]["finish_reason"].is_null());
                assert!(!finished, "no finish reason is sent if the turn could not be stored");
            } else {
                let expected = (409, "conflict".to_owned(), Some("conversation_id".to_owned()));
                assert_eq!(response.error_fields(), expected, "{}", response.text);
            }
            if !delete {
                assert_eq!(stored_conversation(&server, &id)["message_count"], 0);
            }
        }
    }
}

#[test]
fn an_abandoned_response_is_not_stored() {
    let server = Server::start_with(&slow_model());
    for stream in [true, false] {
        let id = conversation(&server, json!([]));
        let body = chat_body(json!({ "conversation_id": id, "stream": stream, "max_completion_tokens": 2000 }));
        let mut connection = server.start_chat(&body);
        server.wait_running();
        if stream {
            assert!(connection.read(&mut [0; 512]).unwrap() > 0);
        }
        drop(connection);
        server.wait_idle(Duration::from_secs(5));
        let now = stored_conversation(&server, &id);
        assert_eq!((&now["message_count"], &now["version"]), (&json!(0), &json!(1)));
    }
}

#[test]
fn an_inference_key_can_chat_only_in_its_own_project() {
    let server = Server::start();
    let (project, ..) = server.tenant("mine");
    let narrow = json!({ "name": "k", "project_id": project, "scopes": ["inference"] });
    let narrow = server.post("/v1/api-keys", &narrow).ok()["secret"].as_str().unwrap().to_owned();
    let created = |path: &str| server.post(path, &json!({ "project_id": project })).ok()["id"].clone();
    let (own, helper) = (created("/v1/conversations"), created("/v1/agents"));
    let (foreign, spy) = (conversation(&server, json!([])), agent(&server, json!({})));
    for mount in MOUNTS {
        let path = format!("{mount}/chat/completions");
        let send = |more: Value| server.call(Method::POST, &path, Some(&narrow), Some(&chat_body(more)));
        send(json!({ "conversation_id": own, "agent_id": helper })).ok();
        for (more, param) in
            [(json!({ "conversation_id": foreign }), "conversation_id"), (json!({ "agent_id": spy }), "agent_id")]
        {
            let expected = (403, "project_mismatch".to_owned(), Some(param.to_owned()));
            assert_eq!(send(more).error_fields(), expected);
        }
    }
    assert_eq!(stored_conversation(&server, own.as_str().unwrap())["message_count"], 4);
    assert_eq!(stored_conversation(&server, &foreign)["version"], 1);
}
