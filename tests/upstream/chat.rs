//! Chats with upstream models, through every API.

use std::io::Read;
use std::sync::mpsc;

use outpost::app::SystemClockRng;
use outpost::service::usage::{ExportFilter, UsageRow};
use outpost::storage::{Store, StoreSettings};
use serde_json::{Value, json};

use crate::fake_target::{FakeTarget, chunk};
use crate::server::Server;
use crate::tiny_model::TinyModel;
use crate::{REMOTE, chat_body, events, server_with, server_with_settings, upstream_toml, write_upstream};

const USAGE: [(&str, u64); 3] = [("prompt_tokens", 3), ("completion_tokens", 2), ("total_tokens", 5)];

fn assert_usage(body: &Value) {
    for (name, count) in USAGE {
        assert_eq!(body["usage"][name], count, "{body}");
    }
}

#[test]
fn the_target_gets_openais_request_and_the_client_openais_response() {
    let target = FakeTarget::chatting("good day");
    let server = server_with(&[target.address]);
    let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": { "type": "object" }, "strict": true } });
    let function = json!({ "name": "f", "description": "d", "parameters": { "type": "object" }, "strict": true });
    let body = chat_body(json!({
        "temperature": 0.7, "stop": ["END"], "max_tokens": 9, "seed": 5, "response_format": format,
        "tools": [{ "type": "function", "function": function }], "tool_choice": "required", "parallel_tool_calls": false,
        "logprobs": true, "top_logprobs": 2, "logit_bias": { "7": -3 }, "reasoning_effort": "low",
    }));
    let response = server.post("/openai/v1/chat/completions", &body).ok();
    assert_eq!(response["choices"][0]["message"]["content"], "good day");
    assert_eq!((&response["model"], &response["choices"][0]["finish_reason"]), (&json!(REMOTE), &json!("stop")));
    assert_usage(&response);
    let sent = target.last();
    assert_eq!((sent.path.as_str(), sent.header("authorization")), ("/v1/chat/completions", None));
    let mut sent = sent.json();
    assert_eq!(sent["response_format"]["json_schema"]["schema"], json!({ "type": "object" }));
    let tools = json!([{ "type": "function", "function": function }]);
    for (name, value) in [("tools", tools), ("tool_choice", json!("required")), ("parallel_tool_calls", json!(false))] {
        assert_eq!(sent[name], value, "{name}");
    }
    let object = sent.as_object_mut().unwrap();
    for name in ["response_format", "tools", "tool_choice", "parallel_tool_calls"] {
        object.remove(name).unwrap();
    }
    let expected = json!({
        "model": "there", "messages": [{ "role": "user", "content": "hello there" }], "stream": true,
        "stream_options": { "include_usage": true }, "temperature": 0.7, "stop": ["END"], "max_tokens": 9, "seed": 5,
        "logprobs": true, "top_logprobs": 2, "logit_bias": { "7": -3.0 }, "reasoning_effort": "low",
    });
    assert_eq!(sent, expected);
}

#[test]
fn what_a_request_leaves_open_is_left_to_the_target() {
    let target = FakeTarget::chatting("ok");
    let server = server_with(&[target.address]);
    server.post("/v1/chat/completions", &chat_body(json!({}))).ok();
    let sent = target.last().json();
    let names: Vec<&str> = sent.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(names, ["messages", "stream", "stream_options", "model"]);
}

#[test]
fn an_alias_reaches_the_target_with_the_default_parameters_of_the_model() {
    let target = FakeTarget::chatting("ok");
    let text = upstream_toml("kind = \"chat\"", &[target.address]);
    let settings = "[aliases]\ngpt-4o-mini = 'remote'\n[models.remote.defaults]\n\
                    temperature = 0.3\nmax_tokens = 7\nstop = 'END'";
    let server = Server::start_configured(&TinyModel::default(), |config| {
        write_upstream(&config.paths.models, REMOTE, &text);
        std::fs::write(config.paths.models.join("models.toml"), settings).unwrap();
    });
    let body = chat_body(json!({ "model": "gpt-4o-mini", "temperature": 0.9 }));
    assert_eq!(server.post("/v1/chat/completions", &body).ok()["model"], REMOTE);
    let sent = target.last().json();
    assert_eq!((&sent["model"], &sent["temperature"]), (&json!("there"), &json!(0.9)));
    assert_eq!((&sent["max_tokens"], &sent["stop"]), (&json!(7), &json!(["END"])));
    let body = json!({ "model": "gpt-4o-mini", "prompt": "hello", "max_tokens": 3 });
    server.post("/v1/completions", &body).ok();
    let sent = target.last().json();
    assert_eq!((&sent["temperature"], &sent["max_tokens"]), (&json!(0.3), &json!(3)));
}

