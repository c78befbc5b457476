//! Which smaller model drafts for a larger one, and when it has to go.
//!
//! A draft_slot never stands in the way: it is read only where its weights fit beside all models in
//! memory, and is the first to go where memory is short. Its weights are a loaded model like any
//! other; if somebody asks it for answers, they are in memory once.

use std::sync::Arc;
use std::time::Duration;

use super::{DiscoveredModel, Eviction, Registry, lock};
use crate::engine::checkpoint::Checkpoint;
use crate::engine::error::LoadError;
use crate::engine::model_info::ModelKind;
use crate::engine::preprocessor::Preprocessor;
use crate::engine::runtime::panics::catch_load_panic;
use crate::engine::text::model::TextModel;
use crate::engine::text::speculative::draft_model::DraftModel;

/// How long a model goes without a draft_slot that had no memory.
const RETRY_AFTER: Duration = Duration::from_secs(600);
/// An own choice has at most one part in so many of the served model's bytes.
const MIN_SIZE_RATIO: u64 = 2;

impl Registry {
    /// Gives the model a draft_slot if there is one and it fits. Reads its weights; after that it is
    /// cheap to ask again.
    pub(super) fn attach_draft_model(&self, model: &TextModel, found: &DiscoveredModel) {
        let settings = &self.runtime.settings;
        if !settings.speculate || !model.draft_slot.should_load(self.clock.uptime()) {
            return;
        }
        for candidate in self.draft_candidates(found) {
            let (id, draft) = (model.id(), candidate.info.id.as_str());
            match self.load_draft(model, &candidate) {
                Ok(Some(network)) => {
                    let vocabulary = model.vocabulary().min(network.vocabulary());
                    let draft_slot = DraftModel::new(network, vocabulary, model.lease.weights(), settings.kv_type);
                    model.draft_slot.install(draft_slot);
                    self.texts.set_block_bytes(model.key, model.block_bytes(settings.kv_type));
                    if let Some(entry) = lock(&self.loaded).get_mut(id) {
                        entry.draft = Some(draft.to_owned());
                    }
                    tracing::info!(model = id, draft, "a smaller model guesses ahead");
                    return;
                }
                Ok(None) if settings.drafts.pairs.contains_key(id) => {
                    tracing::warn!(model = id, draft, "the draft model has other tokens and is not used");
                }
                Ok(None) => {}
                Err(LoadError::OutOfMemory { .. } | LoadError::TooLarge { .. }) => {
                    tracing::info!(model = id, draft, "there is no memory for the draft model");
                    model.draft_slot.retry_at(self.clock.uptime() + RETRY_AFTER);
                    return;
                }
                Err(error) => tracing::warn!(model = id, draft, %error, "the draft model cannot be used"),
            }
        }
    }

    /// Models that may draft for this one, the best first: the one that was named, or those of the
    /// same architecture with at most half of its bytes. The smallest is best: guesses that are a
    /// little better do not make up for twice the time that each of them takes.
    fn draft_candidates(&self, served: &DiscoveredModel) -> Vec<DiscoveredModel> {
        let drafts = &self.runtime.settings.drafts;
        if let Some(named) = drafts.pairs.get(&served.info.id) {
            let found = self.lookup(named);
            if found.is_none() {
                tracing::warn!(model = served.info.id, draft = named, "the draft model is not in the models folder");
            }
            return found.into_iter().collect();
        }
        let fits = |one: &&DiscoveredModel| {
            let (info, other) = (&one.info, &served.info);
            let usable = info.kind == ModelKind::Text && info.problem.is_none() && self.load_failure(one).is_none();
            usable && info.architecture == other.architecture && info.bytes <= other.bytes / MIN_SIZE_RATIO
        };
        let snapshot = self.snapshot.load();
        let mut found: Vec<DiscoveredModel> =
            snapshot.models.values().filter(|_| drafts.auto).filter(fits).cloned().collect();
        found.sort_by_key(|one| one.info.bytes);
        found
    }

    /// The candidate in memory, if its tokens are those of `model`; its header tells before its weights
    /// are read.
    fn load_draft(&self, model: &TextModel, candidate: &DiscoveredModel) -> Result<Option<Arc<TextModel>>, LoadError> {
        if let Some(draft) = self.get_loaded(&candidate.info.id, candidate.fingerprint) {
            return Ok(draft.text().filter(|draft| draft.vocabulary.is_compatible_with(&model.vocabulary)).cloned());
        }
        let broken = |reason| LoadError::Unusable { id: candidate.info.id.clone(), reason };
        let is_compatible = catch_load_panic(|| {
            let checkpoint = Checkpoint::open_chat(&candidate.path)?;
            let rows = checkpoint.weights().hyper().map_err(|error| error.to_string())?.vocabulary;
            let (_, facts) = Preprocessor::chat(&self.isolation(), &candidate.path, rows)?;
            Ok(facts.vocabulary.is_compatible_with(&model.vocabulary))
        });
        if !is_compatible.map_err(broken)? {
            return Ok(None);
        }
        self.get_or_load_text(candidate, Eviction::Never).map(Some)
    }

    /// Takes the draft_slot of the longest unused model away, and its weights out of memory unless they
    /// answer somebody. `false`: no model has one.
    pub(super) fn drop_draft_model(&self) -> bool {
        let Some((served, draft)) = self.draft_pairs().into_iter().next() else { return false };
        tracing::info!(model = served, draft, "the memory of the draft model is needed");
        self.detach_draft_model(&served, Some(RETRY_AFTER));
        // In use for answers of its own, it stays.
        let _ = self.unload(&draft);
        true
    }

    /// No model drafts with this one any more, until it is loaded again itself.
    pub(super) fn detach_draft_from_all(&self, draft: &str) {
        for (served, _) in self.draft_pairs().into_iter().filter(|(_, by)| by == draft) {
            self.detach_draft_model(&served, None);
        }
    }

    /// Models that have a draft_slot, the longest unused first, and what drafts for each.
    fn draft_pairs(&self) -> Vec<(String, String)> {
        let loaded = lock(&self.loaded);
        let drafted = loaded.iter().filter_map(|(id, entry)| Some((entry.last_used, id.clone(), entry.draft.clone()?)));
        let mut drafted: Vec<_> = drafted.collect();
        drafted.sort();
        drafted.into_iter().map(|(_, served, draft)| (served, draft)).collect()
    }

    /// Takes a model's draft_slot away, for so long or until the model is loaded again. Waits for the end
    /// of the worker's round.
    pub(super) fn detach_draft_model(&self, served: &str, pause: Option<Duration>) {
        let taken = lock(&self.loaded).get_mut(served).and_then(|entry| {
            entry.draft = None;
            let model = entry.model.text()?;
            let own = model.kv_shape(self.runtime.settings.kv_type).block_bytes();
            Some((model.key, own, Arc::clone(&model.draft_slot)))
        });
        let Some((key, own, slot)) = taken else { return };
        slot.take(pause.map(|pause| self.clock.uptime() + pause));
        self.texts.set_block_bytes(key, own);
    }
}
