//! A data folder as the source or the target of a copy.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::copy;
use super::database::{self, DatabaseFile};
use super::migrations::{self, LAYOUT};
use super::transaction::RedbSnapshot;
use super::unfinished::{self, Filling};
use crate::pepper::{self, Pepper};
use crate::private_files;
use crate::store_error::{OpenError, StoreCopyError};
use crate::transaction::ReadTx;
use outpost_common::file_lock::FileLock;

const CACHE_BYTES: usize = 64 << 20;

/// The store of a data folder, for reading.
pub(crate) struct Folder {
    pub tx: ReadTx,
    pub pepper: Arc<Pepper>,
    _lock: FileLock,
}

/// Opens the store of a data folder that no server uses.
///
/// # Errors
/// If it has an older layout, or cannot be opened.
pub(crate) fn open_folder(dir: &Path) -> Result<Folder, StoreCopyError> {
    let path = dir.join(private_files::DATABASE);
    if !path.exists() {
        unfinished::require_finished(dir)?;
        return Err(StoreCopyError::NoStore { dir: dir.to_owned() });
    }
    let lock = database::lock_folder(dir)?;
    let pepper = pepper::load(dir)?.ok_or_else(|| OpenError::MissingPepper { path: pepper::path(dir) })?;
    let pepper = Arc::new(pepper);
    let tx = open(&path, &pepper)?;
    Ok(Folder { tx, pepper, _lock: lock })
}

fn open(path: &Path, pepper: &Arc<Pepper>) -> Result<ReadTx, StoreCopyError> {
    let source = DatabaseFile { path: path.to_owned(), cache_bytes: CACHE_BYTES, opener: database::from_file() };
    let db = source.open()?;
    match migrations::layout(&db, path, pepper)? {
        LAYOUT => {}
        found if found > LAYOUT => return Err(OpenError::NewerLayout { found, known: LAYOUT }.into()),
        found => return Err(StoreCopyError::OldLayout { found, known: LAYOUT }),
    }
    let engine = RedbSnapshot::begin(&db).map_err(|error| OpenError::database(path, error))?;
    Ok(ReadTx::new(Box::new(engine.keeping_open(db)), pepper.clone()))
}

/// A copy that is not in its place yet.
pub(crate) struct FolderCopy {
    dir: PathBuf,
    partial: PathBuf,
    pepper: Arc<Pepper>,
    _lock: FileLock,
}

impl FolderCopy {
    /// Copies a snapshot into a new file in the data folder `dir`, which must not have a store.
    pub fn write(from: &ReadTx, pepper: &Arc<Pepper>, dir: &Path) -> Result<Self, StoreCopyError> {
        private_files::private_dir(dir).map_err(|error| OpenError::io(dir, error))?;
        let lock = database::lock_folder(dir)?;
        let path = dir.join(private_files::DATABASE);
        if path.symlink_metadata().is_ok() {
            return Err(StoreCopyError::NotEmpty { dir: dir.to_owned() });
        }
        let kept = pepper::load(dir)?;
        if kept.as_ref().is_some_and(|kept| kept.raw() != pepper.raw()) {
            return Err(StoreCopyError::OtherPepper { dir: dir.to_owned() });
        }
        let file = Filling::Copy.create(dir)?;
        let partial = Filling::Copy.path(dir);
        let copy = Self { dir: dir.to_owned(), partial, pepper: pepper.clone(), _lock: lock };
        if kept.is_none() {
            pepper::save(dir, pepper)?;
        }
        crate::redb::copy::copy(from, file, copy::Pepper::LeaveOut).map_err(|error| error.about(&copy.partial))?;
        Ok(copy)
    }

    /// The copy, for comparison.
    pub fn open(&self) -> Result<ReadTx, StoreCopyError> {
        open(&self.partial, &self.pepper)
    }

    pub fn publish(self) -> Result<(), StoreCopyError> {
        let path = self.dir.join(private_files::DATABASE);
        Ok(private_files::publish(&self.partial, &path).map_err(|error| OpenError::io(&path, error))?)
    }
}

/// Removes what was not published.
impl Drop for FolderCopy {
    fn drop(&mut self) {
        // It is gone if it was published.
        let _ = std::fs::remove_file(&self.partial);
    }
}
