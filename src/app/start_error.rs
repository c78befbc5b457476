//! The errors of a start.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::http::tls::TlsError;
use crate::storage::OpenError;

/// Why the server could not start; the text is for the operator.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Store(#[from] OpenError),
    #[error("cannot listen on {address}: {cause}. Is another server running there? --listen takes another address")]
    Listen { address: SocketAddr, cause: io::Error },
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("--device {0}")]
    Device(String),
    #[error("--keyless-project: {0}")]
    Keyless(crate::error::Error),
    #[error("the database could not be prepared: {0}")]
    Setup(crate::error::Error),
    #[error("{path}: {cause}")]
    File { path: PathBuf, cause: io::Error },
    #[error("the server could not start: {0}")]
    Io(#[from] io::Error),
}
