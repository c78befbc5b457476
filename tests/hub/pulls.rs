//! `outpost models pull hf:…` installs a GGUF model that is then served.

use serde_json::{Value, json};

use crate::hub_server::Fault;
use crate::process::{self, ServerProcess};
use crate::repository::*;
use crate::support::sha256;
use crate::tiny_model::{self, TinyModel};

#[test]
fn a_pulled_model_answers_a_chat() {
    let model = tiny();
    let repository = Repository::with(&[("Tiny-F32.gguf", &model), ("README.md", b"x")]);
    let text = repository.pull_ok(&["hf:u/tiny-GGUF"]);
    assert!(text.contains("tiny-GGUF by u, revision 0123456, license apache-2.0; llama"), "{text}");
    assert!(text.contains("* F32") && text.contains("chosen"), "{text}");
    assert!(text.contains("tiny-f32") && text.contains("License: apache-2.0."), "{text}");
    assert_eq!(repository.installed(), ["tiny-f32"]);
    let folder = repository.models().join("tiny-f32");
    assert_eq!(read(&folder.join("tiny-f32.gguf")), model);
    let source = String::from_utf8(read(&folder.join("source.toml"))).unwrap();
    for part in ["reference = \"hf:u/tiny-GGUF\"", COMMIT, "apache-2.0", &sha256(&model)] {
        assert!(source.contains(part), "{source}");
    }
    assert!(!repository.models().join(".pull/tiny-f32").exists(), "nothing is left of the download");

    let listed = process::run(repository.folder.path(), &["models", "list"]);
    let listed = process::output_text(&listed);
    let row = listed.lines().find(|line| line.starts_with("tiny-f32")).unwrap();
    assert!(row.contains("installed") && row.contains("hf:u/tiny-GGUF") && row.contains("apache-2.0"), "{row}");

    let server = ServerProcess::start(repository.folder.path(), &["--no-pull"]);
    let body = json!({ "model": "tiny-f32", "max_tokens": 4, "messages": [{ "role": "user", "content": "hello" }] });
    let response = server.request(reqwest::Method::POST, "/v1/chat/completions", Some(&body));
    assert_eq!(response.status(), 200, "{}", response.text().unwrap());
}

#[test]
fn a_server_pulls_with_the_settings_of_its_environment() {
    let model = tiny();
    let repository = Repository::with(&[("tiny-F32.gguf", &model)]);
    let arguments = ["serve", "--listen", "127.0.0.1:0", "--no-pull"];
    let mut start = repository.outpost(&arguments);
    start.env("OUTPOST_ALLOW_PULL", "true").stderr(std::process::Stdio::null());
    let server = ServerProcess::start_command(repository.folder.path(), start);
    let body = json!({ "model": "hf:u/tiny-GGUF", "stream": true });
    let events = server.request(reqwest::Method::POST, "/v1/models/pull", Some(&body)).text().unwrap();
    assert!(events.contains("\"status\":\"succeeded\"") && events.ends_with("data: [DONE]\n\n"), "{events}");
    assert_eq!(read(&repository.models().join("tiny-f32/tiny-f32.gguf")), model);
    let source = String::from_utf8(read(&repository.models().join("tiny-f32/source.toml"))).unwrap();
    assert!(source.contains("reference = \"hf:u/tiny-GGUF\""), "{source}");
    // The command finds the same model.
    assert!(repository.pull_ok(&["hf:u/tiny-GGUF"]).contains("installed already"));
}

#[test]
fn a_server_that_may_not_connect_says_so_at_its_start() {
    let repository = Repository::new();
    let output =
        repository.outpost(&["serve", "--no-pull", "--allow-pull"]).env("HF_HUB_OFFLINE", "1").output().unwrap();
    let text = process::output_text(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("--allow-pull: HF_HUB_OFFLINE is set, so nothing is downloaded"), "{text}");
    assert!(!repository.folder.path().join("data").exists());
}

#[test]
fn a_model_that_is_installed_is_not_downloaded_again() {
    let model = tiny();
    let mut repository = Repository::with(&[("tiny-F32.gguf", &model)]);
    repository.pull_ok(&["hf:u/tiny-GGUF"]);
    let text = repository.pull_ok(&["hf:u/tiny-GGUF"]);
    assert!(text.contains("installed already"), "{text}");
    // The hub has another file of that name now.
    let other = tiny_model::bytes(&TinyModel { seed: 2, ..TinyModel::default() });
    repository = Repository { folder: repository.folder, ..Repository::with(&[("tiny-F32.gguf", &other)]) };
    let error = repository.pull_error(&["hf:u/tiny-GGUF"]);
    assert!(error.contains("exists already; use --force"), "{error}");
    repository.pull_ok(&["hf:u/tiny-GGUF", "--name", "second"]);
    repository.pull_ok(&["hf:u/tiny-GGUF", "--force"]);
    assert_eq!(read(&repository.models().join("tiny-f32/tiny-f32.gguf")), other);
    assert_eq!(read(&repository.models().join("second/second.gguf")), other);
    // A file is not replaced.
    std::fs::write(repository.models().join("third.gguf"), "").unwrap();
    let error = repository.pull_error(&["hf:u/tiny-GGUF", "--name", "third", "--force"]);
    assert!(error.contains("third.gguf exists already; use --name for another name, or remove it first"), "{error}");
}

