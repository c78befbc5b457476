//! Reasoning in chat completions, messages, responses, conversations and Ollama's API, and the fields that switch it.

use serde_json::{Value, json};

use crate::server::{MODEL, Server};
use crate::tiny_model::TinyModel;

/// In the style of Qwen 3.
const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n\
    {% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n\
    {% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}\
    {% if reasoning_effort is defined %}{{ reasoning_effort }} {{ date }}{% endif %}{% endif %}";

/// A prompt in which the model already reasons.
pub const OPEN: &str = "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n";

pub fn start(template: &'static str) -> Server {
    let markers = &[("<think>", 4), ("</think>", 4)];
    Server::start_with(&TinyModel { context: 2048, template: Some(template), markers, ..TinyModel::default() })
}

fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn body(more: Value) -> Value {
    let messages = json!([{ "role": "user", "content": "the sea" }]);
    with(json!({ "model": MODEL, "max_tokens": 40, "temperature": 0, "messages": messages }), more)
}

/// The prompt that the fields give, as text.
fn prompt(server: &Server, more: Value) -> String {
    let request = with(json!({ "model": MODEL, "messages": [{ "role": "user", "content": "hi" }] }), more);
    let tokens = server.post("/v1/tokenize", &request).ok()["tokens"].clone();
    let text = server.post("/v1/detokenize", &json!({ "model": MODEL, "tokens": tokens })).ok();
    text["prompt"].as_str().unwrap().to_owned()
}

fn prompt_tokens(server: &Server, more: Value) -> u64 {
    let chat = server.post("/v1/chat/completions", &with(body(json!({ "max_tokens": 1 })), more)).ok();
    chat["usage"]["prompt_tokens"].as_u64().unwrap()
}

#[test]
fn chat_completions_have_the_reasoning_apart_from_the_answer() {
    let server = start(OPEN);
    let budget = json!({ "max_reasoning_tokens": 8, "n": 2 });
    let whole = server.post("/v1/chat/completions", &body(budget.clone())).ok();
    for choice in whole["choices"].as_array().unwrap() {
        let message = &choice["message"];
        assert!(!message["reasoning_content"].as_str().unwrap().is_empty(), "{message}");
        assert_eq!(message["reasoning_content"], message["reasoning"]);
        assert!(!message["content"].as_str().unwrap().is_empty(), "{message}");
    }
    let usage = &whole["usage"];
    assert_eq!(usage["completion_tokens"], 80);
    assert_eq!(usage["completion_tokens_details"]["reasoning_tokens"], 18, "8 and the closing marker, twice");

    let options = json!({ "stream": true, "stream_options": { "include_usage": true } });
    let stream = server.post("/v1/chat/completions", &body(with(budget, options)));
    let data = stream.text.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    let chunks: Vec<Value> =
        data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect();
    for (index, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
        let (mut reasoning, mut content) = (String::new(), String::new());
        for delta in chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap()) {
            if delta["index"] == index {
                let delta = &delta["delta"];
                assert_eq!(delta["reasoning_content"], delta["reasoning"]);
                let thought = delta["reasoning"].as_str().unwrap_or_default();
                assert!(content.is_empty() || thought.is_empty());
                reasoning += thought;
                content += delta["content"].as_str().unwrap_or_default();
            }
        }
        assert_eq!(
            (&json!(reasoning), &json!(content)),
            (&choice["message"]["reasoning"], &choice["message"]["content"])
        );
    }
    let streamed_usage = &chunks.last().unwrap()["usage"];
    assert_eq!(streamed_usage["completion_tokens_details"], usage["completion_tokens_details"]);
    // The names that other servers use.
    for alias in ["thinking_budget", "thinking_token_budget"] {
        let limited = server.post("/v1/chat/completions", &body(json!({ alias: 0 }))).ok();
        assert_eq!(limited["usage"]["completion_tokens_details"]["reasoning_tokens"], 1);
    }
}

