//! The audit log: who changed what, when and why. Rows are written in the transaction of the
//! change itself, so there is never one without the other.

use std::sync::Arc;

use super::access::Access;
use super::authority;
use super::page::{Listing, Page, PageRequest, page};
use crate::ambient::{Ambient, Timestamp};
use crate::error::Result;
use crate::ids::{AuditId, KeyId, ProjectId};
use crate::storage::audit::{self, AuditRecord, AuditRow};
use crate::storage::{Store, WriteTx};

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

/// Which rows of the log are wanted.
#[derive(Clone, Copy, Debug, Default)]
pub struct AuditFilter {
    /// None means every project, for admins only.
    pub project: Option<ProjectId>,
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

    /// A page of the log, the newest row first.
    pub async fn list(&self, access: &Access, filter: AuditFilter, request: PageRequest) -> Result<Page<AuditEvent>> {
        if filter.project.is_none() {
            access.require_admin()?;
        }
        let listing = Listing { name: "audit", project: filter.project };
        let window = request.window(self.store.pepper(), listing, AuditId::to_bytes)?;
        let access = access.clone();
        let rows = self.store.read(move |tx| match filter.project {
            Some(project) => {
                authority::named_project(tx, &access, project)?;
                audit::newest(tx, project, window.before, window.rows())
            }
            None => audit::newest_of_all(tx, window.before, window.rows()),
        });
        let events = rows.await?.into_iter().map(AuditEvent::from).collect();
        Ok(page(self.store.pepper(), listing, window, events, |event: &AuditEvent| event.id.to_bytes()))
    }
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
    pub fn new(ambient: &Arc<dyn Ambient>, actor: Option<&Access>, action: &'static str) -> Self {
        Self { id: AuditId::generate(&**ambient), at: ambient.now(), actor: actor.map(Access::key), action }
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
