//! Projects: the owners of keys, limits and everything else.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::access::authorize;
use super::access::{Access, Scope};
use super::audit::AuditEntry;
use super::pagination::{Listing, Page, PageRequest, page};
use super::validation;
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::{Code, Error, Result};
use crate::ids::ProjectId;
use crate::storage::Store;
use crate::storage::projects;
pub use crate::storage::projects::ProjectRecord;

/// A project.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Project {
    pub id: ProjectId,
    #[serde(flatten)]
    pub record: ProjectRecord,
}

/// The fields of a new project.
#[derive(Clone, Debug, Default)]
pub struct NewProject {
    pub name: String,
    pub environment: Option<String>,
    /// A JSON object, as text, of at most 16 KiB.
    pub metadata: Option<String>,
}

impl NewProject {
    pub(super) fn record(self, now: Timestamp) -> Result<ProjectRecord> {
        validation::name(&self.name)?;
        validation::environment(self.environment.as_deref())?;
        validation::metadata(self.metadata.as_deref())?;
        let Self { name, environment, metadata } = self;
        Ok(ProjectRecord { name, environment, metadata, created_at: now, updated_at: now, archived_at: None })
    }
}

/// The projects service.
#[derive(Clone)]
pub struct Projects {
    store: Store,
    clock_rng: Arc<dyn ClockRng>,
}

impl Projects {
    pub fn new(store: Store, clock_rng: Arc<dyn ClockRng>) -> Self {
        Self { store, clock_rng }
    }

    /// Creates a project; admins only.
    pub async fn create(&self, access: &Access, new: NewProject) -> Result<Project> {
        access.require_admin()?;
        let record = new.record(self.clock_rng.now())?;
        let id = ProjectId::generate(&*self.clock_rng);
        let entry = self.audit_entry(access, "project.created");
        let written = authorize::write(&self.store, access, record.created_at, authorize::admin, move |tx, _| {
            projects::put(tx, id, &record)?;
            entry.write(tx, id, id, &json!({ "name": record.name }))?;
            Ok(Project { id, record: record.clone() })
        });
        written.await
    }

    /// Replaces name and environment. An absent environment is cleared.
    pub async fn replace(
        &self,
        access: &Access,
        id: ProjectId,
        name: String,
        environment: Option<String>,
    ) -> Result<Project> {
        validation::name(&name)?;
        validation::environment(environment.as_deref())?;
        let now = self.clock_rng.now();
        let entry = self.audit_entry(access, "project.updated");
        let permit = authorize::manage_project(id);
        let written = authorize::write(&self.store, access, now, permit, move |tx, caller| {
            let mut record = authorize::project(tx, caller, id)?;
            authorize::require_active(&record)?;
            let detail = json!({
                "old": { "name": record.name, "environment": record.environment },
                "new": { "name": name, "environment": environment },
            });
            record.name.clone_from(&name);
            record.environment.clone_from(&environment);
            record.updated_at = now;
            projects::put(tx, id, &record)?;
            entry.write(tx, id, id, &detail)?;
            Ok(Project { id, record })
        });
        written.await
    }

    pub async fn get(&self, access: &Access, id: ProjectId) -> Result<Project> {
        let access = access.clone();
        let record = self.store.read(move |tx| authorize::project(tx, &access, id)).await?;
        Ok(Project { id, record })
    }

    /// A page of all projects for an admin, else of the key's own project.
    pub async fn list(&self, access: &Access, request: PageRequest) -> Result<Page<Project>> {
        let project = (!access.is_admin()).then(|| access.project());
        access.require(access.project(), Scope::Project)?;
        let listing = Listing { name: "projects", owner: project.map(ProjectId::to_bytes) };
        let window = request.window(self.store.pepper(), listing, ProjectId::to_bytes)?;
        let rows = self.store.read(move |tx| match project {
            None => projects::newest(tx, window.before, window.rows()),
            Some(own) if window.before.is_none_or(|before| own.to_bytes() < before) => {
                Ok(projects::find(tx, own)?.map(|record| (own, record)).into_iter().collect())
            }
            Some(_) => Ok(Vec::new()),
        });
        let items = rows.await?.into_iter().map(|(id, record)| Project { id, record }).collect();
        Ok(page(self.store.pepper(), listing, window, items, |project: &Project| project.id.to_bytes()))
    }

    /// Archives a project: its keys stop working at once. Idempotent.
    pub async fn archive(&self, access: &Access, id: ProjectId) -> Result<Project> {
        access.require_admin()?;
        let now = self.clock_rng.now();
        let entry = self.audit_entry(access, "project.archived");
        let written = authorize::write(&self.store, access, now, authorize::admin, move |tx, caller| {
            let mut record = authorize::project(tx, caller, id)?;
            if id == caller.project() {
                let text = "You cannot archive the project of the API key that you are using. Use an admin key of another project.";
                return Err(Error::new(Code::Conflict, text));
            }
            if record.archived_at.is_some() {
                return Ok(Project { id, record });
            }
            record.archived_at = Some(now);
            record.updated_at = now;
            projects::put(tx, id, &record)?;
            entry.write(tx, id, id, &json!({ "name": record.name }))?;
            Ok(Project { id, record })
        });
        written.await
    }

    /// True if there is such a project and it is not archived.
    pub async fn is_active(&self, id: ProjectId) -> Result<bool> {
        self.store.read(move |tx| authorize::is_active_project(tx, id)).await
    }

    fn audit_entry(&self, access: &Access, action: &'static str) -> AuditEntry {
        AuditEntry::new(&self.clock_rng, Some(access), action)
    }
}