#[test]
fn a_response_may_leave_the_reasoning_out() {
    let server = start(OPEN);
    let with_reasoning = json!({ "max_reasoning_tokens": 8, "store": true });
    let expected = server.post("/v1/chat/completions", &body(with_reasoning.clone())).ok();
    let without = with(with_reasoning, json!({ "include_reasoning": false }));
    let whole = server.post("/v1/chat/completions", &body(without.clone())).ok();
    let message = &whole["choices"][0]["message"];
    assert_eq!(message["content"], expected["choices"][0]["message"]["content"]);
    assert_eq!(whole["usage"]["completion_tokens_details"], expected["usage"]["completion_tokens_details"]);
    let stream = server.post("/v1/chat/completions", &body(with(without, json!({ "stream": true }))));
    assert!(!message.to_string().contains("reasoning") && !stream.text.contains("reasoning"), "{}", stream.text);
    assert!(stream.text.contains("\"content\":"));
    let stored = server.get("/v1/chat/completions").ok();
    let has_reasoning = |stored: &Value| stored["choices"][0]["message"].get("reasoning").is_some();
    let stored: Vec<bool> = stored["data"].as_array().unwrap().iter().map(has_reasoning).collect();
    assert_eq!(stored, [true, false, false]);
}

#[test]
fn messages_have_thinking_blocks() {
    let server = start(OPEN);
    let request = |more: Value| body(with(json!({ "thinking": { "type": "enabled", "budget_tokens": 8 } }), more));
    let chat = server.post("/v1/chat/completions", &body(json!({ "max_reasoning_tokens": 8 }))).ok();
    let chat = &chat["choices"][0]["message"];
    let whole = server.post("/v1/messages", &request(json!({}))).ok();
    let [thinking, text] = &whole["content"].as_array().unwrap()[..] else { panic!("{whole}") };
    assert_eq!((&thinking["type"], &thinking["thinking"]), (&json!("thinking"), &chat["reasoning"]));
    assert_eq!((&text["type"], &text["text"]), (&json!("text"), &chat["content"]));
    assert!(!thinking["signature"].as_str().unwrap().is_empty());

    let stream = server.post("/v1/messages", &request(json!({ "stream": true })));
    let (mut types, mut thought) = (Vec::new(), String::new());
    for event in stream.text.split_terminator("\n\n") {
        let data: Value = serde_json::from_str(event.split_once("data: ").unwrap().1).unwrap();
        let kind = data["delta"]["type"].as_str().or(data["content_block"]["type"].as_str());
        types.push(format!("{} {}", data["type"].as_str().unwrap(), kind.unwrap_or("-")));
        thought += data["delta"]["thinking"].as_str().unwrap_or_default();
    }
    types.dedup();
    let expected = [
        "message_start -",
        "ping -",
        "content_block_start thinking",
        "content_block_delta thinking_delta",
        "content_block_delta signature_delta",
        "content_block_stop -",
        "content_block_start text",
        "content_block_delta text_delta",
        "content_block_stop -",
        "message_delta -",
        "message_stop -",
    ];
    assert_eq!(types, expected);
    assert_eq!(json!(thought), chat["reasoning"]);
}

/// The types of a stream's events, without repetitions, and the deltas of one type joined.
fn event_types(text: &str, delta: &str) -> (Vec<String>, String) {
    let (mut types, mut joined) = (Vec::new(), String::new());
    for event in text.strip_suffix("data: [DONE]\n\n").unwrap_or(text).split_terminator("\n\n") {
        let data: Value = serde_json::from_str(event.split_once("data: ").unwrap().1).unwrap();
        if data["type"] == delta {
            joined += data["delta"].as_str().unwrap();
        }
        types.push(data["type"].as_str().unwrap().to_owned());
    }
    types.dedup();
    (types, joined)
}

