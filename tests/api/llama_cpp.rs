//! llama.cpp's endpoints: a gap in a text, as editors send it, plain texts, and the properties of the server.

use std::fs;

use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{MODEL, Response, Server};
use crate::tiny_model::TinyModel;

/// A model that was trained to fill gaps in the files of a repository, by its vocabulary.
const REPOSITORY: TinyModel = TinyModel {
    markers: &[
        ("<|fim_prefix|>", 3),
        ("<|fim_suffix|>", 3),
        ("<|fim_middle|>", 3),
        ("<|repo_name|>", 3),
        ("<|file_sep|>", 3),
    ],
    ..crate::tiny_model::DEFAULT
};

fn infill(server: &Server, more: Value) -> Response {
    let mut body = json!({ "input_prefix": "the hello", "input_suffix": " on the", "n_predict": 8, "temperature": 0,
        "ignore_eos": true });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.post("/openai/v1/infill", &body)
}

/// The text that the model generates after these tokens, and their number.
fn continued(server: &Server, tokens: &[Value]) -> (Value, Value) {
    let request = json!({ "model": MODEL, "prompt": tokens, "max_tokens": 8, "temperature": 0, "ignore_eos": true });
    let response = server.post("/openai/v1/completions", &request).ok();
    (response["choices"][0]["text"].clone(), response["usage"]["prompt_tokens"].clone())
}

fn tokens(server: &Server, text: &str) -> Vec<Value> {
    server.post("/v1/tokenize", &json!({ "content": text })).ok()["tokens"].as_array().unwrap().clone()
}

#[test]
fn a_gap_is_filled_after_its_beginning_and_other_files() {
    let server = Server::start_with(&REPOSITORY);
    let filled = infill(&server, json!({})).ok();
    let prompt = "<|fim_prefix|>the hello<|fim_suffix|> on the<|fim_middle|>";
    let of = |response: &Value| (response["content"].clone(), response["tokens_evaluated"].clone());
    assert_eq!(of(&filled), continued(&server, &tokens(&server, prompt)));
    let files = json!([{ "filename": "a.py", "text": "one two" }, { "text": "three", "time": 5 }]);
    let filled = infill(&server, json!({ "prompt": "he", "input_extra": files })).ok();
    let prompt = "<|repo_name|>project\n<|file_sep|>a.py\none two\n<|file_sep|>file\nthree\n<|file_sep|>current\n\
        <|fim_prefix|>the hello<|fim_suffix|> on the<|fim_middle|>he";
    assert_eq!(of(&filled), continued(&server, &tokens(&server, prompt)));
    assert_eq!(filled["truncated"], false);
}

#[test]
fn a_prompt_that_is_too_long_keeps_the_texts_around_the_gap() {
    let server = Server::start_with(&REPOSITORY);
    // The context has 512 tokens, 8 of which are for the completion.
    let evaluated = |response: &Value| response["tokens_evaluated"].as_u64().unwrap();
    let long = infill(&server, json!({ "input_prefix": "q".repeat(2000), "input_suffix": "x".repeat(2000) })).ok();
    assert_eq!((evaluated(&long), &long["truncated"]), (504, &json!(true)));
    let (q, x, [prefix, suffix, middle]) = (
        tokens(&server, "q"),
        tokens(&server, "x"),
        ["prefix", "suffix", "middle"].map(|name| tokens(&server, &format!("<|fim_{name}|>"))),
    );
    let kept = [prefix, vec![q[0].clone(); 376], suffix, vec![x[0].clone(); 125], middle].concat();
    assert_eq!(long["content"], continued(&server, &kept).0);
    // Whole files are left out, from the first on.
    let file = |name: &str, count: usize| json!({ "filename": name, "text": "q".repeat(count) });
    let all = infill(&server, json!({ "input_extra": [file("a", 300), file("b", 300)] })).ok();
    let last = infill(&server, json!({ "input_extra": [file("b", 300)] })).ok();
    assert_eq!(all["content"], last["content"]);
    assert_eq!((&all["truncated"], &last["truncated"]), (&json!(true), &json!(false)));
    assert_eq!(evaluated(&all), evaluated(&last));
}

