//! Exports a model to one file, for offline transfer: an uncompressed tar whose first entry is a manifest with the
//! sha256 of every other entry.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::error::{FolderError, TransferError};
use super::folder_walk::{Visit, visit_files};
use super::hashing;
use super::installed::UPSTREAM;
use super::manifest::{FILES, MANIFEST, Manifest, ManifestFile};
use super::name_validation::{is_model_name, is_reserved};
use super::progress::Progress;
use super::staging::SETTINGS;

const BLOCK: u64 = 512;

/// A model that was written to a file.
#[derive(Debug)]
pub struct Exported {
    pub path: PathBuf,
    /// Size of the model's files.
    pub bytes: u64,
}

/// Writes the model `id` to the new file `destination`. If that is a folder, the file is `ID.tar` in it.
pub fn export(
    models_dir: &Path,
    id: &str,
    destination: &Path,
    progress: &mut dyn Progress,
) -> Result<Exported, TransferError> {
    let model_dir = models_dir.join(id);
    if !is_model_name(id) || is_reserved(id) || !model_dir.is_dir() {
        return Err(TransferError::NoModel(id.to_owned()));
    }
    let destination = if destination.is_dir() { destination.join(format!("{id}.tar")) } else { destination.to_owned() };
    if destination.symlink_metadata().is_ok() {
        return Err(TransferError::FileExists(destination));
    }
    let manifest = describe(id, &model_dir, progress)?;
    write_archive(&manifest, &model_dir, &destination, progress)?;
    Ok(Exported { path: destination, bytes: manifest.bytes() })
}

fn describe(id: &str, model_dir: &Path, progress: &mut dyn Progress) -> Result<Manifest, TransferError> {
    let mut total = 0;
    visit_own_files(model_dir, &mut |name, file| {
        if name == UPSTREAM {
            return Err(TransferError::entry(
                name,
                "says that other servers run the model, and may name keys; there is nothing to export",
            ));
        }
        total += file.metadata().map_err(FolderError::at(model_dir))?.len();
        Ok(())
    })?;
    progress.start(&format!("hashing {id}"), total);
    let mut files = Vec::new();
    let hashed = visit_own_files(model_dir, &mut |name, file| {
        let copied = hashing::copy(file, &mut io::sink(), u64::MAX, &mut |bytes| progress.advance(bytes));
        let copied = copied.map_err(FolderError::at(&model_dir.join(name)))?;
        files.push(ManifestFile { name: name.to_owned(), bytes: copied.bytes, sha256: copied.sha256 });
        Ok(())
    });
    progress.done();
    hashed?;
    match files.is_empty() {
        true => Err(TransferError::NotAModel(model_dir.to_owned())),
        false => Ok(Manifest::new(id, files)),
    }
}

/// Visits the files of a model, without the settings that a server has for it.
fn visit_own_files(model_dir: &Path, visit: &mut Visit<'_>) -> Result<(), TransferError> {
    visit_files(model_dir, &mut |name, file| if name == SETTINGS { Ok(()) } else { visit(name, file) })
}

/// Writes a temporary file next to the destination and renames it, so that no incomplete archive is visible.
fn write_archive(
    manifest: &Manifest,
    model_dir: &Path,
    destination: &Path,
    progress: &mut dyn Progress,
) -> Result<(), TransferError> {
    let parent = destination.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let at_destination = || FolderError::at(destination);
    let readable = std::fs::Permissions::from_mode(0o644);
    let unfinished = tempfile::Builder::new()
        .prefix(".outpost-export-")
        .permissions(readable)
        .tempfile_in(parent)
        .map_err(at_destination())?;
    progress.start(&format!("writing {}", manifest.name), manifest.bytes());
    let written = write_entries(manifest, model_dir, destination, unfinished.as_file(), progress);
    progress.done();
    written?;
    unfinished.as_file().sync_all().map_err(at_destination())?;
    unfinished.persist_noclobber(destination).map_err(|e| at_destination()(e.error))?;
    Ok(())
}

fn write_entries(
    manifest: &Manifest,
    model_dir: &Path,
    destination: &Path,
    file: &File,
    progress: &mut dyn Progress,
) -> Result<(), TransferError> {
    let at_destination = || FolderError::at(destination);
    let mut out = BufWriter::new(file);
    let head = serde_json::to_vec_pretty(manifest).map_err(|e| at_destination()(e.into()))?;
    write_header(&mut out, MANIFEST, head.len() as u64)?
        .and_then(|()| out.write_all(&head))
        .map_err(at_destination())?;
    pad(&mut out, head.len() as u64).map_err(at_destination())?;
    let mut expected = manifest.files.iter();
    visit_own_files(model_dir, &mut |name, file| {
        let changed = || TransferError::entry(name, "changed while the model was exported; try again");
        let planned = expected.next().filter(|planned| planned.name == name).ok_or_else(changed)?;
        write_header(&mut out, &format!("{FILES}{name}"), planned.bytes)?.map_err(at_destination())?;
        let copied = hashing::copy(file, &mut out, planned.bytes, &mut |bytes| progress.advance(bytes));
        let copied = copied.map_err(at_destination())?;
        if copied.sha256 != planned.sha256 {
            return Err(changed());
        }
        Ok(pad(&mut out, planned.bytes).map_err(at_destination())?)
    })?;
    out.write_all(&[0; 2 * BLOCK as usize]).and_then(|()| out.flush()).map_err(at_destination())?;
    Ok(())
}

/// The outer error concerns the name, the inner error the disk.
fn write_header(out: &mut dyn Write, name: &str, bytes: u64) -> Result<io::Result<()>, TransferError> {
    let mut header = tar::Header::new_ustar();
    header.set_path(name).map_err(|_| TransferError::entry(name, "has a name too long for an archive"))?;
    header.set_entry_type(tar::EntryType::Regular);
    header.set_mode(0o644);
    header.set_mtime(0); // the same model gives the same archive
    header.set_size(bytes);
    header.set_cksum();
    Ok(out.write_all(header.as_bytes()))
}

fn pad(out: &mut dyn Write, bytes: u64) -> io::Result<()> {
    let padding = (BLOCK - bytes % BLOCK) % BLOCK;
    io::copy(&mut io::Read::take(io::repeat(0), padding), out).map(|_| ())
}
