//! Drafts with a network's own layer for multi-token prediction (`models::decoder::mtp`).
//!
//! The layer continues from the hidden state before the newest token, which the last step computed ([`HiddenState`]). Its keys and values
//! are in the blocks of the sequence, and each step of the network writes those of the tokens that it computes. So there is nothing to
//! catch up with, and nothing to undo when draft tokens are rejected. Drafts of adapters come from the layer of their base.

use super::draft_model::most_likely;
use super::draft_payoff::{DraftPayoff, DraftProgress, Round, RoundStats};
use crate::text::model::TextModel;
use crate::text::scheduler::{DraftStart, Row, SequenceId};
use crate::text::step_cost_model::SpeculationCosts;
use outpost_common::clock_rng::ClockRng;
use outpost_models::ModelError;
use outpost_models::causal_lm::{BatchRow, LogitsAt};
use outpost_models::kv::{BLOCK, BlockId};
use outpost_models::state_arenas::StateArenas;

/// The hidden state of a sequence after the positions that are computed.
#[derive(Debug, Default)]
pub struct HiddenState {
    /// The number of these positions.
    computed: usize,
    values: Vec<f32>,
}

impl HiddenState {
    /// The state, if it is the one after so many positions: others may have been found in the prefix cache.
    pub fn after(&self, computed: usize) -> Option<&[f32]> {
        (computed > 0 && self.computed == computed).then_some(&self.values)
    }

    /// Takes over the states of a step. `states`: those of the row's tokens with logits, or of its last token. `positions`: tokens of the
    /// row that stay.
    pub fn update(&mut self, row: &Row, positions: usize, states: &[f32]) {
        let count = if row.logits == LogitsAt::All { row.tokens.len() } else { 1 };
        let rejects = positions < row.tokens.len();
        // With recurrent layers, the tokens of this row that stay are computed again.
        if rejects && row.state.is_some() {
            return;
        }
        let last = (positions + count).checked_sub(row.tokens.len() + 1);
        let state = last.and_then(|last| states.chunks_exact((states.len() / count).max(1)).nth(last));
        if let Some(state) = state {
            (self.computed, self.values) = (row.start + positions, state.to_vec());
        }
    }
}

/// What is known of drafts with the layer of one model.
#[derive(Debug)]
pub struct MtpDrafter {
    pub payoff: DraftPayoff,
    /// Set after an error.
    is_disabled: bool,
}

/// A sequence that is drafted for.
#[derive(Debug)]
pub struct MtpDraft {
    id: SequenceId,
    /// The last token that the layer has not computed, and its position.
    token: u32,
    position: usize,
    /// The hidden state before it.
    hidden: Vec<f32>,
    /// Blocks of the first group.
    blocks: Vec<BlockId>,
    long: bool,
    drafted: Vec<u32>,
    progress: DraftProgress,
    /// Another token is drafted.
    continues: bool,
}

impl MtpDraft {
    /// `hidden`: the hidden state before the newest token. `blocks`: those of the first group, for all tokens and `max_tokens` more.
    pub fn new(
        id: SequenceId,
        start: DraftStart,
        hidden: &[f32],
        blocks: &[BlockId],
        stats: RoundStats,
        max_tokens: usize,
    ) -> Self {
        let DraftStart { token, position, long, .. } = start;
        let (hidden, blocks) = (hidden.to_vec(), blocks.to_vec());
        let (drafted, progress) = (Vec::new(), DraftProgress::new(stats, max_tokens));
        Self { id, token, position, hidden, blocks, long, drafted, progress, continues: true }
    }

    /// The blocks to which the layer writes.
    pub fn new_blocks(&self) -> impl Iterator<Item = BlockId> {
        self.blocks.iter().skip(self.position / BLOCK).copied()
    }

    fn row(&self) -> BatchRow<'_> {
        BatchRow {
            tokens: std::slice::from_ref(&self.token),
            embedded: &[],
            start: self.position,
            tables: std::slice::from_ref(&self.blocks),
            state: None,
            logits: LogitsAt::Last,
            long: self.long,
            adapter: None,
            hidden: Some(&self.hidden),
        }
    }

    /// Adds the most likely token if it is likely enough to be verified.
    fn push(&mut self, logits: &[f32], hidden: Vec<f32>, model: &TextModel, costs: &SpeculationCosts) {
        self.continues = false;
        let Some((token, confidence)) = most_likely(logits) else { return };
        if self.progress.push(confidence, costs) {
            self.drafted.push(token);
            (self.token, self.position, self.hidden) = (token, self.position + 1, hidden);
            self.continues = self.progress.has_room() && !model.vocabulary.eos_ids().contains(&token);
        }
    }

    /// The draft tokens and their round.
    pub fn finish(self) -> (SequenceId, Vec<u32>, Round) {
        (self.id, self.drafted, self.progress.round)
    }
}

impl MtpDrafter {
    /// `cost`: that of a draft token relative to a token of the network, as sizes suggest.
    pub fn new(cost: f64) -> Self {
        Self { payoff: DraftPayoff::new(cost), is_disabled: false }
    }

    pub fn is_enabled(&self) -> bool {
        !self.is_disabled
    }

    pub fn disable(&mut self) {
        self.is_disabled = true;
    }

    /// Drafts for all sequences in one batch, as long as that pays.
    pub fn draft(
        &mut self,
        model: &TextModel,
        arenas: &mut StateArenas,
        drafts: &mut [MtpDraft],
        costs: &SpeculationCosts,
        clock: &dyn ClockRng,
    ) -> Result<(), ModelError> {
        while drafts.iter().any(|draft| draft.continues) {
            let rows: Vec<_> = drafts.iter().filter(|draft| draft.continues).map(MtpDraft::row).collect();
            let began = clock.uptime();
            let mut logits = model.draft(&rows, arenas)?;
            let took = clock.uptime().saturating_sub(began);
            self.payoff.costs.measure(rows.len(), took.as_secs_f64(), costs);
            let hidden = logits.take_hidden();
            let going = drafts.iter_mut().filter(|draft| draft.continues);
            for ((draft, logits), hidden) in going.zip(logits.rows().into_iter().flatten()).zip(hidden) {
                let vocabulary = model.vocabulary().min(logits.len());
                draft.push(&logits[..vocabulary], hidden, model, costs);
            }
            model.network.reuse(logits);
            self.stop_unprofitable(drafts, costs);
        }
        Ok(())
    }

    fn stop_unprofitable(&self, drafts: &mut [MtpDraft], costs: &SpeculationCosts) {
        let cost = self.payoff.costs.estimate(costs);
        let gain = |draft: &MtpDraft| draft.progress.expected_gain(costs);
        drafts.iter_mut().for_each(|draft| draft.continues &= gain(draft) > cost.further);
        if !cost.is_worth(drafts.iter().filter(|draft| draft.continues).map(gain)) {
            drafts.iter_mut().for_each(|draft| draft.continues = false);
        }
    }
}
