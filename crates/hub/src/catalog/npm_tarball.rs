//! Reading from npm packages, which are compressed tar archives with one folder at the top. No code in them is run.
//!
//! The archive is read once, from front to back, as plain tar without extensions: an entry with a name too long for a
//! plain header is not found. Only regular files that are asked for are written.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use flate2::read::GzDecoder;

use super::entry_copy::copy_exactly;
use super::error::{FolderError, PullError};
use super::package::{Extract, PackageId};

/// Max unpacked size of a package, so that a small file cannot keep the reader busy without end.
const MAX_UNPACKED: u64 = 16 << 30;

/// Writes entries of the tarball at `path` to their places.
pub fn extract(package: &PackageId, path: &Path, extracts: &[Extract]) -> Result<(), PullError> {
    let file = File::open(path).map_err(FolderError::at(path))?;
    let unpacked = GzDecoder::new(BufReader::new(file)).take(MAX_UNPACKED);
    let mut archive = tar::Archive::new(unpacked);
    let mut missing: Vec<&Extract> = extracts.iter().collect();
    let unreadable = |missing: &[&Extract], e: std::io::Error| {
        package.bad(missing.first().map_or("", |extract| &extract.entry), format!("cannot be unpacked: {e}"))
    };
    // `raw`: otherwise the tar crate interprets extension entries that replace names and sizes.
    for entry in archive.entries().map_err(|e| unreadable(&missing, e))?.raw(true) {
        let entry = entry.map_err(|e| unreadable(&missing, e))?;
        let name = below_top_folder(&entry.path_bytes());
        let Some(at) = missing.iter().position(|wanted| Some(&wanted.entry) == name.as_ref()) else { continue };
        let wanted = missing.swap_remove(at);
        if entry.header().entry_type() != tar::EntryType::Regular {
            return Err(package.bad(&wanted.entry, "is not a regular file"));
        }
        let mut file = wanted.open()?;
        copy_exactly(entry, wanted.bytes, (&mut file, &wanted.path), &mut |_| {})
            .map_err(|e| e.in_entry(package, &wanted.entry))?;
        file.sync_data().map_err(FolderError::at(&wanted.path))?;
        if missing.is_empty() {
            return Ok(());
        }
    }
    match missing.first() {
        Some(wanted) => Err(package.bad(&wanted.entry, "is missing")),
        None => Ok(()),
    }
}

/// The path below the first folder, as npm installs it; `None` if it is not UTF-8 or lies above.
fn below_top_folder(path: &[u8]) -> Option<String> {
    let (_, below) = std::str::from_utf8(path).ok()?.split_once('/')?;
    Some(below.to_owned())
}
