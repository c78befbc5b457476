//! Secrets are in no file, log or response where they do not belong. The test uses a thousand secrets.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use aho_corasick::AhoCorasick;
use reqwest::Method;
use reqwest::blocking::Client;
use serde_json::{Value, json};

use crate::process::{ServerProcess, command, folder, output_text, run};
use crate::tiny_model::TinyModel;

const KEYS: usize = 500;
const CLIENTS: usize = 8;
/// The range of the random part in a secret.
const RANDOM: std::ops::Range<usize> = 26..69;

/// The Base64 encodings of `text` at the three possible offsets in a longer text.
fn base64(text: &[u8], letters: &[u8; 64]) -> Vec<Vec<u8>> {
    let shifted = |shift: usize| {
        let bytes: Vec<u8> = std::iter::repeat_n(0, shift).chain(text.iter().copied()).collect();
        let whole = bytes.chunks_exact(3).flat_map(|three| {
            let bits = u32::from_be_bytes([0, three[0], three[1], three[2]]);
            [18, 12, 6, 0].map(|shift| letters[(bits >> shift) as usize & 63])
        });
        // The first characters depend on the preceding bytes.
        whole.skip(if shift == 0 { 0 } else { 4 }).collect()
    };
    (0..3).map(shifted).collect()
}

/// All encodings in which a secret would be a leak.
fn encodings(secret: &str) -> Vec<Vec<u8>> {
    const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut all = Vec::new();
    // The last one is the rest of a truncated secret.
    for text in [secret, &secret[RANDOM], &secret[RANDOM.start..RANDOM.start + 24]] {
        let hex: String = text.bytes().map(|byte| format!("{byte:02x}")).collect();
        all.extend([text.into(), hex.to_uppercase().into_bytes(), hex.into_bytes()]);
        all.extend([STANDARD, URL].iter().flat_map(|letters| base64(text.as_bytes(), letters)));
    }
    all
}

/// Searches for all secrets at once.
struct Search(AhoCorasick);

impl Search {
    fn new(secrets: &[String]) -> Self {
        Self(AhoCorasick::new(secrets.iter().flat_map(|secret| encodings(secret))).unwrap())
    }

    /// The first match in a text, with some context.
    fn find(&self, text: &[u8]) -> Option<String> {
        let hit = self.0.find(text)?;
        let around = &text[hit.start().saturating_sub(200)..(hit.end() + 50).min(text.len())];
        Some(String::from_utf8_lossy(around).into_owned())
    }
}

/// The responses to the clients, recorded for the search.
#[derive(Default)]
struct Heard {
    secrets: Vec<String>,
    /// Bodies that must not contain a secret.
    bodies: Vec<String>,
}

struct Clients<'a> {
    url: &'a str,
    admin: &'a str,
    client: Client,
    recorded: &'a Mutex<Heard>,
}

impl Clients<'_> {
    fn request(&self, method: Method, path: &str, key: &str, body: Option<&Value>) -> (u16, String) {
        let mut request = self.client.request(method, format!("{}{path}", self.url)).bearer_auth(key);
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        let response = request.send().unwrap();
        (response.status().as_u16(), response.text().unwrap())
    }

    /// The ID and secret of a key from its creation or rotation.
    fn secret(&self, method: Method, path: &str, body: &Value) -> (String, String) {
        let (status, text) = self.request(method, path, self.admin, Some(body));
        assert_eq!(status, 200, "{text}");
        let body: Value = serde_json::from_str(&text).unwrap();
        let text = |field: &str| body[field].as_str().unwrap().to_owned();
        self.recorded.lock().unwrap().secrets.push(text("secret"));
        (text("id"), text("secret"))
    }

    fn record(&self, (status, body): (u16, String), expected: std::ops::Range<u16>) {
        assert!(expected.contains(&status), "{status}: {body}");
        self.recorded.lock().unwrap().bodies.push(body);
    }

    /// Creates, uses, rotates and revokes keys, and sends their secrets where they do not belong.
    fn use_keys(&self, project: &str, keys: usize) {
        for number in 0..keys {
            let new = json!({ "name": "ci", "project_id": project });
            let (id, first) = self.secret(Method::POST, "/v1/api-keys", &new);
            let how = json!({ "grace_period_seconds": number % 2 * 60, "reason": "yearly" });
            let (_, second) = self.secret(Method::PUT, &format!("/v1/api-keys/{id}"), &how);
            self.record(self.request(Method::GET, &format!("/v1/api-keys/{id}"), &second, None), 200..201);
            self.record(self.request(Method::GET, "/v1/projects", &first, None), 200..402);
            if number % 5 == 0 {
                self.send_misplaced_secret(&second);
                self.record(self.request(Method::DELETE, &format!("/v1/api-keys/{id}"), self.admin, None), 200..201);
                self.record(self.request(Method::GET, "/v1/models", &second, None), 401..402);
            }
        }
    }

    /// Sends a secret where no secret belongs.
    fn send_misplaced_secret(&self, secret: &str) {
        let wrong = |shift: &str, fill: &str| format!("{shift}{fill}");
        for path in [
            "/v1/api-keys/",
            "/v1/projects/",
            "/openai/v1/models/",
            "/v1/",
            "/",
            "/v1/projects?cursor=",
            "/v1/projects?limit=",
        ] {
            self.record(self.request(Method::GET, &wrong(path, secret), self.admin, None), 400..405);
        }
        self.record(self.request(Method::GET, &wrong("/v1/models?", secret), self.admin, None), 200..201);
        self.record(self.request(Method::DELETE, &wrong("/v1/api-keys/", secret), self.admin, None), 404..405);
        for key in [&secret[..secret.len() - 1], &wrong(secret, "x"), &wrong("sk-", secret), &wrong(secret, ",")] {
            self.record(self.request(Method::GET, "/v1/models", key, None), 401..402);
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
            self.record(self.request(Method::POST, "/v1/api-keys", self.admin, Some(&body)), 400..405);
        }
        let chat = json!({ "model": secret, "messages": [{ "role": secret, "content": secret }] });
        self.record(self.request(Method::POST, "/v1/chat/completions", secret, Some(&chat)), 400..405);
        let elsewhere = self.client.get(format!("{}/v1/models", self.url));
        let elsewhere = elsewhere
            .basic_auth(secret, Some(secret))
            .header("x-api-key", secret)
            .header("cookie", secret)
            .header("x-client-request-id", secret);
        self.record(elsewhere.send().map(|sent| (sent.status().as_u16(), sent.text().unwrap())).unwrap(), 401..402);
    }
}

