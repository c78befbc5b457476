//! Creates the first project and key, and recovery keys for the owner of the data folder.

use std::sync::Arc;

use serde_json::Value;

use super::access::Scopes;
use super::api_key_secret::Secret;
use super::audit::AuditEntry;
use super::keys::{Key, key_record};
use super::projects::{NewProject, Project};
use super::quotas::{self, QuotaKind};
use crate::clock_rng::ClockRng;
use crate::error::{Code, Error, Result};
use crate::ids::{KeyId, ProjectId};
use crate::storage::projects::{self, ProjectRecord};
use crate::storage::{Store, keys};

/// The key of the first start; only this value contains its secret.
#[derive(Debug)]
pub struct FirstKey {
    pub project: Project,
    pub key: Key,
    pub secret: Secret,
}

/// Creates the project `default` with an admin key in an empty store; `None` otherwise.
pub async fn first_start(store: &Store, clock_rng: &Arc<dyn ClockRng>) -> Result<Option<FirstKey>> {
    let now = clock_rng.now();
    let project = ProjectId::generate(&**clock_rng);
    let project_record = NewProject { name: "default".into(), ..NewProject::default() }.record(now)?;
    let (key, secret) = admin_secret(clock_rng);
    let record = key_record(project, "admin".into(), Scopes::ALL, &secret, store.pepper(), now);
    let entries =
        [AuditEntry::new(clock_rng, None, "project.created"), AuditEntry::new(clock_rng, None, "api_key.created")];
    let written = store.write(move |tx| {
        if !projects::newest(tx, None, 1)?.is_empty() || keys::any(tx, |_, _| Ok(true))? {
            return Ok(None);
        }
        projects::put(tx, project, &project_record)?;
        keys::insert(tx, key, &record)?;
        quotas::charge(tx, project, now, QuotaKind::ApiKey, 1, 0)?;
        entries[0].write(tx, project, project, &Value::Null)?;
        entries[1].write(tx, project, key, &Value::Null)?;
        Ok(Some((project_record.clone(), record.clone())))
    });
    let Some((project_record, record)) = written.await? else { return Ok(None) };
    Ok(Some(FirstKey { project: Project::new(project, project_record), key: Key::new(key, record), secret }))
}

/// Creates another admin key in the oldest active project. For operators that lost the first one; access to the data
/// folder is the authorization, so it is not offered over the network.
pub async fn new_admin_key(store: &Store, clock_rng: &Arc<dyn ClockRng>) -> Result<FirstKey> {
    let now = clock_rng.now();
    let (key, secret) = admin_secret(clock_rng);
    let template =
        key_record(ProjectId::generate(&**clock_rng), "admin".into(), Scopes::ALL, &secret, store.pepper(), now);
    let entry = AuditEntry::new(clock_rng, None, "api_key.created");
    let written = store.write(move |tx| {
        let newest = projects::newest(tx, None, usize::MAX)?;
        let is_active = |(_, record): &(ProjectId, ProjectRecord)| record.archived_at.is_none();
        let oldest = newest.into_iter().rev().find(is_active);
        let text = "No active project exists for the admin key. Start the server once to create one.";
        let (project, project_record) = oldest.ok_or_else(|| Error::new(Code::Conflict, text))?;
        let mut record = template.clone();
        record.project = project;
        keys::insert(tx, key, &record)?;
        quotas::charge_unchecked(tx, project, now, QuotaKind::ApiKey, 1, 0)?;
        entry.write(tx, project, key, &Value::Null)?;
        Ok((project, project_record, record))
    });
    let (project, project_record, record) = written.await?;
    Ok(FirstKey { project: Project::new(project, project_record), key: Key::new(key, record), secret })
}

fn admin_secret(clock_rng: &Arc<dyn ClockRng>) -> (KeyId, Secret) {
    let key = KeyId::generate(&**clock_rng);
    (key, Secret::generate(key, &**clock_rng))
}
