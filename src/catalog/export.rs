//! Exports a model to one file, for offline transfer: an uncompressed tar whose first entry is a manifest with the
//! sha256 of every other entry.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::error::{FolderError, TransferError};
use super::folder_walk::visit_files;
use super::hashing;
use super::manifest::{FILES, MANIFEST, Manifest, ManifestFile};
use super::name_validation::{is_model_name, is_reserved};
use super::progress::Progress;

const BLOCK: u64 = 512;

/// A model that was written to a file.
#[derive(Debug)]
pub struct Exported {
    pub path: PathBuf,
    /// Size of the model's files.
    pub bytes: u64,
}

/// Writes the model `id` to the new file `to`; into a folder, as `ID.tar`.
pub fn export(models_dir: &Path, id: &str, to: &Path, progress: &mut dyn Progress) -> Result<Exported, TransferError> {
    let from = models_dir.join(id);
    if !is_model_name(id) || is_reserved(id) || !from.is_dir() {
        return Err(TransferError::NoModel(id.to_owned()));
    }
    let to = if to.is_dir() { to.join(format!("{id}.tar")) } else { to.to_owned() };
    if to.symlink_metadata().is_ok() {
        return Err(TransferError::FileExists(to));
    }
    let manifest = describe(id, &from, progress)?;
    write_archive(&manifest, &from, &to, progress)?;
    Ok(Exported { path: to, bytes: manifest.bytes() })
}

fn describe(id: &str, from: &Path, progress: &mut dyn Progress) -> Result<Manifest, TransferError> {
    let mut total = 0;
    visit_files(from, &mut |_, file| {
        total += file.metadata().map_err(FolderError::at(from))?.len();
        Ok(())
    })?;
    progress.start(&format!("hashing {id}"), total);
    let mut files = Vec::new();
    let hashed = visit_files(from, &mut |name, file| {
        let copied = hashing::copy(file, &mut io::sink(), u64::MAX, &mut |bytes| progress.advance(bytes));
        let copied = copied.map_err(FolderError::at(&from.join(name)))?;
        files.push(ManifestFile { name: name.to_owned(), bytes: copied.bytes, sha256: copied.sha256 });
        Ok(())
    });
    progress.done();
    hashed?;
    match files.is_empty() {
        true => Err(TransferError::NotAModel(from.to_owned())),
        false => Ok(Manifest::new(id, files)),
    }
}

/// Written next to its destination and renamed, so that no incomplete archive is visible.
fn write_archive(
    manifest: &Manifest,
    from: &Path,
    to: &Path,
    progress: &mut dyn Progress,
) -> Result<(), TransferError> {
    let parent = to.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let at_to = || FolderError::at(to);
    let readable = std::fs::Permissions::from_mode(0o644);
    let unfinished = tempfile::Builder::new()
        .prefix(".outpost-export-")
        .permissions(readable)
        .tempfile_in(parent)
        .map_err(at_to())?;
    progress.start(&format!("writing {}", manifest.name), manifest.bytes());
    let written = write_entries(manifest, from, to, unfinished.as_file(), progress);
    progress.done();
    written?;
    unfinished.as_file().sync_all().map_err(at_to())?;
    unfinished.persist_noclobber(to).map_err(|e| at_to()(e.error))?;
    Ok(())
}

fn write_entries(
    manifest: &Manifest,
    from: &Path,
    to: &Path,
    file: &File,
    progress: &mut dyn Progress,
) -> Result<(), TransferError> {
    let at_to = || FolderError::at(to);
    let mut out = BufWriter::new(file);
    let head = serde_json::to_vec_pretty(manifest).map_err(|e| at_to()(e.into()))?;
    write_header(&mut out, MANIFEST, head.len() as u64)?.and_then(|()| out.write_all(&head)).map_err(at_to())?;
    pad(&mut out, head.len() as u64).map_err(at_to())?;
    let mut expected = manifest.files.iter();
    visit_files(from, &mut |name, file| {
        let changed = || TransferError::entry(name, "changed while the model was exported; try again");
        let planned = expected.next().filter(|planned| planned.name == name).ok_or_else(changed)?;
        write_header(&mut out, &format!("{FILES}{name}"), planned.bytes)?.map_err(at_to())?;
        let copied = hashing::copy(file, &mut out, planned.bytes, &mut |bytes| progress.advance(bytes));
        let copied = copied.map_err(at_to())?;
        if copied.sha256 != planned.sha256 {
            return Err(changed());
        }
        Ok(pad(&mut out, planned.bytes).map_err(at_to())?)
    })?;
    out.write_all(&[0; 2 * BLOCK as usize]).and_then(|()| out.flush()).map_err(at_to())?;
    Ok(())
}

/// The outer error is about the name, the inner one about the disk.
fn write_header(out: &mut dyn Write, name: &str, bytes: u64) -> Result<io::Result<()>, TransferError> {
    let mut header = tar::Header::new_ustar();
    header.set_path(name).map_err(|_| TransferError::entry(name, "has a name too long for an archive"))?;
    header.set_entry_type(tar::EntryType::Regular);
    header.set_mode(0o644);
    header.set_mtime(0); // the same model makes the same file
    header.set_size(bytes);
    header.set_cksum();
    Ok(out.write_all(header.as_bytes()))
}

fn pad(out: &mut dyn Write, bytes: u64) -> io::Result<()> {
    let rest = (BLOCK - bytes % BLOCK) % BLOCK;
    io::copy(&mut io::Read::take(io::repeat(0), rest), out).map(|_| ())
}
