//! `source.toml` beside a model: where it comes from, and what its files hash to.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The name of the file.
pub const SOURCE_FILE: &str = "source.toml";
/// Max bytes of it.
const MAX_BYTES: u64 = 1 << 20;

/// The origin of a model that was pulled from a hub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    pub source: Source,
    #[serde(default)]
    pub files: Vec<SourceEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Source {
    /// What the user asked for, such as `hf:USER/REPO:Q4_K_M`.
    pub reference: String,
    /// The commit of the repository.
    pub revision: String,
    /// As the hub states it.
    pub license: Option<String>,
    /// When it was installed, RFC 3339.
    pub installed: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceEntry {
    /// The name in the model's folder.
    pub name: String,
    pub bytes: u64,
    /// Lower-case hex.
    pub sha256: String,
}

/// Reads the origin of the model in `folder`. `None` if it has none that can be read.
pub fn read_source(folder: &Path) -> Option<SourceFile> {
    let path = folder.join(SOURCE_FILE);
    let is_small = path.symlink_metadata().is_ok_and(|it| it.is_file() && it.len() <= MAX_BYTES);
    toml::from_str(&fs::read_to_string(path).ok().filter(|_| is_small)?).ok()
}
