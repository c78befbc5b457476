//! Downloads the chosen files and gives the model its place.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::client::Hub;
use super::error::HubError;
use super::plan::Plan;
use super::remote_file::PlannedFile;
use super::repository::sha256;
use crate::catalog::{
    ChangedFile, FolderError, Integrity, ModelSource, SOURCE_FILE, SourceEntry, SourceFile, Staging, read_source,
};
use crate::download::{Checksum, FileSpec};
use outpost_common::clock_rng::Timestamp;
use outpost_common::disk_space::DiskReserve;
use outpost_common::progress::Progress;
use outpost_engine::model_memory;

/// The folder of unfinished parts in the working folder of a model.
const PARTS: &str = "parts";

#[derive(Clone, Copy, Debug)]
pub struct InstallOptions {
    /// Replace a model of that name, and install one that does not fit into memory.
    pub force: bool,
    /// Hash the files of a model that is installed already.
    pub verify: bool,
    /// Refuse a model with more bytes to download.
    pub max_bytes: Option<u64>,
    pub now: Timestamp,
}

/// A model that is in the models folder.
#[derive(Clone, Debug)]
pub struct Installed {
    pub path: PathBuf,
    /// The sha256 of each file, in lower-case hex.
    pub files: Vec<SourceEntry>,
    /// Bytes that an earlier attempt had left.
    pub resumed: u64,
    /// It was there before.
    pub already: bool,
}

impl Hub {
    /// Installs the model of a plan in `models_dir`. An interrupted installation keeps its parts, and the next one resumes
    /// from there.
    pub fn install(
        &self,
        plan: &Plan,
        models_dir: &Path,
        options: InstallOptions,
        progress: &mut dyn Progress,
    ) -> Result<Installed, HubError> {
        if let Some(source) = installed(plan, models_dir) {
            let path = models_dir.join(&plan.name);
            if options.verify {
                verify_installed(&plan.name, &path, &source, progress)?;
            }
            return Ok(Installed { path, files: source.files, resumed: 0, already: true });
        }
        if let Some(limit) = options.max_bytes.filter(|limit| plan.bytes() > *limit) {
            let (reference, bytes) = (plan.reference.to_string(), plan.bytes());
            return Err(HubError::TooMuch { reference, bytes, limit });
        }
        check_free(plan, models_dir, options.force)?;
        if !options.force {
            plan.check_memory()?;
        }
        let staging = Staging::open(models_dir, &plan.name)?;
        // Again under the lock: another process may just have finished.
        if let Err(error) = check_free(plan, models_dir, options.force) {
            staging.abandon();
            return Err(error);
        }
        let fetched = self.fetch(plan, &staging, options, progress);
        match fetched {
            Ok((files, resumed)) => {
                let path = staging.publish(options.force)?;
                Ok(Installed { path, files, resumed, already: false })
            }
            Err(error) => {
                staging.abandon();
                Err(error)
            }
        }
    }

    /// Downloads into the working folder. Returns the files and the bytes of an earlier attempt.
    fn fetch(
        &self,
        plan: &Plan,
        staging: &Staging,
        options: InstallOptions,
        progress: &mut dyn Progress,
    ) -> Result<(Vec<SourceEntry>, u64), HubError> {
        let parts = staging.path(PARTS);
        let specs: Vec<FileSpec> = plan.files.iter().map(spec).collect();
        let missing = keep_parts_of(&specs, &parts);
        // A full disk would stop the database. If the file system does not report its space, nothing is checked.
        let kept_back = DiskReserve::new(staging.files(), None).status().map_or(0, |status| status.min_free);
        staging.check_space(missing.saturating_add(kept_back))?;
        let (mut files, mut resumed) = (Vec::new(), 0);
        for spec in &specs {
            // The file stays with the parts until all are complete, so that an interruption loses none.
            let fetched = self.downloader.fetch(spec, &parts, &parts.join(finished_name(spec)), progress);
            let finished = fetched.map_err(|error| self.explain(error, &plan.reference))?;
            resumed += finished.resumed;
            files.push(SourceEntry { name: spec.name.clone(), bytes: spec.length, sha256: finished.sha256 });
        }
        for spec in &specs {
            let (from, to) = (parts.join(finished_name(spec)), staging.make_path(&spec.name)?);
            fs::rename(&from, &to).map_err(|source| HubError::Io { path: from, source })?;
        }
        check_model(plan, &staging.files(), options.force)?;
        let source = ModelSource {
            reference: plan.reference.to_string(),
            revision: plan.repository.revision.clone(),
            license: plan.repository.license.clone(),
            installed: options.now.to_string(),
            integrity: if plan.is_verifiable() { Integrity::Verified } else { Integrity::Recorded },
        };
        let text = toml::to_string(&SourceFile { source, files: files.clone() });
        let text = text.map_err(|error| HubError::Setting(error.to_string()))?;
        let (mut file, path) = staging.create(SOURCE_FILE)?;
        file.write_all(text.as_bytes()).map_err(|source| HubError::Folder(FolderError::Io { path, source }))?;
        Ok((files, resumed))
    }
}

fn spec(file: &PlannedFile) -> FileSpec {
    let PlannedFile { local, bytes, checksum, request, .. } = file.clone();
    FileSpec { name: local, request, length: bytes, checksum }
}

/// The name of a finished file among the parts. It has a hash of the path, because the file may be in a folder, and because
/// several files may have the same content.
fn finished_name(spec: &FileSpec) -> String {
    format!("{}.{}.finished", spec.key(), sha256(spec.name.as_bytes()))
}

