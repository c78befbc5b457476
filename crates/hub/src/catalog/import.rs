//! Imports a model from an untrusted file or folder.
//!
//! A source is an archive from [`super::export`], a single `.gguf` or `ggml-*.bin` file, or a folder in the layout of model
//! hubs. The parts of a split `.gguf` file are imported with their folder. An archive is read as plain tar without extensions:
//! only regular files that its manifest lists, each once, each of the listed size and hash. Links, devices and paths that leave
//! the folder are rejected.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};

use super::error::{FolderError, TransferError};
use super::folder_walk::visit_files;
use super::hashing::{self, Copied};
use super::installed::{UPSTREAM, is_model};
use super::manifest::{FILES, MANIFEST, MAX_MANIFEST_BYTES, Manifest, ManifestFile};
use super::name_validation::{check_file_path, is_model_name, is_reserved};
use super::progress::Progress;
use super::source_file::mark_as_claimed;
use super::staging::{SETTINGS, Staging};
use outpost_models::gguf::GgufFile;
use outpost_models::model_files::{SplitPart, is_ggml, is_gguf, is_hidden};
use outpost_models::whisper::GgmlFile;

/// Options of an import.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// Name of the model. Default: the name in the archive, or of the file or folder.
    pub name: Option<String>,
    /// Replace a model of that name.
    pub force: bool,
}

/// A model that is now in the models folder.
#[derive(Debug)]
pub struct Imported {
    pub name: String,
    pub path: PathBuf,
    pub bytes: u64,
}

/// The kind of source at the path, not yet read.
enum ImportSource {
    Archive(Box<Archive>),
    /// A model of one file, and its size in bytes.
    File(FileFormat, File, u64),
    Folder,
}

#[derive(Clone, Copy)]
enum FileFormat {
    Gguf,
    /// A Whisper model of whisper.cpp.
    Ggml,
}

struct Archive {
    manifest: Manifest,
    tar: tar::Archive<File>,
}

/// Imports the model at `path`. It is installed atomically, by one rename.
pub fn import(
    models_dir: &Path,
    path: &Path,
    options: &ImportOptions,
    progress: &mut dyn Progress,
) -> Result<Imported, TransferError> {
    let source = detect(path)?;
    refuse_part(&source, path)?;
    let name = options.name.clone().unwrap_or_else(|| default_name(&source, path));
    if !is_model_name(&name) {
        return Err(TransferError::BadName(name));
    }
    if is_reserved(&name) {
        return Err(TransferError::ReservedName(name));
    }
    let staging = Staging::open(models_dir, &name)?;
    match fill(source, path, &staging, options.force, &name, progress) {
        Ok(bytes) => Ok(Imported { path: staging.publish(options.force)?, name, bytes }),
        Err(e) => {
            staging.abandon();
            Err(e)
        }
    }
}

/// Refuses a single part of a split file, which is not a model.
fn refuse_part(source: &ImportSource, path: &Path) -> Result<(), TransferError> {
    match SplitPart::of_file(path).filter(|_| matches!(source, ImportSource::File(FileFormat::Gguf, ..))) {
        Some(SplitPart { stem, number, count, .. }) => Err(TransferError::entry(
            path.display().to_string(),
            format!(
                "is part {number} of {count} of a split model: put all parts into a folder {stem}, and import the folder"
            ),
        )),
        None => Ok(()),
    }
}

fn fill(
    source: ImportSource,
    path: &Path,
    staging: &Staging,
    force: bool,
    name: &str,
    progress: &mut dyn Progress,
) -> Result<u64, TransferError> {
    if !force && staging.target().symlink_metadata().is_ok() {
        return Err(TransferError::ModelExists(name.to_owned()));
    }
    let total = match &source {
        ImportSource::Archive(archive) => archive.manifest.bytes(),
        ImportSource::File(.., bytes) => *bytes,
        ImportSource::Folder => check_folder(path)?,
    };
    staging.check_space(total)?;
    progress.start(&format!("importing {name}"), total);
    let hashed = matches!(source, ImportSource::Archive(_));
    let mut on_bytes = |bytes| progress.advance(bytes);
    let filled = match source {
        ImportSource::Archive(archive) => unpack(*archive, staging, &mut on_bytes),
        ImportSource::File(format, file, _) => {
            copy_in(staging, &format.file_name(path), file, u64::MAX, &mut on_bytes).map(|_| ())
        }
        ImportSource::Folder => copy_folder(path, staging, &mut on_bytes),
    };
    progress.done();
    filled?;
    // Files of archives were already verified by their hashes.
    if !hashed {
        check_headers(&staging.files())?;
    }
    mark_as_claimed(&staging.files()).map_err(FolderError::at(&staging.files()))?;
    Ok(total)
}

