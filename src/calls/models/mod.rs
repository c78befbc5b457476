//! The models API: the engine's registry, filtered by an [`Access`].

pub mod derived;
pub(super) mod model_name;

use std::sync::Arc;

use crate::calls::blocking::run_blocking;
use crate::calls::errors::ModelErrors;
use crate::calls::fine_tuning::TunedModels;
use crate::catalog::{Catalog, CatalogModel, pull_command};
use crate::engine::{DerivedModel, Engine, GenerationDefaults, InUse, ModelInfo, ModelKind};
use crate::error::{Code, Error, Result};
use crate::service::access::{Access, Scope};
use crate::service::audit::model_log::ModelLog;
use crate::upstream::UpstreamClient;

/// A model of the catalog.
#[derive(Clone, Debug)]
pub struct CatalogEntry {
    pub name: String,
    pub description: String,
    /// Size on disk.
    pub bytes: u64,
    pub license: String,
    /// Set if a model of that name is in the models folder.
    pub installed: bool,
    /// The command that installs the model. For admins, it includes `--models` with the models folder.
    pub command: String,
}

/// The models API.
#[derive(Clone)]
pub struct Models {
    pub(super) engine: Engine,
    tuned: TunedModels,
    upstream: UpstreamClient,
    pub(super) log: ModelLog,
}

impl Models {
    pub fn new(engine: Engine, tuned: TunedModels, upstream: UpstreamClient, log: ModelLog) -> Self {
        Self { engine, tuned, upstream, log }
    }

    /// False from a panic on the compute thread until the engine has recovered.
    pub fn is_healthy(&self) -> bool {
        self.engine.is_healthy()
    }

    /// The name of a device that no longer works.
    pub fn lost_device(&self) -> Option<&str> {
        self.engine.lost_device()
    }

    /// The models that `access` may use: the installed ones and aliases, sorted by name, and those that its project has
    /// trained.
    pub async fn list(&self, access: &Access) -> Result<Vec<ModelInfo>> {
        let mut models = self.on_disk().await?;
        models.retain(|model| access.lists(&model.id));
        let tuned = self.tuned.list(access).await?;
        let named = |(alias, target): (String, String)| {
            let model = models.iter().chain(&tuned).find(|model| model.id == target)?;
            Some(as_alias(alias, model.clone()))
        };
        let aliases: Vec<ModelInfo> = self.engine.models().aliases().into_iter().filter_map(named).collect();
        models.extend(aliases);
        models.sort_by(|a, b| a.id.cmp(&b.id));
        models.extend(tuned);
        Ok(models)
    }

    /// The catalog's models, in its order.
    pub async fn catalog_entries(&self, access: &Access) -> Result<Vec<CatalogEntry>> {
        let on_disk = self.on_disk().await?;
        let folder = access.is_admin().then(|| self.engine.models().folder());
        let entry = |model: &CatalogModel| CatalogEntry {
            name: model.name.clone(),
            description: model.description.clone(),
            bytes: model.bytes(),
            license: model.license.clone(),
            installed: on_disk.iter().any(|found| found.id == model.name),
            command: pull_command(&model.name, folder.as_deref()),
        };
        Ok(Catalog::builtin().models().iter().map(entry).collect())
    }

    async fn on_disk(&self) -> Result<Vec<ModelInfo>> {
        let models = self.clone();
        run_blocking(move || Ok(models.on_disk_blocking())).await
    }

    /// How many installed models can be used. Blocks while the models folder is read.
    pub fn count_usable_blocking(&self) -> usize {
        self.on_disk_blocking().iter().filter(|model| model.problem.is_none()).count()
    }

    fn on_disk_blocking(&self) -> Vec<ModelInfo> {
        self.engine.models().list()
    }

    /// One model; its ID is `name` even if that is an alias. 404 if it is not installed, 403 if the key may not use it.
    pub async fn describe(&self, access: &Access, name: &str) -> Result<ModelInfo> {
        let model = self.get(access, name).await?;
        Ok(if model.id == name { model } else { as_alias(name.to_owned(), model) })
    }

    /// Max choices that each device generates at once, across all models.
    pub fn slots(&self) -> usize {
        self.engine.slots()
    }

    /// The parameters for requests to the model that do not set them.
    pub fn generation_defaults(&self, name: &str) -> Arc<GenerationDefaults> {
        self.engine.models().generation_defaults(name)
    }

    /// The ID of the model with this name.
    pub async fn resolve(&self, access: &Access, name: &str) -> Result<String> {
        let mut id = name.to_owned();
        self.tuned.resolve_alias(access, &mut id).await?;
        Ok(id)
    }

    /// One model, by its ID or an alias. 404 if it is not installed, 403 if the key may not use it.
    pub async fn get(&self, access: &Access, name: &str) -> Result<ModelInfo> {
        let id = &*self.resolve(access, name).await?;
        if let Some(model) = self.tuned.get(access, id).await? {
            access.require_listed(id)?;
            return Ok(model);
        }
        let (engine, allowed, name) = (self.engine.clone(), access.clone(), id.to_owned());
        let find = move || {
            let errors = ModelErrors { engine: &engine, access: &allowed };
            engine.models().find(&name).ok_or_else(|| errors.not_found(&name))
        };
        let found = run_blocking(find).await?;
        access.require_listed(id)?;
        Ok(found)
    }
}

