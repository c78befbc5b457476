//! A Unix socket in the data folder through which `outpost backup`, `check`, `audit export`, `usage export` and
//! `models export` reach the store of a running server. `sign-in` gets a link, and `health` the server's address.
//!
//! A process that can open the data folder (0700) can read the database anyway, so the socket needs no key. Requests
//! and replies are one JSON object per line.
//!
//! It is a socket rather than an admin endpoint, because these commands must work for the owner of the data folder
//! without an API key, and no network endpoint should be able to read everything.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream as BlockingStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::service::export;
use crate::service::fine_tuning::export_model;
use crate::service::keys::sign_in::SignIn;
use crate::storage::{CheckReport, Store};

const SOCKET: &str = "control.sock";
const MAX_REQUEST_BYTES: u64 = 64 * 1024;
/// Connections that are served at the same time; others wait.
const MAX_CONNECTIONS: usize = 16;

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
    /// Make a sign-in link.
    SignIn,
    /// Name the address for clients on this machine.
    Address,
    /// Write a model that a job has trained to the new folder at this absolute path.
    ExportModel { name: String, to: PathBuf },
}

impl Request {
    /// True for requests that read the store and may take long.
    fn reads_store(&self) -> bool {
        !matches!(self, Self::SignIn | Self::Address)
    }
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
    /// A link that signs a browser in, with a secret token.
    SignInLink {
        url: String,
    },
    /// The address for clients on this machine.
    Address {
        url: String,
    },
    Failed {
        message: String,
    },
}

/// The services that answer requests.
pub struct Context {
    pub store: Store,
    pub sign_in: SignIn,
    /// URL of the server for users, without a trailing slash.
    pub base_url: String,
    /// URL of the server for clients on this machine.
    pub local_url: String,
}

/// The listening side; dropping it closes the socket and removes its file.
pub struct ControlSocket {
    tasks: JoinSet<()>,
    path: PathBuf,
}

impl ControlSocket {
    /// Listens in `data`. The caller holds the store's lock, so a file that is there is stale.
    pub fn listen(data: &Path, context: Context) -> io::Result<Self> {
        let path = data.join(SOCKET);
        match std::fs::remove_file(&path) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause),
            _ => {}
        }
        let mut tasks = JoinSet::new();
        match UnixListener::bind(&path) {
            Ok(listener) => {
                tasks.spawn(accept(listener, Arc::new(context)));
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

/// Requests that read the whole store are executed one at a time.
async fn accept(listener: UnixListener, context: Arc<Context>) {
    let turn = Arc::new(Mutex::new(()));
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        if connections.len() >= MAX_CONNECTIONS {
            connections.join_next().await;
        }
        match listener.accept().await {
            Ok((stream, _)) => {
                let (context, turn) = (context.clone(), turn.clone());
                connections.spawn(async move {
                    if let Err(cause) = answer_connection(stream, context, &turn).await {
                        tracing::warn!(%cause, "a control connection broke off");
                    }
                });
            }
            Err(cause) => {
                tracing::warn!(%cause, "the control socket cannot accept");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

async fn answer_connection(stream: UnixStream, context: Arc<Context>, turn: &Mutex<()>) -> io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut line = String::new();
    let mut reader = tokio::io::BufReader::new(reader.take(MAX_REQUEST_BYTES));
    let read = tokio::time::timeout(Duration::from_secs(5), reader.read_line(&mut line)).await;
    if read.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?? == 0 {
        // See `is_listening`.
        return Ok(());
    }
    let answer = match serde_json::from_str::<Request>(&line) {
        Ok(request) => {
            let _turn = if request.reads_store() { Some(turn.lock().await) } else { None };
            let work = tokio::task::spawn_blocking(move || execute(request, &context));
            work.await.unwrap_or_else(|panic| Reply::Failed { message: panic.to_string() })
        }
        Err(cause) => Reply::Failed { message: format!("the request was not understood: {cause}") },
    };
    let mut reply = serde_json::to_vec(&answer)?;
    reply.push(b'\n');
    writer.write_all(&reply).await
}

fn execute(request: Request, context: &Context) -> Reply {
    let store = &context.store;
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
        Request::Address => Reply::Address { url: context.local_url.clone() },
        Request::SignIn => Reply::SignInLink { url: context.sign_in.new_link(&context.base_url) },
        Request::ExportModel { name, to } => {
            export_model(store, &name, &to).map_or_else(failed, |bytes| Reply::Exported { bytes })
        }
    }
}

/// The error for a reply that cannot be parsed.
pub const OTHER_VERSION: &str = "the running server is another version of outpost; use its own binary";

/// True if a server that uses `data` is running.
pub fn is_listening(data: &Path) -> bool {
    BlockingStream::connect(data.join(SOCKET)).is_ok()
}

/// Sends a request to the server that uses `data`; `None` if none is running.
pub fn send(data: &Path, request: &Request) -> io::Result<Option<Reply>> {
    exchange(data, request, None)
}

/// Like [`send`], for requests that take no time. A server that does not reply within `timeout` is an error.
pub fn send_within(data: &Path, request: &Request, timeout: Duration) -> io::Result<Option<Reply>> {
    exchange(data, request, Some(timeout))
}

fn exchange(data: &Path, request: &Request, timeout: Option<Duration>) -> io::Result<Option<Reply>> {
    let mut stream = match BlockingStream::connect(data.join(SOCKET)) {
        Ok(stream) => stream,
        Err(cause) if matches!(cause.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) => {
            return Ok(None);
        }
        Err(cause) => return Err(cause),
    };
    stream.set_read_timeout(timeout)?;
    stream.set_write_timeout(timeout)?;
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut reply = String::new();
    BufReader::new(stream).read_line(&mut reply)?;
    let reply = serde_json::from_str(&reply).map_err(|_| io::Error::other(OTHER_VERSION))?;
    Ok(Some(reply))
}
