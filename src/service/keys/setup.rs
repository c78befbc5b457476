//! Creates the first project and key, and recovery keys for the owner of the data folder.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::secret::Secret;
use super::{Key, key_record};
use crate::clock_rng::{ClockRng, Timestamp};
use crate::error::{Code, Error, Result};
use crate::ids::{KeyId, ProjectId};
use crate::service::access::Scopes;
use crate::service::audit::AuditEntry;
use crate::service::limits::quotas::{self, QuotaKind};
use crate::service::projects::{NewProject, Project};
use crate::storage::keys::{self, KeyRecord};
use crate::storage::projects::{self, ProjectRecord};
use crate::storage::{Reader, Store, WriteTx};

/// The name of the project that the first start creates.
pub const FIRST_PROJECT: &str = "default";

/// An admin key that is not stored yet.
#[derive(Debug)]
pub struct AdminKey {
    id: KeyId,
    secret: Secret,
}

impl AdminKey {
    pub fn generate(clock_rng: &Arc<dyn ClockRng>) -> Self {
        let id = KeyId::generate(&**clock_rng);
        Self { id, secret: Secret::generate(id, &**clock_rng) }
    }

    pub fn secret(&self) -> &Secret {
        &self.secret
    }
}

/// The key of the first start; only this value contains its secret.
#[derive(Debug)]
pub struct FirstKey {
    pub project: Project,
    pub key: Key,
    pub secret: Secret,
}

/// Whether nothing has created a project or a key.
pub async fn is_first_start(store: &Store) -> Result<bool> {
    store.read(is_empty).await
}

fn is_empty(tx: &impl Reader) -> Result<bool> {
    Ok(projects::newest(tx, None, 1)?.is_empty() && !keys::any(tx, |_, _| Ok(true))?)
}

/// Creates the project `default` with an admin key in an empty store; `None` otherwise.
pub async fn first_start(store: &Store, clock_rng: &Arc<dyn ClockRng>) -> Result<Option<FirstKey>> {
    first_start_with(store, clock_rng, AdminKey::generate(clock_rng)).await
}

/// Like [`first_start`], with a key whose secret the caller has kept before.
pub async fn first_start_with(
    store: &Store,
    clock_rng: &Arc<dyn ClockRng>,
    AdminKey { id: key, secret }: AdminKey,
) -> Result<Option<FirstKey>> {
    let now = clock_rng.now();
    let project = ProjectId::generate(&**clock_rng);
    let project_record = NewProject { name: FIRST_PROJECT.into(), ..NewProject::default() }.record(now)?;
    let record = key_record(project, "admin".into(), Scopes::ALL, &secret, store.pepper(), now);
    let entries =
        [AuditEntry::new(clock_rng, None, "project.created"), AuditEntry::new(clock_rng, None, "api_key.created")];
    let written = store.write(move |tx| {
        if !is_empty(tx)? {
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
    Ok(Some(FirstKey { project: Project { id: project, record: project_record }, key: Key::new(key, record), secret }))
}

/// Creates another admin key in the oldest active project. For operators that lost the first one; access to the data
/// folder is the authorization, so it is not offered over the network.
pub async fn new_admin_key(store: &Store, clock_rng: &Arc<dyn ClockRng>) -> Result<FirstKey> {
    add_admin_key(store, clock_rng, "admin", None).await
}

/// Like [`new_admin_key`], for a key that expires after `lifetime`. The expired keys of this name are revoked, so that they
/// do not use up the project's quota.
pub(super) async fn expiring_admin_key(
    store: &Store,
    clock_rng: &Arc<dyn ClockRng>,
    name: &'static str,
    lifetime: Duration,
) -> Result<FirstKey> {
    add_admin_key(store, clock_rng, name, Some(lifetime)).await
}

async fn add_admin_key(
    store: &Store,
    clock_rng: &Arc<dyn ClockRng>,
    name: &'static str,
    lifetime: Option<Duration>,
) -> Result<FirstKey> {
    let now = clock_rng.now();
    let AdminKey { id: key, secret } = AdminKey::generate(clock_rng);
    let nowhere = ProjectId::from_bytes([0; 16]);
    let mut template = key_record(nowhere, name.to_owned(), Scopes::ALL, &secret, store.pepper(), now);
    template.fields.expires_at = lifetime.map(|lifetime| now.after(lifetime));
    let entry = AuditEntry::new(clock_rng, None, "api_key.created");
    let clock_rng = clock_rng.clone();
    let written = store.write(move |tx| {
        let newest = projects::newest(tx, None, usize::MAX)?;
        let is_active = |(_, record): &(ProjectId, ProjectRecord)| record.archived_at.is_none();
        let oldest = newest.into_iter().rev().find(is_active);
        let text = "No active project exists for the admin key. Start the server once to create one.";
        let (project, project_record) = oldest.ok_or_else(|| Error::new(Code::Conflict, text))?;
        let record = KeyRecord { project, ..template.clone() };
        keys::insert(tx, key, &record)?;
        quotas::charge_unchecked(tx, project, now, QuotaKind::ApiKey, 1, 0)?;
        entry.write(tx, project, key, &json!({ "name": name }))?;
        if lifetime.is_some() {
            revoke_expired(tx, &clock_rng, project, name, now)?;
        }
        Ok((project, project_record, record))
    });
    let (project, project_record, record) = written.await?;
    Ok(FirstKey { project: Project { id: project, record: project_record }, key: Key::new(key, record), secret })
}

/// Revokes the expired keys of a project with this name.
fn revoke_expired(
    tx: &WriteTx,
    clock_rng: &Arc<dyn ClockRng>,
    project: ProjectId,
    name: &str,
    now: Timestamp,
) -> Result<()> {
    for (id, mut record) in keys::newest(tx, project, None, usize::MAX)? {
        let has_expired = record.fields.expires_at.is_some_and(|expiry| expiry <= now);
        if record.name == name && has_expired && record.fields.revoked_at.is_none() {
            (record.fields.revoked_at, record.fields.updated_at) = (Some(now), now);
            keys::replace(tx, id, &record)?;
            quotas::charge_unchecked(tx, project, now, QuotaKind::ApiKey, -1, 0)?;
            AuditEntry::new(clock_rng, None, "api_key.revoked").write(tx, project, id, &json!({ "name": name }))?;
        }
    }
    Ok(())
}
