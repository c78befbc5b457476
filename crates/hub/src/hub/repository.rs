//! The files that a source offers.

use std::collections::HashSet;

use crate::catalog::check_file_path;
use crate::download::{Checksum, Request};
use outpost_common::display::hex;

/// Max size of a file; prevents overflows of sums.
const MAX_FILE_BYTES: u64 = 1 << 40;

/// The files of a source in one version.
#[derive(Clone, Debug)]
pub struct Repository {
    /// A commit, the digest of a manifest, or the strong ETag of a file; empty if the source names no version.
    pub revision: String,
    /// As its authors state it; untrusted text of one line.
    pub license: Option<String>,
    /// Set if its license must be accepted on the hub first.
    pub is_gated: bool,
    pub files: Vec<HubFile>,
    /// Media types of archives that cannot be read; each once.
    pub unread: Vec<String>,
    /// What the user should know, such as parts of the model that are not used.
    pub notes: Vec<String>,
}

impl Repository {
    pub(super) fn new(revision: String, files: Vec<HubFile>) -> Self {
        let (unread, notes) = Default::default();
        Self { revision, license: None, is_gated: false, files, unread, notes }
    }
}

/// A file of a source.
#[derive(Clone, Debug)]
pub struct HubFile {
    /// A checked relative path.
    pub path: String,
    /// In bytes, if the source says it.
    pub size: Option<u64>,
    pub checksum: Checksum,
    pub request: Request,
}

/// The sha256 of these bytes, in lower-case hex.
pub(super) fn sha256(bytes: &[u8]) -> String {
    hex(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref())
}

/// True for files with a usable path and size. Others are treated as absent.
pub(super) fn is_usable(path: &str, size: Option<u64>) -> bool {
    check_file_path(path).is_ok() && size.is_none_or(|size| size <= MAX_FILE_BYTES)
}

/// # Errors
/// If two names differ only in case, which some file systems ignore.
pub(super) fn check_names(files: &[HubFile]) -> Result<(), String> {
    let mut names = HashSet::new();
    match files.iter().find(|file| !names.insert(file.path.to_lowercase())) {
        Some(twice) => Err(format!("it has two files {}, apart from case", twice.path)),
        None => Ok(()),
    }
}