#[test]
fn responses_have_llama_cpps_fields() {
    let server = Server::start_with(&REPOSITORY);
    let body = infill(&server, json!({})).ok();
    assert_eq!(
        (&body["stop"], &body["stop_type"], &body["stopping_word"]),
        (&json!(true), &json!("limit"), &json!(""))
    );
    assert_eq!((&body["model"], &body["tokens_predicted"]), (&json!(MODEL), &json!(8)));
    assert!(body.get("object").is_none() && body.get("id").is_none(), "{body}");
    let timings = &body["timings"];
    assert_eq!((&timings["predicted_n"], &timings["cache_n"]), (&json!(8), &body["tokens_cached"]));
    assert!(
        ["prompt_ms", "prompt_per_second", "predicted_ms", "predicted_per_token_ms"]
            .iter()
            .all(|name| timings[name].as_f64().unwrap() > 0.)
    );
    let word: String = body["content"].as_str().unwrap().chars().skip(2).take(2).collect();
    let stopped = infill(&server, json!({ "stop": [word] })).ok();
    assert_eq!((&stopped["stop_type"], &stopped["stopping_word"]), (&json!("word"), &json!(word)));
    let selected = infill(&server, json!({ "response_fields": ["content", "timings/predicted_n", "none/x"] })).ok();
    assert_eq!(selected, json!({ "content": body["content"], "timings/predicted_n": 8 }));
    // An editor that only warms up the cache.
    let empty = infill(&server, json!({ "n_predict": 0 })).ok();
    assert_eq!((&empty["content"], &empty["stop_type"]), (&json!(""), &json!("limit")));
    let enveloped =
        server.post("/v1/infill", &json!({ "input_prefix": "a", "input_suffix": "b", "n_predict": 1 })).ok();
    assert_eq!(enveloped["object"], "service.resource");
    assert!(enveloped["content"].is_string());
}

#[test]
fn a_streamed_completion_ends_with_the_event_that_stops() {
    let server = Server::start_with(&REPOSITORY);
    let whole = infill(&server, json!({})).ok();
    let response = infill(&server, json!({ "stream": true }));
    assert!(response.header("content-type").unwrap().starts_with("text/event-stream"));
    let events = response.text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap());
    let events: Vec<Value> = events.map(|event| serde_json::from_str(event).unwrap()).collect();
    let (last, parts) = events.split_last().unwrap();
    assert!(parts.iter().all(|part| part["stop"] == false));
    assert_eq!((&last["stop"], &last["content"], &last["stop_type"]), (&json!(true), &json!(""), &json!("limit")));
    assert_eq!(last["tokens_predicted"], 8);
    let text: String = parts.iter().map(|part| part["content"].as_str().unwrap()).collect();
    assert_eq!(text, whole["content"]);
}

#[test]
fn requests_of_editors_are_accepted_and_what_is_left_out_is_named() {
    let server = Server::start_with(&REPOSITORY);
    // As llama.vim sends it.
    let response = infill(
        &server,
        json!({ "id_slot": 0, "input_extra": [], "prompt": "", "stop": [], "n_indent": 4, "top_k": 40, "top_p": 0.9,
            "samplers": ["top_k", "top_p", "infill"], "stream": false, "cache_prompt": true, "t_max_prompt_ms": 500,
            "t_max_predict_ms": 1000, "n_cmpl": 1, "seed": -1, "response_fields": ["content", "truncated"] }),
    );
    assert_eq!(response.header("x-outpost-ignored"), Some("n_indent, samplers, t_max_prompt_ms, t_max_predict_ms"));
    assert_eq!(response.ok().as_object().unwrap().len(), 2);
    let fields = vec!["content"; 65];
    let many = vec![json!({ "text": "a" }); 1025];
    for (more, param) in [
        (json!({ "grammar": "root ::= \"a\"" }), "grammar"),
        (json!({ "json_schema": {} }), "json_schema"),
        (json!({ "banned_strings": ["a"] }), "banned_strings"),
        (json!({ "n_cmpl": 2 }), "n_cmpl"),
        (json!({ "input_suffix": null }), "input_suffix"),
        (json!({ "input_extra": [{}] }), "input_extra[0].text"),
        (json!({ "input_extra": many }), "input_extra"),
        (json!({ "response_fields": fields }), "response_fields"),
        (json!({ "temperature": 9 }), "temperature"),
    ] {
        let expected = (400, "invalid_parameter".to_owned(), Some(param.to_owned()));
        let refused = infill(&server, more);
        assert_eq!(refused.error_fields(), expected, "{}", refused.text);
    }
    let plain = Server::start();
    let refused = infill(&plain, json!({ "model": MODEL }));
    assert_eq!(refused.error_fields(), (400, "invalid_parameter".to_owned(), Some("input_suffix".to_owned())));
    assert!(refused.text.contains("fill in the middle") && refused.text.contains(MODEL), "{}", refused.text);
    assert_eq!(infill(&plain, json!({})).error_fields().2.as_deref(), Some("model"));
}

#[test]
fn a_plain_text_is_continued_as_in_openais_format() {
    let server = Server::start();
    let request = json!({ "prompt": "the hello", "n_predict": 8, "temperature": 0, "ignore_eos": true });
    let body = server.post("/openai/v1/completion", &request).ok();
    assert_eq!(
        (body["content"].clone(), body["tokens_evaluated"].clone()),
        continued(&server, &tokens(&server, "the hello"))
    );
    let several = server.post("/openai/v1/completion", &json!({ "prompt": ["a", "b"] }));
    assert_eq!(several.error_fields().2.as_deref(), Some("prompt"));
    // Without a number, the text ends where the context does.
    let unlimited = json!({ "prompt": "the", "n_predict": -1, "ignore_eos": true, "temperature": 0 });
    let body = server.post("/openai/v1/completion", &unlimited).ok();
    let sum = body["tokens_predicted"].as_u64().unwrap() + body["tokens_evaluated"].as_u64().unwrap();
    assert_eq!((sum, &body["stop_type"]), (512, &json!("limit")));
}

