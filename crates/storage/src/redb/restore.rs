//! Restoring a backup to an empty data folder.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use redb::Database;

use super::check::check_database;
use super::copy::{self, CopyError, copy};
use super::database::{self, DatabaseFile};
use super::transaction::RedbSnapshot;
use super::unfinished::Filling;
use crate::engine::EngineRead as _;
use crate::meta::PEPPER_KEY;
use crate::pepper::{self, Pepper};
use crate::store_error::{CheckError, OpenError, RestoreError};
use crate::transaction::ReadTx;
use crate::{private_files, tables};

/// The report of a restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoreReport {
    /// Records by table.
    pub records: BTreeMap<String, u64>,
    /// Size of the new database file.
    pub bytes: u64,
}

/// Checks every record of the backup `from`, then restores it to `data_dir`. Blocking.
pub fn restore(from: &Path, data_dir: &Path) -> Result<RestoreReport, RestoreError> {
    private_files::private_dir(data_dir).map_err(|error| OpenError::io(data_dir, error))?;
    let _lock = database::lock_folder(data_dir)?;
    let path = data_dir.join(private_files::DATABASE);
    if path.symlink_metadata().is_ok() {
        return Err(RestoreError::NotEmpty { dir: data_dir.to_owned() });
    }
    // The check may repair the file, so it works on a copy.
    let trial = Filling::Restore.path(data_dir);
    let partial = private_files::partial(&path);
    let restored = stage(from, data_dir, &trial).and_then(|()| install(from, &trial, data_dir, &path));
    // The trial last: until then it says that the restore has not ended.
    drop(std::fs::remove_file(&partial));
    drop(std::fs::remove_file(&trial));
    restored
}

fn stage(from: &Path, dir: &Path, trial: &Path) -> Result<(), RestoreError> {
    let mut source = File::open(from).map_err(|error| OpenError::io(from, error))?;
    let mut target = Filling::Restore.create(dir)?;
    std::io::copy(&mut source, &mut target).map_err(|error| OpenError::io(trial, error))?;
    Ok(())
}

fn install(from: &Path, trial: &Path, dir: &Path, path: &Path) -> Result<RestoreReport, RestoreError> {
    let bad = |reason: String| RestoreError::BadBackup { path: from.to_owned(), reason };
    let source = DatabaseFile { path: trial.to_owned(), cache_bytes: 64 << 20, opener: database::from_file() };
    let mut db = source.open().map_err(|error| bad(reason(error)))?;
    let pepper = Arc::new(read_pepper(&db).ok_or_else(|| bad("it contains no pepper".into()))?);
    let report = check_database(&mut db, trial, &pepper).map_err(|error| match error {
        CheckError::Open(error) => bad(reason(error)),
        CheckError::Unfinished { reason } => bad(reason),
    })?;
    if let Some(problem) = report.problems.first() {
        return Err(bad(problem.clone()));
    }
    save_pepper(dir, &pepper)?;
    let partial = private_files::partial(path);
    let file = private_files::create_partial(&partial).map_err(|error| OpenError::io(&partial, error))?;
    copied(&db, &pepper, file).map_err(|error| error.about(&partial))?;
    private_files::publish(&partial, path).map_err(|error| OpenError::io(path, error))?;
    let bytes = std::fs::metadata(path).map_err(|error| OpenError::io(path, error))?.len();
    Ok(RestoreReport { records: report.records, bytes })
}

/// Only the reason: advice about the data folder does not apply to a backup.
fn reason(error: OpenError) -> String {
    match error {
        OpenError::Corrupt { reason, .. } => reason,
        OpenError::NoLayout { .. } => {
            "it has no layout version, so an unreleased build or another program wrote it".into()
        }
        other => other.to_string(),
    }
}

fn copied(db: &Database, pepper: &Arc<Pepper>, file: File) -> Result<(), CopyError> {
    let tx = ReadTx::new(Box::new(RedbSnapshot::begin(db)?), pepper.clone());
    copy(&tx, file, copy::Pepper::LeaveOut)
}

fn read_pepper(db: &Database) -> Option<Pepper> {
    let stored = RedbSnapshot::begin(db).ok()?.get(tables::META, PEPPER_KEY).ok()??;
    Some(Pepper::from_bytes(stored.get(1..)?.try_into().ok()?))
}

/// The pepper is written first. A pepper alone is harmless; a database without one is unusable.
fn save_pepper(dir: &Path, pepper: &Pepper) -> Result<(), RestoreError> {
    match pepper::load(dir) {
        Ok(None) => Ok(pepper::save(dir, pepper)?),
        Ok(Some(found)) if found.raw() == pepper.raw() => Ok(()),
        Ok(Some(_)) | Err(OpenError::WrongPepper { .. }) => Err(RestoreError::OtherPepper { dir: dir.to_owned() }),
        Err(error) => Err(error.into()),
    }
}
