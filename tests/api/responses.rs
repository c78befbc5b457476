//! OpenAI's Responses API: the same texts and the same usage as chat completions, whole and as events.

use std::io::Read;

use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{MODEL, Response, Server};
use crate::slow_model;
use crate::tiny_model::TinyModel;

pub const PATH: &str = "/v1/responses";

pub fn model() -> TinyModel {
    TinyModel { context: 2048, blocks: 1, width: 32, ..TinyModel::default() }
}

pub fn body(more: Value) -> Value {
    let mut body = json!({ "model": MODEL, "max_output_tokens": 24, "temperature": 0, "input": "the sea" });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

pub fn send(server: &Server, more: Value) -> Response {
    server.post(PATH, &body(more))
}

/// The text of a response's message.
pub fn text_of(response: &Value) -> &str {
    let output = response["output"].as_array().unwrap();
    let message = output.iter().find(|item| item["type"] == "message").unwrap_or_else(|| panic!("{response}"));
    message["content"][0]["text"].as_str().unwrap()
}

/// The events of a stream. The name of each is its type, and they are numbered.
pub fn events(text: &str) -> Vec<Value> {
    let event = |(number, event): (usize, &str)| {
        let (name, data) = event.split_once('\n').unwrap();
        let (name, data) = (name.strip_prefix("event: ").unwrap(), data.strip_prefix("data: ").unwrap());
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!((&data["type"], &data["sequence_number"]), (&json!(name), &json!(number)), "{text}");
        data
    };
    let events = text.strip_suffix("data: [DONE]\n\n").unwrap_or_else(|| panic!("the stream has no end: {text}"));
    events.split_terminator("\n\n").enumerate().map(event).collect()
}

/// The response that a stream's events make, as OpenAI's clients put it together. The order of events is checked.
pub fn assembled(text: &str) -> Value {
    let events = events(text);
    assert_eq!((&events[0]["type"], &events[1]["type"]), (&json!("response.created"), &json!("response.in_progress")));
    let response = events[0]["response"].clone();
    assert_eq!(
        (&response["status"], &response["usage"], &response["output"]),
        (&json!("in_progress"), &Value::Null, &json!([]))
    );
    assert_eq!(response, events[1]["response"]);
    assembled_from(response, &events[2..], text)
}

/// Adds the events after the first ones to a response without output.
pub fn assembled_from(mut response: Value, events: &[Value], text: &str) -> Value {
    let (mut open, mut part) = (false, false);
    let (last, middle) = events.split_last().unwrap();
    for event in middle {
        let output = response["output"].as_array_mut().unwrap();
        let kind = event["type"].as_str().unwrap();
        if kind == "response.output_item.added" {
            assert!(!open, "an item ends before the next starts: {text}");
            assert_eq!(
                (&event["output_index"], &event["item"]["status"]),
                (&json!(output.len()), &json!("in_progress"))
            );
            open = true;
            output.push(event["item"].clone());
            continue;
        }
        assert!(open, "{text}");
        assert_eq!(event["output_index"], output.len() - 1);
        let item = output.last_mut().unwrap();
        match kind {
            "response.output_item.done" => {
                assert_eq!(event["item"]["id"], item["id"]);
                let mut ended = item.clone();
                ended["status"] = event["item"]["status"].clone();
                assert_eq!(ended, event["item"], "{text}");
                (*item, open) = (ended, false);
                continue;
            }
            "response.content_part.added" => {
                assert!(!std::mem::replace(&mut part, true));
                item["content"].as_array_mut().unwrap().push(event["part"].clone());
            }
            "response.output_text.delta" => {
                let part = &mut item["content"][0];
                part["text"] = json!(part["text"].as_str().unwrap().to_owned() + event["delta"].as_str().unwrap());
                part["logprobs"].as_array_mut().unwrap().extend(event["logprobs"].as_array().unwrap().clone());
            }
            "response.output_text.done" => {
                let part = &item["content"][0];
                assert_eq!((&event["text"], &event["logprobs"]), (&part["text"], &part["logprobs"]));
            }
            "response.content_part.done" => {
                assert!(std::mem::replace(&mut part, false));
                assert_eq!(event["part"], item["content"][0]);
            }
            "response.function_call_arguments.delta" => {
                let arguments = item["arguments"].as_str().unwrap().to_owned() + event["delta"].as_str().unwrap();
                item["arguments"] = json!(arguments);
            }
            "response.function_call_arguments.done" => {
                assert_eq!((&event["arguments"], &event["name"]), (&item["arguments"], &item["name"]));
            }
            "response.custom_tool_call_input.delta" => {
                let input = item["input"].as_str().unwrap().to_owned() + event["delta"].as_str().unwrap();
                item["input"] = json!(input);
            }
            "response.custom_tool_call_input.done" => assert_eq!(event["input"], item["input"]),
            other => panic!("{other}"),
        }
        assert_eq!(event["item_id"], item["id"], "{text}");
    }
    assert!(!open && !part, "{text}");
    assert_eq!(last["type"], format!("response.{}", last["response"]["status"].as_str().unwrap()));
    assert_eq!(last["response"]["output"], response["output"], "{text}");
    last["response"].clone()
}

/// A response without what differs between two equal requests.
pub fn comparable(mut response: Value) -> Value {
    for field in ["id", "created_at", "completed_at"] {
        response.as_object_mut().unwrap().remove(field).unwrap();
    }
    for item in response["output"].as_array_mut().unwrap() {
        for id in ["id", "call_id"] {
            item.as_object_mut().unwrap().remove(id);
        }
    }
    response["usage"]["input_tokens_details"].take();
    response
}

pub fn tool(name: &str) -> Value {
    let schema = json!({
        "type": "object", "properties": { "place": { "enum": ["sea", "land"] } },
        "required": ["place"], "additionalProperties": false,
    });
    json!({ "type": "function", "name": name, "description": "Looks.", "parameters": schema, "strict": true })
}

/// A model that calls tools.
pub fn calling_model() -> TinyModel {
    TinyModel { markers: &[("```json\n{\"name\": \"look\", \"arguments\":", 4)], ..model() }
}

#[test]
fn a_response_has_the_text_and_the_usage_of_a_chat_completion() {
    let server = Server::start_with(&model());
    let message = |role: &str, text: &str| json!({ "role": role, "content": text });
    for (more, messages) in [
        (json!({}), json!([message("user", "the sea")])),
        (
            json!({ "instructions": "Be brief.", "input": [message("developer", "Speak Latin."), message("user", "the sea")] }),
            json!([message("system", "Be brief.\nSpeak Latin."), message("user", "the sea")]),
        ),
        (
            json!({ "input": [message("user", "a"), message("assistant", "b"), message("system", "It rains."), message("user", "c")] }),
            json!([message("user", "a"), message("assistant", "b"), message("user", "It rains.\nc")]),
        ),
    ] {
        let chat = json!({ "model": MODEL, "max_tokens": 24, "temperature": 0, "messages": messages });
        let chat = server.post("/v1/chat/completions", &chat).ok();
        let response = send(&server, more.clone()).ok();
        assert!(response["id"].as_str().unwrap().starts_with("resp_"));
        assert!(response["output"][0]["id"].as_str().unwrap().starts_with("msg_"));
        let is_cut_off = chat["choices"][0]["finish_reason"] == "length";
        let (status, details) = match is_cut_off {
            true => ("incomplete", json!({ "reason": "max_output_tokens" })),
            false => ("completed", Value::Null),
        };
        for (field, value) in [
            ("object", json!("response")),
            ("model", json!(MODEL)),
            ("status", json!(status)),
            ("incomplete_details", details),
            ("error", Value::Null),
            ("store", json!(true)),
            ("parallel_tool_calls", json!(true)),
            ("tool_choice", json!("auto")),
            ("tools", json!([])),
            ("text", json!({ "format": { "type": "text" } })),
            ("temperature", json!(0.0)),
            ("truncation", json!("disabled")),
            ("metadata", json!({})),
            ("background", json!(false)),
        ] {
            assert_eq!(response[field], value, "{field}");
        }
        let text = &chat["choices"][0]["message"]["content"];
        assert_eq!(response["output"].as_array().unwrap().len(), 1);
        assert_eq!(
            response["output"][0]["content"],
            json!([{ "type": "output_text", "text": text, "annotations": [], "logprobs": [] }])
        );
        let usage = &response["usage"];
        for (field, name) in [
            ("input_tokens", "prompt_tokens"),
            ("output_tokens", "completion_tokens"),
            ("total_tokens", "total_tokens"),
        ] {
            assert_eq!(usage[field], chat["usage"][name], "{field}");
        }
        assert!(usage["input_tokens_details"]["cached_tokens"].is_u64());
        assert_eq!(usage["output_tokens_details"], json!({ "reasoning_tokens": 0 }));

        let mut streamed = more.clone();
        streamed["stream"] = json!(true);
        let stream = send(&server, streamed);
        assert!(stream.header("content-type").unwrap().starts_with("text/event-stream"));
        assert_eq!(comparable(assembled(&stream.text)), comparable(response.clone()));

        let count = server.post("/v1/responses/input_tokens", &body(more)).ok();
        assert_eq!(count, json!({ "object": "response.input_tokens", "input_tokens": usage["input_tokens"] }));
    }
}

#[test]
fn both_mounts_have_openais_body() {
    let server = Server::start_with(&model());
    let bodies =
        ["/v1/responses", "/openai/v1/responses"].map(|path| comparable(server.post(path, &body(json!({}))).ok()));
    assert_eq!(bodies[0], bodies[1]);
    assert_eq!(bodies[0]["object"], "response");
}

#[test]
fn tools_are_called_and_their_results_are_taken() {
    let server = Server::start_with(&calling_model());
    let allowed =
        json!({ "type": "allowed_tools", "mode": "required", "tools": [{ "type": "function", "name": "see" }] });
    for (choice, name) in
        [(json!("required"), None), (json!({ "type": "function", "name": "see" }), Some("see")), (allowed, Some("see"))]
    {
        let more = json!({ "tools": [tool("look"), tool("see")], "tool_choice": choice, "max_output_tokens": 300 });
        let whole = send(&server, more.clone()).ok();
        assert_eq!(whole["status"], "completed", "{whole}");
        let call = whole["output"].as_array().unwrap().last().unwrap();
        assert_eq!((&call["type"], &call["status"]), (&json!("function_call"), &json!("completed")));
        assert!(
            call["id"].as_str().unwrap().starts_with("fc_") && call["call_id"].as_str().unwrap().starts_with("call_")
        );
        assert!(name.is_none_or(|name| call["name"] == name));
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
        assert!(["sea", "land"].contains(&arguments["place"].as_str().unwrap()));
        assert_eq!((&whole["tool_choice"], &whole["tools"]), (&choice, &json!([tool("look"), tool("see")])));
        let mut streamed = more.clone();
        streamed["stream"] = json!(true);
        assert_eq!(comparable(assembled(&send(&server, streamed).text)), comparable(whole.clone()));

        // The result goes back with the items, or with the stored response.
        let result = json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "water" });
        let tools = json!([tool("look"), tool("see")]);
        let mut items = vec![json!({ "role": "user", "content": "the sea" })];
        items.extend(whole["output"].as_array().unwrap().iter().cloned());
        items.push(result.clone());
        let by_hand = send(&server, json!({ "input": items, "tools": tools })).ok();
        let chained = json!({ "input": [result], "tools": tools, "previous_response_id": whole["id"] });
        let chained = send(&server, chained).ok();
        assert_eq!(chained["usage"]["input_tokens"], by_hand["usage"]["input_tokens"]);
        assert_eq!(comparable(chained)["output"], comparable(by_hand)["output"]);
    }
}

