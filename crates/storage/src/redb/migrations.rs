//! The database layout: its version, and migrations from older ones.
//!
//! A new table needs no new layout, because opening creates it. A changed record needs one, with a migration here.

mod audio_rate;
mod conversation_rows;
mod fine_tuning_jobs;
mod response_quota;
mod table_conversion;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use redb::Database;

use super::copy::{self, CopyError, copy};
use super::database;
use super::transaction::{RedbSnapshot, RedbWrite};
use crate::engine::EngineRead as _;
use crate::ids::ProjectId;
use crate::keys::KeyRecord;
use crate::meta::{LAYOUT_KEY, PEPPER_CHECK_KEY, meta};
use crate::pepper::{self, Pepper};
use crate::store_error::OpenError;
use crate::transaction::{ReadTx, Reader as _, WriteTx};
use crate::{private_files, tables};
use response_quota::OldQuotaUsage;

/// The layout version that this program writes.
pub const LAYOUT: u32 = 7;

/// Step `n` migrates from layout `n + 1` to the next. All steps run in one transaction.
const STEPS: &[fn(&WriteTx) -> crate::error::Result<()>] = &[
    count_keys,
    begin_checksums,
    fine_tuning_jobs::extend_jobs,
    response_quota::extend_quotas,
    conversation_rows::number_rows,
    audio_rate::extend_rates,
];

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
    tx.put_raw(tables::META, LAYOUT_KEY, &meta(&LAYOUT.to_be_bytes()))?;
    tx.put_raw(tables::META, PEPPER_CHECK_KEY, &meta(&pepper.check_value()))
}

/// Migrates an opened database to this program's layout.
pub(super) fn run(db: &Database, path: &Path, pepper: &Arc<Pepper>) -> Result<(), OpenError> {
    let found = layout(db, path, pepper)?;
    if found > LAYOUT {
        return Err(OpenError::NewerLayout { found, known: LAYOUT });
    }
    if found < LAYOUT {
        back_up_old_layout(db, path, pepper, found)?;
    }
    let engine = begin(db, path)?;
    let tx = WriteTx::new(&engine, pepper.clone());
    for table in tables::ALL {
        engine.create(*table).map_err(|error| OpenError::database(path, error))?;
    }
    let steps = STEPS.iter().skip(found.saturating_sub(1) as usize);
    let migrated = steps.map(|step| step(&tx)).collect::<crate::error::Result<Vec<()>>>();
    migrated.map_err(|error| OpenError::record(path, &error, tx.is_broken()))?;
    if found < LAYOUT {
        tx.put_raw(tables::META, LAYOUT_KEY, &meta(&LAYOUT.to_be_bytes()))
            .map_err(|error| OpenError::record(path, &error, tx.is_broken()))?;
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

/// Layout 1 to 2: counts the active keys of projects.
fn count_keys(tx: &WriteTx) -> crate::error::Result<()> {
    let mut living: BTreeMap<ProjectId, u64> = BTreeMap::new();
    tx.each(&[], None, &mut |_, key: KeyRecord| {
        *living.entry(key.project).or_default() += u64::from(key.revoked_at.is_none());
        Ok(ControlFlow::Continue(()))
    })?;
    living.into_iter().try_for_each(|(project, api_keys)| {
        tx.put(&project.to_bytes(), &OldQuotaUsage { api_keys, ..OldQuotaUsage::default() })
    })
}

/// Layout 2 to 3: records without a MAC get a checksum with their next write. Existing records stay readable. The
/// layout prevents older programs from treating new records as damaged.
fn begin_checksums(_: &WriteTx) -> crate::error::Result<()> {
    Ok(())
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
    let layout = layout.as_deref().and_then(|bytes| bytes.get(1..)).and_then(|bytes| bytes.try_into().ok());
    let Some(layout) = layout.map(u32::from_be_bytes) else {
        return Err(OpenError::corrupt(path, "it has no layout version, so outpost did not write it"));
    };
    if layout <= LAYOUT && check.as_deref() != Some(&meta(&pepper.check_value())) {
        let path = path.parent().map(pepper::path).unwrap_or_default();
        return Err(OpenError::WrongPepper { path });
    }
    Ok(layout)
}
