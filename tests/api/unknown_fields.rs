//! Fields of requests that the server does not know: refused, or with `--ignore-unknown-fields` left out and named.

use serde_json::{Value, json};

use crate::server::{EMBEDDER, IMAGE_MODEL, MODEL, RERANKER, Server};
use crate::tiny_model::TinyModel;

fn chat(more: Value) -> Value {
    let mut body = json!({
        "model": MODEL, "max_tokens": 8, "temperature": 0, "messages": [{ "role": "user", "content": "the sea" }],
    });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// A call of each endpoint with JSON bodies, without the field.
fn calls() -> [(&'static str, Value); 4] {
    [
        ("/v1/chat/completions", chat(json!({}))),
        ("/openai/v1/chat/completions", chat(json!({}))),
        ("/v1/completions", json!({ "model": MODEL, "prompt": "the sea", "max_tokens": 8, "temperature": 0 })),
        ("/openai/v1/tokenize", json!({ "model": MODEL, "prompt": "the sea" })),
    ]
}

#[test]
fn unknown_fields_are_refused_by_default() {
    let server = Server::start_with(&TinyModel::default());
    for (path, mut body) in calls() {
        server.post(path, &body).ok();
        body["wonder_tau"] = json!(5);
        let error = server.post(path, &body).error_fields();
        assert_eq!(error, (400, "invalid_parameter".to_owned(), Some("wonder_tau".to_owned())), "{path}");
    }
}

#[test]
fn unknown_fields_are_named_if_they_are_ignored() {
    let server = Server::start_configured(&TinyModel::default(), |config| config.ignore_unknown_fields = true);
    let content = |body: &Value| body["choices"][0].clone();
    for (path, body) in calls() {
        let plain = server.post(path, &body);
        assert_eq!(plain.header("x-outpost-ignored"), None, "{path}");
        let mut more = body.clone();
        // A field that is null asks for nothing.
        for (name, value) in [("dry_base", Value::Null), ("wonder_tau", json!(5)), ("wonder\n", json!({ "a": [1] }))] {
            more[name] = value;
        }
        let reply = server.post(path, &more);
        assert_eq!(content(&reply.ok()), content(&plain.ok()), "{path}");
        let named = reply.header("x-outpost-ignored").unwrap();
        assert!(named.starts_with("wonder_tau, wonder") && !named.contains("dry_base"), "{path}: {named}");
    }
    // What changes the output of OpenAI's servers, and a stream.
    let functions = json!([{ "name": "f", "parameters": {} }]);
    let reply = server.post("/openai/v1/chat/completions", &chat(json!({ "functions": functions, "stream": true })));
    assert_eq!((reply.status, reply.header("x-outpost-ignored")), (200, Some("functions")), "{}", reply.text);
    // Known fields are still checked.
    let error = server.post("/v1/chat/completions", &chat(json!({ "temperature": 9 }))).error_fields();
    assert_eq!(error.2.as_deref(), Some("temperature"));
    let project = server.post("/v1/projects", &json!({ "name": "p", "colour": "red" })).error_fields();
    assert_eq!(project.2.as_deref(), Some("colour"), "only calls of models ignore fields");
}

/// Fields of other servers with the values that their clients send by default.
fn neutral() -> Value {
    json!({
        "skip_special_tokens": true, "spaces_between_special_tokens": true, "include_stop_str_in_output": false,
        "length_penalty": 1.0, "use_beam_search": false, "early_stopping": false, "best_of": 1, "stop_token_ids": [],
        "bad_words": [], "allowed_token_ids": [], "top_k": -1, "max_tokens": -1, "truncate_prompt_tokens": -1, "id_slot": -1,
        "timings_per_token": false, "logit_bias": [], "mirostat": 0, "mirostat_tau": 5, "mirostat_eta": 0.1, "tfs_z": 1,
        "xtc_probability": 0, "xtc_threshold": 0.1, "dry_multiplier": 0, "dry_base": 1.75, "dry_allowed_length": 2,
        "dry_sequence_breakers": ["\n"], "dynatemp_range": 0, "n_probs": 0, "n_keep": 0, "priority": 0,
        "return_token_ids": false, "no_stop_trim": false, "ban_eos_token": false, "ignore_eos": false,
        "repetition_penalty": 1, "repeat_penalty": 1, "grammar_lazy": false, "lora": [], "stream_options": null,
    })
}

#[test]
fn values_of_other_servers_fields_that_ask_for_nothing_are_accepted() {
    let server = Server::start_with(&TinyModel::default());
    for (path, body) in calls().into_iter().filter(|(path, _)| path.ends_with("completions")) {
        let mut plain = body.clone();
        plain["top_k"] = json!(0);
        let mut more = plain.clone();
        more.as_object_mut().unwrap().extend(neutral().as_object().unwrap().clone());
        more["max_tokens"] = json!(8);
        let reply = server.post(path, &more);
        assert_eq!(reply.ok()["choices"], server.post(path, &plain).ok()["choices"], "{path}");
        assert_eq!(reply.header("x-outpost-ignored"), None, "{path}");
    }
    // -1 is no limit.
    let stop = json!({ "max_tokens": -1, "stop": ["e", "a", "i", "o", "u", " "] });
    assert_eq!(server.post("/v1/chat/completions", &chat(stop)).ok()["choices"][0]["finish_reason"], "stop");
    for (field, value) in [("max_tokens", json!(-2)), ("max_tokens", json!(0)), ("top_k", json!(-2))] {
        let error = server.post("/v1/chat/completions", &chat(json!({ field: value }))).error_fields();
        assert_eq!((error.0, error.2.as_deref()), (400, Some(field)), "{value}");
    }
    let bias = |bias: Value| {
        let biased = json!({ "max_tokens": 1, "logprobs": true, "top_logprobs": 20, "logit_bias": bias });
        server.post("/v1/chat/completions", &chat(biased)).ok()["choices"].clone()
    };
    assert_eq!(bias(json!([[270, 100], [271, -1.5]])), bias(json!({ "270": 100, "271": -1.5 })));
}

#[test]
fn what_other_servers_do_is_refused_with_its_purpose() {
    let server = Server::start_with(&TinyModel::default());
    for (field, value, purpose) in [
        ("use_beam_search", json!(true), "searches with beams"),
        ("mirostat", json!(2), "regulates the perplexity"),
        ("return_tokens", json!(true), "'return_token_ids'"),
        ("stop_regex", json!("a+"), "ends the text at a match"),
    ] {
        let refused = server.post("/v1/chat/completions", &chat(json!({ field: value })));
        let (status, _, param) = refused.error_fields();
        assert_eq!((status, param.as_deref()), (400, Some(field)), "{}", refused.text);
        assert!(refused.text.contains(purpose), "{}", refused.text);
    }
}

#[test]
fn limits_of_the_output_are_never_left_out() {
    let server = Server::start_configured(&TinyModel::default(), |config| config.ignore_unknown_fields = true);
    for path in ["/v1/chat/completions", "/v1/completions"] {
        for (field, value) in [
            ("stop_regex", json!("a+")),
            ("banned_strings", json!(["sea"])),
            ("structural_tag", json!({ "type": "structural_tag" })),
        ] {
            let mut body = match path {
                "/v1/completions" => json!({ "model": MODEL, "prompt": "the sea", "max_tokens": 8 }),
                _ => chat(json!({})),
            };
            body[field] = value;
            let error = server.post(path, &body).error_fields();
            assert_eq!((error.0, error.2.as_deref()), (400, Some(field)), "{path}");
        }
        let named = server.post("/v1/chat/completions", &chat(json!({ "mirostat": 2 })));
        assert_eq!((named.status, named.header("x-outpost-ignored")), (200, Some("mirostat")), "{}", named.text);
    }
}

#[test]
fn stream_options_are_checked_and_report_usage_as_asked() {
    let with = |options: Value| chat(json!({ "stream": true, "stream_options": options }));
    let server = Server::start_with(&TinyModel::default());
    let refused = server.post("/v1/chat/completions", &with(json!({ "include_usge": true })));
    assert_eq!(refused.error_fields().2.as_deref(), Some("stream_options.include_usge"));
    assert!(refused.text.contains("Did you mean 'stream_options.include_usage'?"), "{}", refused.text);
    let options = json!({ "include_usage": true, "continuous_usage_stats": true, "include_obfuscation": false });
    for path in ["/openai/v1/chat/completions", "/openai/v1/completions"] {
        let mut body = with(options.clone());
        if path.ends_with("/v1/completions") {
            let fields = body.as_object_mut().unwrap();
            fields.remove("messages");
            fields.insert("prompt".to_owned(), json!("the sea"));
        }
        let text = server.post(path, &body).text;
        let events: Vec<Value> =
            text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect();
        let counts: Vec<u64> =
            events.iter().map(|event| event["usage"]["completion_tokens"].as_u64().unwrap()).collect();
        assert!(counts.len() > 2 && counts.is_sorted() && counts[0] < 8 && counts.last() == Some(&8), "{counts:?}");
    }
    let server = Server::start_configured(&TinyModel::default(), |config| config.ignore_unknown_fields = true);
    let named = server.post("/v1/chat/completions", &with(json!({ "wonder": 1 })));
    assert_eq!((named.status, named.header("x-outpost-ignored")), (200, Some("stream_options.wonder")));
}

#[test]
fn every_kind_of_model_names_what_it_ignores() {
    let folder = Server::with_all_workloads().stop();
    let server = Server::start_in_configured(folder, |config| config.ignore_unknown_fields = true);
    for (path, body) in [
        ("/v1/embeddings", json!({ "model": EMBEDDER, "input": "a" })),
        ("/v1/rerank", json!({ "model": RERANKER, "query": "a", "documents": ["b"] })),
        ("/v1/images/generations", json!({ "model": IMAGE_MODEL, "prompt": "a", "size": "64x64", "steps": 1 })),
    ] {
        let mut more = body;
        more["wonder"] = json!(1);
        let reply = server.post(path, &more);
        assert_eq!((reply.status, reply.header("x-outpost-ignored")), (200, Some("wonder")), "{path}: {}", reply.text);
    }
}
