//! A child process that interprets one model's files, seen from the server.
//!
//! The process answers several requests at a time. If it ends, each request that it has not answered is tried once more,
//! alone in a new process. So only those fail that end it, and none if something else did.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::time::Duration;

use super::spec::Spec;
use super::wire::{self, WORKERS, lock};
use crate::engine::error::PreprocessError;
use crate::engine::tokenizer::TokenBound;

/// Timeout for loading a model's files and for each request, extended by their size: see [`BYTES_A_SECOND`].
const TIMEOUT: Duration = Duration::from_secs(10);
/// A tenth of what a tokenizer reads in a second on a slow machine.
const BYTES_A_SECOND: u64 = 2 << 20;
/// The subcommand of `outpost` that is such a process.
pub const SUBCOMMAND: &str = "sandbox";
/// How often a waiting request checks whether it is cancelled.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// An answer, or why there is none.
type Answer = Result<Vec<u8>, String>;

pub struct Sandbox {
    program: PathBuf,
    spec: Spec,
    process: Mutex<Arc<Process>>,
    /// Held by all requests at once on their first attempt, by one alone on its second.
    attempts: RwLock<()>,
    turns: Turns,
    /// Tells what the first process said of the files from what a later one says.
    facts: u64,
}

struct Process {
    /// The model's files, for the log.
    files: String,
    child: Mutex<std::process::Child>,
    input: Mutex<ChildStdin>,
    waiting: Mutex<Waiting>,
}

/// The requests that a process has not answered.
#[derive(Default)]
struct Waiting {
    /// The number of the next. The first says what to interpret.
    next: u64,
    senders: HashMap<u64, SyncSender<Answer>>,
    has_ended: bool,
}

/// How long work on so many bytes may take.
fn timeout(bytes: u64) -> Duration {
    TIMEOUT + Duration::from_secs(bytes / BYTES_A_SECOND)
}

impl Sandbox {
    /// Starts a process; and what it tells of the files.
    pub fn start(program: PathBuf, spec: Spec) -> Result<(Self, Vec<u8>), PreprocessError> {
        let (process, facts) = Process::start(&program, &spec)?;
        let (process, attempts) = (Mutex::new(process), RwLock::default());
        let sandbox = Self { program, spec, process, attempts, turns: Turns::default(), facts: digest(&facts) };
        Ok((sandbox, facts))
    }

    /// Answers a request. Blocks until then, for as long as its length allows. Once the request that the bound belongs
    /// to is dropped, the process stops early.
    pub fn ask(&self, request: Vec<u8>, bound: &TokenBound) -> Result<Vec<u8>, PreprocessError> {
        let shared = self.attempts.read().unwrap_or_else(PoisonError::into_inner);
        let turn = self.turns.take();
        match self.process()?.ask(&request, bound) {
            Err(PreprocessError::Crashed) if !bound.is_cancelled() => drop((turn, shared)),
            outcome => return outcome,
        }
        let _alone = self.attempts.write().unwrap_or_else(PoisonError::into_inner);
        self.process()?.ask(&request, bound)
    }

    /// The process, or a new one if it has ended.
    fn process(&self) -> Result<Arc<Process>, PreprocessError> {
        let mut process = lock(&self.process);
        if lock(&process.waiting).has_ended {
            let (new, facts) = Process::start(&self.program, &self.spec)?;
            if digest(&facts) != self.facts {
                new.kill();
                return Err(PreprocessError::Failed("its files have changed since it was loaded".to_owned()));
            }
            *process = new;
        }
        Ok(Arc::clone(&process))
    }
}

fn digest(facts: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    facts.hash(&mut hasher);
    hasher.finish()
}

/// Lets [`WORKERS`] requests at once to a process, so that the time of a request counts from when it is worked on.
#[derive(Default)]
struct Turns {
    taken: Mutex<usize>,
    given_back: Condvar,
}

struct Turn<'a>(&'a Turns);

impl Turns {
    fn take(&self) -> Turn<'_> {
        let taken = lock(&self.taken);
        let taken = self.given_back.wait_while(taken, |taken| *taken >= WORKERS);
        *taken.unwrap_or_else(PoisonError::into_inner) += 1;
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *lock(&self.0.taken) -= 1;
        self.0.given_back.notify_one();
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        lock(&self.process).kill();
    }
}

