//! The audit log: who changed what, when and why. Rows are written in the transaction of the
//! change itself, so there is never one without the other.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use super::access::Access;
use super::authority;
use super::export::{Export, Format};
use super::page::{Listing, Page, PageRequest};
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::{Error, Result};
use crate::ids::{AuditId, KeyId, ProjectId};
use crate::storage::audit::{self, AuditRecord, AuditRow};
use crate::storage::{Reader, Store, WriteTx};

/// One thing that was done.
#[derive(Clone, Debug)]
pub struct AuditEvent {
    pub id: AuditId,
    pub at: Timestamp,
    pub project: ProjectId,
    /// The key that did it; none for the server itself.
    pub actor: Option<KeyId>,
    /// The resource and what happened to it, such as `api_key.rotated`.
    pub action: String,
    /// The id of the resource.
    pub target: String,
    /// Particulars (reason, old and new name), a JSON object as text.
    pub detail: Option<String>,
}

impl From<AuditRow> for AuditEvent {
    fn from((id, project, row): AuditRow) -> Self {
        let AuditRecord { at, actor, action, target, detail } = row;
        Self { id, at, project, actor, action, target, detail }
    }
}

/// Rows that do not match and that one page may pass over. A longer search goes on with the next
/// page, so that no request holds a thread for long.
const PASSED: usize = 10_000;

/// An id is made together with the time of its row; this covers a clock that is set in between.
const SLACK: Duration = Duration::from_secs(60);

/// Which rows of the log are wanted: those that fit all that is given.
#[derive(Clone, Debug, Default)]
pub struct AuditFilter {
    /// None means every project, for admins only.
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
            |wanted: &str| row.action.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
        self.actor.is_none_or(|actor| row.actor == Some(actor))
            && self.action.as_deref().is_none_or(of)
            && self.target.as_deref().is_none_or(|target| row.target == target)
            && self.start.is_none_or(|start| row.at >= start)
            && self.end.is_none_or(|end| row.at < end)
    }

    /// Whether a row this old can still be in the window. Ids ascend even where the clock was set
    /// back, so they never lie before the time of their row.
    fn reaches(&self, id: AuditId) -> bool {
        let millis = u128::from_be_bytes(id.to_bytes()) >> 80;
        let made = Timestamp::from_millis(i64::try_from(millis).unwrap_or(i64::MAX));
        self.start.is_none_or(|start| made.after(SLACK) >= start)
    }
}

/// Matching rows, and below which id the search goes on, if it does.
pub(super) struct Stretch {
    pub events: Vec<AuditEvent>,
    pub next: Option<[u8; 16]>,
}

/// Up to `limit` matching rows below `before`; fewer with a `next` where too many did not match.
pub(super) fn stretch(
    tx: &impl Reader,
    filter: &AuditFilter,
    before: Option<[u8; 16]>,
    limit: usize,
) -> Result<Stretch> {
    let (mut events, mut next, mut passed) = (Vec::<AuditEvent>::new(), None, 0);
    audit::walk(tx, filter.project, before, &mut |row| {
        if !filter.reaches(row.0) {
            return Ok(ControlFlow::Break(()));
        }
        if !filter.matches(&row.2) {
            passed += 1;
            next = (passed == PASSED).then(|| row.0.to_bytes());
        } else if events.len() == limit {
            next = events.last().map(|event| event.id.to_bytes());
        } else {
            events.push(row.into());
        }
        Ok(if next.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    })?;
    Ok(Stretch { events, next })
}

/// Reads the audit log.
#[derive(Clone)]
pub struct Audit {
    store: Store,
}

impl Audit {
    pub fn new(store: Store) -> Self {
        Self { store }
    }

    /// A page of the log, the newest row first. It may be short, or even empty, and yet have more.
    pub async fn list(&self, access: &Access, filter: AuditFilter, request: PageRequest) -> Result<Page<AuditEvent>> {
        admit(access, &filter)?;
        let listing = Listing { name: "audit", owner: filter.project.map(ProjectId::to_bytes) };
        let window = request.window(self.store.pepper(), listing, AuditId::to_bytes)?;
        let access = access.clone();
        let found = self.store.read(move |tx| {
            filter.project.map_or(Ok(()), |project| authority::named_project(tx, &access, project).map(drop))?;
            stretch(tx, &filter, window.before, window.limit)
        });
        let Stretch { events, next } = found.await?;
        let next_cursor = next.map(|position| listing.cursor(self.store.pepper(), position));
        Ok(Page { items: events, has_more: next_cursor.is_some(), next_cursor })
    }

    /// Everything that matches, as text.
    pub async fn export(&self, access: &Access, filter: AuditFilter, format: Format) -> Result<Export> {
        admit(access, &filter)?;
        if let Some(project) = filter.project {
            let access = access.clone();
            self.store.read(move |tx| authority::named_project(tx, &access, project).map(drop)).await?;
        }
        Ok(Export::new(self.store.clone(), filter, format))
    }
}

fn admit(access: &Access, filter: &AuditFilter) -> Result<()> {
    filter.check()?;
    if filter.project.is_none() { access.require_admin() } else { Ok(()) }
}

/// A row about to be written. Made once per request: the transaction may run more than once.
#[derive(Clone)]
pub(super) struct Note {
    id: AuditId,
    at: Timestamp,
    actor: Option<KeyId>,
    action: &'static str,
}

impl Note {
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