/// Examines the files that have arrived: they may differ from the headers that were read first.
fn check_model(plan: &Plan, folder: &Path, force: bool) -> Result<(), HubError> {
    let unsupported = |why| HubError::Unsupported { file: plan.reference.to_string(), why };
    let (_, need) = model_memory(folder, &plan.settings).map_err(unsupported)?;
    if force { Ok(()) } else { Plan { need, ..plan.clone() }.check_memory() }
}

/// The record of the installed model, if it is this one.
fn installed(plan: &Plan, models_dir: &Path) -> Option<SourceFile> {
    let folder = models_dir.join(&plan.name);
    let installed = read_source(&folder).filter(|it| it.source.integrity != Integrity::Claimed)?;
    let SourceFile { source, files } = &installed;
    // A file without a known hash is the same if its source says that it is the same version.
    let is_same_version = !source.revision.is_empty()
        && source.revision == plan.repository.revision
        && source.reference == plan.reference.to_string();
    let is_same = |file: &PlannedFile| {
        let entry = files.iter().find(|entry| entry.name == file.local && entry.bytes == file.bytes);
        let is_there = folder.join(&file.local).metadata().is_ok_and(|it| it.len() == file.bytes);
        let has_hash = |entry: &SourceEntry| match &file.checksum {
            Checksum::Sha256(sha256) => *sha256 == entry.sha256,
            // Then the version must be the same.
            Checksum::GitBlob(_) | Checksum::InTar { .. } => source.revision == plan.repository.revision,
            Checksum::None => is_same_version,
        };
        is_there && entry.is_some_and(has_hash)
    };
    let is_complete = plan.files.iter().all(is_same);
    is_complete.then_some(installed)
}

/// Hashes the files of the installed model `name`.
///
/// # Errors
/// If one has changed since then.
pub fn verify_installed(
    name: &str,
    folder: &Path,
    source: &SourceFile,
    progress: &mut dyn Progress,
) -> Result<(), HubError> {
    match source.find_changed(folder, progress) {
        Some(ChangedFile { name: file, expected, found }) => {
            Err(HubError::Changed { model: name.to_owned(), file, expected, found })
        }
        None => Ok(()),
    }
}

/// Checks that the name is free, or may be replaced. A file of that name would hide behind the folder.
fn check_free(plan: &Plan, models_dir: &Path, force: bool) -> Result<(), HubError> {
    let folder = models_dir.join(&plan.name);
    let files = ["gguf", "safetensors", "bin"].map(|ending| models_dir.join(format!("{}.{ending}", plan.name)));
    let taken = |path: &PathBuf| path.symlink_metadata().is_ok();
    match files.into_iter().find(taken) {
        Some(path) => Err(HubError::Exists { path, can_replace: false }),
        None if !force && taken(&folder) => Err(HubError::Exists { path: folder, can_replace: true }),
        None => Ok(()),
    }
}

/// Removes the parts that an earlier attempt has left of other files, such as those of another version of the model. Returns
/// the space that these files still need, in bytes.
fn keep_parts_of(specs: &[FileSpec], parts: &Path) -> u64 {
    let mut missing: HashMap<String, u64> = HashMap::new();
    for spec in specs {
        let bytes = missing.entry(spec.key()).or_default();
        *bytes = bytes.saturating_add(spec.length);
    }
    for entry in fs::read_dir(parts).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let key = name.to_str().and_then(|name| name.split('.').next()).unwrap_or_default();
        match missing.get_mut(key) {
            Some(bytes) => {
                let allocated = entry.metadata().map_or(0, |it| it.blocks().saturating_mul(512));
                *bytes = bytes.saturating_sub(allocated);
            }
            None => {
                let _costs_space_only = fs::remove_file(entry.path());
            }
        }
    }
    missing.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::download::{Location, Request};

    fn file(name: &str, digit: &str, length: u64) -> FileSpec {
        let request = Request::new(Location::parse("https://hub.example/f").unwrap(), None);
        FileSpec { name: name.to_owned(), request, length, checksum: Checksum::Sha256(digit.repeat(64)) }
    }

    #[test]
    fn parts_of_other_files_are_removed_and_save_no_space() {
        let parts = tempfile::tempdir().unwrap();
        let write = |name: String| {
            let path = parts.path().join(name);
            fs::write(&path, vec![1; 1 << 20]).unwrap();
            path.metadata().unwrap().blocks() * 512
        };
        let [old, first, second] = [file("a", "1", 9 << 20), file("a", "2", 4 << 20), file("b", "3", 1 << 10)];
        let allocated = write(format!("{}.part", old.key())) + write(finished_name(&old));
        assert_eq!(keep_parts_of(std::slice::from_ref(&old), parts.path()), old.length - allocated);
        let allocated = write(format!("{}.part", first.key()));
        write(finished_name(&second));
        let new = [first.clone(), second.clone()];
        assert_eq!(keep_parts_of(&new, parts.path()), first.length - allocated, "a file counts only for itself");
        let mut left: Vec<_> = fs::read_dir(parts.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, [format!("{}.part", first.key()).as_str(), finished_name(&second).as_str()]);
        let copies = [first.clone(), FileSpec { name: "folder/a".to_owned(), ..first }];
        assert_eq!(keep_parts_of(&copies, &parts.path().join("missing")), 8 << 20);
    }
}
