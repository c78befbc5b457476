//! The settings of models that their operator writes beside them: aliases, default parameters and system prompts, which models
//! stay loaded, and when idle ones are unloaded.
//!
//! A folder that has a `model.toml` with the key `from`, and no model, is a derived model: another name for a model, like an
//! alias, with settings of its own. Ollama's clients create them.
//!
//! `models.toml` in the models folder has the settings of all models; `model.toml` in a model's folder has those of that
//! model. The first takes precedence, key by key. A file with an error changes nothing: its last good contents apply until
//! it is repaired.
//!
//! They are files in the models folder and not keys of the configuration file, because they belong to models, change
//! while the server runs, and `outpost models` needs them without a server. A broken file must never stop models from
//! being served: at a start there are no last good contents, and the server starts without them, because a missing
//! alias does less harm than a server that does not start.

mod derived;
mod files;
mod format;
mod reader;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub use derived::DerivedModel;
pub use files::SettingsFiles;

use crate::moderation::ModerationSettings;
use crate::text::sampler::parameters::SamplingParameters;
use outpost_common::display::shorten;
use outpost_common::spelling::nearest;

/// The name of the file for all models.
pub const ALL_MODELS_FILE: &str = "models.toml";
/// The name of the file in a model's folder.
pub const ONE_MODEL_FILE: &str = "model.toml";

/// The prefix of the models that projects have trained. Their names cannot be aliases.
const TUNED_PREFIX: &str = "ft:";
/// The tag of Ollama's names that may be left out.
pub const LATEST: &str = ":latest";

/// When a model that nothing uses is unloaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnloadAfter {
    Never,
    Idle(Duration),
}

/// Parameters for requests that do not set them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    pub sampling: SamplingParameters,
    pub max_tokens: Option<u32>,
    pub seed: Option<u64>,
    pub stop: Option<Vec<String>>,
}

impl GenerationDefaults {
    /// Fills the unset fields from `other`.
    pub fn or(self, other: Self) -> Self {
        Self {
            sampling: self.sampling.or(&other.sampling),
            max_tokens: self.max_tokens.or(other.max_tokens),
            seed: self.seed.or(other.seed),
            stop: self.stop.or(other.stop),
        }
    }
}

/// The settings of one model, as far as they are set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelSettings {
    pub pinned: Option<bool>,
    pub unload_after: Option<UnloadAfter>,
    pub unload_on_request: Option<bool>,
    pub defaults: Arc<GenerationDefaults>,
    /// The system prompt of chats that have none.
    pub system: Option<Arc<str>>,
    /// Of a derived model: the ID of the model for which it stands.
    pub from: Option<String>,
    /// Of a derived model.
    pub license: Option<Arc<str>>,
    pub moderation: ModerationSettings,
}

impl ModelSettings {
    fn or(self, other: Self) -> Self {
        let defaults = Arc::unwrap_or_clone(self.defaults).or(Arc::unwrap_or_clone(other.defaults));
        Self {
            pinned: self.pinned.or(other.pinned),
            unload_after: self.unload_after.or(other.unload_after),
            unload_on_request: self.unload_on_request.or(other.unload_on_request),
            defaults: Arc::new(defaults),
            system: self.system.or(other.system),
            from: self.from.or(other.from),
            license: self.license.or(other.license),
            moderation: self.moderation.or(other.moderation),
        }
    }
}

/// The contents of one file.
#[derive(Clone, Debug, Default, PartialEq)]
struct FileSettings {
    unload_after: Option<UnloadAfter>,
    unload_on_request: Option<bool>,
    /// The model's ID by the alias.
    aliases: BTreeMap<String, String>,
    models: BTreeMap<String, ModelSettings>,
}

/// The settings of all files of a models folder.
#[derive(Clone, Debug, Default)]
pub struct InstalledSettings {
    unload_after: Option<UnloadAfter>,
    unload_on_request: Option<bool>,
    /// The derived models are among them.
    aliases: BTreeMap<String, String>,
    models: BTreeMap<String, ModelSettings>,
    problems: Vec<String>,
}

impl InstalledSettings {
    /// What a name stands for, if it is an alias, with or without the tag `:latest`. An ID of a model, of which `is_model` says
    /// whether it is one, is never an alias. What an alias stands for need not be installed.
    pub fn alias_target(&self, name: &str, is_model: impl Fn(&str) -> bool) -> Option<&str> {
        let alias = name.strip_suffix(LATEST).unwrap_or(name);
        let target = self.aliases.get(alias)?;
        (!is_model(name) && !is_model(alias)).then_some(target)
    }

    /// The aliases with what they stand for, sorted.
    pub fn aliases(&self) -> impl Iterator<Item = (&str, &str)> {
        self.aliases.iter().map(|(alias, target)| (alias.as_str(), target.as_str()))
    }

    /// The aliases of a model, sorted.
    pub fn aliases_of(&self, id: &str) -> impl Iterator<Item = &str> {
        self.aliases().filter(move |(_, target)| *target == id).map(|(alias, _)| alias)
    }

    /// Whether the model stays loaded.
    pub fn is_pinned(&self, id: &str) -> bool {
        let installed = self.models.get(id).filter(|model| model.from.is_none());
        installed.and_then(|model| model.pinned).unwrap_or(false)
    }

