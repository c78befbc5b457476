//! Anthropic's Messages API: the same texts and the same usage as chat completions, in Anthropic's format.

use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{MODEL, Response, Server};
use crate::tiny_model::TinyModel;

const PATH: &str = "/v1/messages";

fn model() -> TinyModel {
    TinyModel { context: 2048, blocks: 1, width: 32, ..TinyModel::default() }
}

fn body(more: Value) -> Value {
    let mut body = json!({
        "model": MODEL, "max_tokens": 24, "temperature": 0, "messages": [{ "role": "user", "content": "the sea" }],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn send(server: &Server, more: Value) -> Response {
    server.post(PATH, &body(more))
}

/// The events of a stream: name and data. The name is also the type.
fn events(text: &str) -> Vec<(String, Value)> {
    let event = |event: &str| {
        let (name, data) = event.split_once('\n').unwrap();
        let (name, data) = (name.strip_prefix("event: ").unwrap(), data.strip_prefix("data: ").unwrap());
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["type"], name, "{text}");
        (name.to_owned(), data)
    };
    text.split_terminator("\n\n").map(event).collect()
}

/// The message that a stream's events make, as Anthropic's clients put it together.
fn assembled(text: &str) -> Value {
    let events = events(text);
    assert_eq!(events.first().unwrap().0, "message_start", "{text}");
    assert_eq!(events.last().unwrap().0, "message_stop", "{text}");
    let mut message = events[0].1["message"].clone();
    assert_eq!((&message["content"], &message["stop_reason"]), (&json!([]), &Value::Null));
    let (mut open, mut input) = (None, String::new());
    for (name, data) in &events[1..] {
        let content = message["content"].as_array_mut().unwrap();
        match name.as_str() {
            "content_block_start" => {
                assert_eq!(open, None, "a block ends before the next starts: {text}");
                assert_eq!(data["index"], content.len());
                open = Some(data["index"].clone());
                content.push(data["content_block"].clone());
                input.clear();
            }
            "content_block_delta" => {
                assert_eq!(open.as_ref(), Some(&data["index"]));
                let (block, delta) = (content.last_mut().unwrap(), &data["delta"]);
                match delta["type"].as_str().unwrap() {
                    "text_delta" => {
                        let text = block["text"].as_str().unwrap().to_owned() + delta["text"].as_str().unwrap();
                        block["text"] = json!(text);
                    }
                    "input_json_delta" => input += delta["partial_json"].as_str().unwrap(),
                    other => panic!("{other}"),
                }
            }
            "content_block_stop" => {
                assert_eq!(open.take().as_ref(), Some(&data["index"]));
                if let Some(block) = content.last_mut().filter(|block| block["type"] == "tool_use") {
                    block["input"] = serde_json::from_str(&input).unwrap();
                }
            }
            "message_delta" => {
                message["stop_reason"] = data["delta"]["stop_reason"].clone();
                message["stop_sequence"] = data["delta"]["stop_sequence"].clone();
                message["usage"] = data["usage"].clone();
            }
            "ping" | "message_stop" => {}
            other => panic!("{other}"),
        }
    }
    assert_eq!(open, None, "{text}");
    message
}

fn tool(name: &str) -> Value {
    let schema = json!({
        "type": "object", "properties": { "place": { "enum": ["sea", "land"] } },
        "required": ["place"], "additionalProperties": false,
    });
    json!({ "name": name, "description": "Looks.", "input_schema": schema })
}

#[test]
fn a_message_has_the_text_and_the_usage_of_a_chat_completion() {
    let server = Server::start_with(&model());
    for (more, messages) in [
        (json!({}), json!([{ "role": "user", "content": "the sea" }])),
        (
            json!({ "system": [{ "type": "text", "text": "Be brief.", "cache_control": { "type": "ephemeral" } }] }),
            json!([{ "role": "system", "content": "Be brief." }, { "role": "user", "content": "the sea" }]),
        ),
    ] {
        let chat = json!({ "model": MODEL, "max_tokens": 24, "temperature": 0, "messages": messages });
        let chat = server.post("/v1/chat/completions", &chat).ok();
        let message = send(&server, more.clone()).ok();
        assert!(message["id"].as_str().unwrap().starts_with("msg_"));
        for (field, value) in [("type", "message"), ("role", "assistant"), ("model", MODEL)] {
            assert_eq!(message[field], value);
        }
        let text = &chat["choices"][0]["message"]["content"];
        assert_eq!(message["content"], json!([{ "type": "text", "text": text }]));
        let usage = &message["usage"];
        let number = |field: &str| usage[field].as_u64().unwrap();
        let prompt = number("input_tokens") + number("cache_read_input_tokens");
        assert_eq!((json!(prompt), number("cache_creation_input_tokens")), (chat["usage"]["prompt_tokens"].clone(), 0));
        assert_eq!(usage["output_tokens"], chat["usage"]["completion_tokens"]);
        let expected = if chat["choices"][0]["finish_reason"] == "length" { "max_tokens" } else { "end_turn" };
        assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!(expected), &Value::Null));

        let mut streamed = more.clone();
        streamed["stream"] = json!(true);
        let stream = send(&server, streamed);
        assert!(stream.header("content-type").unwrap().starts_with("text/event-stream"));
        let mut assembled = assembled(&stream.text);
        for field in ["content", "stop_reason", "stop_sequence", "model"] {
            assert_eq!(assembled[field], message[field], "{field}");
        }
        assert_eq!(assembled["usage"].take()["output_tokens"], usage["output_tokens"]);

        let mut counted = body(more);
        counted.as_object_mut().unwrap().remove("max_tokens");
        let count = server.post("/v1/messages/count_tokens?beta=true", &counted).ok();
        assert_eq!(count, json!({ "input_tokens": prompt }));
    }
}

