//! Chooses draft models for speculative decoding, and unloads them when memory is short.
//!
//! A draft model never displaces another model: it is loaded only if its weights fit into free memory, and it is
//! unloaded first when memory is short. It is a loaded model like any other: if a client also requests it directly,
//! its weights are in memory once.

use std::sync::Arc;
use std::time::Duration;

use super::{DiscoveredModel, Eviction, Registry, lock};
use crate::checkpoint::Checkpoint;
use crate::error::LoadError;
use crate::kinds::{self, Model};
use crate::model_info::ModelKind;
use crate::preprocessor::Preprocessor;
use crate::runtime::DeviceIndex;
use crate::runtime::catch_panic::catch_load_panic;
use crate::text::model::TextModel;
use crate::text::speculative::draft_model::DraftModel;

/// Wait before another attempt to load a draft model that did not fit into memory.
const RETRY_AFTER: Duration = Duration::from_secs(600);
/// An automatically chosen draft model is smaller than its target at least by this factor, in bytes.
const MIN_SIZE_RATIO: u64 = 2;

impl Registry {
    /// Attaches a draft model to the network `found`, with which `model` computes, if there is one and it fits. A network that drafts with
    /// a layer of its own gets none. The first call reads its weights; later calls are cheap.
    pub(super) fn attach_draft_model(&self, model: &TextModel, found: &DiscoveredModel) {
        let Some(device) = self.devices.get(model.device) else { return };
        let settings = &device.runtime.settings;
        let has_none = !settings.speculate || model.network.mtp_cost().is_some();
        if has_none || !model.draft_slot.should_load(self.clock.uptime()) {
            return;
        }
        for candidate in self.draft_candidates(found) {
            let (id, draft) = (found.info.id.as_str(), candidate.info.id.as_str());
            match self.load_draft(model, &candidate) {
                Ok(Some(network)) => {
                    let vocabulary = model.vocabulary().min(network.vocabulary());
                    let draft_slot = DraftModel::new(network, vocabulary, model.lease.weights(), settings.kv_type);
                    model.draft_slot.install(draft_slot);
                    if let Some(texts) = self.texts(model.device) {
                        texts.set_state_groups(model.key, &model.state_groups(settings.kv_type));
                    }
                    if let Some(entry) = lock(&self.loaded).get_mut(id) {
                        entry.draft = Some(draft.to_owned());
                    }
                    tracing::info!(model = id, draft, "loaded a draft model");
                    return;
                }
                Ok(None) if settings.drafts.pairs.contains_key(id) => {
                    tracing::warn!(model = id, draft, "the draft model has a different vocabulary and is not used");
                }
                Ok(None) => {}
                Err(LoadError::OutOfMemory { .. } | LoadError::TooLarge { .. }) => {
                    tracing::info!(model = id, draft, "not enough memory for the draft model");
                    model.draft_slot.retry_at(self.clock.uptime() + RETRY_AFTER);
                    return;
                }
                Err(error) => tracing::warn!(model = id, draft, %error, "the draft model cannot be used"),
            }
        }
    }

    /// Possible draft models for `served`, best first: the configured one, or those of the same architecture with at
    /// most half its bytes. The smallest is best: a slightly higher acceptance rate does not make up for twice the
    /// time per draft token.
    fn draft_candidates(&self, served: &DiscoveredModel) -> Vec<DiscoveredModel> {
        let drafts = &self.settings.drafts;
        if let Some(named) = drafts.pairs.get(&served.info.id) {
            let found = self.lookup_on_disk(named).filter(|found| found.adapter.is_none());
            if found.is_none() {
                tracing::warn!(model = served.info.id, draft = named, "the draft model is not in the models folder");
            }
            if self.device_index(named) != self.device_index(&served.info.id) {
                tracing::warn!(model = served.info.id, draft = named, "the draft model is on another device");
                return Vec::new();
            }
            return found.into_iter().collect();
        }
        let fits = |one: &&DiscoveredModel| {
            let (info, other) = (&one.info, &served.info);
            let usable = info.problem.is_none() && self.load_failure(one).is_none();
            let is_network = info.kind == ModelKind::Text && one.adapter.is_none();
            let same_device = self.device_index(&info.id) == self.device_index(&other.id);
            usable
                && is_network
                && same_device
                && info.architecture == other.architecture
                && info.bytes <= other.bytes / MIN_SIZE_RATIO
        };
        let snapshot = self.snapshot.load();
        let mut found: Vec<DiscoveredModel> =
            snapshot.models.values().filter(|_| drafts.auto).filter(fits).cloned().collect();
        found.sort_by_key(|one| one.info.bytes);
        found
    }

