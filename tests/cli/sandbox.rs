//! The sandbox processes, which run the tokenizers and chat templates of models.

use std::fs;
use std::path::Path;
use std::time::Duration;

use candle_core::{DType, Device, Tensor};
use outpost_testing::huggingface_folder;
use reqwest::Method;
use serde_json::{Map, Value, json};

use crate::process::{MODEL, ServerProcess, folder};
use crate::tiny_model::{self, TinyModel};
use crate::wait::until;

fn chat(serving: &ServerProcess, model: &str) -> (u16, Value) {
    let body = json!({ "model": model, "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 1 });
    let response = serving.request(Method::POST, "/v1/chat/completions", Some(&body));
    (response.status().as_u16(), response.json().unwrap())
}

/// A chat whose prompt does not fit into a pipe. It is longer than the context of 16,384 tokens, which only
/// the sandbox process finds out.
fn long_chat(serving: &ServerProcess) -> (u16, Value) {
    let text = "a long prompt ".repeat(20_000);
    let body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": text }], "max_tokens": 1 });
    let response = serving.request(Method::POST, "/v1/chat/completions", Some(&body));
    (response.status().as_u16(), response.json().unwrap())
}

fn signal(name: &str, id: u32) {
    let status = std::process::Command::new("kill").args([&format!("-{name}"), &id.to_string()]).status().unwrap();
    assert!(status.success());
}

/// A server whose only sandbox process is stopped, and the process.
fn with_stopped_sandbox(folder: &Path, arguments: &[&str]) -> (ServerProcess, u32) {
    let serving = ServerProcess::start(folder, arguments);
    assert_eq!(chat(&serving, MODEL).0, 200);
    let [id] = serving.sandboxes()[..] else { panic!("{:?}", serving.sandboxes()) };
    signal("STOP", id);
    (serving, id)
}

fn is_alive(id: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

#[test]
fn a_sandbox_process_has_no_privileges_and_ends_with_the_server() {
    let folder = folder(&TinyModel::default());
    let mut serving = ServerProcess::start(folder.path(), &[]);
    assert!(serving.sandboxes().is_empty(), "no sandbox before a model is loaded");
    assert_eq!(chat(&serving, MODEL).0, 200);
    let [id] = serving.sandboxes()[..] else { panic!("{:?}", serving.sandboxes()) };
    let limits = fs::read_to_string(format!("/proc/{id}/limits")).unwrap();
    let limit = |name: &str| {
        let line = limits.lines().find(|line| line.starts_with(name)).unwrap();
        line[26..].split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    assert_eq!((limit("Max open files"), limit("Max core file size"), limit("Max file size")), (0, 0, 0));
    assert!((480 << 20..544 << 20).contains(&limit("Max data size")), "{limits}");
    let variables = fs::read_to_string(format!("/proc/{id}/environ")).unwrap();
    assert!(
        variables.split_terminator('\0').all(|one| one.starts_with("MALLOC_")),
        "the sandbox does not inherit the environment"
    );
    let paths = fs::read_dir(format!("/proc/{id}/fd")).unwrap();
    let paths: Vec<_> = paths.map(|entry| fs::read_link(entry.unwrap().path()).unwrap()).collect();
    let harmless =
        |path: &&std::path::PathBuf| path.starts_with("/dev/null") || path.to_string_lossy().starts_with("pipe:");
    assert!(paths.iter().all(|path| harmless(&path)), "{paths:?}");
    // A killed process is replaced.
    signal("KILL", id);
    until(|| "the process has ended", || !is_alive(id));
    assert_eq!(chat(&serving, MODEL).0, 200);
    let [other] = serving.sandboxes()[..] else { panic!("{:?}", serving.sandboxes()) };
    assert_ne!(other, id);
    // SIGKILL: the server cannot end its sandboxes.
    serving.signal("KILL");
    serving.wait(Duration::from_secs(10));
    until(|| "the process ends after its server", || !is_alive(other));
}

/// The first request that times out fails. The others are retried in the new process.
#[test]
fn a_stopped_process_is_replaced_and_only_one_of_its_requests_fails() {
    let folder = folder(&TinyModel { context: 16_384, ..TinyModel::default() });
    let (serving, id) = with_stopped_sandbox(folder.path(), &[]);
    let responses: Vec<(u16, Value)> = std::thread::scope(|scope| {
        let long = scope.spawn(|| long_chat(&serving));
        // Then the others wait behind the long one.
        std::thread::sleep(Duration::from_millis(500));
        let others: Vec<_> = (0..3).map(|_| scope.spawn(|| chat(&serving, MODEL))).collect();
        others.into_iter().chain([long]).map(|client| client.join().unwrap()).collect()
    });
    let failed: Vec<_> = responses.iter().filter(|(status, _)| *status == 503).collect();
    let [(_, response)] = failed[..] else { panic!("{responses:?}") };
    assert_eq!(response["error"]["code"], "model_unavailable", "{response}");
    let message = response["error"]["message"].as_str().unwrap();
    assert!(message.contains("did not take this request within 10 seconds"), "{message}");
    assert!(!is_alive(id));
    assert_eq!(long_chat(&serving).1["error"]["code"], "context_length_exceeded");
}

#[test]
fn a_request_that_a_killed_process_has_not_read_is_retried() {
    let folder = folder(&TinyModel { context: 16_384, ..TinyModel::default() });
    let (serving, id) = with_stopped_sandbox(folder.path(), &[]);
    std::thread::scope(|scope| {
        let long = scope.spawn(|| long_chat(&serving));
        std::thread::sleep(Duration::from_millis(300));
        signal("KILL", id);
        assert_eq!(long.join().unwrap().1["error"]["code"], "context_length_exceeded");
    });
}

#[test]
fn a_server_with_a_stopped_process_stops_in_time() {
    let folder = folder(&TinyModel { context: 16_384, ..TinyModel::default() });
    let (mut serving, id) = with_stopped_sandbox(folder.path(), &["--drain-seconds", "2"]);
    let (url, key) = (serving.url.clone(), serving.key());
    let client = std::thread::spawn(move || {
        let text = "a long prompt ".repeat(20_000);
        let body = json!({ "model": MODEL, "messages": [{ "role": "user", "content": text }] });
        let client = reqwest::blocking::Client::new();
        let request = client.post(format!("{url}/v1/chat/completions")).bearer_auth(key).body(body.to_string());
        request.header("content-type", "application/json").send().map(|response| response.status().as_u16()).ok()
    });
    std::thread::sleep(Duration::from_millis(500));
    serving.signal("TERM");
    assert_eq!(serving.wait(Duration::from_secs(6)), Some(0));
    let status = client.join().unwrap();
    assert!(matches!(status, None | Some(503)), "{status:?}");
    until(|| "the process ends with its server", || !is_alive(id));
}

#[test]
fn an_idle_process_that_is_stopped_ends_with_its_server() {
    let folder = folder(&TinyModel::default());
    let (mut serving, id) = with_stopped_sandbox(folder.path(), &[]);
    serving.signal("TERM");
    assert_eq!(serving.wait(Duration::from_secs(10)), Some(0));
    until(|| "the process ends", || !is_alive(id));
}

/// The number of Gemma's tokens that are not special.
const GEMMA_TOKENS: usize = 262_144;

/// Byte-pair encoding with as many tokens as Gemma's, of one to three characters, and all their merges (520,064; Gemma has 514,906).
fn large_bpe() -> Value {
    let letters: Vec<String> =
        ('a'..='z').chain('A'..='Z').chain('0'..='9').chain("-_".chars()).map(String::from).collect();
    let (mut tokens, mut merges) = (letters.clone(), Vec::new());
    for one in &letters {
        for other in &letters {
            tokens.push(format!("{one}{other}"));
            merges.push([one.clone(), other.clone()]);
        }
    }
    let triples = letters.iter().flat_map(|one| letters.iter().map(move |two| (one, two)));
    let triples = triples.flat_map(|(one, two)| letters.iter().map(move |three| [one, two, three]));
    for [one, two, three] in triples.take(GEMMA_TOKENS - tokens.len()) {
        tokens.push(format!("{one}{two}{three}"));
        merges.push([format!("{one}{two}"), three.clone()]);
        merges.push([one.clone(), format!("{two}{three}")]);
    }
    let vocabulary: Map<String, Value> = tokens.into_iter().zip((0..).map(|id| json!(id))).collect();
    json!({ "type": "BPE", "vocab": vocabulary, "merges": merges })
}

#[test]
fn a_vocabulary_of_gemmas_size_fits_into_the_sandbox() {
    let folder = folder(&TinyModel::default());
    let large = huggingface_folder::model(&folder.path().join("models"), "large", "llama-tied");
    let read = |name: &str| serde_json::from_slice::<Value>(&fs::read(large.join(name)).unwrap()).unwrap();
    let mut tokenizer = read("tokenizer.json");
    tokenizer["model"] = large_bpe();
    let special = tokenizer["added_tokens"].as_array_mut().unwrap();
    special.iter_mut().zip(GEMMA_TOKENS..).for_each(|(token, id)| token["id"] = id.into());
    let rows = GEMMA_TOKENS + special.len();
    // With line breaks and indentation, as published.
    fs::write(large.join("tokenizer.json"), serde_json::to_vec_pretty(&tokenizer).unwrap()).unwrap();
    let mut config = read("config.json");
    config["vocab_size"] = rows.into();
    fs::write(large.join("config.json"), config.to_string()).unwrap();
    let embedding = "model.embed_tokens.weight";
    let shard = large.join(read("model.safetensors.index.json")["weight_map"][embedding].as_str().unwrap());
    let mut tensors = candle_core::safetensors::load(&shard, &Device::Cpu).unwrap();
    let width = config["hidden_size"].as_u64().unwrap() as usize;
    tensors.insert(embedding.to_owned(), Tensor::zeros((rows, width), DType::BF16, &Device::Cpu).unwrap());
    candle_core::safetensors::save(&tensors, &shard).unwrap();

    let serving = ServerProcess::start(folder.path(), &[]);
    let (status, response) = chat(&serving, "large");
    assert_eq!(status, 200, "{response}");
    // <s>, <u>, hi, <a>
    assert_eq!(response["usage"]["prompt_tokens"], 4, "{response}");
}

#[test]
fn only_loaded_models_have_a_sandbox_process() {
    let folder = folder(&TinyModel::default());
    let serving = ServerProcess::start(folder.path(), &[]);
    assert_eq!(chat(&serving, MODEL).0, 200);
    let [id] = serving.sandboxes()[..] else { panic!("{:?}", serving.sandboxes()) };
    let unload = format!("/v1/models/{MODEL}/unload");
    until(|| "the model is unloaded", || serving.request(Method::POST, &unload, None).status() == 200);
    until(|| "the process ends", || !is_alive(id));
}

#[test]
fn a_malicious_template_is_an_error_that_names_the_model() {
    let folder = folder(&TinyModel::default());
    let models = folder.path().join("models");
    let cycle = "{% set ns=namespace() %}{% set ns.x=ns %}{{ ns ~ 1 }}";
    tiny_model::write(&models, "cycle", &TinyModel { template: Some(cycle), ..TinyModel::default() });
    let sum = &*format!("{{{{ {}1 }}}}", "not ".repeat(200_000)).leak();
    tiny_model::write(&models, "deep", &TinyModel { template: Some(sum), ..TinyModel::default() });
    let serving = ServerProcess::start(folder.path(), &[]);
    for (id, word) in [("cycle", "fails on this request"), ("deep", "loading its tokenizer or chat template failed")] {
        for _ in 0..2 {
            let (status, response) = chat(&serving, id);
            let error = &response["error"];
            assert_eq!(
                (status, &error["code"], &error["param"]),
                (503, &json!("model_unavailable"), &json!("model")),
                "{response}"
            );
            let message = error["message"].as_str().unwrap();
            assert!(message.contains(id) && message.contains(word) && message.contains("too much memory"), "{message}");
        }
    }
    assert_eq!(chat(&serving, MODEL).0, 200);
    assert_eq!(serving.request(Method::GET, "/healthz", None).status(), 200);
}