#[test]
fn streams_are_passed_on_part_by_part() {
    let (send, resume) = mpsc::channel::<()>();
    let resume = std::sync::Mutex::new(resume);
    let target = FakeTarget::start(move |_, _, reply| {
        reply.begin_events();
        reply.event(&chunk("one ", None));
        resume.lock().unwrap().recv().unwrap();
        reply.event(&chunk("two", Some("length")));
        reply.event(&json!({ "choices": [], "usage": { "prompt_tokens": 3, "completion_tokens": 2 } }));
        reply.raw("data: [DONE]\n\n");
    });
    let server = server_with(&[target.address]);
    let body = chat_body(json!({ "stream": true, "stream_options": { "include_usage": true } }));
    let mut connection = server.begin("/openai/v1/chat/completions", &server.admin, &body);
    // The first part arrives while the target has not sent the second one.
    let mut text = String::new();
    while !text.contains("one ") {
        let mut bytes = [0; 4096];
        let count = connection.read(&mut bytes).unwrap();
        assert!(count > 0, "{text}");
        text.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
    }
    assert!(!text.contains("two"));
    send.send(()).unwrap();
    send.send(()).unwrap();
    let response = server.post("/openai/v1/chat/completions", &body);
    let events = events(&response.text);
    let contents: String = events.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(contents, "one two");
    assert_eq!(events[events.len() - 2]["choices"][0]["finish_reason"], "length");
    assert_usage(events.last().unwrap());
}

#[test]
fn reasoning_calls_and_log_probabilities_are_mapped_back() {
    let target = FakeTarget::start(|_, _, reply| {
        reply.begin_events();
        let event = |reply: &mut crate::fake_target::Reply<'_>, delta: Value, more: Value| {
            let mut choice = json!({ "index": 0, "delta": delta });
            choice.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            reply.event(&json!({ "choices": [choice] }));
        };
        event(reply, json!({ "reasoning": "hm" }), json!({}));
        let tokens = json!([{ "token": "a", "logprob": -0.25, "bytes": [97], "top_logprobs": [] }]);
        event(reply, json!({ "content": "a" }), json!({ "logprobs": { "content": tokens } }));
        let call =
            json!([{ "index": 0, "id": "x", "type": "function", "function": { "name": "f", "arguments": "{\"a\"" } }]);
        event(reply, json!({ "tool_calls": call }), json!({}));
        event(reply, json!({ "tool_calls": [{ "index": 0, "function": { "arguments": ":1}" } }] }), json!({}));
        event(reply, json!({}), json!({ "finish_reason": "tool_calls" }));
    });
    let server = server_with(&[target.address]);
    let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
    let response =
        server.post("/openai/v1/chat/completions", &chat_body(json!({ "logprobs": true, "tools": tools }))).ok();
    let choice = &response["choices"][0];
    assert_eq!((&choice["message"]["reasoning_content"], &choice["message"]["content"]), (&json!("hm"), &json!("a")));
    let call = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(call, &json!({ "name": "f", "arguments": "{\"a\":1}" }));
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["logprobs"]["content"][0]["logprob"], -0.25);
}

#[test]
fn every_api_reaches_the_model() {
    let target = FakeTarget::chatting("good day");
    let server = server_with(&[target.address]);
    let hello = json!([{ "role": "user", "content": "hello" }]);
    let messages = json!({ "model": REMOTE, "max_tokens": 20, "messages": hello });
    let answer = server.post("/v1/messages", &messages).ok();
    assert_eq!(answer["content"][0]["text"], "good day");
    assert_eq!(answer["usage"]["input_tokens"], 3);
    assert_eq!(target.last().json()["max_tokens"], 20);
    let answer =
        server.post("/v1/responses", &json!({ "model": REMOTE, "input": "hello", "instructions": "be kind" })).ok();
    assert_eq!(answer["output"][0]["content"][0]["text"], "good day");
    assert_eq!(target.last().json()["messages"][0], json!({ "role": "system", "content": "be kind" }));
    let answer = server.post("/api/chat", &json!({ "model": REMOTE, "messages": hello, "stream": false })).ok();
    assert_eq!((&answer["message"]["content"], &answer["eval_count"]), (&json!("good day"), &json!(2)));
}

