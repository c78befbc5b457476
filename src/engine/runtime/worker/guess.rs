//! Which tokens may follow the newest ones, asked before a step is planned: of what was said before,
//! and of a draft model where that is likely to save more.

use std::sync::Arc;

use super::Worker;
use crate::engine::runtime::queue::Inbox;
use crate::engine::settings::MOST_GUESSED;
use crate::engine::text::scheduler::{ModelId, SequenceId};
use crate::engine::text::speculative::draft_model::{Drafter, Line, Slot};
use crate::engine::text::speculative::draft_stats::Trial;
use crate::engine::text::step_cost::Prices;
use crate::models::kv::BlockId;

/// What drafting made: the answer, its guesses and what they took.
type Guessed = (SequenceId, Vec<u32>, Trial);

impl Worker {
    /// Proposes what may follow the newest token of each answer, where checking that pays.
    pub(super) fn guess(&mut self) {
        if !self.shared.settings.speculate {
            return;
        }
        let shared = Arc::clone(&self.shared);
        let mut inbox = shared.lock();
        let decoding = inbox.scheduler.decoding();
        let Some(prices) = self.pace.prices(decoding) else { return };
        self.jobs.iter_mut().for_each(|(id, job)| job.guess(*id, &mut inbox.scheduler, &prices));
        let slots: Vec<_> = self.slots.iter().filter(|(_, slot)| slot.is_taken()).collect();
        let slots: Vec<(ModelId, Arc<Slot>)> = slots.into_iter().map(|(id, slot)| (*id, Arc::clone(slot))).collect();
        let lines = |(model, slot): (ModelId, Arc<Slot>)| {
            let lines = slot.lock().as_mut().map(|drafter| self.lines(model, drafter, &mut inbox, &prices));
            (slot, lines.unwrap_or_default())
        };
        let lines: Vec<_> = slots.into_iter().map(lines).filter(|(_, lines)| !lines.is_empty()).collect();
        // Blocks that were taken for guesses may have been another text's.
        let released = inbox.scheduler.released();
        drop(inbox);
        self.release(&released);
        let slice = self.pace.chunk(decoding, 0);
        let guessed = lines.into_iter().flat_map(|(slot, lines)| self.draft(&slot, lines, slice, &prices));
        let guessed: Vec<Guessed> = guessed.collect();
        self.propose(guessed);
    }

    /// Gives back the memory of blocks that are free.
    pub(super) fn release(&mut self, released: &[(ModelId, BlockId)]) {
        for (model, block) in released {
            if let Some(arena) = self.arenas.get_mut(model) {
                arena.release(*block);
            }
            if let Some(slot) = self.slots.get(model).filter(|slot| slot.is_taken())
                && let Some(drafter) = slot.lock().as_mut()
            {
                drafter.release(*block);
            }
        }
    }

    /// The answers of a model that a draft pays for, with blocks for the guesses.
    fn lines(&mut self, model: ModelId, drafter: &mut Drafter, inbox: &mut Inbox, prices: &Prices) -> Vec<Line> {
        let (room, usual) = (self.shared.budget.room(), inbox.usual());
        let jobs = self.jobs.iter_mut().filter(|(_, job)| job.model.key == model);
        let answers = jobs.flat_map(|(id, job)| job.drafting(*id));
        let mut open: Vec<_> = answers.filter(|(id, _)| inbox.scheduler.stem(*id).is_some()).collect();
        let (count, mut lines) = (open.len(), Vec::new());
        for (id, drafting) in &mut open {
            if let Some(round) = drafting.newest() {
                drafter.usual.follow(&round);
            }
            let effort = drafting.effort(&drafter.usual);
            let Some(stem) = inbox.scheduler.stem(*id) else { continue };
            let most = MOST_GUESSED.min(stem.left.saturating_sub(1) as usize);
            let left = stem.left.min(usual);
            if !drafter.pays(&stem, left, &effort, count, prices, drafting.rival()) {
                drafter.usual.recover();
                continue;
            }
            let most = inbox.scheduler.ahead(*id, most, room);
            if let Some(stem) = inbox.scheduler.stem(*id).filter(|_| most > 0) {
                lines.push(Line::new(*id, &stem, most, effort, drafting.has_begun()));
            }
        }
        lines
    }

    fn draft(&self, slot: &Slot, mut lines: Vec<Line>, slice: usize, prices: &Prices) -> Vec<Guessed> {
        let mut held = slot.lock();
        let Some(drafter) = held.as_mut() else { return Vec::new() };
        match drafter.draft(&mut lines, slice, prices, self.clock.as_ref()) {
            Ok(()) => lines.into_iter().filter_map(Line::finish).collect(),
            Err(reason) => {
                tracing::error!(model = drafter.id(), reason, "the draft model failed and is not used any more");
                drop(held);
                drop(slot.take(None));
                Vec::new()
            }
        }
    }

    fn propose(&mut self, guessed: Vec<Guessed>) {
        let mut inbox = self.shared.lock();
        for (id, guesses, trial) in guessed {
            if let Some(drafting) = self.jobs.get_mut(&id.request).and_then(|job| job.drafting_of(id.choice)) {
                drafting.begin(trial);
                if guesses.is_empty() {
                    // What was proposed before stays.
                    drafting.learn(0, 0);
                } else {
                    inbox.scheduler.propose(id, guesses);
                }
            }
        }
    }
}
