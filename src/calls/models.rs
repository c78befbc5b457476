//! The models that a key may see: the engine's registry seen through an [`Access`].

use std::time::Duration;

use crate::catalog::{Catalog, CatalogModel};
use crate::display::shorten;
use crate::engine::{Engine, InUse, Kind, LoadError, ModelInfo, Stopped};
use crate::error::{Code, Error, Result};
use crate::service::access::Access;

/// A model of the catalog.
#[derive(Clone, Debug)]
pub struct Offer {
    pub name: String,
    pub description: String,
    /// Size on the disk.
    pub bytes: u64,
    pub license: String,
    /// Whether a model of that name lies in the models folder.
    pub installed: bool,
}

/// Models as callers see them.
#[derive(Clone)]
pub struct Models {
    engine: Engine,
}

impl Models {
    pub fn new(engine: Engine) -> Self {
        Self { engine }
    }

    /// The models on the disk that `access` may use, by name.
    pub async fn list(&self, access: &Access) -> Result<Vec<ModelInfo>> {
        let mut models = self.on_disk().await?;
        models.retain(|model| access.lists(&model.id));
        models.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(models)
    }

    /// What the catalog has, in its order.
    pub async fn offers(&self) -> Result<Vec<Offer>> {
        let there = self.on_disk().await?;
        let offer = |model: &CatalogModel| Offer {
            name: model.name.clone(),
            description: model.description.clone(),
            bytes: model.bytes(),
            license: model.license.clone(),
            installed: there.iter().any(|found| found.id == model.name),
        };
        Ok(Catalog::builtin().models().iter().map(offer).collect())
    }

    async fn on_disk(&self) -> Result<Vec<ModelInfo>> {
        let engine = self.engine.clone();
        blocking(move || Ok(engine.models().list())).await
    }

    /// One model. 404 where none of that name lies on the disk, 403 where the key may not use it.
    pub async fn get(&self, access: &Access, id: &str) -> Result<ModelInfo> {
        let (engine, name) = (self.engine.clone(), id.to_owned());
        let found = blocking(move || Ok(engine.models().find(&name))).await?.ok_or_else(|| unknown(id))?;
        access.require_listed(id)?;
        Ok(found)
    }
}

impl Models {
    /// Reads a model into memory, for whoever operates the installation.
    pub async fn load(&self, access: &Access, id: &str) -> Result<ModelInfo> {
        access.require_admin()?;
        access.require_listed(id)?;
        let (engine, name) = (self.engine.clone(), id.to_owned());
        blocking(move || engine.models().preload(&name).map_err(|error| refuse_load(&name, &error))).await?;
        self.get(access, id).await
    }

    /// Gives a model's memory back. 409 while it answers somebody.
    pub async fn unload(&self, access: &Access, id: &str) -> Result<ModelInfo> {
        access.require_admin()?;
        let found = self.get(access, id).await?;
        let (engine, name) = (self.engine.clone(), id.to_owned());
        let gone = blocking(move || Ok(engine.models().unload(&name))).await?;
        gone.map_err(|InUse| {
            let text = format!("The model '{id}' is in use. Try again when its answers have ended.");
            Error::new(Code::Conflict, text).param("model_id")
        })?;
        Ok(ModelInfo { loaded: false, ..found })
    }

    /// The engine's figures, as OpenMetrics text.
    pub fn metrics(&self) -> String {
        self.engine.metrics()
    }

    /// Why `id` cannot do what this version of the server has no code for yet. `wanted` is the
    /// kind of model that could.
    pub async fn unserved(&self, access: &Access, id: &str, wanted: Kind, what: &str) -> Error {
        let found = match access.require_model(id) {
            Ok(()) => self.get(access, id).await,
            Err(error) => return error,
        };
        let message = match found {
            Err(error) => return error,
            Ok(model) if model.kind == wanted && wanted != Kind::Unknown => {
                format!("The model '{id}' could {what}, but this version of the server cannot run it yet.")
            }
            Ok(_) => format!("The model '{id}' cannot {what}."),
        };
        Error::invalid("model", message)
    }
}

fn unknown(id: &str) -> Error {
    let name = shorten(id);
    let message = format!(
        "No model '{name}' is installed. GET /v1/models lists those that are; 'outpost models pull' fetches more."
    );
    Error::new(Code::ModelNotFound, message).param("model")
}

/// When to try again what failed for want of memory: the answers of other models have ended, or an
/// operator has unloaded one.
pub(super) const MEMORY_FREED: Duration = Duration::from_secs(30);

/// What a caller is told about a model that could not be loaded.
pub(super) fn refuse_load(id: &str, error: &LoadError) -> Error {
    let no_memory = |remedy: &str| unavailable(format!("The model '{id}' cannot be used: {error}.{remedy}"));
    match error {
        LoadError::NotFound => unknown(id),
        LoadError::OtherKind { architecture, wanted, .. } => {
            let wanted = wanted.name();
            let message = format!("The model '{id}' is no {wanted} model: its architecture is {architecture}.");
            Error::invalid("model", message)
        }
        LoadError::Broken { reason, .. } => unusable(id, reason),
        LoadError::NoMemory { .. } => {
            no_memory(" Try again when their answers have ended, or give the server more with --memory.")
        }
        LoadError::TooLarge { .. } => no_memory(" Give the server more with --memory, or use a smaller model."),
    }
}

/// What a caller is told where a model's tokenizer or its chat template was stopped or fails.
pub(super) fn refuse_stopped(id: &str, stopped: &Stopped) -> Error {
    if let Stopped::Start(reason) = stopped {
        let message = format!(
            "The server cannot start the process that prepares requests to the model '{id}': {reason}. Try again later; the operator can free memory or processes."
        );
        return unavailable(message);
    }
    unusable(id, &format!("its tokenizer or its chat template fails on this request: {stopped}"))
}

/// What a caller is told about a model whose files are damaged, or not of a kind that can be computed.
pub(super) fn unusable(id: &str, reason: &str) -> Error {
    let reason = reason.trim_end_matches('.');
    let message = format!(
        "The model '{id}' cannot be used: {reason}. Its files are damaged or not supported; the operator can replace them."
    );
    unavailable(message)
}

fn unavailable(message: String) -> Error {
    Error::new(Code::ModelUnavailable, message).param("model").retry_after(MEMORY_FREED)
}

/// Runs CPU- or disk-bound work off the async threads.
pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|panic| Err(Error::internal(panic.to_string())))
}
