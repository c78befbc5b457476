//! Compares the usage that clients count with the recorded usage: mixed requests, and a kill.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

use reqwest::Method;
use reqwest::blocking::Client;
use serde_json::{Value, json};

use crate::fixtures::add_fixture;
use crate::process::{MODEL, ServerProcess, folder, output_text, run};
use crate::rng::TestRng;
use crate::tiny_model::{self, TinyModel};
use crate::wait::until;

const CLIENTS: usize = 16;
const SLOW: &str = "slow";
const BROKEN: &str = "broken";

/// Requests by outcome, and tokens by kind, named as in `usage`.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Count {
    requests: BTreeMap<String, u64>,
    input: u64,
    output: u64,
}

impl Count {
    fn count_outcome(&mut self, outcome: &str) {
        *self.requests.entry(outcome.to_owned()).or_default() += 1;
    }

    fn status(&mut self, status: u16) {
        self.count_outcome(match status {
            200 => "succeeded",
            429 => "limited",
            500.. => "failed",
            _ => "refused",
        });
    }

    fn tokens(&mut self, usage: &Value) {
        self.input += usage["prompt_tokens"].as_u64().unwrap();
        self.output += usage["completion_tokens"].as_u64().unwrap();
    }

    fn add(&mut self, other: &Count) {
        other.requests.iter().for_each(|(outcome, count)| *self.requests.entry(outcome.clone()).or_default() += count);
        self.input += other.input;
        self.output += other.output;
    }

    fn total(&self) -> u64 {
        self.requests.values().sum()
    }
}

struct Tenant {
    project: String,
    key: String,
    key_id: String,
}

fn tenant(serving: &ServerProcess, project: Option<&str>) -> Tenant {
    let post = |path: &str, body: Value| -> Value {
        serde_json::from_str(&serving.request(Method::POST, path, Some(&body)).text().unwrap()).unwrap()
    };
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let project = match project {
        Some(project) => project.to_owned(),
        None => text(&post("/v1/projects", json!({ "name": "counted" }))["id"]),
    };
    let key = post("/v1/api-keys", json!({ "name": "k", "project_id": project }));
    Tenant { project, key: text(&key["secret"]), key_id: text(&key["id"]) }
}

/// The usage that the server reports.
fn recorded_usage(serving: &ServerProcess, project: &str) -> Count {
    let path = format!("/v1/projects/{project}/usage");
    let report: Value = serde_json::from_str(&serving.request(Method::GET, &path, None).text().unwrap()).unwrap();
    series_count(&report)
}

fn series_count(figures: &Value) -> Count {
    let outcomes = figures["requests_by_outcome"].as_object().unwrap();
    let requests = outcomes.iter().map(|(name, count)| (name.clone(), count.as_u64().unwrap()));
    let tokens = |name: &str| figures["tokens"][name].as_u64().unwrap();
    Count {
        requests: requests.filter(|(_, count)| *count > 0).collect(),
        input: tokens("input"),
        output: tokens("output"),
    }
}

fn chat(model: &str, stream: bool, tokens: u64) -> Value {
    let mut body = json!({
        "model": model, "messages": [{ "role": "user", "content": "count me" }],
        "max_tokens": tokens, "ignore_eos": true, "stream": stream,
    });
    if stream {
        body["stream_options"] = json!({ "include_usage": true });
    }
    body
}

/// The project and key of a client. One of the projects is rate limited.
struct Worker<'a> {
    serving: &'a ServerProcess,
    client: Client,
    own: &'a str,
    limited: &'a str,
    rng: TestRng,
    counts: Count,
    of_limited: Count,
}

