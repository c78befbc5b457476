//! Proposes draft tokens before a step is planned: from n-grams of the text so far, or from a draft model where that is
//! likely to save more time.

use std::sync::Arc;

use super::draft_model::{DraftModel, DraftSequence, DraftSlot};
use super::draft_stats::Round;
use crate::engine::settings::MAX_DRAFT_TOKENS;
use crate::engine::text::queue::State;
use crate::engine::text::scheduler::{ModelId, SequenceId};
use crate::engine::text::step_cost::SpeculationCosts;
use crate::engine::text::workload::TextWorkload;

/// A sequence, the tokens that a draft model proposes for it, and the round that made them.
type Drafted = (SequenceId, Vec<u32>, Round);

impl TextWorkload {
    /// Proposes tokens for each decoding sequence where verifying them is likely to pay.
    pub(in crate::engine::text) fn propose(&mut self) {
        if !self.runtime.settings.speculate {
            return;
        }
        let queue = Arc::clone(&self.queue);
        let decoding = queue.lock().scheduler.decoding();
        let Some(costs) = self.step_costs.speculation_costs(decoding) else { return };
        let active = self.active.iter_mut();
        let ngrams: Vec<_> = active.flat_map(|(id, request)| request.propose_ngrams(*id, &costs)).collect();
        let mut state = queue.lock();
        ngrams.into_iter().for_each(|(id, tokens)| state.scheduler.propose(id, tokens));
        let drafts: Vec<_> = self.drafts.iter().filter(|(_, draft)| draft.is_loaded()).collect();
        let drafts: Vec<(ModelId, Arc<DraftSlot>)> =
            drafts.into_iter().map(|(id, slot)| (*id, Arc::clone(slot))).collect();
        let sequences = |(model, slot): (ModelId, Arc<DraftSlot>)| {
            let sequences =
                slot.lock().as_mut().map(|draft_model| self.sequences(model, draft_model, &mut state, &costs));
            (slot, sequences.unwrap_or_default())
        };
        let sequences: Vec<_> =
            drafts.into_iter().map(sequences).filter(|(_, sequences)| !sequences.is_empty()).collect();
        // Blocks reserved for drafts may have belonged to another sequence.
        let released = state.scheduler.take_released();
        drop(state);
        self.release(&released);
        let slice = self.step_costs.prefill_chunk(decoding, 0);
        let drafted = sequences.into_iter().flat_map(|(slot, sequences)| self.draft(&slot, sequences, slice, &costs));
        let drafted: Vec<Drafted> = drafted.collect();
        self.propose_drafted(drafted);
    }

    /// The sequences of a model for which drafting pays, with blocks reserved for the draft tokens.
    fn sequences(
        &mut self,
        model: ModelId,
        draft_model: &mut DraftModel,
        state: &mut State,
        costs: &SpeculationCosts,
    ) -> Vec<DraftSequence> {
        let (room, expected) = (self.runtime.memory.room(), state.expected_tokens());
        let requests = self.active.iter_mut().filter(|(_, request)| request.model.key == model);
        let states = requests.flat_map(|(id, request)| request.draft_states(*id));
        let mut candidates: Vec<_> = states.filter(|(id, _)| state.scheduler.draft_context(*id).is_some()).collect();
        let (count, mut sequences) = (candidates.len(), Vec::new());
        for (id, draft) in &mut candidates {
            if let Some(round) = draft.last_round() {
                draft_model.average.absorb(&round);
            }
            let stats = draft.stats(&draft_model.average);
            let Some(context) = state.scheduler.draft_context(*id) else { continue };
            let max_tokens = MAX_DRAFT_TOKENS.min(context.left.saturating_sub(1) as usize);
            let left = context.left.min(expected);
            if !draft_model.is_worthwhile(&context, left, &stats, count, costs, draft.alternative()) {
                draft_model.average.regress();
                continue;
            }
            let max_tokens = state.scheduler.reserve_lookahead(*id, max_tokens, room);
            if let Some(context) = state.scheduler.draft_context(*id).filter(|_| max_tokens > 0) {
                sequences.push(DraftSequence::new(*id, &context, max_tokens, stats, draft.has_rounds()));
            }
        }
        sequences
    }

    fn draft(
        &self,
        slot: &DraftSlot,
        mut sequences: Vec<DraftSequence>,
        slice: usize,
        costs: &SpeculationCosts,
    ) -> Vec<Drafted> {
        let mut held = slot.lock();
        let Some(draft_model) = held.as_mut() else { return Vec::new() };
        match draft_model.draft(&mut sequences, slice, costs, self.runtime.clock.as_ref()) {
            Ok(()) => sequences.into_iter().filter_map(DraftSequence::finish).collect(),
            Err(reason) => {
                tracing::error!(model = draft_model.id(), reason, "the draft model failed and is disabled");
                drop(held);
                drop(slot.unload(None));
                Vec::new()
            }
        }
    }

    fn propose_drafted(&mut self, drafted: Vec<Drafted>) {
        let mut state = self.queue.lock();
        for (id, tokens, round) in drafted {
            if let Some(draft) = self.active.get_mut(&id.request).and_then(|one| one.draft_state_of(id.choice)) {
                draft.start_round(round);
                if tokens.is_empty() {
                    // The n-gram proposal stays.
                    draft.finish_round(0, 0);
                } else {
                    state.scheduler.propose(id, tokens);
                }
            }
        }
    }
}