#[test]
fn a_schema_is_enforced() {
    let server = Server::start_with(&model());
    let schema = json!({ "type": "object", "required": ["a"], "additionalProperties": false, "properties": { "a": { "enum": [1, 2] } } });
    let format = json!({ "type": "json_schema", "name": "a", "schema": schema, "strict": true });
    let response = send(&server, json!({ "text": { "format": format, "verbosity": "low" } })).ok();
    let value: Value = serde_json::from_str(text_of(&response)).unwrap();
    assert!([json!({ "a": 1 }), json!({ "a": 2 })].contains(&value), "{value}");
    assert_eq!(response["text"], json!({ "format": format, "verbosity": "low" }));
    let object =
        send(&server, json!({ "text": { "format": { "type": "json_object" } }, "max_output_tokens": 200 })).ok();
    assert!(text_of(&object).starts_with('{'));
    let open = json!({ "type": "object", "properties": { "x": { "not": { "type": "string" } } } });
    let mut format = json!({ "type": "json_schema", "name": "a", "schema": open, "strict": true });
    let refused = send(&server, json!({ "text": { "format": format } })).error_fields();
    assert!(refused.2.unwrap().starts_with("text.format.schema"));
    format["strict"] = json!(false);
    let reply = send(&server, json!({ "text": { "format": format } }));
    assert!(reply.header("x-outpost-unenforced").unwrap().starts_with("text.format.schema"), "{}", reply.text);
}

