//! Fields of vLLM and SGLang about tokens: `stop_token_ids`, `bad_words`, `allowed_token_ids`, `return_token_ids`,
//! `include_stop_str_in_output` and `skip_special_tokens`, in chats and text completions.

use serde_json::{Value, json};

use crate::server::{MODEL, Server};
use crate::tiny_model::TinyModel;

/// The paths with a body each, and how a choice of a whole response and one of a chunk has its text.
const CALLS: [(&str, &str, &str); 2] = [
    ("/openai/v1/chat/completions", "/message/content", "/delta/content"),
    ("/openai/v1/completions", "/text", "/text"),
];

fn body(path: &str, more: &Value) -> Value {
    let mut body = json!({ "model": MODEL, "max_tokens": 24, "seed": 7, "ignore_eos": true });
    match path.contains("chat") {
        true => body["messages"] = json!([{ "role": "user", "content": "the sea the sea the sea" }]),
        false => body["prompt"] = json!("the sea the sea the sea"),
    }
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn post(server: &Server, path: &str, more: Value) -> Value {
    server.post(path, &body(path, &more)).ok()
}

fn events(server: &Server, path: &str, more: &Value) -> Vec<Value> {
    let mut body = body(path, more);
    body["stream"] = json!(true);
    let response = server.post(path, &body);
    assert_eq!(response.status, 200, "{}", response.text);
    let data = response.text.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}

fn ids(value: &Value) -> Vec<u64> {
    value.as_array().into_iter().flatten().map(|id| id.as_u64().unwrap()).collect()
}

fn detokenize(server: &Server, ids: &[u64]) -> String {
    let response = server.post("/openai/v1/detokenize", &json!({ "model": MODEL, "tokens": ids })).ok();
    response["prompt"].as_str().unwrap().to_owned()
}

fn tokens(server: &Server, text: &str) -> Vec<u64> {
    ids(&server.post("/openai/v1/tokenize", &json!({ "model": MODEL, "prompt": text })).ok()["tokens"])
}

#[test]
fn a_stream_has_the_token_ids_of_the_whole_response() {
    let server = Server::start();
    let stop = tokens(&server, "e")[0];
    for (path, whole_text, chunk_text) in CALLS {
        for more in [
            json!({}),
            json!({ "n": 3 }),
            json!({ "stop_token_ids": [stop], "n": 2 }),
            json!({ "stop_token_ids": [stop], "include_stop_str_in_output": true }),
            json!({ "stop": ["e", "th"], "no_stop_trim": true, "n": 2 }),
            json!({ "bad_words": ["e", "th"], "skip_special_tokens": false, "temperature": 1.5 }),
        ] {
            let mut more = more;
            more["return_token_ids"] = json!(true);
            let whole = post(&server, path, more.clone());
            let events = events(&server, path, &more);
            let is_chat = path.contains("chat");
            let prompts = |event: &Value| match is_chat {
                true => ids(&event["prompt_token_ids"]),
                false => ids(&event["choices"][0]["prompt_token_ids"]),
            };
            let prompt = prompts(&whole);
            assert_eq!(prompt.len() as u64, whole["usage"]["prompt_tokens"].as_u64().unwrap());
            assert_eq!(prompts(&events[0]), prompt, "in the first event");
            let with_prompt = events.iter().filter(|event| !prompts(event).is_empty()).count();
            assert_eq!(with_prompt, if is_chat { 1 } else { whole["choices"].as_array().unwrap().len() });
            let mut count = 0;
            for choice in whole["choices"].as_array().unwrap() {
                let mine = || {
                    let choices = events.iter().flat_map(|event| event["choices"].as_array().unwrap());
                    choices.filter(|one| one["index"] == choice["index"])
                };
                let streamed: Vec<u64> = mine().flat_map(|one| ids(&one["token_ids"])).collect();
                assert_eq!(streamed, ids(&choice["token_ids"]), "{path} {more}");
                let text: String = mine().filter_map(|one| one.pointer(chunk_text)?.as_str()).collect();
                assert_eq!(text, choice.pointer(whole_text).unwrap().as_str().unwrap());
                count += streamed.len() as u64;
            }
            assert_eq!(whole["usage"]["completion_tokens"], count);
        }
        let plain = post(&server, path, json!({}));
        assert!(!plain.to_string().contains("token_ids"), "{plain}");
    }
}

#[test]
fn a_stop_token_and_a_stop_string_stay_in_the_text_if_asked() {
    let server = Server::start();
    for (path, text, _) in CALLS {
        let free = post(&server, path, json!({ "return_token_ids": true }));
        let all = ids(&free["choices"][0]["token_ids"]);
        let stop = all[10];
        let end = all.iter().position(|id| *id == stop).unwrap();
        let run = |more: Value| {
            let choice = post(&server, path, more)["choices"][0].clone();
            (choice.pointer(text).unwrap().as_str().unwrap().to_owned(), choice["finish_reason"].clone())
        };
        let without = detokenize(&server, &all[..end]);
        let with = detokenize(&server, &all[..=end]);
        assert_eq!(run(json!({ "stop_token_ids": [stop] })), (without, json!("stop")), "{path}");
        let kept = json!({ "stop_token_ids": [stop], "include_stop_str_in_output": true });
        assert_eq!(run(kept), (with, json!("stop")));
        let whole = free["choices"][0].pointer(text).unwrap().as_str().unwrap();
        let word: String = whole.chars().skip(8).take(2).collect();
        let (before, _) = whole.split_once(&word).unwrap();
        for (field, kept) in [("include_stop_str_in_output", true), ("no_stop_trim", true), ("no_stop_trim", false)] {
            let expected = if kept { format!("{before}{word}") } else { before.to_owned() };
            assert_eq!(run(json!({ "stop": word, field: kept })), (expected, json!("stop")), "{field} {kept}");
        }
    }
}

#[test]
fn bad_words_and_tokens_that_are_not_allowed_do_not_occur() {
    let server = Server::start();
    let letters = tokens(&server, "zqx");
    for (path, text, _) in CALLS {
        let only = json!({ "allowed_token_ids": letters, "n": 2 });
        for choice in post(&server, path, only)["choices"].as_array().unwrap() {
            let text = choice.pointer(text).unwrap().as_str().unwrap();
            assert!(text.len() == 24 && text.chars().all(|letter| "zqx".contains(letter)), "{text}");
        }
        let banned = json!({ "allowed_token_ids": letters, "bad_words": ["zz", "q", "xz", ""], "n": 2 });
        for choice in post(&server, path, banned)["choices"].as_array().unwrap() {
            let text = choice.pointer(text).unwrap().as_str().unwrap();
            assert!(text.ends_with(&"x".repeat(22)), "{text}");
        }
        let none =
            server.post(path, &body(path, &json!({ "allowed_token_ids": letters, "bad_words": ["z", "q", "x"] })));
        assert_eq!(none.status, 400, "{}", none.text);
        assert!(none.text.contains("bans every token") && none.text.contains("'bad_words'"), "{}", none.text);
    }
}

#[test]
fn special_tokens_are_in_the_text_if_asked() {
    let server = Server::start();
    let start = tokens(&server, "<|im_start|>")[0];
    let end = tokens(&server, "<|im_end|>")[0];
    for (path, text, _) in CALLS {
        let run = |token: u64, more: Value| {
            let mut all = json!({ "logit_bias": { token.to_string(): 100 }, "temperature": 0, "max_tokens": 2, "ignore_eos": false });
            all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            post(&server, path, all)["choices"][0].pointer(text).unwrap().as_str().unwrap().to_owned()
        };
        assert_eq!(run(start, json!({ "skip_special_tokens": false })), "<|im_start|><|im_start|>");
        assert_eq!(run(start, json!({ "skip_special_tokens": true })), "");
        let both = json!({ "skip_special_tokens": false, "include_stop_str_in_output": true });
        assert_eq!(run(end, both), "<|im_end|>");
        assert_eq!(run(end, json!({ "skip_special_tokens": false })), "");
        assert!(run(end, json!({ "ban_eos_token": true, "ignore_eos": null })).len() > 1);
    }
}

#[test]
fn tool_calls_are_read_although_special_tokens_have_text() {
    let server = Server::start_with(&TinyModel { context: 2048, ..TinyModel::default() });
    let function = json!({ "name": "see", "parameters": { "type": "object", "properties": { "far": { "type": "boolean" } }, "required": ["far"] } });
    let call = json!({
        "tools": [{ "type": "function", "function": function }], "tool_choice": "required", "parallel_tool_calls": false,
        "ignore_eos": false, "max_tokens": 200,
    });
    let mut shown = call.clone();
    shown["skip_special_tokens"] = json!(false);
    shown["include_stop_str_in_output"] = json!(true);
    let path = CALLS[0].0;
    let [plain, shown] = [call, shown].map(|more| post(&server, path, more)["choices"][0].clone());
    assert_eq!(plain["finish_reason"], "tool_calls");
    assert_eq!(shown["finish_reason"], "tool_calls");
    assert_eq!(shown["message"]["tool_calls"][0]["function"], plain["message"]["tool_calls"][0]["function"]);
    assert_eq!(shown["message"]["content"], Value::Null);
}

#[test]
fn errors_name_the_field() {
    let server = Server::start();
    for (path, ..) in CALLS {
        for (more, param) in [
            (json!({ "stop_token_ids": [5, 99_999] }), "stop_token_ids[1]"),
            (json!({ "stop_token_ids": vec![5; 129] }), "stop_token_ids"),
            (json!({ "stop_token_ids": [-1] }), "stop_token_ids[0]"),
            (json!({ "allowed_token_ids": [99_999] }), "allowed_token_ids[0]"),
            (json!({ "allowed_token_ids": vec![5; 1025] }), "allowed_token_ids"),
            (json!({ "bad_words": vec!["a"; 129] }), "bad_words"),
            (json!({ "bad_words": ["a", "x".repeat(257)] }), "bad_words[1]"),
            (json!({ "bad_words": "a" }), "bad_words"),
            (json!({ "skip_special_tokens": "no" }), "skip_special_tokens"),
        ] {
            let response = server.post(path, &body(path, &more));
            let (status, _, field) = response.error_fields();
            assert_eq!((status, field.as_deref()), (400, Some(param)), "{path} {more} {}", response.text);
        }
    }
}
