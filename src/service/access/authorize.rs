//! Management writes, and the authorization checks made inside their transaction.

use std::fmt::Display;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::clock_rng::Timestamp;
use crate::error::{Code, Error, Result};
use crate::ids::{KeyId, ProjectId};
use crate::storage::keys::{self, KeyFields, KeyRecord};
use crate::storage::project_resources::{self, ProjectResource};
use crate::storage::projects::{self, ProjectRecord};
use crate::storage::{Reader, Store, WriteTx};

use super::{Access, Scope, Scopes};
use crate::service::keys::secret;
use crate::service::writes::idempotency::IdempotencyKey;

/// Runs a management write: checks the caller's key inside the transaction, and runs `f` once for all requests with one
/// idempotency key. Equal requests get an equal result while the caller still has the permission that `permit` checks:
/// every scope and model that `f` requires. Both closures get the key's current access.
pub(in crate::service) async fn write<T, P, F>(
    store: &Store,
    access: &Access,
    now: Timestamp,
    permit: P,
    mut f: F,
) -> Result<T>
where
    T: Serialize + DeserializeOwned + Send + 'static,
    P: Fn(&WriteTx, &Access) -> Result<()> + Send + 'static,
    F: FnMut(&WriteTx, &Access) -> Result<T> + Send + 'static,
{
    let access = access.clone();
    let key: Option<Arc<IdempotencyKey>> = access.idempotency_key().cloned();
    let run = move |tx: &WriteTx| {
        let access = current_access(tx, &access, now)?;
        let Some(key) = &key else { return f(tx, &access) };
        if let Some(result) = key.replay(tx, now)? {
            return permit(tx, &access).map(|()| result);
        }
        let result = f(tx, &access)?;
        key.store_result(tx, now, &result)?;
        Ok(result)
    };
    store.write(run).await
}

/// The caller's current permissions; 401 if the key is no longer valid. A request may have been authenticated long
/// before its body arrived; a key revoked meanwhile must not create another key.
pub(in crate::service) fn current_access(tx: &WriteTx, access: &Access, now: Timestamp) -> Result<Access> {
    let key = keys::find(tx, access.key())?.ok_or_else(secret::invalid)?;
    let archived = projects::find(tx, key.project)?.is_none_or(|project| project.archived_at.is_some());
    check_usable(&key.fields, archived, now)?;
    Ok(Access::new(access.key(), key.project, key.fields.scopes, key.fields.models.map(Into::into)))
}

/// What the server may do in the background for a key: call its models for the project, even if it is revoked. `None` if
/// the project is archived.
pub(in crate::service) fn background_access(
    tx: &impl Reader,
    project: ProjectId,
    key: KeyId,
) -> Result<Option<Access>> {
    let (Some(found), true) = (keys::find(tx, key)?, is_active_project(tx, project)?) else { return Ok(None) };
    let scopes = Scopes::from_iter([Scope::Inference]);
    Ok(Some(Access::new(key, project, scopes, found.fields.models.map(Into::into))))
}

/// Whether a project exists and is not archived.
pub(in crate::service) fn is_active_project(tx: &impl Reader, id: ProjectId) -> Result<bool> {
    Ok(projects::find(tx, id)?.is_some_and(|project| project.archived_at.is_none()))
}

/// Requires that the caller may manage a project.
pub(in crate::service) fn manage_project(project: ProjectId) -> impl Fn(&WriteTx, &Access) -> Result<()> {
    move |_, caller| caller.require(project, Scope::Project)
}

/// Requires that the caller may manage the project of a resource, or its own project if the resource does not exist.
pub(in crate::service) fn manage_owner<R: ProjectResource>(id: [u8; 16]) -> impl Fn(&WriteTx, &Access) -> Result<()> {
    scope_of_owner::<R>(id, Scope::Project)
}

/// Like [`manage_owner`], for another scope.
pub(in crate::service) fn scope_of_owner<R: ProjectResource>(
    id: [u8; 16],
    scope: Scope,
) -> impl Fn(&WriteTx, &Access) -> Result<()> {
    move |tx, caller| {
        let project = project_resources::find::<R>(tx, id)?.map_or(caller.project(), |record| record.project());
        caller.require(project, scope)
    }
}

/// Requires that the caller may change a key.
pub(in crate::service) fn manage_key(id: KeyId) -> impl Fn(&WriteTx, &Access) -> Result<()> {
    move |tx, caller| key_to_change(tx, caller, id).map(drop)
}

