//! T12: a thousand secrets, and no trace of one where it does not belong.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use aho_corasick::AhoCorasick;
use reqwest::Method;
use reqwest::blocking::Client;
use serde_json::{Value, json};

use crate::process::{Serving, command, folder, run, said};
use crate::tiny_model::TinyModel;

const KEYS: usize = 500;
const CLIENTS: usize = 8;
/// Where the random part of a secret lies.
const RANDOM: std::ops::Range<usize> = 26..69;

/// Base64 of `text`, as it looks wherever in a longer text it stands.
fn base64(text: &[u8], letters: &[u8; 64]) -> Vec<Vec<u8>> {
    let shifted = |shift: usize| {
        let bytes: Vec<u8> = std::iter::repeat_n(0, shift).chain(text.iter().copied()).collect();
        let whole = bytes.chunks_exact(3).flat_map(|three| {
            let bits = u32::from_be_bytes([0, three[0], three[1], three[2]]);
            [18, 12, 6, 0].map(|place| letters[(bits >> place) as usize & 63])
        });
        // The first letters depend on what stands before.
        whole.skip(if shift == 0 { 0 } else { 4 }).collect()
    };
    (0..3).map(shifted).collect()
}

/// All the spellings under which a secret would be a leak.
fn spellings(secret: &str) -> Vec<Vec<u8>> {
    const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut all = Vec::new();
    // The last is what is left of a secret that was cut off.
    for text in [secret, &secret[RANDOM], &secret[RANDOM.start..RANDOM.start + 24]] {
        let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
        all.extend([text.into(), hex.to_uppercase().into_bytes(), hex.into_bytes()]);
        all.extend([STANDARD, URL].iter().flat_map(|letters| base64(text.as_bytes(), letters)));
    }
    all
}

/// Looks for all secrets at once.
struct Search(AhoCorasick);

impl Search {
    fn new(secrets: &[String]) -> Self {
        Self(AhoCorasick::new(secrets.iter().flat_map(|secret| spellings(secret))).unwrap())
    }

    /// What is found in a text, with something of its surroundings.
    fn find(&self, text: &[u8]) -> Option<String> {
        let hit = self.0.find(text)?;
        let around = &text[hit.start().saturating_sub(200)..(hit.end() + 50).min(text.len())];
        Some(String::from_utf8_lossy(around).into_owned())
    }
}

/// What the clients were told, kept for the search.
#[derive(Default)]
struct Heard {
    secrets: Vec<String>,
    /// Bodies that must hold no secret.
    bodies: Vec<String>,
}

struct Crowd<'a> {
    url: &'a str,
    admin: &'a str,
    client: Client,
    heard: &'a Mutex<Heard>,
}

impl Crowd<'_> {
    fn ask(&self, method: Method, path: &str, key: &str, body: Option<&Value>) -> (u16, String) {
        let mut request = self.client.request(method, format!("{}{path}", self.url)).bearer_auth(key);
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let response = request.send().unwrap();
        (response.status().as_u16(), response.text().unwrap())
    }

    /// A new key's id and secret, from its creation or rotation.
    fn secret(&self, method: Method, path: &str, body: &Value) -> (String, String) {
        let (status, text) = self.ask(method, path, self.admin, Some(body));
        assert_eq!(status, 200, "{text}");
        let body: Value = serde_json::from_str(&text).unwrap();
        let text = |field: &str| body[field].as_str().unwrap().to_owned();
        self.heard.lock().unwrap().secrets.push(text("secret"));
        (text("id"), text("secret"))
    }

    fn keep(&self, (status, body): (u16, String), expected: std::ops::Range<u16>) {
        assert!(expected.contains(&status), "{status}: {body}");
        self.heard.lock().unwrap().bodies.push(body);
    }

    /// Life and misuse of a few keys.
    fn work(&self, project: &str, keys: usize) {
        for number in 0..keys {
            let new = json!({ "name": "ci", "project_id": project });
            let (id, first) = self.secret(Method::POST, "/v1/api-keys", &new);
            let how = json!({ "grace_period_seconds": number % 2 * 60, "reason": "yearly" });
            let (_, second) = self.secret(Method::PUT, &format!("/v1/api-keys/{id}"), &how);
            self.keep(self.ask(Method::GET, &format!("/v1/api-keys/{id}"), &second, None), 200..201);
            self.keep(self.ask(Method::GET, "/v1/projects", &first, None), 200..402);
            if number % 5 == 0 {
                self.misuse(&second);
                self.keep(self.ask(Method::DELETE, &format!("/v1/api-keys/{id}"), self.admin, None), 200..201);
                self.keep(self.ask(Method::GET, "/v1/models", &second, None), 401..402);
            }
        }
    }

    /// A secret where no secret belongs.
    fn misuse(&self, secret: &str) {
        let wrong = |place: &str, fill: &str| format!("{place}{fill}");
        for path in [
            "/v1/api-keys/",
            "/v1/projects/",
            "/openai/v1/models/",
            "/v1/",
            "/",
            "/v1/projects?cursor=",
            "/v1/projects?limit=",
        ] {
            self.keep(self.ask(Method::GET, &wrong(path, secret), self.admin, None), 400..405);
        }
        self.keep(self.ask(Method::GET, &wrong("/v1/models?", secret), self.admin, None), 200..201);
        self.keep(self.ask(Method::DELETE, &wrong("/v1/api-keys/", secret), self.admin, None), 404..405);
        for key in [&secret[..secret.len() - 1], &wrong(secret, "x"), &wrong("sk-", secret), &wrong(secret, ",")] {
            self.keep(self.ask(Method::GET, "/v1/models", key, None), 401..402);
        }
        for body in [
            json!({ "name": "x", "project_id": secret }),
            json!({ "name": "x", "api_key": secret }),
            json!({ "name": "x", secret: 1 }),
            json!({ "name": 1, "project_id": secret }),
            json!([secret]),
            json!({ "name": "x", "project_id": "x", "expires_at": secret }),
            json!({ "name": "x", "project_id": "x", "scopes": [secret] }),
        ] {
            self.keep(self.ask(Method::POST, "/v1/api-keys", self.admin, Some(&body)), 400..405);
        }
        let chat = json!({ "model": secret, "messages": [{ "role": secret, "content": secret }] });
        self.keep(self.ask(Method::POST, "/v1/chat/completions", secret, Some(&chat)), 400..405);
        let elsewhere = self.client.get(format!("{}/v1/models", self.url));
        let elsewhere = elsewhere
            .basic_auth(secret, Some(secret))
            .header("x-api-key", secret)
            .header("cookie", secret)
            .header("x-client-request-id", secret);
        self.keep(elsewhere.send().map(|sent| (sent.status().as_u16(), sent.text().unwrap())).unwrap(), 401..402);
    }
}