impl Models {
    /// The chat template of a chat model, as text.
    pub async fn chat_template(&self, model: &ModelInfo) -> Result<Option<String>> {
        if model.kind != ModelKind::Text {
            return Ok(None);
        }
        let (engine, id) = (self.engine.clone(), model.base.as_ref().unwrap_or(&model.id).clone());
        run_blocking(move || Ok(engine.models().chat_template(&id))).await
    }

    /// Deletes a model that the project has trained, or a derived model, which needs the scope `admin`.
    pub async fn delete(&self, access: &Access, id: &str) -> Result<()> {
        if self.derived(id).is_some() {
            return self.delete_derived(access, id).await;
        }
        access.require(access.project(), Scope::Project)?;
        if self.tuned.get(access, id).await?.is_some() {
            access.require_listed(id)?;
            return self.tuned.delete(access, id).await;
        }
        let model = self.describe(access, id).await?;
        let text = match model.alias_of {
            Some(target) => {
                format!("'{id}' is an alias of the model '{target}'. The operator removes it from models.toml.")
            }
            None => format!(
                "The model '{id}' is in the models folder. Only models that were trained or derived here can be deleted; the operator removes this one from the folder."
            ),
        };
        Err(Error::new(Code::Conflict, text).param("model_id"))
    }

    /// Loads a model into memory. Needs the scope `admin`.
    pub async fn load(&self, access: &Access, name: &str) -> Result<ModelInfo> {
        access.require_admin()?;
        let id = &*self.resolve(access, name).await?;
        access.require_listed(id)?;
        self.tuned.register(access, id).await?;
        let tenant = access.project().to_u128();
        let (engine, allowed, name) = (self.engine.clone(), access.clone(), id.to_owned());
        let load = move || {
            let errors = ModelErrors { engine: &engine, access: &allowed };
            engine.models().preload(&name, tenant).map_err(|error| errors.load_failed(&name, &error))
        };
        run_blocking(load).await?;
        self.get(access, id).await
    }

    /// Unloads a model. 409 while it is in use, and if it is pinned.
    pub async fn unload(&self, access: &Access, id: &str) -> Result<ModelInfo> {
        access.require_admin()?;
        let found = self.get(access, id).await?;
        let id = &*found.id;
        if let Some(pinned) = self.engine.models().unload_blocker(id) {
            let text = format!(
                "The model '{pinned}' is pinned, so it stays loaded. The operator can set pinned = false in models.toml."
            );
            return Err(Error::new(Code::Conflict, text).param("model_id"));
        }
        let (engine, name) = (self.engine.clone(), id.to_owned());
        let unloaded = run_blocking(move || Ok(engine.models().unload(&name))).await?;
        unloaded.map_err(|InUse| {
            let text = format!("The model '{id}' is in use. Try again when its answers have ended.");
            Error::new(Code::Conflict, text).param("model_id")
        })?;
        Ok(ModelInfo { loaded: false, unloads_at: None, ..found })
    }

    /// Unloads a model because a client says that it needs it no longer. For keys without the scope `admin`, it is only unloaded
    /// while nothing uses it, and if its settings let every client do so. Returns whether it was unloaded.
    pub async fn release(&self, access: &Access, id: &str) -> Result<bool> {
        if access.is_admin() {
            return self.unload(access, id).await.map(|_| true);
        }
        let id = self.get(access, id).await?.id;
        access.require_model(&id)?;
        let models = self.engine.models();
        if !models.model_settings().unloads_on_request(&id) || models.unload_blocker(&id).is_some() {
            return Ok(false);
        }
        let engine = self.engine.clone();
        run_blocking(move || Ok(engine.models().unload(&id).is_ok())).await
    }

    /// The metrics of the engine and of upstream models as OpenMetrics text.
    pub fn metrics(&self) -> String {
        let engine = self.engine.metrics();
        // The end of the text is marked once.
        format!("{}{}", engine.trim_end_matches("# EOF\n"), self.upstream.metrics())
    }
}

/// Derived models.
impl Models {
    /// The settings of the derived model that requests name so.
    pub fn derived(&self, name: &str) -> Option<DerivedModel> {
        let models = self.engine.models();
        let name = models.derived_name(name)?;
        let settings = models.model_settings();
        let (_, found) = settings.derived(&name)?;
        Some(DerivedModel {
            from: found.from.clone()?,
            system: found.system.as_deref().map(str::to_owned),
            license: found.license.as_deref().map(str::to_owned),
            defaults: (*found.defaults).clone(),
        })
    }

    /// The system prompt of chats that name a model so and have none.
    pub fn system_prompt(&self, name: &str) -> Option<Arc<str>> {
        self.engine.models().system_prompt(name)
    }
}

/// The description of a model under an alias, or as a derived model.
fn as_alias(alias: String, model: ModelInfo) -> ModelInfo {
    ModelInfo { alias_of: Some(model.id), id: alias, ..model }
}
