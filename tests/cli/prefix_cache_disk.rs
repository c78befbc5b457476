//! The prefix cache on disk: restarts, `kill -9`, archived projects, and a server that no longer has one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::Method;
use reqwest::blocking::Client;
use serde_json::{Value, json};

use crate::process::{MODEL, ServerProcess, folder, mode};
use crate::tiny_model::{self, TinyModel};
use crate::wait::until;

/// Recurrent layers besides attention.
const HYBRID: TinyModel = TinyModel { architecture: "qwen35", context: 2048, blocks: 4, ..tiny_model::DEFAULT };

/// A chat of some hundred tokens. Those of one topic have the same beginning.
fn chat(topic: usize, words: usize) -> Value {
    let text: Vec<String> = (0..words).map(|word| format!("{topic} {}", word * 7 % 100)).collect();
    let message = json!({ "role": "user", "content": text.join(" ") });
    json!({ "model": MODEL, "messages": [message], "max_tokens": 6, "temperature": 0 })
}

/// The text of a response and its cached tokens.
fn send(server: &ServerProcess, key: &str, body: &Value) -> (String, u64) {
    let client = Client::builder().timeout(Duration::from_secs(60)).build().unwrap();
    let request = client.post(format!("{}/v1/chat/completions", server.url)).bearer_auth(key);
    let response = request.header("content-type", "application/json").body(body.to_string()).send().unwrap();
    assert_eq!(response.status(), 200);
    let response: Value = response.json().unwrap();
    let choice = &response["choices"][0]["message"]["content"];
    let cached = response["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    (choice.as_str().unwrap().to_owned(), cached)
}

fn start(folder: &Path, arguments: &[&str]) -> ServerProcess {
    ServerProcess::start(folder, &[&["--no-pull"], arguments].concat())
}

fn stop(mut server: ServerProcess) {
    server.signal("TERM");
    assert_eq!(server.wait(Duration::from_secs(20)), Some(0));
}

/// The folders of the projects' blocks.
fn project_folders(folder: &Path) -> Vec<PathBuf> {
    let mut folders = vec![folder.join("data/prefix-cache")];
    for _ in 0..3 {
        let entries = folders.iter().flat_map(|folder| folder.read_dir().into_iter().flatten());
        folders = entries.map(|entry| entry.unwrap().path()).collect();
    }
    folders
}

#[test]
fn a_text_is_cached_after_a_restart_until_its_project_is_archived_or_there_is_no_cache() {
    let folder = folder(&HYBRID);
    let server = start(folder.path(), &["--prefix-cache-disk", "64MiB"]);
    let admin = server.key();
    let created =
        |path: &str, body: Value| -> Value { server.request(Method::POST, path, Some(&body)).json().unwrap() };
    let project = created("/v1/projects", json!({ "name": "other" }))["id"].as_str().unwrap().to_owned();
    let key = created("/v1/api-keys", json!({ "name": "other", "project_id": project }));
    let key = key["secret"].as_str().unwrap().to_owned();
    let body = chat(1, 60);
    let (text, cached) = send(&server, &admin, &body);
    assert_eq!(cached, 0);
    assert_eq!(send(&server, &key, &body), (text.clone(), 0));
    // What is not written yet is written while the server stops.
    stop(server);
    let folders = project_folders(folder.path());
    assert_eq!(folders.len(), 2);
    let files: Vec<_> = folders[0].read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!files.is_empty() && files.iter().all(|file| mode(file) == 0o600) && mode(&folders[0]) == 0o700);
    let server = start(folder.path(), &["--prefix-cache-disk", "64MiB"]);
    for key in [&admin, &key] {
        let (again, cached) = send(&server, key, &body);
        assert!(again == text && cached > 100, "{cached} tokens are cached");
    }
    let archived = server.request(Method::POST, &format!("/v1/projects/{project}/archive"), None);
    assert_eq!(archived.status(), 200);
    stop(server);
    let server = start(folder.path(), &["--prefix-cache-disk", "64MiB"]);
    until(|| "the texts of the archived project are deleted", || project_folders(folder.path()).len() == 1);
    assert!(send(&server, &admin, &body).1 > 100);
    stop(server);
    let server = start(folder.path(), &[]);
    assert!(!folder.path().join("data/prefix-cache").exists());
    assert_eq!(send(&server, &admin, &body), (text, 0));
}

/// `OUTPOST_TEST_KILLS` is how often the server is killed.
#[test]
fn a_server_that_is_killed_while_it_writes_leaves_no_wrong_block() {
    let kills = std::env::var("OUTPOST_TEST_KILLS").map_or(6, |count| count.parse().unwrap());
    let folder = folder(&HYBRID);
    let bodies: Vec<Value> = (0..12).map(|index| chat(index % 4, 40 + index * 9)).collect();
    let server = start(folder.path(), &[]);
    let key = server.key();
    let expected: Vec<String> = bodies.iter().map(|body| send(&server, &key, body).0).collect();
    stop(server);
    let mut cached = 0;
    for kill in 0..kills {
        // So little space that blocks are also evicted.
        let server = start(folder.path(), &["--prefix-cache-disk", "3MiB"]);
        let first = kill % bodies.len();
        for index in [first, (first + 5) % bodies.len()] {
            let (text, tokens) = send(&server, &key, &bodies[index]);
            assert_eq!(text, expected[index], "after {kill} kills");
            cached += tokens;
        }
        let (url, key, bodies) = (server.url.clone(), key.clone(), bodies.clone());
        let sending = std::thread::spawn(move || {
            let client = Client::new();
            for body in bodies {
                let request = client.post(format!("{url}/v1/chat/completions")).bearer_auth(&key);
                let sent = request.header("content-type", "application/json").body(body.to_string()).send();
                if sent.and_then(reqwest::blocking::Response::bytes).is_err() {
                    return;
                }
            }
        });
        std::thread::sleep(Duration::from_millis(kill as u64 * 37 % 150));
        // The process is killed.
        drop(server);
        sending.join().unwrap();
    }
    assert!(cached > 0, "no block survived");
}
