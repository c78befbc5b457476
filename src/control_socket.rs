//! A Unix socket in the data folder through which `outpost backup`, `check`, `audit export`, `usage export` and
//! `models export` reach the store of a running server.
//!
//! A process that can open the data folder (0700) can read the database anyway, so the socket needs no key. Requests
//! and replies are one JSON object per line.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use crate::service::export;
use crate::service::fine_tuning::export_model;
use crate::storage::{CheckReport, Store};

const SOCKET: &str = "control.sock";
const MAX_REQUEST_BYTES: u64 = 64 * 1024;

/// A request to a running server.
#[derive(Debug, Deserialize, Serialize)]
#[serde(tag = "command", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// Write a backup to this absolute path.
    Backup { to: PathBuf },
    /// Read and check every record.
    Check,
    /// Write rows to this absolute path.
    Export { to: PathBuf, order: export::ExportRequest },
    /// Write a model that a job has trained to the new folder at this absolute path.
    ExportModel { name: String, to: PathBuf },
}

/// The server's reply.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    Checked(CheckReport),
    /// A backup: its records by table, and its size.
    BackedUp {
        records: BTreeMap<String, u64>,
        bytes: u64,
    },
    /// An export, and its size.
    Exported {
        bytes: u64,
    },
    Failed {
        message: String,
    },
}

/// The listening side; dropping it closes the socket and removes its file.
pub struct ControlSocket {
    tasks: JoinSet<()>,
    path: PathBuf,
}

impl ControlSocket {
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
            // The path may be too long for a socket address. The server then runs without the socket.
            Err(cause) => tracing::warn!(%cause, "no control socket: stop the server before 'outpost backup'"),
        }
        Ok(Self { tasks, path })
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.tasks.abort_all();
        if let Err(cause) = std::fs::remove_file(&self.path) {
            tracing::debug!(%cause, "the control socket was gone already");
        }
    }
}

/// Connections are served one at a time, because each reads the whole store.
async fn accept(listener: UnixListener, store: Store) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if let Err(cause) = answer_connection(stream, &store).await {
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

async fn answer_connection(stream: UnixStream, store: &Store) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut line = String::new();
    let mut reader = tokio::io::BufReader::new(reader.take(MAX_REQUEST_BYTES));
    let read = tokio::time::timeout(Duration::from_secs(5), reader.read_line(&mut line)).await;
    read.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let answer = match serde_json::from_str(&line) {
        Ok(request) => {
            let store = store.clone();
            let work = tokio::task::spawn_blocking(move || execute(request, &store));
            work.await.unwrap_or_else(|panic| Reply::Failed { message: panic.to_string() })
        }
        Err(cause) => Reply::Failed { message: format!("the request was not understood: {cause}") },
    };
    let mut reply = serde_json::to_vec(&answer)?;
    reply.push(b'\n');
    writer.write_all(&reply).await
}

fn execute(request: Request, store: &Store) -> Reply {
    let failed = |message: String| Reply::Failed { message };
    match request {
        Request::Backup { to } => match store.backup(&to) {
            Ok(report) => Reply::BackedUp { records: report.records, bytes: report.bytes },
            Err(cause) => failed(cause.to_string()),
        },
        Request::Check => match store.verify() {
            Ok(report) => Reply::Checked(report),
            Err(cause) => failed(cause.to_string()),
        },
        Request::Export { to, order } => {
            let done = tokio::runtime::Handle::current().block_on(order.run(store, &to));
            done.map_or_else(failed, |bytes| Reply::Exported { bytes })
        }
        Request::ExportModel { name, to } => {
            export_model(store, &name, &to).map_or_else(failed, |bytes| Reply::Exported { bytes })
        }
    }
}

/// What to say if a reply cannot be understood.
pub const OTHER_VERSION: &str = "the running server is another version of outpost; use its own binary";

/// Whether a server that uses `data` is running.
pub fn is_listening(data: &Path) -> bool {
    BlockingStream::connect(data.join(SOCKET)).is_ok()
}

/// Sends a request to the server that uses `data`; `None` if none is running.
pub fn send(data: &Path, request: &Request) -> io::Result<Option<Reply>> {
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
    let reply = serde_json::from_str(&reply).map_err(|_| io::Error::other(OTHER_VERSION))?;
    Ok(Some(reply))
}