#[test]
fn the_list_shows_every_candidate_and_downloads_nothing() {
    let (full, quantized) =
        (tiny(), tiny_model::bytes(&TinyModel { quantized: true, width: 128, ..TinyModel::default() }));
    let mut repository = Repository::with(&[("tiny-F32.gguf", &full), ("tiny-Q8_0.gguf", &quantized)]);
    for (name, size) in [
        ("tiny-Q1_0.gguf", 1000),
        ("tiny-BF16-00001-of-00002.gguf", 2000),
        ("tiny-BF16-00002-of-00002.gguf", 2000),
        ("mmproj-tiny-f16.gguf", 10),
    ] {
        repository.list(json!({ "rfilename": name, "lfs": { "sha256": "0".repeat(64), "size": size } }));
    }
    let text = repository.pull_ok(&["hf:u/tiny-GGUF", "--list"]);
    let row = |label: &str| text.lines().find(|line| line.get(2..).is_some_and(|it| it.starts_with(label))).unwrap();
    assert!(row("Q8_0").starts_with("* ") && row("Q8_0").contains("chosen"), "{text}");
    assert!(row("F32").contains('~'), "{text}");
    assert!(row("Q1_0").contains("not supported: the type Q1_0"), "{text}");
    assert!(row("BF16").contains("4 kB") && row("BF16").ends_with("2 files"), "{text}");
    assert!(!text.contains("mmproj"), "{text}");
    assert!(repository.installed().is_empty());

    let json: Value = serde_json::from_str(&repository.pull_ok(&["hf:u/tiny-GGUF:f32", "--list", "--json"])).unwrap();
    assert_eq!((&json["name"], &json["revision"]), (&json!("tiny-f32"), &json!(COMMIT)));
    let candidates = json["candidates"].as_array().unwrap();
    assert_eq!(candidates.len(), 4);
    let chosen = candidates.iter().find(|it| it["chosen"] == true).unwrap();
    assert_eq!((&chosen["quantization"], &chosen["memory_is_estimated"]), (&json!("F32"), &json!(false)));
    let installed: Value = serde_json::from_str(&repository.pull_ok(&["hf:u/tiny-GGUF:f32", "--json"])).unwrap();
    assert_eq!(installed["files"][0]["sha256"], json!(sha256(&full)));
}

#[test]
fn a_quantisation_or_a_file_is_chosen_by_name() {
    let (one, two) = (tiny(), tiny_model::bytes(&TinyModel { seed: 2, ..TinyModel::default() }));
    let repository = Repository::with(&[("a/tiny-F32.gguf", &one), ("b/tiny-F32.gguf", &two)]);
    let error = repository.pull_error(&["hf:u/tiny-GGUF:F32"]);
    assert!(error.contains("a/tiny-F32.gguf, b/tiny-F32.gguf"), "{error}");
    let error = repository.pull_error(&["hf:u/tiny-GGUF:Q4_K_M"]);
    assert!(error.contains("no single GGUF file 'Q4_K_M'; it has: F32, F32"), "{error}");
    repository.pull_ok(&["hf:u/tiny-GGUF:b/tiny-F32.gguf"]);
    assert_eq!(read(&repository.models().join("tiny-f32/tiny-f32.gguf")), two);
}

#[test]
fn an_interrupted_download_is_continued() {
    let model = tiny();
    let repository = Repository::with(&[("tiny-F32.gguf", &model)]);
    // The probe, the header, and then the file.
    let half = model.len() / 2;
    repository
        .cdn
        .fail_next("/blobs/tiny-F32.gguf", [Fault::CutAfter(1), Fault::CutAfter(1 << 30), Fault::CutAfter(half)]);
    repository.pull_ok(&["hf:u/tiny-GGUF"]);
    let ranges: Vec<_> = repository.cdn.requests().iter().filter_map(|it| it.range()).collect();
    assert!(ranges.contains(&(half, model.len() - 1)), "{ranges:?}");
}
