//! The name that a request has for its model.

use crate::engine::Engine;
use crate::error::Result;
use crate::service::access::Access;

/// Replaces an alias by the ID of its model, and checks the key's permission to call that model.
pub(super) fn authorize_name(engine: &Engine, access: &Access, name: &mut String) -> Result<()> {
    engine.models().resolve_alias(name);
    access.require_model(name)
}
