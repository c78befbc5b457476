//! Verifies files.

use std::fs::File;
use std::io::{self, Read};

use ring::digest::{Context, Digest, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

use crate::display::hex;

const CHUNK: usize = 1 << 20;

/// What the content of a file must hash to. Digests are lower-case hex.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checksum {
    Sha256(String),
    /// The ID of a git object, which is all that a hub knows of small files: SHA-1 of `blob`, the size and the content. It
    /// detects damage, not a forgery.
    GitBlob(String),
    /// Nothing is known.
    None,
}

/// The digests of a file's content.
pub(super) struct Digests {
    pub sha256: String,
    pub git_blob: String,
}

impl Checksum {
    /// A key for files in a folder of unfinished downloads.
    pub(super) fn key(&self) -> Option<&str> {
        match self {
            Self::Sha256(digest) | Self::GitBlob(digest) => Some(digest),
            Self::None => None,
        }
    }

    /// The digest that was found instead, if the content is not the expected one.
    pub(super) fn mismatch(&self, found: &Digests) -> Option<(String, String)> {
        let (expected, found) = match self {
            Self::Sha256(expected) => (expected, &found.sha256),
            Self::GitBlob(expected) => (expected, &found.git_blob),
            Self::None => return None,
        };
        (!expected.eq_ignore_ascii_case(found)).then(|| (expected.clone(), found.clone()))
    }
}

/// Hashes a file of `length` bytes. `is_git`: also computes the ID of the git object. `on_bytes` is called with the size of each
/// chunk; an error that it returns ends the work.
pub(super) fn digests(
    file: &File,
    length: u64,
    is_git: bool,
    on_bytes: impl Fn(u64) -> io::Result<()>,
) -> io::Result<Digests> {
    let mut sha256 = Context::new(&SHA256);
    let mut git = is_git.then(|| {
        let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
        context.update(format!("blob {length}\0").as_bytes());
        context
    });
    let mut chunk = vec![0; CHUNK];
    let mut reader = file;
    loop {
        let read = match reader.read(&mut chunk) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let bytes = chunk.get(..read).unwrap_or_default();
        sha256.update(bytes);
        if let Some(git) = &mut git {
            git.update(bytes);
        }
        on_bytes(bytes.len() as u64)?;
    }
    let text = |digest: Digest| hex(digest.as_ref());
    Ok(Digests { sha256: text(sha256.finish()), git_blob: git.map(|git| text(git.finish())).unwrap_or_default() })
}