#[test]
fn log_probabilities_are_those_of_a_chat_completion() {
    let server = Server::start_with(&model());
    let chat = json!({
        "model": MODEL, "max_tokens": 24, "temperature": 0, "logprobs": true, "top_logprobs": 2, "ignore_eos": true,
        "messages": [{ "role": "user", "content": "the sea" }],
    });
    let expected = server.post("/v1/chat/completions", &chat).ok()["choices"][0]["logprobs"]["content"].clone();
    let include = ["message.output_text.logprobs", "file_search_call.results"];
    let more = json!({ "include": include, "top_logprobs": 2, "ignore_eos": true });
    let whole = send(&server, more.clone()).ok();
    let found = whole["output"][0]["content"][0]["logprobs"].as_array().unwrap();
    assert!(found.len() > 3, "{whole}");
    // Tokens that end in an incomplete character are not part of the text.
    assert_eq!(found[..], expected.as_array().unwrap()[..found.len()]);
    let alone = send(&server, json!({ "top_logprobs": 2, "ignore_eos": true })).ok();
    assert_eq!(alone["output"][0]["content"][0]["logprobs"], whole["output"][0]["content"][0]["logprobs"]);
    let mut streamed = more;
    streamed["stream"] = json!(true);
    assert_eq!(comparable(assembled(&send(&server, streamed).text)), comparable(whole));
}

