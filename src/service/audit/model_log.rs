//! The audit events of derived models. The models themselves are files in the models folder.

use std::sync::Arc;

use serde_json::Value;

use super::AuditEntry;
use crate::clock_rng::ClockRng;
use crate::error::Result;
use crate::service::access::Access;
use crate::service::access::authorize;
use crate::storage::Store;

/// A change of a derived model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelChange {
    Created,
    Deleted,
}

/// Writes the audit events.
#[derive(Clone)]
pub struct ModelLog {
    store: Store,
    clock_rng: Arc<dyn ClockRng>,
}

impl ModelLog {
    pub fn new(store: Store, clock_rng: Arc<dyn ClockRng>) -> Self {
        Self { store, clock_rng }
    }

    /// Records that an admin changes a derived model. Called before the change, so that there is none without an event.
    pub async fn record(&self, access: &Access, change: ModelChange, name: String, detail: Value) -> Result<()> {
        let action = match change {
            ModelChange::Created => "derived_model.created",
            ModelChange::Deleted => "derived_model.deleted",
        };
        let entry = AuditEntry::new(&self.clock_rng, Some(access), action);
        let written =
            authorize::write(&self.store, access, self.clock_rng.now(), authorize::admin, move |tx, caller| {
                caller.require_admin()?;
                entry.write(tx, caller.project(), &name, &detail)
            });
        written.await
    }
}
