use outpost::engine;
use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{MODEL, Server};

fn chat_body(more: Value) -> Value {
    let mut body = json!({
        "model": MODEL,
        "messages": [{ "role": "user", "content": "Tell me about the sea." }],
        "max_completion_tokens": 24,
        "seed": 7,
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// `(prompt, completion, total)` tokens. Cached tokens are left out, because they depend on earlier requests.
pub fn counts(usage: &Value) -> (&Value, &Value, &Value) {
    (&usage["prompt_tokens"], &usage["completion_tokens"], &usage["total_tokens"])
}

/// The JSON events of a stream, and whether it ended with `[DONE]`.
fn events(text: &str) -> (Vec<Value>, bool) {
    let data: Vec<&str> = text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
    let done = data.last() == Some(&"[DONE]");
    (data.iter().filter(|event| **event != "[DONE]").map(|event| serde_json::from_str(event).unwrap()).collect(), done)
}

fn content(events: &[Value], choice: u64) -> String {
    let choices = events.iter().flat_map(|event| event["choices"].as_array().unwrap());
    choices.filter(|c| c["index"] == choice).filter_map(|c| c["delta"]["content"].as_str()).collect()
}

#[test]
fn a_response_has_the_format_of_its_mount() {
    let server = Server::start();
    for (mount, object) in [("/v1", "service.resource"), ("/openai/v1", "chat.completion")] {
        let response = server.post(&format!("{mount}/chat/completions"), &chat_body(json!({}))).ok();
        assert_eq!(response["object"], object);
        assert_eq!(response.get("status"), (mount == "/v1").then_some(&json!("succeeded")));
        assert!(response["id"].as_str().unwrap().starts_with("chatcmpl-"));
        assert_eq!((&response["model"], &response["choices"][0]["index"]), (&json!(MODEL), &json!(0)));
        assert_eq!(response["choices"][0]["message"]["role"], "assistant");
        assert!(["stop", "length"].contains(&response["choices"][0]["finish_reason"].as_str().unwrap()));
        let usage = &response["usage"];
        let sum = usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap();
        assert_eq!(usage["total_tokens"], sum);
    }
}

#[test]
fn a_streamed_response_equals_the_whole_response() {
    let server = Server::start();
    for more in [json!({}), json!({ "n": 3 }), json!({ "temperature": 0 }), json!({ "stop": ["e", "th"] })] {
        let whole = server.post("/openai/v1/chat/completions", &chat_body(more.clone())).ok();
        let mut streamed = chat_body(more);
        streamed["stream"] = json!(true);
        streamed["stream_options"] = json!({ "include_usage": true });
        for mount in ["/v1", "/openai/v1"] {
            let response = server.post(&format!("{mount}/chat/completions"), &streamed);
            assert!(response.headers["content-type"].to_str().unwrap().starts_with("text/event-stream"));
            let (events, done) = events(&response.text);
            assert!(done && events.iter().all(|event| event["object"] == "chat.completion.chunk"));
            for choice in whole["choices"].as_array().unwrap() {
                let index = choice["index"].as_u64().unwrap();
                assert_eq!(content(&events, index), choice["message"]["content"].as_str().unwrap());
                check_frame(&events, index, &choice["finish_reason"]);
            }
            let last = events.last().unwrap();
            assert_eq!((&last["choices"], counts(&last["usage"])), (&json!([]), counts(&whole["usage"])));
        }
    }
}

/// Checks that the role comes once and first, and the finish reason once and last with an empty delta.
fn check_frame(events: &[Value], index: u64, finish: &Value) {
    let mine: Vec<&Value> =
        events.iter().flat_map(|e| e["choices"].as_array().unwrap()).filter(|c| c["index"] == index).collect();
    let roles: Vec<usize> = (0..mine.len()).filter(|i| mine[*i]["delta"].get("role").is_some()).collect();
    assert_eq!(roles, [0]);
    let ends: Vec<usize> = (0..mine.len()).filter(|i| !mine[*i]["finish_reason"].is_null()).collect();
    assert_eq!(ends, [mine.len() - 1]);
    assert_eq!((&mine[mine.len() - 1]["finish_reason"], &mine[mine.len() - 1]["delta"]), (finish, &json!({})));
}

#[test]
fn a_seed_reproduces_a_response_and_choices_differ() {
    let server = Server::start();
    let request_body = chat_body(json!({ "n": 4, "temperature": 1.5 }));
    let first = server.post("/v1/chat/completions", &request_body).ok();
    let second = server.post("/v1/chat/completions", &request_body).ok();
    assert_eq!(first["choices"], second["choices"]);
    let texts: std::collections::HashSet<&str> =
        first["choices"].as_array().unwrap().iter().map(|c| c["message"]["content"].as_str().unwrap()).collect();
    assert!(texts.len() > 1, "{texts:?}");
}

#[test]
fn log_probabilities_cover_every_token() {
    let server = Server::start();
    let request_body = chat_body(json!({ "logprobs": true, "top_logprobs": 4, "temperature": 0, "ignore_eos": true }));
    let response = server.post("/v1/chat/completions", &request_body).ok();
    let tokens = response["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    assert_eq!(tokens.len(), 24);
    for token in &tokens {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 4);
        assert_eq!(token["logprob"], top[0]["logprob"], "greedy sampling takes the most probable token");
        assert!(top.windows(2).all(|pair| pair[0]["logprob"].as_f64() >= pair[1]["logprob"].as_f64()));
    }
    let mut streamed = request_body;
    streamed["stream"] = json!(true);
    let (events, _) = events(&server.post("/v1/chat/completions", &streamed).text);
    let choices = events.iter().flat_map(|event| event["choices"].as_array().unwrap());
    let pieces: Vec<Value> = choices.filter_map(|c| c["logprobs"]["content"].as_array()).flatten().cloned().collect();
    assert_eq!(pieces, tokens);
}

#[test]
fn length_limits_are_applied_and_reported() {
    let server = Server::start();
    let request_body = chat_body(json!({ "max_completion_tokens": 5, "ignore_eos": true }));
    let response = server.post("/v1/chat/completions", &request_body).ok();
    assert_eq!(
        (&response["usage"]["completion_tokens"], &response["choices"][0]["finish_reason"]),
        (&json!(5), &json!("length"))
    );
    let prompt = response["usage"]["prompt_tokens"].as_u64().unwrap();

    // The tiny model's context has 512 tokens: one token below the limit, at it, and above it.
    for (max_tokens, status) in [(512 - prompt - 1, 200), (512 - prompt, 200), (512 - prompt + 1, 400)] {
        let request_body = chat_body(json!({ "max_completion_tokens": max_tokens, "ignore_eos": true }));
        let response = server.post("/v1/chat/completions", &request_body);
        assert_eq!(response.status, status, "{}", response.text);
        if status == 400 {
            let (_, code, param) = response.error_fields();
            assert_eq!((code.as_str(), param.as_deref()), ("context_length_exceeded", Some("max_completion_tokens")));
            assert!(
                response.text.contains(&format!("{prompt} tokens")) && response.text.contains(&max_tokens.to_string())
            );
        } else {
            assert_eq!(response.json()["usage"]["completion_tokens"], max_tokens);
        }
    }
    let long = json!({ "messages": [{ "role": "user", "content": "sea ".repeat(5000) }] });
    let (status, code, param) = server.post("/v1/chat/completions", &chat_body(long)).error_fields();
    assert_eq!((status, code.as_str(), param.as_deref()), (400, "context_length_exceeded", Some("messages")));
}

/// The engine refuses what is above its limits without naming a field, so the API must have the same limits.
#[test]
fn the_limits_of_engine_and_api_match() {
    let server = Server::start();
    let (choices, stops, top) = (engine::MAX_CHOICES, engine::MAX_STOPS, engine::MAX_TOP_LOGPROBS);
    let stop = |count: usize| (0..count).map(|at| format!("zq{at}")).collect::<Vec<_>>();
    let chat = |more: Value| {
        let mut body = chat_body(json!({ "max_completion_tokens": 1 }));
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/v1/chat/completions", &body)
    };
    let largest = json!({ "n": choices, "stop": stop(stops), "logprobs": true, "top_logprobs": 1 });
    assert_eq!(chat(largest).ok()["choices"].as_array().unwrap().len(), choices as usize);
    for (more, param) in [
        (json!({ "n": choices + 1 }), "n"),
        (json!({ "n": 17, "logprobs": true, "top_logprobs": top }), "n"),
        (json!({ "stop": stop(stops + 1) }), "stop"),
        (json!({ "logprobs": true, "top_logprobs": top + 1 }), "top_logprobs"),
    ] {
        assert_eq!(chat(more).error_fields(), (400, "invalid_parameter".to_owned(), Some(param.to_owned())));
    }
    // The limits in the OpenAPI document.
    let document = server.raw(Method::GET, "/openapi.json", None, &[], None).ok();
    let about = |schema: &str, field: &str| document["components"]["schemas"][schema]["properties"][field].to_string();
    assert!(about("ChatRequest", "n").contains(&format!("1–{choices}")));
    assert!(about("ChatRequest", "stop").contains(&format!("up to {stops}")));
    assert!(about("ChatRequest", "top_logprobs").contains(&format!("0–{top}")));
    assert!(about("CompletionRequest", "n").contains(&format!("1–{choices}")));
    assert!(about("CompletionRequest", "prompt").contains(&format!("At most {choices} completions")));
    assert!(about("CompletionRequest", "logprobs").contains(&format!("0–{top}")));
    assert!(about("CompletionRequest", "stop").contains(&format!("up to {stops}")));
    assert!(about("ImageRequest", "n").contains(&format!("1–{}", engine::MAX_IMAGES)));
}

#[test]
fn concurrent_chats_get_their_own_responses() {
    let server = Server::start();
    let alone: Vec<Value> = (0..8)
        .map(|seed| server.post("/v1/chat/completions", &chat_body(json!({ "seed": seed }))).ok()["choices"].clone())
        .collect();
    std::thread::scope(|scope| {
        for (seed, expected) in alone.iter().enumerate() {
            let server = &server;
            scope.spawn(move || {
                let response = server.post("/v1/chat/completions", &chat_body(json!({ "seed": seed }))).ok();
                assert_eq!(&response["choices"], expected);
            });
        }
    });
}

#[test]
fn content_parts_equal_text_and_developer_messages_are_system_messages() {
    let server = Server::start();
    let say = |messages: Value| {
        let mut body = chat_body(json!({ "temperature": 0 }));
        body["messages"] = messages;
        server.post("/v1/chat/completions", &body).ok()
    };
    let plain = say(json!([{ "role": "system", "content": "Be brief." }, { "role": "user", "content": "ab" }]));
    let parts = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]);
    let other = say(json!([{ "role": "developer", "content": "Be brief." }, { "role": "user", "content": parts }]));
    assert_eq!((&plain["choices"], counts(&plain["usage"])), (&other["choices"], counts(&other["usage"])));
}

#[test]
fn fields_without_effect_are_accepted() {
    let server = Server::start();
    let more = json!({
        "user": "u-1", "metadata": { "a": "b" }, "store": false, "service_tier": "auto", "tools": [], "tool_choice": "none",
        "response_format": { "type": "text" }, "modalities": ["text"], "parallel_tool_calls": true, "prediction": null,
        "stream": false, "stop": null, "temperature": null, "logit_bias": null,
    });
    server.post("/v1/chat/completions", &chat_body(more)).ok();
}

#[test]
fn stop_strings_never_appear_and_bias_bans_a_token() {
    let server = Server::start();
    let free = server.post("/v1/chat/completions", &chat_body(json!({ "temperature": 0, "logprobs": true }))).ok();
    let text = free["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let middle: String = text.chars().skip(3).take(2).collect();
    let stopped = server.post("/v1/chat/completions", &chat_body(json!({ "temperature": 0, "stop": middle }))).ok();
    let cut = stopped["choices"][0]["message"]["content"].as_str().unwrap();
    assert_eq!(cut, &text[..text.find(&middle).unwrap()]);
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
}

#[test]
fn a_top_p_of_zero_is_greedy_and_empty_stop_strings_are_ignored() {
    let server = Server::start();
    let text = |more: Value| {
        let response = server.post("/v1/chat/completions", &chat_body(more)).ok();
        response["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    let greedy = text(json!({ "temperature": 0 }));
    for seed in [1, 2] {
        assert_eq!(text(json!({ "temperature": 2, "top_p": 0, "top_k": 0, "min_p": 0, "seed": seed })), greedy);
    }
    let middle: String = greedy.chars().skip(3).take(2).collect();
    assert_eq!(text(json!({ "temperature": 0, "stop": "" })), greedy);
    assert_eq!(text(json!({ "temperature": 0, "stop": ["", ""] })), greedy);
    let stopped = text(json!({ "temperature": 0, "stop": ["", middle] }));
    assert_eq!(stopped, greedy[..greedy.find(&middle).unwrap()]);
}

#[test]
fn a_chat_without_a_valid_key_reaches_no_model() {
    let server = Server::start();
    let response = server.call(Method::POST, "/v1/chat/completions", None, Some(&chat_body(json!({}))));
    assert_eq!(response.error_fields().0, 401);
    assert_eq!(server.engine.load().running, 0);
}
