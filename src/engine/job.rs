//! A request that runs: first its prompt, chunk by chunk, then its choices, token by token.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::{OwnedPermit, Sender};

use super::budget::Lease;
use super::queue::Waiting;
use super::request::{Failure, Generation, Sent};
use super::sequence::Sequence;
use super::text::TextModel;
use crate::models::kv::KvCache;
use crate::models::llama::Row;

pub(super) struct Job {
    pub model: Arc<TextModel>,
    request: Generation,
    sender: Sender<Sent>,
    last: Option<OwnedPermit<Sent>>,
    stage: Stage,
    /// When its prompt was computed last; the longest waiting goes first.
    pub turn: u64,
    /// Nothing more is to be done: all choices ended, it failed, or its caller left.
    pub over: bool,
    /// Since when no choice can go on because nobody reads.
    unread_since: Option<Duration>,
    _memory: Lease,
}

enum Stage {
    /// `done` tokens of the prompt are in the cache. `None`: the cache went to the choices.
    Prefill {
        kv: Option<KvCache>,
        done: usize,
    },
    Decode(Vec<Sequence>),
}

/// A job's share of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The next so many tokens of the prompt.
    Prompt(usize),
    /// The newest token of the sequence at this index.
    Choice(usize),
}

impl Job {
    pub fn new(waiting: Waiting, memory: Lease) -> Self {
        let Waiting { model, request, sender, last } = waiting;
        let limit = request.prompt.len() + request.max_tokens as usize;
        let mut job = Self {
            model,
            request,
            sender,
            last: Some(last),
            stage: Stage::Prefill { kv: None, done: 0 },
            turn: 0,
            over: false,
            unread_since: None,
            _memory: memory,
        };
        match job.model.network.cache(limit) {
            Ok(kv) => job.stage = Stage::Prefill { kv: Some(kv), done: 0 },
            Err(error) => job.fail(Failure::Broken(error.to_string())),
        }
        job
    }

    pub fn tenant(&self) -> u128 {
        self.request.tenant
    }

    pub fn is_prefilling(&self) -> bool {
        matches!(self.stage, Stage::Prefill { .. })
    }

    /// Answers that run or will.
    pub fn places(&self) -> usize {
        match &self.stage {
            Stage::Prefill { .. } => self.request.choices as usize,
            Stage::Decode(sequences) => sequences.len(),
        }
    }

    /// Tokens that the job may still take.
    pub fn remaining(&self) -> u64 {
        match &self.stage {
            Stage::Prefill { done, .. } => {
                (self.request.prompt.len() - done) as u64
                    + u64::from(self.request.choices) * u64::from(self.request.max_tokens)
            }
            Stage::Decode(sequences) => sequences.iter().map(|sequence| u64::from(sequence.remaining())).sum(),
        }
    }

    pub fn caller_left(&self) -> bool {
        self.sender.is_closed()
    }

    /// Tells the caller and ends the job.
    pub fn fail(&mut self, failure: Failure) {
        self.over = true;
        if let Some(last) = self.last.take() {
            drop(last.send(Err(failure)));
        }
    }

    /// Ends the job of a reader that has taken nothing for longer than `patience`: its places and
    /// its memory belong to others. `planned`: whether the job has a part in the step.
    pub fn expect_reader(&mut self, planned: bool, now: Duration, patience: Duration) {
        if planned || self.is_prefilling() {
            self.unread_since = None;
        } else if now.saturating_sub(*self.unread_since.get_or_insert(now)) > patience {
            self.fail(Failure::Unread);
        }
    }

    /// What the job can do now: a chunk of its prompt if it has the turn, or a token for each
    /// choice whose reader keeps up.
    pub fn plan(&mut self, chunk: Option<usize>) -> Vec<Part> {
        match &mut self.stage {
            Stage::Prefill { done, .. } => {
                let left = self.request.prompt.len() - *done;
                chunk.map(|chunk| Part::Prompt(left.min(chunk.max(1)))).into_iter().collect()
            }
            Stage::Decode(sequences) => {
                let ready = sequences
                    .iter_mut()
                    .enumerate()
                    .filter_map(|(index, sequence)| reserve(&self.sender, sequence).then_some(Part::Choice(index)));
                ready.collect()
            }
        }
    }

