//! The files that a copy or a restore fills before the database gets its name.
//!
//! The file is created first and renamed or removed last. If it is there without a database, the copy or the restore was
//! interrupted. A server that created an empty store beside it would hide that the records are missing.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::database;
use crate::private_files;
use crate::store_error::OpenError;

/// Operations that fill a data folder in steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filling {
    Copy,
    Restore,
}

impl Filling {
    const ALL: [Self; 2] = [Self::Copy, Self::Restore];

    pub fn path(self, dir: &Path) -> PathBuf {
        dir.join(match self {
            Self::Copy => "copying.redb",
            Self::Restore => "restoring.redb",
        })
    }

    /// Creates the file, durably, instead of what an interrupted one has left.
    pub fn create(self, dir: &Path) -> Result<File, OpenError> {
        let path = self.path(dir);
        let create = || -> io::Result<File> {
            let file = private_files::create_partial(&path)?;
            private_files::sync_parent(&path)?;
            Ok(file)
        };
        create().map_err(|error| OpenError::io(&path, error))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Restore => "restore",
        }
    }
}

/// Refuses a folder without a database if a copy or a restore into it was interrupted. For callers that hold the lock of the
/// folder.
pub(super) fn refuse(dir: &Path) -> Result<(), OpenError> {
    if has(&dir.join(private_files::DATABASE)) {
        return Ok(());
    }
    match Filling::ALL.into_iter().find(|filling| has(&filling.path(dir))) {
        Some(filling) => {
            Err(OpenError::Unfinished { what: filling.name(), dir: dir.to_owned(), path: filling.path(dir) })
        }
        None => Ok(()),
    }
}

/// Like [`refuse`], for callers without the lock: a copy or a restore that still runs has it.
pub fn require_finished(dir: &Path) -> Result<(), OpenError> {
    if refuse(dir).is_ok() {
        return Ok(());
    }
    let _lock = database::lock_folder(dir)?;
    refuse(dir)
}

/// Removes what an interruption right after the end has left beside the database.
pub(super) fn remove_rest(dir: &Path) {
    for path in Filling::ALL.map(|filling| filling.path(dir)) {
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %path.display(), %error, "this file is not needed any more and cannot be removed");
            }
            _ => {}
        }
    }
}

fn has(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}
