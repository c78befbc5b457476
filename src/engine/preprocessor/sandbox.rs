//! A child process that interprets one model's files, seen from the server.
//!
//! The process answers several requests at a time. If it ends while it works on one, that one is to blame and fails.
//! If it ends while it works on several, each of them is tried once more, alone in a new process, so that only those
//! to blame fail.

use std::collections::HashMap;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use super::{BYTES_A_SECOND, PATIENCE, Spec, Stopped, wire};
use crate::engine::tokens::TokenBound;

/// The subcommand of `outpost` that is such a process.
pub(super) const SUBCOMMAND: &str = "sandbox";
/// How often a thread that waits for an answer looks whether it still has to.
const LOOK: Duration = Duration::from_millis(100);
/// The number of the first frame, which says what to interpret.
const SPEC: u64 = 0;

/// An answer, or why there is none.
type Answer = Result<Vec<u8>, String>;

pub(super) struct Sandbox {
    program: PathBuf,
    spec: Spec,
    process: Mutex<Arc<Process>>,
    /// Held by all requests at once on their first attempt, by one alone on its second.
    attempts: RwLock<()>,
}

/// Why a process gave no answer.
enum Missing {
    Stopped(Stopped),
    /// It ended while it answered several, and any of them may be to blame.
    Ended,
}

struct Process {
    child: Mutex<std::process::Child>,
    input: Mutex<ChildStdin>,
    waiting: Mutex<Waiting>,
}

/// The requests that a process has not answered.
#[derive(Default)]
struct Waiting {
    /// The number of the newest.
    newest: u64,
    senders: HashMap<u64, SyncSender<Answer>>,
    /// Once the process has ended: whether it was at work on one request at most.
    ended: Option<bool>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long work on so many bytes may take.
fn patience(bytes: u64) -> Duration {
    PATIENCE + Duration::from_secs(bytes / BYTES_A_SECOND)
}

impl Sandbox {
    /// Starts a process; and what it tells of the files.
    pub fn start(program: PathBuf, spec: Spec) -> Result<(Self, Vec<u8>), Stopped> {
        let (process, facts) = Process::start(&program, &spec)?;
        Ok((Self { program, spec, process: Mutex::new(process), attempts: RwLock::default() }, facts))
    }

    /// Answers a request. Blocks until then, for as long as its length allows. Once the request that the bound belongs
    /// to is dropped, the process stops early.
    pub fn ask(&self, request: Vec<u8>, bound: &TokenBound) -> Result<Vec<u8>, Stopped> {
        let shared = self.attempts.read().unwrap_or_else(PoisonError::into_inner);
        match self.process()?.ask(&request, bound) {
            Ok(answer) => return Ok(answer),
            Err(Missing::Stopped(stopped)) => return Err(stopped),
            Err(Missing::Ended) => drop(shared),
        }
        let _alone = self.attempts.write().unwrap_or_else(PoisonError::into_inner);
        self.process()?.ask(&request, bound).map_err(|missing| match missing {
            Missing::Stopped(stopped) => stopped,
            Missing::Ended => Stopped::Ended,
        })
    }

    /// The process, or a new one if it has ended.
    fn process(&self) -> Result<Arc<Process>, Stopped> {
        let mut process = lock(&self.process);
        if lock(&process.waiting).ended.is_some() {
            *process = Process::start(&self.program, &self.spec)?.0;
        }
        Ok(Arc::clone(&process))
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        lock(&self.process).kill();
    }
}

impl Process {
    fn start(program: &Path, spec: &Spec) -> Result<(Arc<Self>, Vec<u8>), Stopped> {
        let spec_bytes = wire::encode(spec).map_err(Stopped::Failed)?;
        let (process, output) = Self::spawn(program).map_err(|error| Stopped::Start(error.to_string()))?;
        let process = Arc::new(process);
        let reader = Arc::clone(&process);
        let thread = std::thread::Builder::new().name("sandbox".to_owned()).spawn(move || reader.listen(output));
        if let Err(error) = thread {
            process.kill();
            return Err(Stopped::Start(error.to_string()));
        }
        let facts = process
            .submit(SPEC, &spec_bytes)
            .and_then(|receiver| process.wait(SPEC, &receiver, patience(spec.bytes()), &TokenBound::default()));
        match facts {
            Ok(facts) => Ok((process, facts)),
            Err(missing) => {
                process.kill();
                Err(match missing {
                    Missing::Stopped(stopped) => stopped,
                    Missing::Ended => Stopped::Ended,
                })
            }
        }
    }

    fn spawn(program: &Path) -> io::Result<(Self, ChildStdout)> {
        let mut command = Command::new(program);
        command.arg(SUBCOMMAND).env_clear();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        // Ctrl-C in a terminal is for the server alone, which may have answers to end.
        command.process_group(0);
        let mut child = command.spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("it has no pipes"));
        };
        let waiting = Mutex::default();
        Ok((Self { child: Mutex::new(child), input: Mutex::new(input), waiting }, output))
    }

    fn ask(&self, request: &[u8], bound: &TokenBound) -> Result<Vec<u8>, Missing> {
        let id = {
            let mut waiting = lock(&self.waiting);
            waiting.newest += 1;
            waiting.newest
        };
        let receiver = self.submit(id, request)?;
        self.wait(id, &receiver, patience(request.len() as u64), bound)
    }

    fn submit(&self, id: u64, content: &[u8]) -> Result<Receiver<Answer>, Missing> {
        let (sender, receiver) = sync_channel(1);
        let mut waiting = lock(&self.waiting);
        if waiting.ended.is_some() {
            return Err(Missing::Ended);
        }
        waiting.senders.insert(id, sender);
        drop(waiting);
        self.write(id, content);
        Ok(receiver)
    }

    /// If nobody reads, the process has ended or is of no more use: its end is what the request hears of.
    fn write(&self, id: u64, content: &[u8]) {
        if wire::write(&mut *lock(&self.input), id, content).is_err() {
            self.kill();
        }
    }

    fn wait(
        &self,
        id: u64,
        receiver: &Receiver<Answer>,
        patience: Duration,
        bound: &TokenBound,
    ) -> Result<Vec<u8>, Missing> {
        let (mut waited, mut cancelled) = (Duration::ZERO, false);
        loop {
            match receiver.recv_timeout(LOOK) {
                Ok(answer) => return answer.map_err(|reason| Missing::Stopped(Stopped::Failed(reason))),
                Err(RecvTimeoutError::Disconnected) => {
                    let alone = lock(&self.waiting).ended == Some(true);
                    return Err(if alone { Missing::Stopped(Stopped::Ended) } else { Missing::Ended });
                }
                Err(RecvTimeoutError::Timeout) => waited += LOOK,
            }
            if waited >= patience {
                self.kill();
                return Err(Missing::Stopped(Stopped::TooLong(patience.as_secs())));
            }
            // The answer is still waited for: whoever leaves must not leave a process behind that never ends.
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
        waiting.ended = Some(unanswered <= 1);
        waiting.senders.clear();
        drop(waiting);
        if unanswered > 0 {
            let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
            tracing::warn!(unanswered, status, "a process that runs a tokenizer and a chat template was ended");
        }
    }
}
