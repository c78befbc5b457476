//! A disk that is nearly full, or full.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use outpost_testing::fixtures::fixture;
use reqwest::Method;
use reqwest::blocking::{Body, Client};
use serde_json::{Value, json};

use crate::process::{MODEL, ServerProcess, command, folder, output_text, run};
use crate::tiny_model::TinyModel;
use crate::tiny_whisper;
use crate::tune::examples;
use crate::wait::until;

const WHISPER: &str = "tiny-whisper";
const PICTURES: &str = "pictogram";
const BOUNDARY: &str = "xYzZY";
/// What is stored, in the order of the matrix.
const WRITES: [&str; 11] = [
    "key",
    "read",
    "chat",
    "conversation",
    "chat in it",
    "upload",
    "transcription",
    "picture",
    "batch",
    "pull",
    "backup",
];

/// A folder with models for all kinds of requests.
fn full_folder() -> tempfile::TempDir {
    let folder = folder(&TinyModel::default());
    tiny_whisper::write(&folder.path().join("models"), WHISPER, true);
    let pulled = run(folder.path(), &["models", "pull", PICTURES]);
    assert!(pulled.status.success(), "{}", output_text(&pulled));
    folder
}

/// A server with an admin key, and the IDs that requests need.
struct Rig {
    serving: ServerProcess,
    key: String,
    conversation: String,
    /// Where backups go.
    folder: PathBuf,
    data: String,
    count: std::cell::Cell<u64>,
}

/// A status, and the code of an error.
type Answer = (u16, String);

impl Rig {
    /// `conversation`: of an earlier server on the same data folder.
    fn start(folder: &Path, data: &Path, arguments: &[&str], conversation: Option<String>) -> Self {
        let data = data.to_str().unwrap().to_owned();
        let mut start = command(folder, &["serve", "--listen", "127.0.0.1:0", "--allow-pull", "--data", &data]);
        start.args(arguments).stderr(File::options().create(true).append(true).open(folder.join("log")).unwrap());
        let serving = ServerProcess::start_command(folder, start);
        let key = fs::read_to_string(Path::new(&data).join("admin.key")).unwrap().trim().to_owned();
        let conversation = conversation.unwrap_or_default();
        Self { serving, key, conversation, folder: folder.to_owned(), data, count: std::cell::Cell::default() }
    }

    fn send(&self, method: Method, path: &str, kind: &str, body: impl Into<Body>) -> Option<(u16, Value)> {
        let client = Client::builder().timeout(Duration::from_secs(120)).build().unwrap();
        let request = client.request(method, format!("{}{path}", self.serving.url)).bearer_auth(&self.key);
        let reply = request.header("content-type", kind).body(body).send().ok()?;
        let status = reply.status().as_u16();
        Some((status, reply.json().unwrap_or_default()))
    }

    fn json(&self, method: Method, path: &str, body: &Value) -> (u16, Value) {
        self.send(method, path, "application/json", body.to_string()).expect("an answer")
    }

    fn form(&self, path: &str, fields: &[(&str, &str)], file: &[u8]) -> Option<(u16, Value)> {
        let field = |(name, value): &(&str, &str)| {
            format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n")
        };
        let head = format!("--{BOUNDARY}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\n");
        let fields: String = fields.iter().map(field).collect();
        let end = format!("\r\n--{BOUNDARY}--\r\n");
        let body = [fields.as_bytes(), head.as_bytes(), file, end.as_bytes()].concat();
        self.send(Method::POST, path, &format!("multipart/form-data; boundary={BOUNDARY}"), body)
    }

