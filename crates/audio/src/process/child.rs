//! The child's side: reads the file from standard input, writes messages to standard output.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::positioned_file::PositionedFile;
use super::protocol::{self, Message, Pass};
use crate::decoding;
use crate::error::AudioError;
use outpost_common::process_limits::{ProcessLimits, restrict};

/// The memory of the process on top of its own size; bytes.
const MAX_MEMORY: u64 = 256 << 20;
const STACK_BYTES: u64 = 8 << 20;
/// CPU time for a file of any length; seconds.
const BASE_CPU_SECONDS: u64 = 60;
/// Min speed of decoding, as a multiple of real time.
const MIN_SPEED: u64 = 8;

/// Measures or decodes standard input, which is a regular file. Writes the outcome, so that an error is returned only if
/// there is no reader.
pub fn run(pass: Pass, max_seconds: u32) -> io::Result<()> {
    let file = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let mut output = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let cpu_seconds = BASE_CPU_SECONDS + u64::from(max_seconds) / MIN_SPEED;
    restrict(ProcessLimits { memory: MAX_MEMORY, stack: STACK_BYTES, cpu_seconds })?;
    // A panic in a decoder says that the file is damaged.
    let outcome = catch_unwind(AssertUnwindSafe(|| process(pass, file, max_seconds, &mut output)));
    let last = outcome.unwrap_or(Err(AudioError::DecoderStopped)).unwrap_or_else(Message::Error);
    protocol::write(&mut output, &last)
}

fn process(pass: Pass, file: File, max_seconds: u32, output: &mut File) -> Result<Message, AudioError> {
    let source = PositionedFile::new(file).map_err(AudioError::unreadable)?;
    match pass {
        Pass::Measure => decoding::measure(source, max_seconds).map(Message::Info),
        Pass::Decode => {
            let mut sink = |samples: &[f32]| protocol::write_samples(output, samples).map_err(AudioError::unreadable);
            decoding::decode(source, max_seconds, &mut sink).map(|_| Message::End)
        }
    }
}
