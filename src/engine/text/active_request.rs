//! A request that runs: who reads it, and what becomes of each of its answers.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{OwnedPermit, Sender};

use crate::engine::error::Failure;
use crate::engine::runtime::metrics::{DraftSource, Metrics};
use crate::engine::text::model::TextModel;
use crate::engine::text::queue::QueuedRequest;
use crate::engine::text::request::{Sent, TextDelta};
use crate::engine::text::scheduler::{RequestId, Row, SequenceId};
use crate::engine::text::sequence::Sequence;
use crate::engine::text::speculative::draft_stats::DraftState;
use crate::engine::text::speculative::ngram::NgramProposer;
use crate::engine::text::step_cost::SpeculationCosts;

pub struct ActiveRequest {
    pub model: Arc<TextModel>,
    sender: Sender<Sent>,
    last: Option<OwnedPermit<Sent>>,
    /// By choice; `None` where one has ended.
    choices: Vec<Option<Choice>>,
    /// Prompt tokens that were in the cache.
    cached: u32,
    /// Since when an answer cannot go on because nobody reads.
    unread_since: Option<Duration>,
    submitted: Duration,
}

struct Choice {
    sequence: Sequence,
    /// Room in the channel for what the next step makes.
    permit: Option<OwnedPermit<Sent>>,
    ngrams: NgramProposer,
    draft: DraftState,
    /// When its last_token_at token was made.
    last_token_at: Option<Duration>,
}

/// What a row came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Tokens of the row that are part of the text.
    pub positions: usize,
    pub new: Vec<u32>,
    pub ended: bool,
}

impl ActiveRequest {
    /// `cached`: prompt tokens that were in the cache.
    pub fn new(queued: QueuedRequest, cached: usize) -> Self {
        let QueuedRequest { model, request, sender, last, at } = queued;
        let choice = |choice| {
            let (sequence, ngrams) = (Sequence::new(&model, &request, choice), NgramProposer::new(&request.prompt));
            Some(Choice { sequence, permit: None, ngrams, draft: DraftState::default(), last_token_at: None })
        };
        let choices = (0..request.choices).map(choice).collect();
        let cached = u32::try_from(cached).unwrap_or(u32::MAX);
        Self { model, sender, last: Some(last), choices, cached, unread_since: None, submitted: at }
    }

    pub fn caller_left(&self) -> bool {
        self.sender.is_closed()
    }

    /// All of its answers have ended.
    pub fn is_over(&self) -> bool {
        self.choices.iter().all(Option::is_none)
    }

    /// Tells the caller that it ends here.
    pub fn fail(mut self, failure: Failure) {
        if let Some(last) = self.last.take() {
            drop(last.send(Err(failure)));
        }
    }

    /// Reserves room for the next piece of each choice. Adds to `paused` which choices cannot go on, because their
    /// client is slow, and which can. `false`: it has been slow for longer than `timeout`.
    pub fn reserve(
        &mut self,
        request: RequestId,
        paused: &mut Vec<(SequenceId, bool)>,
        now: Duration,
        timeout: Duration,
    ) -> bool {
        let mut slow = false;
        for (choice, one) in (0..).zip(&mut self.choices) {
            let Some(one) = one else { continue };
            if one.permit.is_none() {
                // Left or slow: the next sweep tells which.
                one.permit = self.sender.clone().try_reserve_owned().ok();
            }
            paused.push((SequenceId { request, choice }, one.permit.is_none()));
            slow |= one.permit.is_none();
        }
        self.unread_since = if slow { Some(self.unread_since.unwrap_or(now)) } else { None };
        self.unread_since.is_none_or(|since| now.saturating_sub(since) <= timeout)
    }

