//! The database layout: its version, and migrations from older ones.
//!
//! A new table needs no new layout, because opening creates it. A changed record needs one: raise [`LAYOUT`] and the
//! record's `VERSION`, and add a step that rewrites the stored records.

use std::path::Path;
use std::sync::Arc;

use redb::Database;

use super::copy::{self, CopyError, copy};
use super::database;
use super::transaction::{RedbSnapshot, RedbWrite};
use crate::engine::EngineRead as _;
use crate::meta::{LAYOUT_KEY, Layout, PEPPER_CHECK_KEY, meta};
use crate::pepper::{self, Pepper};
use crate::store_error::OpenError;
use crate::transaction::{ReadTx, WriteTx};
use crate::{private_files, tables};

/// The layout version that this program writes.
pub const LAYOUT: u32 = 1;

/// Migrates the records of one layout to the next.
type Step = fn(&WriteTx) -> crate::error::Result<()>;

/// Step `n` migrates from layout `n + 1` to the next.
const STEPS: [Step; LAYOUT as usize - 1] = [];

/// Creates an empty database at `path` atomically.
pub(super) fn create(path: &Path, pepper: &Arc<Pepper>, cache_bytes: usize) -> Result<(), OpenError> {
    let partial = private_files::partial(path);
    let file = private_files::create_partial(&partial).map_err(|error| OpenError::io(&partial, error))?;
    let db = database::create(file, cache_bytes).map_err(|error| OpenError::database(&partial, error))?;
    let engine = begin(&db, path)?;
    let tx = WriteTx::new(&engine, pepper.clone());
    fill(&tx, pepper).map_err(|error| OpenError::record(&partial, &error, tx.is_broken()))?;
    engine.commit().map_err(|error| OpenError::database(&partial, error))?;
    db.close().map_err(|error| OpenError::database(&partial, error))?;
    private_files::publish(&partial, path).map_err(|error| OpenError::io(path, error))
}

fn fill(tx: &WriteTx, pepper: &Pepper) -> crate::error::Result<()> {
    put_layout(tx, LAYOUT)?;
    tx.put_raw(tables::META, PEPPER_CHECK_KEY, &meta(&pepper.check_value()))
}

fn put_layout(tx: &WriteTx, layout: u32) -> crate::error::Result<()> {
    tx.put_raw(tables::META, LAYOUT_KEY, &Layout::Version(layout).encode())
}

/// Migrates an opened database to this program's layout, and creates the tables that it lacks.
pub(super) fn run(db: &Database, path: &Path, pepper: &Arc<Pepper>) -> Result<(), OpenError> {
    migrate(db, path, pepper, &STEPS)
}

/// Runs the steps that follow the database's layout, in one transaction.
fn migrate(db: &Database, path: &Path, pepper: &Arc<Pepper>, steps: &[Step]) -> Result<(), OpenError> {
    let found = layout(db, path, pepper)?;
    let done = found.saturating_sub(1) as usize;
    let Some(missing) = steps.get(done..) else {
        return Err(OpenError::NewerLayout { found, known: LAYOUT });
    };
    if !missing.is_empty() {
        back_up_old_layout(db, path, pepper, found)?;
    }
    let engine = begin(db, path)?;
    let tx = WriteTx::new(&engine, pepper.clone());
    for table in tables::ALL {
        engine.create(*table).map_err(|error| OpenError::database(path, error))?;
    }
    for (layout, step) in (found + 1..).zip(missing) {
        let migrated = step(&tx).and_then(|()| put_layout(&tx, layout));
        migrated.map_err(|error| OpenError::record(path, &error, tx.is_broken()))?;
    }
    engine.commit().map_err(|error| OpenError::database(path, error))
}

/// Copies the database before the first migration changes it.
fn back_up_old_layout(db: &Database, path: &Path, pepper: &Arc<Pepper>, found: u32) -> Result<(), OpenError> {
    let previous = path.with_extension(format!("layout-{found}.redb"));
    let partial = private_files::partial(&previous);
    let file = private_files::create_partial(&partial).map_err(|error| OpenError::io(&partial, error))?;
    let engine = RedbSnapshot::begin(db).map_err(|error| OpenError::database(path, error))?;
    let tx = ReadTx::new(Box::new(engine), pepper.clone());
    copy(&tx, file, copy::Pepper::LeaveOut).map_err(|error| error.about(path))?;
    match private_files::publish(&partial, &previous) {
        // An earlier attempt created this copy.
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        published => published.map_err(|error| OpenError::io(&previous, error)),
    }
}

fn begin(db: &Database, path: &Path) -> Result<RedbWrite, OpenError> {
    RedbWrite::begin(db).map_err(|error| OpenError::database(path, error))
}

