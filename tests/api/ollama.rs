//! Ollama's API: the same texts and the same usage as chat completions, in Ollama's format.

use reqwest::Method;
use serde_json::{Value, json};

use crate::server::{EMBEDDER, Headers, MODEL, RERANKER, Response, Server, add_encoder};
use crate::tiny_model::TinyModel;

fn model() -> TinyModel {
    TinyModel { context: 2048, blocks: 1, width: 32, ..TinyModel::default() }
}

fn merged(mut body: Value, more: &Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

/// The name under which the model is listed.
const TAGGED: &str = "tiny:latest";

/// A chat of one question, without randomness.
fn chat(more: Value) -> Value {
    let options = json!({ "temperature": 0, "num_predict": 24 });
    let messages = json!([{ "role": "user", "content": "the sea" }]);
    merged(json!({ "model": MODEL, "messages": messages, "options": options, "stream": false }), &more)
}

fn send(server: &Server, more: Value) -> Response {
    server.post("/api/chat", &chat(more))
}

fn generate(server: &Server, more: Value) -> Response {
    let options = json!({ "temperature": 0, "num_predict": 24 });
    let body = json!({ "model": MODEL, "prompt": "the sea", "options": options, "stream": false });
    server.post("/api/generate", &merged(body, &more))
}

/// The lines of a stream.
fn lines(response: &Response) -> Vec<Value> {
    assert_eq!((response.status, response.header("content-type")), (200, Some("application/x-ndjson")));
    assert!(response.text.ends_with('\n'));
    response.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What the client put together from the lines of a chat: text, calls and the last line.
fn assembled(response: &Response) -> (String, Vec<Value>, Value) {
    let lines = lines(response);
    let (last, parts) = lines.split_last().unwrap();
    assert!(parts.iter().all(|part| part["done"] == false && part.get("done_reason").is_none()), "{}", response.text);
    let text = lines.iter().map(|line| line["message"]["content"].as_str().unwrap()).collect();
    let calls = lines.iter().filter_map(|line| line["message"]["tool_calls"].as_array()).flatten().cloned().collect();
    (text, calls, last.clone())
}

fn fields(value: &Value) -> Vec<&str> {
    let mut names: Vec<&str> = value.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    names
}

const METRICS: [&str; 6] =
    ["total_duration", "load_duration", "prompt_eval_count", "prompt_eval_duration", "eval_count", "eval_duration"];

fn assert_complete(body: &Value, content: &str) {
    let mut expected = vec!["model", "created_at", "done", "done_reason", content];
    expected.extend(METRICS);
    expected.sort_unstable();
    assert_eq!(fields(body), expected);
    assert_eq!((&body["model"], &body["done"]), (&json!(MODEL), &json!(true)));
    assert!(body["created_at"].as_str().unwrap().contains('T'));
    let duration = |name: &str| body[name].as_u64().filter(|duration| *duration > 0).unwrap();
    let parts = duration("load_duration") + duration("prompt_eval_duration") + duration("eval_duration");
    assert!(parts <= duration("total_duration") + 3, "{body}");
}

#[test]
fn a_chat_has_the_text_and_the_usage_of_a_chat_completion() {
    let server = Server::start_with(&model());
    let messages = json!([{ "role": "system", "content": "Be brief." }, { "role": "user", "content": "the sea" }]);
    let completion = json!({ "model": MODEL, "max_tokens": 24, "temperature": 0, "messages": messages });
    let completion = server.post("/v1/chat/completions", &completion).ok();
    let (choice, usage) = (&completion["choices"][0], &completion["usage"]);
    let whole = send(&server, json!({ "messages": messages })).ok();
    assert_complete(&whole, "message");
    assert_eq!(whole["message"], json!({ "role": "assistant", "content": choice["message"]["content"] }));
    let counts = (&whole["prompt_eval_count"], &whole["eval_count"]);
    assert_eq!(counts, (&usage["prompt_tokens"], &usage["completion_tokens"]));
    assert_eq!(whole["done_reason"], choice["finish_reason"]);

    // Streamed unless the request says otherwise.
    let (text, calls, last) = assembled(&send(&server, json!({ "messages": messages, "stream": null })));
    assert_complete(&last, "message");
    assert_eq!((json!(text), calls.len()), (choice["message"]["content"].clone(), 0));
    for field in ["model", "done_reason", "prompt_eval_count", "eval_count"] {
        assert_eq!(last[field], whole[field], "{field}");
    }
}

#[test]
fn a_prompt_is_completed_as_a_chat_or_as_a_text() {
    let server = Server::start_with(&TinyModel {
        markers: &[("<|fim_prefix|>", 3), ("<|fim_suffix|>", 3), ("<|fim_middle|>", 3)],
        ..model()
    });
    let system = json!([{ "role": "system", "content": "Be brief." }]);
    let messages = json!([system[0], { "role": "user", "content": "the sea" }]);
    let as_chat = send(&server, json!({ "messages": messages })).ok();
    let whole = generate(&server, json!({ "system": "Be brief." })).ok();
    assert_complete(&without_context(&whole), "response");
    assert_eq!(whole["response"], as_chat["message"]["content"]);
    assert_eq!(whole["prompt_eval_count"], as_chat["prompt_eval_count"]);

    for (more, field) in [(json!({ "raw": true }), "raw"), (json!({ "suffix": " on land" }), "suffix")] {
        let mut completion = json!({ "model": MODEL, "prompt": "the sea", "max_tokens": 24, "temperature": 0 });
        if let Some(suffix) = more.get("suffix") {
            completion["suffix"] = suffix.clone();
        }
        let completion = server.post("/v1/completions", &completion).ok();
        let whole = generate(&server, more.clone()).ok();
        assert_eq!(whole["response"], completion["choices"][0]["text"], "{field}");
        assert_eq!(whole["prompt_eval_count"], completion["usage"]["prompt_tokens"], "{field}");
        let streamed = lines(&generate(&server, merged(more, &json!({ "stream": true }))));
        let text: String = streamed.iter().map(|line| line["response"].as_str().unwrap()).collect();
        assert_eq!(json!(text), whole["response"], "{field}");
        assert_complete(streamed.last().unwrap(), "response");
    }
    // Without a limit, a text ends with the context.
    let endless = json!({ "raw": true, "options": { "num_predict": -1, "temperature": 0 } });
    let whole = generate(&server, endless).ok();
    let total = whole["prompt_eval_count"].as_u64().unwrap() + whole["eval_count"].as_u64().unwrap();
    assert!(whole["done_reason"] == "stop" || total == 2048, "{whole}");
}

fn without_context(body: &Value) -> Value {
    let mut body = body.clone();
    body.as_object_mut().unwrap().remove("context").unwrap_or_else(|| panic!("no context"));
    body
}

#[test]
fn a_prompt_continues_the_context_of_an_earlier_response() {
    let server = Server::start_with(&model());
    let first = generate(&server, json!({ "system": "Be brief." })).ok();
    let count = |body: &Value| body["context"].as_array().unwrap().len() as u64;
    let ends_itself = u64::from(first["done_reason"] == "stop");
    assert_eq!(
        count(&first),
        first["prompt_eval_count"].as_u64().unwrap() + first["eval_count"].as_u64().unwrap() - ends_itself
    );
    let streamed = lines(&generate(&server, json!({ "system": "Be brief.", "stream": true })));
    let (last, parts) = streamed.split_last().unwrap();
    assert_eq!(last["context"], first["context"]);
    assert!(parts.iter().all(|part| part.get("context").is_none()));

    // The tokens come first, as they are, then what the template has between two turns. The system prompt is in them already.
    let reply = generate(&server, json!({ "prompt": "and land", "system": "Be brief.", "context": first["context"] }));
    assert_eq!(reply.header("x-outpost-ignored"), Some("system"));
    let next = reply.ok();
    let between = "<|im_end|>\n<|im_start|>user\nand land<|im_end|>\n<|im_start|>assistant\n";
    let between =
        server.post("/v1/tokenize", &json!({ "model": MODEL, "prompt": between, "add_special_tokens": false })).ok();
    let ids = |value: &Value| value.as_array().unwrap().clone();
    let prompt = [ids(&first["context"]), ids(&between["tokens"])].concat();
    assert_eq!(next["prompt_eval_count"], prompt.len());
    assert_eq!(ids(&next["context"])[..prompt.len()], prompt);
    let completion = json!({ "model": MODEL, "prompt": prompt, "max_tokens": 24, "temperature": 0 });
    let completion = server.post("/v1/completions", &completion).ok();
    assert_eq!(next["response"], completion["choices"][0]["text"]);
    // Ollama has none of a raw prompt, and ignores one.
    let raw = generate(&server, json!({ "raw": true, "context": first["context"] }));
    assert_eq!((raw.header("x-outpost-ignored"), raw.ok().get("context")), (Some("context"), None));
    let long = json!({ "context": vec![5; 2100] });
    assert!(generate(&server, long).text.contains("maximum context length is 2048 tokens"));
}

#[test]
fn num_ctx_leaves_out_the_oldest_turns() {
    let server = Server::start_with(&model());
    let turn = |text: &str| {
        [json!({ "role": "user", "content": text }), json!({ "role": "assistant", "content": "word ".repeat(30) })]
    };
    let system = [json!({ "role": "system", "content": "Be brief." })];
    let last = [json!({ "role": "user", "content": "the sea" })];
    let whole = [&system[..], &turn("one"), &turn("two"), &last].concat();
    let recent = [&system[..], &turn("two"), &last].concat();
    let tokens = |messages: &[Value], more: Value| send(&server, merged(json!({ "messages": messages }), &more)).ok();
    let counted = tokens(&recent, json!({}));
    let needed = counted["prompt_eval_count"].as_u64().unwrap();
    let options = |num_ctx: u64| json!({ "options": { "temperature": 0, "num_predict": 24, "num_ctx": num_ctx } });
    let cut = send(&server, merged(json!({ "messages": whole }), &options(needed)));
    assert_eq!(cut.header("x-outpost-truncated-messages"), Some("2"));
    let cut = cut.ok();
    let same = |body: &Value| (body["prompt_eval_count"].clone(), body["message"].clone());
    assert_eq!(same(&cut), same(&counted));
    // The system prompt and the last message are always read.
    let least = tokens(&[&system[..], &last].concat(), json!({}));
    assert_eq!(same(&tokens(&whole, options(1))), same(&least));
    let all = send(&server, merged(json!({ "messages": whole }), &options(2048)));
    assert_eq!((all.status, all.header("x-outpost-truncated-messages")), (200, None));
    // A limit of the completion that no context has takes nothing from the prompt.
    let endless = json!({ "messages": whole, "options": { "num_ctx": 2048, "num_predict": 5000, "stop": ["e", "a"] } });
    assert_eq!(send(&server, endless).header("x-outpost-truncated-messages"), None);
    let strict = merged(json!({ "messages": whole, "truncate": false }), &options(needed));
    let refused = send(&server, strict);
    assert_eq!(refused.error_fields().0, 400);
    assert!(refused.text.contains(&format!("allows {needed}")), "{}", refused.text);
    let strict = merged(json!({ "truncate": false }), &options(4));
    assert_eq!(generate(&server, strict).error_fields().0, 400);
    // Without it, a chat is left as it is, unless the request says otherwise.
    let long = [&turn(&"word ".repeat(2500))[..], &last].concat();
    assert_eq!(send(&server, json!({ "messages": long })).error_fields().0, 400);
    let cut = send(&server, json!({ "messages": long, "truncate": true }));
    assert_eq!((cut.status, cut.header("x-outpost-truncated-messages")), (200, Some("2")));
}

#[test]
fn a_client_unloads_a_model_if_its_settings_let_it() {
    let server = Server::start_configured(&model(), |config| {
        std::fs::write(config.paths.models.join("models.toml"), "unload_on_request = true").unwrap();
        config.keyless_project = Some("default".to_owned());
    });
    let post = |body: &Value| server.call(Method::POST, "/api/generate", None, Some(body));
    assert_eq!(post(&json!({ "model": MODEL })).ok()["done_reason"], "load");
    let unloaded = post(&json!({ "model": MODEL, "keep_alive": 0 }));
    assert_eq!((&unloaded.ok()["done_reason"], unloaded.header("x-outpost-ignored")), (&json!("unload"), None));
    assert_eq!(server.get("/api/ps").ok(), json!({ "models": [] }));
}

#[test]
fn a_request_without_a_prompt_loads_the_model() {
    let server = Server::start_with(&model());
    assert_eq!(server.get("/api/ps").ok(), json!({ "models": [] }));
    let (_, _, key) = server.tenant("loader");
    let call = |path: &str, body: &Value| server.call(Method::POST, path, Some(&key), Some(body));
    let loaded = call("/api/chat", &json!({ "model": MODEL })).ok();
    assert_eq!(fields(&loaded), ["created_at", "done", "done_reason", "message", "model"]);
    assert_eq!((&loaded["done"], &loaded["done_reason"]), (&json!(true), &json!("load")));
    let ps = server.get("/api/ps").ok();
    let model = &ps["models"][0];
    assert_eq!(
        (&model["model"], &model["context_length"], &model["size_vram"]),
        (&json!(TAGGED), &json!(2048), &json!(0))
    );
    let expected = ["context_length", "details", "digest", "expires_at", "model", "name", "size", "size_vram"];
    assert_eq!(fields(model), expected);
    assert_eq!(call("/api/generate", &json!({ "model": MODEL, "prompt": "" })).ok()["response"], "");
    let unload = json!({ "model": MODEL, "keep_alive": 0 });
    let kept = call("/api/chat", &unload);
    assert_eq!((&kept.ok()["done_reason"], kept.header("x-outpost-ignored")), (&json!("unload"), Some("keep_alive")));
    assert_eq!(server.get("/api/ps").ok()["models"][0]["model"], TAGGED, "it stays loaded for others");
    let unloaded = server.post("/api/chat", &unload);
    assert_eq!((&unloaded.ok()["done_reason"], unloaded.header("x-outpost-ignored")), (&json!("unload"), None));
    assert_eq!(server.get("/api/ps").ok(), json!({ "models": [] }));
    assert_eq!(call("/api/chat", &json!({ "model": "none" })).error_fields().0, 404);
}

fn tool(name: &str) -> Value {
    let schema = json!({
        "type": "object", "properties": { "place": { "enum": ["sea", "land"] } },
        "required": ["place"], "additionalProperties": false,
    });
    json!({ "type": "function", "function": { "name": name, "description": "Looks.", "parameters": schema } })
}

/// A template whose calls begin with a marker.
const HERMES: &str = "{% if tools %}<tool_call>{% endif %}{% for message in messages %}{{ message['role'] + ': ' + \
    message['content'] + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}";

#[test]
fn tools_are_called_and_their_results_are_taken() {
    let server = Server::start_with(&TinyModel { template: Some(HERMES), markers: &[("<tool_call>", 4)], ..model() });
    let tools = json!([tool("look"), tool("see")]);
    // Without a required call, a random model makes one by chance.
    let random = |seed: u32, stream: bool| {
        let options = json!({ "seed": seed, "temperature": 2, "top_k": 0, "top_p": 1, "min_p": 0, "num_predict": 400 });
        send(&server, json!({ "tools": tools, "options": options, "stream": stream }))
    };
    let found = (0..40).find_map(|seed| {
        let whole = random(seed, false).ok();
        whole["message"]["tool_calls"].is_array().then_some((seed, whole))
    });
    let (seed, whole) = found.expect("a call");
    let call = &whole["message"]["tool_calls"][0];
    assert_eq!((fields(call), fields(&call["function"])), (vec!["function", "id"], vec!["arguments", "index", "name"]));
    assert!(["sea", "land"].contains(&call["function"]["arguments"]["place"].as_str().unwrap()), "{whole}");
    let (text, calls, last) = assembled(&random(seed, true));
    assert_eq!((json!(text), &last["done_reason"]), (whole["message"]["content"].clone(), &whole["done_reason"]));
    let functions = |calls: &[Value]| calls.iter().map(|call| call["function"].clone()).collect::<Vec<_>>();
    assert_eq!(functions(&calls), functions(whole["message"]["tool_calls"].as_array().unwrap()));
    assert_eq!(last["message"], json!({ "role": "assistant", "content": "" }));

    let history = json!([
        { "role": "user", "content": "the sea" },
        { "role": "assistant", "content": "", "tool_calls": [
            { "function": { "name": "look", "arguments": { "place": "sea" } } },
            { "function": { "name": "see", "arguments": { "place": "land" } } },
        ] },
        { "role": "tool", "tool_name": "see", "content": "sand" },
        { "role": "tool", "content": "water" },
    ]);
    let call = |id: &str, name: &str, place: &str| {
        let arguments = json!({ "place": place }).to_string();
        json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
    };
    let same = json!([
        { "role": "user", "content": "the sea" },
        { "role": "assistant", "content": "", "tool_calls": [call("call00000", "look", "sea"), call("call00001", "see", "land")] },
        { "role": "tool", "tool_call_id": "call00001", "name": "see", "content": "sand" },
        { "role": "tool", "tool_call_id": "call00000", "content": "water" },
    ]);
    let completion = json!({ "model": MODEL, "max_tokens": 24, "temperature": 0, "messages": same, "tools": tools });
    let completion = server.post("/v1/chat/completions", &completion).ok();
    let whole = send(&server, json!({ "messages": history, "tools": tools })).ok();
    assert_eq!(whole["prompt_eval_count"], completion["usage"]["prompt_tokens"]);
    assert_eq!(whole["eval_count"], completion["usage"]["completion_tokens"]);
}

#[test]
fn formats_are_enforced() {
    let server = Server::start_with(&model());
    let schema = json!({ "type": "object", "required": ["a"], "additionalProperties": false, "properties": { "a": { "enum": [1, 2] } } });
    let values = [json!({ "a": 1 }), json!({ "a": 2 })];
    for stream in [false, true] {
        let reply = send(&server, json!({ "format": schema, "stream": stream }));
        let text =
            if stream { assembled(&reply).0 } else { reply.ok()["message"]["content"].as_str().unwrap().to_owned() };
        assert!(values.contains(&serde_json::from_str(&text).unwrap()), "{text}");
    }
    let text = generate(&server, json!({ "format": schema })).ok()["response"].as_str().unwrap().to_owned();
    assert!(values.contains(&serde_json::from_str(&text).unwrap()), "{text}");
    let object = send(&server, json!({ "format": "json", "options": { "temperature": 0, "num_predict": 8 } })).ok();
    assert!(object["message"]["content"].as_str().unwrap().trim_start().starts_with('{'), "{object}");
    // A part of a schema that cannot be enforced is named.
    let schema = json!({ "type": "object", "properties": { "x": { "not": { "type": "string" } } } });
    let reply = send(&server, json!({ "format": schema }));
    assert!(reply.header("x-outpost-unenforced").unwrap().starts_with("format.properties.x"), "{:?}", reply.headers);
}

#[test]
fn no_line_has_a_character_that_ends_it() {
    let server = Server::start_with(&model());
    let text = "a\u{2028}b\u{2029}c\u{85}d";
    let reply = send(&server, json!({ "format": { "const": text }, "stream": true, "options": { "num_predict": 99 } }));
    assert!(!reply.text.contains(['\u{2028}', '\u{2029}', '\u{85}']), "{}", reply.text);
    assert_eq!(serde_json::from_str::<Value>(&assembled(&reply).0).unwrap(), text);
}

#[test]
fn options_are_honoured_or_named() {
    let server = Server::start_with(&model());
    // Numbers of parameters may have any digits.
    let body = chat(json!({ "options": { "temperature": "T", "num_predict": 1 } }))
        .to_string()
        .replace("\"T\"", "0.70000000000000000001");
    let headers = [("content-type", "application/json")];
    server.raw(Method::POST, "/api/chat", Some(&server.admin), &headers, Some(body.into_bytes())).ok();
    let text = |response: &Value| response["message"]["content"].as_str().unwrap().to_owned();
    let whole = text(&send(&server, json!({})).ok());
    let stop = whole.chars().nth(1).unwrap().to_string();
    let stopped = send(&server, json!({ "options": { "temperature": 0, "num_predict": 24, "stop": [stop] } })).ok();
    assert_eq!(
        (text(&stopped), &stopped["done_reason"]),
        (whole.split(&stop).next().unwrap().to_owned(), &json!("stop"))
    );
    let one = send(&server, json!({ "options": { "temperature": 0, "num_predict": 1.0 } })).ok();
    assert_eq!((&one["eval_count"], &one["done_reason"]), (&json!(1), &json!("length")));
    let seeded = |seed: u32| text(&send(&server, json!({ "options": { "seed": seed, "num_predict": 24 } })).ok());
    assert!(seeded(7) == seeded(7) && (8..20).any(|seed| seeded(seed) != seeded(7)));
    let options = json!({ "num_ctx": 4096, "num_gpu": 1, "mirostat": 2, "num_predict": 1 });
    let reply = send(&server, json!({ "options": options, "keep_alive": "5m", "think": false, "shift": true, "x": 1 }));
    reply.ok();
    let ignored = reply.header("x-outpost-ignored").unwrap();
    assert_eq!(ignored, "shift, x, options.num_gpu, options.mirostat, options.num_ctx");
    let within = send(&server, json!({ "options": { "num_ctx": 2048, "num_predict": 1 } }));
    assert_eq!((within.status, within.header("x-outpost-ignored")), (200, None));
}

#[test]
fn log_probabilities_are_those_of_chat_completions() {
    let server = Server::start_with(&model());
    let completion = json!({
        "model": MODEL, "max_tokens": 24, "temperature": 0, "logprobs": true, "top_logprobs": 2,
        "messages": [{ "role": "user", "content": "the sea" }],
    });
    let expected = server.post("/v1/chat/completions", &completion).ok()["choices"][0]["logprobs"]["content"].clone();
    let whole = send(&server, json!({ "logprobs": true, "top_logprobs": 2 })).ok();
    assert_eq!(whole["logprobs"], expected);
    let stream = lines(&send(&server, json!({ "logprobs": true, "top_logprobs": 2, "stream": true })));
    let streamed: Vec<Value> =
        stream.iter().filter_map(|line| line["logprobs"].as_array()).flatten().cloned().collect();
    assert_eq!(json!(streamed), expected);
    assert_eq!(send(&server, json!({ "top_logprobs": 2 })).ok().get("logprobs"), None);
}

#[test]
fn models_are_listed_and_described() {
    let server = Server::start_configured(&model(), |config| {
        [EMBEDDER, RERANKER].into_iter().for_each(|name| add_encoder(&config.paths.models, name));
    });
    let version = server.get("/api/version").ok();
    assert_eq!(fields(&version), ["version"]);
    assert!(version["version"].as_str().unwrap().split('.').all(|part| part.parse::<u32>().is_ok()));
    let tags = server.get("/api/tags").ok();
    let names: Vec<_> = tags["models"].as_array().unwrap().iter().map(|model| model["name"].clone()).collect();
    assert_eq!(json!(names), json!([format!("{EMBEDDER}:latest"), TAGGED]), "this API has no reranking");
    for model in tags["models"].as_array().unwrap() {
        assert_eq!(fields(model), ["capabilities", "details", "digest", "model", "modified_at", "name", "size"]);
        let details = ["families", "family", "format", "parameter_size", "parent_model", "quantization_level"];
        assert_eq!(fields(&model["details"]), details);
        let digest = model["digest"].as_str().unwrap();
        assert!(digest.len() == 64 && digest.chars().all(|digit| digit.is_ascii_hexdigit()));
        assert!(model["size"].as_u64().unwrap() > 0 && model["modified_at"].as_str().unwrap().ends_with('Z'));
    }
    assert_eq!(tags["models"][0]["capabilities"], json!(["embedding"]));
    assert_eq!(tags["models"][1]["capabilities"], json!(["completion", "tools"]));
    let show = json!({ "model": format!("{MODEL}:latest"), "verbose": true });
    let show = server.post("/api/show", &show);
    assert_eq!(show.header("x-outpost-ignored"), Some("verbose"));
    let show = show.ok();
    let expected =
        ["capabilities", "details", "license", "model_info", "modelfile", "modified_at", "parameters", "template"];
    assert_eq!(fields(&show), expected);
    assert!(show["template"].as_str().unwrap().contains("<|im_start|>"));
    assert_eq!(show["details"], tags["models"][1]["details"]);
    let info = &show["model_info"];
    assert_eq!((&info["general.architecture"], &info["llama.context_length"]), (&json!("llama"), &json!(2048)));
    assert_eq!((&info["llama.embedding_length"], &info["general.basename"]), (&json!(32), &json!(MODEL)));
    assert!(info["general.parameter_count"].as_u64().unwrap() > 1000);
    assert_eq!(server.post("/api/show", &json!({ "name": EMBEDDER })).ok()["capabilities"], json!(["embedding"]));
    let infill = Server::start_with(&TinyModel {
        markers: &[("<|fim_prefix|>", 3), ("<|fim_suffix|>", 3), ("<|fim_middle|>", 3)],
        ..model()
    });
    let capabilities = infill.post("/api/show", &json!({ "model": MODEL })).ok()["capabilities"].clone();
    assert_eq!(capabilities, json!(["completion", "tools", "insert"]));
}

#[test]
fn models_are_not_installed_over_this_api() {
    let server = Server::start_with(&model());
    let success = json!({ "status": "success" });
    assert_eq!(server.post("/api/pull", &json!({ "model": MODEL, "stream": false })).ok(), success);
    assert_eq!(lines(&server.post("/api/pull", &json!({ "name": MODEL }))), [success]);
    let missing = server.post("/api/pull", &json!({ "model": "smollm2-135m-instruct" }));
    assert_eq!(missing.error_fields().0, 403);
    assert!(missing.text.contains("outpost models pull"), "{}", missing.text);
    let unknown = server.post("/api/pull", &json!({ "model": "llama3" }));
    assert_eq!(unknown.error_fields().0, 403);
    for path in ["push", "blobs/sha256:0"] {
        let refused = server.post(&format!("/api/{path}"), &json!({ "model": MODEL }));
        assert_eq!(refused.error_fields().0, 400);
        assert!(refused.text.contains("outpost models pull"), "{}", refused.text);
    }
    assert_eq!(server.get("/api/blobs/sha256:0").error_fields().0, 404);
    let delete = server.call(Method::DELETE, "/api/delete", Some(&server.admin), Some(&json!({ "model": MODEL })));
    assert_eq!(delete.error_fields().0, 409);
}

#[test]
fn embeddings_are_those_of_the_other_api() {
    let server = Server::with_encoders();
    let texts = json!(["the sea", "the land"]);
    let expected = server.post("/openai/v1/embeddings", &json!({ "model": EMBEDDER, "input": texts })).ok();
    let vector = |index: usize| expected["data"][index]["embedding"].clone();
    let options = json!({ "num_ctx": 512, "num_thread": 4 });
    let body = server.post("/api/embed", &json!({ "model": EMBEDDER, "input": texts, "options": options }));
    assert_eq!(body.header("x-outpost-ignored"), Some("options.num_thread"));
    let body = body.ok();
    let all = ["embeddings", "load_duration", "model", "prompt_eval_count", "total_duration"];
    assert_eq!((fields(&body), &body["model"]), (all.to_vec(), &json!(EMBEDDER)));
    assert_eq!(body["embeddings"], json!([vector(0), vector(1)]));
    assert_eq!(body["prompt_eval_count"], expected["usage"]["prompt_tokens"]);
    assert!(body["load_duration"].as_u64().unwrap() <= body["total_duration"].as_u64().unwrap());
    let one = server.post("/api/embed", &json!({ "model": format!("{EMBEDDER}:latest"), "input": "the sea" })).ok();
    assert_eq!(one["embeddings"], json!([vector(0)]));
    let old = server.post("/api/embeddings", &json!({ "model": EMBEDDER, "prompt": "the sea" })).ok();
    assert_eq!(old, json!({ "embedding": vector(0) }));
    for nothing in [json!({}), json!({ "input": "" }), json!({ "input": [] })] {
        let body = server.post("/api/embed", &merged(json!({ "model": EMBEDDER }), &nothing)).ok();
        assert_eq!(body["embeddings"], json!([]));
    }
    // `num_ctx` is what is read of a text.
    let cut = json!({ "model": EMBEDDER, "input": "the sea the land", "options": { "num_ctx": 4 } });
    let reply = server.post("/api/embed", &cut).ok();
    assert_eq!(reply["prompt_eval_count"], 4);
    let old = json!({ "model": EMBEDDER, "prompt": "the sea the land", "options": { "num_ctx": 4 } });
    assert_eq!(server.post("/api/embeddings", &old).ok()["embedding"], reply["embeddings"][0]);
    let refused = server.post("/api/embed", &merged(cut, &json!({ "truncate": false })));
    assert_eq!(refused.error_fields().0, 400);
    assert!(refused.text.contains("options.num_ctx"), "{}", refused.text);
    // Longer texts are truncated unless the request says otherwise.
    let long = json!({ "model": EMBEDDER, "input": "word ".repeat(2000) });
    server.post("/api/embed", &long).ok();
    assert_eq!(server.post("/api/embed", &merged(long, &json!({ "truncate": false }))).error_fields().0, 400);
    for wrong in [json!({ "input": [1] }), json!({ "input": "a", "dimensions": 7 }), json!({ "input": [""] })] {
        assert_eq!(server.post("/api/embed", &merged(json!({ "model": EMBEDDER }), &wrong)).error_fields().0, 400);
    }
    assert_eq!(server.post("/api/embed", &json!({ "model": MODEL, "input": "a" })).error_fields().0, 400);
}

#[test]
fn errors_have_ollamas_format() {
    let server = Server::start_with(&model());
    let error = |response: &Response| {
        response.json()["error"].as_str().unwrap_or_else(|| panic!("{}", response.text)).to_owned()
    };
    for (more, names) in [
        (json!({ "model": null }), "model"),
        (json!({ "messages": [{ "role": "robot", "content": "x" }] }), "messages[0].role"),
        (json!({ "messages": [{ "role": "user", "content": "x", "images": ["aGk="] }] }), "messages[0].images"),
        (json!({ "messages": [{ "role": "user" }, { "role": "assistant", "content": " " }] }), "To be continued"),
        (json!({ "options": { "temperature": 3 } }), "temperature"),
        (json!({ "options": { "num_predict": "many" } }), "options.num_predict"),
        (json!({ "format": "xml" }), "format"),
        (json!({ "think": "deeply" }), "think"),
        (json!({ "top_logprobs": 21 }), "top_logprobs"),
        (json!({ "tools": [{ "type": "function", "function": { "name": "a b" } }] }), "tools[0].function.name"),
        (json!({ "format": { "type": "strin" } }), "format"),
        (json!({ "stream": "yes" }), "stream"),
    ] {
        let refused = send(&server, more.clone());
        assert_eq!(refused.error_fields().0, 400, "{more}");
        assert!(error(&refused).contains(names), "{more}: {}", refused.text);
    }
    for (more, names) in [
        (json!({ "template": "{{ .Prompt }}" }), "template"),
        (json!({ "context": [1, 999_999] }), "context[1]"),
        (json!({ "context": [1], "suffix": "x" }), "context"),
        (json!({ "images": ["aGk="] }), "images"),
        (json!({ "raw": true, "system": "s" }), "system"),
        (json!({ "raw": true, "format": "json" }), "format"),
        (json!({ "suffix": "x" }), "suffix"),
    ] {
        let refused = generate(&server, more.clone());
        assert_eq!(refused.error_fields().0, 400, "{more}");
        assert!(error(&refused).contains(names), "{more}: {}", refused.text);
    }
    generate(&server, json!({ "template": "", "context": [], "images": [], "format": "", "suffix": "" })).ok();
    assert_eq!(send(&server, json!({ "model": "none" })).error_fields().0, 404);
    let unsigned = server.raw(Method::POST, "/api/chat", None, &[], Some(chat(json!({})).to_string().into_bytes()));
    assert_eq!((unsigned.error_fields().0, unsigned.header("www-authenticate")), (401, Some("Bearer")));
    let foreign = server.call(Method::GET, "/api/tags", Some("opk_wrong"), None);
    assert_eq!(foreign.error_fields().0, 401);
    let other = server.get("/api/chat");
    assert_eq!((other.error_fields().0, other.header("allow")), (405, Some("POST")));
    for path in ["/api/nothing", "/api/", "/api/chat/x"] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
    // The prompt and the context.
    let small = Server::start_with(&TinyModel { context: 128, ..model() });
    let long = json!([{ "role": "user", "content": "word ".repeat(500) }]);
    let refused = send(&small, json!({ "messages": long }));
    assert_eq!(refused.error_fields().0, 400);
    assert!(error(&refused).contains("maximum context length is 128 tokens"), "{}", refused.text);
    let ended = send(&small, json!({ "options": { "num_predict": 5000, "temperature": 0 } })).ok();
    let total = ended["prompt_eval_count"].as_u64().unwrap() + ended["eval_count"].as_u64().unwrap();
    assert!(ended["done_reason"] == "stop" || total == 128, "{ended}");
}

#[test]
fn a_body_is_read_whatever_its_type() {
    let server = Server::start_with(&model());
    let body = chat(json!({})).to_string().into_bytes();
    for headers in
        [&[][..], &[("content-type", "application/x-www-form-urlencoded")], &[("content-type", "text/plain")]]
    {
        server.raw(Method::POST, "/api/chat", Some(&server.admin), headers, Some(body.clone())).ok();
    }
}

#[test]
fn a_failing_stream_ends_with_an_error_line() {
    let server = Server::start_with(&crate::slow_model());
    let mut body = chat(json!({ "stream": true }));
    body["options"] = json!({ "num_predict": -1 });
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| sender.send(server.post("/api/chat", &body)).unwrap());
        server.wait_running();
        server.engine.abort();
        let response = receiver.recv().unwrap();
        let lines = lines(&response);
        let last = lines.last().unwrap();
        assert_eq!(fields(last), ["error"]);
        assert!(last["error"].as_str().unwrap().contains("shutting down"), "{last}");
        assert!(lines[..lines.len() - 1].iter().all(|line| line["done"] == false));
    });
}

