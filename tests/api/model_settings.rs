//! The settings of models: aliases on every API, default parameters, pinned models, and models that are unloaded when they
//! are idle.

use std::fs;
use std::time::Duration;

use outpost::clock_rng::ClockRng;
use reqwest::Method;
use serde_json::{Value, json};

use crate::batches::{upload_batch, wait_for_batch};
use crate::server::{CLASSIFIER, EMBEDDER, IMAGE_MODEL, MODEL, RERANKER, Response, Server};
use crate::tiny_model::TinyModel;
use crate::upload::{Part, file};
use crate::wait::until;
use crate::{fixtures, images, tiny_kokoro, tiny_whisper};

const KOKORO: &str = "tiny-kokoro";
const WHISPER: &str = "tiny-whisper";

/// Names that clients write, with the models that they stand for.
const ALIASES: [(&str, &str); 9] = [
    ("gpt-3.5-turbo", MODEL),
    ("llama3.2:1b", MODEL),
    ("Qwen/Qwen2.5", MODEL),
    ("text-embedding-3-small", EMBEDDER),
    ("rerank-english-v3.0", RERANKER),
    ("omni-moderation-latest", CLASSIFIER),
    ("dall-e-3", IMAGE_MODEL),
    ("tts-1", KOKORO),
    ("whisper-1", WHISPER),
];

fn start(settings: &str) -> Server {
    let model = TinyModel { context: 2048, ..TinyModel::default() };
    Server::start_configured(&model, |config| fs::write(config.paths.models.join("models.toml"), settings).unwrap())
}

/// A server with a model of each kind, and aliases of all.
fn start_with_aliases() -> Server {
    let mut settings = "[aliases]\nmissing = 'not-here'\n".to_owned();
    for (alias, target) in ALIASES {
        settings += &format!("\"{alias}\" = \"{target}\"\n");
    }
    Server::start_configured(&TinyModel { context: 2048, ..TinyModel::default() }, |config| {
        let models = &config.paths.models;
        [EMBEDDER, RERANKER].into_iter().for_each(|name| fixtures::add_fixture("encoders", models, name));
        fixtures::add_fixture("classifiers", models, CLASSIFIER);
        fixtures::add_fixture("pipelines", models, IMAGE_MODEL);
        tiny_kokoro::write(models, KOKORO);
        tiny_whisper::write(models, WHISPER, true);
        config.sandbox = Some(env!("CARGO_BIN_EXE_outpost").into());
        fs::write(models.join("models.toml"), settings).unwrap();
    })
}

fn write(server: &Server, settings: &str) {
    fs::write(server.folder.path().join("models/models.toml"), settings).unwrap();
}

fn messages() -> Value {
    json!([{ "role": "user", "content": "the sea" }])
}

fn chat(server: &Server, more: Value) -> Response {
    let mut body = json!({ "model": MODEL, "messages": messages() });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.post("/v1/chat/completions", &body)
}