/// Serves with the fullest log, works, takes a backup in the middle, and stops.
fn session(folder: &Path, format: &str, keys: usize, heard: &Mutex<Heard>) {
    let log = File::options().create(true).append(true).open(folder.join(format!("{format}.log"))).unwrap();
    let mut start = command(folder, &["serve", "--listen", "127.0.0.1:0", "--log-format", format]);
    start.env("OUTPOST_LOG", "trace").stderr(log);
    let mut serving = Serving::start_as(folder, start);
    let (url, admin) = (serving.url.clone(), serving.key());
    let crowd = Crowd { url: &url, admin: &admin, client: Client::new(), heard };
    let (_, project) = crowd.ask(Method::POST, "/v1/projects", &admin, Some(&json!({ "name": "crowd" })));
    let project = serde_json::from_str::<Value>(&project).unwrap()["id"].as_str().unwrap().to_owned();
    std::thread::scope(|scope| {
        (0..CLIENTS).for_each(|_| drop(scope.spawn(|| crowd.work(&project, keys.div_ceil(CLIENTS)))));
        let saved = run(folder, &["backup", &format!("{format}.backup")]);
        assert!(saved.status.success(), "{}", said(&saved));
        heard.lock().unwrap().bodies.push(said(&saved));
    });
    for path in [&format!("/v1/api-keys?limit=100&project_id={project}"), "/v1/audit-events?limit=100", "/openapi.json"]
    {
        crowd.keep(crowd.ask(Method::GET, path, &admin, None), 200..201);
    }
    serving.signal("TERM");
    assert_eq!(serving.wait(Duration::from_secs(20)), Some(0));
    heard.lock().unwrap().secrets.push(admin);
}

/// Every file below, but the one that is meant to hold a secret.
fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        match entry.file_type().unwrap() {
            kind if kind.is_dir() => found.extend(files(&entry.path())),
            kind if kind.is_file() && entry.file_name() != "admin.key" => found.push(entry.path()),
            _ => {}
        }
    }
    found
}

#[test]
fn no_secret_is_found_in_any_file_log_or_answer() {
    let folder = folder(&TinyModel::default());
    let heard = Mutex::default();
    session(folder.path(), "text", KEYS / 2, &heard);
    session(folder.path(), "json", KEYS / 2, &heard);
    let Heard { secrets, bodies } = heard.into_inner().unwrap();
    assert!(secrets.len() > 2 * KEYS, "{} secrets", secrets.len());
    let search = Search::new(&secrets);
    for body in &bodies {
        assert_eq!(search.find(body.as_bytes()), None, "in an answer: {body}");
    }
    let files = files(folder.path());
    for name in ["outpost.redb", "text.log", "json.log", "text.backup", "json.backup", "pepper"] {
        assert!(files.iter().any(|file| file.ends_with(name)), "{name} is missing in {files:?}");
    }
    for file in &files {
        assert_eq!(search.find(&fs::read(file).unwrap()), None, "in {}", file.display());
    }
    let log = fs::read_to_string(folder.path().join("json.log")).unwrap();
    assert!(log.contains("\"level\":\"TRACE\"") && log.contains("api-keys"), "the log is not at its fullest");
    println!("{} secrets, {} bodies, {} bytes of log", secrets.len(), bodies.len(), log.len());
}

#[test]
fn the_search_finds_a_secret_in_any_spelling() {
    let secret = |letter: &str| format!("opk_{}", letter.repeat(71));
    let search = Search::new(&[secret("a"), secret("b")]);
    for spelling in spellings(&secret("b")) {
        let planted = [b"log line ", spelling.as_slice(), b" goes on"].concat();
        assert!(search.find(&planted).is_some(), "{}", String::from_utf8_lossy(&spelling));
    }
    assert_eq!(search.find(secret("c").as_bytes()), None);
}