    /// The rows of these parts, in the same order.
    pub fn rows<'a>(&'a mut self, parts: &[Part], rows: &mut Vec<Row<'a>>) {
        let prompt = &self.request.prompt;
        match &mut self.stage {
            Stage::Prefill { kv: Some(kv), done } => {
                if let Some(Part::Prompt(count)) = parts.first() {
                    let end = *done + count;
                    let tokens = prompt.get(*done..end).unwrap_or_default();
                    rows.push(Row { tokens, kv, wants_logits: end == prompt.len() });
                }
            }
            Stage::Prefill { kv: None, .. } => {}
            Stage::Decode(sequences) => {
                for (index, sequence) in sequences.iter_mut().enumerate() {
                    if parts.contains(&Part::Choice(index)) {
                        let tokens = std::slice::from_ref(&sequence.newest);
                        rows.push(Row { tokens, kv: &mut sequence.kv, wants_logits: true });
                    }
                }
            }
        }
    }

    /// Takes what a step made of one part.
    pub fn accept(&mut self, part: Part, logits: Option<Vec<f32>>) {
        let outcome = match part {
            Part::Prompt(count) => self.advance(count, logits),
            Part::Choice(index) => self.token(index, logits),
        };
        if let Err(failure) = outcome {
            self.fail(failure);
        }
    }

    fn advance(&mut self, count: usize, logits: Option<Vec<f32>>) -> Result<(), Failure> {
        let Stage::Prefill { kv, done } = &mut self.stage else { return Ok(()) };
        *done += count;
        let (Some(logits), Some(kv)) = (logits, kv.take_if(|_| *done == self.request.prompt.len())) else {
            return Ok(());
        };
        let caches = caches(kv, self.request.choices).map_err(|error| Failure::Broken(error.to_string()))?;
        let new = |(choice, kv)| Sequence::new(&self.model, &self.request, choice, kv);
        self.stage = Stage::Decode((0..).zip(caches).map(new).collect());
        for part in self.plan(None) {
            if let Part::Choice(index) = part {
                self.token(index, Some(logits.clone()))?;
            }
        }
        Ok(())
    }

    fn token(&mut self, index: usize, logits: Option<Vec<f32>>) -> Result<(), Failure> {
        let Stage::Decode(sequences) = &mut self.stage else { return Ok(()) };
        let (Some(sequence), Some(logits)) = (sequences.get_mut(index), logits) else { return Ok(()) };
        let piece = sequence.accept(logits)?;
        if let Some(permit) = sequence.permit.take() {
            drop(permit.send(Ok(piece)));
        }
        Ok(())
    }

    /// Lets go of choices that ended; their caches are free at once.
    pub fn tidy(&mut self) {
        if let Stage::Decode(sequences) = &mut self.stage {
            sequences.retain(|sequence| !sequence.ended);
            self.over |= sequences.is_empty();
        }
    }
}

/// Room in the channel for the next piece. Without it the sequence pauses, and only it.
fn reserve(sender: &Sender<Sent>, sequence: &mut Sequence) -> bool {
    if sequence.permit.is_none() {
        // Left or slow: the next sweep tells which.
        sequence.permit = sender.clone().try_reserve_owned().ok();
    }
    sequence.permit.is_some()
}

/// One cache for each choice: copies, and the original for the last.
fn caches(kv: KvCache, choices: u32) -> candle_core::Result<Vec<KvCache>> {
    let mut all = (1..choices).map(|_| kv.fork()).collect::<candle_core::Result<Vec<_>>>()?;
    all.push(kv);
    Ok(all)
}
