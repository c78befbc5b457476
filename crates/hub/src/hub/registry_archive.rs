//! Files in layers that are uncompressed tar archives, as ModelPack's and KitOps's tools make them.
//!
//! Nothing is unpacked: a file of an archive is downloaded as a section of its layer. A small archive is read and verified while
//! the model is planned, and so the hash of each of its files is known. A large one must have only one file, such as the
//! weights of a model, whose hash is then computed together with the rest of the archive.
//!
//! ORAS gives files the media type of an archive, too. What is no archive but has a name is therefore a file.
//!
//! An archive that is downloaded and then unpacked takes its space twice, its headers cannot be read first, and its
//! files have no digest of their own. A tar archive has a file's content unchanged between a header and zeros, so only
//! the content is requested, and it is hashed together with the few bytes around it, which gives the digest of the
//! layer. Compressed archives cannot be read from the middle and are refused.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use tar::{EntryType, Header, PaxExtensions};

use super::client::Hub;
use super::error::HubError;
use super::registry::Access;
use super::registry_manifest::{ArchiveLayer, Artifact, LayerFile, is_wanted};
use super::remote_file::bad_answer;
use super::repository::{HubFile, sha256};
use crate::download::{Checksum, Request, Section};
use outpost_common::progress::Progress;

/// Archives up to this size are read as a whole, in bytes.
const MAX_SMALL_BYTES: u64 = 32 << 20;
/// Max bytes of an artifact's archives that are read as a whole.
const MAX_SMALL_SUM: u64 = 256 << 20;
/// Max files in the archives of an artifact.
const MAX_FILES: usize = 1024;
/// Bytes of a large archive that are read to find its file.
const START_BYTES: u64 = 64 << 10;
/// Max bytes after the file of a large archive. Tar programs end an archive with zeros, often up to a multiple of 10 KiB.
const MAX_END_BYTES: u64 = 64 << 10;
const BLOCK: u64 = 512;

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
            progress.note(&format!("reading archives: {}", archives.len()));
        }
        for archive in archives {
            let read = read_sum.saturating_add(archive.bytes);
            let found = if archive.bytes <= MAX_SMALL_BYTES && read <= MAX_SMALL_SUM {
                read_sum = read;
                self.files_of_small_archive(access, &archive, progress)?
            } else {
                self.file_of_large_archive(access, &archive, progress)?.map(|file| vec![file])
            };
            match found {
                Some(found) => files.extend(found),
                None => artifact.add_unread(archive.media_type),
            }
            if files.len() > MAX_FILES {
                let why = format!("its archives have more than {MAX_FILES} files");
                return Err(HubError::NoModel { reference: access.reference.to_string(), why });
            }
        }
        Ok(files)
    }

    /// The files of an archive that is read as a whole; `None`: it cannot be read.
    fn files_of_small_archive(
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
        if header(&bytes, 0).is_none() {
            return Ok(named_file(access, archive)?.map(|file| vec![file]));
        }
        let (mut entries, mut files) = (Entries { bytes: &bytes, at: 0 }, Vec::new());
        while files.len() <= MAX_FILES {
            let entry = match entries.next() {
                Ok(Some(entry)) => entry,
                Ok(None) => break,
                Err(Damaged) => return Ok(None),
            };
            let content = as_usize(&entry.content).and_then(|range| bytes.get(range));
            let Some(content) = content else { return Ok(None) };
            if is_wanted(&entry.path, content.len() as u64) {
                files.push(section(entry, archive, &request, Checksum::Sha256(sha256(content))));
            }
        }
        Ok(Some(files))
    }

    /// The file of an archive that has no other; `None`: it has others, or cannot be read.
    fn file_of_large_archive(
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
        if header(&start, 0).is_none() {
            return named_file(access, archive);
        }
        let Ok(Some(entry)) = (Entries { bytes: &start, at: 0 }).next() else { return Ok(None) };
        let end = entry.content.end..archive.bytes;
        if end.start > end.end || end.end - end.start > MAX_END_BYTES {
            return Ok(None);
        }
        let after = if end.is_empty() { Vec::new() } else { read(end)? };
        if !is_zero(&after) || !is_wanted(&entry.path, entry.content.end - entry.content.start) {
            return Ok(None);
        }
        start.truncate(usize::try_from(entry.content.start).unwrap_or(usize::MAX));
        let (sha256, before, after) = (archive.sha256.clone(), Arc::from(start), Arc::from(after));
        Ok(Some(section(entry, archive, &request, Checksum::InTar { sha256, before, after })))
    }
}

