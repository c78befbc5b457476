//! The server's side: starts a child process for a file and reads its messages.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use super::SUBCOMMAND;
use super::protocol::{self, Message, Pass};
use crate::error::AudioError;
use crate::info::{AudioInfo, SAMPLE_RATE};

/// A child that does not complete a message while the server waits so long for it is stopped. Measuring a file must not take
/// longer.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How often a wait for a child checks whether the server stops.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Measures and decodes audio files in child processes. Its functions block. Clones share [`Self::stop`].
#[derive(Clone, Debug)]
pub struct AudioDecoder {
    program: PathBuf,
    stop: Arc<AtomicBool>,
}

impl AudioDecoder {
    /// `program` is the executable of `outpost`.
    pub fn new(program: PathBuf) -> Self {
        Self { program, stop: Arc::default() }
    }

    /// Stops the running child processes, and all that are started later.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// Says what a file is and how long, whatever its position is. Fails with [`AudioError::TooLong`] if it is longer
    /// than `max_seconds`.
    pub fn probe(&self, file: &File, max_seconds: u32) -> Result<AudioInfo, AudioError> {
        match self.start(Pass::Measure, file, max_seconds)?.next_message()? {
            Message::Info(info) if info.seconds.is_finite() && info.seconds >= 0.0 => Ok(info),
            Message::Error(error) => Err(error),
            _ => Err(AudioError::DecoderStopped),
        }
    }

    /// Begins to decode a file to mono samples at 16 kHz. Fails with [`AudioError::TooLong`] after `max_seconds`.
    pub fn decode(&self, file: &File, max_seconds: u32) -> Result<Samples, AudioError> {
        let max_samples = u64::from(max_seconds) * u64::from(SAMPLE_RATE);
        let process = self.start(Pass::Decode, file, max_seconds)?;
        Ok(Samples { process: Some(process), count: 0, max_samples, max_seconds })
    }

    fn start(&self, pass: Pass, file: &File, max_seconds: u32) -> Result<Process, AudioError> {
        self.spawn(pass, file, max_seconds).map_err(|error| AudioError::NotStarted { reason: error.to_string() })
    }

    fn spawn(&self, pass: Pass, file: &File, max_seconds: u32) -> io::Result<Process> {
        let mut command = Command::new(&self.program);
        command.arg0("outpost").arg(SUBCOMMAND).arg("--max-seconds").arg(max_seconds.to_string()).env_clear();
        if pass == Pass::Measure {
            command.arg("--measure");
        }
        // Makes glibc return the memory of large packets to the system at once.
        command.env("MALLOC_MMAP_THRESHOLD_", "262144").env("MALLOC_ARENA_MAX", "2");
        command.stdin(file.try_clone()?).stdout(Stdio::piped()).stderr(Stdio::null());
        // Ctrl-C must reach only the server.
        command.process_group(0);
        let mut child = command.spawn()?;
        let output = child.stdout.take().ok_or_else(|| io::Error::other("it has no pipe"))?;
        let output = TimedPipe { pipe: output, waited: Duration::ZERO, stop: Arc::clone(&self.stop) };
        Ok(Process { child, output })
    }
}

/// The samples of a file, at 16 kHz, in blocks of at most a second. Ends after an error. The process stops when it is
/// dropped, and waits while no block is taken.
pub struct Samples {
    /// `None` after the end.
    process: Option<Process>,
    count: u64,
    max_samples: u64,
    max_seconds: u32,
}

impl Iterator for Samples {
    type Item = Result<Vec<f32>, AudioError>;

    fn next(&mut self) -> Option<Self::Item> {
        let message = self.process.as_mut()?.next_message();
        let samples = match message {
            Ok(Message::Samples(samples)) => Ok(samples),
            Ok(Message::End) => {
                self.process = None;
                return None;
            }
            Ok(Message::Info(_)) => Err(AudioError::DecoderStopped),
            Ok(Message::Error(error)) | Err(error) => Err(error),
        };
        self.count += samples.as_ref().map_or(0, Vec::len) as u64;
        let samples = if self.count > self.max_samples {
            Err(AudioError::TooLong { max_seconds: self.max_seconds })
        } else {
            samples
        };
        if samples.is_err() {
            self.process = None;
        }
        Some(samples)
    }
}

/// A child process. It is killed when it is dropped.
struct Process {
    child: Child,
    output: TimedPipe,
}

impl Process {
    fn next_message(&mut self) -> Result<Message, AudioError> {
        self.output.waited = Duration::ZERO;
        match protocol::read(&mut self.output) {
            Ok(message) => Ok(message),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(AudioError::TimedOut),
            Err(error) => Err(self.ended(&error)),
        }
    }

    /// Why the process ended without a last message.
    fn ended(&mut self, cause: &io::Error) -> AudioError {
        // It may run on if it wrote nonsense.
        let _ = self.child.kill();
        let Ok(status) = self.child.wait() else { return AudioError::DecoderStopped };
        tracing::warn!(%status, %cause, "an audio decoder ended early");
        reason(status)
    }
}

fn reason(status: ExitStatus) -> AudioError {
    match status.signal() {
        Some(signal) if signal == Signal::XCPU.as_raw() => AudioError::TimedOut,
        Some(_) => AudioError::DecoderStopped,
        None => AudioError::NotStarted { reason: format!("it ended with {status}") },
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Errors mean that it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A pipe from a child. Reads fail with [`io::ErrorKind::TimedOut`] once they have waited for [`TIMEOUT`] together, or when the
/// server stops.
struct TimedPipe {
    pipe: ChildStdout,
    waited: Duration,
    stop: Arc<AtomicBool>,
}

impl Read for TimedPipe {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.waited < TIMEOUT && !self.stop.load(Ordering::Relaxed) {
            let mut pipe = [PollFd::new(&self.pipe, PollFlags::IN)];
            match poll(&mut pipe, Some(&POLL_INTERVAL)) {
                Ok(0) => self.waited += Duration::from_millis(100),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => return self.pipe.read(buffer),
            }
        }
        Err(io::ErrorKind::TimedOut.into())
    }
}
