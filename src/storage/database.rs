//! Opening redb, and what its errors mean.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use redb::backends::FileBackend;
use redb::{Builder, Database, DatabaseError};

use super::error::OpenError;
use super::private_files;
use crate::error::{Code, Error};

/// How a store opens its database, at the start and again after a disk error. Fault injection
/// passes one that wraps the file in its own `StorageBackend`.
pub type Opener = Box<dyn Fn(&Builder, &Path) -> Result<Database, DatabaseError> + Send + Sync>;

/// Opens the file as it is.
pub(super) fn from_file() -> Opener {
    Box::new(|builder, path| builder.create_with_backend(FileBackend::new(private_files::open_existing(path)?)?))
}

/// Where the database lies, and with how much memory and through what it is opened.
pub(super) struct DatabaseFile {
    pub path: PathBuf,
    pub cache_bytes: usize,
    pub opener: Opener,
}

impl DatabaseFile {
    pub fn open(&self) -> Result<Database, OpenError> {
        let mut builder = Builder::new();
        builder.set_cache_size(self.cache_bytes);
        // redb would make a new database of an empty file, and that would be a new, open house.
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

/// Makes an empty database in `file`, an empty file that nobody else has open.
pub(super) fn create(file: std::fs::File, cache_bytes: usize) -> Result<Database, DatabaseError> {
    let mut builder = Builder::new();
    builder.set_cache_size(cache_bytes);
    builder.create_with_backend(FileBackend::new(file)?)
}

/// redb may panic over a file that was damaged from outside. `None` says that it did.
pub(super) fn catch_panic<T>(f: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(f)).ok()
}

/// A call into redb whose panic becomes the error that redb has for damaged pages.
pub(super) fn catch_redb_panic<T>(call: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, redb::Error> {
    catch_panic(call).unwrap_or_else(|| Err(redb::Error::Corrupted("redb panicked over unreadable pages".into())))
}

/// What is known of a handle, or of a transaction on it, the best first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Health {
    #[default]
    Sound,
    /// It met damaged pages. A read leaves the handle usable; a write transaction must be thrown away.
    Damaged,
    /// The disk failed: redb wants every handle dropped and the file opened anew.
    Broken,
}

impl Health {
    /// After this error.
    pub fn after(error: &redb::Error) -> Self {
        use redb::Error as E;
        match error {
            E::Io(_) | E::PreviousIo | E::LockPoisoned(_) | E::DatabaseClosed => Self::Broken,
            E::Corrupted(_) => Self::Damaged,
            _ => Self::Sound,
        }
    }
}

/// What a client is told when the database fails.
pub(super) fn failed(error: &redb::Error) -> Error {
    unavailable(error.to_string())
}

/// The answer to everything that the store cannot do at the moment.
pub(super) fn unavailable(cause: impl Into<String>) -> Error {
    Error::new(Code::StorageUnavailable, "The storage is not available at the moment. Try again shortly.")
        .with_cause(cause.into())
}