#[test]
fn usage_is_recorded_under_the_endpoint() {
    let server = Server::start_with(&model());
    let (project, _, key) = server.tenant("ollama");
    let call = |body: Value| server.call(Method::POST, "/api/chat", Some(&key), Some(&body));
    let whole = call(chat(json!({}))).ok();
    call(chat(json!({ "stream": true })));
    let report = server.get(&format!("/v1/projects/{project}/usage?group_by=endpoint")).ok();
    let rows = report["groups"].as_array().unwrap();
    let row = rows.iter().find(|row| row["endpoint"] == "POST /api/chat").unwrap_or_else(|| panic!("{report}"));
    assert_eq!(row["requests"], 2);
    assert_eq!(row["tokens"]["output"], 2 * whole["eval_count"].as_u64().unwrap());
    // The limits of the project apply.
    let limits = json!({ "requests_per_minute": 1, "burst_limit": 1 });
    server.patch(&format!("/v1/projects/{project}/rate-limits"), &limits).ok();
    let refused = (0..3).map(|_| call(chat(json!({})))).find(|response| response.status == 429).unwrap();
    assert_eq!(refused.error_fields().0, 429);
    assert!(refused.headers.contains_key("retry-after"));
}

#[test]
fn a_key_sees_and_uses_only_its_models() {
    let server = Server::with_encoders();
    let (project, ..) = server.tenant("narrow");
    let new = json!({ "name": "k", "project_id": project, "models": [EMBEDDER], "scopes": ["inference"] });
    let key = server.post("/v1/api-keys", &new).ok()["secret"].as_str().unwrap().to_owned();
    let tags = server.call(Method::GET, "/api/tags", Some(&key), None).ok();
    assert_eq!(tags["models"].as_array().unwrap().len(), 1);
    let post = |path: &str, body: Value| server.call(Method::POST, path, Some(&key), Some(&body)).status;
    assert_eq!(post("/api/show", json!({ "model": EMBEDDER })), 200);
    assert_eq!(post("/api/embed", json!({ "model": EMBEDDER, "input": "a" })), 200);
    assert_eq!(post("/api/show", json!({ "model": MODEL })), 403);
    assert_eq!(post("/api/pull", json!({ "model": MODEL })), 403);
    assert_eq!(post("/api/chat", chat(json!({}))), 403);
    assert_eq!(post("/api/chat", json!({ "model": MODEL })), 403, "loading needs the permission, too");
    assert_eq!(post("/api/embed", json!({ "model": RERANKER })), 403);
}

#[test]
fn pages_of_configured_origins_may_call_it() {
    let server = Server::start_configured(&model(), |config| {
        config.cors_origins = vec!["https://app.example.org".parse().unwrap()];
    });
    let page: Headers<'_> = &[("origin", "https://app.example.org"), ("access-control-request-method", "POST")];
    let preflight = server.raw(Method::OPTIONS, "/api/chat", None, page, None);
    assert_eq!(
        (preflight.status, preflight.header("access-control-allow-origin")),
        (204, Some("https://app.example.org"))
    );
}