#[test]
fn a_stop_sequence_is_named_and_left_out() {
    let server = Server::start_with(&model());
    let text = send(&server, json!({})).ok()["content"][0]["text"].as_str().unwrap().to_owned();
    let stop = text.chars().nth(1).unwrap().to_string();
    for stream in [false, true] {
        let reply = send(&server, json!({ "stop_sequences": ["never in it", stop], "stream": stream }));
        let message = if stream { assembled(&reply.text) } else { reply.ok() };
        assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!("stop_sequence"), &json!(stop)));
        assert_eq!(message["content"][0]["text"], text.split(&stop).next().unwrap());
    }
}

#[test]
fn tools_are_called_and_their_results_are_taken() {
    let server =
        Server::start_with(&TinyModel { markers: &[("```json\n{\"name\": \"look\", \"arguments\":", 4)], ..model() });
    for (choice, name) in [(json!({ "type": "any" }), None), (json!({ "type": "tool", "name": "see" }), Some("see"))] {
        let more = json!({ "tools": [tool("look"), tool("see")], "tool_choice": choice, "max_tokens": 300 });
        let whole = send(&server, more.clone()).ok();
        assert_eq!(whole["stop_reason"], "tool_use", "{whole}");
        let block = whole["content"].as_array().unwrap().last().unwrap();
        assert_eq!(block["type"], "tool_use");
        assert!(name.is_none_or(|name| block["name"] == name));
        assert!(["sea", "land"].contains(&block["input"]["place"].as_str().unwrap()));
        let mut streamed = more.clone();
        streamed["stream"] = json!(true);
        let mut assembled = assembled(&send(&server, streamed).text);
        let ids = |message: &mut Value| {
            for block in message["content"].as_array_mut().unwrap() {
                assert!(block.get("id").is_none_or(|id| id.as_str().unwrap().len() > 10));
                block.as_object_mut().unwrap().remove("id");
            }
            message["content"].clone()
        };
        assert_eq!(ids(&mut assembled), ids(&mut whole.clone()));

        let result = json!([{ "type": "tool_result", "tool_use_id": block["id"], "content": "water" }]);
        let messages = json!([
            { "role": "user", "content": "the sea" }, { "role": "assistant", "content": whole["content"] },
            { "role": "user", "content": result },
        ]);
        send(&server, json!({ "messages": messages, "tools": [tool("look"), tool("see")] })).ok();
    }
}

