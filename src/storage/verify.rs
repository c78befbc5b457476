//! Reads everything and says what is wrong with it.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use redb::{Database, ReadableTableMetadata as _, TableHandle as _};

use super::audit::{AuditPlace, AuditRecord};
use super::codec::{self, Record};
use super::database::{self, Source, caught};
use super::error::{CheckError, OpenError};
use super::keys::{InProject, KeyRecord};
use super::pepper::{self, Pepper};
use super::projects::ProjectRecord;
use super::store::Store;
use super::transaction::{Look, ReadTx};
use super::{files, migrations, tables};
use crate::error::{Error, Result};

/// More problems than this are only counted.
const SHOWN: usize = 100;

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Records by table.
    pub records: BTreeMap<String, u64>,
    /// Size of the database file.
    pub bytes: u64,
    /// What is wrong, a sentence each; empty if all is well.
    pub problems: Vec<String>,
    /// redb had to rebuild its own bookkeeping (offline check only).
    pub repaired: bool,
}

impl CheckReport {
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }

    fn problem(&mut self, text: String) {
        match self.problems.len() {
            ..SHOWN => self.problems.push(text),
            SHOWN => self.problems.push("further problems are not shown".into()),
            _ => {}
        }
    }
}

impl Store {
    /// Reads every record of one snapshot while the server goes on. Blocking.
    pub fn verify(&self) -> Result<CheckReport, CheckError> {
        let unfinished = |error: Error| CheckError::Unfinished { reason: cause(&error) };
        let tx = self.snapshot().map_err(unfinished)?;
        let mut report = verify(&tx).map_err(unfinished)?;
        report.bytes = self.file_bytes();
        Ok(report)
    }
}

/// Checks a data folder that no server uses: redb's checksums first, then every record. Blocking.
pub fn check(data_dir: &Path) -> Result<CheckReport, CheckError> {
    let path = data_dir.join(files::DATABASE);
    let bytes = std::fs::metadata(&path).map_err(|error| OpenError::io(&path, error))?.len();
    let _lock = files::lock(data_dir)?;
    let pepper = pepper::load(data_dir)?.ok_or_else(|| OpenError::MissingPepper { path: pepper::path(data_dir) })?;
    let source = Source { path: path.clone(), cache_bytes: 64 << 20, opener: database::from_file() };
    let mut db = source.open()?;
    let report = check_database(&mut db, &path, &Arc::new(pepper))?;
    Ok(CheckReport { bytes, ..report })
}

/// Checksums, layout, records.
pub(super) fn check_database(db: &mut Database, path: &Path, pepper: &Arc<Pepper>) -> Result<CheckReport, CheckError> {
    let intact = caught(|| db.check_integrity()).ok_or_else(|| OpenError::corrupt(path, "unreadable pages"))?;
    let intact = intact.map_err(|error| OpenError::database(path, error))?;
    let found = migrations::layout(db, path, pepper)?;
    if found > migrations::LAYOUT {
        return Err(OpenError::NewerLayout { found, known: migrations::LAYOUT }.into());
    }
    let tx = ReadTx::begin(db, pepper.clone()).map_err(|error| OpenError::database(path, error))?;
    let report = verify(&tx).map_err(|error| CheckError::Unfinished { reason: cause(&error) })?;
    Ok(CheckReport { repaired: !intact, ..report })
}

/// What the operator should read: the cause, which clients never see.
pub(super) fn cause(error: &Error) -> String {
    error.cause().map_or_else(|| error.to_string(), ToString::to_string)
}

fn verify(tx: &ReadTx) -> Result<CheckReport> {
    caught(|| {
        let mut report = CheckReport { records: count(tx)?, ..CheckReport::default() };
        projects(tx, &mut report)?;
        keys(tx, &mut report)?;
        key_index(tx, &mut report)?;
        audit(tx, &mut report)?;
        Ok(report)
    })
    .unwrap_or_else(|| Err(database::unavailable("unreadable pages")))
}

pub(super) fn count(tx: &ReadTx) -> Result<BTreeMap<String, u64>> {
    let count = || -> Result<_, redb::Error> {
        let mut counts = BTreeMap::new();
        for table in tx.inner().list_tables()? {
            let name = table.name().to_owned();
            counts.insert(name, tx.inner().open_untyped_table(table)?.len()?);
        }
        Ok(counts)
    };
    count().map_err(|error| database::failed(&error))
}

/// Looks at one record and says what is wrong with it.
type Inspect<'a, R> = &'a mut dyn FnMut(&[u8], R) -> Result<Option<String>>;

/// Decodes every record of a table; a damaged one is a problem and not the end.
fn records<R: Record>(tx: &ReadTx, report: &mut CheckReport, each: Inspect<'_, R>) -> Result<()> {
    tx.visit(R::TABLE, &[], None, &mut |key, bytes| {
        let found = codec::decode(tx.pepper(), key, bytes).and_then(|record| each(key, record));
        match found {
            Ok(None) => {}
            Ok(Some(problem)) => report.problem(problem),
            Err(error) => report.problem(cause(&error)),
        }
        Ok(ControlFlow::Continue(()))
    })
}

fn projects(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    records(tx, report, &mut |key, _: ProjectRecord| {
        Ok((key.len() != 16).then(|| "a project has a malformed id".into()))
    })
}

fn keys(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    records(tx, report, &mut |key, record: KeyRecord| {
        let project = record.project.to_bytes();
        if tx.raw(tables::PROJECTS, &project)?.is_none() {
            return Ok(Some(format!(
                "key '{}' belongs to project {}, which is not there",
                record.name, record.project
            )));
        }
        let listed = tx.raw(tables::KEYS_BY_PROJECT, &[&project, key].concat())?.is_some();
        Ok((!listed).then(|| format!("key '{}' is missing in the index of its project", record.name)))
    })
}

fn key_index(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    records(tx, report, &mut |place, _: InProject| {
        let (project, key) = place.split_at_checked(16).unwrap_or_default();
        let record: Option<KeyRecord> = tx.get(key)?;
        let fits = record.is_some_and(|record| record.project.to_bytes() == project);
        Ok((!fits).then(|| "the index of keys lists a key that is not in that project".into()))
    })
}

fn audit(tx: &ReadTx, report: &mut CheckReport) -> Result<()> {
    records(tx, report, &mut |place, row: AuditRecord| {
        let (project, id) = place.split_at_checked(16).unwrap_or_default();
        let found: Option<AuditPlace> = tx.get(id)?;
        let fits = found.is_some_and(|found| found.project.to_bytes() == project);
        Ok((!fits).then(|| format!("audit row {} of {} is missing in the index", row.action, row.at)))
    })?;
    records(tx, report, &mut |id, AuditPlace { project }| {
        let there = tx.raw(tables::AUDIT, &[&project.to_bytes(), id].concat())?.is_some();
        Ok((!there).then(|| "the index of the audit log names a row that is not there".into()))
    })
}
