//! Why a model of a hub was not installed. Messages tell the user what to do.

use std::path::PathBuf;

use crate::catalog::FolderError;
use crate::display::format_bytes;
use crate::download::DownloadError;
use crate::engine::MemoryNeed;

#[derive(Debug, thiserror::Error)]
pub enum HubError {
    #[error("{0}")]
    Setting(String),
    #[error(
        "{reference} is gated: accept its license at {page}, then set HF_TOKEN to a token of that account{}",
        if *.had_token { "; the token that is set has no access" } else { "" }
    )]
    Gated { reference: String, page: String, had_token: bool },
    #[error(
        "the hub has no repository '{repository}' that this request may see; check the name, or set HF_TOKEN if it is private"
    )]
    NoRepository { repository: String },
    #[error("'{repository}' has no revision '{revision}'")]
    NoRevision { repository: String, revision: String },
    #[error("the hub allows no more requests; run the same command later. What has arrived is kept")]
    RateLimit,
    #[error("the hub's answer about {reference} makes no sense: {why}")]
    BadAnswer { reference: String, why: String },
    #[error("{reference} has no model that this command can install: {why}")]
    NoModel { reference: String, why: String },
    #[error("{host} has no {reference}; check the name and the tag")]
    NoManifest { reference: String, host: String },
    #[error("{host} gives no access to {reference}; {}", access_hint(*.had_credentials))]
    NoAccess { reference: String, host: String, had_credentials: bool },
    #[error("{reference} has several models of Whisper; name one after a ':'. It has: {known}")]
    Several { reference: String, known: String },
    #[error("{reference} has {} to download, more than --max-size, {}", format_bytes(*.bytes), format_bytes(*.limit))]
    TooMuch { reference: String, bytes: u64, limit: u64 },
    #[error(
        "{file} of {model} has the sha256 {found}, but {expected} was recorded when it was installed; pull it again with --force"
    )]
    Changed { model: String, file: String, expected: String, found: String },
    #[error("{reference} has no single GGUF file '{selector}'; it has: {known}")]
    NoCandidate { reference: String, selector: String, known: String },
    #[error(
        "{file} of {reference} is split into several files, which this server cannot read; merge them with `llama-gguf-split --merge` and import the result, or choose one of: {known}"
    )]
    Split { reference: String, file: String, known: String },
    #[error("{file} cannot be served: {why}")]
    Unsupported { file: String, why: String },
    #[error("{}", too_large(.name, .need, *.limit, .smaller))]
    TooLarge { name: String, need: Box<MemoryNeed>, limit: u64, smaller: Option<String> },
    #[error("'{0}' cannot be the name of a model; choose another one with --name")]
    BadName(String),
    #[error("{path} exists already; use --force to replace it, or --name for another name")]
    Exists { path: PathBuf },
    #[error("--sha256 is {expected}, but the hub says that {file} has {found}")]
    OtherHash { file: String, expected: String, found: String },
    #[error("cannot use {path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Download(#[from] DownloadError),
}

fn access_hint(had_credentials: bool) -> &'static str {
    match had_credentials {
        true => "the user of OUTPOST_OCI_USERNAME may not read it, or OUTPOST_OCI_PASSWORD is wrong",
        false => {
            "check the name; if it is private and the reference begins with oci:, set OUTPOST_OCI_USERNAME and OUTPOST_OCI_PASSWORD"
        }
    }
}

fn too_large(name: &str, need: &MemoryNeed, limit: u64, smaller: &Option<String>) -> String {
    let MemoryNeed { weights, loading, scratch, kv, context } = *need;
    let more = match kv >= loading {
        true => format!("{} for {context} tokens of context", format_bytes(kv)),
        false => format!("{} while it is loaded", format_bytes(loading)),
    };
    let smaller = smaller.as_ref().map(|text| format!(" Smaller: {text}.")).unwrap_or_default();
    format!(
        "{name} needs {} of memory ({} weights, {more}, {} scratch); the limit for models is {}.{smaller} --force pulls it all the same",
        format_bytes(need.total()),
        format_bytes(weights),
        format_bytes(scratch),
        format_bytes(limit),
    )
}
