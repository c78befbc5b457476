//! Text completions: OpenAI's legacy format, several prompts in one request, and one usage record for all.

use std::io::{BufRead as _, BufReader};
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{MODEL, Response, Server};
use crate::slow_model;
use crate::tiny_model::TinyModel;
use crate::wait::until;

const MOUNTS: [&str; 2] = ["/v1", "/openai/v1"];

/// A model that was trained to fill in the middle, by its vocabulary.
const INFILL: TinyModel = TinyModel {
    markers: &[("<|fim_prefix|>", 3), ("<|fim_suffix|>", 3), ("<|fim_middle|>", 3)],
    ..crate::tiny_model::DEFAULT
};

fn body(more: Value) -> Value {
    let mut body = json!({ "model": MODEL, "prompt": "the hello on", "max_tokens": 12, "seed": 7, "ignore_eos": true });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn complete(server: &Server, more: Value) -> Response {
    server.post("/openai/v1/completions", &body(more))
}

fn text(response: &Value, choice: usize) -> &str {
    response["choices"][choice]["text"].as_str().unwrap()
}

fn tokens(server: &Server, text: &str) -> Value {
    server.post("/openai/v1/tokenize", &json!({ "model": MODEL, "prompt": text })).ok()["tokens"].clone()
}

/// The JSON events of a stream that ends with `[DONE]`.
fn events(response: &Response) -> Vec<Value> {
    assert_eq!(response.status, 200, "{}", response.text);
    let data: Vec<&str> = response.text.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
    let (last, events) = data.split_last().unwrap();
    assert_eq!(*last, "[DONE]");
    events.iter().map(|event| serde_json::from_str(event).unwrap()).collect()
}

/// `(prompt, completion, total)` tokens.
fn counts(usage: &Value) -> [u64; 3] {
    ["prompt_tokens", "completion_tokens", "total_tokens"].map(|name| usage[name].as_u64().unwrap())
}

#[test]
fn a_completion_has_the_format_of_its_mount() {
    let server = Server::start();
    for (mount, object) in MOUNTS.into_iter().zip(["service.resource", "text_completion"]) {
        let response = server.post(&format!("{mount}/completions"), &body(json!({}))).ok();
        assert_eq!(response["object"], object);
        assert_eq!(response.get("status"), (mount == "/v1").then_some(&json!("succeeded")));
        let digits = response["id"].as_str().unwrap().strip_prefix("cmpl-").unwrap();
        assert_eq!(digits.len(), 32);
        assert_eq!(response["model"], MODEL);
        assert!(response["created"].as_i64().unwrap() > 1_700_000_000);
        let choice = &response["choices"][0];
        assert_eq!(
            (&choice["index"], &choice["logprobs"], &choice["finish_reason"]),
            (&json!(0), &json!(null), &json!("length"))
        );
        assert!(!text(&response, 0).is_empty());
        let usage = &response["usage"];
        let [prompt, completion, total] = counts(usage);
        assert_eq!((completion, total), (12, prompt + 12));
        assert!(usage["prompt_tokens_details"]["cached_tokens"].is_u64());
    }
    let object = |mount: &str| {
        let fields = server.post(&format!("{mount}/completions"), &body(json!({}))).ok();
        fields.as_object().unwrap().keys().cloned().collect::<Vec<_>>()
    };
    let (ours, openai) = (object("/v1"), object("/openai/v1"));
    assert_eq!(ours.iter().filter(|field| *field != "status").collect::<Vec<_>>(), openai.iter().collect::<Vec<_>>());
}

#[test]
fn a_streamed_completion_equals_the_whole_one() {
    let server = Server::start();
    for more in [
        json!({}),
        json!({ "n": 3 }),
        json!({ "prompt": ["the hello", "on", "he he he"], "n": 2 }),
        json!({ "stop": ["e", "th"] }),
        json!({ "echo": true, "n": 2 }),
        json!({ "echo": true, "logprobs": 2, "n": 2, "prompt": ["the 🦀", "on"] }),
        json!({ "echo": true, "logprobs": 0, "max_tokens": 0 }),
        json!({ "logprobs": 2, "n": 2 }),
    ] {
        let whole = complete(&server, more.clone()).ok();
        let mut streamed = body(more);
        streamed["stream"] = json!(true);
        streamed["stream_options"] = json!({ "include_usage": true });
        for mount in MOUNTS {
            let response = server.post(&format!("{mount}/completions"), &streamed);
            assert!(response.header("content-type").unwrap().starts_with("text/event-stream"));
            let events = events(&response);
            assert!(events.iter().all(|event| event["object"] == "text_completion" && event["id"] == events[0]["id"]));
            let (usage, chunks) = events.split_last().unwrap();
            assert_eq!((&usage["choices"], counts(&usage["usage"])), (&json!([]), counts(&whole["usage"])));
            assert!(chunks.iter().all(|chunk| chunk["usage"].is_null() && chunk.get("usage").is_some()));
            let pieces: Vec<&Value> = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().unwrap()).collect();
            for choice in whole["choices"].as_array().unwrap() {
                let mine: Vec<&Value> = pieces.iter().copied().filter(|one| one["index"] == choice["index"]).collect();
                let joined: String = mine.iter().map(|one| one["text"].as_str().unwrap()).collect();
                assert_eq!(joined, choice["text"].as_str().unwrap());
                let reasons: Vec<&Value> = mine.iter().map(|one| &one["finish_reason"]).collect();
                let (last, before) = reasons.split_last().unwrap();
                assert_eq!(*last, &choice["finish_reason"]);
                assert!(before.iter().all(|reason| reason.is_null()));
                for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
                    let lists = mine.iter().filter_map(|one| one["logprobs"][list].as_array());
                    let joined: Vec<Value> = lists.flatten().cloned().collect();
                    assert_eq!(joined, choice["logprobs"][list].as_array().cloned().unwrap_or_default(), "{list}");
                }
            }
        }
    }
    let without_usage = events(&complete(&server, json!({ "stream": true })));
    assert!(without_usage.iter().all(|event| event.get("usage").is_none() && event["choices"][0]["index"] == 0));
}

