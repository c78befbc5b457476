use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use outpost::app::SystemClockRng;
use outpost::engine::{Engine, Settings};
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::{MODEL, ServerProcess, command, folder, output_text, run};
use crate::tiny_model::TinyModel;

const FILES: [&str; 2] = ["adapter_config.json", "adapter_model.safetensors"];

/// Lines of a training file.
pub fn examples(count: usize) -> String {
    let line = |index: usize| {
        json!({ "messages": [
            { "role": "user", "content": format!("question {index}") },
            { "role": "assistant", "content": format!("answer {index}") },
        ] })
    };
    (0..count).map(|index| format!("{}\n", line(index))).collect()
}

/// A folder with a tiny model and the file `train.jsonl`.
fn prepared(content: &str) -> TempDir {
    let folder = folder(&TinyModel::default());
    fs::write(folder.path().join("train.jsonl"), content).unwrap();
    folder
}

/// The entries of the models folder.
fn models(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder.join("models")).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// The output of a command that succeeds.
fn succeed(folder: &Path, arguments: &[&str]) -> String {
    let output = run(folder, arguments);
    assert!(output.status.success(), "{}", output_text(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// The error of a command that fails with this exit code.
fn fail(folder: &Path, code: i32, arguments: &[&str]) -> String {
    let output = run(folder, arguments);
    assert_eq!(output.status.code(), Some(code), "{}", output_text(&output));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_tuned_model_is_served_at_once() {
    let folder = prepared(&examples(8));
    let path = folder.path();
    fs::write(path.join("valid.jsonl"), examples(2)).unwrap();
    let serving = ServerProcess::start(path, &[]);
    let tune = [
        "tune",
        "train.jsonl",
        "--model",
        MODEL,
        "--validation",
        "valid.jsonl",
        "--epochs",
        "4",
        "--learning-rate-multiplier",
        "50",
        "--seed",
        "1",
    ];
    let output = run(path, &tune);
    let (shown, progress) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{progress}");
    assert!(shown.starts_with("Training an adapter of tiny with 8 examples: 4 epochs, batch size 1, "), "{shown}");
    assert!(shown.contains('┤') && shown.contains('•') && shown.contains("× validation loss"), "{shown}");
    assert!(shown.contains("the model 'tiny-train' in ./models/tiny-train"), "{shown}");
    assert!(progress.contains("step 32/32: loss ") && progress.contains(" tokens/s, 0s left"), "{progress}");
    assert!(progress.contains("step 8: validation loss "), "{progress}");
    assert_eq!(models(path), ["tiny", "tiny-train"]);

    // The server scans the folder at most once a second.
    std::thread::sleep(std::time::Duration::from_millis(1100));
    let found: Value = serving.request(Method::GET, "/v1/models/tiny-train", None).json().unwrap();
    assert_eq!((&found["base_model"], &found["problem"]), (&json!(MODEL), &Value::Null), "{found}");
    let body = json!({
        "messages": [{ "role": "user", "content": "question 1" }], "max_tokens": 8, "temperature": 0,
    });
    let answer = |model: &str| {
        let mut body = body.clone();
        body["model"] = json!(model);
        let reply = serving.request(Method::POST, "/openai/v1/chat/completions", Some(&body));
        assert_eq!(reply.status(), 200);
        let reply: Value = reply.json().unwrap();
        reply["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
    };
    assert_ne!(answer("tiny-train"), answer(MODEL));

    let engine = Engine::start(Settings::new(path.join("models"), 1 << 30), Arc::new(SystemClockRng::new())).unwrap();
    let found = engine.models().find("tiny-train").unwrap();
    assert_eq!((found.base.as_deref(), found.problem), (Some(MODEL), None));
    assert_eq!(engine.models().load("tiny-train").unwrap().id(), "tiny-train");
}

#[test]
fn the_same_seed_gives_the_same_adapter() {
    let folder = prepared(&examples(4));
    let path = folder.path();
    let bytes = |name: &str| FILES.map(|file| fs::read(path.join(name).join(file)).unwrap());
    let tune = |name: &str, seed: &str| {
        let shown = succeed(
            path,
            &["tune", "train.jsonl", "--model", MODEL, "--epochs", "2", "--seed", seed, "--output", name],
        );
        assert!(shown.contains(&format!("seed {seed}.")) && shown.contains(&format!("outpost models import {name}")));
        bytes(name)
    };
    let one = tune("one", "7");
    assert_eq!(one, tune("two", "7"));
    assert_ne!(one, tune("three", "8"));
    assert_eq!(models(path), [MODEL]);
    succeed(path, &["models", "import", "one", "--name", "imported"]);
    assert_eq!(bytes("models/imported"), one);
}

#[test]
fn preferences_and_all_hyperparameters_are_trained() {
    let preference = json!({
        "input": { "messages": [{ "role": "user", "content": "q" }] },
        "preferred_output": [{ "role": "assistant", "content": "yes" }],
        "non_preferred_output": [{ "role": "assistant", "content": "no" }],
    });
    let folder = prepared(&format!("{preference}\n{preference}\n"));
    let path = folder.path();
    let tune = [
        "tune",
        "train.jsonl",
        "--model",
        MODEL,
        "--suffix",
        "my suffix",
        "--method",
        "dpo",
        "--epochs",
        "2",
        "--batch-size",
        "2",
        "--learning-rate-multiplier",
        "2",
        "--rank",
        "2",
        "--alpha",
        "8",
        "--dropout",
        "0.1",
        "--target-modules",
        "q_proj,v_proj",
        "--max-length",
        "64",
        "--packing",
        "--beta",
        "0.2",
        "--seed",
        "1",
        "--threads",
        "1",
        "--memory",
        "500MB",
        "--device",
        "cpu",
    ];
    let shown = succeed(path, &tune);
    assert!(
        shown.contains("with 2 examples: 2 epochs, batch size 2, learning rate 0.00004, rank 2, seed 1."),
        "{shown}"
    );
    let config = fs::read(path.join("models/tiny-my-suffix/adapter_config.json")).unwrap();
    let config: Value = serde_json::from_slice(&config).unwrap();
    assert_eq!((&config["r"], &config["lora_alpha"]), (&json!(2), &json!(8)), "{config}");
    let mut modules: Vec<_> = config["target_modules"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    modules.sort_unstable();
    assert_eq!(modules, ["q_proj", "v_proj"]);

    let supervised = fail(path, 1, &["tune", "train.jsonl", "--model", MODEL]);
    assert!(supervised.contains("train.jsonl: its examples are preferences. Train on them with"), "{supervised}");
    let beta = fail(path, 1, &["tune", "train.jsonl", "--model", MODEL, "--beta", "0.1"]);
    assert!(beta.contains("--beta belongs to the method 'dpo'"), "{beta}");
}

#[test]
fn errors_name_the_cause_and_the_remedy() {
    let folder = prepared(&examples(2));
    let path = folder.path();
    let write = |name: &str, content: &str| fs::write(path.join(name), content).unwrap();
    let tune = |file: &str, more: &[&str]| fail(path, 1, &[&["tune", file, "--model", MODEL], more].concat());

    let missing = tune("absent.jsonl", &[]);
    assert!(missing.contains("outpost: absent.jsonl: No such file"), "{missing}");
    write("bad.jsonl", &(examples(2) + "{\"messages\": []}\n"));
    let bad = tune("bad.jsonl", &[]);
    assert!(bad.contains("bad.jsonl: line 3: 'messages' has no message") && bad.contains("tune --help"), "{bad}");
    let bad = tune("train.jsonl", &["--validation", "bad.jsonl"]);
    assert!(bad.contains("bad.jsonl: line 3: "), "{bad}");
    write("long.jsonl", &(examples(1) + &json!({ "prompt": "p", "completion": "long ".repeat(600) }).to_string()));
    let mixed = tune("long.jsonl", &[]);
    assert!(mixed.contains("line 2 has 'prompt' and 'completion', but the lines before it have 'messages'"), "{mixed}");
    write("long.jsonl", &json!({ "prompt": "p", "completion": "long ".repeat(600) }).to_string());
    let long = tune("long.jsonl", &[]);
    assert!(
        long.contains("long.jsonl: line 1 has ") && long.contains("at most 512") && long.contains("--max-length"),
        "{long}"
    );
    let dpo = tune("train.jsonl", &["--method", "dpo"]);
    assert!(dpo.contains("train.jsonl: its examples have no preferences."), "{dpo}");

    let unknown = fail(path, 1, &["tune", "train.jsonl", "--model", "tinny"]);
    assert!(unknown.contains("no model 'tinny' is in ") && unknown.contains("did you mean 'tiny'?"), "{unknown}");
    let unknown = fail(path, 1, &["tune", "train.jsonl", "--model", "other"]);
    assert!(unknown.contains("chat models in it: tiny"), "{unknown}");
    let modules = tune("train.jsonl", &["--target-modules", "lm_head"]);
    assert!(modules.contains("'tiny' cannot be trained: target_modules has lm_head"), "{modules}");
    let memory = tune("train.jsonl", &["--memory", "1MB"]);
    assert!(memory.contains("memory"), "{memory}");
    for (option, value) in
        [("--epochs", "0"), ("--rank", "257"), ("--beta", "3"), ("--dropout", "1"), ("--method", "rl")]
    {
        let wrong = fail(path, 2, &["tune", "train.jsonl", "--model", MODEL, option, value]);
        assert!(wrong.contains(option), "{wrong}");
    }
    assert_eq!(models(path), [MODEL], "nothing was written");
}

#[test]
fn an_existing_folder_is_replaced_only_on_request() {
    let folder = prepared(&examples(2));
    let path = folder.path();
    let tune = ["tune", "train.jsonl", "--model", MODEL, "--epochs", "1"];
    let with = |more: &[&'static str]| [&tune[..], more].concat();
    succeed(path, &tune);
    let read = || fs::read(path.join("models/tiny-train/adapter_model.safetensors")).unwrap();
    let before = read();
    let exists = fail(path, 1, &tune);
    assert!(exists.contains("models/tiny-train exists already; use --force"), "{exists}");
    fs::write(path.join("models/models.toml"), format!("[aliases]\ngpt-4o = '{MODEL}'")).unwrap();
    assert_eq!(fail(path, 1, &["tune", "train.jsonl", "--model", "gpt-4o"]), exists, "an alias");
    fs::remove_file(path.join("models/models.toml")).unwrap();
    assert_eq!(read(), before);
    succeed(path, &with(&["--force"]));
    assert_ne!(read(), before, "another seed");
    let base = fail(path, 1, &with(&["--force", "--output", "models/tiny"]));
    assert!(base.contains("models/tiny has no adapter, so --force does not replace it"), "{base}");
    let adapter = fail(path, 1, &["tune", "train.jsonl", "--model", "tiny-train"]);
    assert!(adapter.contains("'tiny-train' is an adapter. Name its base model 'tiny'"), "{adapter}");
    let nowhere = fail(path, 1, &with(&["--output", "absent/folder"]));
    assert!(nowhere.contains("absent/folder cannot be written: "), "{nowhere}");
    let bad_name = fail(path, 1, &with(&["--output", "models/a b"]));
    assert!(bad_name.contains("'a b' cannot be a model's name"), "{bad_name}");
    assert_eq!(models(path), ["tiny", "tiny-train"]);
}

/// Starts a training that takes minutes, and waits for its first step.
fn start_long(folder: &Path, batch_size: &str) -> (Child, impl Iterator<Item = String>) {
    let tune = ["tune", "train.jsonl", "--model", MODEL, "--epochs", "50", "--batch-size", batch_size];
    let mut child = command(folder, &tune).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let first = lines.next().unwrap();
    assert!(first.starts_with("step 1/") && first.contains(": loss "), "{first}");
    (child, lines)
}

fn interrupt(child: &Child) {
    let kill = format!("kill -INT {}", child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
}

#[test]
fn an_interrupt_keeps_the_adapter_so_far() {
    let folder = prepared(&examples(500));
    let (mut child, mut lines) = start_long(folder.path(), "1");
    assert_eq!(models(folder.path()), [MODEL]);
    interrupt(&child);
    assert!(lines.find(|line| !line.starts_with("step ")).unwrap().starts_with("Stopping after this step."));
    let error = lines.last().unwrap();
    assert!(error.starts_with("outpost: stopped after step "), "{error}");
    assert!(error.contains(" of 25000. The adapter so far ("), "{error}");
    assert!(error.contains("is the model 'tiny-train' in ./models/tiny-train. "), "{error}");
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert_eq!(models(folder.path()), ["tiny", "tiny-train"]);
    let engine = Engine::start(Settings::new(folder.path().join("models"), 1 << 30), Arc::new(SystemClockRng::new()));
    assert!(engine.unwrap().models().load("tiny-train").is_ok());
}

#[test]
fn a_second_interrupt_discards_the_training() {
    let folder = folder(&TinyModel { width: 256, ..TinyModel::default() });
    fs::write(folder.path().join("train.jsonl"), examples(400)).unwrap();
    let (mut child, mut lines) = start_long(folder.path(), "200");
    interrupt(&child);
    assert!(lines.find(|line| !line.starts_with("step ")).unwrap().starts_with("Stopping after this step."));
    interrupt(&child);
    assert_eq!(lines.last().unwrap(), "outpost: the training was discarded. Nothing was written");
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert_eq!(models(folder.path()), [MODEL]);
}