impl Worker<'_> {
    fn send(&self, method: Method, path: &str, key: &str, body: Option<Value>) -> (u16, String) {
        let mut request = self.client.request(method, format!("{}{path}", self.serving.url)).bearer_auth(key);
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let response = request.send().unwrap();
        (response.status().as_u16(), response.text().unwrap())
    }

    fn run_mixed_requests(&mut self) {
        let tokens = 1 + self.rng.below(6);
        match self.rng.below(8) {
            0 | 1 => {
                let (status, text) =
                    self.send(Method::POST, "/v1/chat/completions", self.own, Some(chat(MODEL, false, tokens)));
                assert_eq!(status, 200, "{text}");
                self.counts.status(status);
                self.counts.tokens(&serde_json::from_str::<Value>(&text).unwrap()["usage"]);
            }
            2 => {
                let body = chat(MODEL, true, tokens);
                let (status, text) = self.send(Method::POST, "/openai/v1/chat/completions", self.own, Some(body));
                self.counts.status(status);
                let last = text.lines().rev().filter_map(|line| line.strip_prefix("data: {")).next().unwrap();
                self.counts.tokens(&serde_json::from_str::<Value>(&format!("{{{last}")).unwrap()["usage"]);
            }
            3 => {
                let (status, _) = self.send(Method::GET, "/v1/models", self.own, None);
                self.counts.status(status);
            }
            4 => {
                let (status, _) =
                    self.send(Method::POST, "/v1/chat/completions", self.own, Some(json!({ "model": MODEL })));
                assert_eq!(status, 400);
                self.counts.status(status);
            }
            5 => {
                let body = chat(BROKEN, false, tokens);
                let (status, text) = self.send(Method::POST, "/v1/chat/completions", self.own, Some(body));
                assert_eq!(status, 503, "{text}");
                self.counts.status(status);
            }
            6 => {
                let (status, text) =
                    self.send(Method::POST, "/v1/chat/completions", self.limited, Some(chat(MODEL, false, tokens)));
                self.of_limited.status(status);
                if status == 200 {
                    self.of_limited.tokens(&serde_json::from_str::<Value>(&text).unwrap()["usage"]);
                }
            }
            _ => {
                let stream = self.rng.below(2) == 0;
                self.abandon_stream(stream);
                self.counts.count_outcome("abandoned");
            }
        }
    }

    /// Disconnects during a long response.
    fn abandon_stream(&self, stream: bool) {
        let body = chat(SLOW, stream, 4000).to_string();
        let address = self.serving.url.strip_prefix("http://").unwrap();
        let mut connection = TcpStream::connect(address).unwrap();
        let head = format!(
            "POST /v1/chat/completions HTTP/1.1\r\nhost: test\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            self.own,
            body.len()
        );
        connection.write_all(head.as_bytes()).unwrap();
        connection.write_all(body.as_bytes()).unwrap();
        if stream {
            let mut lines = BufReader::new(&connection).lines().map_while(Result::ok);
            assert!(lines.any(|line| line.starts_with("data: ")));
        } else {
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

fn slow_model() -> TinyModel {
    TinyModel { context: 8192, blocks: 4, width: 256, ..TinyModel::default() }
}

fn broken_model(folder: &Path) {
    let model_folder = folder.join("models").join(BROKEN);
    std::fs::create_dir_all(&model_folder).unwrap();
    let whole = std::fs::read(find_gguf(&folder.join("models").join(MODEL))).unwrap();
    // The header is valid, the weights are truncated.
    std::fs::write(model_folder.join("model.gguf"), &whole[..whole.len() / 2]).unwrap();
}

fn find_gguf(folder: &Path) -> std::path::PathBuf {
    let mut files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.find(|path| path.extension().is_some_and(|ending| ending == "gguf")).unwrap()
}

#[test]
fn recorded_usage_of_two_thousand_mixed_requests_matches_the_clients_counts() {
    let folder = folder(&TinyModel::default());
    tiny_model::write(&folder.path().join("models"), SLOW, &slow_model());
    broken_model(folder.path());
    let serving = ServerProcess::start(folder.path(), &[]);
    let counts = tenant(&serving, None);
    let limited = tenant(&serving, None);
    let limits = json!({ "requests_per_minute": 60, "burst_limit": 5 });
    let path = format!("/v1/projects/{}/rate-limits", limited.project);
    assert!(serving.request(Method::PATCH, &path, Some(&limits)).status().is_success());
    let totals: Vec<(Count, Count)> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|seed| {
                let mut worker = Worker {
                    serving: &serving,
                    client: Client::new(),
                    own: &counts.key,
                    limited: &limited.key,
                    rng: TestRng(seed as u64),
                    counts: Count::default(),
                    of_limited: Count::default(),
                };
                scope.spawn(move || {
                    (0..2000 / CLIENTS).for_each(|_| worker.run_mixed_requests());
                    (worker.counts, worker.of_limited)
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let (mut expected, mut expected_limited) = (Count::default(), Count::default());
    for (own, limited) in &totals {
        expected.add(own);
        expected_limited.add(limited);
    }
    assert_eq!(expected.total() + expected_limited.total(), 2000);
    wait_for(&serving, &counts.project, expected.total());
    assert_eq!(recorded_usage(&serving, &limited.project), expected_limited);
    assert!(expected_limited.requests["limited"] > 50, "{expected_limited:?}");

    // A client that disconnected does not know how many tokens were generated. Its records must be within the possible
    // range, and all others must add up exactly.
    let rows = export(folder.path(), &counts.project);
    let left: Vec<&Value> = rows.iter().filter(|row| row["outcome"] == "abandoned").collect();
    let prompt = expected.input
        / (expected.requests["succeeded"]
            - rows.iter().filter(|row| row["model"].is_null() && row["outcome"] == "succeeded").count() as u64);
    for row in &left {
        let (input, output) = (row["input_tokens"].as_u64().unwrap(), row["output_tokens"].as_u64().unwrap());
        assert!(input == prompt || (input, output) == (0, 0), "{row}");
        assert!(output < 4000, "{row}");
        expected.input += input;
        expected.output += output;
    }
    assert!(left.iter().any(|row| row["output_tokens"].as_u64().unwrap() > 0));
    assert_eq!(recorded_usage(&serving, &counts.project), expected);
    drop(serving);
    assert!(run(folder.path(), &["check"]).status.success());
}

/// Waits for the records of abandoned requests, which are written when the server notices the disconnect.
fn wait_for(serving: &ServerProcess, project: &str, requests: u64) {
    let recorded_usage = || recorded_usage(serving, project);
    until(|| format!("{:?} of {requests}", recorded_usage()), || recorded_usage().total() == requests);
}

/// `outpost usage export` while the server runs.
fn export(folder: &Path, project: &str) -> Vec<Value> {
    let to = folder.join("usage.jsonl");
    let output = run(folder, &["usage", "export", "--project", project, "--format", "jsonl", to.to_str().unwrap()]);
    assert!(output.status.success(), "{}", output_text(&output));
    let text = std::fs::read_to_string(&to).unwrap();
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let again = run(folder, &["usage", "export", to.to_str().unwrap()]);
    assert!(!again.status.success(), "an existing file is not overwritten");
    let table = folder.join("usage.csv");
    assert!(run(folder, &["usage", "export", "--project", project, table.to_str().unwrap()]).status.success());
    assert_eq!(std::fs::read_to_string(&table).unwrap().lines().count(), rows.len() + 1);
    rows
}

#[test]
fn every_answered_request_is_recorded_after_a_kill() {
    let folder = folder(&TinyModel::default());
    let mut serving = ServerProcess::start(folder.path(), &[]);
    let project = tenant(&serving, None).project;
    let tenants: Vec<Tenant> = (0..CLIENTS).map(|_| tenant(&serving, Some(&project))).collect();
    let mut answered: Vec<Count> = vec![Count::default(); CLIENTS];
    for round in 0..3_u64 {
        let more = until_killed(&serving, &tenants, Duration::from_millis(400 + 311 * round));
        answered.iter_mut().zip(&more).for_each(|(sum, count_outcome)| sum.add(count_outcome));
        serving.wait(Duration::from_secs(5));
        serving = ServerProcess::start(folder.path(), &[]);
        let path = format!("/v1/projects/{project}/usage?group_by=api_key_id");
        let report: Value = serde_json::from_str(&serving.request(Method::GET, &path, None).text().unwrap()).unwrap();
        for (tenant, count) in tenants.iter().zip(&mut answered) {
            let group =
                report["groups"].as_array().unwrap().iter().find(|group| group["api_key_id"] == tenant.key_id.as_str());
            let found = group.map(series_count).unwrap_or_default();
            // A client has at most one request in flight, which may or may not be recorded.
            assert!(
                found.total() == count.total() || found.total() == count.total() + 1,
                "{found:?}, answered {count:?}"
            );
            assert!(found.input >= count.input && found.output >= count.output, "{found:?}, answered {count:?}");
            if found.total() == count.total() {
                assert_eq!(&found, count);
            }
            *count = found;
        }
        assert!(answered.iter().map(Count::total).sum::<u64>() > 50 * (round + 1));
    }
    drop(serving);
    assert!(run(folder.path(), &["check"]).status.success());
}

#[test]
fn a_preview_that_counts_as_the_image_is_recorded_even_if_the_server_is_killed_right_after_it() {
    let folder = folder(&TinyModel::default());
    add_fixture("pipelines", &folder.path().join("models"), "sd1");
    let mut serving = ServerProcess::start(folder.path(), &[]);
    let projects: Value =
        serde_json::from_str(&serving.request(Method::GET, "/v1/projects", None).text().unwrap()).unwrap();
    let project = projects["data"][0]["id"].as_str().unwrap();
    let image = json!({
        "model": "sd1", "prompt": "a red house", "size": "64x64", "steps": 400, "scheduler": "ddim", "stream": true,
        "partial_images": 3,
    });
    let stream = BufReader::new(serving.request(Method::POST, "/v1/images/generations", Some(&image)));
    let previews = stream.lines().map(Result::unwrap).filter(|line| line == "event: image_generation.partial_image");
    assert_eq!(previews.take(2).count(), 2);
    serving.signal("KILL");
    serving.wait(Duration::from_secs(5));
    let rows = export(folder.path(), project);
    let row = rows.iter().find(|row| row["endpoint"] == "POST /images/generations").expect("it is recorded");
    assert_eq!((&row["images"], &row["outcome"]), (&json!(1), &json!("abandoned")));
    assert!(run(folder.path(), &["check"]).status.success());
}

/// The usage in the responses to each client until the server was killed.
fn until_killed(serving: &ServerProcess, tenants: &[Tenant], after: Duration) -> Vec<Count> {
    std::thread::scope(|scope| {
        let clients: Vec<_> = tenants
            .iter()
            .enumerate()
            .map(|(index, tenant)| {
                scope.spawn(move || {
                    let (client, mut counts) = (Client::new(), Count::default());
                    loop {
                        let stream = index % 2 == 0;
                        let sent = client
                            .post(format!("{}/v1/chat/completions", serving.url))
                            .bearer_auth(&tenant.key)
                            .header("content-type", "application/json")
                            .body(chat(MODEL, stream, 3).to_string())
                            .send();
                        let Some(text) = sent.ok().and_then(complete_text) else { return counts };
                        let body = if stream {
                            if !text.ends_with("data: [DONE]\n\n") {
                                return counts;
                            }
                            text.lines()
                                .rev()
                                .find_map(|line| line.strip_prefix("data: {"))
                                .map(|rest| format!("{{{rest}"))
                        } else {
                            Some(text)
                        };
                        counts.count_outcome("succeeded");
                        counts.tokens(&serde_json::from_str::<Value>(&body.unwrap()).unwrap()["usage"]);
                    }
                })
            })
            .collect();
        std::thread::sleep(after);
        serving.signal("KILL");
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    })
}

/// The body, if it is complete.
fn complete_text(mut response: reqwest::blocking::Response) -> Option<String> {
    let mut text = String::new();
    response.read_to_string(&mut text).ok()?;
    Some(text)
}
