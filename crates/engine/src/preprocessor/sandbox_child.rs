//! The sandbox process, `outpost sandbox`, which the server starts to run a model's tokenizer and chat template.
//!
//! It reads the model's files, gives up the right to open files, and only then uses them.
//!
//! The limits are resource limits (`setrlimit`) rather than seccomp or Landlock: without file descriptors a process can
//! open neither files nor sockets, they need no `unsafe` code, and they work on every Unix. They bound resources and do
//! not protect against arbitrary code execution, which is not expected from interpreters in safe Rust. Only Linux
//! enforces the limit of memory (`RLIMIT_DATA`).

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};

use rustix::process::{Resource, Rlimit, setrlimit};

use super::request_handler::RequestHandler;
use super::sandbox_protocol::{self, Frame, MAX_CONCURRENT, lock};
use super::spec::Spec;
use crate::runtime::catch_panic::{catch_load_panic, catch_preprocess_panic};
use crate::tokenizer::TokenizeLimits;
use outpost_common::clock_rng::ClockRng;
use outpost_common::process_limits::{ProcessLimits, restrict};

/// Stack of each thread; bytes.
const STACK_BYTES: usize = 8 << 20;
/// The limits after reading the files. That of CPU time is for building the handler; the server's timeout is shorter.
const LIMITS: ProcessLimits = ProcessLimits { memory: 480 << 20, stack: STACK_BYTES as u64, cpu_seconds: 120 };

/// State shared by the threads of the process.
struct Shared {
    handler: RequestHandler,
    output: Mutex<File>,
    /// The unanswered requests. Removing one cancels it.
    running: Mutex<HashMap<u64, Arc<()>>>,
}

/// Handles requests from standard input on standard output until the input ends.
pub fn run(clock: &Arc<dyn ClockRng>) -> io::Result<()> {
    let mut input = BufReader::new(File::from(io::stdin().as_fd().try_clone_to_owned()?));
    let mut output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let Some(Frame { id, content }) = sandbox_protocol::read(&mut input)? else { return Ok(()) };
    let mut hard_cpu_limit = None;
    let built = catch_load_panic(|| {
        let spec: Spec = sandbox_protocol::decode(&content)?;
        let sources = spec.read()?;
        hard_cpu_limit =
            restrict(LIMITS).map_err(|error| format!("cannot set the sandbox's resource limits: {error}"))?;
        RequestHandler::new(&spec, &sources, clock)
    });
    let (handler, info) = match built {
        Ok((handler, info)) => (handler, Ok(info)),
        Err(reason) => {
            return sandbox_protocol::write(&mut output, id, &sandbox_protocol::encode_response(Err(reason)));
        }
    };
    // From here on the end of the input is always noticed, so CPU time is no longer limited.
    setrlimit(Resource::Cpu, Rlimit { current: hard_cpu_limit, maximum: hard_cpu_limit })?;
    sandbox_protocol::write(&mut output, id, &sandbox_protocol::encode_response(info))?;
    let shared = Arc::new(Shared { handler, output: Mutex::new(output), running: Mutex::default() });
    let (sender, receiver) = channel();
    let receiver = Arc::new(Mutex::new(receiver));
    for _ in 0..MAX_CONCURRENT {
        let (shared, receiver) = (Arc::clone(&shared), Arc::clone(&receiver));
        std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || shared.serve(&receiver))?;
    }
    while let Some(frame) = sandbox_protocol::read(&mut input)? {
        if frame.content.is_empty() {
            lock(&shared.running).remove(&frame.id);
            continue;
        }
        lock(&shared.running).insert(frame.id, Arc::default());
        if sender.send(frame).is_err() {
            break;
        }
    }
    // The server has exited; running requests are no longer needed.
    std::process::exit(0)
}

impl Shared {
    fn serve(&self, requests: &Mutex<Receiver<Frame>>) {
        loop {
            let next = lock(requests).recv();
            let Ok(Frame { id, content }) = next else { return };
            let request = lock(&self.running).get(&id).map(Arc::downgrade);
            let limits = TokenizeLimits::default().with_weak(request.unwrap_or_default());
            let response = catch_preprocess_panic(|| self.handler.handle(content, &limits));
            lock(&self.running).remove(&id);
            if sandbox_protocol::write(&mut *lock(&self.output), id, &sandbox_protocol::encode_response(response))
                .is_err()
            {
                std::process::exit(0);
            }
        }
    }
}
