//! Files in layers that are uncompressed tar archives, as ModelPack's and KitOps's tools make them.
//!
//! Nothing is unpacked: a file of an archive is downloaded as a section of its layer. A small archive is read and verified while
//! the model is planned, and so the hash of each of its files is known. A large one must have only one file, such as the
//! weights of a model, whose hash is then computed together with the rest of the archive.

use std::io::Cursor;
use std::ops::Range;
use std::sync::Arc;

use tar::{Archive, EntryType};

use super::client::Hub;
use super::error::HubError;
use super::registry::Access;
use super::registry_manifest::{ArchiveLayer, Artifact, is_wanted};
use super::remote_file::bad_answer;
use super::repository::HubFile;
use crate::display::hex;
use crate::download::{Checksum, Request, Section};
use crate::progress::Progress;

/// Archives up to this size are read as a whole, in bytes.
const MAX_SMALL_BYTES: u64 = 32 << 20;
/// Max bytes of an artifact's archives that are read as a whole.
const MAX_SMALL_SUM: u64 = 256 << 20;
/// Bytes of a large archive that are read to find its file.
const START_BYTES: u64 = 64 << 10;
/// Max bytes after the file of a large archive. Tar programs end an archive with zeros, often up to a multiple of 10 KiB.
const MAX_END_BYTES: u64 = 64 << 10;

/// A regular file in an archive.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    path: String,
    content: Range<u64>,
}

impl Hub {
    /// The files in the archives of an artifact. Archives that cannot be read are noted in the artifact.
    pub(super) fn files_in_archives(
        &self,
        access: &Access<'_>,
        artifact: &mut Artifact,
        progress: &mut dyn Progress,
    ) -> Result<Vec<HubFile>, HubError> {
        let (mut files, mut read_sum) = (Vec::new(), 0_u64);
        let archives = std::mem::take(&mut artifact.archives);
        if !archives.is_empty() {
            progress.note(&format!("reading the lists of files in archives: {}", archives.len()));
        }
        for archive in archives {
            let read = read_sum.saturating_add(archive.bytes);
            let found = if archive.bytes <= MAX_SMALL_BYTES && read <= MAX_SMALL_SUM {
                read_sum = read;
                self.files_of_small(access, &archive, progress)?
            } else {
                self.file_of_large(access, &archive, progress)?.map(|file| vec![file])
            };
            match found {
                Some(found) => files.extend(found),
                None => artifact.add_unread(archive.media_type),
            }
        }
        Ok(files)
    }

    /// The files of an archive that is read as a whole; `None`: it is no archive.
    fn files_of_small(
        &self,
        access: &Access<'_>,
        archive: &ArchiveLayer,
        progress: &mut dyn Progress,
    ) -> Result<Option<Vec<HubFile>>, HubError> {
        let request = access.blob(&archive.sha256)?;
        let got = self.downloader.get(&request, archive.bytes, progress);
        let (_, bytes) = got.map_err(|error| self.explain(error, access.reference))?;
        let found = sha256(&bytes);
        if found != archive.sha256 {
            let why = format!("a layer has the sha256 {found}, but {} is expected", archive.sha256);
            return Err(bad_answer(access.reference, &why));
        }
        let Some(entries) = entries(&bytes) else { return Ok(None) };
        let file = |entry: Entry| {
            let content = bytes.get(as_usize(&entry.content)?)?;
            Some(section(entry, archive, &request, Checksum::Sha256(sha256(content))))
        };
        Ok(Some(entries.into_iter().filter_map(file).collect()))
    }

    /// The file of an archive that has no other; `None`: it has others, or is no archive.
    fn file_of_large(
        &self,
        access: &Access<'_>,
        archive: &ArchiveLayer,
        progress: &mut dyn Progress,
    ) -> Result<Option<HubFile>, HubError> {
        let request = access.blob(&archive.sha256)?;
        let mut read = |range: Range<u64>| {
            let read = self.downloader.range(&request, range, progress);
            read.map_err(|error| self.explain(error, access.reference))
        };
        let mut start = read(0..archive.bytes.min(START_BYTES))?;
        let Some(entry) = first_entry(&start) else { return Ok(None) };
        let end = entry.content.end..archive.bytes;
        // A file that ends in the start that was read is not what makes the archive large.
        if end.start < start.len() as u64 || end.start > end.end || end.end - end.start > MAX_END_BYTES {
            return Ok(None);
        }
        let after = if end.is_empty() { Vec::new() } else { read(end)? };
        if after.iter().any(|byte| *byte != 0) {
            return Ok(None);
        }
        start.truncate(usize::try_from(entry.content.start).unwrap_or(usize::MAX));
        let (sha256, before, after) = (archive.sha256.clone(), Arc::from(start), Arc::from(after));
        Ok(Some(section(entry, archive, &request, Checksum::InTar { sha256, before, after })))
    }
}

fn section(entry: Entry, archive: &ArchiveLayer, request: &Request, checksum: Checksum) -> HubFile {
    let size = entry.content.end - entry.content.start;
    let section = Section { range: entry.content, whole: archive.bytes };
    HubFile {
        path: entry.path,
        size: Some(size),
        checksum,
        request: Request { section: Some(section), ..request.clone() },
    }
}

fn sha256(bytes: &[u8]) -> String {
    hex(ring::digest::digest(&ring::digest::SHA256, bytes).as_ref())
}

fn as_usize(range: &Range<u64>) -> Option<Range<usize>> {
    Some(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)
}

/// The files of a whole archive; `None`: it is no archive.
fn entries(bytes: &[u8]) -> Option<Vec<Entry>> {
    let mut archive = Archive::new(Cursor::new(bytes));
    let mut found = Vec::new();
    for entry in archive.entries().ok()? {
        found.extend(wanted(&entry.ok()?));
    }
    Some(found)
}

/// The first file of an archive, of which `start` is the start.
fn first_entry(start: &[u8]) -> Option<Entry> {
    let mut archive = Archive::new(Cursor::new(start));
    for entry in archive.entries().ok()? {
        let entry = entry.ok()?;
        if entry.header().entry_type() != EntryType::Directory {
            return wanted(&entry);
        }
    }
    None
}

/// A regular file. Empty files are left out: no model needs one.
fn wanted(entry: &tar::Entry<'_, Cursor<&[u8]>>) -> Option<Entry> {
    let (start, size) = (entry.raw_file_position(), entry.size());
    if entry.header().entry_type() != EntryType::Regular || size == 0 {
        return None;
    }
    let path = String::from_utf8(entry.path_bytes().into_owned()).ok()?;
    let path = path.strip_prefix("./").unwrap_or(&path).to_owned();
    let content = start..start.checked_add(size)?;
    is_wanted(&path, size).then_some(Entry { path, content })
}
