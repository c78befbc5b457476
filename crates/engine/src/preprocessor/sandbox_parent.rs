//! The server's side of a sandbox: a child process that runs one model's tokenizers and templates.
//!
//! The process handles several requests at a time. If it exits, each unanswered request is retried once, alone in a new
//! process, so that only requests that crash the process fail.
//!
//! A process may stop reading at any time, because it hangs, is starved or is stopped by a signal. So a thread of its own
//! writes to it, and the deadline of a request covers both its way into the process and the response.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, Weak};
use std::thread;
use std::time::Duration;

use super::sandbox_protocol::{self, MAX_CONCURRENT, lock};
use super::spec::Spec;
use super::stop_flag::{Kill, StopFlag};
use crate::error::PreprocessError;
use crate::tokenizer::TokenizeLimits;

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

/// The content of a frame, shared by the attempts of a request.
type Content = Arc<Vec<u8>>;

pub struct Sandbox {
    program: PathBuf,
    spec: Spec,
    stop: StopFlag,
    process: Mutex<Arc<Process>>,
    failed_starts: FailedStarts,
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
    /// Frames for the thread that writes to the child, in the order of their IDs.
    frames: Sender<(u64, Content)>,
    /// Number of requests that the child has read or that fit into its pipe.
    written: AtomicU64,
    pending: Mutex<Pending>,
    stop: StopFlag,
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
    pub fn start(program: PathBuf, spec: Spec, stop: StopFlag) -> Result<(Self, Vec<u8>), PreprocessError> {
        let (process, info) = Process::start(&program, &spec, &stop)?;
        let sandbox = Self {
            program,
            spec,
            stop,
            process: Mutex::new(process),
            failed_starts: FailedStarts::default(),
            attempts: RwLock::default(),
            semaphore: Semaphore::default(),
            info: digest(&info),
        };
        Ok((sandbox, info))
    }

    /// Sends a request and returns the response. Blocks up to a timeout that depends on its length. If the client's
    /// request is dropped, the process stops early.
    pub fn call(&self, request: Vec<u8>, limits: &TokenizeLimits) -> Result<Vec<u8>, PreprocessError> {
        let request = Arc::new(request);
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
        let failures = self.failed_starts.count();
        let mut process = lock(&self.process);
        if lock(&process.pending).has_ended {
            // A start may take as long as a request. Those that have waited for one do not wait for the next one, too.
            self.failed_starts.since(failures)?;
            *process = self.replacement().inspect_err(|error| self.failed_starts.add(error))?;
        }
        Ok(Arc::clone(&process))
    }

    fn replacement(&self) -> Result<Arc<Process>, PreprocessError> {
        let (new, info) = Process::start(&self.program, &self.spec, &self.stop)?;
        if digest(&info) != self.info {
            new.kill();
            return Err(PreprocessError::Failed("the model's files have changed since it was loaded".to_owned()));
        }
        Ok(new)
    }
}

/// The failed attempts to replace a process.
#[derive(Default)]
struct FailedStarts(Mutex<(u64, Option<PreprocessError>)>);

impl FailedStarts {
    fn count(&self) -> u64 {
        lock(&self.0).0
    }

    fn add(&self, error: &PreprocessError) {
        let mut failed = lock(&self.0);
        *failed = (failed.0 + 1, Some(error.clone()));
    }

