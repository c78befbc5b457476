//! `source.toml` beside a model: where it comes from, and what its files hash to.
//!
//! It is a record, not a proof. It has no signature, because the key would be stored beside it. Imports mark it as
//! claimed, so that a file that someone else wrote is not shown as a result of this server's own verification.

use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::hashing;
use super::name_validation::check_file_path;
use super::progress::Progress;
use outpost_common::new_folder::remove;

/// The name of the file.
pub const SOURCE_FILE: &str = "source.toml";
/// Max bytes of it.
const MAX_BYTES: u64 = 1 << 20;

/// The origin of a model that was pulled from a hub or another source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    pub source: ModelSource,
    #[serde(default)]
    pub files: Vec<SourceEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelSource {
    /// What the user asked for, such as `hf:USER/REPO:Q4_K_M`.
    pub reference: String,
    /// The commit of the repository, the digest of the manifest, or the ETag of the file; empty if there is none.
    #[serde(default)]
    pub revision: String,
    /// As the hub states it.
    pub license: Option<String>,
    /// When it was installed, RFC 3339.
    pub installed: String,
    #[serde(default)]
    pub integrity: Integrity,
}

/// The evidence for the files' hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Integrity {
    /// The source stated them, or the user did.
    Verified,
    /// Nothing was known before the download; the hashes are those of the files that arrived.
    Recorded,
    /// The file came with an imported folder or archive, and anyone may have written it.
    #[default]
    Claimed,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceEntry {
    /// The name in the model's folder.
    pub name: String,
    pub bytes: u64,
    /// Lower-case hex.
    pub sha256: String,
}

/// A file that is not the one that was installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangedFile {
    pub name: String,
    pub expected: String,
    /// Its sha256, or why it cannot be read.
    pub found: String,
}

impl SourceFile {
    /// Hashes the files in `folder`. Returns the first one that has changed.
    pub fn find_changed(&self, folder: &Path, progress: &mut dyn Progress) -> Option<ChangedFile> {
        let total = self.files.iter().fold(0, |sum: u64, file| sum.saturating_add(file.bytes));
        progress.start(&format!("checking {}", self.source.reference), total);
        let changed = self.files.iter().find_map(|file| {
            let found = match check_file_path(&file.name) {
                Ok(()) => hashing::file(&folder.join(&file.name), &mut |bytes| progress.advance(bytes))
                    .map_or_else(|error| error.to_string(), |copied| copied.sha256),
                Err(why) => why.to_owned(),
            };
            let (name, expected) = (file.name.clone(), file.sha256.clone());
            (found != expected).then_some(ChangedFile { name, expected, found })
        });
        progress.done();
        changed
    }
}

/// Reads the origin of the model in `folder`. `None` if it has none that can be read.
pub fn read_source(folder: &Path) -> Option<SourceFile> {
    let path = folder.join(SOURCE_FILE);
    let is_small = path.symlink_metadata().is_ok_and(|it| it.is_file() && it.len() <= MAX_BYTES);
    toml::from_str(&fs::read_to_string(path).ok().filter(|_| is_small)?).ok()
}

/// Marks the source of an imported model as claimed, because it was not checked. A file that cannot be read is removed.
pub(super) fn mark_as_claimed(folder: &Path) -> io::Result<()> {
    let path = folder.join(SOURCE_FILE);
    let Some(mut file) = read_source(folder) else { return remove(&path) };
    file.source.integrity = Integrity::Claimed;
    fs::write(&path, toml::to_string(&file).map_err(io::Error::other)?)
}
