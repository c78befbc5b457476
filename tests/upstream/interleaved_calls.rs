//! A target that interleaves the parts of several tool calls. Streams have one call after another.

use serde_json::{Value, json};

use crate::fake_target::FakeTarget;
use crate::server::Server;
use crate::{REMOTE, chat_body, events, server_with};

/// The calls as the target means them: name and arguments.
const CALLS: [(&str, &str); 3] = [("f", "{\"a\":1}"), ("g", "{\"b\":2}"), ("h", "{}")];

/// Two calls whose parts alternate, a text before they are complete, and a third call.
fn interleaving() -> FakeTarget {
    FakeTarget::start(|_, _, reply| {
        reply.begin_events();
        let mut event = |delta: Value, finish: Option<&str>| {
            reply.event(&json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] }));
        };
        let start = |index: u32, name: &str, arguments: &str| json!({ "index": index, "id": name, "type": "function", "function": { "name": name, "arguments": arguments } });
        let part = |index: u32, arguments: &str| json!({ "index": index, "function": { "arguments": arguments } });
        event(json!({ "tool_calls": [start(0, "f", ""), start(1, "g", "")] }), None);
        event(json!({ "tool_calls": [part(0, "{"), part(1, "{\"b\"")] }), None);
        event(json!({ "content": "now ", "tool_calls": [part(0, "\"a\":")] }), None);
        event(json!({ "tool_calls": [start(2, "h", "{"), part(1, ":2")] }), None);
        event(json!({ "content": "then", "tool_calls": [part(0, "1}"), part(2, "}")] }), None);
        event(json!({ "tool_calls": [part(1, "}")] }), None);
        event(json!({}), Some("tool_calls"));
        reply.raw("data: [DONE]\n\n");
    })
}

fn function(name: &str) -> Value {
    json!({ "type": "function", "function": { "name": name } })
}

/// The body of a request with the tools in this form, whose response is streamed.
fn body(tool: impl Fn(&str) -> Value, more: Value) -> Value {
    let tools: Vec<Value> = CALLS.iter().map(|(name, _)| tool(name)).collect();
    let mut body = chat_body(json!({ "tools": tools, "stream": true }));
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The data of named events.
fn named(server: &Server, path: &str, body: &Value) -> Vec<Value> {
    let text = server.post(path, body).text;
    let data = text.lines().filter_map(|line| line.strip_prefix("data: ")).filter(|data| *data != "[DONE]");
    data.map(|data| serde_json::from_str(data).unwrap()).collect()
}

#[test]
fn a_chat_has_the_parts_of_each_call_in_order() {
    let (target, mut calls) = (interleaving(), Vec::<(String, String)>::new());
    let server = server_with(&[target.address]);
    let stream = events(&server.post("/openai/v1/chat/completions", &body(function, json!({}))).text);
    let mut text = String::new();
    for delta in stream.iter().map(|event| &event["choices"][0]["delta"]) {
        text.push_str(delta["content"].as_str().unwrap_or_default());
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            if let Some(name) = call["function"]["name"].as_str() {
                calls.push((name.to_owned(), String::new()));
            }
            assert_eq!(call["index"], calls.len() - 1, "{stream:?}");
            calls.last_mut().unwrap().1.push_str(call["function"]["arguments"].as_str().unwrap());
        }
    }
    assert_eq!(calls, CALLS.map(|(name, arguments)| (name.to_owned(), arguments.to_owned())));
    assert_eq!(text, "now then");
}

