//! What a caller may do. Every 403 for a key is decided in this file. [`authorize`] applies these rules
//! to what a request names.

pub(super) mod authorize;

use std::sync::Arc;

use super::writes::idempotency::IdempotencyKey;
use crate::error::{Code, Error, Result};
use crate::ids::{KeyId, ProjectId};
pub use crate::storage::{Scope, Scopes};

/// Proof that a caller presented a valid key, with the key's permissions and the request's idempotency key.
#[derive(Clone, Debug)]
pub struct Access {
    key: KeyId,
    project: ProjectId,
    scopes: Scopes,
    models: Option<Arc<[String]>>,
    idempotency_key: Option<Arc<IdempotencyKey>>,
}

impl Access {
    pub(super) fn new(key: KeyId, project: ProjectId, scopes: Scopes, models: Option<Arc<[String]>>) -> Self {
        Self { key, project, scopes, models, idempotency_key: None }
    }

    /// An access without a stored key. Management writes refuse it, because they look the key up.
    #[doc(hidden)]
    pub fn for_tests(key: KeyId, project: ProjectId, scopes: Scopes, models: Option<Vec<String>>) -> Self {
        Self::new(key, project, scopes, models.map(Into::into))
    }

    /// The same access with an idempotency key.
    #[must_use]
    pub fn with_idempotency_key(self, key: IdempotencyKey) -> Self {
        Self { idempotency_key: Some(Arc::new(key)), ..self }
    }

    /// The request's idempotency key.
    pub fn idempotency_key(&self) -> Option<&Arc<IdempotencyKey>> {
        self.idempotency_key.as_ref()
    }

    pub fn key(&self) -> KeyId {
        self.key
    }

    pub fn project(&self) -> ProjectId {
        self.project
    }

    pub fn scopes(&self) -> Scopes {
        self.scopes
    }

    /// The models that the key may call; `None` means all.
    pub fn models(&self) -> Option<&[String]> {
        self.models.as_deref()
    }

    pub fn is_admin(&self) -> bool {
        self.scopes.contains(Scope::Admin)
    }

    /// Requires `scope` in `project`. An admin has every scope in every project.
    pub fn require(&self, project: ProjectId, scope: Scope) -> Result<()> {
        if self.is_admin() {
            return Ok(());
        }
        if project != self.project {
            let text = "This belongs to another project than your API key. Use a key of that project, or an admin key.";
            return Err(Error::new(Code::ProjectMismatch, text));
        }
        if self.scopes.contains(scope) { Ok(()) } else { Err(self.lacks(scope)) }
    }

    pub fn require_admin(&self) -> Result<()> {
        if self.is_admin() { Ok(()) } else { Err(self.lacks(Scope::Admin)) }
    }

    /// Requires that the key may call `model`. An allow-list applies to admins too.
    pub fn require_model(&self, model: &str) -> Result<()> {
        self.require(self.project, Scope::Inference)?;
        self.require_listed(model)
    }

    /// True if the key has no allow-list, or it names `model`.
    pub fn lists(&self, model: &str) -> bool {
        self.models().is_none_or(|allowed| allowed.iter().any(|name| name == model))
    }

    /// Requires that the allow-list names `model`; reading a model needs no other scope.
    pub fn require_listed(&self, model: &str) -> Result<()> {
        if self.lists(model) {
            return Ok(());
        }
        let allowed = self.models().unwrap_or_default().join(", ");
        let text = format!("Your API key may not call the model '{model}'. It may call: {allowed}.");
        Err(Error::new(Code::ModelNotAllowed, text).param("model"))
    }

    /// Requires that a new key would hold no more permissions than this one.
    pub(super) fn require_grantable(&self, scopes: Scopes, models: Option<&[String]>) -> Result<()> {
        if let Some(scope) = self.missing(scopes) {
            let text = format!(
                "You cannot grant the scope '{scope}': your API key has only {}. Leave it out, or use a key that has it.",
                self.scopes
            );
            return Err(Error::new(Code::InsufficientScope, text).param("scopes"));
        }
        if !self.covers_models(models) {
            let text = "You cannot allow models that your own API key may not call. Name only models of its own list.";
            return Err(Error::new(Code::InsufficientScope, text).param("models"));
        }
        Ok(())
    }

    /// Requires that a key holds no more permissions than this one; otherwise rotating it would be a privilege
    /// escalation.
    pub(super) fn require_power_over(&self, scopes: Scopes, models: Option<&[String]>) -> Result<()> {
        if self.missing(scopes).is_none() && self.covers_models(models) {
            return Ok(());
        }
        let text = "This API key has more permissions than yours, so yours cannot change it. Use a key with the same scopes and models, or an admin key.";
        Err(Error::new(Code::InsufficientScope, text))
    }

    fn missing(&self, scopes: Scopes) -> Option<Scope> {
        scopes.iter().find(|scope| !self.is_admin() && !self.scopes.contains(*scope))
    }

    /// True if this key may call all models that another key may call. `None` means all.
    pub fn covers_models(&self, models: Option<&[String]>) -> bool {
        match (self.models(), models) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(own), Some(requested)) => requested.iter().all(|model| own.contains(model)),
        }
    }

    fn lacks(&self, scope: Scope) -> Error {
        let text = format!("This needs an API key with the scope '{scope}'; yours has {}.", self.scopes);
        Error::new(Code::InsufficientScope, text)
    }
}
