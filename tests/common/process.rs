//! The built binary as a child process.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::children;
use crate::tiny_model::{self, TinyModel};

pub const MODEL: &str = "tiny";

/// A folder with a tiny model and room for data.
pub fn folder(model: &TinyModel) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    tiny_model::write(&folder.path().join("models"), MODEL, model);
    folder
}

/// `outpost ARGUMENTS` on the data and models of `folder`.
pub fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outpost"));
    command.args(arguments).current_dir(folder).env_remove("OUTPOST_DATA").stdin(Stdio::null());
    command
}

pub fn run(folder: &Path, arguments: &[&str]) -> Output {
    command(folder, arguments).output().unwrap()
}

pub fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A serving process, killed when dropped.
pub struct Serving {
    pub child: Child,
    pub url: String,
    /// What it printed until it listened, and how long that took.
    pub greeting: String,
    pub started_in: Duration,
    folder: PathBuf,
}

impl Serving {
    pub fn start(folder: &Path, more: &[&str]) -> Self {
        let arguments = [&["serve", "--listen", "127.0.0.1:0"], more].concat();
        let mut start = command(folder, &arguments);
        start.stderr(Stdio::null());
        Self::start_as(folder, start)
    }

    /// Starts a prepared command.
    pub fn start_as(folder: &Path, mut start: Command) -> Self {
        let before = Instant::now();
        let child = start.stdout(Stdio::piped()).spawn().unwrap();
        Self::starting(folder, child, before)
    }

    /// Waits for a process that has just been started.
    pub fn starting(folder: &Path, mut child: Child, before: Instant) -> Self {
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let first = receiver.recv_timeout(Duration::from_secs(20)).expect("the server says that it listens");
        let started_in = before.elapsed();
        let url = first.rsplit(' ').next().unwrap().to_owned();
        let mut greeting = first;
        while let Ok(line) = receiver.recv_timeout(Duration::from_millis(300)) {
            greeting += "\n";
            greeting += &line;
        }
        Self { child, url, greeting, started_in, folder: folder.to_owned() }
    }

    pub fn key(&self) -> String {
        std::fs::read_to_string(self.folder.join("data/admin.key")).unwrap().trim().to_owned()
    }

    pub fn request(&self, method: reqwest::Method, path: &str, body: Option<&Value>) -> reqwest::blocking::Response {
        let client = reqwest::blocking::Client::builder().timeout(Duration::from_secs(60)).build().unwrap();
        let mut request = client.request(method, format!("{}{path}", self.url)).bearer_auth(self.key());
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        request.send().unwrap()
    }

    pub fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        let status = Command::new("sh").args(["-c", &kill]).status().unwrap();
        assert!(status.success());
    }

    /// The processes that the server has started and that run.
    pub fn sandboxes(&self) -> Vec<u32> {
        children::of(self.child.id())
    }

    /// Waits for the end and returns the exit code.
    pub fn wait(&mut self, limit: Duration) -> Option<i32> {
        let before = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(before.elapsed() < limit, "the server did not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _already_gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Permission bits of a file.
pub fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// Whatever is left of a response.
pub fn rest(mut response: reqwest::blocking::Response) -> String {
    let mut text = String::new();
    let _cut = response.read_to_string(&mut text);
    text
}
