//! Derived models: other names for models, with settings of their own. They are files in the models folder, and take no memory
//! besides that of their models. Everybody who may use the model may use them.

use std::io::{self, ErrorKind};

use serde_json::json;

use crate::calls::blocking::run_blocking;
use crate::calls::models::Models;
use crate::catalog::{is_model_name, is_reserved};
use crate::display::shorten;
use crate::engine::{DerivedModel, GenerationDefaults};
use crate::error::{Code, Error, Result};
use crate::hub::foreign_owner;
use crate::service::access::Access;
use crate::service::audit::model_log::ModelChange;
use crate::service::fine_tuning::TUNED_PREFIX;

/// Max derived models of a models folder.
const MAX_DERIVED: usize = 1_000;

/// A derived model to be created.
pub struct NewDerivedModel {
    pub name: String,
    /// The model for which it stands. The settings of a derived model are taken over, as far as they are not set here.
    pub from: String,
    /// An adapter of that model.
    pub adapter: Option<String>,
    pub system: Option<String>,
    pub license: Option<String>,
    pub defaults: GenerationDefaults,
}

impl Models {
    /// Creates a derived model, or replaces one. Needs the scope `admin`.
    pub async fn derive(&self, access: &Access, new: NewDerivedModel) -> Result<()> {
        access.require_admin()?;
        check_name("model", &new.name)?;
        let source = self.settings_of(access, &new.from).await?;
        let from = match &new.adapter {
            Some(adapter) => self.adapter_of(access, adapter, source.from).await?,
            None => source.from,
        };
        let derived = DerivedModel {
            from,
            system: new.system.or(source.system),
            license: new.license.or(source.license),
            defaults: new.defaults.or(source.defaults),
        };
        self.store(access, new.name, derived).await
    }

    /// Gives a model another name, and a derived model with its settings. Needs the scope `admin`.
    pub async fn copy(&self, access: &Access, source: &str, destination: String) -> Result<()> {
        access.require_admin()?;
        check_name("destination", &destination)?;
        let derived = self.settings_of(access, source).await?;
        self.store(access, destination, derived).await
    }

    /// Deletes a derived model. Needs the scope `admin`.
    pub(in crate::calls) async fn delete_derived(&self, access: &Access, name: &str) -> Result<()> {
        access.require_admin()?;
        let Some((name, from)) = self.stored(name) else { return Err(gone(name)) };
        access.require_listed(&from)?;
        self.log.record(access, ModelChange::Deleted, name.clone(), json!({ "from": from })).await?;
        self.change(name, DerivedModel::remove).await
    }

    /// The name and the model of an existing derived model.
    fn stored(&self, name: &str) -> Option<(String, String)> {
        let models = self.engine.models();
        let name = models.derived_name(name)?;
        let from = models.model_settings().derived(&name)?.1.from.clone()?;
        Some((name, from))
    }

    /// The settings of a derived model, or those of a model that is only given another name.
    async fn settings_of(&self, access: &Access, name: &str) -> Result<DerivedModel> {
        let model = self.get(access, name).await?;
        Ok(self.derived(name).unwrap_or_else(|| DerivedModel { from: model.id, ..DerivedModel::default() }))
    }

    /// The ID of an adapter, which must be one of the model `base`.
    async fn adapter_of(&self, access: &Access, name: &str, base: String) -> Result<String> {
        let adapter = self.get(access, name).await.map_err(|error| match error.code() {
            Code::ModelNotFound => {
                let text = format!(
                    "No adapter '{}' is installed. Name one of GET /v1/models, or install it with 'outpost models import'.",
                    shorten(name)
                );
                Error::invalid("adapters", text)
            }
            _ => error,
        })?;
        match adapter.base {
            Some(of) if of == base => Ok(adapter.id),
            Some(of) => {
                let text = format!("'{}' is an adapter of the model '{of}', not of '{base}'.", adapter.id);
                Err(Error::invalid("adapters", text))
            }
            None => Err(Error::invalid("adapters", format!("The model '{}' is not an adapter.", adapter.id))),
        }
    }

    async fn store(&self, access: &Access, name: String, derived: DerivedModel) -> Result<()> {
        self.require_free_name(access, &name).await?;
        let text = derived.to_toml(&name).map_err(|problem| {
            let text = format!("The settings of the model cannot be stored: {problem}.");
            Error::new(Code::InvalidParameter, text)
        })?;
        self.log.record(access, ModelChange::Created, name.clone(), json!({ "from": derived.from })).await?;
        self.change(name, move |models, name| DerivedModel::write(&text, models, name)).await
    }

    /// Refuses a name that something else has. A derived model is replaced.
    async fn require_free_name(&self, access: &Access, name: &str) -> Result<()> {
        if let Some((_, from)) = self.stored(name) {
            return access.require_listed(&from);
        }
        let conflict = |text: String| Err(Error::new(Code::Conflict, text).param("model"));
        let (engine, id) = (self.engine.clone(), name.to_owned());
        if run_blocking(move || Ok(engine.models().find(&id).is_some())).await? {
            return conflict(format!("The models folder has a model '{name}'. Choose another name."));
        }
        if let Some(target) = self.engine.models().alias_target(name) {
            return conflict(format!("'{name}' is an alias of the model '{target}'. Choose another name."));
        }
        if self.engine.models().model_settings().derived_count() >= MAX_DERIVED {
            return conflict(format!("There are {MAX_DERIVED} derived models already. Delete one first."));
        }
        Ok(())
    }

    /// Changes the folder `name` in the models folder, and reads it.
    async fn change(
        &self,
        name: String,
        change: impl FnOnce(&std::path::Path, &str) -> io::Result<()> + Send + 'static,
    ) -> Result<()> {
        let engine = self.engine.clone();
        let changed = move || {
            let models = engine.models();
            let folder = models.folder();
            if let Some(owner) = foreign_owner(&folder) {
                let text = format!(
                    "The models folder belongs to the user with the ID {owner}, and the server runs as root. Ask the operator to run it as that user."
                );
                return Err(Error::new(Code::StorageUnavailable, text));
            }
            change(&folder, &name).map_err(|cause| not_changed(&name, cause))?;
            models.refresh_settings();
            Ok(())
        };
        run_blocking(changed).await
    }
}

fn check_name(field: &str, name: &str) -> Result<()> {
    // A plain name of a folder, and one that is never taken for something else.
    let has_form = name.splitn(2, ':').all(is_model_name);
    if has_form && !is_reserved(name) && !name.starts_with(TUNED_PREFIX) {
        return Ok(());
    }
    let text = format!(
        "'{}' cannot be the name of a model. Use up to 96 letters, digits, '-', '_' and '.', and a tag after a colon, such as 'mario:v1'.",
        shorten(name)
    );
    Err(Error::invalid(field, text))
}

fn gone(name: &str) -> Error {
    Error::new(Code::ModelNotFound, format!("No model '{}' is installed.", shorten(name))).param("model")
}

fn not_changed(name: &str, cause: io::Error) -> Error {
    let text = match cause.kind() {
        ErrorKind::NotFound => return gone(name),
        ErrorKind::AlreadyExists => {
            format!("The models folder has something else named '{name}'. Choose another name.")
        }
        ErrorKind::DirectoryNotEmpty => format!(
            "The folder '{name}' in the models folder has other files besides its settings. The operator can remove it."
        ),
        _ => {
            let text = "The models folder cannot be written. The operator finds the reason in the server's log.";
            return Error::new(Code::StorageUnavailable, text).with_cause(cause);
        }
    };
    Error::new(Code::Conflict, text).param("model")
}