/// A request to an endpoint, with the model's name, and the field of the response that has the model's ID.
fn call(server: &Server, path: &str, model: &str, key: &str) -> Response {
    let body = match path {
        "/v1/chat/completions" | "/openai/v1/chat/completions" => json!({ "messages": messages(), "max_tokens": 3 }),
        "/v1/messages" => json!({ "messages": messages(), "max_tokens": 3 }),
        "/v1/messages/count_tokens" => json!({ "messages": messages() }),
        "/v1/completions" => json!({ "prompt": "the", "max_tokens": 3 }),
        "/v1/responses" => json!({ "input": "the", "max_output_tokens": 3 }),
        "/v1/tokenize" => json!({ "prompt": "the" }),
        "/v1/detokenize" => json!({ "tokens": [5] }),
        "/v1/embeddings" => json!({ "input": "the" }),
        "/v1/moderations" => json!({ "input": "the" }),
        "/v1/rerank" => json!({ "query": "the", "documents": ["sea"] }),
        "/v1/images/generations" => json!({ "prompt": "a cat", "steps": 1, "size": "64x64" }),
        "/v1/audio/speech" => json!({ "input": "Basha", "voice": "af_heart", "response_format": "pcm" }),
        "/api/chat" => json!({ "messages": messages(), "options": { "num_predict": 3 }, "stream": false }),
        "/api/generate" => json!({ "prompt": "the", "options": { "num_predict": 3 }, "stream": false }),
        "/api/embed" => json!({ "input": "the" }),
        "/api/show" | "/api/pull" => json!({ "stream": false }),
        "/v1/audio/transcriptions" => {
            let wave = fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/audio/mono-8k.wav")).unwrap();
            let parts: [Part<'_>; 2] = [("model", None, model.as_bytes()), ("file", Some("a.wav"), &wave)];
            return crate::audio::send(server, path, key, &parts);
        }
        "/v1/images/edits" => {
            let png = fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pictogram.png")).unwrap();
            let parts: [Part<'_>; 4] = [
                ("model", None, model.as_bytes()),
                ("prompt", None, b"a cat"),
                ("size", None, b"64x64"),
                ("image", Some("a.png"), &png),
            ];
            return images::send(server, "edits", key, &parts);
        }
        other => panic!("{other}"),
    };
    let mut body = body;
    body["model"] = json!(model);
    server.call(Method::POST, path, Some(key), Some(&body))
}

const CHAT_PATHS: [&str; 11] = [
    "/v1/chat/completions",
    "/openai/v1/chat/completions",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/completions",
    "/v1/responses",
    "/v1/tokenize",
    "/v1/detokenize",
    "/api/chat",
    "/api/generate",
    "/api/show",
];
const OTHER_PATHS: [(&str, &str); 9] = [
    ("/v1/embeddings", "text-embedding-3-small"),
    ("/api/embed", "text-embedding-3-small"),
    ("/api/pull", "text-embedding-3-small"),
    ("/v1/rerank", "rerank-english-v3.0"),
    ("/v1/moderations", "omni-moderation-latest"),
    ("/v1/images/generations", "dall-e-3"),
    ("/v1/images/edits", "dall-e-3"),
    ("/v1/audio/speech", "tts-1"),
    ("/v1/audio/transcriptions", "whisper-1"),
];

fn target(alias: &str) -> &'static str {
    ALIASES.iter().find(|(name, _)| *name == alias).unwrap().1
}

#[test]
fn every_endpoint_takes_aliases_and_names_and_meters_the_model() {
    let server = start_with_aliases();
    let (project, _, key) = server.tenant("t");
    let chats = ["gpt-3.5-turbo", "llama3.2:1b", "Qwen/Qwen2.5"].map(|alias| CHAT_PATHS.map(|path| (path, alias)));
    for (path, alias) in chats.into_iter().flatten().chain(OTHER_PATHS) {
        let response = call(&server, path, alias, &key);
        assert_eq!(response.status, 200, "{path} {alias}: {}", response.text);
        let Ok(body) = serde_json::from_str::<Value>(&response.text) else { continue };
        // Clients of Ollama expect the name that they have sent.
        let expected = if path.starts_with("/api/") { alias } else { target(alias) };
        assert!(body.get("model").is_none_or(|model| model == expected), "{path} {alias}: {body}");
        if path == "/api/show" {
            assert_eq!(body["modelfile"], format!("FROM {MODEL}\n"));
        }
    }
    let usage = server.get(&format!("/v1/projects/{project}/usage?group_by=model")).ok();
    let groups = usage["groups"].as_array().unwrap();
    let metered: Vec<&str> = groups.iter().filter_map(|group| group["model"].as_str()).collect();
    assert_eq!(metered.len(), 7, "{usage}");
    assert!(
        [MODEL, EMBEDDER, RERANKER, CLASSIFIER, IMAGE_MODEL, KOKORO, WHISPER].iter().all(|id| metered.contains(id)),
        "{usage}"
    );
    // Ollama's clients may add the tag that every name has, or load a model without a prompt.
    for model in ["gpt-3.5-turbo:latest", "gpt-3.5-turbo"] {
        assert_eq!(server.post("/api/generate", &json!({ "model": model })).ok()["done_reason"], "load");
    }
    assert_eq!(server.post("/api/embed", &json!({ "model": "text-embedding-3-small" })).status, 200);
    let voices = server.get("/v1/audio/voices?model=tts-1").ok();
    assert!(voices["data"].as_array().is_some_and(|voices| !voices.is_empty()), "{voices}");
}