/// Reports truncated files at import, not at the first chat.
fn check_headers(folder: &Path) -> Result<(), TransferError> {
    visit_files(folder, &mut |name, _| {
        let path = folder.join(name);
        // The first part of a split file opens the others.
        let is_opened = SplitPart::of(name).is_some_and(|part| part.number > 1 && folder.join(part.path(1)).exists());
        let opened = if is_gguf(&path) && !is_opened {
            GgufFile::open(&path).map(|_| ())
        } else if is_ggml(&path) {
            GgmlFile::open(&path).map(|_| ())
        } else {
            Ok(())
        };
        opened.map_err(|why| TransferError::entry(name, format!("cannot be used: {why}")))
    })
}

/// Opens the file first and checks the open file, so that a swapped path has no effect.
fn detect(path: &Path) -> Result<ImportSource, TransferError> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = open(path, flags, Mode::empty()).map_err(|e| FolderError::at(path)(e.into()))?;
    let mut file = File::from(fd);
    let meta = file.metadata().map_err(FolderError::at(path))?;
    if meta.is_dir() {
        return Ok(ImportSource::Folder);
    }
    let mut magic = Vec::new();
    if !meta.is_file() {
        return Err(TransferError::NotAModel(path.to_owned()));
    }
    file.by_ref().take(4).read_to_end(&mut magic).and_then(|_| file.rewind()).map_err(FolderError::at(path))?;
    if let Some(format) = FileFormat::of_magic(&magic) {
        return Ok(ImportSource::File(format, file, meta.len()));
    }
    open_archive(file, path).map(|archive| ImportSource::Archive(Box::new(archive)))
}

fn open_archive(mut file: File, path: &Path) -> Result<Archive, TransferError> {
    let not_a_model = |_| TransferError::NotAModel(path.to_owned());
    let bytes = {
        let mut tar = tar::Archive::new(&mut file);
        let mut first = tar.entries().map_err(not_a_model)?.raw(true);
        let Some(Ok(entry)) = first.next() else { return Err(TransferError::NotAModel(path.to_owned())) };
        if *entry.path_bytes() != *MANIFEST.as_bytes() || entry.header().entry_type() != tar::EntryType::Regular {
            return Err(TransferError::NotAModel(path.to_owned()));
        }
        let mut bytes = Vec::new();
        entry.take(MAX_MANIFEST_BYTES + 1).read_to_end(&mut bytes).map_err(not_a_model)?;
        bytes
    };
    if bytes.len() as u64 > MAX_MANIFEST_BYTES {
        return Err(TransferError::BadManifest("is too large".into()));
    }
    let manifest = Manifest::parse(&bytes).map_err(TransferError::BadManifest)?;
    if !is_model(manifest.files.iter().map(|file| file.name.as_str())) {
        return Err(TransferError::NoWeights(path.to_owned()));
    }
    file.rewind().map_err(FolderError::at(path))?;
    Ok(Archive { manifest, tar: tar::Archive::new(file) })
}

