//! The server's side of a sandbox: a child process that runs one model's tokenizers and templates.
//!
//! The process handles several requests at a time. If it exits, each unanswered request is retried once, alone in a new
//! process, so that only requests that crash the process fail.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::Duration;

use super::sandbox_protocol::{self, MAX_CONCURRENT, lock};
use super::spec::Spec;
use crate::engine::error::PreprocessError;
use crate::engine::tokenizer::TokenizeLimits;

/// Timeout for loading a model's files and for each request. Large inputs extend it, see [`BYTES_PER_SECOND`].
const BASE_TIMEOUT: Duration = Duration::from_secs(10);
/// A tenth of a tokenizer's speed on a slow machine.
const BYTES_PER_SECOND: u64 = 2 << 20;
/// The subcommand of `outpost` that runs as the sandbox process.
pub const SUBCOMMAND: &str = "sandbox";
/// How often a waiting request checks whether it is cancelled.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The response, or the reason for the failure.
type Response = Result<Vec<u8>, String>;

pub struct Sandbox {
    program: PathBuf,
    spec: Spec,
    process: Mutex<Arc<Process>>,
    /// Requests hold it shared on their first attempt and exclusively on their second.
    attempts: RwLock<()>,
    semaphore: Semaphore,
    /// The hash of the tokenizer info that the first process reported, to detect changed files.
    info: u64,
}

struct Process {
    /// The model's files, for the log.
    files: String,
    child: Mutex<std::process::Child>,
    input: Mutex<ChildStdin>,
    pending: Mutex<Pending>,
}

/// The unanswered requests of a process.
#[derive(Default)]
struct Pending {
    /// The ID of the next request. The first request is the spec.
    next_id: u64,
    senders: HashMap<u64, SyncSender<Response>>,
    has_ended: bool,
}

/// The timeout for work on `bytes` bytes.
fn timeout(bytes: u64) -> Duration {
    BASE_TIMEOUT + Duration::from_secs(bytes / BYTES_PER_SECOND)
}

impl Sandbox {
    /// Starts a process. Also returns the tokenizer info that it reports.
    pub fn start(program: PathBuf, spec: Spec) -> Result<(Self, Vec<u8>), PreprocessError> {
        let (process, info) = Process::start(&program, &spec)?;
        let (process, attempts) = (Mutex::new(process), RwLock::default());
        let sandbox = Self { program, spec, process, attempts, semaphore: Semaphore::default(), info: digest(&info) };
        Ok((sandbox, info))
    }

    /// Sends a request and returns the response. Blocks up to a timeout that depends on its length. If the client's
    /// request is dropped, the process stops early.
    pub fn call(&self, request: Vec<u8>, limits: &TokenizeLimits) -> Result<Vec<u8>, PreprocessError> {
        let shared = self.attempts.read().unwrap_or_else(PoisonError::into_inner);
        let permit = self.semaphore.acquire();
        match self.process()?.call(&request, limits) {
            Err(PreprocessError::Crashed) if !limits.is_cancelled() => drop((permit, shared)),
            outcome => return outcome,
        }
        let _alone = self.attempts.write().unwrap_or_else(PoisonError::into_inner);
        self.process()?.call(&request, limits)
    }

    /// The process, or a new one if it has ended.
    fn process(&self) -> Result<Arc<Process>, PreprocessError> {
        let mut process = lock(&self.process);
        if lock(&process.pending).has_ended {
            let (new, info) = Process::start(&self.program, &self.spec)?;
            if digest(&info) != self.info {
                new.kill();
                return Err(PreprocessError::Failed("the model's files have changed since it was loaded".to_owned()));
            }
            *process = new;
        }
        Ok(Arc::clone(&process))
    }
}

fn digest(info: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    info.hash(&mut hasher);
    hasher.finish()
}

/// Sends at most [`MAX_CONCURRENT`] requests at a time to a process, so that a request's timeout starts with its work.
#[derive(Default)]
struct Semaphore {
    taken: Mutex<usize>,
    released: Condvar,
}

struct Permit<'a>(&'a Semaphore);

impl Semaphore {
    fn acquire(&self) -> Permit<'_> {
        let taken = lock(&self.taken);
        let taken = self.released.wait_while(taken, |taken| *taken >= MAX_CONCURRENT);
        *taken.unwrap_or_else(PoisonError::into_inner) += 1;
        Permit(self)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        *lock(&self.0.taken) -= 1;
        self.0.released.notify_one();
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        lock(&self.process).kill();
    }
}

