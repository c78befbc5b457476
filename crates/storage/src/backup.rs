//! Backups: copies of a snapshot in a new database file.
//!
//! The copy includes the pepper, so that a restored server accepts the same keys. It must be protected like the data
//! folder. A live database file is never copied as a file.

use std::collections::BTreeMap;
use std::path::Path;

use crate::private_files;
use crate::redb::copy::{Pepper, copy};
use crate::store::Store;
use crate::store_error::BackupError;
use crate::verify::report::cause;
use outpost_common::disk_space::DataClass;

/// The report of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupReport {
    /// Records by table.
    pub records: BTreeMap<String, u64>,
    /// Size of the file.
    pub bytes: u64,
}

impl Store {
    /// Writes the committed state to the new file `to` while the server continues. Blocking.
    pub fn backup(&self, to: &Path) -> Result<BackupReport, BackupError> {
        let database = |reason: String| BackupError::Database { reason };
        let io = |source| BackupError::Io { path: to.to_owned(), source };
        if to.symlink_metadata().is_ok() {
            return Err(BackupError::TargetExists { path: to.to_owned() });
        }
        self.require_space_for_copy(to)?;
        let tx = self.snapshot().map_err(|error| database(cause(&error)))?;
        let records = tx.tables().map_err(|failed| database(failed.reason))?;
        let partial = private_files::partial(to);
        let file = private_files::create_partial(&partial).map_err(io)?;
        let published = match copy(&tx, file, Pepper::Include(self.pepper().raw())) {
            Ok(()) => private_files::publish(&partial, to).map_err(|error| taken_or(error, to)),
            Err(error) => Err(database(error.to_string())),
        };
        published.inspect_err(|_| drop(std::fs::remove_file(&partial)))?;
        Ok(BackupReport { records, bytes: std::fs::metadata(to).map_err(io)?.len() })
    }
}

impl Store {
    /// Refuses a copy that would take the reserve of the disk with the database. It has at most the written bytes of the
    /// database.
    fn require_space_for_copy(&self, to: &Path) -> Result<(), BackupError> {
        let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let Some(status) = self.reserve().filter(|reserve| reserve.covers(folder)).and_then(|own| own.status().ok())
        else {
            return Ok(());
        };
        let (needed, room) = (self.written_bytes(), status.room(DataClass::Bulk));
        match needed > room && status.min_free > 0 {
            true => Err(BackupError::NoSpace { path: to.to_owned(), needed, free: room }),
            false => Ok(()),
        }
    }
}

fn taken_or(source: std::io::Error, to: &Path) -> BackupError {
    match source.kind() {
        std::io::ErrorKind::AlreadyExists => BackupError::TargetExists { path: to.to_owned() },
        _ => BackupError::Io { path: to.to_owned(), source },
    }
}