#[test]
fn generation_ends_with_the_context_and_a_longer_input_is_refused_or_truncated() {
    let server = Server::start_with(&TinyModel { context: 128, ..model() });
    let response = send(&server, json!({ "max_output_tokens": 32_000, "ignore_eos": true })).ok();
    assert_eq!((&response["status"], &response["usage"]["total_tokens"]), (&json!("incomplete"), &json!(128)));
    assert_eq!(response["output"][0]["status"], "incomplete");
    let message = |role: &str, text: String| json!({ "role": role, "content": text });
    let long = json!([
        message("system", "Be brief.".to_owned()),
        message("user", "word ".repeat(200)),
        message("assistant", "Yes.".to_owned()),
        message("user", "the sea".to_owned()),
    ]);
    let refused = send(&server, json!({ "input": long })).error_fields();
    assert_eq!((refused.0, refused.1.as_str()), (400, "context_length_exceeded"));
    let truncated = send(&server, json!({ "input": long, "truncation": "auto" }));
    assert_eq!(truncated.header("x-outpost-truncated-messages"), Some("2"));
    let short = json!([message("system", "Be brief.".to_owned()), message("user", "the sea".to_owned())]);
    let short = send(&server, json!({ "input": short })).ok();
    let truncated = truncated.ok();
    assert_eq!((text_of(&truncated), &truncated["truncation"]), (text_of(&short), &json!("auto")));
    assert_eq!(truncated["usage"]["input_tokens"], short["usage"]["input_tokens"]);
    let never = send(&server, json!({ "input": "word ".repeat(500), "truncation": "auto" })).error_fields();
    assert_eq!((never.1.as_str(), never.2.as_deref()), ("context_length_exceeded", Some("input")));
}

