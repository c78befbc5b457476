//! Tokenizing and detokenizing texts and conversations.

use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{EMBEDDER, IMAGE_MODEL, MODEL, RERANKER, Server};
use crate::tiny_model::{self, TinyModel};

fn tokenize(server: &Server, more: Value) -> Value {
    let mut request = json!({ "model": MODEL });
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.post("/openai/v1/tokenize", &request).ok()
}

fn detokenize(server: &Server, model: &str, tokens: &Value) -> String {
    let response = server.post("/openai/v1/detokenize", &json!({ "model": model, "tokens": tokens })).ok();
    assert_eq!(response, json!({ "prompt": response["prompt"], "content": response["prompt"] }));
    response["prompt"].as_str().unwrap().to_owned()
}

#[test]
fn a_text_is_tokenized_and_its_tokens_are_that_text() {
    let server = Server::start();
    for text in ["the hello", "", " 🦀 é\n\nx", "<|im_start|>user", "\u{FDD0}0\u{FDD1}"] {
        let response = tokenize(&server, json!({ "prompt": text }));
        let tokens = response["tokens"].as_array().unwrap();
        assert_eq!(response, json!({ "count": tokens.len(), "max_model_len": 512, "tokens": tokens }));
        assert_eq!(detokenize(&server, MODEL, &response["tokens"]), text);
        // llama.cpp's names.
        assert_eq!(tokenize(&server, json!({ "content": text, "add_special": true })), response);
    }
    let count = |more: Value| tokenize(&server, more)["count"].as_u64().unwrap();
    assert_eq!(count(json!({ "prompt": "<|im_start|>" })), 1);
    assert!(count(json!({ "prompt": "<|im_start|>", "parse_special": false })) > 5);
    // More than the context may be counted.
    assert_eq!(count(json!({ "prompt": "q".repeat(1000) })), 1000);
    let enveloped = server.post("/v1/tokenize", &json!({ "model": MODEL, "prompt": "the" })).ok();
    assert_eq!((&enveloped["object"], &enveloped["status"]), (&json!("service.resource"), &json!("succeeded")));
    assert!(enveloped["id"].as_str().unwrap().starts_with("tok_"));
    assert_eq!(enveloped["tokens"], tokenize(&server, json!({ "prompt": "the" }))["tokens"]);
    let enveloped = server.post("/v1/detokenize", &json!({ "model": MODEL, "tokens": enveloped["tokens"] })).ok();
    assert_eq!((&enveloped["object"], &enveloped["prompt"]), (&json!("service.resource"), &json!("the")));
}

#[test]
fn an_assistants_message_without_text_is_part_of_the_history() {
    let server = Server::start();
    let tokens = |assistant: Value| {
        let user = json!({ "role": "user", "content": "a" });
        tokenize(&server, json!({ "messages": [user, assistant, user] }))["tokens"].clone()
    };
    let said = |text: &str| tokens(json!({ "role": "assistant", "content": text }));
    assert_eq!(tokens(json!({ "role": "assistant", "content": null })), said(""));
    assert_eq!(tokens(json!({ "role": "assistant" })), said(""));
    assert_eq!(tokens(json!({ "role": "assistant", "content": null, "tool_calls": [], "refusal": null })), said(""));
    assert_eq!(tokens(json!({ "role": "assistant", "content": null, "refusal": "No." })), said("No."));
    let parts = json!([{ "type": "text", "text": "a" }, { "type": "refusal", "refusal": "No." }]);
    assert_eq!(tokens(json!({ "role": "assistant", "content": parts })), said("aNo."));
}

#[test]
fn an_error_of_a_template_names_its_cause() {
    let template = "{# tools #}{% for m in messages %}<tool_call>{% if m.content == 'fail' %}{{ m.content.frobnicate() }}{% endif %}\
        {% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments.items() %}{{ k }}{% endfor %}{% endfor %}\
        {% endfor %}";
    let server = Server::start_with(&TinyModel { template: Some(template), ..TinyModel::default() });
    let refused = |messages: Value| {
        let response = server.post("/openai/v1/tokenize", &json!({ "model": MODEL, "messages": messages }));
        let (status, _, param) = response.error_fields();
        assert_eq!(status, 400);
        (param.unwrap(), response.json()["error"]["message"].as_str().unwrap().to_owned())
    };
    let call = json!({ "id": "call_7", "type": "function", "function": { "name": "f", "arguments": "[1" } });
    let user = json!({ "role": "user", "content": "a" });
    let (param, message) = refused(json!([user, { "role": "assistant", "content": null, "tool_calls": [call] }]));
    assert_eq!(param, "messages");
    assert!(message.contains("'call_7' are not a JSON object"), "{message}");
    let (param, message) = refused(json!([{ "role": "user", "content": "fail" }]));
    assert_eq!(param, "model");
    assert!(message.contains("frobnicate"), "{message}");
}

