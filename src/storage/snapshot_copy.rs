//! Copies a snapshot to a new database file.

use redb::{Database, Durability, ReadTransaction, ReadableTable as _, TableDefinition, TableHandle as _};

use super::meta::{PEPPER_KEY, meta};
use super::transaction::ReadTx;
use super::{database, tables};

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
