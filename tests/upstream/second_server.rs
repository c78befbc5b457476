//! Another Outpost as the target: the answers are the same as without the hop.

use std::io::Read;
use std::time::Duration;

use serde_json::{Value, json};

use crate::server::{MODEL, Server};
use crate::tiny_model::TinyModel;
use crate::{REMOTE, events, write_upstream};

/// A server with the model, and one for which the first is the target.
fn pair(model: &TinyModel) -> (Server, Server) {
    let target = Server::start_with(model);
    let near = Server::start_configured(&TinyModel::default(), |config| {
        let models = &config.paths.models;
        std::fs::create_dir_all(models.join(REMOTE)).unwrap();
        std::fs::write(models.join(REMOTE).join("key"), &target.admin).unwrap();
        let text = format!(
            "kind = \"chat\"\napi = \"outpost\"\n[[target]]\nurl = \"{}/openai/v1\"\nmodel = \"{MODEL}\"\nkey_file = \"key\"\n",
            target.url
        );
        write_upstream(models, REMOTE, &text);
    });
    (target, near)
}

/// What differs between two responses.
fn without_names(mut body: Value) -> Value {
    let object = body.as_object_mut().unwrap();
    for name in ["id", "created", "model", "system_fingerprint"] {
        object.remove(name);
    }
    // The second of two equal prompts comes from the prefix cache.
    if let Some(details) = body.pointer_mut("/usage/prompt_tokens_details/cached_tokens") {
        *details = Value::Null;
    }
    body
}

fn with_model(mut body: Value, model: &str) -> Value {
    body["model"] = json!(model);
    body
}

#[test]
fn answers_and_usage_are_the_same_as_without_the_hop() {
    let (target, near) = pair(&TinyModel::default());
    let messages = json!([{ "role": "system", "content": "the" }, { "role": "user", "content": "hello on the" }]);
    let chat = |more: Value| {
        let mut body = json!({ "messages": messages, "max_tokens": 24, "seed": 7, "ignore_eos": true });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let cases = [
        ("chat/completions", chat(json!({}))),
        (
            "chat/completions",
            chat(json!({ "n": 3, "temperature": 1.5, "top_k": 0, "min_p": 0.0, "stop": ["on", "er"] })),
        ),
        (
            "chat/completions",
            chat(json!({ "logprobs": true, "top_logprobs": 3, "repetition_penalty": 1.3, "min_tokens": 4 })),
        ),
        ("chat/completions", chat(json!({ "guided_regex": "[a-c]{5}", "ignore_eos": false }))),
        ("chat/completions", chat(json!({ "response_format": { "type": "json_object" }, "ignore_eos": false }))),
        (
            "chat/completions",
            chat(json!({
                "stop": ["e", "on"], "no_stop_trim": true, "bad_words": ["the", "a"], "stop_token_ids": [3],
                "skip_special_tokens": false,
            })),
        ),
        ("chat/completions", chat(json!({ "allowed_token_ids": [65, 66, 67], "n": 3 }))),
        ("completions", json!({ "prompt": ["the hello", "on a"], "n": 2, "max_tokens": 9, "seed": 3, "echo": true })),
        ("completions", json!({ "prompt": "the", "max_tokens": 9, "temperature": 0, "logprobs": 2 })),
    ];
    for (operation, body) in cases {
        let path = format!("/openai/v1/{operation}");
        let direct = target.post(&path, &with_model(body.clone(), MODEL));
        let hop = near.post(&path, &with_model(body.clone(), REMOTE));
        assert_eq!(without_names(hop.ok()), without_names(direct.ok()), "{body}");
        let mut streamed = body.clone();
        streamed["stream"] = json!(true);
        streamed["stream_options"] = json!({ "include_usage": true });
        let texts = |server: &Server, model: &str| {
            let events = events(&server.post(&path, &with_model(streamed.clone(), model)).text);
            let mut texts = vec![String::new(); 4];
            for choice in events.iter().filter_map(|event| event["choices"].get(0)) {
                let part = choice["delta"]["content"].as_str().or(choice["text"].as_str()).unwrap_or_default();
                texts[usize::try_from(choice["index"].as_u64().unwrap()).unwrap()].push_str(part);
            }
            (texts, without_names(events.last().unwrap().clone()))
        };
        assert_eq!(texts(&near, REMOTE), texts(&target, MODEL), "{body}");
    }
}

#[test]
fn token_ids_are_refused_because_they_are_not_read_from_the_target() {
    let (_target, near) = pair(&TinyModel::default());
    let chat = json!({ "model": REMOTE, "messages": [{ "role": "user", "content": "a" }], "return_token_ids": true });
    let text = json!({ "model": REMOTE, "prompt": "a", "return_token_ids": true });
    for (path, body) in [("chat/completions", chat), ("completions", text)] {
        let error = near.post(&format!("/openai/v1/{path}"), &body).error_fields();
        assert_eq!((error.0, error.2.as_deref()), (400, Some("return_token_ids")));
    }
}

#[test]
fn a_client_that_leaves_frees_the_targets_engine() {
    let slow = TinyModel { context: 8192, blocks: 4, width: 256, ..TinyModel::default() };
    let (target, near) = pair(&slow);
    for stream in [false, true] {
        let body = json!({
            "model": REMOTE, "stream": stream, "ignore_eos": true, "max_tokens": 4000,
            "messages": [{ "role": "user", "content": "hello" }],
        });
        let mut connection = near.start_chat(&body);
        target.wait_running();
        if stream {
            assert!(connection.read(&mut [0; 512]).unwrap() > 0);
        }
        drop(connection);
        target.wait_idle(Duration::from_secs(20));
    }
}