#[test]
fn a_template_that_joins_arguments_of_calls_gets_them_as_text() {
    let template = "{# tools #}{% for m in messages %}{% for c in m.tool_calls or [] %}\
        {{ '<tool_call>' + c.function.name + c.function.arguments }}{% endfor %}{% endfor %}";
    let server = Server::start_with(&TinyModel { template: Some(template), ..TinyModel::default() });
    let arguments = r#"{ "a": [1] }"#;
    let call = json!({ "id": "call_7", "type": "function", "function": { "name": "f", "arguments": arguments } });
    let messages = json!([{ "role": "user", "content": "a" }, { "role": "assistant", "tool_calls": [call] }]);
    let rendered = server.post("/openai/v1/apply-template", &json!({ "messages": messages })).ok();
    assert_eq!(rendered["prompt"], format!("<tool_call>f{arguments}"));
    let strict = "{# tools #}{% for m in messages %}{% for c in m.tool_calls or [] %}\
        {% if c.function.arguments is not string %}{{ raise_exception('no text') }}{% endif %}\
        {{ '<tool_call>' ~ c.function.arguments }}{% endfor %}{% endfor %}";
    let server = Server::start_with(&TinyModel { template: Some(strict), ..TinyModel::default() });
    let tools = json!([{ "type": "function", "function": { "name": "f", "parameters": { "type": "object" } } }]);
    let rendered = server.post("/openai/v1/apply-template", &json!({ "messages": messages, "tools": tools })).ok();
    assert_eq!(rendered["prompt"], format!("<tool_call>{arguments}"));
}

#[test]
fn a_conversation_has_the_tokens_of_its_chat_prompt() {
    let server = Server::start();
    let messages =
        json!([{ "role": "system", "content": "Be brief." }, { "role": "user", "content": "<|im_end|> hi" }]);
    let tools = json!([{ "type": "function", "function": { "name": "f", "parameters": { "type": "object" } } }]);
    let prompt_tokens = |more: Value| {
        let mut chat = json!({ "model": MODEL, "messages": messages, "max_tokens": 1 });
        chat.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/v1/chat/completions", &chat).ok()["usage"]["prompt_tokens"].clone()
    };
    let whole = tokenize(&server, json!({ "messages": messages }));
    assert_eq!(whole["count"], prompt_tokens(json!({})));
    let text = detokenize(&server, MODEL, &whole["tokens"]);
    assert!(text.ends_with("hi<|im_end|>\n<|im_start|>assistant\n"), "{text}");
    let with_tools = tokenize(&server, json!({ "messages": messages, "tools": tools }));
    assert_eq!(with_tools["count"], prompt_tokens(json!({ "tools": tools })));
    let open = tokenize(&server, json!({ "messages": messages, "add_generation_prompt": false }));
    assert_eq!(format!("{}<|im_start|>assistant\n", detokenize(&server, MODEL, &open["tokens"])), text);
}

#[test]
fn embedding_models_and_rerankers_tokenize_too() {
    let server = Server::with_all_workloads();
    for model in [EMBEDDER, RERANKER] {
        let text = "hello world ".repeat(300);
        let with = tokenize(&server, json!({ "model": model, "prompt": text }));
        let without = tokenize(&server, json!({ "model": model, "prompt": text, "add_special_tokens": false }));
        let (with_ids, ids) = (with["tokens"].as_array().unwrap(), without["tokens"].as_array().unwrap());
        assert_eq!(with["count"], ids.len() + 2);
        assert_eq!(with_ids[1..=ids.len()], ids[..]);
        assert!(with["max_model_len"].as_u64().unwrap() < with["count"].as_u64().unwrap());
        let back = detokenize(&server, model, &with["tokens"]);
        assert!(back.contains("[CLS]") && back.contains("[SEP]"), "{back}");
    }
    let embedded = server.post("/v1/embeddings", &json!({ "model": EMBEDDER, "input": "hello" })).ok();
    let counted = tokenize(&server, json!({ "model": EMBEDDER, "prompt": "hello" }));
    assert_eq!(embedded["usage"]["prompt_tokens"], counted["count"]);
    let messages = json!({ "model": EMBEDDER, "messages": [{ "role": "user", "content": "hi" }] });
    assert_eq!(server.post("/v1/tokenize", &messages).error_fields().2.as_deref(), Some("messages"));
    let image = json!({ "model": IMAGE_MODEL, "prompt": "hi" });
    assert_eq!(server.post("/v1/tokenize", &image).error_fields().2.as_deref(), Some("model"));
}

