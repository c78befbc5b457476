//! The log on standard error.

use std::fs;
use std::path::Path;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::process::{MODEL, ServerProcess, command, folder};
use crate::tiny_model::TinyModel;
use crate::wait::until;

fn start(folder: &Path) -> ServerProcess {
    let mut start = command(folder, &["serve", "--listen", "127.0.0.1:0", "--log-format", "json"]);
    start.stderr(fs::File::create(folder.join("log")).unwrap());
    ServerProcess::start_command(folder, start)
}

fn lines(folder: &Path) -> Vec<Value> {
    let text = fs::read_to_string(folder.join("log")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"))).collect()
}

/// The line of the only request with this path.
fn line(folder: &Path, path: &str) -> Option<Value> {
    let mut found = lines(folder).into_iter().filter(|line| line["path"] == path);
    let first = found.next();
    assert_eq!(found.next(), None, "a request has one line");
    first
}

fn chat(tokens: u32, stream: bool) -> Value {
    let message = json!({ "role": "user", "content": "hello" });
    json!({ "model": MODEL, "messages": [message], "max_tokens": tokens, "ignore_eos": true, "stream": stream })
}

#[test]
fn a_line_names_project_key_and_model() {
    let folder = folder(&TinyModel::default());
    let serving = start(folder.path());
    let me: Value = serving.request(Method::GET, "/v1/me", None).json().unwrap();
    let answer: Value = serving.request(Method::POST, "/v1/chat/completions", Some(&chat(5, false))).json().unwrap();
    let found = line(folder.path(), "/v1/chat/completions").expect("the line is written before the response ends");
    assert_eq!((&found["status"], &found["model"]), (&json!(200), &json!(MODEL)));
    assert_eq!((&found["project"], &found["key"]), (&me["project_id"], &me["id"]), "{found} {me}");
    assert_eq!(found["input_tokens"], answer["usage"]["prompt_tokens"]);
    assert_eq!(found["output_tokens"], 5);
    assert_eq!(found.get("outcome"), None, "the status says it");

    let client = reqwest::blocking::Client::new();
    assert_eq!(client.get(format!("{}/v1/projects", serving.url)).send().unwrap().status(), 401);
    let unknown = line(folder.path(), "/v1/projects").unwrap();
    assert_eq!((unknown["status"].as_u64(), unknown.get("project")), (Some(401), None));
}

#[test]
fn the_line_of_a_stream_is_written_at_its_end() {
    let folder = folder(&TinyModel { context: 8192, blocks: 4, width: 256, ..TinyModel::default() });
    let serving = start(folder.path());
    let whole = serving.request(Method::POST, "/v1/chat/completions", Some(&chat(5, true))).text().unwrap();
    assert!(whole.ends_with("data: [DONE]\n\n"), "{whole}");
    let found = line(folder.path(), "/v1/chat/completions").unwrap();
    assert_eq!((&found["outcome"], &found["output_tokens"]), (&json!("succeeded"), &json!(5)), "{found}");

    let path = "/openai/v1/chat/completions";
    let mut abandoned = serving.request(Method::POST, path, Some(&chat(8000, true)));
    let mut first = [0; 5];
    std::io::Read::read_exact(&mut abandoned, &mut first).unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(line(folder.path(), path), None, "the stream has not ended");
    drop(abandoned);
    until(|| "the disconnected stream is logged", || line(folder.path(), path).is_some());
    let found = line(folder.path(), path).unwrap();
    assert_eq!((&found["outcome"], &found["status"]), (&json!("abandoned"), &json!(200)), "{found}");
    assert!(found["micros"].as_u64().unwrap() >= 300_000 && found["output_tokens"].as_u64() > Some(0), "{found}");
}

/// What monitoring systems request every few seconds has a line only if it fails, or if the log is more verbose.
#[test]
fn successful_probes_are_logged_at_debug() {
    let folder = folder(&TinyModel::default());
    let serving = start(folder.path());
    let client = reqwest::blocking::Client::new();
    let status = |path: &str| client.get(format!("{}{path}", serving.url)).send().unwrap().status().as_u16();
    assert_eq!((status("/healthz"), status("/readyz"), status("/metrics"), status("/livez")), (200, 200, 401, 404));
    assert_eq!((status("/health"), status("/ping")), (200, 200));
    assert_eq!(serving.request(Method::GET, "/metrics", None).status(), 200);
    let logged: Vec<Value> = lines(folder.path()).iter().map(|line| json!([line["path"], line["status"]])).collect();
    assert_eq!(logged, [json!(["/metrics", 401]), json!(["/livez", 404])]);

    drop(serving);
    let mut start = command(folder.path(), &["serve", "--listen", "127.0.0.1:0", "--log-format", "json"]);
    start.env("OUTPOST_LOG", "outpost=debug").stderr(fs::File::create(folder.path().join("log")).unwrap());
    let serving = ServerProcess::start_command(folder.path(), start);
    assert_eq!(client.get(format!("{}/readyz", serving.url)).send().unwrap().status(), 200);
    assert_eq!(line(folder.path(), "/readyz").unwrap()["level"], "DEBUG");
}

#[test]
fn only_our_own_messages_are_logged() {
    let folder = folder(&TinyModel::default());
    let mut serving = start(folder.path());
    serving.request(Method::GET, "/v1/models", None);
    serving.signal("TERM");
    assert_eq!(serving.wait(Duration::from_secs(10)), Some(0));
    let messages: Vec<Value> = lines(folder.path()).iter().map(|line| line["message"].clone()).collect();
    let ours = ["request", "stopping: running requests may finish, new ones are refused", "stopped"];
    assert_eq!(messages, ours.map(Value::from));
}