#[test]
fn several_prompts_are_completed_like_single_ones_and_in_order() {
    let server = Server::start();
    let prompts = ["the hello", "on", "he he he he"];
    let alone: Vec<Value> =
        prompts.iter().map(|prompt| complete(&server, json!({ "prompt": prompt, "n": 2 })).ok()).collect();
    let together = complete(&server, json!({ "prompt": prompts, "n": 2 })).ok();
    let choices = together["choices"].as_array().unwrap();
    assert_eq!(choices.len(), 6);
    for (index, choice) in choices.iter().enumerate() {
        let expected = &alone[index / 2]["choices"][index % 2];
        assert_eq!((&choice["index"], &choice["text"]), (&json!(index), &expected["text"]));
    }
    let texts: std::collections::HashSet<&str> = (0..6).map(|index| text(&together, index)).collect();
    assert!(texts.len() > 3, "{texts:?}");
    let sum = alone.iter().map(|response| counts(&response["usage"]));
    let sum = sum.fold([0; 3], |sum, one| std::array::from_fn(|at| sum[at] + one[at]));
    assert_eq!(counts(&together["usage"]), sum);
}

#[test]
fn token_ids_are_a_prompt_and_texts_are_not_put_into_the_chat_template() {
    let server = Server::start();
    let ids = tokens(&server, "the hello");
    let ids = ids.as_array().unwrap();
    let from_text = complete(&server, json!({ "prompt": "the hello" })).ok();
    assert_eq!(from_text["usage"]["prompt_tokens"], ids.len());
    let from_ids = complete(&server, json!({ "prompt": ids })).ok();
    assert_eq!(
        (&from_ids["choices"], counts(&from_ids["usage"])),
        (&from_text["choices"], counts(&from_text["usage"]))
    );
    let several = complete(&server, json!({ "prompt": [ids, ids] })).ok();
    assert_eq!([text(&several, 0), text(&several, 1)], [text(&from_text, 0); 2]);
    // A special token in a text is one token.
    let special = complete(&server, json!({ "prompt": "<|im_start|>user" })).ok();
    let plain = complete(&server, json!({ "prompt": "user" })).ok();
    assert_eq!(counts(&special["usage"])[0], counts(&plain["usage"])[0] + 1);
}

