//! A running request: its client's channel and the state of each choice.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{OwnedPermit, Sender};

use crate::error::Failure;
use crate::ids::RequestId;
use crate::runtime::metrics::{DraftSource, Metrics};
use crate::text::model::TextModel;
use crate::text::prompt::Prompt;
use crate::text::prompt_logprobs::PromptScorer;
use crate::text::queue::QueuedRequest;
use crate::text::request::{DeltaResult, GenerationRequest, PromptToken, TextDelta};
use crate::text::scheduler::{Row, SequenceId};
use crate::text::sequence::Sequence;
use crate::text::speculative::draft_payoff::DraftState;
use crate::text::speculative::mtp::HiddenState;
use crate::text::speculative::ngram::NgramProposer;
use crate::text::step_cost_model::SpeculationCosts;
use outpost_models::backend::Pool;

pub struct ActiveRequest {
    pub model: Arc<TextModel>,
    request: GenerationRequest,
    sender: Sender<DeltaResult>,
    final_permit: Option<OwnedPermit<DeltaResult>>,
    /// By choice; `None` once it has ended.
    choices: Vec<Option<Choice>>,
    /// Prompt tokens that were in the prefix cache.
    cached: u32,
    /// The log-probabilities of the prompt, if they are requested.
    prompt: PromptLogprobs,
    /// Since when a choice is paused because the client does not read.
    stalled_since: Option<Duration>,
    submitted: Duration,
}

struct Choice {
    /// `None` before its first token: a choice that waits for a slot needs no sampler and no grammar state.
    sequence: Option<Sequence>,
    /// Reserved room in the channel for the next delta.
    permit: Option<OwnedPermit<DeltaResult>>,
    ngrams: NgramProposer,
    draft: DraftState,
    /// Only if the network has a layer for multi-token prediction.
    hidden: HiddenState,
    /// When its last token was sampled.
    last_token_at: Option<Duration>,
}

/// The log-probabilities of a prompt.
enum PromptLogprobs {
    NotRequested,
    /// While the first choice computes the prompt.
    Computing(PromptScorer),
    Complete(Arc<[PromptToken]>),
}

impl PromptLogprobs {
    /// All of them, once the prompt is computed.
    fn complete(&mut self) -> Option<Arc<[PromptToken]>> {
        *self = match std::mem::replace(self, Self::NotRequested) {
            Self::Computing(scorer) => Self::Complete(scorer.finish()),
            other => other,
        };
        if let Self::Complete(tokens) = self { Some(Arc::clone(tokens)) } else { None }
    }
}

/// The outcome of one row.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Tokens of the row that stay in the sequence; the rest are rejected draft tokens.
    pub positions: usize,
    pub new: Vec<u32>,
    pub ended: bool,
}

impl ActiveRequest {
    /// `cached`: prompt tokens that were in the prefix cache.
    pub fn new(queued: QueuedRequest, cached: usize) -> Self {
        let QueuedRequest { model, request, sender, failure_permit, submitted_at: submitted, .. } = queued;
        let scorer = PromptScorer::new(&model, &request);
        let choice = |_| {
            let ngrams = NgramProposer::new(request.prompt.clone());
            let (draft, hidden) = (DraftState::default(), HiddenState::default());
            Some(Choice { sequence: None, permit: None, ngrams, draft, hidden, last_token_at: None })
        };
        let choices = (0..request.choices).map(choice).collect();
        let cached = u32::try_from(cached).unwrap_or(u32::MAX);
        Self {
            model,
            request,
            sender,
            final_permit: Some(failure_permit),
            choices,
            cached,
            prompt: scorer.map_or(PromptLogprobs::NotRequested, PromptLogprobs::Computing),
            stalled_since: None,
            submitted,
        }
    }

    pub fn prompt(&self) -> &Prompt {
        &self.request.prompt
    }

    pub fn is_cancelled(&self) -> bool {
        self.sender.is_closed()
    }

    /// True once all choices have ended, so that the request can be removed.
    pub fn is_finished(&self) -> bool {
        self.choices.iter().all(Option::is_none)
    }

    /// Ends the request with a failure.
    pub fn fail(mut self, failure: Failure) {
        if let Some(permit) = self.final_permit.take() {
            drop(permit.send(Err(failure)));
        }
    }

    /// Reserves channel room for the next delta of each choice. Appends to `paused` for each choice whether it must
    /// pause because the client is slow. `false`: the client has been slow for longer than `timeout`.
    pub fn reserve(
        &mut self,
        request: RequestId,
        paused: &mut Vec<(SequenceId, bool)>,
        now: Duration,
        timeout: Duration,
    ) -> bool {
        let mut slow = false;
        for (choice, slot) in (0..).zip(&mut self.choices) {
            let Some(state) = slot else { continue };
            if state.permit.is_none() {
                // The client is gone or slow: the next sweep tells which.
                state.permit = self.sender.clone().try_reserve_owned().ok();
            }
            paused.push((SequenceId { request, choice }, state.permit.is_none()));
            slow |= state.permit.is_none();
        }
        self.stalled_since = if slow { Some(self.stalled_since.unwrap_or(now)) } else { None };
        self.stalled_since.is_none_or(|since| now.saturating_sub(since) <= timeout)
    }

    /// N-gram proposals for each choice with a token; empty if too few of its proposals were accepted.
    pub fn propose_ngrams(&mut self, request: RequestId, costs: &SpeculationCosts) -> Vec<(SequenceId, Vec<u32>)> {
        let propose = |(choice, slot): (u32, &mut Option<Choice>)| {
            let state = slot.as_mut().filter(|state| state.last_token_at.is_some())?;
            let tokens = state.ngrams.propose(costs.break_even_acceptance());
            let saved = f64::from(state.ngrams.acceptance()) * costs.token - costs.check;
            state.draft.skip_round(tokens.len() as f64 * saved);
            Some((SequenceId { request, choice }, tokens))
        };
        (0..).zip(&mut self.choices).filter_map(propose).collect()
    }