    /// Tries one of [`WRITES`].
    fn write(&self, what: &str) -> Answer {
        self.count.set(self.count.get() + 1);
        let number = self.count.get();
        let message = json!([{ "role": "user", "content": format!("word {number}") }]);
        let chat = |conversation: Option<&str>| {
            let mut body = json!({ "model": MODEL, "messages": message, "max_tokens": 4 });
            if let Some(id) = conversation {
                body["conversation_id"] = json!(id);
            }
            self.json(Method::POST, "/v1/chat/completions", &body)
        };
        let (status, body) = match what {
            "key" => {
                let project = self.json(Method::GET, "/v1/me", &json!({})).1["project_id"].clone();
                let new = json!({ "name": format!("key {number}"), "project_id": project, "scopes": ["inference"] });
                self.json(Method::POST, "/v1/api-keys", &new)
            }
            "read" => self.json(Method::GET, "/v1/me", &json!({})),
            "chat" => chat(None),
            "chat in it" => chat(Some(&self.conversation)),
            "conversation" => self.json(Method::POST, "/v1/conversations", &json!({})),
            "upload" => self.upload(&format!("{number}\n").repeat(1 << 17)),
            "transcription" => {
                let file = fs::read(fixture("audio/mono-8k.wav"));
                self.form("/v1/audio/transcriptions", &[("model", WHISPER)], &file.unwrap()).expect("an answer")
            }
            "picture" => {
                let picture =
                    json!({ "model": PICTURES, "prompt": "a red apple", "response_format": "url", "steps": 1 });
                self.json(Method::POST, "/v1/images/generations", &picture)
            }
            "batch" => self.batch(),
            "pull" => self.pull(),
            "backup" => return self.backup(number),
            other => panic!("{other}"),
        };
        (status, body["error"]["code"].as_str().unwrap_or_default().to_owned())
    }

    fn upload(&self, content: &str) -> (u16, Value) {
        self.form("/v1/files", &[("purpose", "batch")], content.as_bytes()).unwrap_or_default()
    }

    /// Uploads the requests of a batch, creates it and waits for its end.
    fn batch(&self) -> (u16, Value) {
        let body = json!({ "model": MODEL, "prompt": "a", "max_tokens": 4 });
        let line = json!({ "custom_id": "a", "method": "POST", "url": "/v1/completions", "body": body }).to_string();
        let (status, file) = self.form("/v1/files", &[("purpose", "batch")], line.as_bytes()).expect("an answer");
        if status != 200 {
            return (status, file);
        }
        let new = json!({ "input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h" });
        let (status, batch) = self.json(Method::POST, "/v1/batches", &new);
        if status != 200 {
            return (status, batch);
        }
        let path = format!("/v1/batches/{}", batch["id"].as_str().unwrap());
        until(|| "the batch ends", || self.json(Method::GET, &path, &json!({})).1["state"] == "completed");
        (200, batch)
    }

    /// Pulls a model and waits for the outcome.
    fn pull(&self) -> (u16, Value) {
        let (status, pull) = self.json(Method::POST, "/v1/models/pull", &json!({ "model": PICTURES }));
        let Some(id) = pull["id"].as_str() else { return (status, pull) };
        let path = format!("/v1/model-pulls/{id}");
        let mut ended = Value::Null;
        until(
            || "the pull ends",
            || {
                ended = self.json(Method::GET, &path, &json!({})).1;
                !ended["ended_at"].is_null() || ended["error"]["request_id"].is_string()
            },
        );
        (if ended["error"].is_null() { 200 } else { 500 }, ended)
    }

    fn backup(&self, number: u64) -> Answer {
        let target = Path::new(&self.data).join(format!("backup-{number}.redb"));
        let made = run(&self.folder, &["backup", target.to_str().unwrap(), "--data", &self.data]);
        let left = fs::remove_file(&target).is_ok();
        assert_eq!(made.status.success(), left, "a backup that fails leaves nothing: {}", output_text(&made));
        assert!(!Path::new(&self.data).join(format!("backup-{number}.redb.partial")).exists());
        (if made.status.success() { 200 } else { 500 }, if left { "" } else { "refused" }.to_owned())
    }

