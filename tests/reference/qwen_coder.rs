//! Compares Qwen2.5-Coder with llama.cpp on the same files. `tests/fixtures/make_qwen_coder_reference.py` wrote the
//! expected values. The files are large, so these tests run on demand:
//!
//! ```text
//! outpost models pull qwen2.5-coder-0.5b-instruct qwen2.5-coder-1.5b-instruct
//! cargo test --test reference -- --ignored
//! ```

use std::collections::HashMap;

use outpost::engine::{Message, TextModel, Tool, ToolCall};
use serde::Deserialize;
use serde_json::Value;

use super::{Chat, backend_divergences, check_prompts, divergences, file_of, load, text_model_of};

#[derive(Deserialize)]
struct Reference {
    tools: Vec<Value>,
    models: HashMap<String, Answers>,
}

#[derive(Deserialize)]
struct Answers {
    chats: Vec<Chat>,
    /// The prompt of a conversation with tools, a call and its result.
    calling: Vec<u32>,
}

fn check(name: &str) {
    let reference: Reference = serde_json::from_str(include_str!("../fixtures/qwen_coder_reference.json")).unwrap();
    let Answers { chats, calling } = &reference.models[name];
    let model = text_model_of(name);
    check_prompts(&model, chats);
    assert_eq!(prompt_with_tools(&model, &reference.tools), *calling);
    drop(model);
    for (chat, token, ours, candle) in backend_divergences(&file_of(name), chats) {
        assert!(ours < 0.5 && candle < 0.5, "chat {chat}, token {token}: gaps {ours} and {candle}");
    }
    for (chat, token, theirs, ours) in divergences(&load(&file_of(name)), chats) {
        assert!(theirs < 0.5 && ours < 0.5, "chat {chat}, token {token}: gaps {theirs} and {ours}");
    }
}

fn prompt_with_tools(model: &TextModel, tools: &[Value]) -> Vec<u32> {
    let tool = |definition: &Value| {
        let name = definition["function"]["name"].as_str().unwrap().to_owned();
        Tool { name, definition: definition.clone(), strict: false, input: None }
    };
    let (id, arguments) = ("call_1".to_owned(), r#"{"city": "Köln"}"#.to_owned());
    let call = ToolCall { id: id.clone(), name: "get_weather".to_owned(), arguments };
    let messages = [
        Message::new("user", "Is it warm in Köln?"),
        Message { tool_calls: vec![call], ..Message::new("assistant", "") },
        Message { tool_call_id: Some(id), ..Message::new("tool", "21 °C") },
    ];
    model.prompt_with(&messages, &tools.iter().map(tool).collect::<Vec<_>>()).unwrap()
}

#[test]
#[ignore = "needs 491 MB of weights"]
fn the_smaller_model_matches_the_reference_up_to_near_ties() {
    check("qwen2.5-coder-0.5b-instruct");
}

#[test]
#[ignore = "needs 1.1 GB of weights"]
fn the_larger_model_matches_the_reference_up_to_near_ties() {
    check("qwen2.5-coder-1.5b-instruct");
}
