//! The second connection: a socket in the data folder through which `outpost backup` and
//! `outpost check` reach the store of a running server; so does `outpost usage export`.
//!
//! Whoever can open the data folder (0700) could read the database anyway, so the socket asks for
//! no key. One JSON request a line, one JSON reply a line.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use crate::error::Error;
use crate::service::usage::{ExportFilter, UsageRow};
use crate::storage::{CheckReport, Store};

const SOCKET: &str = "control.sock";
const LONGEST_REQUEST: u64 = 64 * 1024;

/// What can be asked of a running server.
#[derive(Debug, Deserialize, Serialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Write a backup to this absolute path.
    Backup { to: PathBuf },
    /// Read and check every record.
    Check,
    /// Write the metered requests to a file.
    ExportUsage(ExportJob),
}

/// A file of metered requests.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct ExportJob {
    /// An absolute path that is not there yet.
    pub to: PathBuf,
    pub format: Format,
    pub filter: ExportFilter,
}

/// How rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// Comma-separated values with a header line
    Csv,
    /// One JSON object a line
    Jsonl,
}

/// What comes back.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    Done { lines: Vec<String>, problems: Vec<String> },
    Failed { message: String },
}

impl Answer {
    /// What a check found.
    pub fn checked(report: CheckReport) -> Self {
        let mut lines = summary(&report.records, report.bytes);
        if report.repaired {
            lines.push("the file's own bookkeeping was rebuilt".to_owned());
        }
        Answer::Done { lines, problems: report.problems }
    }
}

/// Records by table and the size of the file, a line each.
pub fn summary(records: &BTreeMap<String, u64>, bytes: u64) -> Vec<String> {
    let mut lines: Vec<String> = records.iter().map(|(table, count)| format!("{table}: {count}")).collect();
    lines.push(format!("{bytes} bytes"));
    lines
}

/// The listening side; dropping it closes the socket and removes its file.
pub struct Control {
    tasks: JoinSet<()>,
    path: PathBuf,
}

impl Control {
    /// Listens in `data`. The caller holds the store's lock, so a file that is there is stale.
    pub fn listen(data: &Path, store: Store) -> io::Result<Self> {
        let path = data.join(SOCKET);
        match std::fs::remove_file(&path) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause),
            _ => {}
        }
        let mut tasks = JoinSet::new();
        match UnixListener::bind(&path) {
            Ok(listener) => {
                tasks.spawn(accept(listener, store));
            }
            // A data folder whose path is longer than a socket's name may be: serve without.
            Err(cause) => tracing::warn!(%cause, "no control socket: stop the server before 'outpost backup'"),
        }
        Ok(Self { tasks, path })
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        self.tasks.abort_all();
        if let Err(cause) = std::fs::remove_file(&self.path) {
            tracing::debug!(%cause, "the control socket was gone already");
        }
    }
}

/// One connection at a time: each of them reads the whole store.
async fn accept(listener: UnixListener, store: Store) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if let Err(cause) = converse(stream, &store).await {
                    tracing::warn!(%cause, "a control connection broke off");
                }
            }
            Err(cause) => {
                tracing::warn!(%cause, "the control socket cannot accept");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn converse(stream: UnixStream, store: &Store) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut line = String::new();
    let mut reader = tokio::io::BufReader::new(reader.take(LONGEST_REQUEST));
    let read = tokio::time::timeout(Duration::from_secs(5), reader.read_line(&mut line)).await;
    read.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let answer = match serde_json::from_str(&line) {
        Ok(request) => {
            let store = store.clone();
            let work = tokio::task::spawn_blocking(move || obey(request, &store));
            work.await.unwrap_or_else(|panic| Answer::Failed { message: panic.to_string() })
        }
        Err(cause) => Answer::Failed { message: format!("the request was not understood: {cause}") },
    };
    let mut reply = serde_json::to_vec(&answer)?;
    reply.push(b'\n');
    writer.write_all(&reply).await
}

fn obey(request: Request, store: &Store) -> Answer {
    let failed = |message: String| Answer::Failed { message };
    match request {
        Request::Backup { to } => match store.backup(&to) {
            Ok(report) => Answer::Done { lines: summary(&report.records, report.bytes), problems: Vec::new() },
            Err(cause) => failed(cause.to_string()),
        },
        Request::ExportUsage(job) => export_usage(store, &job),
        Request::Check => match store.verify() {
            Ok(report) => Answer::checked(report),
            Err(cause) => failed(cause.to_string()),
        },
    }
}

/// Writes the metered requests that a job names; a file that is half-written goes again.
pub fn export_usage(store: &Store, job: &ExportJob) -> Answer {
    let written = write_rows(store, job);
    match written {
        Ok(rows) => {
            Answer::Done { lines: vec![format!("{rows} requests in {}", job.to.display())], problems: Vec::new() }
        }
        Err(cause) => {
            if cause.kind() != io::ErrorKind::AlreadyExists {
                drop(std::fs::remove_file(&job.to));
            }
            Answer::Failed { message: format!("{}: {cause}", job.to.display()) }
        }
    }
}

fn write_rows(store: &Store, job: &ExportJob) -> io::Result<u64> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&job.to)?;
    let mut file = BufWriter::new(file);
    let mut rows = 0;
    let failed = |error: &dyn std::fmt::Display| Error::internal(error.to_string());
    let shown = match job.format {
        Format::Jsonl => UsageRow::each(store, job.filter, |row| {
            rows += 1;
            serde_json::to_writer(&mut file, row).map_err(|error| failed(&error))?;
            file.write_all(b"\n").map_err(|error| failed(&error))
        }),
        Format::Csv => {
            let mut table = csv::Writer::from_writer(&mut file);
            UsageRow::each(store, job.filter, |row| {
                rows += 1;
                table.serialize(row).map_err(|error| failed(&error))
            })
            .and_then(|()| table.flush().map_err(|error| failed(&error)))
        }
    };
    shown.map_err(|error| io::Error::other(error.cause().map_or_else(|| error.to_string(), ToString::to_string)))?;
    file.flush()?;
    Ok(rows)
}

/// Asks the server that runs on `data`; `None` if none does.
pub fn ask(data: &Path, request: &Request) -> io::Result<Option<Answer>> {
    let mut stream = match BlockingStream::connect(data.join(SOCKET)) {
        Ok(stream) => stream,
        Err(cause) if matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        Err(cause) => return Err(cause),
    };
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut reply = String::new();
    BufReader::new(stream).read_line(&mut reply)?;
    Ok(Some(serde_json::from_str(&reply)?))
}