fn default_name(source: &ImportSource, path: &Path) -> String {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let name = match source {
        ImportSource::Archive(archive) => return archive.manifest.name.clone(),
        ImportSource::File(..) => path.file_stem(),
        ImportSource::Folder => path.file_name(),
    };
    name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

impl FileFormat {
    fn of_magic(magic: &[u8]) -> Option<Self> {
        match magic {
            b"GGUF" => Some(Self::Gguf),
            b"lmgg" => Some(Self::Ggml),
            _ => None,
        }
    }

    /// The file's own name, which often names the quantization. The server recognizes the format by it.
    fn file_name(self, path: &Path) -> String {
        let (is_named, default): (fn(&str) -> bool, _) = match self {
            Self::Gguf => (|name| is_gguf(Path::new(name)) && !is_hidden(name), "model.gguf"),
            Self::Ggml => (|name| is_ggml(Path::new(name)), "ggml-model.bin"),
        };
        let name = path.file_name().and_then(|name| name.to_str()).filter(|name| check_file_path(name).is_ok());
        name.filter(|name| is_named(name)).unwrap_or(default).to_owned()
    }
}

fn unpack(mut archive: Archive, staging: &Staging, on_bytes: &mut dyn FnMut(u64)) -> Result<(), TransferError> {
    let unreadable = |e: std::io::Error| TransferError::BadManifest(format!("is followed by a damaged archive: {e}"));
    let files = archive.manifest.files.iter().map(|file| (format!("{FILES}{}", file.name), file));
    let mut missing: HashMap<String, &ManifestFile> = files.collect();
    // `raw`: otherwise the tar crate interprets extension entries that replace names and sizes.
    for entry in archive.tar.entries().map_err(unreadable)?.raw(true).skip(1) {
        let mut entry = entry.map_err(unreadable)?;
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        check_entry(&entry, &path)?;
        let unlisted = || TransferError::entry(&path, "is not in the manifest, or appears twice");
        let planned = missing.remove(&path).ok_or_else(unlisted)?;
        if entry.size() != planned.bytes {
            let why = format!("has {} bytes, the manifest says {}", entry.size(), planned.bytes);
            return Err(TransferError::entry(&path, why));
        }
        let copied = copy_in(staging, &planned.name, &mut entry, planned.bytes, on_bytes)?;
        check_copied(&path, planned, &copied)?;
    }
    match missing.keys().min() {
        Some(path) => Err(TransferError::entry(path, "is in the manifest but missing from the archive")),
        None => Ok(()),
    }
}

fn check_entry(entry: &tar::Entry<'_, impl Read>, path: &str) -> Result<(), TransferError> {
    let what = match entry.header().entry_type() {
        tar::EntryType::Regular => return check_file_path(path).map_err(|why| TransferError::entry(path, why)),
        tar::EntryType::Symlink => "a symbolic link",
        tar::EntryType::Link => "a hard link",
        tar::EntryType::Fifo => "a FIFO",
        tar::EntryType::Char | tar::EntryType::Block => "a device",
        tar::EntryType::Directory => "a folder",
        _ => "of a special type",
    };
    Err(TransferError::entry(path, format!("is {what}; only regular files are accepted")))
}

fn check_copied(path: &str, planned: &ManifestFile, copied: &Copied) -> Result<(), TransferError> {
    match copied {
        Copied { bytes, .. } if *bytes != planned.bytes => {
            Err(TransferError::entry(path, "ends early: the archive was cut"))
        }
        Copied { sha256, .. } if *sha256 != planned.sha256 => {
            Err(TransferError::entry(path, format!("has the sha256 {sha256}, the manifest says {}", planned.sha256)))
        }
        _ => Ok(()),
    }
}

/// Scans a folder: checks that all files are acceptable and contain a model, and returns their size.
fn check_folder(path: &Path) -> Result<u64, TransferError> {
    let (mut total, mut names) = (0, Vec::new());
    visit_files(path, &mut |name, file| {
        names.push(name.to_owned());
        total += file.metadata().map_err(FolderError::at(&path.join(name)))?.len();
        Ok(())
    })?;
    if is_model(names.iter().map(String::as_str)) { Ok(total) } else { Err(TransferError::NoWeights(path.to_owned())) }
}

fn copy_folder(path: &Path, staging: &Staging, on_bytes: &mut dyn FnMut(u64)) -> Result<(), TransferError> {
    visit_files(path, &mut |name, file| copy_in(staging, name, file, u64::MAX, on_bytes).map(|_| ()))
}

fn copy_in(
    staging: &Staging,
    name: &str,
    reader: impl Read,
    limit: u64,
    on_bytes: &mut dyn FnMut(u64),
) -> Result<Copied, TransferError> {
    if name == UPSTREAM {
        let why =
            "lets other servers run the model, so it is not imported; write it yourself if you trust the addresses";
        return Err(TransferError::entry(name, why));
    }
    if name == SETTINGS {
        let why = "has settings of a server, such as aliases, so it is not imported; remove it, and write it yourself afterwards if you want its settings";
        return Err(TransferError::entry(name, why));
    }
    let (mut writer, path) = staging.create(name)?;
    Ok(hashing::copy(reader, &mut writer, limit, on_bytes).map_err(FolderError::at(&path))?)
}
