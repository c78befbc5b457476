//! Records how the last run of the server ended, for `outpost doctor`.
//!
//! While a server runs, `running.json` in its data folder has the time of its start and, updated every minute, how much memory
//! is left. A stop removes the file. If a start finds one, the previous run ended without a stop: it was killed, it crashed, or
//! the machine lost power. The start then keeps that record as `last_crash.json`.
//!
//! Failures are logged and have no other effect: the server works without the record.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::panic::PanicHookInfo;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::clock_rng::{ClockRng, Timestamp};
use crate::display::{format_bytes, one_line, shorten};
use crate::system_memory::SystemMemory;

const RUNNING_FILE: &str = "running.json";
const CRASH_FILE: &str = "last_crash.json";
/// Max bytes of a record.
const MAX_BYTES: u64 = 64 << 10;
/// If less than this share of the memory was left, the system has probably killed the server to get memory.
const LITTLE_MEMORY: f64 = 0.05;

/// The record of the run of this process.
pub struct RunRecord {
    data: PathBuf,
    clock: Arc<dyn ClockRng>,
    run: Mutex<Run>,
    has_ended: AtomicBool,
}

/// A run of the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    pub version: String,
    pub started: Timestamp,
    /// When the server last wrote this record, within a minute of its end.
    pub last_seen: Timestamp,
    /// Identifies the time from one boot of the machine to the next.
    boot: Option<String>,
    /// Bytes of memory that programs could still take, and that all of them together can take.
    memory_left: u64,
    memory_total: u64,
    /// The last panic of a thread, and when that was.
    panic: Option<(Timestamp, String)>,
}

/// A run that ended without a stop.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Crash {
    pub run: Run,
    /// When the next start found it.
    pub found: Timestamp,
    /// Set if the machine was restarted in between.
    machine_restarted: bool,
}

impl RunRecord {
    /// Begins the record of this run. Call it with the lock of the data folder held.
    pub fn begin(data: &Path, clock: Arc<dyn ClockRng>) -> Self {
        let now = clock.now();
        if let Some(run) = read::<Run>(&data.join(RUNNING_FILE)) {
            let crash = Crash { machine_restarted: run.boot != boot_id(), run, found: now };
            tracing::warn!("the last run of the server ended without a stop: {crash}");
            log_failure(write(data, CRASH_FILE, &crash));
        }
        let SystemMemoryLeft { left, total } = SystemMemoryLeft::read();
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let run = Run {
            version,
            started: now,
            last_seen: now,
            boot: boot_id(),
            memory_left: left,
            memory_total: total,
            panic: None,
        };
        let record = Self { data: data.to_owned(), clock, run: Mutex::new(run), has_ended: AtomicBool::new(false) };
        log_failure(record.save(&record.lock()));
        record
    }

    /// Records the time and the memory that is left, unless the run has ended. Blocks. Call it every minute.
    pub fn refresh(&self) {
        let SystemMemoryLeft { left, total } = SystemMemoryLeft::read();
        let mut run = self.lock();
        if self.has_ended.load(Ordering::Relaxed) {
            return;
        }
        (run.last_seen, run.memory_left, run.memory_total) = (self.clock.now(), left, total);
        log_failure(self.save(&run));
    }

    /// Records a panic. The process may survive it.
    pub fn panicked(&self, info: &PanicHookInfo<'_>) {
        let message = info.payload_as_str().unwrap_or("no message");
        let place = info.location().map_or_else(String::new, |place| format!(" at {place}"));
        // Another thread may panic while it holds the lock, or this one.
        let Ok(mut run) = self.run.try_lock() else { return };
        run.last_seen = self.clock.now();
        run.panic = Some((run.last_seen, format!("{}{place}", shorten(&one_line(message)))));
        let _not_logged_in_a_panic = self.save(&run);
    }

    /// Removes the record: the server has stopped normally.
    pub fn end(&self) {
        let _one = self.lock();
        self.has_ended.store(true, Ordering::Relaxed);
        match fs::remove_file(self.data.join(RUNNING_FILE)) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {}
            outcome => log_failure(outcome),
        }
    }

    fn save(&self, run: &Run) -> io::Result<()> {
        write(&self.data, RUNNING_FILE, run)
    }

    fn lock(&self) -> MutexGuard<'_, Run> {
        self.run.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A start that fails leaves no record.
impl Drop for RunRecord {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        }
    }
}

/// The last crash of a server with this data folder. `None` if there was none, or if its record cannot be read.
pub fn last_crash(data: &Path) -> Option<Crash> {
    read(&data.join(CRASH_FILE))
}