#[test]
fn the_items_of_a_response_grow_one_after_another() {
    let target = interleaving();
    let server = server_with(&[target.address]);
    let tool = |name: &str| json!({ "type": "function", "name": name });
    let mut request = body(tool, json!({ "input": "hello" }));
    request.as_object_mut().unwrap().remove("messages");
    let stream = named(&server, "/v1/responses", &request);
    let mut grown: Vec<String> = Vec::new();
    let mut done = 0;
    for event in &stream {
        let kind = event["type"].as_str().unwrap();
        match kind {
            "response.output_item.added" => grown.push(String::new()),
            "response.output_item.done" => done += 1,
            _ => {}
        }
        if kind.ends_with(".delta") {
            grown.last_mut().unwrap().push_str(event["delta"].as_str().unwrap());
        }
        if let Some(index) = event["output_index"].as_u64() {
            assert_eq!(index, grown.len() as u64 - 1, "{event}");
            assert!(grown.len() - done <= 1, "{event}");
        }
    }
    request["stream"] = json!(false);
    let whole = server.post("/v1/responses", &request).ok();
    for output in [&stream.last().unwrap()["response"]["output"], &whole["output"]] {
        let items = output.as_array().unwrap().iter();
        let items: Vec<&str> = items
            .map(|item| item["arguments"].as_str().or_else(|| item["content"][0]["text"].as_str()).unwrap())
            .collect();
        // The text began before the third call.
        assert_eq!(items, [CALLS[0].1, CALLS[1].1, "now ", CALLS[2].1, "then"]);
        assert_eq!(items, grown);
    }
}

#[test]
fn the_blocks_of_a_message_grow_one_after_another() {
    let target = interleaving();
    let server = server_with(&[target.address]);
    let tool = |name: &str| json!({ "name": name, "input_schema": { "type": "object" } });
    let mut request = body(tool, json!({ "max_tokens": 50 }));
    let (mut blocks, mut is_open) = (Vec::<(Value, String)>::new(), false);
    for event in named(&server, "/v1/messages", &request) {
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert!(!std::mem::replace(&mut is_open, true), "{event}");
                blocks.push((event["content_block"]["type"].clone(), String::new()));
            }
            "content_block_delta" => {
                let delta = &event["delta"];
                let (kind, added) = match delta["type"].as_str().unwrap() {
                    "input_json_delta" => ("tool_use", &delta["partial_json"]),
                    _ => ("text", &delta["text"]),
                };
                let (block, text) = blocks.last_mut().unwrap();
                assert_eq!(block, kind);
                text.push_str(added.as_str().unwrap());
            }
            "content_block_stop" => assert!(std::mem::replace(&mut is_open, false), "{event}"),
            _ => continue,
        }
        if let Some(index) = event["index"].as_u64() {
            assert_eq!(index, blocks.len() as u64 - 1, "{event}");
        }
    }
    let texts: Vec<&str> = blocks.iter().map(|(_, text)| text.as_str()).collect();
    assert_eq!(texts, [CALLS[0].1, CALLS[1].1, "now ", CALLS[2].1, "then"]);
    request["stream"] = json!(false);
    let whole = server.post("/v1/messages", &request).ok();
    let whole = whole["content"].as_array().unwrap().iter();
    let whole: Vec<String> =
        whole.map(|block| block["text"].as_str().map_or_else(|| block["input"].to_string(), str::to_owned)).collect();
    assert_eq!(whole, texts);
}

#[test]
fn ollamas_lines_have_whole_calls() {
    let target = interleaving();
    let server = server_with(&[target.address]);
    let response = server.post("/api/chat", &body(function, json!({}))).text;
    let lines: Vec<Value> = response.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let text: String = lines.iter().filter_map(|line| line["message"]["content"].as_str()).collect();
    let calls = lines.iter().flat_map(|line| line["message"]["tool_calls"].as_array().into_iter().flatten());
    let calls: Vec<(&str, String)> = calls
        .map(|call| (call["function"]["name"].as_str().unwrap(), call["function"]["arguments"].to_string()))
        .collect();
    assert_eq!(calls, CALLS.map(|(name, arguments)| (name, arguments.to_owned())), "{response}");
    assert_eq!(text, "now then");
    assert_eq!(lines.last().unwrap()["model"], REMOTE);
}