#[test]
fn the_ids_of_the_tokens_are_returned_on_request() {
    let server = Server::start_with(&REPOSITORY);
    let whole = infill(&server, json!({ "return_tokens": true })).ok();
    let ids = whole["tokens"].as_array().unwrap();
    assert_eq!(ids.len(), 8);
    let text = server.post("/v1/detokenize", &json!({ "tokens": ids })).ok()["content"].clone();
    assert_eq!(text, whole["content"]);
    let stream = infill(&server, json!({ "return_tokens": true, "stream": true })).text;
    let events = stream.split("\n\n").filter_map(|event| event.strip_prefix("data: "));
    let events: Vec<Value> = events.map(|event| serde_json::from_str(event).unwrap()).collect();
    let streamed: Vec<&Value> = events.iter().flat_map(|event| event["tokens"].as_array().unwrap()).collect();
    assert_eq!(streamed, ids.iter().collect::<Vec<_>>());
    assert_eq!(infill(&server, json!({})).ok()["tokens"], json!([]));
}

#[test]
fn completions_are_metered() {
    let server = Server::start_with(&REPOSITORY);
    let (project, _, key) = server.tenant("t");
    let request =
        json!({ "input_prefix": "a", "input_suffix": "b", "n_predict": 5, "ignore_eos": true, "stream": true });
    let response = server.call(Method::POST, "/v1/infill", Some(&key), Some(&request));
    assert_eq!(response.status, 200, "{}", response.text);
    let report = server.get(&format!("/v1/projects/{project}/usage?group_by=endpoint,model")).ok();
    let group = &report["groups"][0];
    assert_eq!((&group["endpoint"], &group["model"]), (&json!("POST /infill"), &json!(MODEL)));
    assert_eq!(group["tokens"]["output"], 5, "{group}");
}

#[test]
fn properties_are_those_of_the_only_chat_model() {
    let server = Server::start_configured(&TinyModel::default(), |config| {
        let settings = format!("[models.{MODEL}.defaults]\ntemperature = 0.25\nmax_tokens = 7\nstop = ['.']\n");
        fs::write(config.paths.models.join("models.toml"), settings).unwrap();
        config.max_running = 3;
    });
    let props = server.get("/props").ok();
    let settings = &props["default_generation_settings"];
    assert_eq!(
        (&settings["n_ctx"], &props["total_slots"], &props["model_alias"]),
        (&json!(512), &json!(3), &json!(MODEL))
    );
    let params = &settings["params"];
    assert_eq!(
        (&params["temperature"], &params["n_predict"], &params["stop"]),
        (&json!(0.25), &json!(7), &json!(["."]))
    );
    assert_eq!((&params["top_k"], &params["seed"]), (&json!(40), &json!(-1)));
    let described = server.get("/tokenizer_info").ok();
    assert_eq!(props["chat_template"], described["chat_template"]);
    assert_eq!(props["eos_token"], described["eos_token"]);
    let on_v1 = server.get(&format!("/v1/props?model={MODEL}")).ok();
    assert_eq!((&on_v1["status"], &on_v1["total_slots"]), (&json!("succeeded"), &json!(3)));
    assert_eq!(server.get("/props?model=other").status, 404);
    assert_eq!(server.call(Method::POST, "/props", Some(&server.admin), Some(&json!({}))).status, 405);
    assert_eq!(server.call(Method::GET, "/props", None, None).status, 401);
}

#[test]
fn paths_outside_of_v1_are_those_of_openai_s_mount() {
    let server = Server::start_with(&REPOSITORY);
    let messages = json!([{ "role": "user", "content": "hi" }]);
    for (path, request, object) in [
        (
            "/chat/completions",
            json!({ "model": MODEL, "messages": messages, "max_tokens": 1 }),
            json!("chat.completion"),
        ),
        ("/completions", json!({ "model": MODEL, "prompt": "hi", "max_tokens": 1 }), json!("text_completion")),
        ("/responses", json!({ "model": MODEL, "input": "hi", "max_output_tokens": 16 }), json!("response")),
        ("/completion", json!({ "prompt": "hi", "n_predict": 1 }), Value::Null),
        ("/infill", json!({ "input_prefix": "a", "input_suffix": "b", "n_predict": 1 }), Value::Null),
        ("/apply-template", json!({ "messages": messages }), Value::Null),
    ] {
        let response = server.post(path, &request).ok();
        assert_eq!(response.get("object").unwrap_or(&Value::Null), &object, "{path} {response}");
    }
    assert_eq!(server.get("/models").ok()["object"], "list");
    assert_eq!(server.get(&format!("/models/{MODEL}")).status, 404);
    assert_eq!(server.call(Method::POST, "/completion", None, Some(&json!({ "prompt": "hi" }))).status, 401);
}