#[test]
fn an_alias_grants_nothing() {
    let server = start_with_aliases();
    let (project, ..) = server.tenant("t");
    let key = |models: &[&str]| {
        let new = json!({ "name": "k", "project_id": project, "models": models });
        server.post("/v1/api-keys", &new).ok()["secret"].as_str().unwrap().to_owned()
    };
    // The name is not that of a model, so it allows none.
    let (allowed, other, named) = (key(&[MODEL]), key(&["else"]), key(&["gpt-3.5-turbo"]));
    for path in CHAT_PATHS {
        assert_eq!(call(&server, path, "gpt-3.5-turbo", &allowed).status, 200, "{path}");
        for key in [&other, &named] {
            assert_eq!(call(&server, path, "gpt-3.5-turbo", key).status, 403, "{path}");
        }
    }
    for (path, alias) in OTHER_PATHS {
        assert_eq!(call(&server, path, alias, &other).status, 403, "{path}");
    }
    let list = |key: &str| {
        let list = server.call(Method::GET, "/openai/v1/models", Some(key), None).ok();
        list["data"].as_array().unwrap().iter().map(|model| model["id"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(list(&allowed), ["Qwen/Qwen2.5", "gpt-3.5-turbo", "llama3.2:1b", MODEL]);
    assert!(list(&other).is_empty() && list(&named).is_empty());
}

#[test]
fn an_alias_of_a_model_of_another_project_does_not_show_its_id() {
    let server = start("[aliases]\nlent = 'ft:tiny:secret::1'");
    let (project, _, key) = server.tenant("t");
    let new = json!({ "name": "k", "project_id": project, "models": [MODEL] });
    let restricted = server.post("/v1/api-keys", &new).ok()["secret"].as_str().unwrap().to_owned();
    // A pull of a model that is not installed is for admins.
    let others = OTHER_PATHS.map(|(path, _)| path).into_iter().filter(|path| *path != "/api/pull");
    for (key, status) in [(&key, 404), (&restricted, 403)] {
        for path in CHAT_PATHS.into_iter().chain(others.clone()) {
            let response = call(&server, path, "lent", key);
            // A description is refused only if there is something to describe.
            let status = if path == "/api/show" { 404 } else { status };
            assert_eq!(response.status, status, "{path}: {}", response.text);
            assert!(response.text.contains("'lent'") && !response.text.contains("secret"), "{path}: {}", response.text);
        }
        for path in ["/v1/models/lent", "/v1/models", "/api/tags", "/v1/audio/voices?model=lent"] {
            let response = server.call(Method::GET, path, Some(key), None);
            assert!(!response.text.contains("secret"), "{path}: {}", response.text);
        }
    }
}

#[test]
fn the_list_says_what_an_alias_stands_for() {
    let server = start_with_aliases();
    let list = server.get("/openai/v1/models").ok();
    let list = list["data"].as_array().unwrap();
    assert_eq!(list.len(), ALIASES.len() + 7, "an alias without a model is left out");
    let ids: Vec<&str> = list.iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert!(ids.is_sorted());
    for (alias, target) in ALIASES {
        let listed = list.iter().find(|model| model["id"] == alias).unwrap();
        let model = list.iter().find(|model| model["id"] == target).unwrap();
        assert_eq!((&listed["alias_of"], model.get("alias_of")), (&json!(target), None));
        assert_eq!(listed["capabilities"], model["capabilities"]);
        let read = server.get(&format!("/openai/v1/models/{}", alias.replace('/', "%2F"))).ok();
        assert_eq!((&read["id"], &read["alias_of"]), (&json!(alias), &json!(target)));
    }
    let tags = server.get("/api/tags").ok();
    assert!(tags["models"].as_array().unwrap().iter().any(|model| model["name"] == "llama3.2:1b"), "{tags}");
    server.post("/v1/models/gpt-3.5-turbo/load", &json!({})).ok();
    assert_eq!(server.get(&format!("/v1/models/{MODEL}")).ok()["loaded"], true);
    let running = server.get("/api/ps").ok();
    assert_eq!(running["models"].as_array().unwrap().len(), 1, "a loaded model is listed once: {running}");
    assert_eq!(server.post("/v1/models/gpt-3.5-turbo/unload", &json!({})).ok()["loaded"], false);
    let refused = server.delete("/v1/models/gpt-3.5-turbo");
    assert_eq!(refused.error_fields().0, 409);
    assert!(refused.text.contains("is an alias of the model 'tiny'"), "{}", refused.text);
}

#[test]
fn an_alias_of_a_model_that_is_not_installed_names_both() {
    let server = start_with_aliases();
    for path in ["/v1/chat/completions", "/v1/embeddings", "/v1/tokenize", "/v1/images/generations"] {
        let response = call(&server, path, "missing", &server.admin);
        assert_eq!(response.error_fields(), (404, "model_not_found".to_owned(), Some("model".to_owned())), "{path}");
        assert!(response.text.contains("'not-here'") && response.text.contains("'missing'"), "{}", response.text);
    }
    assert_eq!(server.get("/v1/models/missing").error_fields().0, 404);
}

#[test]
fn agents_batches_background_responses_and_jobs_take_aliases() {
    let server = start("[aliases]\ngpt-4o-mini = 'tiny'");
    let agent = server.post("/v1/agents", &json!({ "model": "gpt-4o-mini" })).ok()["id"].clone();
    let answer = chat(&server, json!({ "model": null, "agent_id": agent, "max_tokens": 2 })).ok();
    assert_eq!(answer["model"], MODEL);

    let body = json!({ "model": "gpt-4o-mini", "prompt": "the", "max_tokens": 2 });
    let line = json!({ "custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body }).to_string();
    let input = upload_batch(&server, &server.admin, &line).ok()["id"].clone();
    let new = json!({ "input_file_id": input, "endpoint": "/v1/completions", "completion_window": "24h" });
    let batch = server.post("/openai/v1/batches", &new).ok()["id"].as_str().unwrap().to_owned();
    let done = wait_for_batch(&server, &batch, "completed");
    assert_eq!(done["request_counts"]["failed"], 0);

    let new = json!({ "model": "gpt-4o-mini", "input": "the", "max_output_tokens": 2, "background": true });
    let queued = server.post("/v1/responses", &new).ok();
    assert_eq!(queued["model"], MODEL);
    let read = || server.get(&format!("/v1/responses/{}", queued["id"].as_str().unwrap())).ok();
    until(|| "the response ends", || read()["status"] != "queued" && read()["status"] != "in_progress");
    assert_eq!(read()["model"], MODEL, "{}", read());

    let new = json!({ "model": "gpt-4o-mini", "training_file": file(&server, &server.admin) });
    assert_eq!(server.post("/v1/fine_tuning/jobs", &new).ok()["model"], MODEL);
}

/// The text of a response, and the tokens of its output.
fn output(path: &str, body: &Value) -> (String, u64) {
    let (text, count) = match path {
        "/v1/chat/completions" => (&body["choices"][0]["message"]["content"], &body["usage"]["completion_tokens"]),
        "/v1/completions" => (&body["choices"][0]["text"], &body["usage"]["completion_tokens"]),
        "/v1/responses" => (&body["output"][0]["content"][0]["text"], &body["usage"]["output_tokens"]),
        "/v1/messages" => (&body["content"][0]["text"], &body["usage"]["output_tokens"]),
        "/api/chat" => (&body["message"]["content"], &body["eval_count"]),
        _ => (&body["response"], &body["eval_count"]),
    };
    (text.as_str().unwrap_or_default().to_owned(), count.as_u64().unwrap())
}

#[test]
fn defaults_apply_to_what_a_request_leaves_open() {
    let settings =
        "[models.tiny.defaults]\ntemperature = 1.5\ntop_k = 0\ntop_p = 1.0\nmin_p = 0.0\nseed = 11\nmax_tokens = 9";
    let server = start(settings);
    let plain = |path: &str, more: Value| {
        let mut body = match path {
            "/v1/completions" | "/api/generate" => json!({ "prompt": "the sea" }),
            "/v1/responses" => json!({ "input": "the sea" }),
            _ => json!({ "messages": messages() }),
        };
        body["model"] = json!(MODEL);
        if path.starts_with("/api/") {
            body["stream"] = json!(false);
        }
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let response = server.post(path, &body).ok();
        output(path, &response)
    };
    for (path, limit) in [
        ("/v1/chat/completions", "max_tokens"),
        ("/v1/completions", "max_tokens"),
        ("/v1/responses", "max_output_tokens"),
        ("/api/chat", "num_predict"),
        ("/api/generate", "num_predict"),
    ] {
        let options = |fields: Value| if path.starts_with("/api/") { json!({ "options": fields }) } else { fields };
        let explicit = |seed: u64, temperature: f64| {
            let mut fields = json!({
                "temperature": temperature, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": seed,
            });
            fields[limit] = json!(9);
            plain(path, options(fields))
        };
        let default = plain(path, options(json!({})));
        assert_eq!(default, explicit(11, 1.5), "{path}");
        assert_ne!(default.0, explicit(12, 1.5).0, "{path}: the seed matters");
        assert_ne!(default.0, explicit(11, 0.0).0, "{path}: the temperature matters");
        assert!(default.1 <= 9, "{path}");
        // The request's parameters take precedence.
        let own = plain(path, options(json!({ "seed": 12 })));
        assert_eq!(own, explicit(12, 1.5), "{path}");
        let mut short = json!({});
        short[limit] = json!(2);
        assert!(plain(path, options(short)).1 <= 2, "{path}");
    }
    let of_messages = |more: Value| plain("/v1/messages", more);
    assert_eq!(of_messages(json!({ "max_tokens": 9 })).0, plain("/v1/chat/completions", json!({})).0);
    let echoed = server.post("/v1/responses", &json!({ "model": MODEL, "input": "the sea" })).ok();
    assert_eq!((&echoed["temperature"], &echoed["top_p"]), (&json!(1.5), &json!(1.0)));
    let shown = server.post("/api/show", &json!({ "model": MODEL })).ok();
    let parameters = shown["parameters"].as_str().unwrap();
    let lines: Vec<Vec<&str>> = parameters.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(lines.contains(&vec!["temperature", "1.5"]) && lines.contains(&vec!["num_predict", "9"]), "{parameters}");
}

#[test]
fn default_stop_strings_apply_unless_the_request_has_its_own() {
    let server = start("");
    let greedy = |more: Value| {
        let mut body = json!({ "temperature": 0, "max_tokens": 24 });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        chat(&server, body).ok()
    };
    let text = greedy(json!({}))["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    let middle = text.char_indices().nth(text.chars().count() / 2).unwrap().0;
    let stop: String = text[middle..].chars().take(2).collect();
    write(&server, &format!("[models.tiny.defaults]\nstop = {}", json!([stop])));
    let content = |body: &Value| body["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
    until(|| "the settings are read", || content(&greedy(json!({}))) != text);
    assert_eq!(content(&greedy(json!({}))), text.split(&stop).next().unwrap());
    assert_eq!(content(&greedy(json!({ "stop": [] }))), text, "an empty list is explicit");
    let body = json!({ "model": MODEL, "messages": messages(), "max_tokens": 24, "temperature": 0 });
    let message = server.post("/v1/messages", &body).ok();
    assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!("stop_sequence"), &json!(stop)));
}

#[test]
fn changed_settings_apply_within_a_second_and_broken_ones_never() {
    let server = start("[aliases]\na = 'tiny'");
    let status = |model: &str| chat(&server, json!({ "model": model, "max_tokens": 1 })).status;
    assert_eq!((status("a"), status("b")), (200, 404));
    write(&server, "[aliases]\nb = 'tiny'");
    until(|| "the alias is known", || status("b") == 200);
    assert_eq!(status("a"), 404);
    write(&server, "[aliases\nb = 'tiny'\nc = 'tiny'");
    std::thread::sleep(Duration::from_millis(2500));
    assert_eq!((status("b"), status("c")), (200, 404));
    write(&server, "[aliases]\nc = 'tiny'");
    until(|| "the file is repaired", || status("c") == 200);
    assert_eq!(status("b"), 404);
    fs::remove_file(server.folder.path().join("models/models.toml")).unwrap();
    fs::write(server.folder.path().join("models/tiny/model.toml"), "aliases = ['d']").unwrap();
    until(|| "the other file is read", || status("d") == 200);
    until(|| "the removed file is noticed", || status("c") == 404);
}

#[test]
fn a_server_starts_with_a_broken_file() {
    let server = start("[aliases]\na = 7\n[models.tiny]\npinned = true");
    assert_eq!(chat(&server, json!({ "max_tokens": 1 })).status, 200);
    assert_eq!(chat(&server, json!({ "model": "a" })).error_fields().0, 404);
}

#[test]
fn a_pinned_model_is_loaded_at_the_start_and_stays() {
    let server = start("unload_after = '10m'\n[models.tiny]\npinned = true");
    let read = || server.get("/v1/models/tiny").ok();
    until(|| "the model is loaded", || read()["loaded"] == true);
    assert_eq!(read()["pinned"], true);
    let refused = server.post("/v1/models/tiny/unload", &json!({}));
    assert_eq!(refused.error_fields(), (409, "conflict".to_owned(), Some("model_id".to_owned())));
    assert!(refused.text.contains("pinned"), "{}", refused.text);
    assert_eq!(server.post("/api/generate", &json!({ "model": MODEL, "keep_alive": 0 })).status, 409);
    server.clock.pass(Duration::from_secs(3600));
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(read()["loaded"], true);
    write(&server, "unload_after = '10m'");
    until(|| "it is not pinned any more", || read().get("pinned").is_none());
    server.clock.pass(Duration::from_secs(3600));
    until(|| "it is unloaded", || read()["loaded"] == false);
}

#[test]
fn an_idle_model_is_unloaded_and_loaded_again() {
    let server = start("[models.tiny]\nunload_after = '30m'");
    assert_eq!(chat(&server, json!({ "max_tokens": 1 })).status, 200);
    let loaded = || server.get("/v1/models/tiny").ok()["loaded"] == true;
    let running = server.get("/api/ps").ok();
    let expires = running["models"][0]["expires_at"].as_str().unwrap();
    let left = server.clock.now().until(expires.parse().unwrap());
    assert!(left <= Duration::from_secs(1800) && left > Duration::from_secs(1700), "{left:?}");
    server.clock.pass(Duration::from_secs(1500));
    std::thread::sleep(Duration::from_millis(1500));
    assert!(loaded());
    server.clock.pass(Duration::from_secs(600));
    until(|| "the model is unloaded", || !loaded());
    assert_eq!(chat(&server, json!({ "max_tokens": 1 })).status, 200);
    assert!(loaded());
}