impl Process {
    fn start(program: &Path, spec: &Spec) -> Result<(Arc<Self>, Vec<u8>), PreprocessError> {
        let spec_bytes = sandbox_protocol::encode(spec).map_err(PreprocessError::Failed)?;
        let (process, output) =
            Self::spawn(program, spec.files()).map_err(|error| PreprocessError::NotStarted(error.to_string()))?;
        let process = Arc::new(process);
        let reader = Arc::clone(&process);
        let thread = std::thread::Builder::new().name("sandbox".to_owned()).spawn(move || reader.listen(output));
        if let Err(error) = thread {
            process.kill();
            return Err(PreprocessError::NotStarted(error.to_string()));
        }
        let info = process
            .submit(&spec_bytes)
            .and_then(|(id, receiver)| process.wait(id, &receiver, timeout(spec.bytes()), &TokenizeLimits::default()));
        let info = info.inspect_err(|_| process.kill())?;
        Ok((process, info))
    }

    fn spawn(program: &Path, files: String) -> io::Result<(Self, ChildStdout)> {
        let mut command = Command::new(program);
        command.arg0("outpost").arg(SUBCOMMAND).env_clear();
        // Makes glibc return the memory of large texts to the system at once.
        command.env("MALLOC_MMAP_THRESHOLD_", "262144").env("MALLOC_ARENA_MAX", "2");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        // Ctrl-C must reach only the server, which drains its requests first.
        command.process_group(0);
        let mut child = command.spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("it has no pipes"));
        };
        let pending = Mutex::default();
        Ok((Self { files, child: Mutex::new(child), input: Mutex::new(input), pending }, output))
    }

    fn call(&self, request: &[u8], limits: &TokenizeLimits) -> Result<Vec<u8>, PreprocessError> {
        let (id, receiver) = self.submit(request)?;
        self.wait(id, &receiver, timeout(request.len() as u64), limits)
    }

    /// Sends a request; returns its ID and the receiver of its response.
    fn submit(&self, content: &[u8]) -> Result<(u64, Receiver<Response>), PreprocessError> {
        let (sender, receiver) = sync_channel(1);
        let mut pending = lock(&self.pending);
        if pending.has_ended {
            return Err(PreprocessError::Crashed);
        }
        let id = pending.next_id;
        pending.next_id += 1;
        pending.senders.insert(id, sender);
        drop(pending);
        self.write(id, content);
        Ok((id, receiver))
    }

    /// Sends a frame. If the write fails, the process is killed, which fails all its requests.
    fn write(&self, id: u64, content: &[u8]) {
        if sandbox_protocol::write(&mut *lock(&self.input), id, content).is_err() {
            self.kill();
        }
    }

    fn wait(
        &self,
        id: u64,
        receiver: &Receiver<Response>,
        timeout: Duration,
        limits: &TokenizeLimits,
    ) -> Result<Vec<u8>, PreprocessError> {
        let (mut waited, mut cancelled) = (Duration::ZERO, false);
        loop {
            match receiver.recv_timeout(POLL_INTERVAL) {
                Ok(response) => return response.map_err(PreprocessError::Failed),
                Err(RecvTimeoutError::Disconnected) => return Err(PreprocessError::Crashed),
                Err(RecvTimeoutError::Timeout) => waited += POLL_INTERVAL,
            }
            if waited >= timeout {
                self.kill();
                return Err(PreprocessError::TimedOut(timeout.as_secs()));
            }
            // Keep waiting after a cancellation, so that a process that ignores it is still killed at the timeout.
            if limits.is_cancelled() && !cancelled {
                cancelled = true;
                self.write(id, &[]);
            }
        }
    }

    fn kill(&self) {
        // An error means that the process has already exited.
        let _ = lock(&self.child).kill();
    }

    /// Delivers responses until the process exits.
    fn listen(&self, output: ChildStdout) {
        let mut output = io::BufReader::with_capacity(64 << 10, output);
        while let Ok(Some(frame)) = sandbox_protocol::read(&mut output) {
            let sender = lock(&self.pending).senders.remove(&frame.id);
            if let (Some(sender), Some(response)) = (sender, sandbox_protocol::decode_response(frame.content)) {
                let _ = sender.send(response);
            }
        }
        self.kill();
        let status = lock(&self.child).wait();
        let mut pending = lock(&self.pending);
        let unanswered = pending.senders.len();
        pending.has_ended = true;
        pending.senders.clear();
        drop(pending);
        if unanswered > 0 {
            let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
            tracing::warn!(files = self.files, unanswered, status, "a sandbox process ended with unanswered requests");
        }
    }
}
