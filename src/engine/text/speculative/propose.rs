//! Proposes the tokens that may follow the newest ones, before a step is planned: n-grams of the text so far, and the
//! tokens of a draft model where that is likely to save more time.

use std::sync::Arc;

use super::draft_model::{DraftModel, DraftSequence, DraftSlot};
use super::draft_stats::Round;
use crate::engine::settings::MAX_DRAFT_TOKENS;
use crate::engine::text::queue::State;
use crate::engine::text::scheduler::{ModelId, SequenceId};
use crate::engine::text::step_cost::SpeculationCosts;
use crate::engine::text::workload::TextWorkload;

/// An answer, the tokens that a draft model proposes for it, and what they took.
type Drafted = (SequenceId, Vec<u32>, Round);

impl TextWorkload {
    /// Proposes tokens for each answer where checking them pays.
    pub(in crate::engine::text) fn propose(&mut self) {
        if !self.runtime.settings.speculate {
            return;
        }
        let queue = Arc::clone(&self.queue);
        let decoding = queue.lock().scheduler.decoding();
        let Some(prices) = self.pace.prices(decoding) else { return };
        let active = self.active.iter_mut();
        let ngrams: Vec<_> = active.flat_map(|(id, request)| request.propose_ngrams(*id, &prices)).collect();
        let mut state = queue.lock();
        ngrams.into_iter().for_each(|(id, tokens)| state.scheduler.propose(id, tokens));
        let drafts: Vec<_> = self.drafts.iter().filter(|(_, draft)| draft.is_taken()).collect();
        let drafts: Vec<(ModelId, Arc<DraftSlot>)> =
            drafts.into_iter().map(|(id, slot)| (*id, Arc::clone(slot))).collect();
        let lines = |(model, slot): (ModelId, Arc<DraftSlot>)| {
            let lines = slot.lock().as_mut().map(|drafter| self.lines(model, drafter, &mut state, &prices));
            (slot, lines.unwrap_or_default())
        };
        let lines: Vec<_> = drafts.into_iter().map(lines).filter(|(_, lines)| !lines.is_empty()).collect();
        // BlockPool that were taken for drafts may have been another text's.
        let released = state.scheduler.released();
        drop(state);
        self.release(&released);
        let slice = self.pace.chunk(decoding, 0);
        let drafted = lines.into_iter().flat_map(|(slot, lines)| self.draft(&slot, lines, slice, &prices));
        let drafted: Vec<Drafted> = drafted.collect();
        self.propose_drafted(drafted);
    }

    /// The answers of a model for which a draft pays, with blocks for the drafted tokens.
    fn lines(
        &mut self,
        model: ModelId,
        drafter: &mut DraftModel,
        state: &mut State,
        prices: &SpeculationCosts,
    ) -> Vec<DraftSequence> {
        let (room, expected) = (self.runtime.memory.room(), state.expected_tokens());
        let requests = self.active.iter_mut().filter(|(_, request)| request.model.key == model);
        let answers = requests.flat_map(|(id, request)| request.drafting(*id));
        let mut open: Vec<_> = answers.filter(|(id, _)| state.scheduler.draft_context(*id).is_some()).collect();
        let (count, mut lines) = (open.len(), Vec::new());
        for (id, drafting) in &mut open {
            if let Some(round) = drafting.newest() {
                drafter.usual.follow(&round);
            }
            let effort = drafting.effort(&drafter.usual);
            let Some(stem) = state.scheduler.draft_context(*id) else { continue };
            let most = MAX_DRAFT_TOKENS.min(stem.left.saturating_sub(1) as usize);
            let left = stem.left.min(expected);
            if !drafter.pays(&stem, left, &effort, count, prices, drafting.rival()) {
                drafter.usual.recover();
                continue;
            }
            let most = state.scheduler.reserve_lookahead(*id, most, room);
            if let Some(stem) = state.scheduler.draft_context(*id).filter(|_| most > 0) {
                lines.push(DraftSequence::new(*id, &stem, most, effort, drafting.has_begun()));
            }
        }
        lines
    }

    fn draft(
        &self,
        slot: &DraftSlot,
        mut lines: Vec<DraftSequence>,
        slice: usize,
        prices: &SpeculationCosts,
    ) -> Vec<Drafted> {
        let mut held = slot.lock();
        let Some(drafter) = held.as_mut() else { return Vec::new() };
        match drafter.draft(&mut lines, slice, prices, self.runtime.clock.as_ref()) {
            Ok(()) => lines.into_iter().filter_map(DraftSequence::finish).collect(),
            Err(reason) => {
                tracing::error!(model = drafter.id(), reason, "the draft model failed and is not used any more");
                drop(held);
                drop(slot.take(None));
                Vec::new()
            }
        }
    }

    fn propose_drafted(&mut self, drafted: Vec<Drafted>) {
        let mut state = self.queue.lock();
        for (id, tokens, trial) in drafted {
            if let Some(drafting) = self.active.get_mut(&id.request).and_then(|one| one.drafting_of(id.choice)) {
                drafting.begin(trial);
                if tokens.is_empty() {
                    // What was proposed before stays.
                    drafting.learn(0, 0);
                } else {
                    state.scheduler.propose(id, tokens);
                }
            }
        }
    }
}