#[test]
fn what_only_openai_has_is_left_out_and_named() {
    let server = Server::start_with(&model());
    let more = json!({
        "tools": [{ "type": "web_search" }, tool("look"), { "type": "local_shell" }, { "type": "namespace", "name": "n" }],
        "input": [{ "type": "web_search_call", "id": "ws_1", "status": "completed" }, { "type": "reasoning", "summary": [] }, { "role": "user", "content": "hi" }],
        "reasoning": { "effort": "low", "summary": null }, "user": "u", "safety_identifier": "s", "prompt_cache_key": "k",
        "service_tier": "auto", "metadata": { "a": "b" }, "include": ["reasoning.encrypted_content"], "max_tool_calls": 3,
        "stream_options": null, "client_metadata": { "x": 1 }, "moderation": { "x": 1 }, "conversation": null,
    });
    let reply = send(&server, more);
    let response = reply.ok();
    let ignored = "input[0] web_search_call, moderation, tools[0] web_search, tools[2] local_shell, tools[3] namespace";
    assert_eq!(reply.header("x-outpost-ignored"), Some(ignored));
    for (field, value) in [
        ("reasoning", json!({ "effort": "low", "summary": null })),
        ("user", json!("u")),
        ("safety_identifier", json!("s")),
        ("prompt_cache_key", json!("k")),
        ("metadata", json!({ "a": "b" })),
        ("max_tool_calls", json!(3)),
        ("service_tier", json!("default")),
    ] {
        assert_eq!(response[field], value, "{field}");
    }
    assert_eq!(send(&server, json!({})).header("x-outpost-ignored"), None);
}