#[test]
fn a_schema_is_enforced() {
    let server = Server::start_with(&model());
    let schema = json!({ "type": "object", "required": ["a"], "additionalProperties": false, "properties": { "a": { "enum": [1, 2] } } });
    let format = json!({ "type": "json_schema", "schema": schema });
    for more in [json!({ "output_config": { "format": format, "effort": "low" } }), json!({ "output_format": format })]
    {
        let message = send(&server, more).ok();
        let value: Value = serde_json::from_str(message["content"][0]["text"].as_str().unwrap()).unwrap();
        assert!([json!({ "a": 1 }), json!({ "a": 2 })].contains(&value), "{value}");
    }
}

#[test]
fn generation_ends_with_the_context_and_a_longer_prompt_is_refused() {
    let server = Server::start_with(&TinyModel { context: 128, ..model() });
    let message = send(&server, json!({ "max_tokens": 32_000, "top_k": 1 })).ok();
    let usage = &message["usage"];
    let sum: u64 = ["input_tokens", "cache_read_input_tokens", "output_tokens"]
        .iter()
        .map(|field| usage[*field].as_u64().unwrap())
        .sum();
    if message["stop_reason"] != "end_turn" {
        assert_eq!((&message["stop_reason"], sum), (&json!("model_context_window_exceeded"), 128));
    }
    let long = json!([{ "role": "user", "content": "word ".repeat(500) }]);
    let refused = send(&server, json!({ "messages": long }));
    let error = &refused.json()["error"];
    assert_eq!((refused.status, &error["type"]), (400, &json!("invalid_request_error")));
    let text = error["message"].as_str().unwrap();
    assert!(text.starts_with("prompt is too long: ") && text.contains(" tokens > 128 maximum"), "{text}");
    // Its tokens can still be counted, all of them.
    let count = server.post("/v1/messages/count_tokens", &json!({ "model": MODEL, "messages": long })).ok();
    assert!(count["input_tokens"].as_u64().unwrap() > 500, "{count}");
}

#[test]
fn what_only_anthropic_has_is_left_out_and_named() {
    let server = Server::start_with(&model());
    let more = json!({
        "tools": [{ "type": "web_search_20250305", "name": "web_search" }, { "type": "custom", "name": "a", "input_schema": {} }],
        "thinking": { "type": "adaptive" }, "metadata": { "user_id": "u" }, "context_management": { "edits": [] },
        "service_tier": "auto", "new_beta": { "x": 1 }, "mcp_servers": null,
    });
    let reply = send(&server, more);
    reply.ok();
    assert_eq!(reply.header("x-outpost-ignored"), Some("new_beta, tools[0] web_search_20250305"));
    assert_eq!(send(&server, json!({})).header("x-outpost-ignored"), None);
}

#[test]
fn errors_have_anthropics_format() {
    let server = Server::start_with(&model());
    let check = |response: &Response, status: u16, kind: &str, param: Option<&str>| {
        let found = response.json();
        assert_eq!((response.status, &found["type"]), (status, &json!("error")), "{}", response.text);
        assert_eq!(
            (&found["error"]["type"], found["error"]["param"].as_str()),
            (&json!(kind), param),
            "{}",
            response.text
        );
        assert!(found["error"]["message"].as_str().unwrap().len() > 10);
        let id = response.header("request-id").unwrap();
        assert_eq!((found["request_id"].as_str(), response.header("x-request-id")), (Some(id), Some(id)));
    };
    let invalid = "invalid_request_error";
    for (more, param) in [
        (json!({ "max_tokens": null }), "max_tokens"),
        (json!({ "max_tokens": 0 }), "max_tokens"),
        (json!({ "messages": [] }), "messages"),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image", "source": {} }] }] }),
            "messages[0].content[0].type",
        ),
        (json!({ "system": 1 }), "system"),
        (json!({ "temperature": 3 }), "temperature"),
        (json!({ "top_p": -1 }), "top_p"),
        (json!({ "stop_sequences": ["x".repeat(999)] }), "stop_sequences[0]"),
        (json!({ "thinking": { "type": "much" } }), "thinking.type"),
        (json!({ "tools": [{ "name": "a" }] }), "tools[0].input_schema"),
        (json!({ "tools": [tool("a"), tool("a")] }), "tools[1].name"),
        (json!({ "tools": [tool("a")], "tool_choice": { "type": "tool", "name": "b" } }), "tool_choice.name"),
        (json!({ "tool_choice": { "type": "any" } }), "tool_choice"),
        (json!({ "stream": "yes" }), "stream"),
    ] {
        check(&send(&server, more), 400, invalid, Some(param));
    }
    let strict = |schema: Value| json!({ "name": "a", "strict": true, "input_schema": schema });
    let unenforced = json!({ "tools": [strict(json!({ "type": "object", "properties": { "x": { "not": { "type": "string" } } } }))] });
    let refused = send(&server, unenforced);
    let param = refused.json()["error"]["param"].as_str().unwrap().to_owned();
    assert!(param.starts_with("tools[0].input_schema"), "{param}");
    check(&send(&server, json!({ "model": "claude-opus" })), 404, "not_found_error", Some("model"));
    let json = [("content-type", "application/json")];
    let unsigned = server.raw(Method::POST, PATH, None, &json, Some(body(json!({})).to_string().into_bytes()));
    check(&unsigned, 401, "authentication_error", None);
    check(
        &server.call(Method::POST, PATH, Some("opk_wrong"), Some(&body(json!({})))),
        401,
        "authentication_error",
        None,
    );
    check(&server.get("/v1/messages"), 405, invalid, None);
    // Other paths keep OpenAI's format.
    assert_eq!(server.delete("/v1/chat/completions").json()["error"]["code"], "method_not_allowed");
}