    fn answers(&self) -> BTreeMap<&'static str, Answer> {
        WRITES.into_iter().map(|what| (what, self.write(what))).collect()
    }

    fn new_conversation(&mut self) {
        let (status, body) = self.json(Method::POST, "/v1/conversations", &json!({}));
        assert!(status < 300, "{body}");
        self.conversation = body["id"].as_str().unwrap().to_owned();
    }

    fn disk_level(&self) -> Value {
        self.json(Method::GET, "/readyz", &json!({})).1["disk"].clone()
    }
}

fn is_success((status, _): &Answer) -> bool {
    (200..300).contains(status)
}

#[test]
fn below_the_reserve_content_is_refused_and_everything_else_goes_on() {
    let folder = full_folder();
    let data = folder.path().join("data");
    let mut rig = Rig::start(folder.path(), &data, &["--min-free-disk", "0"], None);
    rig.new_conversation();
    assert_eq!(rig.disk_level(), "ample");
    for (what, answer) in rig.answers() {
        assert!(is_success(&answer), "{what}: {answer:?}");
    }
    let conversation = Some(rig.conversation.clone());
    rig.serving.signal("TERM");
    rig.serving.wait(Duration::from_secs(20));

    // No disk has so much space.
    let rig = Rig::start(folder.path(), &data, &["--min-free-disk", "1000000TiB"], conversation);
    assert_eq!(rig.disk_level(), "critical");
    let refused = || (507, "insufficient_storage".to_owned());
    let mut answers = rig.answers();
    for what in ["conversation", "chat in it", "upload", "transcription", "picture", "batch"] {
        assert_eq!(answers.remove(what), Some(refused()), "{what}");
    }
    for what in ["pull", "backup"] {
        let (status, code) = answers.remove(what).unwrap();
        assert_eq!(status, 500, "{what}: {code}");
    }
    for (what, answer) in answers {
        assert!(is_success(&answer), "{what}: {answer:?}");
    }
    let (status, body) = rig.json(Method::GET, &format!("/v1/conversations/{}", rig.conversation), &json!({}));
    assert_eq!(status, 200, "what is stored can be read: {body}");
    assert!(rig.json(Method::DELETE, &format!("/v1/conversations/{}", rig.conversation), &json!({})).0 < 300);
    let metrics = rig.serving.url.clone() + "/metrics";
    let metrics = Client::new().get(metrics).bearer_auth(&rig.key).send().unwrap().text().unwrap();
    assert!(metrics.contains("outpost_disk_level 2\n") && metrics.contains("outpost_disk_free_bytes "), "{metrics}");

    let doctor = run(folder.path(), &["doctor", "--fast", "--listen", "0", "--min-free-disk", "1000000TiB"]);
    let text = output_text(&doctor);
    assert!(
        !doctor.status.success() && text.contains("all content is refused; free space, or lower --min-free-disk"),
        "{text}"
    );
}

