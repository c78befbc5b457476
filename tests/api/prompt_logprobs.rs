//! Log-probabilities of prompts, as lm-eval reads them: `echo` with `logprobs`, and vLLM's `prompt_logprobs`.

use std::collections::BTreeMap;

use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{EMBEDDER, MODEL, Server};
use crate::tiny_model::TinyModel;

const TEXT: &str = "the hello 🦀 on é<|im_end|>x";

fn complete(server: &Server, more: Value) -> Value {
    let mut body = json!({ "model": MODEL, "prompt": TEXT, "max_tokens": 0, "echo": true, "logprobs": 2 });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.post("/openai/v1/completions", &body).ok()
}

fn tokens(server: &Server, text: &str) -> Vec<u64> {
    let body = json!({ "model": MODEL, "prompt": text, "add_special_tokens": false });
    let response = server.post("/openai/v1/tokenize", &body).ok();
    response["tokens"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect()
}

fn list<'a>(response: &'a Value, choice: usize, name: &str) -> &'a [Value] {
    response["choices"][choice]["logprobs"][name].as_array().unwrap()
}

#[test]
fn an_echoed_prompt_has_a_log_probability_for_each_token_but_the_first() {
    let server = Server::start();
    let response = complete(&server, json!({}));
    let choice = &response["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(TEXT), &json!("length")));
    let ids = tokens(&server, TEXT);
    assert_eq!(response["usage"]["prompt_tokens"], ids.len());
    assert_eq!(response["usage"]["completion_tokens"], 0);
    for name in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let list = list(&response, 0, name);
        assert_eq!(list.len(), ids.len(), "{name}");
        assert!(list[1..].iter().all(|entry| !entry.is_null()));
    }
    assert!(list(&response, 0, "token_logprobs")[0].is_null() && list(&response, 0, "top_logprobs")[0].is_null());
    // Each offset is where the text of the token is in the echoed text.
    let characters: Vec<char> = TEXT.chars().collect();
    for (token, offset) in list(&response, 0, "tokens").iter().zip(list(&response, 0, "text_offset")) {
        let (token, offset) = (token.as_str().unwrap(), offset.as_u64().unwrap() as usize);
        let rest: String = characters[offset..].iter().collect();
        assert!(rest.starts_with(token) || token.starts_with("bytes:"), "{token:?} at {offset}");
    }
    let top = list(&response, 0, "top_logprobs")[1].as_object().unwrap();
    assert!(top.len() >= 2 && top.contains_key(list(&response, 0, "tokens")[1].as_str().unwrap()));
    // Ids give the same as their text.
    assert_eq!(complete(&server, json!({ "prompt": ids }))["choices"], response["choices"]);
}

#[test]
fn the_log_probabilities_are_those_of_the_generated_tokens() {
    let server = Server::start();
    let whole = complete(&server, json!({ "max_tokens": 12, "temperature": 0, "ignore_eos": true }));
    let generated = whole["choices"][0]["text"].as_str().unwrap().to_owned();
    let count = tokens(&server, TEXT).len();
    assert_eq!(list(&whole, 0, "tokens").len(), count + 12);
    let offsets: Vec<u64> = list(&whole, 0, "text_offset").iter().map(|offset| offset.as_u64().unwrap()).collect();
    assert_eq!(offsets[count], TEXT.chars().count() as u64);
    // What was generated is now a prompt. Its first tokens may be others if texts are split in another way.
    let ids: Vec<Value> = {
        let body = json!({
            "model": MODEL, "prompt": tokens(&server, TEXT), "max_tokens": 12, "temperature": 0, "ignore_eos": true,
            "prompt_logprobs": 0
        });
        let plain = server.post("/openai/v1/completions", &body).ok();
        assert_eq!(format!("{TEXT}{}", plain["choices"][0]["text"].as_str().unwrap()), generated);
        let prompt = plain["choices"][0]["prompt_logprobs"].as_array().unwrap().clone();
        let own = list(&whole, 0, "token_logprobs");
        for (at, entry) in prompt.iter().enumerate().skip(1) {
            let (_, one) = entry.as_object().unwrap().iter().next().unwrap();
            assert!((one["logprob"].as_f64().unwrap() - own[at].as_f64().unwrap()).abs() < 1e-4);
        }
        prompt
    };
    assert_eq!(ids.len(), count);
}

