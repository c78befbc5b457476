//! The settings files of a models folder. They are read again when they change.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, Metadata};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::format::{all_models, one_model};
use super::{ALL_MODELS_FILE, FileSettings, InstalledSettings, ONE_MODEL_FILE};
use crate::model_info::LORAS;
use outpost_models::model_files::is_hidden;

/// Max bytes of a file.
pub(super) const MAX_BYTES: u64 = 256 << 10;
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

/// The kind of a settings file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum FileKey {
    AllModels,
    /// That of the model with this ID.
    OneModel(String),
}

/// The state of a file on disk: its size, and when it or its permissions were last changed, in seconds and nanoseconds.
type Stamp = (u64, i64, i64);

#[derive(Default)]
struct SettingsFile {
    /// The state that was read. `None`: it could not be read, so the next look tries again.
    stamp: Option<Stamp>,
    /// The contents when it last had no error.
    settings: FileSettings,
    errors: Vec<String>,
    /// Set if the file was missing at the last check.
    is_missing: bool,
}

/// The result of checking a file.
enum Look {
    /// The state that was read last.
    Unchanged,
    Changed(Stamp, String),
    Unreadable(String),
    Missing,
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

    fn parse(&self, text: &str) -> Result<FileSettings, Vec<String>> {
        let name = self.name();
        let read = match self {
            Self::AllModels => all_models(text),
            Self::OneModel(id) => one_model(id, text),
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

    /// Reads the files that have changed. Returns whether settings or errors may have.
    pub fn refresh(&mut self) -> bool {
        let mut keys = self.find();
        keys.extend(self.files.keys().cloned());
        let mut has_changed = false;
        for key in keys {
            has_changed |= self.update(key);
        }
        has_changed
    }

    /// True if entries of the models folder were added or removed since the last call.
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

    /// Reads a file if it has changed. Returns whether its settings or errors may have.
    fn update(&mut self, key: FileKey) -> bool {
        let path = key.path(&self.folder);
        let look = look_at(&path, self.files.get(&key));
        let is_missing = matches!(look, Look::Missing);
        if is_missing && !self.files.contains_key(&key) {
            return false;
        }
        let file = self.files.entry(key.clone()).or_default();
        let was_missing = std::mem::replace(&mut file.is_missing, is_missing);
        match look {
            Look::Unchanged => false,
            Look::Changed(stamp, text) => {
                file.stamp = Some(stamp);
                match key.parse(&text) {
                    Ok(settings) => (file.settings, file.errors) = (settings, Vec::new()),
                    Err(errors) => file.errors = errors,
                }
                true
            }
            Look::Unreadable(error) => {
                let errors = vec![format!("{}: {error}", key.name())];
                file.stamp = None;
                std::mem::replace(&mut file.errors, errors) != file.errors
            }
            // Some editors remove a file before they write it again. A model is removed with its folder.
            Look::Missing if !was_missing && path.parent().is_some_and(Path::is_dir) => false,
            Look::Missing => self.files.remove(&key).is_some(),
        }
    }

    /// The files that may be on disk.
    fn find(&self) -> BTreeSet<FileKey> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let ids = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let ids = ids.filter(|id| id != LORAS && !is_hidden(id) && !id.chars().any(char::is_control));
        ids.map(FileKey::OneModel).chain([FileKey::AllModels]).collect()
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

/// Reads a file unless its state is the one that was read last.
fn look_at(path: &Path, former: Option<&SettingsFile>) -> Look {
    let unreadable = |cause: std::io::Error| Look::Unreadable(format!("it cannot be read: {cause}"));
    let is_gone = |cause: &std::io::Error| matches!(cause.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory);
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        // In a folder that is closed to the server, there may be no such file.
        Err(cause) if is_gone(&cause) || former.is_none() => return Look::Missing,
        Err(cause) => return unreadable(cause),
    };
    let stamp = stamp(&metadata);
    if former.is_some_and(|file| file.stamp == Some(stamp)) {
        return Look::Unchanged;
    }
    // A FIFO would block.
    if !metadata.is_file() {
        return Look::Unreadable("it is not a regular file; replace it by one, or remove it".to_owned());
    }
    let mut text = String::new();
    match File::open(path).and_then(|file| file.take(MAX_BYTES + 1).read_to_string(&mut text)) {
        Ok(length) if length as u64 > MAX_BYTES => {
            Look::Unreadable(format!("it is larger than {} KiB; shorten it", MAX_BYTES >> 10))
        }
        Ok(_) => Look::Changed(stamp, text),
        Err(cause) if is_gone(&cause) => Look::Missing,
        Err(cause) => unreadable(cause),
    }
}