#[test]
fn a_base_model_completes_texts_and_refuses_conversations() {
    let server = Server::start_with(&TinyModel { template: None, ..INFILL });
    let model = server.get(&format!("/openai/v1/models/{MODEL}")).ok();
    let capabilities = &model["capabilities"];
    assert_eq!((&capabilities["chat_completions"], &capabilities["completions"]), (&json!(false), &json!(true)));
    assert_eq!(model["problem"], Value::Null);
    assert!(!text(&complete(&server, json!({})).ok(), 0).is_empty());
    complete(&server, json!({ "prompt": "the", "suffix": "on" })).ok();
    let chat = json!({ "model": MODEL, "messages": [{ "role": "user", "content": "hello" }], "max_tokens": 4 });
    let count = json!({ "model": MODEL, "messages": chat["messages"] });
    let responses = json!({ "model": MODEL, "input": "hello" });
    for (path, body) in
        [("/chat/completions", &chat), ("/responses", &responses), ("/messages", &chat), ("/tokenize", &count)]
    {
        let refused = server.post(&format!("/openai/v1{path}"), body);
        assert_eq!(refused.status, 400, "{path}: {}", refused.text);
        assert!(
            refused.text.contains("has no chat template") && refused.text.contains("/completions"),
            "{}",
            refused.text
        );
    }
}

#[test]
fn a_suffix_makes_a_fill_in_the_middle_prompt() {
    let server = Server::start_with(&INFILL);
    let (before, after) = ("the hello", "on <|fim_prefix|> the");
    let with_suffix = complete(&server, json!({ "prompt": before, "suffix": after, "temperature": 0 })).ok();
    let marker = |name: &str| tokens(&server, &format!("<|fim_{name}|>"))[0].clone();
    let plain = |text: &str| {
        let request = json!({ "model": MODEL, "prompt": text, "parse_special": false });
        server.post("/v1/tokenize", &request).ok()["tokens"].as_array().unwrap().clone()
    };
    assert!(plain(after).len() > tokens(&server, after).as_array().unwrap().len());
    let mut ids = vec![marker("prefix")];
    ids.extend(plain(before));
    ids.push(marker("suffix"));
    ids.extend(plain(after));
    ids.push(marker("middle"));
    let written = complete(&server, json!({ "prompt": ids, "temperature": 0 })).ok();
    assert_eq!((text(&with_suffix, 0), counts(&with_suffix["usage"])), (text(&written, 0), counts(&written["usage"])));
    let with_tokens = complete(&server, json!({ "prompt": [1, 2], "suffix": "a" }));
    assert_eq!(with_tokens.error_fields(), (400, "invalid_parameter".to_owned(), Some("suffix".to_owned())));

    let server = Server::start();
    let refused = complete(&server, json!({ "suffix": after }));
    assert_eq!(refused.error_fields(), (400, "invalid_parameter".to_owned(), Some("suffix".to_owned())));
    assert!(refused.text.contains("fill in the middle") && refused.text.contains(MODEL), "{}", refused.text);
    let empty = complete(&server, json!({ "suffix": "" })).ok();
    assert_eq!(empty["choices"], complete(&server, json!({})).ok()["choices"]);
}