/// The file of a layer that is no archive; `None`: it has no name.
fn named_file(access: &Access<'_>, layer: &ArchiveLayer) -> Result<Option<HubFile>, HubError> {
    let path = layer.path.clone().filter(|path| is_wanted(path, layer.bytes));
    path.map(|path| access.file(LayerFile { path, bytes: layer.bytes, sha256: layer.sha256.clone() })).transpose()
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

fn as_usize(range: &Range<u64>) -> Option<Range<usize>> {
    Some(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?)
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// The header at a position, if its checksum is right.
fn header(bytes: &[u8], at: u64) -> Option<Header> {
    let block = bytes.get(as_usize(&(at..at.checked_add(BLOCK)?))?)?;
    let mut header = Header::new_old();
    header.as_mut_bytes().copy_from_slice(block);
    let mut summed = header.clone();
    summed.set_cksum();
    let is_right = header.cksum().is_ok_and(|sum| summed.cksum().is_ok_and(|right| sum == right));
    is_right.then_some(header)
}

/// A header that makes no sense.
#[derive(Debug)]
struct Damaged;

/// Reads the headers of an archive, of which `bytes` is all or the start. The tar crate's own reader interprets headers of sparse
/// files, and panics at malicious ones.
struct Entries<'a> {
    bytes: &'a [u8],
    at: u64,
}

/// The properties that an extension header sets for the next entry.
#[derive(Default)]
struct Extensions {
    path: Option<Vec<u8>>,
    size: Option<u64>,
}

impl Entries<'_> {
    /// The next regular file with content, whatever its path is. No model needs an empty one. `None` at the end.
    fn next(&mut self) -> Result<Option<Entry>, Damaged> {
        let mut extensions = Extensions::default();
        loop {
            let rest = usize::try_from(self.at).ok().and_then(|at| self.bytes.get(at..)).unwrap_or_default();
            if rest.len() < BLOCK as usize || is_zero(rest.get(..BLOCK as usize).unwrap_or_default()) {
                return Ok(None);
            }
            let header = header(self.bytes, self.at).ok_or(Damaged)?;
            let size = match extensions.size.take() {
                Some(size) => size,
                None => header.entry_size().map_err(|_| Damaged)?,
            };
            let start = self.at + BLOCK;
            let end = start.checked_add(size).ok_or(Damaged)?;
            self.at = end.checked_next_multiple_of(BLOCK).ok_or(Damaged)?;
            let content = || as_usize(&(start..end)).and_then(|range| self.bytes.get(range)).ok_or(Damaged);
            match header.entry_type() {
                EntryType::GNULongName => extensions.path = Some(until_nul(content()?).to_vec()),
                EntryType::XHeader => extensions.read(content()?)?,
                EntryType::Regular if size > 0 => {
                    let path = extensions.path.take().map_or_else(|| header.path_bytes(), Cow::Owned);
                    let path = String::from_utf8_lossy(&path);
                    let path = path.strip_prefix("./").unwrap_or(&path).to_owned();
                    return Ok(Some(Entry { path, content: start..end }));
                }
                _ => extensions = Extensions::default(),
            }
        }
    }
}

impl Extensions {
    fn read(&mut self, records: &[u8]) -> Result<(), Damaged> {
        for record in PaxExtensions::new(records) {
            let record = record.map_err(|_| Damaged)?;
            match record.key_bytes() {
                b"path" => self.path = Some(record.value_bytes().to_vec()),
                b"size" => {
                    let size = record.value().ok().and_then(|text| text.parse().ok());
                    self.size = Some(size.ok_or(Damaged)?);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn until_nul(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}
