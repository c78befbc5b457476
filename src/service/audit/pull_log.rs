//! The audit events of pulls of models. The pulls themselves are not stored.

use std::sync::Arc;

use serde_json::{Value, json};

use super::AuditEntry;
use crate::clock_rng::ClockRng;
use crate::error::Result;
use crate::ids::{ProjectId, PullId};
use crate::service::access::Access;
use crate::service::access::authorize;
use crate::service::writes::persistent_write;
use crate::storage::Store;

/// How a pull has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullEnd {
    Succeeded,
    Failed,
    Cancelled,
}

impl PullEnd {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }

    fn action(self) -> &'static str {
        match self {
            Self::Succeeded => "model_pull.succeeded",
            Self::Failed => "model_pull.failed",
            Self::Cancelled => "model_pull.cancelled",
        }
    }
}

/// Writes the audit events of pulls.
#[derive(Clone)]
pub struct PullLog {
    store: Store,
    clock_rng: Arc<dyn ClockRng>,
}

impl PullLog {
    pub fn new(store: Store, clock_rng: Arc<dyn ClockRng>) -> Self {
        Self { store, clock_rng }
    }

    /// Records that an admin has requested the pull `id`. Returns the ID of an earlier pull instead if the request repeats its
    /// idempotency key.
    pub async fn requested(&self, access: &Access, id: PullId, model: String) -> Result<PullId> {
        access.require_admin()?;
        let entry = AuditEntry::new(&self.clock_rng, Some(access), "model_pull.requested");
        let written =
            authorize::write(&self.store, access, self.clock_rng.now(), authorize::admin, move |tx, caller| {
                caller.require_admin()?;
                entry.write(tx, caller.project(), id, &json!({ "model": model }))?;
                Ok(id)
            });
        written.await
    }

    /// Records how a pull has ended. `actor`: the key that ended it, or for which it was carried out; `None`: the server has
    /// stopped.
    pub async fn ended(
        &self,
        (id, project): (PullId, ProjectId),
        actor: Option<&Access>,
        end: PullEnd,
        detail: Value,
    ) -> Result<()> {
        let entry = AuditEntry::new(&self.clock_rng, actor, end.action());
        let what = format!("the end of the pull {id}");
        persistent_write::write(&self.store, what, move |tx, _| entry.write(tx, project, id, &detail)).await
    }
}