/// Runs a server with the most verbose log, uses keys, takes a backup in between, and stops the server.
fn run_server_session(folder: &Path, format: &str, keys: usize, recorded: &Mutex<Heard>) {
    let log = File::options().create(true).append(true).open(folder.join(format!("{format}.log"))).unwrap();
    let mut start = command(folder, &["serve", "--listen", "127.0.0.1:0", "--log-format", format]);
    start.env("OUTPOST_LOG", "trace").stderr(log);
    let mut serving = ServerProcess::start_command(folder, start);
    let (url, admin) = (serving.url.clone(), serving.key());
    let clients = Clients { url: &url, admin: &admin, client: Client::new(), recorded };
    let (_, project) = clients.request(Method::POST, "/v1/projects", &admin, Some(&json!({ "name": "crowd" })));
    let project = serde_json::from_str::<Value>(&project).unwrap()["id"].as_str().unwrap().to_owned();
    std::thread::scope(|scope| {
        (0..CLIENTS).for_each(|_| drop(scope.spawn(|| clients.use_keys(&project, keys.div_ceil(CLIENTS)))));
        let saved = run(folder, &["backup", &format!("{format}.backup")]);
        assert!(saved.status.success(), "{}", output_text(&saved));
        recorded.lock().unwrap().bodies.push(output_text(&saved));
    });
    for path in [&format!("/v1/api-keys?limit=100&project_id={project}"), "/v1/audit-events?limit=100", "/openapi.json"]
    {
        clients.record(clients.request(Method::GET, path, &admin, None), 200..201);
    }
    serving.signal("TERM");
    assert_eq!(serving.wait(Duration::from_secs(20)), Some(0));
    recorded.lock().unwrap().secrets.push(admin);
}

/// All files below a folder, except the one that contains a secret on purpose.
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
fn no_secret_is_in_any_file_log_or_response() {
    let folder = folder(&TinyModel::default());
    let recorded = Mutex::default();
    run_server_session(folder.path(), "text", KEYS / 2, &recorded);
    run_server_session(folder.path(), "json", KEYS / 2, &recorded);
    let Heard { secrets, bodies } = recorded.into_inner().unwrap();
    assert!(secrets.len() > 2 * KEYS, "{} secrets", secrets.len());
    let search = Search::new(&secrets);
    for body in &bodies {
        assert_eq!(search.find(body.as_bytes()), None, "in a response: {body}");
    }
    let files = files(folder.path());
    for name in ["outpost.redb", "text.log", "json.log", "text.backup", "json.backup", "pepper"] {
        assert!(files.iter().any(|file| file.ends_with(name)), "{name} is missing in {files:?}");
    }
    for file in &files {
        assert_eq!(search.find(&fs::read(file).unwrap()), None, "in {}", file.display());
    }
    let log = fs::read_to_string(folder.path().join("json.log")).unwrap();
    assert!(
        log.contains("\"level\":\"TRACE\"") && log.contains("api-keys"),
        "the log is not at its most verbose level"
    );
    println!("{} secrets, {} bodies, {} bytes of log", secrets.len(), bodies.len(), log.len());
}

#[test]
fn the_search_finds_a_secret_in_any_encoding() {
    let secret = |letter: &str| format!("opk_{}", letter.repeat(71));
    let search = Search::new(&[secret("a"), secret("b")]);
    for spelling in encodings(&secret("b")) {
        let planted = [b"log line ", spelling.as_slice(), b" goes on"].concat();
        assert!(search.find(&planted).is_some(), "{}", String::from_utf8_lossy(&spelling));
    }
    assert_eq!(search.find(secret("c").as_bytes()), None);
}
