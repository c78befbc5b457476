//! Verifies files.

use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;

use ring::digest::{Context, Digest, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

use outpost_common::display::hex;

const CHUNK: usize = 1 << 20;

/// The expected hash of a file's content. Digests are lower-case hex.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Checksum {
    Sha256(String),
    /// The ID of a git object, which is all that a hub knows of small files: SHA-1 of `blob`, the size and the content. It
    /// detects damage, not a forgery.
    GitBlob(String),
    /// The sha256 of a tar archive with one file, and the archive's bytes before and after the content of that file.
    InTar {
        sha256: String,
        before: Arc<[u8]>,
        after: Arc<[u8]>,
    },
    /// Nothing is known.
    None,
}

/// The digests of a file's content.
pub(super) struct Digests {
    pub sha256: String,
    /// The digest to compare with that of the checksum.
    compared: String,
}

impl Checksum {
    /// The digest, which names the content.
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::Sha256(digest) | Self::GitBlob(digest) | Self::InTar { sha256: digest, .. } => Some(digest),
            Self::None => None,
        }
    }

    /// The expected digest and the one that was found, if the content is not the expected one.
    pub(super) fn mismatch(&self, found: &Digests) -> Option<(String, String)> {
        let expected = self.key()?;
        (!expected.eq_ignore_ascii_case(&found.compared)).then(|| (expected.to_owned(), found.compared.clone()))
    }

    /// A hash of the bytes before a content of `length` bytes, and the bytes after it. `None`: the digest is of the
    /// content alone.
    fn begin(&self, length: u64) -> Option<(Context, Arc<[u8]>)> {
        let (algorithm, before, after) = match self {
            Self::GitBlob(_) => {
                (&SHA1_FOR_LEGACY_USE_ONLY, format!("blob {length}\0").into_bytes().into(), Arc::default())
            }
            Self::InTar { before, after, .. } => (&SHA256, Arc::clone(before), Arc::clone(after)),
            Self::Sha256(_) | Self::None => return None,
        };
        let mut context = Context::new(algorithm);
        context.update(&before);
        Some((context, after))
    }
}

/// Hashes a file of `length` bytes, for the comparison with a checksum. `on_bytes` is called with the size of each chunk; an error
/// that it returns ends the work.
pub(super) fn digests(
    file: &File,
    length: u64,
    checksum: &Checksum,
    on_bytes: impl Fn(u64) -> io::Result<()>,
) -> io::Result<Digests> {
    let mut sha256 = Context::new(&SHA256);
    let mut other = checksum.begin(length);
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
        if let Some((context, _)) = &mut other {
            context.update(bytes);
        }
        on_bytes(bytes.len() as u64)?;
    }
    let text = |digest: Digest| hex(digest.as_ref());
    let sha256 = text(sha256.finish());
    let compared = match other {
        Some((mut context, after)) => {
            context.update(&after);
            text(context.finish())
        }
        None => sha256.clone(),
    };
    Ok(Digests { sha256, compared })
}