#[test]
fn log_probabilities_have_the_legacy_format() {
    let server = Server::start();
    let response = complete(&server, json!({ "logprobs": 3, "temperature": 0 })).ok();
    let logprobs = &response["choices"][0]["logprobs"];
    let list = |name: &str| logprobs[name].as_array().unwrap().clone();
    let (tokens, values, top, offsets) =
        (list("tokens"), list("token_logprobs"), list("top_logprobs"), list("text_offset"));
    assert_eq!([tokens.len(), values.len(), top.len(), offsets.len()], [12; 4]);
    let characters: Vec<char> = text(&response, 0).chars().collect();
    let mut checked = 0;
    for (index, token) in tokens.iter().enumerate() {
        let token = token.as_str().unwrap();
        let alternatives = top[index].as_object().unwrap();
        assert_eq!(alternatives[token], values[index], "the sampled token is one of the alternatives");
        assert_eq!(alternatives.len(), 3, "greedy sampling takes the most probable token");
        let best = alternatives.values().map(|value| value.as_f64().unwrap()).fold(f64::NEG_INFINITY, f64::max);
        assert_eq!(values[index], best);
        let offset = offsets[index].as_u64().unwrap() as usize;
        if !token.starts_with("bytes:") && !token.starts_with("<|") {
            let there: String = characters[offset..].iter().take(token.chars().count()).collect();
            assert_eq!(there, token);
            checked += 1;
        }
    }
    assert!(checked > 3, "{tokens:?}");
    // Without alternatives, the sampled token's own log-probability remains.
    let alone = complete(&server, json!({ "logprobs": 0, "temperature": 0 })).ok();
    let alone = &alone["choices"][0]["logprobs"];
    assert_eq!((&alone["tokens"], &alone["token_logprobs"]), (&logprobs["tokens"], &logprobs["token_logprobs"]));
    assert!(alone["top_logprobs"].as_array().unwrap().iter().all(|top| top.as_object().unwrap().len() == 1));
}

#[test]
fn echo_returns_the_prompt_before_each_completion() {
    let server = Server::start();
    let prompts = ["the hello ", "on 🦀"];
    let plain = complete(&server, json!({ "prompt": prompts, "n": 2 })).ok();
    let echoed = complete(&server, json!({ "prompt": prompts, "n": 2, "echo": true })).ok();
    for index in 0..4 {
        assert_eq!(text(&echoed, index), format!("{}{}", prompts[index / 2], text(&plain, index)));
    }
    assert_eq!(counts(&echoed["usage"]), counts(&plain["usage"]));
    let ids = tokens(&server, prompts[1]);
    let of_tokens = complete(&server, json!({ "prompt": ids, "echo": true })).ok();
    assert!(text(&of_tokens, 0).starts_with(prompts[1]), "{of_tokens}");
}

#[test]
fn stop_strings_and_biases_apply() {
    let server = Server::start();
    let free = complete(&server, json!({ "temperature": 0 })).ok();
    let stop: String = text(&free, 0).chars().skip(3).take(2).collect();
    let stopped = complete(&server, json!({ "temperature": 0, "stop": stop })).ok();
    assert_eq!(text(&stopped, 0), text(&free, 0).split(&stop).next().unwrap());
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let only = tokens(&server, "q")[0].to_string();
    let biased = complete(&server, json!({ "temperature": 0, "logit_bias": { (only): 100 } })).ok();
    assert_eq!(text(&biased, 0), "q".repeat(12));
}

#[test]
fn the_number_of_tokens_is_16_unless_the_request_or_the_context_says_otherwise() {
    let server = Server::start();
    let generated = |more: Value| complete(&server, more).ok()["usage"]["completion_tokens"].clone();
    assert_eq!(generated(json!({ "max_tokens": null })), 16);
    assert_eq!(generated(json!({ "max_tokens": 30 })), 30);
    // The tiny model's context has 512 tokens, and `q` is one token.
    let ids = |count: usize| vec![tokens(&server, "q")[0].clone(); count];
    assert_eq!(generated(json!({ "prompt": ids(507), "max_tokens": null })), 5);
    assert_eq!(generated(json!({ "prompt": ids(507), "max_tokens": 5 })), 5);
    for (more, param) in [
        (json!({ "prompt": ids(507), "max_tokens": 6 }), "max_tokens"),
        (json!({ "prompt": ids(512), "max_tokens": 6 }), "prompt"),
        (json!({ "prompt": ids(513), "max_tokens": null }), "prompt"),
        (json!({ "prompt": ["a", "q".repeat(600)] }), "prompt[1]"),
        (json!({ "prompt": ["q".repeat(600_000), "a"] }), "prompt[0]"),
    ] {
        let refused = complete(&server, more);
        assert_eq!(refused.error_fields(), (400, "context_length_exceeded".to_owned(), Some(param.to_owned())));
        assert!(refused.text.contains("maximum context length is 512"), "{}", refused.text);
        assert!(!refused.text.contains("messages"), "{}", refused.text);
    }
}

