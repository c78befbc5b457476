//! LoRA adapters of chat and embedding models: those in the models folder, and those that a project has registered.
//!
//! An adapter is a model of its own that computes with the network of its base. A loaded adapter keeps its base loaded;
//! an idle adapter can be unloaded without its base.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{DiscoveredModel, Eviction, Model, Registered, Registry, lock};
use crate::discovery::{self, AdapterOrigin, AdapterSource, DiscoveredAdapter};
use crate::error::LoadError;
use crate::model_adapter::ModelAdapter;
use crate::model_info::ModelInfo;
use crate::runtime::catch_panic::catch_load_panic;
use crate::text::content_hash;
use outpost_common::clock_rng::Timestamp;
use outpost_models::step_memory::adapter_scratch_bytes;

/// An adapter that is not in the models folder.
#[derive(Clone, Debug)]
pub struct AdapterRegistration {
    /// The ID of the model that it becomes.
    pub id: String,
    /// The ID of its base model in the models folder.
    pub base: String,
    /// The project that may use it.
    pub owner: u128,
    pub source: Arc<dyn AdapterSource>,
}

fn missing_base(id: &str) -> String {
    format!("its base model {id} is not in the models folder")
}

impl Registry {
    /// Makes an adapter available to the project that owns it, through [`Self::load_for`]. Replaces a registration with the
    /// same ID. The adapter is not listed. Blocks while the adapter is read and checked.
    ///
    /// # Errors
    /// If a model of the folder has the ID, or the adapter is damaged or not supported. Whether it fits its base is checked
    /// when it is loaded.
    pub fn register_adapter(&self, registration: AdapterRegistration) -> Result<(), LoadError> {
        let AdapterRegistration { id, base, owner, source } = registration;
        let unusable = |reason: String| LoadError::Unusable { id: id.clone(), reason };
        self.refresh();
        if self.snapshot.load().models.contains_key(&id) {
            return Err(unusable("a model in the models folder has the same ID".to_owned()));
        }
        let (now, number) = (self.clock.now(), self.next_key.fetch_add(1, Ordering::Relaxed));
        let describe = || Ok(DiscoveredModel::registered(&id, now, number, (AdapterOrigin::Source(source), owner)));
        let found = catch_load_panic(describe).map_err(unusable)?;
        if let Some(problem) = found.info.problem.clone() {
            return Err(unusable(problem));
        }
        lock(&self.registered).insert(id.clone(), Registered { base, found });
        if lock(&self.loaded).contains_key(&id) {
            self.mark_stale(&id);
        }
        Ok(())
    }

    /// True if an adapter is registered under this ID.
    pub fn is_registered(&self, id: &str) -> bool {
        lock(&self.registered).contains_key(id)
    }

    /// Describes an adapter that may be registered, by its base. `bytes`: the size of its weights in f32.
    pub fn describe_adapter(&self, id: &str, base: &str, bytes: u64, created: Timestamp) -> ModelInfo {
        let mut info = discovery::adapter_info(id, bytes, created);
        match self.find_base(base) {
            Ok(found) => info.set_base(&self.describe(&found)),
            Err(LoadError::Unusable { reason, .. }) => {
                info.problem = Some(format!("its base model {base} cannot be used: {reason}"));
            }
            Err(_) => info.problem = Some(missing_base(base)),
        }
        self.describe_settings(&mut info);
        info
    }

    /// Removes a registered adapter. Running requests finish on it.
    pub fn remove_adapter(&self, id: &str) {
        if lock(&self.registered).remove(id).is_some() && lock(&self.loaded).contains_key(id) {
            self.mark_stale(id);
        }
    }

    /// The current state of a registered adapter.
    pub(super) fn lookup_registered(&self, id: &str) -> Option<DiscoveredModel> {
        let Registered { base, mut found } = lock(&self.registered).get(id).cloned()?;
        let network = self.lookup_on_disk(&base).filter(|network| network.adapter.is_none());
        let missing = network.is_none().then(|| missing_base(&base));
        found.set_base(network.as_ref(), missing);
        Some(found)
    }

    /// Loads an adapter, and its base first.
    pub(super) fn get_or_load_adapter(
        &self,
        found: &DiscoveredModel,
        adapter: &DiscoveredAdapter,
        eviction: Eviction,
    ) -> Result<Model, LoadError> {
        let id = &found.info.id;
        let unusable = |reason: String| LoadError::Unusable { id: id.clone(), reason };
        if let Some(reason) = found.info.problem.clone().or_else(|| self.recent_load_failure(found)) {
            return Err(unusable(reason));
        }
        let Some(base) = found.base() else { return Err(unusable("its base model is not known".to_owned())) };
        let base = self.get_or_load(base, eviction)?;
        let loaded = || self.get_loaded(id, found.fingerprint).filter(|model| model.shares_network_with(&*base));
        if let Some(model) = loaded() {
            return Ok(model);
        }
        let load_lock = Arc::clone(lock(&self.load_locks).entry(id.to_owned()).or_default());
        let _one = lock(&load_lock);
        match loaded() {
            Some(model) => Ok(model),
            None => self.load_adapter(found, adapter, &base, eviction),
        }
    }

    fn load_adapter(
        &self,
        found: &DiscoveredModel,
        adapter: &DiscoveredAdapter,
        base: &Model,
        eviction: Eviction,
    ) -> Result<Model, LoadError> {
        let id = &found.info.id;
        let broken = |reason: String| self.record_failure(found, reason);
        let Some(device) = self.devices.get(base.device()) else {
            return Err(broken("its device does not exist".to_owned()));
        };
        // A source may fail for another reason than the adapter, so this is not remembered.
        let file = catch_load_panic(|| adapter.origin.open());
        let file = file.map_err(|reason| LoadError::Unusable { id: id.clone(), reason })?;
        let Some(network) = base.adaptable() else {
            return Err(broken("models of this kind have no such adapters".to_owned()));
        };
        let footprint = || network.adapter_footprint(&file).map_err(|error| error.to_string());
        let footprint = catch_load_panic(footprint).map_err(broken)?;
        let tokens = network.max_step_tokens(&device.runtime.settings);
        let scratch = base.lease().scratch() + adapter_scratch_bytes(file.rank(), tokens);
        let mut lease = self.lease(device, footprint.weights + footprint.loading, scratch, eviction)?;
        let read = || network.read_adapter(&file).map_err(|error| error.to_string());
        let loading = lease.split(footprint.weights);
        let weights = catch_load_panic(read).map_err(broken)?;
        drop(loading);
        let key = self.next_key.fetch_add(1, Ordering::Relaxed);
        let content_hash = content_hash::of_adapter(&file).map_err(|error| broken(error.to_string()))?;
        let new = ModelAdapter { key, weights, content_hash, lease, owner: adapter.owner };
        let model = network.with_adapter(id, new, adapter.origin.folder()).map_err(broken)?;
        self.insert(found, &model);
        Ok(model)
    }
}