#[test]
fn a_conversation_remembers_the_turns() {
    let target = FakeTarget::chatting("good day");
    let server = server_with(&[target.address]);
    let conversation = server.post("/v1/conversations", &json!({})).ok()["id"].clone();
    let body = chat_body(json!({ "conversation_id": conversation }));
    server.post("/v1/chat/completions", &body).ok();
    server.post("/v1/chat/completions", &body).ok();
    let roles: Vec<Value> =
        target.last().json()["messages"].as_array().unwrap().iter().map(|message| message["role"].clone()).collect();
    assert_eq!(roles, ["user", "assistant", "user"]);
}

#[test]
fn fields_that_the_target_does_not_know_are_refused_by_name() {
    let target = FakeTarget::chatting("ok");
    let server = server_with(&[target.address]);
    for (more, param) in [
        (json!({ "top_k": 5 }), "top_k"),
        (json!({ "min_tokens": 5 }), "min_tokens"),
        (json!({ "repetition_penalty": 1.5 }), "repetition_penalty"),
        (json!({ "guided_regex": "a+" }), "guided_regex"),
        (json!({ "grammar": "root ::= \"a\"" }), "grammar"),
        (json!({ "chat_template_kwargs": { "x": 1 } }), "chat_template_kwargs"),
        (json!({ "add_generation_prompt": false }), "add_generation_prompt"),
        (json!({ "max_reasoning_tokens": 5 }), "max_reasoning_tokens"),
        (json!({ "prompt_logprobs": 0 }), "prompt_logprobs"),
    ] {
        let response = server.post("/v1/chat/completions", &chat_body(more));
        assert_eq!(response.error_fields(), (400, "invalid_parameter".to_owned(), Some(param.to_owned())));
    }
    assert_eq!(target.count(), 0);
    // It has a tokenizer, but only the target does.
    let tokens = server.post("/v1/tokenize", &json!({ "model": REMOTE, "prompt": "x" }));
    assert_eq!(tokens.error_fields(), (400, "invalid_parameter".to_owned(), Some("model".to_owned())));
    let count = json!({ "model": REMOTE, "messages": [{ "role": "user", "content": "x" }] });
    assert_eq!(server.post("/v1/messages/count_tokens", &count).status, 400);
    let of_prompt = |more: Value| {
        let mut body = json!({ "model": REMOTE, "prompt": "x", "max_tokens": 1 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/v1/completions", &body).error_fields().2
    };
    assert_eq!(of_prompt(json!({ "echo": true, "logprobs": 1 })).as_deref(), Some("logprobs"));
    assert_eq!(of_prompt(json!({ "prompt_logprobs": 1 })).as_deref(), Some("prompt_logprobs"));
    let ids = json!({ "model": REMOTE, "prompt": [1, 2] });
    assert_eq!(server.post("/v1/completions", &ids).error_fields().2.as_deref(), Some("prompt"));
    let embed = json!({ "model": REMOTE, "input": "x" });
    assert_eq!(server.post("/v1/embeddings", &embed).error_fields().2.as_deref(), Some("model"));
}

#[test]
fn a_known_context_limits_the_completion_and_leaves_out_old_turns() {
    let target = FakeTarget::chatting("good day");
    let server = server_with_settings("kind = \"chat\"\ncontext = 60", &[target.address], "");
    assert_eq!(server.get(&format!("/v1/models/{REMOTE}")).ok()["context_window"], 60);
    let too_long = server.post("/v1/chat/completions", &chat_body(json!({ "max_tokens": 60 })));
    assert_eq!(too_long.error_fields(), (400, "context_length_exceeded".to_owned(), Some("max_tokens".to_owned())));
    let messages = json!({ "model": REMOTE, "max_tokens": 500, "messages": [{ "role": "user", "content": "hello" }] });
    server.post("/v1/messages", &messages).ok();
    assert_eq!(target.last().json()["max_tokens"], 60 - 6);
    let conversation = server.post("/v1/conversations", &json!({})).ok()["id"].clone();
    let body = chat_body(json!({ "conversation_id": conversation, "truncation": "auto", "max_tokens": 20 }));
    for expected in [0, 0, 0, 2] {
        let answer = server.post("/v1/chat/completions", &body).ok();
        assert_eq!(answer["truncated_messages"], expected, "{answer}");
    }
}

#[test]
fn a_client_that_leaves_is_noticed_by_the_target() {
    for stream in [false, true] {
        let (noticed, closed) = mpsc::channel();
        let noticed = std::sync::Mutex::new(noticed);
        let target = FakeTarget::start(move |_, _, reply| {
            reply.begin_events();
            reply.event(&chunk("one", None));
            reply.wait_closed();
            noticed.lock().unwrap().send(()).unwrap();
        });
        let server = server_with(&[target.address]);
        let body = chat_body(json!({ "stream": stream }));
        let mut connection = server.begin("/v1/chat/completions", &server.admin, &body);
        match stream {
            true => assert!(connection.read(&mut [0; 512]).unwrap() > 0),
            false => crate::wait::until(|| "the request arrives", || target.count() == 1),
        }
        drop(connection);
        closed.recv_timeout(std::time::Duration::from_secs(60)).expect("the target's connection closes");
    }
}

/// The usage records of a stopped server: tokens, and whether they are estimated.
pub fn records(folder: &std::path::Path) -> Vec<(u64, u64, bool, &'static str)> {
    let settings = StoreSettings { dir: folder.join("data"), cache_bytes: 1 << 20, queue: 16, min_free_disk: Some(0) };
    let store = Store::open(settings, std::sync::Arc::new(SystemClockRng::default())).unwrap();
    let mut rows = Vec::new();
    UsageRow::each(&store, ExportFilter::default(), |row| {
        if row.model.as_deref() == Some(REMOTE) {
            rows.push((row.input_tokens, row.output_tokens, row.is_estimated, row.outcome));
        }
        Ok(())
    })
    .unwrap();
    store.shutdown();
    rows
}

#[test]
fn usage_is_what_the_target_tells_and_marked_if_it_is_estimated() {
    let target = FakeTarget::start(|number, _, reply| match number {
        0 => reply.chat(&["a", "b"], Some(json!({ "prompt_tokens": 30, "completion_tokens": 20 }))),
        1 => reply.chat(&["a", "b", "c"], None),
        _ => reply.status(400, "", "{\"error\":{\"message\":\"no\"}}"),
    });
    let server = server_with(&[target.address]);
    let first = server.post("/v1/chat/completions", &chat_body(json!({}))).ok();
    assert_eq!(first["usage"]["total_tokens"], 50);
    let second = server.post("/v1/chat/completions", &chat_body(json!({}))).ok();
    // Three parts; 11 bytes in one message.
    assert_eq!((&second["usage"]["completion_tokens"], &second["usage"]["prompt_tokens"]), (&json!(3), &json!(7)));
    assert_eq!(server.post("/v1/chat/completions", &chat_body(json!({}))).status, 400);
    let project = server.get("/v1/projects").ok()["data"][0]["id"].as_str().unwrap().to_owned();
    let usage = server.get(&format!("/v1/projects/{project}/usage?group_by=model")).ok();
    let group = usage["groups"].as_array().unwrap().iter().find(|group| group["model"] == REMOTE).unwrap();
    assert_eq!((&group["requests"], &group["estimated_requests"]), (&json!(3), &json!(1)), "{usage}");
    assert_eq!(group["tokens"]["total"], 60);
    let folder = server.stop();
    let report = outpost::storage::check(&folder.path().join("data")).unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!(report.records["estimated_series"], 1);
    let rows = records(folder.path());
    let expected = [(0, 0, false, "refused"), (7, 3, true, "succeeded"), (30, 20, false, "succeeded")];
    assert_eq!(rows, expected);
}

#[test]
fn what_arrived_of_a_response_is_metered_if_the_client_leaves_or_the_target_fails() {
    let target = FakeTarget::start(|number, _, reply| {
        reply.begin_events();
        (0..5).for_each(|_| reply.event(&chunk("one", None)));
        if number == 0 {
            reply.wait_closed();
        }
    });
    let server = server_with(&[target.address]);
    let body = chat_body(json!({ "stream": true }));
    let mut connection = server.begin("/v1/chat/completions", &server.admin, &body);
    let (mut text, mut buffer) = (String::new(), [0; 512]);
    while text.matches("\"one\"").count() < 5 {
        let read = connection.read(&mut buffer).unwrap();
        text.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
    }
    drop(connection);
    let project = server.get("/v1/projects").ok()["data"][0]["id"].as_str().unwrap().to_owned();
    let outcomes = || server.get(&format!("/v1/projects/{project}/usage")).ok()["requests_by_outcome"].clone();
    crate::wait::until(|| "the departure is recorded", || outcomes()["abandoned"] == 1);
    // The target closes the connection before the end.
    let failed = server.post("/v1/chat/completions", &body).text;
    assert!(failed.matches("\"one\"").count() == 5 && failed.contains("\"error\""), "{failed}");
    // Nothing of it was delivered.
    assert_eq!(server.post("/v1/chat/completions", &chat_body(json!({}))).status, 503);
    let expected = [(0, 0, false, "failed"), (7, 5, true, "failed"), (7, 5, true, "abandoned")];
    assert_eq!(records(server.stop().path()), expected);
}
