//! Proposes draft tokens from the models' own layers for multi-token prediction.

use std::sync::Arc;

use super::mtp::{MtpDraft, MtpDrafter};
use crate::settings::MAX_DRAFT_TOKENS;
use crate::text::scheduler::ModelId;
use crate::text::step_cost_model::SpeculationCosts;
use crate::text::workload::TextWorkload;

impl TextWorkload {
    /// Drafts for the sequences for which that saves more than their n-gram proposal.
    pub(super) fn propose_with_mtp(&mut self, costs: &SpeculationCosts) {
        let mut drafters = std::mem::take(&mut self.mtp);
        for (key, drafter) in drafters.iter_mut().filter(|(_, drafter)| drafter.is_enabled()) {
            let request = self.active.values().find(|request| request.model.key == *key);
            let Some(model) = request.map(|request| Arc::clone(&request.model)) else { continue };
            let mut drafts = self.start_drafts(*key, drafter, costs);
            let Some(arenas) = self.arenas.get_mut(key).filter(|_| !drafts.is_empty()) else { continue };
            // Blocks after those of the text have no memory yet.
            drafts.retain(|draft| draft.new_blocks().all(|block| arenas.ensure(0, block).is_ok()));
            match drafter.draft(&model, arenas, &mut drafts, costs, self.runtime.clock.as_ref()) {
                Ok(()) => self.propose_drafted(drafts.into_iter().map(MtpDraft::finish).collect()),
                Err(error) => {
                    tracing::error!(model = model.id(), reason = %error, "drafts failed and are disabled");
                    drafter.disable();
                }
            }
        }
        self.mtp = drafters;
    }

    /// The sequences of a model for which a draft is likely to pay, with blocks for their draft tokens.
    fn start_drafts(&mut self, model: ModelId, drafter: &mut MtpDrafter, costs: &SpeculationCosts) -> Vec<MtpDraft> {
        let (queue, max_bytes) = (Arc::clone(&self.queue), self.runtime.memory.available());
        let mut state = queue.lock();
        let requests = self.active.iter_mut().filter(|(_, request)| request.model.key == model);
        let choices = requests.flat_map(|(id, request)| request.draft_states(*id));
        let decoding = choices.filter_map(|(id, draft, hidden)| {
            let start = state.scheduler.draft_start(id)?;
            Some((id, draft, start, hidden.after(start.position)?))
        });
        let decoding: Vec<_> = decoding.collect();
        let (count, mut drafts) = (decoding.len(), Vec::new());
        for (id, draft, start, hidden) in decoding {
            let Some((stats, _)) = drafter.payoff.worthwhile(draft, count, costs) else { continue };
            let max_tokens = MAX_DRAFT_TOKENS.min(start.left.saturating_sub(1) as usize);
            let (max_tokens, blocks) = state.scheduler.reserve_lookahead(id, max_tokens, max_bytes);
            if max_tokens > 0 {
                drafts.push(MtpDraft::new(id, start, hidden, blocks, stats, max_tokens));
            }
        }
        // Blocks reserved for drafts may have belonged to another sequence.
        let released = state.scheduler.take_released();
        drop(state);
        self.release(&released);
        drafts
    }
}