#[test]
fn errors_name_the_field() {
    let server = Server::start_with(&model());
    let part = |part: Value| json!({ "input": [{ "role": "user", "content": [part] }] });
    for (more, param) in [
        (json!({ "model": null }), "model"),
        (json!({ "input": null }), "input"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": [{ "type": "item_reference", "id": "msg_none" }] }), "input[0].id"),
        (part(json!({ "type": "input_image", "image_url": "data:" })), "input[0].content[0].type"),
        (part(json!({ "type": "input_file", "file_id": "f" })), "input[0].content[0].type"),
        (json!({ "instructions": 1 }), "instructions"),
        (json!({ "max_output_tokens": 0 }), "max_output_tokens"),
        (json!({ "temperature": 3 }), "temperature"),
        (json!({ "top_p": -1 }), "top_p"),
        (json!({ "top_logprobs": 21 }), "top_logprobs"),
        (json!({ "tools": [{ "type": "function", "function": { "name": "f" } }] }), "tools[0].function"),
        (json!({ "truncation": "much" }), "truncation"),
        (json!({ "metadata": [] }), "metadata"),
        (json!({ "background": true, "store": false }), "background"),
        (json!({ "background": true, "conversation": format!("conv_{}", "0".repeat(32)) }), "background"),
        (json!({ "conversation": 1 }), "conversation"),
        (json!({ "conversation": { "name": "c" } }), "conversation"),
        (json!({ "prompt": { "id": "p" } }), "prompt"),
        (json!({ "reasoning": "much" }), "reasoning"),
        (json!({ "text": { "format": { "type": "xml" } } }), "text.format.type"),
        (json!({ "tools": [{ "type": "function" }] }), "tools[0].name"),
        (json!({ "tools": [tool("a"), tool("a")] }), "tools[1].name"),
        (json!({ "tools": [tool("a")], "tool_choice": { "type": "function", "name": "b" } }), "tool_choice.name"),
        (json!({ "tool_choice": "required" }), "tool_choice"),
        (json!({ "tool_choice": { "type": "mcp" } }), "tool_choice.type"),
        (json!({ "stream": "yes" }), "stream"),
        (json!({ "stream_options": {} }), "stream_options"),
        (json!({ "user": "u".repeat(600) }), "user"),
    ] {
        let found = send(&server, more.clone()).error_fields();
        assert_eq!(found, (400, "invalid_parameter".to_owned(), Some(param.to_owned())), "{more}");
    }
    let missing = send(&server, json!({ "model": "gpt-none" })).error_fields();
    assert_eq!(missing, (404, "model_not_found".to_owned(), Some("model".to_owned())));
}

/// A stream that fails after it began ends with an error and the failed response.
#[test]
fn a_stream_that_fails_ends_with_response_failed() {
    let server = Server::start_with(&slow_model());
    let key = server.admin.clone();
    let more = json!({ "stream": true, "ignore_eos": true, "max_output_tokens": 4000, "temperature": 0.8 });
    let mut connection = server.begin(PATH, &key, &body(more));
    server.wait_running();
    server.engine.abort();
    let (mut text, mut bytes) = (String::new(), [0; 4096]);
    while !text.ends_with("0\r\n\r\n") {
        let count = connection.read(&mut bytes).unwrap();
        assert!(count > 0, "{text}");
        text.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
    }
    let events: Vec<Value> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .filter(|data| *data != "[DONE]")
        .map(|data| serde_json::from_str(data).unwrap())
        .collect();
    let [.., error, failed] = &events[..] else { panic!("{text}") };
    assert_eq!((&error["type"], &failed["type"]), (&json!("error"), &json!("response.failed")), "{text}");
    assert_eq!(failed["response"]["status"], "failed");
    assert_eq!(failed["response"]["error"]["message"], error["message"]);
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    let id = failed["response"]["id"].as_str().unwrap();
    assert_eq!(server.get(&format!("{PATH}/{id}")).status, 404, "a failed response is not stored");
}

#[test]
fn usage_is_recorded_under_the_endpoint() {
    let server = Server::start_with(&model());
    let (project, _, key) = server.tenant("responses");
    let whole = server.call(Method::POST, PATH, Some(&key), Some(&body(json!({})))).ok();
    server.call(Method::POST, PATH, Some(&key), Some(&body(json!({ "stream": true, "store": false }))));
    server.call(Method::POST, "/v1/responses/input_tokens", Some(&key), Some(&body(json!({})))).ok();
    let report = server.get(&format!("/v1/projects/{project}/usage?group_by=endpoint")).ok();
    let row = |endpoint: &str| {
        let rows = report["groups"].as_array().unwrap_or_else(|| panic!("{report}"));
        rows.iter().find(|row| row["endpoint"] == endpoint).unwrap_or_else(|| panic!("{report}")).clone()
    };
    let output = whole["usage"]["output_tokens"].as_u64().unwrap();
    assert_eq!(
        (&row("POST /responses")["tokens"]["output"], &row("POST /responses")["requests"]),
        (&json!(2 * output), &json!(2))
    );
    assert_eq!(row("POST /responses/input_tokens")["tokens"]["total"], 0);
}
