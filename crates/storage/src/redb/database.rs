//! Locking the data folder, opening redb, and mapping its errors.

use std::fs::TryLockError;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

use redb::backends::FileBackend;
use redb::{Builder, Database, DatabaseError};

use crate::engine::{Failed, Health};
use crate::private_files;
use crate::store_error::OpenError;
use outpost_common::file_lock::FileLock;

/// The data folder is locked until this is dropped.
pub type FolderLock = FileLock;

/// Locks the data folder for this process. redb's own lock is not enough, because it is released while the database is
/// reopened after a disk error.
pub fn lock_folder(dir: &Path) -> Result<FolderLock, OpenError> {
    let path = dir.join("lock");
    let file = private_files::open_or_create(&path).map_err(|error| OpenError::io(&path, error))?;
    FileLock::try_acquire(file).map_err(|error| match error {
        TryLockError::WouldBlock => OpenError::Locked { dir: dir.to_owned() },
        TryLockError::Error(error) => OpenError::io(&path, error),
    })
}

/// Opens the database, at the start and again after a disk error. Fault injection passes an opener with its own
/// `StorageBackend`.
pub type Opener = Box<dyn Fn(&Builder, &Path) -> Result<Database, DatabaseError> + Send + Sync>;

/// Opens the file without a wrapper.
pub(crate) fn from_file() -> Opener {
    Box::new(|builder, path| builder.create_with_backend(FileBackend::new(private_files::open_existing(path)?)?))
}

/// The database file, its cache size and its opener.
pub(crate) struct DatabaseFile {
    pub path: PathBuf,
    pub cache_bytes: usize,
    pub opener: Opener,
}

impl DatabaseFile {
    pub fn open(&self) -> Result<Database, OpenError> {
        let mut builder = Builder::new();
        builder.set_cache_size(self.cache_bytes);
        // redb would initialise an empty file as a new database, which would lose all keys.
        match std::fs::metadata(&self.path) {
            Ok(found) if found.len() == 0 => return Err(OpenError::corrupt(&self.path, "the file is empty")),
            Ok(_) => {}
            Err(error) => return Err(OpenError::io(&self.path, error)),
        }
        catch_panic(|| (self.opener)(&builder, &self.path))
            .unwrap_or_else(|| Err(DatabaseError::Storage(redb::StorageError::Corrupted("unreadable pages".into()))))
            .map_err(|error| self.explain(error))
    }

    fn explain(&self, error: DatabaseError) -> OpenError {
        match error {
            DatabaseError::DatabaseAlreadyOpen => {
                OpenError::Locked { dir: self.path.parent().unwrap_or(&self.path).to_owned() }
            }
            other => OpenError::database(&self.path, other),
        }
    }
}

/// Creates an empty database in the empty `file`, which must not be open elsewhere.
pub(super) fn create(file: std::fs::File, cache_bytes: usize) -> Result<Database, DatabaseError> {
    let mut builder = Builder::new();
    builder.set_cache_size(cache_bytes);
    builder.create_with_backend(FileBackend::new(file)?)
}

/// Catches a panic of redb over a damaged file; `None` if it panicked.
pub(crate) fn catch_panic<T>(f: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(f)).ok()
}

/// Closes a database without redb's last commit. It would read damaged pages, and a panic that it causes there can be followed by
/// another one while it unwinds, which aborts the process. redb leaves the commit out while a thread unwinds.
pub(super) fn close_unchanged(db: Database) {
    let _ = catch_unwind(AssertUnwindSafe(move || {
        let _dropped_by_unwinding = db;
        resume_unwind(Box::new("the database is closed unchanged"))
    }));
}

/// Calls redb and converts a panic to redb's error for damaged pages.
pub(super) fn catch_redb_panic<T>(call: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, redb::Error> {
    catch_panic(call).unwrap_or_else(|| Err(redb::Error::Corrupted("redb panicked over unreadable pages".into())))
}

/// An operation of redb failed.
pub(super) fn failed(error: &redb::Error) -> Failed {
    use redb::Error as E;
    let health = match error {
        E::Io(_) | E::PreviousIo | E::LockPoisoned(_) | E::DatabaseClosed => Health::Broken,
        E::Corrupted(_) => Health::Damaged,
        _ => Health::Sound,
    };
    Failed { health, reason: error.to_string() }
}