#[test]
fn responses_have_reasoning_items() {
    let server = start(OPEN);
    let request = |more: Value| {
        let request = json!({
            "model": MODEL, "input": "the sea", "max_output_tokens": 40, "temperature": 0, "max_reasoning_tokens": 8,
        });
        with(request, more)
    };
    let chat = server.post("/v1/chat/completions", &body(json!({ "max_reasoning_tokens": 8 }))).ok();
    let answer = &chat["choices"][0]["message"];
    let whole = server.post("/v1/responses", &request(json!({}))).ok();
    let [reasoning, message] = &whole["output"].as_array().unwrap()[..] else { panic!("{whole}") };
    let content = json!([{ "type": "reasoning_text", "text": answer["reasoning"] }]);
    assert_eq!((&reasoning["type"], &reasoning["content"]), (&json!("reasoning"), &content));
    assert_eq!((&reasoning["summary"], &reasoning["encrypted_content"]), (&json!([]), &Value::Null));
    assert!(reasoning["id"].as_str().unwrap().starts_with("rs_"));
    assert_eq!(message["content"][0]["text"], answer["content"]);
    assert_eq!(whole["usage"]["output_tokens_details"]["reasoning_tokens"], 9, "8 and the closing marker");

    let summary = json!({ "reasoning": { "summary": "auto" }, "include": ["reasoning.encrypted_content"] });
    let summarized = server.post("/v1/responses", &request(summary.clone())).ok();
    let item = &summarized["output"][0];
    assert_eq!(item["summary"], json!([{ "type": "summary_text", "text": answer["reasoning"] }]));
    assert_eq!(item["content"], json!([]));
    assert!(!item["encrypted_content"].as_str().unwrap().is_empty());

    for (more, part, text) in [
        (json!({}), "response.content_part", "response.reasoning_text"),
        (summary, "response.reasoning_summary_part", "response.reasoning_summary_text"),
    ] {
        let stream = server.post("/v1/responses", &request(with(more, json!({ "stream": true }))));
        let (types, joined) = event_types(&stream.text, &format!("{text}.delta"));
        assert_eq!(json!(joined), answer["reasoning"]);
        let [added, done] = ["response.output_item.added", "response.output_item.done"];
        let reasoning =
            [&format!("{part}.added"), &format!("{text}.delta"), &format!("{text}.done"), &format!("{part}.done")];
        let message = [
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
        ];
        let mut expected = vec!["response.created", "response.in_progress", added];
        expected.extend(reasoning.map(String::as_str));
        expected.extend([done, added]);
        expected.extend(message);
        expected.extend([done, "response.incomplete"]);
        assert_eq!(types, expected);
    }
}

#[test]
fn reasoning_items_come_back_to_the_template() {
    let server = start(TEMPLATE);
    let count = |more: Value| {
        let counted = server.post("/v1/responses/input_tokens", &with(json!({ "model": MODEL }), more)).ok();
        counted["input_tokens"].as_u64().unwrap()
    };
    let answer = json!({ "role": "assistant", "content": "So" });
    let reasoning = |fields: Value| with(json!({ "type": "reasoning", "id": "rs_1", "summary": [] }), fields);
    let user = json!({ "role": "user", "content": "and?" });
    let without = count(json!({ "input": [user, answer, user] }));
    for item in [
        reasoning(json!({ "content": [{ "type": "reasoning_text", "text": "Hm" }] })),
        reasoning(json!({ "summary": [{ "type": "summary_text", "text": "Hm" }] })),
        reasoning(json!({ "encrypted_content": "SG0=" })),
    ] {
        let messages = json!([user, with(answer.clone(), json!({ "reasoning": "Hm" })), user]);
        let expected = prompt_tokens(&server, json!({ "messages": messages }));
        let found = count(json!({ "input": [user, item, answer, user] }));
        assert!(found == expected && found > without, "{item}");
    }
    // Reasoning without an answer is that of a turn that was broken off.
    let lost = reasoning(json!({ "encrypted_content": "SG0=" }));
    assert_eq!(
        count(json!({ "input": [user, lost, user, answer, user] })),
        count(json!({ "input": [user, user, answer, user] }))
    );
    let plain = count(json!({ "input": "hi" }));
    assert!(count(json!({ "input": "hi", "reasoning": { "effort": "none" } })) > plain);
    let wrong = json!({ "model": MODEL, "input": "hi", "reasoning": { "effort": "much" } });
    let error = server.post("/v1/responses", &wrong).error_fields();
    assert_eq!(error, (400, "invalid_parameter".to_owned(), Some("reasoning.effort".to_owned())));
}

