//! Requests with megabytes of text are refused quickly and with little memory.

use std::fs;

use reqwest::Method;
use serde_json::{Value, json};

use crate::process::{MODEL, ServerProcess, folder};
use crate::tiny_model::TinyModel;
use crate::wait::until;

/// Bytes of text in a request, close to the limit of a body.
const LARGE: usize = 7_900_000;

/// The increase of the server's peak memory by three concurrent requests, in MB, and their processor time in seconds.
struct Cost {
    megabytes: u64,
    seconds: f64,
}

/// The IDs of the server and its sandbox processes.
fn processes(serving: &ServerProcess) -> Vec<u32> {
    let sandboxes = serving.sandboxes();
    assert!(!sandboxes.is_empty());
    [vec![serving.child.id()], sandboxes].concat()
}

/// The sum of a field of `/proc/<id>/status` over the processes, in MB.
fn status(processes: &[u32], field: &str) -> u64 {
    let one = |id: &u32| {
        let text = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let line = text.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    processes.iter().map(one).sum::<u64>() / 1024
}

/// User and system time of the processes, in seconds. Linux counts in hundredths.
fn processor_seconds(processes: &[u32]) -> f64 {
    let one = |id: &u32| {
        let text = fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
        let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
        [11, 12].iter().map(|at| fields[*at].parse::<f64>().unwrap()).sum::<f64>() / 100.
    };
    processes.iter().map(one).sum()
}

/// Sends `body` three times concurrently, and returns the responses and their cost.
fn send_three_concurrently(serving: &ServerProcess, path: &str, body: &Value) -> (Vec<(u16, Value)>, Cost) {
    let processes = processes(serving);
    // Resets the peak.
    processes.iter().for_each(|id| fs::write(format!("/proc/{id}/clear_refs"), "5").unwrap());
    let (memory, seconds) = (status(&processes, "VmRSS:"), processor_seconds(&processes));
    let send_request = || {
        let response = serving.request(Method::POST, path, Some(body));
        (response.status().as_u16(), response.json().unwrap())
    };
    let responses = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..3).map(|_| scope.spawn(send_request)).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let megabytes = status(&processes, "VmHWM:").saturating_sub(memory);
    (responses, Cost { megabytes, seconds: processor_seconds(&processes) - seconds })
}

fn chat(text: &str) -> Value {
    json!({ "model": MODEL, "messages": [{ "role": "user", "content": text }], "max_tokens": 1 })
}

fn serve() -> (tempfile::TempDir, ServerProcess) {
    let folder = folder(&TinyModel { context: 4096, ..TinyModel::default() });
    let serving = ServerProcess::start(folder.path(), &[]);
    assert_eq!(serving.request(Method::POST, "/v1/chat/completions", Some(&chat("hi"))).status(), 200);
    (folder, serving)
}

/// Checks the cost. The limits allow for a debug build on a busy machine and for the sum of several processes' peaks.
/// Without the server's limits, the cost is 2,800 MB and more than 10 s in a release build.
fn assert_limits(name: &str, cost: &Cost) {
    assert!(cost.megabytes <= 220, "{name}: {} MB", cost.megabytes);
    assert!(cost.seconds <= 4., "{name}: {} s", cost.seconds);
}

#[test]
fn large_chats_are_refused_quickly_and_with_little_memory() {
    let (_folder, serving) = serve();
    let words = "the quick brown fox jumps over the lazy dog ".repeat(LARGE / 44);
    for (name, text) in
        [("words", words.as_str()), ("one word", &"a".repeat(LARGE)), ("lines", &"\n".repeat(LARGE / 2))]
    {
        let body = chat(&format!("x{text}x"));
        let (responses, cost) = send_three_concurrently(&serving, "/v1/chat/completions", &body);
        for (status, response) in responses {
            assert_eq!(
                (status, &response["error"]["code"]),
                (400, &json!("context_length_exceeded")),
                "{name}: {response}"
            );
        }
        assert_limits(name, &cost);
    }
    let tool = json!({ "type": "function", "function": { "name": "f", "description": words } });
    let mut body = chat("hi");
    body["tools"] = json!([tool]);
    let (responses, cost) = send_three_concurrently(&serving, "/v1/chat/completions", &body);
    assert!(responses.iter().all(|(status, _)| *status == 400), "{responses:?}");
    assert_limits("tools", &cost);
}

#[test]
fn a_long_transcript_is_truncated_quickly() {
    let (_folder, serving) = serve();
    let turn = "and then there was one more thing to say ".repeat(48);
    let turns: Vec<Value> =
        (0..2000).flat_map(|_| ["user", "assistant"].map(|role| json!({ "role": role, "content": turn }))).collect();
    let created = serving.request(Method::POST, "/v1/conversations", Some(&json!({ "messages": turns })));
    let id = created.json::<Value>().unwrap()["id"].as_str().unwrap().to_owned();
    let mut body = chat("hi");
    body["conversation_id"] = json!(id);
    body["truncation"] = json!("auto");
    let (responses, cost) = send_three_concurrently(&serving, "/v1/chat/completions", &body);
    assert!(responses.iter().any(|(status, _)| *status == 200), "{responses:?}");
    // One request appends its turn. The others may get a conflict.
    assert!(responses.iter().all(|(status, _)| [200, 409].contains(status)), "{responses:?}");
    assert!(cost.seconds <= 15., "{} s", cost.seconds);
}

#[test]
fn a_small_budget_refuses_a_large_prompt_before_tokenizing_all_of_it() {
    let folder = folder(&TinyModel { context: 1 << 20, ..TinyModel::default() });
    let serving = ServerProcess::start(folder.path(), &["--memory", "8GiB"]);
    assert_eq!(serving.request(Method::POST, "/v1/chat/completions", Some(&chat("hi"))).status(), 200);
    let me: Value = serving.request(Method::GET, "/v1/me", None).json().unwrap();
    let project = me["project"]["id"].as_str().or(me["project_id"].as_str()).unwrap().to_owned();
    let limits = json!({ "tokens_per_minute": 100 });
    let path = format!("/v1/projects/{project}/rate-limits");
    assert_eq!(serving.request(Method::PATCH, &path, Some(&limits)).status(), 200);
    // Uses up the tokens of the minute.
    let more = || serving.request(Method::POST, "/v1/chat/completions", Some(&chat(&"word ".repeat(40)))).status();
    until(|| "the tokens are spent", || more() != 200);
    let words = "word ".repeat(LARGE / 5);
    let (responses, cost) = send_three_concurrently(&serving, "/v1/chat/completions", &chat(&words));
    assert!(responses.iter().all(|(status, _)| *status == 429), "{responses:?}");
    assert_limits("rate", &cost);
}
