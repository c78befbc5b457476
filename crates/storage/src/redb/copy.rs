//! Copies a snapshot of any engine to a new redb file.

use std::fs::File;
use std::ops::ControlFlow;
use std::path::Path;

use redb::{Database, Durability};

use super::database;
use super::transaction::definition;
use crate::engine::{Failed, Health};
use crate::meta::{PEPPER_KEY, meta};
use crate::store_error::OpenError;
use crate::tables;
use crate::transaction::ReadTx;

/// Whether the copy includes the pepper: a backup does, a data folder has it in a separate file.
pub(crate) enum Pepper<'a> {
    Include(&'a [u8]),
    LeaveOut,
}

/// Why a copy failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyError {
    #[error("{}", .0.reason)]
    Source(Failed),
    #[error(transparent)]
    Target(#[from] redb::Error),
}

impl CopyError {
    pub(super) fn about(self, path: &Path) -> OpenError {
        match self {
            Self::Source(Failed { health: Health::Broken, reason }) => {
                OpenError::io(path, std::io::Error::other(reason))
            }
            Self::Source(Failed { reason, .. }) => OpenError::corrupt(path, reason),
            Self::Target(error) => OpenError::database(path, error),
        }
    }
}

/// Copies every table of a snapshot, known or not, into the empty `file`.
pub(crate) fn copy(from: &ReadTx, file: File, pepper: Pepper<'_>) -> Result<(), CopyError> {
    let to = database::create(file, 64 << 20).map_err(redb::Error::from)?;
    for name in from.tables().map_err(CopyError::Source)?.keys() {
        copy_table(from, &to, name)?;
    }
    Ok(finish(to, pepper)?)
}

/// Makes the whole copy durable.
fn finish(to: Database, pepper: Pepper<'_>) -> Result<(), redb::Error> {
    let mut tx = to.begin_write()?;
    tx.set_quick_repair(true);
    {
        let mut table = tx.open_table(definition(tables::META.name()))?;
        match pepper {
            Pepper::Include(raw) => table.insert(PEPPER_KEY, meta(raw).as_slice())?,
            Pepper::LeaveOut => None,
        };
    }
    tx.commit()?;
    Ok(to.close()?)
}

fn copy_table(from: &ReadTx, to: &Database, name: &str) -> Result<(), CopyError> {
    let mut tx = to.begin_write().map_err(redb::Error::from)?;
    // The last commit of the copy makes all of it durable at once.
    tx.set_durability(Durability::None).map_err(redb::Error::from)?;
    {
        let mut target = tx.open_table(definition(name)).map_err(redb::Error::from)?;
        let is_pepper = |key: &[u8]| name == tables::META.name() && key == PEPPER_KEY;
        let mut inserted = Ok(());
        let exported = from.export(name, &mut |key, value| {
            if !is_pepper(key) {
                inserted = target.insert(key, value).map(drop);
            }
            if inserted.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        exported.map_err(CopyError::Source)?;
        inserted.map_err(redb::Error::from)?;
    }
    Ok(tx.commit().map_err(redb::Error::from)?)
}