#[test]
fn the_end_of_sequence_token_after_an_echoed_prompt_has_an_entry() {
    let server = Server::start();
    let described = server.get("/openai/v1/tokenizer_info").ok();
    let eos = described["eos_token"].as_str().unwrap();
    let id = tokens(&server, eos)[0].to_string();
    let response = complete(&server, json!({ "max_tokens": 1, "logit_bias": { (id): 100 } }));
    let choice = &response["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!(TEXT), &json!("stop")));
    // lm-eval leaves out the last entry, which is that of the one token that it asks for.
    let count = tokens(&server, TEXT).len();
    assert_eq!(list(&response, 0, "tokens").len(), count + 1);
    assert_eq!(list(&response, 0, "tokens")[count], eos);
    assert!(list(&response, 0, "token_logprobs")[count].is_number());
}

#[test]
fn several_prompts_and_choices_have_their_own_lists() {
    let server = Server::start();
    let prompts = [tokens(&server, "the hello"), tokens(&server, "on he he he")];
    let together =
        complete(&server, json!({ "prompt": prompts, "n": 2, "max_tokens": 1, "temperature": 0, "seed": 3 }));
    for (index, prompt) in [0, 0, 1, 1].into_iter().enumerate() {
        let alone =
            complete(&server, json!({ "prompt": prompts[prompt], "max_tokens": 1, "temperature": 0, "seed": 3 }));
        assert_eq!(list(&together, index, "tokens").len(), prompts[prompt].len() + 1);
        for (one, other) in list(&together, index, "token_logprobs").iter().zip(list(&alone, 0, "token_logprobs")) {
            match (one.as_f64(), other.as_f64()) {
                (Some(one), Some(other)) => assert!((one - other).abs() < 1e-4),
                (one, other) => assert_eq!(one, other),
            }
        }
    }
}

#[test]
fn a_stop_string_is_not_looked_for_in_the_echoed_prompt() {
    let server = Server::start();
    let response = complete(&server, json!({ "stop": "hello", "max_tokens": 2, "ignore_eos": true, "temperature": 0 }));
    assert!(response["choices"][0]["text"].as_str().unwrap().starts_with(TEXT));
    assert_eq!(response["usage"]["completion_tokens"], 2);
}

#[test]
fn prompt_logprobs_name_the_tokens_and_their_ranks() {
    let server = Server::start();
    let ids = tokens(&server, TEXT);
    let text = complete(&server, json!({ "echo": false, "logprobs": null, "prompt_logprobs": 2, "n": 2 }));
    for choice in text["choices"].as_array().unwrap() {
        assert_eq!((&choice["text"], &choice["logprobs"]), (&json!(""), &json!(null)));
        let entries = choice["prompt_logprobs"].as_array().unwrap();
        assert_eq!(entries.len(), ids.len());
        assert!(entries[0].is_null());
        for (entry, id) in entries.iter().zip(&ids).skip(1) {
            let entry: BTreeMap<u64, Value> = serde_json::from_value(entry.clone()).unwrap();
            let rank = |one: &Value| one["rank"].as_u64().unwrap();
            let own = &entry[id];
            assert!(own["decoded_token"].is_string());
            assert_eq!(entry.len(), if rank(own) <= 2 { 2 } else { 3 });
            let better = entry.values().filter(|one| one["logprob"].as_f64() > own["logprob"].as_f64()).count() as u64;
            assert!(rank(own) > better && entry.values().any(|one| rank(one) == 1));
        }
    }
    let none = complete(&server, json!({}));
    assert!(none["choices"][0].get("prompt_logprobs").is_none());
    // In a chat they belong to the response, as in vLLM.
    let mut chat = json!({
        "model": MODEL, "messages": [{ "role": "user", "content": "hello" }], "max_tokens": 0, "prompt_logprobs": 0
    });
    let response = server.post("/v1/chat/completions", &chat).ok();
    let entries = response["prompt_logprobs"].as_array().unwrap();
    assert_eq!(entries.len() as u64, response["usage"]["prompt_tokens"].as_u64().unwrap());
    assert_eq!(response["choices"][0]["message"]["content"], "");
    chat["prompt_logprobs"] = Value::Null;
    let refused = server.post("/v1/chat/completions", &chat);
    assert_eq!(refused.error_fields(), (400, "invalid_parameter".to_owned(), Some("max_tokens".to_owned())));
}

#[test]
fn a_response_with_too_many_log_probabilities_is_refused() {
    let server = Server::start_with(&TinyModel { context: 4096, ..TinyModel::default() });
    let many = json!({
        "model": MODEL, "prompt": vec![vec![7; 4000]; 8], "max_tokens": 0, "logprobs": 20, "echo": true
    });
    let refused = server.post("/v1/completions", &many);
    assert_eq!(refused.error_fields(), (400, "invalid_parameter".to_owned(), Some("logprobs".to_owned())));
    assert!(refused.text.contains("at most 524288"), "{}", refused.text);
}

#[test]
fn a_tokenizer_is_described_on_the_paths_of_vllm() {
    let server = Server::start();
    let described = server.get(&format!("/openai/v1/tokenizer_info?model={MODEL}")).ok();
    let texts = [("bos_token", "<|im_start|>"), ("eos_token", "<|im_end|>")];
    for (name, expected) in texts {
        let token = described[name].as_str();
        assert!(token.is_none_or(|text| text.starts_with("<|")), "{name} {described} {expected}");
    }
    assert!(described["chat_template"].as_str().unwrap().contains("<|im_start|>"));
    assert_eq!(described["model_max_length"], 512);
    // The only model need not be named, and lm-eval looks for the path beside `/v1`.
    for path in ["/tokenizer_info", "/openai/tokenizer_info", "/openai/v1/tokenizer_info"] {
        assert_eq!(server.get(path).ok(), described, "{path}");
    }
    let ids = server.post("/tokenize", &json!({ "prompt": "the hello", "add_special_tokens": false })).ok();
    let text = server.post("/detokenize", &json!({ "tokens": ids["tokens"] })).ok();
    assert_eq!(text["prompt"], "the hello");
    assert_eq!(server.call(Method::GET, "/tokenizer_info", None, None).status, 401);
    assert_eq!(server.call(Method::POST, "/tokenizer_info", Some(&server.admin), None).status, 405);
}

#[test]
fn a_request_that_names_no_model_needs_a_key_for_one() {
    let server = Server::with_encoders();
    // The other models embed.
    assert!(server.get("/tokenizer_info").ok()["chat_template"].is_string());
    let refused = server.get(&format!("/tokenizer_info?model={EMBEDDER}"));
    assert_eq!(refused.error_fields(), (400, "invalid_parameter".to_owned(), Some("model".to_owned())));
    let server = Server::start_configured(&TinyModel::default(), |config| {
        crate::tiny_model::write(&config.paths.models, "two", &TinyModel::default());
    });
    let refused = server.get("/tokenizer_info");
    assert_eq!(refused.error_fields(), (400, "invalid_parameter".to_owned(), Some("model".to_owned())));
    assert!(refused.text.contains("Name one of the models: tiny, two"), "{}", refused.text);
    let (project, ..) = server.tenant("evaluation");
    let key = json!({ "name": "eval", "project_id": project, "scopes": ["inference"], "models": ["two"] });
    let key = server.post("/v1/api-keys", &key).ok()["secret"].as_str().unwrap().to_owned();
    assert_eq!(server.call(Method::GET, "/tokenizer_info", Some(&key), None).status, 200);
}