    /// Loads the candidate if its vocabulary matches that of `model`, which is checked before its weights are read.
    fn load_draft(&self, model: &TextModel, candidate: &DiscoveredModel) -> Result<Option<Arc<TextModel>>, LoadError> {
        if let Some(draft) = self.get_loaded(&candidate.info.id, candidate.fingerprint) {
            let draft = kinds::downcast::<TextModel>(draft);
            return Ok(draft.filter(|draft| draft.vocabulary.is_compatible_with(&model.vocabulary)));
        }
        let broken = |reason| LoadError::Unusable { id: candidate.info.id.clone(), reason };
        let is_compatible = catch_load_panic(|| {
            let checkpoint = Checkpoint::open_text(&candidate.path)?;
            let config = checkpoint.weights().decoder_config().map_err(|error| error.to_string())?;
            if config.is_recurrent() {
                tracing::warn!(draft = candidate.info.id, "a model with recurrent layers cannot draft");
                return Ok(false);
            }
            let rows = config.vocabulary;
            let (_, info) = Preprocessor::chat(&self.isolation(), &candidate.path, rows)?;
            Ok(info.vocabulary.is_compatible_with(&model.vocabulary))
        });
        if !is_compatible.map_err(broken)? {
            return Ok(None);
        }
        self.load_as(candidate, TextModel::KINDS, Eviction::Never).map(Some)
    }

    /// Detaches the draft model of the least recently used model on a device, and unloads it unless it is in use.
    /// `false`: no model there has a draft model.
    pub(super) fn drop_draft_model(&self, device: DeviceIndex) -> bool {
        let on_device = |(served, _): &(String, String)| self.device_index(served) == device;
        let Some((served, draft)) = self.draft_pairs().into_iter().find(on_device) else { return false };
        tracing::info!(model = served, draft, "unloading the draft model: its memory is needed");
        self.detach_draft_model(&served, Some(RETRY_AFTER));
        // It stays loaded if it is pinned, or requests use it directly.
        if !self.model_settings.load().is_pinned(&draft) {
            let _ = self.unload(&draft);
        }
        true
    }

    /// Detaches this draft model from all its target models, until each of them is loaded again.
    pub(super) fn detach_draft_from_all(&self, draft: &str) {
        for (served, _) in self.draft_pairs().into_iter().filter(|(_, by)| by == draft) {
            self.detach_draft_model(&served, None);
        }
    }

    /// The pairs of target model and draft model, least recently used first.
    fn draft_pairs(&self) -> Vec<(String, String)> {
        let loaded = lock(&self.loaded);
        let drafted = loaded.iter().filter_map(|(id, entry)| Some((entry.last_used, id.clone(), entry.draft.clone()?)));
        let mut drafted: Vec<_> = drafted.collect();
        drafted.sort();
        drafted.into_iter().map(|(_, served, draft)| (served, draft)).collect()
    }

    /// Detaches a model's draft model, for `pause` or until the model is loaded again. Waits until the compute thread
    /// no longer uses it.
    pub(super) fn detach_draft_model(&self, served: &str, pause: Option<Duration>) {
        let taken = lock(&self.loaded).get_mut(served).and_then(|entry| {
            entry.draft = None;
            // An adapter shares the draft model of its base.
            let model = entry.model.downcast_ref::<TextModel>().filter(|model| model.adapter().is_none())?;
            let device = self.devices.get(entry.device)?;
            let own = model.network.state_groups(device.runtime.settings.kv_type);
            Some((model.key, own, Arc::clone(&model.draft_slot), self.texts(entry.device)?))
        });
        let Some((key, own, slot, texts)) = taken else { return };
        slot.unload(pause.map(|pause| self.clock.uptime() + pause));
        texts.set_state_groups(key, &own);
    }
}
