//! Why a download failed. Messages have no query strings, which may be signatures, and no headers of requests.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use http1::StatusCode;

use super::location::Location;
use outpost_common::display::{format_bytes, one_line, shorten};

#[derive(Debug, thiserror::Error)]
pub enum DownloadError {
    #[error("the address {url} {why}")]
    BadUrl { url: String, why: &'static str },
    #[error("{host} has the address {address}, which is not on the public internet, so no connection was opened")]
    PrivateAddress { host: String, address: IpAddr },
    #[error("{from} redirects {why}")]
    BadRedirect { from: Location, why: String },
    /// The server answered with an error that another attempt does not change.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// The server that gives tokens for a registry refused.
    #[error("{realm} gives no token")]
    LoginRefused { realm: Location, had_credentials: bool },
    #[error("{location} cannot be reached: {cause}")]
    Unreachable { location: Location, cause: String },
    #[error("the transfer from {location} broke off: {cause}")]
    Interrupted { location: Location, cause: String },
    #[error("{location} sent almost nothing for {} seconds", limit.as_secs())]
    Stalled { location: Location, limit: Duration },
    #[error("{location} gave a wrong answer: {why}")]
    Protocol { location: Location, why: String },
    #[error("the answer of {location} is larger than {}", format_bytes(*limit))]
    TooLong { location: Location, limit: u64 },
    #[error(
        "{name} has the hash {found}, but {expected} is expected. It was removed: the download was damaged, or a proxy, a cache or the server sent another file"
    )]
    Mismatch { name: String, expected: String, found: String },
    #[error("the disk that holds {0} is full")]
    DiskFull(PathBuf),
    #[error("the download was cancelled; what has arrived is kept")]
    Cancelled,
    #[error("cannot use {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    /// The connection or this machine is not set up for downloads.
    #[error("{0}")]
    Setup(String),
}

/// An error that a server answered.
#[derive(Debug)]
pub struct Refusal {
    /// The URL that answered; after redirects it is not the requested one.
    pub location: Location,
    pub status: StatusCode,
    /// The header `X-Error-Code`, with which a Hugging Face hub says what is wrong.
    pub code: Option<String>,
    /// The header `X-Error-Message`.
    pub message: Option<String>,
    /// The header `WWW-Authenticate`.
    pub challenge: Option<String>,
    /// How long the server asks to wait.
    pub wait: Option<Duration>,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} answered with status {}", self.location, self.status)?;
        match &self.message {
            Some(message) => write!(f, ": {}", shorten(&one_line(message))),
            None => Ok(()),
        }
    }
}

impl DownloadError {
    /// An I/O error at `path`; a full disk gets its own message.
    pub(super) fn at(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull(path),
            _ => Self::Io { path, source },
        }
    }

    pub(super) fn protocol(location: &Location, why: impl Into<String>) -> Self {
        Self::Protocol { location: location.clone(), why: why.into() }
    }

    /// The server's refusal, if that is the reason.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            _ => None,
        }
    }
}