    /// The IDs of the pinned models, sorted.
    pub fn pinned(&self) -> impl Iterator<Item = &str> {
        self.models.keys().map(String::as_str).filter(|id| self.is_pinned(id))
    }

    /// How long the model may be idle; `None`: for any time.
    pub fn unload_after(&self, id: &str) -> Option<Duration> {
        let own = self.models.get(id).and_then(|model| model.unload_after);
        match own.or(self.unload_after) {
            Some(UnloadAfter::Idle(time)) if !self.is_pinned(id) => Some(time),
            _ => None,
        }
    }

    /// True if there are no settings.
    pub fn is_empty(&self) -> bool {
        self.aliases.is_empty() && self.models.is_empty() && self.problems.is_empty()
    }

    /// True if the operator lets every client that may use the model unload it.
    pub fn unloads_on_request(&self, id: &str) -> bool {
        let own = self.models.get(id).and_then(|model| model.unload_on_request);
        own.or(self.unload_on_request).unwrap_or(false)
    }

    /// The parameters for requests to the model that do not set them. A derived model has those of its model, too.
    pub fn defaults(&self, id: &str) -> Option<Arc<GenerationDefaults>> {
        let (own, base) = self.with_base(id)?;
        match base {
            Some(base) => Some(Arc::new((*own.defaults).clone().or((*base.defaults).clone()))),
            None => Some(Arc::clone(&own.defaults)),
        }
    }

    /// The system prompt of chats with the model that have none. A derived model without one has that of its model.
    pub fn system_prompt(&self, id: &str) -> Option<Arc<str>> {
        let (own, base) = self.with_base(id)?;
        own.system.as_ref().or_else(|| base?.system.as_ref()).cloned()
    }

    /// The settings of a model, and if it is a derived model those of the model for which it stands.
    fn with_base(&self, id: &str) -> Option<(&ModelSettings, Option<&ModelSettings>)> {
        match self.models.get(id) {
            Some(own) => Some((own, own.from.as_ref().and_then(|from| self.models.get(from)))),
            None => None,
        }
    }

    /// The settings of a derived model, by its name with or without the tag `:latest`.
    pub fn derived(&self, name: &str) -> Option<(&str, &ModelSettings)> {
        let name = name.strip_suffix(LATEST).unwrap_or(name);
        let (name, settings) = self.models.get_key_value(name)?;
        settings.from.is_some().then_some((name, settings))
    }

    /// The number of derived models.
    pub fn derived_count(&self) -> usize {
        self.models.values().filter(|settings| settings.from.is_some()).count()
    }

    /// What the labels of the model mean for moderation.
    pub fn moderation(&self, id: &str) -> Option<&ModerationSettings> {
        self.models.get(id).map(|model| &model.moderation)
    }

    /// The errors in the files, each with the name of the file, the line and the reason.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Settings that have no effect, given the IDs of the installed models.
    pub fn without_effect(&self, installed: &BTreeSet<&str>) -> Vec<String> {
        let is_missing = |id: &str| !installed.contains(id) && !id.starts_with(TUNED_PREFIX);
        let meant = |id: &str| {
            let nearest = nearest(id, installed.iter().copied());
            nearest.map(|name| format!("; did you mean '{name}'?")).unwrap_or_default()
        };
        let of_alias = |(alias, target): (&str, &str)| match () {
            () if installed.contains(alias) => {
                Some(format!("the alias '{alias}' has no effect: a model has this ID. Rename the alias"))
            }
            () if is_missing(target) => {
                Some(format!("the alias '{alias}' stands for '{target}', which is not installed{}", meant(target)))
            }
            () => None,
        };
        let of_model = |id: &String| {
            (is_missing(id) && self.derived(id).is_none())
                .then(|| format!("there are settings of '{id}', which is not installed{}", meant(id)))
        };
        self.aliases().filter_map(of_alias).chain(self.models.keys().filter_map(of_model)).collect()
    }

    /// Adds the settings of a file. Those of earlier files take precedence.
    fn add(&mut self, name: &str, file: &FileSettings) {
        self.unload_after = self.unload_after.or(file.unload_after);
        self.unload_on_request = self.unload_on_request.or(file.unload_on_request);
        for (alias, target) in &file.aliases {
            match self.aliases.get(alias) {
                None => drop(self.aliases.insert(alias.clone(), target.clone())),
                Some(other) if other == target => {}
                Some(other) => {
                    let what = format!("the alias '{}' stands for '{other}' already", shorten(alias));
                    self.problems.push(format!("{name}: {what}"));
                }
            }
        }
        for (id, settings) in &file.models {
            let merged = self.models.remove(id).unwrap_or_default().or(settings.clone());
            self.models.insert(id.clone(), merged);
        }
    }

    /// Removes the aliases of aliases.
    fn remove_chains(&mut self) {
        let is_chained = |target: &String| self.aliases.contains_key(target);
        let chained: Vec<(String, String)> =
            self.aliases.iter().filter(|(_, target)| is_chained(target)).map(|(a, t)| (a.clone(), t.clone())).collect();
        for (alias, target) in chained {
            self.aliases.remove(&alias);
            let what = format!("the alias '{alias}' stands for the alias '{target}'; name a model instead");
            self.problems.push(what);
        }
    }
}