/// The layout of the database. Also checks the pepper, unless the layout is newer.
pub(super) fn layout(db: &Database, path: &Path, pepper: &Arc<Pepper>) -> Result<u32, OpenError> {
    let read = database::catch_panic(|| {
        let tx = RedbSnapshot::begin(db).map_err(|error| OpenError::database(path, error))?;
        let look = |key| tx.get(tables::META, key).map_err(|failed| CopyError::Source(failed).about(path));
        Ok((look(LAYOUT_KEY)?, look(PEPPER_CHECK_KEY)?))
    });
    let (layout, check) = read.unwrap_or_else(|| Err(OpenError::corrupt(path, "unreadable pages")))?;
    let layout = layout.ok_or_else(|| OpenError::NoLayout { path: path.to_owned() })?;
    let Some(layout) = layout.get(1..).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes) else {
        return Err(OpenError::corrupt(path, "its layout version is malformed"));
    };
    if layout <= LAYOUT && check.as_deref() != Some(&meta(&pepper.check_value())) {
        let path = path.parent().map(pepper::path).unwrap_or_default();
        return Err(OpenError::WrongPepper { path });
    }
    Ok(layout)
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use serde::{Deserialize, Serialize};

    use super::*;
    use crate::codec::Record;
    use crate::redb::database::{DatabaseFile, from_file};
    use crate::tables::{LEVELS, Table};
    use crate::transaction::Reader as _;

    /// A record as layout 1 has it, and as a made-up layout 2 has it.
    #[derive(Serialize, Deserialize)]
    struct Old(u8);
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct New(u8, Option<String>);

    impl Record for Old {
        const TABLE: Table = LEVELS;
        const VERSION: u8 = 1;
    }

    impl Record for New {
        const TABLE: Table = LEVELS;
        const VERSION: u8 = 2;
    }

    fn extend(tx: &WriteTx) -> crate::error::Result<()> {
        let mut records = Vec::new();
        tx.each(&[], None, &mut |key, Old(number)| {
            records.push((key.to_vec(), New(number, None)));
            Ok(ControlFlow::Continue(()))
        })?;
        records.iter().try_for_each(|(key, record)| tx.put(key, record))
    }

    fn write(db: &Database, path: &Path, pepper: &Arc<Pepper>, change: Step) {
        let engine = begin(db, path).unwrap();
        change(&WriteTx::new(&engine, pepper.clone())).unwrap();
        engine.commit().unwrap();
    }

    fn read<R: Record>(db: &Database, pepper: &Arc<Pepper>) -> crate::error::Result<Option<R>> {
        ReadTx::new(Box::new(RedbSnapshot::begin(db).unwrap()), pepper.clone()).get(b"key")
    }

    #[test]
    fn a_database_of_an_older_layout_is_backed_up_and_migrated_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(private_files::DATABASE);
        let open = |path: &Path| {
            DatabaseFile { path: path.to_owned(), cache_bytes: 1 << 20, opener: from_file() }.open().unwrap()
        };
        let pepper = Arc::new(Pepper::from_bytes([7; 32]));
        create(&path, &pepper, 1 << 20).unwrap();
        let db = open(&path);
        run(&db, &path, &pepper).unwrap();
        write(&db, &path, &pepper, |tx| tx.put(b"key", &Old(5)));
        for _ in 0..2 {
            migrate(&db, &path, &pepper, &[extend]).unwrap();
            assert_eq!(layout(&db, &path, &pepper).unwrap(), 2);
            assert_eq!(read(&db, &pepper).unwrap(), Some(New(5, None)));
        }
        let newer = run(&db, &path, &pepper);
        assert!(matches!(newer, Err(OpenError::NewerLayout { found: 2, known: 1 })), "{newer:?}");

        let kept = path.with_extension("layout-1.redb");
        let db = open(&kept);
        assert_eq!(layout(&db, &kept, &pepper).unwrap(), 1);
        assert_eq!(read::<Old>(&db, &pepper).unwrap().unwrap().0, 5);
    }

    #[test]
    fn a_step_that_fails_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(private_files::DATABASE);
        let pepper = Arc::new(Pepper::from_bytes([7; 32]));
        create(&path, &pepper, 1 << 20).unwrap();
        let db = DatabaseFile { path: path.clone(), cache_bytes: 1 << 20, opener: from_file() }.open().unwrap();
        run(&db, &path, &pepper).unwrap();
        write(&db, &path, &pepper, |tx| tx.put(b"key", &Old(5)));
        let fail: Step = |_| Err(crate::error::Error::internal("a step failed"));
        assert!(matches!(migrate(&db, &path, &pepper, &[extend, fail]), Err(OpenError::Corrupt { .. })));
        assert_eq!(layout(&db, &path, &pepper).unwrap(), 1);
        assert_eq!(read::<Old>(&db, &pepper).unwrap().unwrap().0, 5);
    }
}
