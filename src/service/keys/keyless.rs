//! The key that stands for requests without one, so that they are limited, metered and revoked like others. Its secret is
//! discarded.
//!
//! With a key of its own, authentication, the audit log and revocation need no special case. The key is found by its
//! name and scope, so a restart does not create another one unless it was revoked.

use std::sync::Arc;

use serde_json::Value;

use super::key_record;
use super::secret::Secret;
use super::setup;
use crate::clock_rng::{ClockRng, Timestamp};
use crate::display::shorten;
use crate::error::{Code, Error, Result};
use crate::ids::{KeyId, ProjectId};
use crate::service::access::authorize;
use crate::service::access::{Scope, Scopes};
use crate::service::audit::AuditEntry;
use crate::service::limits::quotas::{self, QuotaKind};
use crate::storage::keys::{self, KeyRecord};
use crate::storage::projects::{self, ProjectRecord};
use crate::storage::{Reader, Store};

/// The name of the key.
const NAME: &str = "requests without a key";

/// The key of requests without one, in the project with this name or ID. It is created if the project has no usable one. The
/// operator names the project, so no access is needed.
pub async fn key(store: &Store, clock_rng: &Arc<dyn ClockRng>, project: &str) -> Result<KeyId> {
    let now = clock_rng.now();
    let id = KeyId::generate(&**clock_rng);
    let secret = Secret::generate(id, &**clock_rng);
    let scopes: Scopes = [Scope::Inference].into_iter().collect();
    let nowhere = ProjectId::from_bytes([0; 16]);
    let template = key_record(nowhere, NAME.to_owned(), scopes, &secret, store.pepper(), now);
    let entry = AuditEntry::new(clock_rng, None, "api_key.created");
    let named = project.to_owned();
    let written = store.write(move |tx| {
        let project = find_project(tx, &named)?;
        if let Some(existing) = find_key(tx, project, scopes, now)? {
            return Ok(existing);
        }
        let record = KeyRecord { project, ..template.clone() };
        keys::insert(tx, id, &record)?;
        quotas::charge_unchecked(tx, project, now, QuotaKind::ApiKey, 1, 0)?;
        entry.write(tx, project, id, &Value::Null)?;
        Ok(id)
    });
    written.await
}

/// Checks that [`key`] will find the project, even if the first start has not created it yet. Changes nothing.
pub async fn require_project(store: &Store, project: &str) -> Result<()> {
    let named = project.to_owned();
    let read = store.read(move |tx| {
        let is_first_start = projects::newest(tx, None, 1)?.is_empty();
        match is_first_start && named == setup::FIRST_PROJECT {
            true => Ok(()),
            false => find_project(tx, &named).map(drop),
        }
    });
    read.await
}

/// The active project with this ID or name.
fn find_project(tx: &impl Reader, named: &str) -> Result<ProjectId> {
    let all = match named.parse() {
        Ok(id) => projects::find(tx, id)?.map(|record| (id, record)).into_iter().collect(),
        Err(_) => projects::newest(tx, None, usize::MAX)?,
    };
    let is_named = |(id, record): &(ProjectId, ProjectRecord)| record.name == named || id.to_string() == named;
    let (active, archived): (Vec<_>, Vec<_>) =
        all.into_iter().filter(is_named).partition(|(_, record)| record.archived_at.is_none());
    let name = shorten(named);
    let text = match (active.as_slice(), archived.is_empty()) {
        ([(id, _)], _) => return Ok(*id),
        ([], true) => format!(
            "there is no project '{name}'; give the name or ID of an existing one (the first start creates the project '{}')",
            setup::FIRST_PROJECT
        ),
        ([], false) => format!("the project '{name}' is archived; give the name or ID of another one"),
        ([_, ..], _) => format!("{} projects are named '{name}'; give the ID of one", active.len()),
    };
    Err(Error::new(Code::NotFound, text))
}

/// A usable key of the project that was made for this.
fn find_key(tx: &impl Reader, project: ProjectId, scopes: Scopes, now: Timestamp) -> Result<Option<KeyId>> {
    let is_usable = |record: &KeyRecord| {
        record.name == NAME
            && record.fields.scopes == scopes
            && authorize::check_usable(&record.fields, false, now).is_ok()
    };
    let found = keys::newest(tx, project, None, usize::MAX)?;
    Ok(found.into_iter().find(|(_, record)| is_usable(record)).map(|(id, _)| id))
}