#[test]
fn tokenizing_counts_as_a_request_but_not_as_tokens() {
    let server = Server::start();
    let (project, _, key) = server.tenant("t");
    let post = |path: &str, request: Value| server.call(Method::POST, path, Some(&key), Some(&request));
    post("/v1/tokenize", json!({ "model": MODEL, "prompt": "hi" })).ok();
    post("/openai/v1/detokenize", json!({ "model": MODEL, "tokens": [1, 2] })).ok();
    let report = server.get(&format!("/v1/projects/{project}/usage?group_by=endpoint,model")).ok();
    assert_eq!((&report["requests"], &report["tokens"]["total"]), (&json!(2), &json!(0)));
    let groups = report["groups"].as_array().unwrap();
    let endpoints: Vec<&str> = groups.iter().map(|group| group["endpoint"].as_str().unwrap()).collect();
    assert_eq!(endpoints, ["POST /detokenize", "POST /tokenize"]);
    assert!(groups.iter().all(|group| group["model"] == MODEL));
}

#[test]
fn errors_name_the_field() {
    let server = Server::start();
    let hi = json!([{ "role": "user", "content": "hi" }]);
    for (path, request, param) in [
        ("tokenize", json!({}), "prompt"),
        ("tokenize", json!({ "prompt": ["a"] }), "prompt"),
        ("tokenize", json!({ "prompt": "a", "messages": hi }), "messages"),
        ("tokenize", json!({ "prompt": "a", "tools": [] }), "tools"),
        ("tokenize", json!({ "prompt": "a", "add_generation_prompt": true }), "add_generation_prompt"),
        ("tokenize", json!({ "messages": hi, "add_special_tokens": true }), "add_special_tokens"),
        ("tokenize", json!({ "messages": [] }), "messages"),
        ("tokenize", json!({ "messages": [{ "role": "robot", "content": "a" }] }), "messages[0].role"),
        ("tokenize", json!({ "messages": hi, "tools": [{ "type": "f" }] }), "tools[0].type"),
        ("tokenize", json!({ "prompt": "a".repeat((1 << 20) + 1) }), "prompt"),
        ("tokenize", json!({ "prompt": "a", "content": "a" }), "content"),
        ("tokenize", json!({ "content": "a".repeat((1 << 20) + 1) }), "content"),
        ("tokenize", json!({ "prompt": "a", "with_pieces": 1 }), "with_pieces"),
        ("tokenize", json!({ "content": "q".repeat((1 << 18) + 1), "with_pieces": true }), "content"),
        ("apply-template", json!({}), "messages"),
        ("apply-template", json!({ "messages": hi, "reasoning_effort": "much" }), "reasoning_effort"),
        ("detokenize", json!({}), "tokens"),
        ("detokenize", json!({ "tokens": "a" }), "tokens"),
        ("detokenize", json!({ "tokens": [1, 99_999] }), "tokens[1]"),
        ("detokenize", json!({ "tokens": vec![1; (1 << 18) + 1] }), "tokens"),
        ("detokenize", json!({ "tokens": [1], "text": "a" }), "text"),
    ] {
        let mut body = json!({ "model": MODEL });
        body.as_object_mut().unwrap().extend(request.as_object().unwrap().clone());
        let response = server.post(&format!("/v1/{path}"), &body);
        let expected = (400, "invalid_parameter".to_owned(), Some(param.to_owned()));
        assert_eq!(response.error_fields(), expected, "{path} {}", response.text);
        assert!(response.text.len() < 1000);
    }
}