impl std::fmt::Display for Crash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Run { version, started, last_seen, memory_left, memory_total, panic, .. } = &self.run;
        write!(f, "outpost {version}, started {started}, last seen {last_seen}: ")?;
        let is_short = (*memory_left as f64) < *memory_total as f64 * LITTLE_MEMORY;
        match panic {
            _ if self.machine_restarted => f.write_str("the machine restarted while the server was running")?,
            _ if is_short => write!(
                f,
                "only {} of {} of memory was left, so the system has probably killed it",
                format_bytes(*memory_left),
                format_bytes(*memory_total)
            )?,
            // The process survives most panics, and is seen later.
            Some((at, _)) if at == last_seen => f.write_str("it ended after a panic")?,
            _ => f.write_str("it was killed, or it crashed; the journal of the system may say why")?,
        }
        match panic {
            Some((at, panic)) => write!(f, "; last panic at {at}: {panic}"),
            None => Ok(()),
        }
    }
}

struct SystemMemoryLeft {
    left: u64,
    total: u64,
}

impl SystemMemoryLeft {
    fn read() -> Self {
        let memory = SystemMemory::read();
        Self { left: memory.available, total: memory.total() }
    }
}

/// Linux generates a new one at every boot.
fn boot_id() -> Option<String> {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().map(|text| text.trim().to_owned())
}

fn read<T: for<'de> Deserialize<'de>>(path: &Path) -> Option<T> {
    let is_small = path.symlink_metadata().is_ok_and(|it| it.is_file() && it.len() <= MAX_BYTES);
    serde_json::from_slice(&fs::read(path).ok().filter(|_| is_small)?).ok()
}

/// Replaces the file, so that a crash leaves the old one or the new one. Not synced: after a loss of power, the time matters
/// less than the load on the disk.
fn write(data: &Path, name: &str, record: &impl Serialize) -> io::Result<()> {
    let (path, new) = (data.join(name), data.join(format!("{name}.new")));
    // A panic's message may have a part of a request.
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(&serde_json::to_vec_pretty(record)?)?;
    fs::rename(new, path)
}

fn log_failure(outcome: io::Result<()>) {
    if let Err(cause) = outcome {
        tracing::warn!(%cause, "the record of this run cannot be written to the data folder");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::{Crash, RUNNING_FILE, RunRecord, last_crash, read, write};
    use crate::clock_rng::StoppedClock;

    fn begin(data: &std::path::Path) -> RunRecord {
        RunRecord::begin(data, Arc::new(StoppedClock))
    }

    #[test]
    fn a_run_that_stops_leaves_no_crash() {
        let data = tempfile::tempdir().unwrap();
        let run = begin(data.path());
        run.refresh();
        run.end();
        // On another thread, it may be late.
        run.refresh();
        begin(data.path()).end();
        assert_eq!(last_crash(data.path()), None);
        assert!(!data.path().join(RUNNING_FILE).exists());
    }

    #[test]
    fn a_run_that_does_not_stop_is_a_crash_until_the_next_one() {
        let data = tempfile::tempdir().unwrap();
        std::mem::forget(begin(data.path()));
        begin(data.path()).end();
        begin(data.path()).end();
        let crash = last_crash(data.path()).unwrap();
        assert!(crash.to_string().contains("killed"), "{crash}");
    }

    #[test]
    fn the_cause_is_named() {
        let data = tempfile::tempdir().unwrap();
        let record = begin(data.path());
        let run = record.lock().clone();
        let text = |change: &dyn Fn(&mut Crash)| {
            let mut crash = Crash { run: run.clone(), found: run.last_seen, machine_restarted: false };
            change(&mut crash);
            crash.to_string()
        };
        assert!(text(&|crash| crash.machine_restarted = true).contains("the machine restarted"));
        let short = text(&|crash| (crash.run.memory_left, crash.run.memory_total) = (100_000_000, 8_000_000_000));
        assert!(short.contains("only 100 MB of 8.0 GB"), "{short}");
        let panic =
            text(&|crash| crash.run.panic = Some((run.last_seen, "index out of bounds at src/x.rs:1:2".to_owned())));
        assert!(panic.contains("after a panic; last panic at") && panic.contains("index out"), "{panic}");
    }

    #[test]
    fn a_damaged_or_huge_record_is_ignored() {
        let data = tempfile::tempdir().unwrap();
        let path = data.path().join(RUNNING_FILE);
        for bad in ["", "{}", "[1", &"x".repeat(100_000)] {
            std::fs::write(&path, bad).unwrap();
            begin(data.path()).end();
            assert_eq!(last_crash(data.path()), None, "{}", bad.len());
        }
        write(data.path(), "number.json", &7).unwrap();
        assert_eq!(read::<u8>(&data.path().join("number.json")), Some(7));
    }
}