#[test]
fn the_key_may_be_in_anthropics_header() {
    let server = Server::start_with(&model());
    let json = body(json!({})).to_string().into_bytes();
    let call = |headers: &[(&'static str, &str)]| {
        let headers: Vec<_> =
            [("content-type", "application/json")].into_iter().chain(headers.iter().copied()).collect();
        server.raw(Method::POST, PATH, None, &headers, Some(json.clone())).status
    };
    assert_eq!(call(&[("x-api-key", &server.admin)]), 200);
    assert_eq!(call(&[("x-api-key", "opk_wrong")]), 401);
    let bearer = format!("Bearer {}", server.admin);
    assert_eq!(call(&[("x-api-key", "sk-ant-unused"), ("authorization", &bearer)]), 200);
}

#[test]
fn models_are_listed_in_anthropics_format_for_its_clients() {
    let server = Server::start_with(&model());
    let get = |path: &str| {
        let headers = [("anthropic-version", "2023-06-01"), ("x-api-key", server.admin.as_str())];
        server.raw(Method::GET, path, None, &headers, None)
    };
    let list = get("/v1/models?limit=1000").ok();
    let model = &list["data"][0];
    assert_eq!(
        (&model["type"], &model["id"], &model["max_input_tokens"]),
        (&json!("model"), &json!(MODEL), &json!(2048))
    );
    assert!(model["created_at"].as_str().unwrap().contains('T'));
    assert_eq!((&list["has_more"], &list["first_id"], &list["last_id"]), (&json!(false), &json!(MODEL), &json!(MODEL)));
    assert_eq!(get(&format!("/v1/models/{MODEL}")).ok(), *model);
    let missing = get("/v1/models/none");
    assert_eq!((missing.status, &missing.json()["error"]["type"]), (404, &json!("not_found_error")));
}

#[test]
fn usage_is_recorded_under_the_endpoint() {
    let server = Server::start_with(&model());
    let (project, _, key) = server.tenant("messages");
    let whole = server.call(Method::POST, PATH, Some(&key), Some(&body(json!({})))).ok();
    server.call(Method::POST, PATH, Some(&key), Some(&body(json!({ "stream": true }))));
    let counting = body(json!({}));
    server.call(Method::POST, "/v1/messages/count_tokens", Some(&key), Some(&counting)).ok();
    let report = server.get(&format!("/v1/projects/{project}/usage?group_by=endpoint")).ok();
    let row = |endpoint: &str| {
        let rows = report["groups"].as_array().unwrap_or_else(|| panic!("{report}"));
        rows.iter().find(|row| row["endpoint"] == endpoint).unwrap_or_else(|| panic!("{report}")).clone()
    };
    let output = whole["usage"]["output_tokens"].as_u64().unwrap();
    assert_eq!(row("POST /messages")["tokens"]["output"], 2 * output);
    assert_eq!(row("POST /messages")["requests"], 2);
    assert_eq!(row("POST /messages/count_tokens")["tokens"]["total"], 0);
}