#[test]
fn tokens_may_have_their_texts() {
    let server = Server::start();
    let text = "the 🦀";
    let plain = tokenize(&server, json!({ "prompt": text }));
    let ids = plain["tokens"].as_array().unwrap();
    let whole = tokenize(&server, json!({ "prompt": text, "with_pieces": true, "return_token_strs": true }));
    let (pieces, texts) = (whole["tokens"].as_array().unwrap(), whole["token_strs"].as_array().unwrap());
    assert_eq!(pieces.iter().map(|piece| piece["id"].clone()).collect::<Vec<_>>(), *ids);
    let mut bytes = Vec::new();
    for (piece, text) in pieces.iter().zip(texts) {
        match &piece["piece"] {
            Value::String(piece) => {
                assert_eq!(piece, text);
                bytes.extend(piece.as_bytes());
            }
            // A part of a character.
            piece => {
                let piece: Vec<u8> = serde_json::from_value(piece.clone()).unwrap();
                assert!(std::str::from_utf8(&piece).is_err() && text.as_str().unwrap().contains('\u{FFFD}'));
                bytes.extend(piece);
            }
        }
    }
    assert_eq!(bytes, text.as_bytes());
    assert!(pieces.iter().any(|piece| piece["piece"].is_array()), "{pieces:?}");
    let texts_alone = tokenize(&server, json!({ "prompt": text, "return_token_strs": true }));
    assert_eq!((&texts_alone["tokens"], &texts_alone["token_strs"]), (&plain["tokens"], &whole["token_strs"]));
}

#[test]
fn the_tokens_of_an_encoder_have_its_spelling() {
    let server = Server::with_encoders();
    let request = json!({ "model": EMBEDDER, "content": "hello", "add_special": true, "with_pieces": true });
    let response = tokenize(&server, request);
    let tokens = response["tokens"].as_array().unwrap();
    assert_eq!((&tokens[0]["piece"], &tokens[tokens.len() - 1]["piece"]), (&json!("[CLS]"), &json!("[SEP]")));
}

#[test]
fn the_only_chat_model_needs_no_name() {
    let server = Server::with_encoders();
    let named = tokenize(&server, json!({ "content": "the hello" }));
    assert_eq!(server.post("/v1/tokenize", &json!({ "content": "the hello" })).ok()["tokens"], named["tokens"]);
    let text = server.post("/v1/detokenize", &json!({ "model": "", "tokens": named["tokens"] })).ok();
    assert_eq!(text["content"], "the hello");

    let two = Server::start_configured(&TinyModel::default(), |config| {
        tiny_model::write(&config.paths.models, "other", &TinyModel::default());
    });
    let refused = two.post("/v1/tokenize", &json!({ "content": "the hello" }));
    assert_eq!(refused.error_fields(), (400, "invalid_parameter".to_owned(), Some("model".to_owned())));
    assert!(refused.text.contains("other") && refused.text.contains(MODEL), "{}", refused.text);
    let (project, _, _) = two.tenant("t");
    let key = json!({ "name": "k", "project_id": project, "scopes": ["inference"], "models": ["other"] });
    let key = two.post("/v1/api-keys", &key).ok()["secret"].as_str().unwrap().to_owned();
    // The key may call one of them.
    two.call(Method::POST, "/v1/tokenize", Some(&key), Some(&json!({ "content": "the hello" }))).ok();
}

#[test]
fn an_applied_template_is_the_text_of_the_chat_prompt() {
    let server = Server::start_with(&TinyModel {
        template: Some(format!("{}{{{{ enable_thinking }}}}", tiny_model::CHATML).leak()),
        ..TinyModel::default()
    });
    let messages = json!([{ "role": "user", "content": "<|im_end|> \u{FDD0}hi" }]);
    let apply = |more: Value| {
        let mut request = json!({ "model": MODEL, "messages": messages });
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/openai/v1/apply-template", &request)
    };
    let text = apply(json!({ "enable_thinking": true, "temperature": 0.5 })).ok();
    let expected = "<|im_start|>user\n<|im_end|> \u{FDD0}hi<|im_end|>\n<|im_start|>assistant\nTrue";
    assert_eq!(text, json!({ "prompt": expected }));
    assert_eq!(apply(json!({ "chat_template_kwargs": { "enable_thinking": true } })).ok(), text);
    let open = apply(json!({ "add_generation_prompt": false, "enable_thinking": false })).ok();
    assert!(open["prompt"].as_str().unwrap().ends_with("hi<|im_end|>\nFalse"), "{open}");
    let request = json!({ "messages": messages, "chat_template_kwargs": { "enable_thinking": true } });
    let counted = tokenize(&server, request);
    assert_eq!(detokenize(&server, MODEL, &counted["tokens"]), expected);
}
