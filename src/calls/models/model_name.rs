//! The name that a request has for its model.
//!
//! An alias is replaced by the ID of its model, except for a tuned model that the request cannot use: errors then name the
//! alias, because the ID names another project. [`TunedModels::resolve_alias`](crate::calls::fine_tuning::TunedModels::resolve_alias)
//! is for requests that may use tuned models.
//!
//! An alias is replaced before anything else is decided. Permissions, limits, metering and the response then know only
//! IDs, so an alias can neither grant access nor split the usage of a model. OpenAI does the same with its own aliases;
//! Ollama's API repeats the name of the request, as Ollama does. A model always takes precedence over an alias, which
//! must not hide a model that is installed later.

use crate::calls::blocking::run_blocking;
use crate::engine::{Engine, ModelInfo};
use crate::error::{Error, Result};
use crate::service::access::Access;
use crate::service::fine_tuning::TUNED_PREFIX;

/// Replaces an alias by the ID of its model, unless that is a tuned model. Those only generate text.
pub(in crate::calls) fn resolve_alias(engine: &Engine, name: &mut String) {
    if let Some(target) = engine.models().alias_target(name).filter(|target| !target.starts_with(TUNED_PREFIX)) {
        *name = target;
    }
}

/// Resolves an alias, and checks the key's permission to call its model.
pub(in crate::calls) fn authorize_name(engine: &Engine, access: &Access, name: &mut String) -> Result<()> {
    resolve_alias(engine, name);
    access.require_model(name)
}

/// Names that an error lists.
const MAX_NAMES: usize = 5;

/// The model that a request names. Clients of servers that have one model name none: then it is the only one that the key may
/// call and that `is_meant`. Adapters are never meant.
pub(in crate::calls) async fn or_only(
    engine: &Engine,
    access: &Access,
    named: Option<String>,
    is_meant: fn(&ModelInfo) -> bool,
) -> Result<String> {
    if let Some(name) = named.filter(|name| !name.is_empty()) {
        return Ok(name);
    }
    let engine = engine.clone();
    let mut models = run_blocking(move || Ok(engine.models().list())).await?;
    models
        .retain(|model| model.base.is_none() && model.problem.is_none() && access.lists(&model.id) && is_meant(model));
    match models.as_slice() {
        [only] => Ok(only.id.clone()),
        several => {
            let names: Vec<&str> = several.iter().take(MAX_NAMES).map(|model| model.id.as_str()).collect();
            let hint = match names.as_slice() {
                [] => "GET /v1/models lists the installed models.".to_owned(),
                names => format!("Name one of the models: {}.", names.join(", ")),
            };
            Err(Error::invalid("model", format!("'model' is missing, and no single model can be meant. {hint}")))
        }
    }
}
