//! The settings files of a models folder. They are read again when they change.

use std::collections::BTreeMap;
use std::fs::{self, File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::format::{all_models, one_model};
use super::{ALL_MODELS_FILE, FileSettings, InstalledSettings, ONE_MODEL_FILE};
use crate::engine::model_info::LORAS;

/// Max bytes of a file.
const MAX_BYTES: u64 = 256 << 10;
/// Max errors of a file that are listed.
const MAX_ERRORS: usize = 20;

/// The files, with their last good contents.
pub struct SettingsFiles {
    folder: PathBuf,
    /// When entries of the folder were added or removed, at the last look.
    folder_modified: Option<SystemTime>,
    /// In the order of precedence.
    files: BTreeMap<FileKey, SettingsFile>,
}

/// Which file it is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FileKey {
    AllModels,
    /// That of the model with this ID.
    OneModel(String),
}

/// The state of a file on disk: its size, and when it or its permissions were last changed, in seconds and nanoseconds.
type Stamp = (u64, i64, i64);

struct SettingsFile {
    stamp: Stamp,
    /// The contents when it last had no error.
    settings: FileSettings,
    errors: Vec<String>,
}

impl FileKey {
    fn path(&self, folder: &Path) -> PathBuf {
        match self {
            Self::AllModels => folder.join(ALL_MODELS_FILE),
            Self::OneModel(id) => folder.join(id).join(ONE_MODEL_FILE),
        }
    }

    /// The file in an error.
    fn name(&self) -> String {
        match self {
            Self::AllModels => ALL_MODELS_FILE.to_owned(),
            Self::OneModel(id) => format!("{id}/{ONE_MODEL_FILE}"),
        }
    }

    fn read(&self, folder: &Path) -> Result<FileSettings, Vec<String>> {
        let name = self.name();
        let text = read_text(&self.path(folder)).map_err(|error| vec![format!("{name}: {error}")])?;
        let read = match self {
            Self::AllModels => all_models(&text),
            Self::OneModel(id) => one_model(id, &text),
        };
        read.map_err(|errors| {
            let more = errors.len().saturating_sub(MAX_ERRORS);
            let shown = errors.into_iter().take(MAX_ERRORS).map(|(line, error)| format!("{name}:{line}: {error}"));
            shown.chain((more > 0).then(|| format!("{name}: it has {more} more errors"))).collect()
        })
    }
}

impl SettingsFiles {
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, folder_modified: None, files: BTreeMap::new() }
    }

    /// Reads the files that have changed. Returns whether any has.
    pub fn refresh(&mut self) -> bool {
        let found = self.find();
        let before = self.files.len();
        self.files.retain(|key, _| found.contains_key(key));
        let mut has_changed = self.files.len() < before;
        for (key, stamp) in found {
            has_changed |= self.update(key, stamp);
        }
        has_changed
    }

    /// Whether entries of the models folder were added or removed since the last call.
    pub fn has_new_entries(&mut self) -> bool {
        let modified = fs::metadata(&self.folder).and_then(|metadata| metadata.modified()).ok();
        std::mem::replace(&mut self.folder_modified, modified) != modified
    }

    /// The settings of all files.
    pub fn settings(&self) -> InstalledSettings {
        let mut all = InstalledSettings::default();
        for (key, file) in &self.files {
            all.problems.extend(file.errors.iter().cloned());
            all.add(&key.name(), &file.settings);
        }
        all.remove_chains();
        all
    }

    /// Reads a file if it has changed. Returns whether it has.
    fn update(&mut self, key: FileKey, stamp: Stamp) -> bool {
        let former = self.files.get(&key);
        if former.is_some_and(|file| file.stamp == stamp) {
            return false;
        }
        let (settings, errors) = match key.read(&self.folder) {
            Ok(settings) => (settings, Vec::new()),
            Err(errors) => (former.map(|file| file.settings.clone()).unwrap_or_default(), errors),
        };
        self.files.insert(key, SettingsFile { stamp, settings, errors });
        true
    }

    /// The files on disk.
    fn find(&self) -> BTreeMap<FileKey, Stamp> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let ids = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let ids = ids.filter(|id| id != LORAS && !id.starts_with('.') && !id.chars().any(char::is_control));
        let keys = ids.map(FileKey::OneModel).chain([FileKey::AllModels]);
        let on_disk = |key: FileKey| {
            let metadata = fs::metadata(key.path(&self.folder)).ok()?;
            Some((key, stamp(&metadata)))
        };
        keys.filter_map(on_disk).collect()
    }
}

impl InstalledSettings {
    /// Reads the files of a models folder.
    pub fn read(folder: &Path) -> Self {
        let mut files = SettingsFiles::new(folder.to_owned());
        files.refresh();
        files.settings()
    }
}

fn stamp(metadata: &Metadata) -> Stamp {
    (metadata.len(), metadata.ctime(), metadata.ctime_nsec())
}

/// The text of a file, or what is wrong with it.
fn read_text(path: &Path) -> Result<String, String> {
    let unreadable = |cause: std::io::Error| format!("it cannot be read: {cause}");
    // A FIFO would block.
    if !fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err("it is not a regular file; replace it by one, or remove it".to_owned());
    }
    let mut text = String::new();
    File::open(path).map_err(unreadable)?.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(unreadable)?;
    match text.len() as u64 > MAX_BYTES {
        true => Err(format!("it is larger than {} KiB; shorten it", MAX_BYTES >> 10)),
        false => Ok(text),
    }
}