/// Requires an admin key.
pub(in crate::service) fn admin(_: &WriteTx, caller: &Access) -> Result<()> {
    caller.require_admin()
}

/// 401 if the key is revoked or expired, or its project is archived.
pub(in crate::service) fn check_usable(key: &KeyFields, project_archived: bool, now: Timestamp) -> Result<()> {
    if let Some(time) = key.revoked_at {
        let text = format!("This API key was revoked at {time}. Use another key, or create a new one.");
        return Err(Error::new(Code::RevokedApiKey, text));
    }
    if project_archived {
        let text = "The project of this API key is archived, so its keys no longer work. Use a key of another project.";
        return Err(Error::new(Code::RevokedApiKey, text));
    }
    match key.expires_at {
        Some(time) if time <= now => {
            let text =
                format!("This API key expired at {time}. Use another key, or have 'expires_at' of this one extended.");
            Err(Error::new(Code::ExpiredApiKey, text))
        }
        _ => Ok(()),
    }
}

/// Finds a key that the caller may manage.
pub(in crate::service) fn key(tx: &impl Reader, access: &Access, id: KeyId) -> Result<KeyRecord> {
    let record = keys::find(tx, id)?.ok_or_else(|| Error::not_found("API key", id))?;
    access.require(record.project, Scope::Project)?;
    Ok(record)
}

/// Finds a key that the caller may change, which also requires all permissions of that key.
pub(in crate::service) fn key_to_change(tx: &WriteTx, access: &Access, id: KeyId) -> Result<KeyRecord> {
    let record = key(tx, access, id)?;
    access.require_power_over(record.fields.scopes, record.fields.models.as_deref())?;
    Ok(record)
}

/// Finds a project that the caller may manage.
pub(in crate::service) fn project(tx: &impl Reader, access: &Access, id: ProjectId) -> Result<ProjectRecord> {
    let record = projects::find(tx, id)?.ok_or_else(|| Error::not_found("project", id))?;
    access.require(id, Scope::Project)?;
    Ok(record)
}

/// Finds the project of the field `project_id`, which the caller must be allowed to manage.
pub(in crate::service) fn named_project(tx: &impl Reader, access: &Access, id: ProjectId) -> Result<ProjectRecord> {
    project(tx, access, id).map_err(|error| error.param("project_id"))
}

/// The project that a request names, else the project of the key.
pub(in crate::service) fn own_or_named_project(
    tx: &impl Reader,
    access: &Access,
    id: ProjectId,
    named: bool,
) -> Result<ProjectRecord> {
    if named { named_project(tx, access, id) } else { project(tx, access, id) }
}

/// The project that receives a new resource. It must not be archived.
pub(in crate::service) fn active_project(tx: &impl Reader, access: &Access, id: ProjectId, named: bool) -> Result<()> {
    let record = own_or_named_project(tx, access, id, named)?;
    require_active(&record).map_err(|error| if named { error.param("project_id") } else { error })
}

/// Finds a resource if the caller holds `scope` in its project. `what` is its kind.
pub(in crate::service) fn resource<R: ProjectResource>(
    tx: &impl Reader,
    access: &Access,
    scope: Scope,
    what: &str,
    (id, bytes): (impl Display, [u8; 16]),
) -> Result<R> {
    let record: R = project_resources::find(tx, bytes)?.ok_or_else(|| Error::not_found(what, id))?;
    access.require(record.project(), scope)?;
    Ok(record)
}

/// 409 if the project of a resource is archived.
pub(in crate::service) fn require_active_owner(tx: &impl Reader, id: ProjectId) -> Result<()> {
    projects::find(tx, id)?.as_ref().map_or(Ok(()), require_active)
}

/// 409 if the project is archived.
pub(in crate::service) fn require_active(project: &ProjectRecord) -> Result<()> {
    match project.archived_at {
        Some(time) => {
            let text = format!(
                "The project '{}' was archived at {time} and can no longer change. Use another project.",
                project.name
            );
            Err(Error::new(Code::Conflict, text))
        }
        None => Ok(()),
    }
}

/// Whether a usable admin key other than `id` exists.
pub(in crate::service) fn has_other_admin(tx: &WriteTx, id: KeyId, now: Timestamp) -> Result<bool> {
    keys::any(tx, |other, record| {
        if other == id || !record.fields.scopes.contains(Scope::Admin) {
            return Ok(false);
        }
        let archived = projects::find(tx, record.project)?.is_none_or(|project| project.archived_at.is_some());
        Ok(check_usable(&record.fields, archived, now).is_ok())
    })
}