    /// The last failure, if there was one after the first `count`.
    fn since(&self, count: u64) -> Result<(), PreprocessError> {
        let failed = lock(&self.0);
        let last = failed.1.as_ref().filter(|_| failed.0 > count);
        last.map_or(Ok(()), |error| Err(error.clone()))
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
    fn start(program: &Path, spec: &Spec, stop: &StopFlag) -> Result<(Arc<Self>, Vec<u8>), PreprocessError> {
        if stop.is_set() {
            return Err(PreprocessError::NotStarted("the server is shutting down".to_owned()));
        }
        let content = Arc::new(sandbox_protocol::encode(spec).map_err(PreprocessError::Failed)?);
        let process = Self::spawn(program, spec.files(), stop.clone());
        let process = process.map_err(|error| PreprocessError::NotStarted(error.to_string()))?;
        let info = process.exchange(&content, timeout(spec.bytes()), &TokenizeLimits::default());
        let info = info.inspect_err(|_| process.kill())?;
        Ok((process, info))
    }

    /// Starts a process, and the threads that write to it and read from it.
    fn spawn(program: &Path, files: String, stop: StopFlag) -> io::Result<Arc<Self>> {
        let mut child = command(program).spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("it has no pipes"));
        };
        let (frames, queue) = channel();
        let (child, written) = (Mutex::new(child), AtomicU64::new(0));
        let process = Arc::new(Self { files, child, frames, written, pending: Mutex::default(), stop });
        let (reader, writer) = (Arc::clone(&process), Arc::downgrade(&process));
        let spawned = thread_named("sandbox", move || reader.listen(output))
            .and_then(|()| thread_named("sandbox-input", move || write_frames(input, &queue, &writer)));
        spawned.inspect_err(|_| process.kill())?;
        let started: Weak<dyn Kill> = Arc::<Self>::downgrade(&process);
        process.stop.add(started);
        if process.stop.is_set() {
            process.kill();
        }
        Ok(process)
    }

    fn call(&self, request: &Content, limits: &TokenizeLimits) -> Result<Vec<u8>, PreprocessError> {
        self.exchange(request, timeout(request.len() as u64), limits)
    }

    /// Sends a request and waits for its response.
    fn exchange(
        &self,
        content: &Content,
        timeout: Duration,
        limits: &TokenizeLimits,
    ) -> Result<Vec<u8>, PreprocessError> {
        let (id, receiver) = self.submit(content)?;
        self.wait(id, &receiver, timeout, limits)
    }

    /// Queues a request; returns its ID and the receiver of its response. Never blocks.
    fn submit(&self, content: &Content) -> Result<(u64, Receiver<Response>), PreprocessError> {
        let (sender, receiver) = sync_channel(1);
        let mut pending = lock(&self.pending);
        if pending.has_ended {
            return Err(PreprocessError::Crashed);
        }
        let id = pending.next_id;
        pending.next_id += 1;
        pending.senders.insert(id, sender);
        self.queue(id, Arc::clone(content));
        Ok((id, receiver))
    }

    fn queue(&self, id: u64, content: Content) {
        // Without its writing thread, the process has been killed.
        let _ = self.frames.send((id, content));
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
                return Err(self.timed_out(id, timeout));
            }
            // Keep waiting after a cancellation, so that a process that ignores it is still killed at the timeout.
            if limits.is_cancelled() && !cancelled {
                cancelled = true;
                self.queue(id, Content::default());
            }
        }
    }

    fn timed_out(&self, id: u64, timeout: Duration) -> PreprocessError {
        match self.written.load(Ordering::Relaxed) > id {
            true => PreprocessError::TimedOut(timeout.as_secs()),
            false => PreprocessError::NotRead(timeout.as_secs()),
        }
    }

    /// Kills the process, which fails its unanswered requests. It gets no further ones.
    fn kill(&self) {
        lock(&self.pending).has_ended = true;
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

impl Kill for Process {
    fn kill(&self) {
        Self::kill(self);
    }
}

fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg0("outpost").arg(SUBCOMMAND).env_clear();
    // Makes glibc return the memory of large texts to the system at once.
    command.env("MALLOC_MMAP_THRESHOLD_", "262144").env("MALLOC_ARENA_MAX", "2");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    // Ctrl-C must reach only the server, which drains its requests first.
    command.process_group(0);
    command
}

fn thread_named(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

/// Writes frames until the process is dropped. A write may block until the process is killed, and then fails.
fn write_frames(mut input: ChildStdin, queue: &Receiver<(u64, Content)>, process: &Weak<Process>) {
    for (id, content) in queue {
        let written = sandbox_protocol::write(&mut input, id, &content);
        let Some(process) = process.upgrade() else { return };
        if written.is_err() {
            return process.kill();
        }
        process.written.fetch_max(id + 1, Ordering::Relaxed);
    }
}
