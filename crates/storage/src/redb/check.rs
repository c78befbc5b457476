//! The check of a data folder that no server uses.

use std::path::Path;
use std::sync::Arc;

use redb::Database;

use super::database::{self, DatabaseFile, catch_panic};
use super::migrations;
use super::transaction::RedbSnapshot;
use crate::pepper::{self, Pepper};
use crate::private_files;
use crate::store_error::{CheckError, OpenError};
use crate::transaction::ReadTx;
use crate::verify::report::{CheckReport, cause};
use crate::verify::verify;

/// Checks a data folder offline: redb's checksums first, then every record. Blocking.
pub fn check(data_dir: &Path) -> Result<CheckReport, CheckError> {
    let path = data_dir.join(private_files::DATABASE);
    let bytes = std::fs::metadata(&path).map_err(|error| OpenError::io(&path, error))?.len();
    let _lock = database::lock_folder(data_dir)?;
    let pepper = pepper::load(data_dir)?.ok_or_else(|| OpenError::MissingPepper { path: pepper::path(data_dir) })?;
    let source = DatabaseFile { path: path.clone(), cache_bytes: 64 << 20, opener: database::from_file() };
    let mut db = source.open()?;
    let report = check_database(&mut db, &path, &Arc::new(pepper))?;
    Ok(CheckReport { bytes, ..report })
}

/// Checksums, layout, records.
pub(super) fn check_database(db: &mut Database, path: &Path, pepper: &Arc<Pepper>) -> Result<CheckReport, CheckError> {
    let intact = catch_panic(|| db.check_integrity()).ok_or_else(|| OpenError::corrupt(path, "unreadable pages"))?;
    let intact = intact.map_err(|error| OpenError::database(path, error))?;
    let found = migrations::layout(db, path, pepper)?;
    if found > migrations::LAYOUT {
        return Err(OpenError::NewerLayout { found, known: migrations::LAYOUT }.into());
    }
    let engine = RedbSnapshot::begin(db).map_err(|error| OpenError::database(path, error))?;
    let report = verify(&ReadTx::new(Box::new(engine), pepper.clone()));
    let report = report.map_err(|error| CheckError::Unfinished { reason: cause(&error) })?;
    Ok(CheckReport { repaired: !intact, ..report })
}