    /// The drafting state and the hidden state of each choice.
    pub fn draft_states(
        &mut self,
        request: RequestId,
    ) -> impl Iterator<Item = (SequenceId, &mut DraftState, &HiddenState)> {
        let choices = (0..).zip(&mut self.choices);
        choices.filter_map(move |(choice, slot)| {
            let Choice { draft, hidden, .. } = slot.as_mut()?;
            Some((SequenceId { request, choice }, draft, &*hidden))
        })
    }

    /// The hidden state of a choice after `computed` positions, if it is known.
    pub fn hidden(&self, choice: u32, computed: usize) -> Option<&[f32]> {
        self.choices.get(choice as usize)?.as_ref()?.hidden.after(computed)
    }

    /// Takes over the hidden states that a row has computed, of which `positions` tokens stay.
    pub fn update_hidden(&mut self, row: &Row, positions: usize, states: &[f32]) {
        if let Some(Some(choice)) = self.choices.get_mut(row.sequence.choice as usize) {
            choice.hidden.update(row, positions, states);
        }
    }

    /// The drafting state of one choice, if it has not ended.
    pub fn draft_state_of(&mut self, choice: u32) -> Option<&mut DraftState> {
        self.choices.get_mut(choice as usize)?.as_mut().map(|choice| &mut choice.draft)
    }

    /// Takes the logits of the prompt's positions from `start` on, except the last.
    pub fn score_prompt(&mut self, start: usize, logits: &[&mut [f32]], pool: &Pool) -> Result<(), Failure> {
        match &mut self.prompt {
            PromptLogprobs::Computing(scorer) => scorer.add(start, logits, pool),
            PromptLogprobs::NotRequested | PromptLogprobs::Complete(_) => Ok(()),
        }
    }

    /// Samples from the logits of a row: one distribution, plus one for each draft token. Stops at the first sampled
    /// token that differs from the draft, as later logits depend on rejected tokens.
    pub fn accept(
        &mut self,
        row: &Row,
        logits: Vec<&mut [f32]>,
        now: Duration,
        metrics: &Metrics,
    ) -> Result<Outcome, Failure> {
        let known = row.tokens.len() - row.draft;
        let mut outcome = Outcome { positions: known, ..Outcome::default() };
        let slot = self.choices.get_mut(row.sequence.choice as usize);
        let Some(Some(choice)) = slot.filter(|_| !logits.is_empty()) else { return Ok(outcome) };
        let prompt = if choice.sequence.is_none() { self.prompt.complete() } else { None };
        let new = || Sequence::new(&self.model, &self.request, row.sequence.choice);
        let sequence = choice.sequence.get_or_insert_with(new);
        if let Some(delta) = sequence.end_at_prompt() {
            if let Some(permit) = choice.permit.take() {
                drop(permit.send(Ok(TextDelta { cached: self.cached, prompt, ..delta })));
            }
            if let Some(slot) = self.choices.get_mut(row.sequence.choice as usize) {
                *slot = None;
            }
            return Ok(Outcome { ended: true, ..outcome });
        }
        let draft = &row.tokens[known..];
        let mut combined: Option<TextDelta> = None;
        for (at, logits) in logits.into_iter().enumerate() {
            let delta = sequence.sample(logits)?;
            let token = sequence.last_token;
            outcome.new.push(token);
            outcome.positions = known + at;
            outcome.ended = delta.end.is_some();
            combined = Some(merge(combined, delta));
            if outcome.ended || draft.get(at) != Some(&token) {
                break;
            }
        }
        let accepted = outcome.new.len().saturating_sub(1);
        // Recurrent layers compute the tokens that stay again if others are rejected.
        let repeated = if row.state.is_some() && accepted < row.draft { outcome.positions } else { 0 };
        let by = match choice.draft.finish_round(row.draft, accepted, repeated) {
            false => DraftSource::Ngram,
            true if self.model.network.mtp_cost().is_some() => DraftSource::Mtp,
            true => DraftSource::DraftModel,
        };
        if row.draft > 0 {
            metrics.record_drafts(self.model.id(), by, row.draft, accepted);
        }
        match by {
            DraftSource::Ngram => choice.ngrams.record(row.draft, accepted),
            DraftSource::DraftModel | DraftSource::Mtp => choice.ngrams.record_unchecked(&outcome.new),
        }
        choice.ngrams.push(&outcome.new);
        match choice.last_token_at.replace(now) {
            Some(before) => metrics.next_token(self.model.id(), now.saturating_sub(before)),
            None => metrics.first_token(self.model.id(), now.saturating_sub(self.submitted)),
        }
        if let (Some(permit), Some(delta)) = (choice.permit.take(), combined) {
            drop(permit.send(Ok(TextDelta { cached: self.cached, prompt, ..delta })));
        }
        if let Some(slot) = self.choices.get_mut(row.sequence.choice as usize)
            && outcome.ended
        {
            *slot = None;
        }
        Ok(outcome)
    }
}

/// Merges two deltas of one choice.
fn merge(earlier: Option<TextDelta>, delta: TextDelta) -> TextDelta {
    let Some(mut combined) = earlier else { return delta };
    combined.reasoning.push_str(&delta.reasoning);
    combined.text.push_str(&delta.text);
    combined.calls.extend(delta.calls);
    combined.tokens.extend(delta.tokens);
    combined.token_ids.extend(delta.token_ids);
    let TextDelta { reasoning, text, calls, tokens, token_ids, .. } = combined;
    TextDelta { reasoning, text, calls, tokens, token_ids, ..delta }
}