    /// The n-gram proposals for each choice that has begun, where such proposals were accepted often enough.
    pub fn propose_ngrams(&mut self, request: RequestId, costs: &SpeculationCosts) -> Vec<(SequenceId, Vec<u32>)> {
        let propose = |(choice, one): (u32, &mut Option<Choice>)| {
            let one = one.as_mut().filter(|one| one.last_token_at.is_some())?;
            let tokens = one.ngrams.propose(costs.break_even_acceptance());
            let saved = f64::from(one.ngrams.acceptance()) * costs.token - costs.check;
            one.draft.skip_round(tokens.len() as f64 * saved);
            Some((SequenceId { request, choice }, tokens))
        };
        (0..).zip(&mut self.choices).filter_map(propose).collect()
    }

    /// How guessing with a draft model goes in each answer.
    pub fn draft_states(&mut self, request: RequestId) -> impl Iterator<Item = (SequenceId, &mut DraftState)> {
        let choices = (0..).zip(&mut self.choices);
        choices.filter_map(move |(choice, answer)| Some((SequenceId { request, choice }, &mut answer.as_mut()?.draft)))
    }

    /// The same of one answer, if it has not ended.
    pub fn draft_state_of(&mut self, choice: u32) -> Option<&mut DraftState> {
        self.choices.get_mut(choice as usize)?.as_mut().map(|answer| &mut answer.draft)
    }

    /// Takes the distributions that a row came to: one, or one after each token of a draft. Those
    /// after the first token that was not foreseen are of no use.
    pub fn accept(
        &mut self,
        row: &Row,
        logits: Vec<&mut [f32]>,
        now: Duration,
        metrics: &Metrics,
    ) -> Result<Outcome, Failure> {
        let own = row.tokens.len() - row.draft;
        let mut outcome = Outcome { positions: own, ..Outcome::default() };
        let slot = self.choices.get_mut(row.sequence.choice as usize);
        let Some(Some(answer)) = slot.filter(|_| !logits.is_empty()) else { return Ok(outcome) };
        let draft = row.tokens.get(own..).unwrap_or_default();
        let mut whole: Option<TextDelta> = None;
        for (at, logits) in logits.into_iter().enumerate() {
            let piece = answer.sequence.accept(logits)?;
            let token = answer.sequence.newest;
            outcome.new.push(token);
            outcome.positions = own + at;
            outcome.ended = piece.end.is_some();
            whole = Some(join(whole, piece));
            if outcome.ended || draft.get(at) != Some(&token) {
                break;
            }
        }
        let accepted = outcome.new.len().saturating_sub(1);
        let by = if answer.draft.finish_round(row.draft, accepted) {
            DraftSource::Draft
        } else {
            DraftSource::NgramProposer
        };
        if row.draft > 0 {
            metrics.guess(self.model.id(), by, row.draft, accepted);
        }
        match by {
            DraftSource::NgramProposer => answer.ngrams.record(row.draft, accepted),
            DraftSource::Draft => answer.ngrams.record_unchecked(&outcome.new),
        }
        answer.ngrams.push(&outcome.new);
        match answer.last_token_at.replace(now) {
            Some(before) => metrics.next_token(self.model.id(), now.saturating_sub(before)),
            None => metrics.first_token(self.model.id(), now.saturating_sub(self.submitted)),
        }
        if let (Some(permit), Some(piece)) = (answer.permit.take(), whole) {
            drop(permit.send(Ok(TextDelta { cached: self.cached, ..piece })));
        }
        if let Some(slot) = self.choices.get_mut(row.sequence.choice as usize)
            && outcome.ended
        {
            *slot = None;
        }
        Ok(outcome)
    }
}

/// Two pieces of one answer as one.
fn join(before: Option<TextDelta>, piece: TextDelta) -> TextDelta {
    let Some(mut whole) = before else { return piece };
    whole.text.push_str(&piece.text);
    whole.calls.extend(piece.calls);
    whole.tokens.extend(piece.tokens);
    TextDelta { text: whole.text, calls: whole.calls, tokens: whole.tokens, ..piece }
}
