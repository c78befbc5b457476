//! The settings files of the models folder, for the registry: names that are aliases, and settings of models.
//!
//! A request reads a snapshot in memory. [`Registry::refresh_settings`] reads the files; it is called every second.

use std::sync::Arc;

use super::{Loaded, Registry, loaded_adapters, lock};
use crate::model_info::ModelInfo;
use crate::model_settings::{GenerationDefaults, InstalledSettings, LATEST};
use crate::moderation::label_meanings;
use outpost_common::display::one_line;

impl Registry {
    /// Reads the settings files that have changed. If there are settings, also scans the models folder if its entries have
    /// changed. What is wrong is logged once.
    pub fn refresh_settings(&self) {
        let has_new_settings = self.read_settings();
        let has_new_entries = lock(&self.settings_files).has_new_entries();
        if (has_new_settings || has_new_entries) && !self.model_settings.load().is_empty() {
            self.refresh_after(&self.snapshot.load_full());
            self.warn_of_settings_without_effect();
        }
    }

    /// Reads the settings files that have changed. Returns whether any has.
    pub(super) fn read_settings(&self) -> bool {
        let mut files = lock(&self.settings_files);
        let has_changed = files.refresh();
        if has_changed {
            let (new, old) = (files.settings(), self.model_settings.load());
            let is_new = |problem: &&String| !old.problems().contains(problem);
            new.problems().iter().filter(is_new).for_each(|problem| tracing::error!("{}", one_line(problem)));
            self.model_settings.store(Arc::new(new));
        }
        has_changed
    }

    fn warn_of_settings_without_effect(&self) {
        let (settings, snapshot) = (self.model_settings.load(), self.snapshot.load());
        let warnings = settings.without_effect(&snapshot.models.keys().map(String::as_str).collect());
        let mut known = lock(&self.settings_warnings);
        let is_new = |warning: &&String| !known.contains(warning);
        warnings.iter().filter(is_new).for_each(|warning| tracing::warn!("{}", one_line(warning)));
        *known = warnings;
    }

    /// What a name stands for, if it is an alias, a derived model, or an ID with the tag `:latest`. An ID of a model is never an alias. Accesses the disk only if the models
    /// folder was never scanned.
    pub fn alias_target(&self, name: &str) -> Option<String> {
        let is_model = |id: &str| {
            if self.snapshot.load().at.is_none() {
                self.refresh();
            }
            self.snapshot.load().models.contains_key(id)
        };
        let settings = self.model_settings.load();
        let target = settings.alias_target(name, is_model);
        // Programs for Ollama write the tag that it gives to every name without one.
        let untagged = || name.strip_suffix(LATEST).filter(|id| !is_model(name) && is_model(id));
        target.or_else(untagged).map(str::to_owned)
    }

    /// The aliases with what they stand for, sorted. Those that models of the folder have as IDs are left out.
    pub fn aliases(&self) -> Vec<(String, String)> {
        let (settings, snapshot) = (self.model_settings.load(), self.snapshot.load());
        let effective = settings.aliases().filter(|(alias, _)| !snapshot.models.contains_key(*alias));
        effective.map(|(alias, target)| (alias.to_owned(), target.to_owned())).collect()
    }

    /// The parameters for requests that name a model so and do not set them.
    pub fn generation_defaults(&self, name: &str) -> Arc<GenerationDefaults> {
        self.model_settings.load().defaults(&self.settings_name(name)).unwrap_or_default()
    }

    /// The system prompt of chats that name a model so and have none.
    pub fn system_prompt(&self, name: &str) -> Option<Arc<str>> {
        self.model_settings.load().system_prompt(&self.settings_name(name))
    }

    /// The name of the settings for requests that name a model so: the derived model, or the ID of the model.
    fn settings_name(&self, name: &str) -> String {
        let Some(target) = self.alias_target(name) else { return name.to_owned() };
        self.derived_name(name).unwrap_or(target)
    }

    /// The name of the derived model that requests name so. A model in the folder with the same name takes precedence.
    pub fn derived_name(&self, name: &str) -> Option<String> {
        self.alias_target(name)?;
        self.model_settings.load().derived(name).map(|(name, _)| name.to_owned())
    }

    /// The settings of all models.
    pub fn model_settings(&self) -> Arc<InstalledSettings> {
        self.model_settings.load_full()
    }

    /// The pinned model that keeps the model `id` from being unloaded: itself, or a loaded adapter of it.
    pub fn unload_blocker(&self, id: &str) -> Option<String> {
        let settings = self.model_settings.load();
        let adapters = loaded_adapters(&lock(&self.loaded), id);
        [id.to_owned()].into_iter().chain(adapters).find(|id| settings.is_pinned(id))
    }

    /// Adds what the settings say of the model, and when it will be unloaded if nothing uses it.
    pub(super) fn describe_settings(&self, info: &mut ModelInfo) {
        let settings = self.model_settings.load();
        info.pinned = settings.is_pinned(&info.id);
        info.moderates = label_meanings(&info.labels, settings.moderation(&info.id)).is_some();
        let loaded = lock(&self.loaded);
        let Some(Loaded { last_used, .. }) = loaded.get(&info.id) else { return };
        info.loaded = true;
        let idle = self.clock.uptime().saturating_sub(*last_used);
        let left = settings.unload_after(&info.id).map(|time| time.saturating_sub(idle));
        info.unloads_at = left.map(|left| self.clock.now().after(left));
    }
}