#[test]
fn ollama_has_the_thinking_apart() {
    let server = start(OPEN);
    let chat = server.post("/v1/chat/completions", &body(json!({}))).ok();
    let answer = &chat["choices"][0]["message"];
    let options = json!({ "num_predict": 40, "temperature": 0 });
    let request = |more: Value| with(json!({ "model": MODEL, "stream": false, "options": options }), more);
    let messages = json!([{ "role": "user", "content": "the sea" }]);
    let whole = server.post("/api/chat", &request(json!({ "messages": messages }))).ok();
    let thinking = &whole["message"]["thinking"];
    assert!(!thinking.as_str().unwrap().is_empty());
    assert_eq!((thinking, &whole["message"]["content"]), (&answer["reasoning"], &answer["content"]));
    let generated = server.post("/api/generate", &request(json!({ "prompt": "the sea" }))).ok();
    assert_eq!((&generated["thinking"], &generated["response"]), (thinking, &answer["content"]));
    let lines = server.post("/api/chat", &request(json!({ "messages": messages, "stream": true })));
    let lines: Vec<Value> = lines.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let joined = |field: &str| lines.iter().filter_map(|line| line["message"][field].as_str()).collect::<String>();
    assert_eq!((json!(joined("thinking")), json!(joined("content"))), (thinking.clone(), answer["content"].clone()));
}

#[test]
fn ollama_s_fields_reach_the_chat_template() {
    let server = start(TEMPLATE);
    let count = |more: Value| {
        let request = json!({ "model": MODEL, "stream": false, "options": { "num_predict": 1 } });
        server.post("/api/chat", &with(request, more)).ok()["prompt_eval_count"].as_u64().unwrap()
    };
    let user = json!({ "role": "user", "content": "hi" });
    let plain = count(json!({ "messages": [user] }));
    assert_eq!(count(json!({ "messages": [user], "think": true })), plain);
    assert!(count(json!({ "messages": [user], "think": false })) > plain);
    assert!(count(json!({ "messages": [user], "think": "low" })) > plain);
    let answer = |more: Value| with(json!({ "role": "assistant", "content": "So" }), more);
    let thought = count(json!({ "messages": [user, answer(json!({ "thinking": "Hm" })), user] }));
    assert!(thought > count(json!({ "messages": [user, answer(json!({})), user] })));
    let shown = server.post("/api/show", &json!({ "model": MODEL })).ok();
    assert!(shown["capabilities"].as_array().unwrap().contains(&json!("thinking")), "{shown}");
    // A last message of the assistant is continued.
    let messages = json!([user, answer(json!({}))]);
    let continued = prompt_tokens(&server, json!({ "messages": messages, "continue_final_message": true }));
    assert_eq!(count(json!({ "messages": messages })), continued);
}