#[test]
fn errors_name_the_field() {
    let server = Server::start();
    let ids: Vec<u32> = vec![1, 99_999];
    for (more, param) in [
        (json!({ "prompt": null }), "prompt"),
        (json!({ "prompt": 5 }), "prompt"),
        (json!({ "prompt": "" }), "prompt"),
        (json!({ "prompt": [] }), "prompt"),
        (json!({ "prompt": [[]] }), "prompt"),
        (json!({ "prompt": ["a", ""] }), "prompt[1]"),
        (json!({ "prompt": ids }), "prompt[1]"),
        (json!({ "prompt": [[1], ids] }), "prompt[1][1]"),
        (json!({ "prompt": vec!["a"; 129] }), "prompt"),
        (json!({ "prompt": vec!["a"; 9], "n": 20 }), "prompt"),
        (json!({ "n": 129 }), "n"),
        (json!({ "n": 17, "logprobs": 20 }), "n"),
        (json!({ "n": 0 }), "n"),
        (json!({ "best_of": 3, "n": 2 }), "best_of"),
        (json!({ "logprobs": 21 }), "logprobs"),
        (json!({ "logprobs": true }), "logprobs"),
        (json!({ "logprobs": 1, "echo": true, "suffix": "a" }), "logprobs"),
        (json!({ "max_tokens": -2 }), "max_tokens"),
        (json!({ "max_tokens": 0, "min_tokens": 1 }), "min_tokens"),
        (json!({ "prompt_logprobs": 21 }), "prompt_logprobs"),
        (json!({ "prompt_logprobs": -1 }), "prompt_logprobs"),
        (json!({ "prompt_logprobs": 1, "stream": true }), "prompt_logprobs"),
        (json!({ "min_tokens": 13 }), "min_tokens"),
        (json!({ "max_tokens": null, "min_tokens": 17 }), "min_tokens"),
        (json!({ "temperature": 3 }), "temperature"),
        (json!({ "stop": ["", "x".repeat(999)] }), "stop[1]"),
        (json!({ "logit_bias": { "99999": 1 } }), "logit_bias.99999"),
        (json!({ "stream_options": { "include_usage": true } }), "stream_options"),
        (json!({ "messages": [] }), "messages"),
        (json!({ "max_completion_tokens": 3 }), "max_completion_tokens"),
        (json!({ "use_beam_search": true }), "use_beam_search"),
        (json!({ "model": null }), "model"),
    ] {
        let response = complete(&server, more.clone());
        let expected = (400, "invalid_parameter".to_owned(), Some(param.to_owned()));
        assert_eq!(response.error_fields(), expected, "{more} {}", response.text);
    }
    let unknown = complete(&server, json!({ "model": "none" })).error_fields();
    assert_eq!(unknown, (404, "model_not_found".to_owned(), Some("model".to_owned())));
    let idle =
        json!({ "user": "u", "store": true, "best_of": 1, "use_beam_search": false, "suffix": null, "logprobs": null });
    complete(&server, idle).ok();
    complete(&server, json!({ "best_of": 2, "n": 2, "echo": false, "prompt": vec!["a"; 8] })).ok();
}

