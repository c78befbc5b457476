//! Large responses that their clients do not read, and the memory that they take.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::{ServerProcess, folder};
use crate::slow_clients::connect;
use crate::tiny_model::TinyModel;
use crate::wait::until;

/// Bytes of a message.
const MESSAGE: usize = 100_000;

/// A server with a conversation.
pub struct LargeConversation {
    pub serving: ServerProcess,
    /// Its path.
    pub path: String,
    pub folder: TempDir,
}

impl LargeConversation {
    pub fn start(megabytes: usize, arguments: &[&str]) -> Self {
        let folder = folder(&TinyModel::default());
        // Another process, so that what follows is measured by itself, and without TLS.
        let mut creating = ServerProcess::start(folder.path(), &[]);
        let path = create(&creating, &creating.key(), megabytes);
        creating.signal("TERM");
        assert_eq!(creating.wait(Duration::from_secs(20)), Some(0));
        let serving = ServerProcess::start(folder.path(), arguments);
        Self { serving, path, folder }
    }

    /// Resident memory of the process, and its peak since the last reset, in MB.
    pub fn memory(&self) -> (u64, u64) {
        let text = fs::read_to_string(format!("/proc/{}/status", self.serving.child.id())).unwrap();
        let field = |name: &str| {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1000
        };
        (field("VmRSS:"), field("VmHWM:"))
    }

    pub fn reset_peak(&self) {
        fs::write(format!("/proc/{}/clear_refs", self.serving.child.id()), "5").unwrap();
    }

    /// Connections that have requested the conversation and do not read.
    fn unread(&self, count: usize) -> Vec<TcpStream> {
        let request = request(&self.path, &self.serving.key());
        let send = |_| {
            let mut client = connect(&self.serving);
            client.write_all(request.as_bytes()).unwrap();
            client
        };
        (0..count).map(send).collect()
    }

    /// The bytes of unsent responses that `/metrics` reports.
    fn unsent(&self) -> u64 {
        let text = self.serving.request(Method::GET, "/metrics", None).text().unwrap();
        let line = text.lines().find(|line| line.starts_with("outpost_unsent_responses_bytes ")).expect("a metric");
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }
}

/// A request over HTTP/1.
fn request(path: &str, key: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\r\n")
}

/// Creates a conversation and returns its path.
fn create(serving: &ServerProcess, key: &str, megabytes: usize) -> String {
    let message = json!({ "role": "user", "content": "x".repeat(MESSAGE) });
    let body = json!({ "messages": vec![message; megabytes * 1_000_000 / MESSAGE] });
    let created: Value = client()
        .post(format!("{}/v1/conversations", serving.url))
        .bearer_auth(key)
        .json(&body)
        .send()
        .unwrap()
        .json()
        .unwrap();
    format!("/v1/conversations/{}", created["id"].as_str().unwrap())
}

fn client() -> reqwest::blocking::Client {
    reqwest::blocking::Client::builder().timeout(Duration::from_secs(60)).build().unwrap()
}

/// A key of another project.
fn other_key(serving: &ServerProcess) -> String {
    let created = |path: &str, body: Value| -> Value {
        let response = serving.request(Method::POST, path, Some(&body));
        assert_eq!(response.status(), 200);
        response.json().unwrap()
    };
    let project = created("/v1/projects", json!({ "name": "other" }));
    let key = created("/v1/api-keys", json!({ "project_id": project["id"], "name": "other" }));
    key["secret"].as_str().or(key["key"].as_str()).unwrap().to_owned()
}

fn read(serving: &ServerProcess, path: &str, key: &str) -> (u16, usize) {
    let response = client().get(format!("{}{path}", serving.url)).bearer_auth(key).send().unwrap();
    (response.status().as_u16(), response.bytes().unwrap().len())
}

#[test]
fn responses_that_are_not_read_take_bounded_memory_and_others_are_answered() {
    let large = LargeConversation::start(6, &["--memory", "256MiB"]);
    let serving = &large.serving;
    let other = other_key(serving);
    let of_other = create(serving, &other, 6);
    // Memory that stays allocated after the first requests is not counted.
    assert!(read(serving, &large.path, &serving.key()).1 > 6_000_000);
    large.reset_peak();
    let before = large.memory().0;
    let unread = large.unread(40);
    until(|| "responses wait for their clients", || large.unsent() > 6_000_000);
    let (status, bytes) = read(serving, &of_other, &other);
    assert!(status == 200 && bytes > 6_000_000, "{status} {bytes}");
    // Waiting requests get their turn, or are refused.
    std::thread::sleep(Duration::from_secs(2));
    let peak = large.memory().1;
    assert!(peak <= before + 130, "{peak} MB, {before} MB at first");
    drop(unread);
    until(|| "all is given back", || large.unsent() == 0);
    until(|| format!("{} MB, {before} MB at first", large.memory().0), || large.memory().0 <= before + 40);
}

#[test]
fn a_response_that_does_not_fit_is_refused_with_the_time_of_a_retry() {
    let large = LargeConversation::start(6, &["--memory", "256MiB"]);
    let unread = large.unread(8);
    until(|| "responses wait for their clients", || large.unsent() > 6_000_000);
    let begun = Instant::now();
    let refused = large.serving.request(Method::GET, &large.path, None);
    let waited = begun.elapsed();
    assert_eq!((refused.status().as_u16(), refused.headers()["retry-after"].to_str().unwrap()), (503, "10"));
    let body: Value = refused.json().unwrap();
    assert_eq!(body["error"]["code"], "overloaded", "{body}");
    assert!(waited < Duration::from_secs(15), "{waited:?}");
    // Small responses need no room.
    assert_eq!(large.serving.request(Method::GET, "/v1/models", None).status(), 200);
    drop(unread);
    until(|| "all is given back", || large.unsent() == 0);
    assert_eq!(large.serving.request(Method::GET, &large.path, None).status(), 200);
}

#[test]
fn many_clients_that_read_get_their_large_responses() {
    let large = LargeConversation::start(6, &["--memory", "256MiB"]);
    let (serving, key) = (&large.serving, large.serving.key());
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..24).map(|_| scope.spawn(|| read(serving, &large.path, &key))).collect();
        for client in clients {
            let (status, bytes) = client.join().unwrap();
            assert!(status == 200 && bytes > 6_000_000, "{status} {bytes}");
        }
    });
}

/// `cargo test --release --test cli unread_responses -- --ignored --nocapture`
#[test]
#[ignore = "takes gigabytes of memory if it fails"]
fn hundreds_of_large_responses_that_are_not_read_stay_within_the_memory_of_the_process() {
    let large = LargeConversation::start(7, &["--memory", "1GiB"]);
    let before = large.memory().0;
    let unread = large.unread(300);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(500));
    }
    let peak = large.memory().1;
    drop(unread);
    until(|| "all is given back", || large.unsent() == 0);
    std::thread::sleep(Duration::from_secs(3));
    let after = large.memory().0;
    println!("300 clients over HTTP/1: {before} MB before, at most {peak} MB, {after} MB afterwards");
    assert!(peak <= 1400 && after <= before + 100);
}

#[test]
fn a_waiting_request_is_answered_when_other_clients_have_left() {
    let large = LargeConversation::start(6, &["--memory", "256MiB"]);
    let unread = large.unread(6);
    until(|| "responses wait for their clients", || large.unsent() > 6_000_000);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| read(&large.serving, &large.path, &large.serving.key()));
        std::thread::sleep(Duration::from_secs(1));
        assert!(!waiting.is_finished());
        drop(unread);
        assert_eq!(waiting.join().unwrap().0, 200);
    });
}
