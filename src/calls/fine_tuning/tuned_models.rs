//! The models that jobs have trained, for requests of their project.
//!
//! A model is made known to the engine with its first request. Registering all of them at the start would read every
//! adapter from the database; the name alone says whether to look for one.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::registered_models::RegisteredModels;
use crate::calls::blocking::run_blocking;
use crate::engine::{AdapterFiles, AdapterRegistration, AdapterSource, Engine, LoadError, ModelInfo};
use crate::error::{Error, Result};
use crate::service::access::Access;
use crate::service::fine_tuning::{Jobs, ModelObservation, StoredAdapter, TUNED_PREFIX, TunedModel};

/// Makes tuned models known to the engine when they are needed, and lets it forget those that were deleted on any node.
#[derive(Clone)]
pub struct TunedModels {
    engine: Engine,
    jobs: Jobs,
    registered: Arc<RegisteredModels>,
    /// Tasks that keep `registered` equal to the store.
    _tasks: Arc<(ModelObservation, JoinSet<()>)>,
}

impl AdapterSource for StoredAdapter {
    fn read(&self) -> std::result::Result<AdapterFiles, String> {
        let (config, weights) = StoredAdapter::read(self).map_err(|error| error.to_string())?;
        Ok(AdapterFiles { config: config.into_bytes(), weights: weights.into() })
    }
}

impl TunedModels {
    /// Called in a Tokio runtime.
    pub fn new(engine: Engine, jobs: Jobs) -> Self {
        let registered = Arc::new(RegisteredModels::new(engine.clone()));
        let observation = jobs.observe_models(registered.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(registered.clone().remove_deleted(jobs.clone()));
        Self { engine, jobs, registered, _tasks: Arc::new((observation, tasks)) }
    }

    /// Makes the engine know the model, if it is a tuned model of the key's project.
    pub async fn register(&self, access: &Access, name: &str) -> Result<()> {
        if !name.starts_with(TUNED_PREFIX) {
            return Ok(());
        }
        let is_registered = self.engine.models().is_registered(name);
        if is_registered && self.registered.is_confirmed(name) && self.jobs.models_are_current() {
            return Ok(());
        }
        let changes = self.registered.changes();
        match self.jobs.tuned_model(access, name).await? {
            Some(model) => {
                if !is_registered {
                    self.add(model).await?;
                }
                self.registered.confirm(name, changes);
            }
            // It was deleted, or is one of another project, which registers it again when it needs it.
            None => self.registered.remove(name),
        }
        Ok(())
    }

    /// Replaces an alias by the ID of its model, unless that is a tuned model that the key may not use. Errors then name the
    /// alias, because the ID names another project.
    pub async fn resolve_alias(&self, access: &Access, name: &mut String) -> Result<()> {
        let Some(target) = self.engine.models().alias_target(name) else { return Ok(()) };
        let is_tuned = target.starts_with(TUNED_PREFIX);
        if !is_tuned || access.lists(&target) && self.jobs.tuned_model(access, &target).await?.is_some() {
            *name = target;
        }
        Ok(())
    }

    async fn add(&self, model: TunedModel) -> Result<()> {
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
        names.iter().for_each(|name| self.registered.remove(name));
        Ok(())
    }
}

/// Describes a model by its base.
fn describe(engine: &Engine, model: TunedModel) -> ModelInfo {
    engine.models().describe_adapter(&model.name, &model.base, model.bytes, model.created_at)
}
