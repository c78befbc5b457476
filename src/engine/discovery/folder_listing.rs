//! Folder listings.

use std::fs;
use std::path::{Path, PathBuf};

/// The folder's entries, folders first, sorted by path. Empty if the folder cannot be read.
pub fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort_by_cached_key(|path| (!path.is_dir(), path.clone()));
    paths
}
