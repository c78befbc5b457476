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

/// A folder with a tiny model.
pub fn folder(model: &TinyModel) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    tiny_model::write(&folder.path().join("models"), MODEL, model);
    folder
}

/// `outpost ARGUMENTS`, with `folder` as working directory.
pub fn command(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outpost"));
    command.args(arguments).current_dir(folder).env_remove("OUTPOST_DATA").stdin(Stdio::null());
    // Not the one of this machine.
    command.env("OUTPOST_CONFIG", "none");
    command
}

pub fn run(folder: &Path, arguments: &[&str]) -> Output {
    command(folder, arguments).output().unwrap()
}

/// Standard output and standard error.
pub fn output_text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A serving process, killed when dropped.
pub struct ServerProcess {
    pub child: Child,
    pub url: String,
    /// The text printed at start.
    pub startup_output: String,
    /// The time until the server listened.
    pub started_in: Duration,
    folder: PathBuf,
}

impl ServerProcess {
    pub fn start(folder: &Path, extra_arguments: &[&str]) -> Self {
        let arguments = [&["serve", "--listen", "127.0.0.1:0"], extra_arguments].concat();
        let mut start = command(folder, &arguments);
        start.stderr(Stdio::null());
        Self::start_command(folder, start)
    }

    /// Starts a prepared command.
    pub fn start_command(folder: &Path, mut start: Command) -> Self {
        let before = Instant::now();
        let child = start.stdout(Stdio::piped()).spawn().unwrap();
        Self::wait_for_start(folder, child, before)
    }

    /// Waits until a process that was started at `before` listens.
    pub fn wait_for_start(folder: &Path, mut child: Child, before: Instant) -> Self {
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (sender, receiver) = mpsc::channel();
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let first = receiver.recv_timeout(Duration::from_secs(20)).expect("the server prints its address");
        let started_in = before.elapsed();
        let address = first.find("http").expect("an address");
        let end = |letter: char| letter.is_whitespace() || letter == '"';
        let url = first[address..].split(end).next().unwrap().to_owned();
        let mut startup_output = first;
        while let Ok(line) = receiver.recv_timeout(Duration::from_millis(300)) {
            startup_output += "\n";
            startup_output += &line;
        }
        Self { child, url, startup_output, started_in, folder: folder.to_owned() }
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

    /// IDs of the server's running child processes.
    pub fn sandboxes(&self) -> Vec<u32> {
        children::of(self.child.id())
    }

    /// Waits until the process exits and returns the exit code.
    pub fn wait(&mut self, limit: Duration) -> Option<i32> {
        let before = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(before.elapsed() < limit, "the server did not exit");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _already_exited = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// Permission bits of a file.
pub fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// The rest of a response body. It may end early.
pub fn read_rest(mut response: reqwest::blocking::Response) -> String {
    let mut text = String::new();
    let _truncated = response.read_to_string(&mut text);
    text
}
