//! The models that jobs have trained, for requests of their project.

use std::sync::Arc;

use crate::calls::blocking::run_blocking;
use crate::engine::{AdapterFiles, AdapterRegistration, AdapterSource, Engine, LoadError, ModelInfo};
use crate::error::{Error, Result};
use crate::service::access::Access;
use crate::service::fine_tuning::{Jobs, StoredAdapter, TUNED_PREFIX, TunedModel};

/// Makes tuned models known to the engine when they are needed.
#[derive(Clone)]
pub struct TunedModels {
    engine: Engine,
    jobs: Jobs,
}

impl AdapterSource for StoredAdapter {
    fn read(&self) -> std::result::Result<AdapterFiles, String> {
        let (config, weights) = StoredAdapter::read(self).map_err(|error| error.to_string())?;
        Ok(AdapterFiles { config: config.into_bytes(), weights: weights.into() })
    }
}

impl TunedModels {
    pub fn new(engine: Engine, jobs: Jobs) -> Self {
        Self { engine, jobs }
    }

    /// Makes the engine know the model, if it is a tuned model of the key's project.
    pub async fn register(&self, access: &Access, name: &str) -> Result<()> {
        if !name.starts_with(TUNED_PREFIX) || self.engine.models().is_registered(name) {
            return Ok(());
        }
        let Some(model) = self.jobs.tuned_model(access, name).await? else { return Ok(()) };
        let registration = AdapterRegistration {
            id: model.name.clone(),
            base: model.base.clone(),
            owner: model.project.to_u128(),
            source: Arc::new(self.jobs.adapter(&model)),
        };
        let engine = self.engine.clone();
        let registered = move || {
            engine
                .models()
                .register_adapter(registration)
                .map_err(|error: LoadError| Error::internal(error.to_string()))
        };
        run_blocking(registered).await
    }

    /// The tuned models that the key may use, newest first.
    pub async fn list(&self, access: &Access) -> Result<Vec<ModelInfo>> {
        let models = self.jobs.tuned_models(access).await?;
        let engine = self.engine.clone();
        let describe = move || Ok(models.into_iter().map(|model| describe(&engine, model)).collect::<Vec<_>>());
        let mut models = run_blocking(describe).await?;
        models.retain(|model| access.lists(&model.id));
        Ok(models)
    }

    /// A tuned model of the key's project.
    pub async fn get(&self, access: &Access, name: &str) -> Result<Option<ModelInfo>> {
        if !name.starts_with(TUNED_PREFIX) {
            return Ok(None);
        }
        let Some(model) = self.jobs.tuned_model(access, name).await? else { return Ok(None) };
        let engine = self.engine.clone();
        run_blocking(move || Ok(Some(describe(&engine, model)))).await
    }

    /// Deletes a tuned model, with the other names of the same checkpoint.
    pub async fn delete(&self, access: &Access, name: &str) -> Result<()> {
        let names = self.jobs.delete_model(access, name).await?;
        names.iter().for_each(|name| self.engine.models().remove_adapter(name));
        Ok(())
    }
}

/// Describes a model by its base.
fn describe(engine: &Engine, model: TunedModel) -> ModelInfo {
    engine.models().describe_adapter(&model.name, &model.base, model.bytes, model.created_at)
}
