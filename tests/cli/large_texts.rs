//! Requests with megabytes of text: refused soon, in little memory, beside other work.

use std::fs;

use reqwest::Method;
use serde_json::{Value, json};

use crate::process::{MODEL, Serving, folder};
use crate::tiny_model::TinyModel;
use crate::wait::until;

/// Bytes of text in a request: near the limit of a body.
const LARGE: usize = 7_900_000;

/// What three requests at once added to the server's peak memory, in MB, and the processor seconds that they took.
struct Cost {
    megabytes: u64,
    seconds: f64,
}

/// The server, and the processes that tokenise for it.
fn processes(serving: &Serving) -> Vec<u32> {
    let sandboxes = serving.sandboxes();
    assert!(!sandboxes.is_empty());
    [vec![serving.child.id()], sandboxes].concat()
}

/// A field of all processes together, in MB.
fn status(processes: &[u32], field: &str) -> u64 {
    let one = |id: &u32| {
        let text = fs::read_to_string(format!("/proc/{id}/status")).unwrap();
        let line = text.lines().find(|line| line.starts_with(field)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    processes.iter().map(one).sum::<u64>() / 1024
}

/// Seconds of user and system time of all processes together. Linux counts in hundredths.
fn processor_seconds(processes: &[u32]) -> f64 {
    let one = |id: &u32| {
        let text = fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
        let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
        [11, 12].iter().map(|at| fields[*at].parse::<f64>().unwrap()).sum::<f64>() / 100.
    };
    processes.iter().map(one).sum()
}

/// Sends `body` three times at once and returns the answers and what they cost.
fn three_at_once(serving: &Serving, path: &str, body: &Value) -> (Vec<(u16, Value)>, Cost) {
    let processes = processes(serving);
    // Resets the peak.
    processes.iter().for_each(|id| fs::write(format!("/proc/{id}/clear_refs"), "5").unwrap());
    let (memory, seconds) = (status(&processes, "VmRSS:"), processor_seconds(&processes));
    let ask = || {
        let response = serving.request(Method::POST, path, Some(body));
        (response.status().as_u16(), response.json().unwrap())
    };
    let answers = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..3).map(|_| scope.spawn(ask)).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let megabytes = status(&processes, "VmHWM:").saturating_sub(memory);
    (answers, Cost { megabytes, seconds: processor_seconds(&processes) - seconds })
}

fn chat(text: &str) -> Value {
    json!({ "model": MODEL, "messages": [{ "role": "user", "content": text }], "max_tokens": 1 })
}

fn serve() -> (tempfile::TempDir, Serving) {
    let folder = folder(&TinyModel { context: 4096, ..TinyModel::default() });
    let serving = Serving::start(folder.path(), &[]);
    assert_eq!(serving.request(Method::POST, "/v1/chat/completions", Some(&chat("hi"))).status(), 200);
    (folder, serving)
}

/// Generous for a debug build on a busy machine, and for the sum of several processes' peaks: without the bounds it is 2,800 MB and more than 10 s in release.
fn check(name: &str, cost: &Cost) {
    assert!(cost.megabytes <= 220, "{name}: {} MB", cost.megabytes);
    assert!(cost.seconds <= 4., "{name}: {} s", cost.seconds);
}

#[test]
fn large_chats_are_refused_in_little_time_and_memory() {
    let (_folder, serving) = serve();
    let words = "the quick brown fox jumps over the lazy dog ".repeat(LARGE / 44);
    for (name, text) in
        [("words", words.as_str()), ("one word", &"a".repeat(LARGE)), ("lines", &"\n".repeat(LARGE / 2))]
    {
        let body = chat(&format!("x{text}x"));
        let (answers, cost) = three_at_once(&serving, "/v1/chat/completions", &body);
        for (status, answer) in answers {
            assert_eq!(
                (status, &answer["error"]["code"]),
                (400, &json!("context_length_exceeded")),
                "{name}: {answer}"
            );
        }
        check(name, &cost);
    }
    let tool = json!({ "type": "function", "function": { "name": "f", "description": words } });
    let mut body = chat("hi");
    body["tools"] = json!([tool]);
    let (answers, cost) = three_at_once(&serving, "/v1/chat/completions", &body);
    assert!(answers.iter().all(|(status, _)| *status == 400), "{answers:?}");
    check("tools", &cost);
}

#[test]
fn a_long_transcript_is_cut_in_little_time() {
    let (_folder, serving) = serve();
    let turn = "and then there was one more thing to say ".repeat(48);
    let turns: Vec<Value> =
        (0..2000).flat_map(|_| ["user", "assistant"].map(|role| json!({ "role": role, "content": turn }))).collect();
    let made = serving.request(Method::POST, "/v1/conversations", Some(&json!({ "messages": turns })));
    let id = made.json::<Value>().unwrap()["id"].as_str().unwrap().to_owned();
    let mut body = chat("hi");
    body["conversation_id"] = json!(id);
    body["truncation"] = json!("auto");
    let (answers, cost) = three_at_once(&serving, "/v1/chat/completions", &body);
    assert!(answers.iter().any(|(status, _)| *status == 200), "{answers:?}");
    // One of them appends its turn; the others may find the conversation changed.
    assert!(answers.iter().all(|(status, _)| [200, 409].contains(status)), "{answers:?}");
    assert!(cost.seconds <= 15., "{} s", cost.seconds);
}

#[test]
fn a_small_budget_refuses_a_large_prompt_before_it_is_counted() {
    let folder = folder(&TinyModel { context: 1 << 20, ..TinyModel::default() });
    let serving = Serving::start(folder.path(), &["--memory", "8GiB"]);
    assert_eq!(serving.request(Method::POST, "/v1/chat/completions", Some(&chat("hi"))).status(), 200);
    let me: Value = serving.request(Method::GET, "/v1/me", None).json().unwrap();
    let project = me["project"]["id"].as_str().or(me["project_id"].as_str()).unwrap().to_owned();
    let limits = json!({ "tokens_per_minute": 100 });
    let path = format!("/v1/projects/{project}/rate-limits");
    assert_eq!(serving.request(Method::PATCH, &path, Some(&limits)).status(), 200);
    // Spends the minute's tokens.
    let more = || serving.request(Method::POST, "/v1/chat/completions", Some(&chat(&"word ".repeat(40)))).status();
    until(|| "the tokens are spent", || more() != 200);
    let words = "word ".repeat(LARGE / 5);
    let (answers, cost) = three_at_once(&serving, "/v1/chat/completions", &chat(&words));
    assert!(answers.iter().all(|(status, _)| *status == 429), "{answers:?}");
    check("rate", &cost);
}