#[test]
fn all_prompts_of_a_request_are_one_usage_record() {
    let server = Server::start();
    let (project, _, key) = server.tenant("t");
    let ask = |more: Value| server.call(Method::POST, "/v1/completions", Some(&key), Some(&body(more)));
    let prompts = ["the hello on the hello on the hello on the hello", "on"];
    let first = counts(&ask(json!({ "prompt": prompts, "n": 3 })).ok()["usage"]);
    assert_eq!(first[1], 2 * 3 * 12);
    let again = ask(json!({ "prompt": prompts, "n": 3, "stream": true, "stream_options": { "include_usage": true } }));
    let last = events(&again).pop().unwrap();
    let cached = last["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert_eq!(counts(&last["usage"]), first);
    assert_eq!(ask(json!({ "prompt": "" })).status, 400);
    let report = server.get(&format!("/v1/projects/{project}/usage?group_by=endpoint,model")).ok();
    let [input, output, _] = first.map(|count| 2 * count);
    let tokens = json!({ "input": input, "cached": cached, "output": output, "total": input + output });
    assert_eq!((&report["tokens"], &report["requests"]), (&tokens, &json!(3)));
    let outcomes = json!({ "succeeded": 2, "refused": 1, "limited": 0, "failed": 0, "abandoned": 0 });
    assert_eq!(report["requests_by_outcome"], outcomes);
    for group in report["groups"].as_array().unwrap() {
        assert_eq!((&group["endpoint"], &group["model"]), (&json!("POST /completions"), &json!(MODEL)));
    }
}

#[test]
fn a_token_budget_counts_every_prompt() {
    let server = Server::start();
    let (project, _, key) = server.tenant("t");
    let ask = |prompts: usize| {
        let request = body(json!({ "prompt": vec![vec![1; 20]; prompts], "max_tokens": 1 }));
        server.call(Method::POST, "/v1/completions", Some(&key), Some(&request))
    };
    server.patch(&format!("/v1/projects/{project}/rate-limits"), &json!({ "token_budget": 100 })).ok();
    let refused = ask(6).error_fields();
    assert_eq!((refused.0, refused.1.as_str()), (429, "insufficient_quota"));
    ask(4).ok();
    assert_eq!(ask(2).error_fields().0, 429);
}

#[test]
fn a_client_that_leaves_cancels_every_prompt_and_is_charged_for_what_was_generated() {
    let server = Server::start_with(&slow_model());
    let (project, _, key) = server.tenant("t");
    for stream in [true, false] {
        let request = body(json!({ "prompt": ["zq zq", "the hello", "on"], "max_tokens": 1500, "stream": stream }));
        let connection = server.begin("/v1/completions", &key, &request);
        until(|| "all prompts run", || server.engine.load().running == 3);
        if stream {
            let mut lines = BufReader::new(&connection).lines();
            assert!(lines.any(|line| line.unwrap().starts_with("data: ")), "a token arrives");
        }
        drop(connection);
        server.wait_idle(Duration::from_secs(2));
        assert_eq!(server.engine.load().kv_bytes, 0);
    }
    let report = || server.get(&format!("/v1/projects/{project}/usage")).ok();
    until(|| "both are recorded", || report()["requests_by_outcome"]["abandoned"] == 2);
    let report = report();
    let input: usize =
        ["zq zq", "the hello", "on"].iter().map(|text| tokens(&server, text).as_array().unwrap().len()).sum();
    assert_eq!((&report["requests"], &report["tokens"]["input"]), (&json!(2), &json!(2 * input)));
    assert!(report["tokens"]["output"].as_u64().unwrap() > 0, "{report}");
}

#[test]
fn a_key_needs_the_scope_and_the_model() {
    let server = Server::start();
    let project = server.tenant("t").0;
    let key = |more: Value| {
        let mut request = json!({ "name": "k", "project_id": project });
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.post("/v1/api-keys", &request).ok()["secret"].as_str().unwrap().to_owned()
    };
    let other_model = key(json!({ "models": ["another"], "scopes": ["inference"] }));
    let no_inference = key(json!({ "scopes": ["project"] }));
    for (path, request) in [
        ("completions", body(json!({}))),
        ("tokenize", json!({ "model": MODEL, "prompt": "a" })),
        ("detokenize", json!({ "model": MODEL, "tokens": [1] })),
    ] {
        for (key, code) in [(&other_model, "model_not_allowed"), (&no_inference, "insufficient_scope")] {
            let response = server.call(Method::POST, &format!("/v1/{path}"), Some(key), Some(&request));
            assert_eq!((response.error_fields().0, response.error_fields().1.as_str()), (403, code), "{path}");
        }
    }
    assert_eq!(server.engine.load().running, 0);
}
