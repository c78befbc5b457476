//! Proposes draft tokens before a step is planned: from n-grams of the text so far, or from a draft model or the network's own layer for
//! multi-token prediction where that is likely to save more time.

use std::sync::Arc;

use super::draft_model::{DraftSequence, DraftSlot};
use super::draft_payoff::{Round, RoundStats};
use crate::settings::MAX_DRAFT_TOKENS;
use crate::text::queue::State;
use crate::text::scheduler::{DraftContext, ModelId, SequenceId};
use crate::text::step_cost_model::SpeculationCosts;
use crate::text::workload::TextWorkload;

/// A sequence, the tokens that are drafted for it, and the round that made them.
type Drafted = (SequenceId, Vec<u32>, Round);

/// A sequence for which a draft may pay.
struct Candidate {
    id: SequenceId,
    context: DraftContext,
    /// Tokens that it is likely to generate still.
    expected: u32,
    /// Seconds that a round is likely to save.
    gain: f64,
    stats: RoundStats,
    has_rounds: bool,
}

/// The candidates for which a draft pays, although the draft model may have to catch up. The queue is not locked
/// meanwhile, because this reads the texts.
fn retain_worthwhile(slot: &DraftSlot, mut candidates: Vec<Candidate>, costs: &SpeculationCosts) -> Vec<Candidate> {
    let mut slot = slot.lock();
    let Some(draft_model) = slot.as_mut() else { return Vec::new() };
    candidates.retain(|Candidate { context, expected, gain, stats, .. }| {
        let is_worthwhile = draft_model.is_worthwhile(context, *expected, *gain, stats, costs);
        if !is_worthwhile {
            draft_model.payoff.skip();
        }
        is_worthwhile
    });
    candidates
}

/// Reserves blocks for the candidates' draft tokens, within `max_bytes` bytes in total.
fn reserve(candidates: Vec<Candidate>, state: &mut State, max_bytes: u64) -> Vec<DraftSequence> {
    let reserve = |Candidate { id, mut context, stats, has_rounds, .. }: Candidate| {
        let max_tokens = MAX_DRAFT_TOKENS.min(context.left.saturating_sub(1) as usize);
        let (max_tokens, blocks) = state.scheduler.reserve_lookahead(id, max_tokens, max_bytes);
        context.blocks = blocks.to_vec();
        (max_tokens > 0).then(|| DraftSequence::new(id, context, max_tokens, stats, has_rounds))
    };
    candidates.into_iter().filter_map(reserve).collect()
}

impl TextWorkload {
    /// Proposes tokens for each decoding sequence where verifying them is likely to pay.
    pub(in crate::text) fn propose(&mut self) {
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
        drop(state);
        self.propose_with_models(decoding, &costs);
        self.propose_with_mtp(&costs);
    }

    /// Drafts with draft models. `decoding`: sequences that decode.
    fn propose_with_models(&mut self, decoding: usize, costs: &SpeculationCosts) {
        let drafts: Vec<(ModelId, Arc<DraftSlot>)> =
            self.drafts.iter().filter(|(_, slot)| slot.is_loaded()).map(|(id, slot)| (*id, Arc::clone(slot))).collect();
        let queue = Arc::clone(&self.queue);
        let state = queue.lock();
        let candidates: Vec<_> =
            drafts.iter().map(|(model, slot)| self.candidates(*model, slot, &state, costs)).collect();
        drop(state);
        if candidates.iter().all(Vec::is_empty) {
            return;
        }
        let candidates = drafts.iter().zip(candidates);
        let candidates: Vec<_> =
            candidates.map(|((_, slot), candidates)| retain_worthwhile(slot, candidates, costs)).collect();
        let max_bytes = self.runtime.memory.available();
        let mut state = queue.lock();
        let sequences = candidates.into_iter().map(|candidates| reserve(candidates, &mut state, max_bytes));
        let sequences: Vec<Vec<DraftSequence>> = sequences.collect();
        // Blocks reserved for drafts may have belonged to another sequence.
        let released = state.scheduler.take_released();
        drop(state);
        self.release(&released);
        let slice = self.step_costs.prefill_chunk(decoding, 0);
        let sequences = drafts.iter().zip(sequences).filter(|(_, sequences)| !sequences.is_empty());
        let drafted = sequences.flat_map(|((_, slot), sequences)| self.draft(slot, sequences, slice, costs));
        let drafted: Vec<Drafted> = drafted.collect();
        self.propose_drafted(drafted);
    }

    /// The decoding sequences of a model for which a draft saves more than their n-gram proposal.
    fn candidates(
        &mut self,
        model: ModelId,
        slot: &DraftSlot,
        state: &State,
        costs: &SpeculationCosts,
    ) -> Vec<Candidate> {
        let (mut slot, expected) = (slot.lock(), state.expected_tokens());
        let Some(draft_model) = slot.as_mut() else { return Vec::new() };
        let requests = self.active.iter_mut().filter(|(_, request)| request.model.key == model);
        let draft_states = requests.flat_map(|(id, request)| request.draft_states(*id));
        let decoding: Vec<_> = draft_states.filter(|(id, ..)| state.scheduler.is_decoding(*id)).collect();
        let (count, mut candidates) = (decoding.len(), Vec::new());
        for (id, draft, _) in decoding {
            let Some((stats, gain)) = draft_model.payoff.worthwhile(draft, count, costs) else { continue };
            if let Some(context) = state.scheduler.draft_context(id) {
                let expected = context.left.min(expected);
                candidates.push(Candidate { id, context, expected, gain, stats, has_rounds: draft.has_rounds() });
            }
        }
        candidates
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

    pub(super) fn propose_drafted(&mut self, drafted: Vec<Drafted>) {
        let mut state = self.queue.lock();
        for (id, tokens, round) in drafted {
            if let Some(draft) = self.active.get_mut(&id.request).and_then(|one| one.draft_state_of(id.choice)) {
                draft.start_round(round);
                if tokens.is_empty() {
                    // The n-gram proposal stays.
                    draft.finish_round(0, 0, 0);
                } else {
                    state.scheduler.propose(id, tokens);
                }
            }
        }
    }
}