impl Process {
    fn start(program: &Path, spec: &Spec) -> Result<(Arc<Self>, Vec<u8>), PreprocessError> {
        let spec_bytes = wire::encode(spec).map_err(PreprocessError::Failed)?;
        let (process, output) =
            Self::spawn(program, spec.files()).map_err(|error| PreprocessError::NotStarted(error.to_string()))?;
        let process = Arc::new(process);
        let reader = Arc::clone(&process);
        let thread = std::thread::Builder::new().name("sandbox".to_owned()).spawn(move || reader.listen(output));
        if let Err(error) = thread {
            process.kill();
            return Err(PreprocessError::NotStarted(error.to_string()));
        }
        let facts = process
            .submit(&spec_bytes)
            .and_then(|(id, receiver)| process.wait(id, &receiver, timeout(spec.bytes()), &TokenBound::default()));
        let facts = facts.inspect_err(|_| process.kill())?;
        Ok((process, facts))
    }

    fn spawn(program: &Path, files: String) -> io::Result<(Self, ChildStdout)> {
        let mut command = Command::new(program);
        command.arg0("outpost").arg(SUBCOMMAND).env_clear();
        // Has glibc give the memory of large texts back at once.
        command.env("MALLOC_MMAP_THRESHOLD_", "262144").env("MALLOC_ARENA_MAX", "2");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        // Ctrl-C must reach only the server, which drains its requests first.
        command.process_group(0);
        let mut child = command.spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("it has no pipes"));
        };
        let waiting = Mutex::default();
        Ok((Self { files, child: Mutex::new(child), input: Mutex::new(input), waiting }, output))
    }

    fn ask(&self, request: &[u8], bound: &TokenBound) -> Result<Vec<u8>, PreprocessError> {
        let (id, receiver) = self.submit(request)?;
        self.wait(id, &receiver, timeout(request.len() as u64), bound)
    }

    /// Sends a request; returns its number, and where its answer arrives.
    fn submit(&self, content: &[u8]) -> Result<(u64, Receiver<Answer>), PreprocessError> {
        let (sender, receiver) = sync_channel(1);
        let mut waiting = lock(&self.waiting);
        if waiting.has_ended {
            return Err(PreprocessError::Crashed);
        }
        let id = waiting.next;
        waiting.next += 1;
        waiting.senders.insert(id, sender);
        drop(waiting);
        self.write(id, content);
        Ok((id, receiver))
    }

    /// Sends a frame. If the write fails, the process is killed, which fails all its requests.
    fn write(&self, id: u64, content: &[u8]) {
        if wire::write(&mut *lock(&self.input), id, content).is_err() {
            self.kill();
        }
    }

    fn wait(
        &self,
        id: u64,
        receiver: &Receiver<Answer>,
        timeout: Duration,
        bound: &TokenBound,
    ) -> Result<Vec<u8>, PreprocessError> {
        let (mut waited, mut cancelled) = (Duration::ZERO, false);
        loop {
            match receiver.recv_timeout(POLL_INTERVAL) {
                Ok(answer) => return answer.map_err(PreprocessError::Failed),
                Err(RecvTimeoutError::Disconnected) => return Err(PreprocessError::Crashed),
                Err(RecvTimeoutError::Timeout) => waited += POLL_INTERVAL,
            }
            if waited >= timeout {
                self.kill();
                return Err(PreprocessError::TimedOut(timeout.as_secs()));
            }
            // Keep waiting after a cancellation, so that a process that ignores it is still killed at the timeout.
            if bound.is_cancelled() && !cancelled {
                cancelled = true;
                self.write(id, &[]);
            }
        }
    }

    fn kill(&self) {
        // An error says that it has ended already.
        let _ = lock(&self.child).kill();
    }

    /// Hands on answers until the process ends.
    fn listen(&self, output: ChildStdout) {
        let mut output = io::BufReader::with_capacity(64 << 10, output);
        while let Ok(Some(frame)) = wire::read(&mut output) {
            let sender = lock(&self.waiting).senders.remove(&frame.id);
            if let (Some(sender), Some(answer)) = (sender, wire::answer(frame.content)) {
                let _ = sender.send(answer);
            }
        }
        self.kill();
        let status = lock(&self.child).wait();
        let mut waiting = lock(&self.waiting);
        let unanswered = waiting.senders.len();
        waiting.has_ended = true;
        waiting.senders.clear();
        drop(waiting);
        if unanswered > 0 {
            let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
            tracing::warn!(files = self.files, unanswered, status, "a sandbox process ended with unanswered requests");
        }
    }
}