/// A file system of this size, unmounted on drop.
struct Disk {
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Disk {
    fn mount(kind: &str, mebibytes: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        fs::create_dir(&path).unwrap();
        let image = folder.path().join("image");
        let line = match kind {
            "tmpfs" => format!("mount -t tmpfs -o size={mebibytes}m tmpfs {}", path.display()),
            _ => format!(
                "truncate -s {mebibytes}M {0} && mkfs.{kind} -q {0} && mount -o loop {0} {1}",
                image.display(),
                path.display()
            ),
        };
        let mounted = Command::new("sh").args(["-c", &line]).output().unwrap();
        assert!(mounted.status.success(), "mounting needs root: {}", output_text(&mounted));
        Self { path, _folder: folder }
    }

    /// Fills all free space with a file of another program.
    fn fill(&self) -> PathBuf {
        let path = self.path.join("of-another-program");
        let mut file = File::create(&path).unwrap();
        for block in [1 << 20, 4096, 1] {
            let zeros = vec![1; block];
            while file.write_all(&zeros).is_ok() {}
        }
        let _full = file.sync_all();
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _unmounted = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

fn print_row(disk: &str, when: &str, answers: &BTreeMap<&'static str, Answer>) {
    let cells: Vec<String> = WRITES
        .iter()
        .map(|what| {
            let (status, code) = &answers[what];
            if code.is_empty() { format!("{what} {status}") } else { format!("{what} {status} {code}") }
        })
        .collect();
    println!("{disk} | {when} | {}", cells.join(" | "));
}

/// The matrix of what is written and where the disk is full, as a table on standard output.
#[test]
#[ignore = "mounts file systems, which needs root"]
fn a_full_disk_on_ext4_and_tmpfs_stops_only_what_needs_space_and_heals_by_itself() {
    for kind in ["tmpfs", "ext4"] {
        let folder = full_folder();
        let disk = Disk::mount(kind, 120);
        let data = disk.path.join("data");
        let mut rig = Rig::start(folder.path(), &data, &[], None);
        rig.new_conversation();
        print_row(kind, "free", &rig.answers());

        // A training runs while the disk is full, and is complete afterwards.
        let (_, file) = rig.form("/v1/files", &[("purpose", "fine-tune")], examples(8).as_bytes()).unwrap();
        let job =
            json!({ "model": MODEL, "training_file": file["id"], "seed": 7, "hyperparameters": { "n_epochs": 40 } });
        let (status, job) = rig.json(Method::POST, "/v1/fine_tuning/jobs", &job);
        assert_eq!(status, 200, "{job}");

        // One upload larger than the disk.
        let large = "a line of a file\n".repeat((185 << 20) / 17);
        let upload = rig.form("/v1/files", &[("purpose", "batch")], large.as_bytes());
        let upload = upload.map(|(status, body)| (status, body["error"]["code"].clone()));
        println!("{kind} | upload of 185 MB: {upload:?}, disk {}", rig.disk_level());
        let during = rig.answers();
        print_row(kind, "after that upload", &during);
        for what in ["key", "read", "chat", "chat in it"] {
            assert!(is_success(&during[what]), "{what}: {:?}", during[what]);
        }
        let ended = Instant::now();
        until(|| "the space of the upload is free again", || is_success(&rig.write("upload")));
        println!("{kind} | uploads succeed again after {:.1} s", ended.elapsed().as_secs_f64());

        // Another program fills the disk.
        let filler = disk.fill();
        let rows: Vec<_> = (0..3).map(|_| rig.answers()).collect();
        for row in &rows {
            print_row(kind, "full", row);
        }
        let last = rows.last().unwrap();
        for what in ["key", "read", "chat"] {
            assert!(is_success(&last[what]), "{what}: {:?}", last[what]);
        }
        println!("{kind} | readyz {}", rig.disk_level());
        // A second time, without spare space.
        let second = disk.path.join("more");
        let mut more = File::create(&second).unwrap();
        while more.write_all(&[1; 4096]).is_ok() {}
        drop(more);
        let emptied = rig.answers();
        print_row(kind, "full, spare space used", &emptied);

        fs::remove_file(filler).unwrap();
        let _removed = fs::remove_file(second);
        let freed = Instant::now();
        let answers = loop {
            let answers = rig.answers();
            if answers.values().all(is_success) || freed.elapsed() > Duration::from_secs(60) {
                break answers;
            }
        };
        print_row(kind, &format!("freed, after {:.1} s", freed.elapsed().as_secs_f64()), &answers);
        for (what, answer) in &answers {
            assert!(is_success(answer), "{what}: {answer:?}");
        }
        let path = format!("/v1/fine_tuning/jobs/{}", job["id"].as_str().unwrap());
        until(|| "the training is complete", || rig.json(Method::GET, &path, &json!({})).1["state"] == "succeeded");
        rig.serving.signal("KILL");
        rig.serving.wait(Duration::from_secs(10));
        let checked = run(folder.path(), &["check", "--data", data.to_str().unwrap()]);
        assert!(checked.status.success(), "{}", output_text(&checked));
        println!("{kind} | kill -9, then check: {}", output_text(&checked).trim());
    }
}
