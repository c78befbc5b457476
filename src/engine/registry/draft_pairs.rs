//! Which smaller model drafts for a larger one, and when it has to go.
//!
//! A draft_slot never stands in the way: it is read only where its weights fit beside all models in
//! memory, and is the first to go where memory is short. Its weights are a loaded model like any
//! other; if somebody asks it for answers, they are in memory once.

use std::sync::Arc;
use std::time::Duration;

use super::{DiscoveredModel, Memory, Registry, lock};
use crate::engine::checkpoint::Checkpoint;
use crate::engine::error::LoadError;
use crate::engine::model_info::ModelKind;
use crate::engine::preprocessor::Preprocessor;
use crate::engine::runtime::panics::guarded;
use crate::engine::text::model::TextModel;
use crate::engine::text::speculative::draft_model::DraftModel;

/// How long a model goes without a draft_slot that had no memory.
const PAUSE: Duration = Duration::from_secs(600);
/// An own choice has at most one part in so many of the served model's bytes.
const SMALLER: u64 = 2;

impl Registry {
    /// Gives the model a draft_slot if there is one and it fits. Reads its weights; after that it is
    /// cheap to ask again.
    pub(super) fn attach_draft_model(&self, model: &TextModel, found: &DiscoveredModel) {
        let settings = &self.runtime.settings;
        if !settings.speculate || !model.draft_slot.should_load(self.clock.uptime()) {
            return;
        }
        for sibling in self.siblings(found) {
            let (id, draft) = (model.id(), sibling.info.id.as_str());
            match self.draft(model, &sibling) {
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
                    model.draft_slot.retry_at(self.clock.uptime() + PAUSE);
                    return;
                }
                Err(error) => tracing::warn!(model = id, draft, %error, "the draft model cannot be used"),
            }
        }
    }

    /// Models that may draft for this one, the best first: the one that was named, or those of the
    /// same architecture with at most half of its bytes. The smallest is best: guesses that are a
    /// little better do not make up for twice the time that each of them takes.
    fn siblings(&self, served: &DiscoveredModel) -> Vec<DiscoveredModel> {
        let drafts = &self.runtime.settings.drafts;
        if let Some(named) = drafts.pairs.get(&served.info.id) {
            let found = self.found(named);
            if found.is_none() {
                tracing::warn!(model = served.info.id, draft = named, "the draft model is not in the models folder");
            }
            return found.into_iter().collect();
        }
        let fits = |one: &&DiscoveredModel| {
            let (info, other) = (&one.info, &served.info);
            let usable = info.kind == ModelKind::Text && info.problem.is_none() && self.failure(one).is_none();
            usable && info.architecture == other.architecture && info.bytes <= other.bytes / SMALLER
        };
        let snapshot = self.snapshot.load();
        let mut found: Vec<DiscoveredModel> =
            snapshot.models.values().filter(|_| drafts.auto).filter(fits).cloned().collect();
        found.sort_by_key(|one| one.info.bytes);
        found
    }

    /// The sibling in memory, if its tokens are those of `model`; its header tells before its weights
    /// are read.
    fn draft(&self, model: &TextModel, sibling: &DiscoveredModel) -> Result<Option<Arc<TextModel>>, LoadError> {
        if let Some(draft) = self.ready(&sibling.info.id, sibling.fingerprint) {
            return Ok(draft.text().filter(|draft| draft.vocabulary.agree(&model.vocabulary)).cloned());
        }
        let broken = |reason| LoadError::Unusable { id: sibling.info.id.clone(), reason };
        let agree = guarded(|| {
            let checkpoint = Checkpoint::open_chat(&sibling.path)?;
            let rows = checkpoint.weights().decoder_config().map_err(|error| error.to_string())?.vocabulary;
            let (_, facts) = Preprocessor::chat(&self.isolation(), &sibling.path, rows)?;
            Ok(facts.vocabulary.agree(&model.vocabulary))
        });
        if !agree.map_err(broken)? {
            return Ok(None);
        }
        self.obtain_text(sibling, Memory::Spare).map(Some)
    }

    /// Takes the draft_slot of the longest unused model away, and its weights out of memory unless they
    /// answer somebody. `false`: no model has one.
    pub(super) fn drop_drafter(&self) -> bool {
        let Some((served, draft)) = self.drafters().into_iter().next() else { return false };
        tracing::info!(model = served, draft, "the memory of the draft model is needed");
        self.take_drafter(&served, Some(PAUSE));
        // In use for answers of its own, it stays.
        let _ = self.unload(&draft);
        true
    }

    /// No model drafts with this one any more, until it is loaded again itself.
    pub(super) fn drop_drafts_by(&self, draft: &str) {
        for (served, _) in self.drafters().into_iter().filter(|(_, by)| by == draft) {
            self.take_drafter(&served, None);
        }
    }

    /// Models that have a draft_slot, the longest unused first, and what drafts for each.
    fn drafters(&self) -> Vec<(String, String)> {
        let loaded = lock(&self.loaded);
        let drafted = loaded.iter().filter_map(|(id, entry)| Some((entry.used, id.clone(), entry.draft.clone()?)));
        let mut drafted: Vec<_> = drafted.collect();
        drafted.sort();
        drafted.into_iter().map(|(_, served, draft)| (served, draft)).collect()
    }

    /// Takes a model's draft_slot away, for so long or until the model is loaded again. Waits for the end
    /// of the worker's round.
    pub(super) fn take_drafter(&self, served: &str, pause: Option<Duration>) {
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
