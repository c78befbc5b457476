//! Copies an entry of an archive whose size is known, and tells errors of the disk from errors of the archive.

use std::io::{self, Read, Write};
use std::path::Path;

use super::error::{FolderError, PullError};
use super::hashing::{self, Copied};
use super::package::PackageId;

/// Why a copy failed: the disk or the content of the package.
pub enum CopyError {
    Folder(FolderError),
    Content(String),
}

impl CopyError {
    pub fn in_entry(self, package: &PackageId, entry: &str) -> PullError {
        match self {
            Self::Folder(e) => e.into(),
            Self::Content(why) => package.bad(entry, why),
        }
    }
}

/// Copies exactly `bytes` bytes; fewer or more are an error. `path` is used in error messages.
pub fn copy_exactly(
    reader: impl Read,
    bytes: u64,
    (writer, path): (&mut dyn Write, &Path),
    on_bytes: &mut dyn FnMut(u64),
) -> Result<Copied, CopyError> {
    let mut writer = WriteProbe { writer, failed: false };
    match hashing::copy(reader, &mut writer, bytes, on_bytes) {
        Ok(copied) if copied.bytes == bytes => Ok(copied),
        Ok(copied) if copied.bytes > bytes => Err(CopyError::Content(format!("has more than {bytes} bytes"))),
        Ok(copied) => Err(CopyError::Content(format!("has {} bytes instead of {bytes}", copied.bytes))),
        Err(e) if writer.failed => Err(CopyError::Folder(FolderError::at(path)(e))),
        Err(e) => Err(CopyError::Content(format!("cannot be unpacked: {e}"))),
    }
}

/// Records whether a write failed.
struct WriteProbe<'w> {
    writer: &'w mut dyn Write,
    failed: bool,
}

impl Write for WriteProbe<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes).inspect_err(|_| self.failed = true)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}
