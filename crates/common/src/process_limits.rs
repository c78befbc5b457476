//! Resource limits of the child processes that interpret untrusted files.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Resource limits of a process.
#[derive(Clone, Copy, Debug)]
pub struct ProcessLimits {
    /// Memory on top of the process's present size; bytes.
    pub memory: u64,
    /// The main thread's stack, which may be unlimited by default; bytes.
    pub stack: u64,
    /// CPU time; seconds.
    pub cpu_seconds: u64,
}

/// Sets the limits of this process, and forbids files, sockets and core dumps. Returns the hard limit of CPU time, which
/// is left as it was.
pub fn restrict(limits: ProcessLimits) -> io::Result<Option<u64>> {
    let hard_limit = |limit| Rlimit { current: Some(limit), maximum: Some(limit) };
    setrlimit(Resource::Data, hard_limit(data_size() + limits.memory))?;
    setrlimit(Resource::Stack, hard_limit(limits.stack))?;
    setrlimit(Resource::Core, hard_limit(0))?;
    setrlimit(Resource::Fsize, hard_limit(0))?;
    setrlimit(Resource::Nofile, hard_limit(0))?;
    // If the server exits meanwhile, only this limit stops work that never ends.
    let hard = getrlimit(Resource::Cpu).maximum;
    let cpu_seconds = hard.map_or(limits.cpu_seconds, |hard| hard.min(limits.cpu_seconds));
    setrlimit(Resource::Cpu, Rlimit { current: Some(cpu_seconds), maximum: hard })?;
    Ok(hard)
}

/// The process's present data size in bytes; 0 if unknown.
fn data_size() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmData:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kilobytes.unwrap_or_default() << 10
}
