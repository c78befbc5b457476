//! The name that a request has for its model.
//!
//! An alias is replaced by the ID of its model, except for a tuned model that the request cannot use: errors then name the
//! alias, because the ID names another project. [`TunedModels::resolve_alias`](super::fine_tuning::TunedModels::resolve_alias)
//! is for requests that may use tuned models.

use crate::engine::Engine;
use crate::error::Result;
use crate::service::access::Access;
use crate::service::fine_tuning::TUNED_PREFIX;

/// Replaces an alias by the ID of its model, unless that is a tuned model. Those only generate text.
pub(super) fn resolve_alias(engine: &Engine, name: &mut String) {
    if let Some(target) = engine.models().alias_target(name).filter(|target| !target.starts_with(TUNED_PREFIX)) {
        *name = target;
    }
}

/// Resolves an alias, and checks the key's permission to call its model.
pub(super) fn authorize_name(engine: &Engine, access: &Access, name: &mut String) -> Result<()> {
    resolve_alias(engine, name);
    access.require_model(name)
}
