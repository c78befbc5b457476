//! Why a model of a hub was not installed.

use std::path::PathBuf;

use crate::catalog::{FolderError, Remedy, UserError};
use crate::download::{DownloadError, Location};
use outpost_common::display::format_bytes;
use outpost_engine::MemoryNeed;

#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error("{0}")]
    Setting(String),
    #[error("{reference} is gated{}", if *.had_token { ", and the token that is set has no access" } else { "" })]
    Gated { reference: String, page: String, had_token: bool },
    #[error("the hub has no repository '{repository}', or it is private")]
    NoRepository { repository: String },
    #[error("'{repository}' has no revision '{revision}'")]
    NoRevision { repository: String, revision: String },
    #[error("the hub allows no more requests for now; try again later. What has arrived is kept")]
    RateLimit,
    #[error("the hub's answer about {reference} makes no sense: {why}")]
    BadAnswer { reference: String, why: String },
    #[error("{reference} has no model that can be installed: {why}")]
    NoModel { reference: String, why: String },
    #[error("{host} has no {reference}; check the name and the tag")]
    NoManifest { reference: String, host: String },
    #[error("{host} gives no access to {reference}")]
    NoAccess { reference: String, host: String, had_credentials: bool },
    #[error("{location} is not encrypted")]
    NotEncrypted { location: Location },
    #[error("{reference} has several models of Whisper; name one after a ':'. It has: {known}")]
    Several { reference: String, known: String },
    /// Only the command line sets a limit.
    #[error("{reference} has {} to download, more than --max-size, {}", format_bytes(*.bytes), format_bytes(*.limit))]
    TooMuch { reference: String, bytes: u64, limit: u64 },
    /// Only the command line verifies installed models.
    #[error(
        "{file} of {model} has the sha256 {found}, but {expected} was recorded when it was installed; pull it again with --force"
    )]
    Changed { model: String, file: String, expected: String, found: String },
    #[error("{reference} has no single GGUF file '{selector}'; it has: {known}")]
    NoCandidate { reference: String, selector: String, known: String },
    #[error("{file} cannot be served: {why}")]
    Unsupported { file: String, why: String },
    /// `limit`: the memory for models on the device, in bytes.
    #[error("{}", too_large(.name, .need, *.limit, .device, .smaller))]
    TooLarge { name: String, need: Box<MemoryNeed>, limit: u64, device: String, smaller: Option<String> },
    #[error("'{0}' cannot be the name of a model")]
    BadName(String),
    #[error("{path} exists already")]
    Exists { path: PathBuf, can_replace: bool },
    #[error("the given sha256 of {file} is {expected}, but the hub says that it is {found}")]
    OtherHash { file: String, expected: String, found: String },
    #[error("a sha256 is for one file, but {reference} has {count}; leave it out")]
    NotOneFile { reference: String, count: usize },
    #[error("cannot use {path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Download(#[from] DownloadError),
}

impl UserError for HubError {
    fn remedy(&self) -> Option<Remedy> {
        Some(match self {
            Self::Gated { page, .. } => Remedy::new(
                format!("accept its license at {page}, then set HF_TOKEN to a token of that account"),
                format!(
                    "accept its license at {page}, then ask the operator to set HF_TOKEN on the server to a token of that account"
                ),
            ),
            Self::NoRepository { .. } => Remedy::new(
                "check the name, or set HF_TOKEN if it is private",
                "check the name; if it is private, ask the operator to set HF_TOKEN on the server",
            ),
            Self::NoAccess { reference, had_credentials, .. } => access(reference, *had_credentials),
            Self::NotEncrypted { location } => {
                let host = &location.origin().host;
                Remedy::new(
                    format!("use https://, or allow this host with --allow-host {host}"),
                    format!("use https://, or ask the operator to allow this host with --pull-allowed-host {host}"),
                )
            }
            Self::TooLarge { .. } => {
                Remedy::new("use --force to install it anyway", "send 'force' to install it anyway")
            }
            Self::BadName(_) => Remedy::new("choose another one with --name", "send another 'name'"),
            Self::Exists { can_replace: true, .. } => Remedy::new(
                "use --force to replace it, or --name for another name",
                "send 'force' to replace it, or another 'name'",
            ),
            Self::Exists { can_replace: false, .. } => Remedy::new(
                "use --name for another name, or remove it first",
                "send another 'name', or ask the operator to remove it",
            ),
            Self::Folder(error) => return error.remedy(),
            Self::Download(error) => return of_download(error),
            _ => return None,
        })
    }
}

fn of_download(error: &DownloadError) -> Option<Remedy> {
    match error {
        DownloadError::PrivateAddress { host, .. } => Some(Remedy::new(
            format!("if you trust this host, allow it with --allow-host {host}"),
            format!("if you trust this host, ask the operator to allow it with --pull-allowed-host {host}"),
        )),
        DownloadError::Unreachable { .. } | DownloadError::Interrupted { .. } | DownloadError::Stalled { .. } => {
            Some(Remedy::new(
                "check the network, then run the same command again",
                "try again later, or ask the operator to check the server's network",
            ))
        }
        DownloadError::DiskFull(_) => Some(Remedy::free_space()),
        _ => None,
    }
}

fn access(reference: &str, had_credentials: bool) -> Remedy {
    match had_credentials {
        true => Remedy::new(
            "the user of OUTPOST_OCI_USERNAME may not read it, or OUTPOST_OCI_PASSWORD is wrong",
            "ask the operator to check OUTPOST_OCI_USERNAME and OUTPOST_OCI_PASSWORD on the server",
        ),
        false if reference.starts_with("oci:") => Remedy::new(
            "check the name; if it is private, set OUTPOST_OCI_USERNAME and OUTPOST_OCI_PASSWORD",
            "check the name; if it is private, ask the operator to set OUTPOST_OCI_USERNAME, OUTPOST_OCI_PASSWORD and OUTPOST_OCI_REGISTRY on the server",
        ),
        false => {
            let text = "check the name; private models of Ollama's registry are not supported";
            Remedy::new(text, text)
        }
    }
}

fn too_large(name: &str, need: &MemoryNeed, limit: u64, device: &str, smaller: &Option<String>) -> String {
    let MemoryNeed { weights, loading, scratch, kv, context } = *need;
    let more = match kv >= loading {
        true => format!("{} for {context} tokens of context", format_bytes(kv)),
        false => format!("{} while it is loaded", format_bytes(loading)),
    };
    let smaller = smaller.as_ref().map(|text| format!(", and {text}")).unwrap_or_default();
    format!(
        "{name} needs {} of memory ({} weights, {more}, {} scratch); the limit for models on {device} is {}{smaller}",
        format_bytes(need.total()),
        format_bytes(weights),
        format_bytes(scratch),
        format_bytes(limit),
    )
}
