//! Backups: copies of a snapshot in a new database file.
//!
//! The copy includes the pepper, so that a restored server accepts the same keys. It must be protected like the data
//! folder. A live database file is never copied as a file.

use std::collections::BTreeMap;
use std::path::Path;

use redb::{Database, Durability, ReadTransaction, ReadableTable as _, TableDefinition, TableHandle as _};

use super::error::BackupError;
use super::migrations::{PEPPER_KEY, meta};
use super::store::Store;
use super::transaction::ReadTx;
use super::verify::{cause, count};
use super::{database, private_files, tables};

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
        let tx = self.snapshot().map_err(|error| database(cause(&error)))?;
        let records = count(&tx).map_err(|error| database(cause(&error)))?;
        let partial = private_files::partial(to);
        let file = private_files::create_partial(&partial).map_err(io)?;
        let copied = database::catch_panic(|| copy(&tx, file, Pepper::Include(self.pepper().raw())));
        let published = match copied {
            Some(Ok(())) => private_files::publish(&partial, to).map_err(|error| taken_or(error, to)),
            Some(Err(error)) => Err(database(error.to_string())),
            None => Err(database("unreadable pages".into())),
        };
        published.inspect_err(|_| drop(std::fs::remove_file(&partial)))?;
        Ok(BackupReport { records, bytes: std::fs::metadata(to).map_err(io)?.len() })
    }
}

fn taken_or(source: std::io::Error, to: &Path) -> BackupError {
    match source.kind() {
        std::io::ErrorKind::AlreadyExists => BackupError::TargetExists { path: to.to_owned() },
        _ => BackupError::Io { path: to.to_owned(), source },
    }
}

/// Whether the copy includes the pepper: a backup does, a data folder has it in a separate file.
pub(super) enum Pepper<'a> {
    Include(&'a [u8]),
    LeaveOut,
}

/// Copies every table of a snapshot, known or not, into the empty `file`.
pub(super) fn copy(from: &ReadTx, file: std::fs::File, pepper: Pepper<'_>) -> Result<(), redb::Error> {
    let to = database::create(file, 64 << 20)?;
    for table in from.inner().list_tables()? {
        copy_table(from.inner(), &to, table.name())?;
    }
    let mut tx = to.begin_write()?;
    tx.set_quick_repair(true);
    {
        let mut table = tx.open_table(tables::META.definition())?;
        match pepper {
            Pepper::Include(raw) => table.insert(PEPPER_KEY, meta(raw).as_slice())?,
            Pepper::LeaveOut => None,
        };
    }
    tx.commit()?;
    Ok(to.close()?)
}

fn copy_table(from: &ReadTransaction, to: &Database, name: &str) -> Result<(), redb::Error> {
    let definition: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new(name);
    let source = from.open_table(definition)?;
    let mut tx = to.begin_write()?;
    // The last commit of the copy makes all of it durable at once.
    tx.set_durability(Durability::None)?;
    {
        let mut target = tx.open_table(definition)?;
        for pair in source.iter()? {
            let (key, value) = pair?;
            if name != tables::META.name() || key.value() != PEPPER_KEY {
                target.insert(key.value(), value.value())?;
            }
        }
    }
    Ok(tx.commit()?)
}
