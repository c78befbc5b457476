//! The audit log: every change with its key, time and reason. Rows are written in the transaction of the change, so a
//! change and its row are atomic.
//!
//! A time window is not looked up by ID. After the clock is set back, new IDs are ahead of it, so a jump to the ID of
//! `end_time` could miss rows. Only `start_time` can end a search early, because the time in an ID is never before the
//! time of its row.
//!
//! [`model_log`] and [`pull_log`] write the rows of changes whose subject is not in the store.

pub mod model_log;
pub mod pull_log;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use super::access::Access;
use super::access::authorize;
use super::pagination::{Listing, Page, PageRequest};
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::{Error, Result};
use crate::ids::{AuditId, KeyId, ProjectId};
use crate::storage::audit::{self, AuditRecord, AuditRow};
use crate::storage::{Reader, Store, WriteTx};

/// An audit event.
#[derive(Clone, Debug)]
pub struct AuditEvent {
    pub id: AuditId,
    pub at: Timestamp,
    pub project: ProjectId,
    /// The acting key; `None` for the server itself.
    pub actor: Option<KeyId>,
    /// The action on the resource, such as `api_key.rotated`.
    pub action: String,
    /// The id of the resource.
    pub target: String,
    /// Details (reason, old and new name), a JSON object as text.
    pub detail: Option<String>,
}

impl From<AuditRow> for AuditEvent {
    fn from((id, project, row): AuditRow) -> Self {
        let AuditRecord { at, actor, action, target, detail } = row;
        Self { id, at, project, actor, action, target, detail }
    }
}

/// Rows that one page may skip because they do not match. A longer search continues with the next page, so that no
/// request occupies a thread for long.
const MAX_SKIPPED: usize = 10_000;

/// Tolerance for a clock that is set between the creation of an id and its row.
const CLOCK_SLACK: Duration = Duration::from_secs(60);

/// A filter of audit rows; all given conditions must match.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    /// `None` means every project, for admins only.
    pub project: Option<ProjectId>,
    pub actor: Option<KeyId>,
    /// An action such as `api_key.rotated`, or a resource such as `api_key`.
    pub action: Option<String>,
    pub target: Option<String>,
    /// Inclusive.
    pub start: Option<Timestamp>,
    /// Exclusive.
    pub end: Option<Timestamp>,
}

impl AuditFilter {
    pub(super) fn check(&self) -> Result<()> {
        match (self.start, self.end) {
            (Some(start), Some(end)) if start >= end => {
                let text = format!("'start_time' is {start} and 'end_time' {end}; the start must come before the end.");
                Err(Error::invalid("start_time", text))
            }
            _ => Ok(()),
        }
    }

    fn matches(&self, row: &AuditRecord) -> bool {
        let of =
            |prefix: &str| row.action.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        self.actor.is_none_or(|actor| row.actor == Some(actor))
            && self.action.as_deref().is_none_or(of)
            && self.target.as_deref().is_none_or(|target| row.target == target)
            && self.start.is_none_or(|start| row.at >= start)
            && self.end.is_none_or(|end| row.at < end)
    }

    /// True if a row with this ID can be in the time window. IDs ascend even if the clock was set back, so an ID is
    /// never older than its row.
    fn may_match(&self, id: AuditId) -> bool {
        let millis = id.to_u128() >> 80;
        let made = Timestamp::from_millis(i64::try_from(millis).unwrap_or(i64::MAX));
        self.start.is_none_or(|start| made.after(CLOCK_SLACK) >= start)
    }
}

/// Matching rows, and the id below which the scan continues, if it does.
pub(super) struct ScanResult {
    pub events: Vec<AuditEvent>,
    pub next: Option<[u8; 16]>,
}

/// Up to `limit` matching rows below `before`; fewer, with a `next`, if too many rows were skipped.
pub(super) fn scan(
    tx: &impl Reader,
    filter: &AuditFilter,
    before: Option<[u8; 16]>,
    limit: usize,
) -> Result<ScanResult> {
    let (mut events, mut next, mut skipped) = (Vec::<AuditEvent>::new(), None, 0);
    audit::walk(tx, filter.project, before, &mut |row| {
        if !filter.may_match(row.0) {
            return Ok(ControlFlow::Break(()));
        }
        if !filter.matches(&row.2) {
            skipped += 1;
            next = (skipped == MAX_SKIPPED).then(|| row.0.to_bytes());
        } else if events.len() == limit {
            next = events.last().map(|event| event.id.to_bytes());
        } else {
            events.push(row.into());
        }
        Ok(if next.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok(ScanResult { events, next })
}

/// Reads the audit log.
#[derive(Clone)]
pub struct Audit {
    pub(super) store: Store,
}

impl Audit {
    pub fn new(store: Store) -> Self {
        Self { store }
    }

    /// A page of the log, newest first. It may be short or empty even if there are more rows.
    pub async fn list(&self, access: &Access, filter: AuditFilter, request: PageRequest) -> Result<Page<AuditEvent>> {
        admit(access, &filter)?;
        let listing = Listing { name: "audit", owner: filter.project.map(ProjectId::to_bytes) };
        let window = request.window(self.store.pepper(), listing, AuditId::to_bytes)?;
        let access = access.clone();
        let found = self.store.read(move |tx| {
            filter.project.map_or(Ok(()), |project| authorize::named_project(tx, &access, project).map(drop))?;
            scan(tx, &filter, window.before, window.limit)
        });
        let ScanResult { events, next } = found.await?;
        let next_cursor = next.map(|position| listing.cursor(self.store.pepper(), position));
        Ok(Page { items: events, has_more: next_cursor.is_some(), next_cursor })
    }
}

pub(super) fn admit(access: &Access, filter: &AuditFilter) -> Result<()> {
    filter.check()?;
    if filter.project.is_none() { access.require_admin() } else { Ok(()) }
}

/// An audit row to be written. Created once per request, because the transaction may run more than once.
#[derive(Clone)]
pub(super) struct AuditEntry {
    id: AuditId,
    at: Timestamp,
    actor: Option<KeyId>,
    action: &'static str,
}

impl AuditEntry {
    pub fn new(clock_rng: &Arc<dyn ClockRng>, actor: Option<&Access>, action: &'static str) -> Self {
        let at = clock_rng.now();
        Self { id: AuditId::generate(&**clock_rng), at, actor: actor.map(Access::key), action }
    }

    /// Appends the row; `detail` is a JSON object or null.
    pub fn write(
        &self,
        tx: &WriteTx,
        project: ProjectId,
        target: impl ToString,
        detail: &serde_json::Value,
    ) -> Result<()> {
        let detail = (!detail.is_null()).then(|| detail.to_string());
        let record = AuditRecord {
            at: self.at,
            actor: self.actor,
            action: self.action.into(),
            target: target.to_string(),
            detail,
        };
        audit::append(tx, project, self.id, &record)
    }
}