#[test]
fn fields_of_the_request_reach_the_chat_template() {
    let server = start(TEMPLATE);
    let plain = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(prompt(&server, json!({})), plain);
    let closed = json!({ "chat_template_kwargs": { "enable_thinking": false } });
    assert_eq!(prompt(&server, closed.clone()), plain.to_owned() + "<think>\n\n</think>\n\n");
    let date = json!({ "chat_template_kwargs": { "reasoning_effort": "<think>", "date": "now" } });
    assert_eq!(prompt(&server, date), plain.to_owned() + "<think> now");
    assert_eq!(prompt(&server, json!({ "add_generation_prompt": false })), "<|im_start|>user\nhi<|im_end|>\n");
    let messages = json!([{ "role": "assistant", "content": "So", "reasoning": "Hm" }]);
    let continued = json!({ "messages": messages, "continue_final_message": true });
    assert_eq!(prompt(&server, continued), "<|im_start|>assistant\n<think>\nHm\n</think>\n\nSo");

    // The same prompts in chat.
    let long = prompt_tokens(&server, closed.clone());
    assert!(long > prompt_tokens(&server, json!({})));
    for more in [
        json!({ "enable_thinking": false }),
        json!({ "reasoning_effort": "none", "chat_template_kwargs": { "reasoning_effort": "" } }),
    ] {
        assert!(prompt_tokens(&server, more.clone()) >= long, "{more}");
    }
    let messages = |more: Value| {
        let usage = server.post("/v1/messages", &body(with(json!({ "max_tokens": 1 }), more))).ok()["usage"].clone();
        usage["input_tokens"].as_u64().unwrap() + usage["cache_read_input_tokens"].as_u64().unwrap()
    };
    assert_eq!(messages(json!({})), long, "models do not reason in Anthropic's API unless they are asked to");
    assert_eq!(messages(json!({ "thinking": { "type": "disabled" } })), long);
    assert_eq!(messages(json!({ "thinking": { "type": "adaptive" } })), prompt_tokens(&server, json!({})));

    for (more, field) in [
        (json!({ "reasoning_effort": "much" }), "reasoning_effort"),
        (json!({ "chat_template_kwargs": { "tools": [] } }), "chat_template_kwargs.tools"),
        (json!({ "continue_final_message": true }), "continue_final_message"),
        (json!({ "continue_final_message": true, "add_generation_prompt": true }), "continue_final_message"),
    ] {
        let error = server.post("/v1/chat/completions", &body(more)).error_fields();
        assert_eq!(error, (400, "invalid_parameter".to_owned(), Some(field.to_owned())));
    }
}

#[test]
fn a_given_beginning_is_continued() {
    let server = start(TEMPLATE);
    let messages = json!([
        { "role": "user", "content": "the sea" }, { "role": "assistant", "content": "The sea is" },
    ]);
    let more = json!({ "messages": messages, "continue_final_message": true });
    let chat = server.post("/v1/chat/completions", &body(more)).ok();
    let completion = json!({
        "model": MODEL, "max_tokens": 40, "temperature": 0,
        "prompt": "<|im_start|>user\nthe sea<|im_end|>\n<|im_start|>assistant\nThe sea is",
    });
    let completion = server.post("/v1/completions", &completion).ok();
    assert_eq!(chat["usage"]["prompt_tokens"], completion["usage"]["prompt_tokens"]);
    assert_eq!(chat["choices"][0]["message"]["content"], completion["choices"][0]["text"]);
    let message = server.post("/v1/messages", &body(json!({ "messages": messages }))).ok();
    assert_eq!(message["content"][0]["text"], completion["choices"][0]["text"]);
}

#[test]
fn a_conversation_keeps_the_reasoning_for_the_template() {
    let server = start(OPEN);
    let created = server.post("/v1/conversations", &json!({ "messages": [] })).ok();
    let id = created["id"].as_str().unwrap();
    let turn = body(json!({ "conversation_id": id, "max_reasoning_tokens": 8 }));
    let answer = server.post("/v1/chat/completions", &turn).ok()["choices"][0]["message"].clone();
    let stored = server.get(&format!("/v1/conversations/{id}")).ok();
    let last = &stored["messages"][1];
    assert_eq!((&last["reasoning_content"], &last["content"]), (&answer["reasoning_content"], &answer["content"]));
    // A client may store what it received.
    let other = json!({ "messages": [{ "role": "user", "content": "x" }, answer] });
    server.post("/v1/conversations", &other).ok();
    let wrong = json!({ "messages": [{ "role": "assistant", "content": "x", "reasoning": 1 }] });
    let error = server.post("/v1/conversations", &wrong).error_fields();
    assert_eq!(error.2.as_deref(), Some("messages[0].reasoning"));
}
