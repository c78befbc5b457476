//! Stored audit rows, written in the transaction that they document.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use crate::codec::{self, Record};
use crate::error::Result;
use crate::ids::{AuditId, KeyId, ProjectId};
use crate::tables::{AUDIT, AUDIT_BY_TIME, Table};
use crate::transaction::{Pair, Reader, WriteTx};
use outpost_common::clock_rng::Timestamp;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AuditRecord {
    pub at: Timestamp,
    pub actor: Option<KeyId>,
    pub action: String,
    pub target: String,
    pub detail: Option<String>,
}

impl Record for AuditRecord {
    const TABLE: Table = AUDIT;
    const VERSION: u8 = 1;
}

/// The project of a row.
#[derive(Serialize, Deserialize)]
pub(crate) struct AuditIndexRow {
    pub project: ProjectId,
}

impl Record for AuditIndexRow {
    const TABLE: Table = AUDIT_BY_TIME;
    const VERSION: u8 = 1;
}

/// Number of rows that are read at once, if they are those of all projects.
const ROWS_AT_ONCE: usize = 64;

/// A row with its id and project.
pub type AuditRow = (AuditId, ProjectId, AuditRecord);

pub fn append(tx: &WriteTx, project: ProjectId, id: AuditId, record: &AuditRecord) -> Result<()> {
    tx.put(&[project.to_bytes(), id.to_bytes()].concat(), record)?;
    tx.put(&id.to_bytes(), &AuditIndexRow { project })
}

/// Visits rows older than `before`, newest first, of one project or of all, until `visit` breaks.
pub fn walk(
    tx: &impl Reader,
    project: Option<ProjectId>,
    before: Option<[u8; 16]>,
    visit: &mut dyn FnMut(AuditRow) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let Some(project) = project else { return walk_all(tx, before, visit) };
    let prefix = project.to_bytes();
    let before = before.map(|id| [prefix, id].concat());
    tx.each(&prefix, before.as_deref(), &mut |key, record| {
        visit((id(key.get(16..).unwrap_or_default())?, project, record))
    })
}

fn walk_all(
    tx: &impl Reader,
    before: Option<[u8; 16]>,
    visit: &mut dyn FnMut(AuditRow) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let mut before = before.map(Vec::from);
    loop {
        let rows: Vec<Pair<AuditIndexRow>> = tx.newest(&[], before.as_deref(), ROWS_AT_ONCE)?;
        let keys: Vec<_> = rows.iter().map(|(key, row)| [&row.project.to_bytes(), key.as_slice()].concat()).collect();
        for ((key, row), record) in rows.iter().zip(tx.get_all(&keys)?) {
            let missing = || codec::inconsistent("the index of the audit log names a row that does not exist");
            if visit((id(key)?, row.project, record.ok_or_else(missing)?))?.is_break() {
                return Ok(());
            }
        }
        match rows.into_iter().nth(ROWS_AT_ONCE - 1) {
            Some((last, _)) => before = Some(last),
            None => return Ok(()),
        }
    }
}

fn id(bytes: &[u8]) -> Result<AuditId> {
    bytes.try_into().map(AuditId::from_bytes).map_err(|_| codec::inconsistent("a malformed id in the audit log"))
}
