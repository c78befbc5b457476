//! Guesses what comes next with a smaller network of the same vocabulary.
//!
//! (Leviathan et al. 2023, <https://arxiv.org/abs/2211.17192>.) The draft network takes its likeliest
//! token each time; the guesses are checked like those of [`crate::engine::text::speculative::ngram`], so answers do not change.
//!
//! Its keys and values lie in an arena of their own whose blocks have the numbers of the served
//! model's: a block and its twin are of the same positions of the same text, so sharing, caching and
//! release are the scheduler's, as they are. What a twin holds is known by its tokens: where they are
//! not those of the text, guesses were rejected or nothing was computed yet, and the draft network
//! catches up, in slices, when it is wanted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock_rng::ClockRng;
use crate::engine::settings::MOST_GUESSED;
use crate::engine::text::scheduler::{SequenceId, Stem};
use crate::engine::text::speculative::draft_stats::{Costs, Effort, Trial};
use crate::engine::text::step_cost::Prices;
use crate::models::decoder::{BatchRow, Logits, LogitsAt};
use crate::models::kv::{BLOCK, BlockId, KvArena, KvShape, KvType};

/// Logits so far below the best add nothing to a sum of probabilities.
const NEGLIGIBLE: f32 = 16.;

/// What is needed of the network that drafts.
pub trait DraftNetwork: Send + Sync {
    fn id(&self) -> &str;

    /// Positions that a sequence can have.
    fn context_window(&self) -> u32;

    /// The sizes of its keys and values.
    fn kv_shape(&self, kind: KvType) -> KvShape;

    /// Bytes of its weights.
    fn weight_bytes(&self) -> u64;

    /// Whether a text may end with the token.
    fn ends_with(&self, token: u32) -> bool;

    fn forward(&self, rows: &[BatchRow<'_>], arena: &mut KvArena) -> Result<Logits, String>;

    /// Gives back what [`Self::forward`] gave, so that the next step need not ask for memory.
    fn reuse(&self, logits: Logits);
}

pub struct Drafter {
    model: Arc<dyn DraftNetwork>,
    /// Ids below this mean the same to both networks.
    vocabulary: usize,
    arena: KvArena,
    /// The tokens whose keys and values are in a block.
    computed: HashMap<BlockId, Vec<u32>>,
    costs: Costs,
    /// What a round comes to, whatever the answer.
    pub usual: Effort,
}

/// An answer to guess ahead of.
#[derive(Debug)]
pub struct Line {
    pub id: SequenceId,
    /// The text, then what was guessed.
    tokens: Vec<u32>,
    /// So many of `tokens` are the text.
    text: usize,
    blocks: Vec<BlockId>,
    long: bool,
    /// Guesses that there is room for.
    most: usize,
    /// What the next step computes: so many tokens from this position on.
    start: usize,
    count: usize,
    /// How likely all guesses so far are to come true.
    reach: f64,
    effort: Effort,
    /// Whether there were rounds before: what it takes to catch up is part of this one then.
    begun: bool,
    trial: Trial,
}

impl Line {
    /// `most`: guesses that `stem` has blocks for.
    pub fn new(id: SequenceId, stem: &Stem<'_>, most: usize, effort: Effort, begun: bool) -> Self {
        Self {
            id,
            tokens: stem.tokens.to_vec(),
            text: stem.tokens.len(),
            blocks: stem.blocks.to_vec(),
            long: stem.long,
            most,
            start: 0,
            count: 0,
            reach: 1.,
            effort,
            begun,
            trial: Trial::default(),
        }
    }

    /// The guesses and what they took. `None`: the draft network is still catching up.
    pub fn finish(mut self) -> Option<(SequenceId, Vec<u32>, Trial)> {
        let guesses = self.tokens.split_off(self.text);
        (self.trial.steps > 0).then_some((self.id, guesses, self.trial))
    }

    /// Seconds that one more guess is likely to save, its check paid.
    fn hope(&self, prices: &Prices) -> f64 {
        self.reach * self.effort.hits() * prices.token - prices.check
    }

    /// The draft network says what comes next. `false`: that is not likely enough to be checked.
    fn take(&mut self, token: u32, sure: f32, prices: &Prices) -> bool {
        self.trial.steps += 1;
        self.reach *= self.effort.chance(sure);
        let worth = self.reach * prices.token > prices.check;
        if worth {
            self.tokens.push(token);
            self.trial.sure.push(sure);
        }
        worth && self.trial.sure.len() < self.most
    }

    fn row(&self) -> BatchRow<'_> {
        let end = self.start + self.count;
        BatchRow {
            tokens: self.tokens.get(self.start..end).unwrap_or_default(),
            start: self.start,
            blocks: &self.blocks,
            logits: if end == self.tokens.len() { LogitsAt::Last } else { LogitsAt::None },
            long: self.long,
        }
    }
}

impl Drafter {
    /// `vocabulary`: ids below this mean the same to `model` and to the model that is served, whose
    /// weights take `served` bytes.
    pub fn new(model: Arc<dyn DraftNetwork>, vocabulary: usize, served: u64, kind: KvType) -> Self {
        let arena = KvArena::new(model.kv_shape(kind));
        let costs = Costs::new(model.weight_bytes() as f64 / served.max(1) as f64);
        Self { model, vocabulary, arena, computed: HashMap::new(), costs, usual: Effort::default() }
    }

    pub fn id(&self) -> &str {
        self.model.id()
    }

    /// Nobody holds the block any more.
    pub fn release(&mut self, block: BlockId) {
        self.arena.release(block);
        self.computed.remove(&block);
    }

    /// Forgets all keys and values.
    fn clear(&mut self) {
        self.arena = KvArena::new(self.arena.shape());
        self.computed.clear();
    }

    /// Whether guessing pays for an answer, one of `lines` at once: a round saves more than `rival`
    /// seconds, and all of them while `left` tokens come more than it costs to catch up.
    pub fn pays(
        &mut self,
        stem: &Stem<'_>,
        left: u32,
        effort: &Effort,
        lines: usize,
        prices: &Prices,
        rival: f64,
    ) -> bool {
        let cost = self.costs.known(prices);
        let gain = effort.gain(prices, &cost, lines);
        if gain <= rival.max(0.) || stem.tokens.len() + MOST_GUESSED > self.model.context_window() as usize {
            return false;
        }
        let rounds = f64::from(left) / effort.yields();
        let behind = stem.tokens.len() - self.start(stem.tokens, stem.blocks);
        (behind - 1) as f64 * cost.further < gain * rounds
            && stem.tokens.iter().all(|&token| (token as usize) < self.vocabulary)
    }

    /// The first position that must be computed to know what follows `tokens`. What twins hold of
    /// other tokens is forgotten.
    fn start(&mut self, tokens: &[u32], blocks: &[BlockId]) -> usize {
        let (mut known, mut whole) = (0, true);
        for (block, text) in blocks.iter().zip(tokens.chunks(BLOCK).chain(std::iter::repeat(&[][..]))) {
            let own = self.computed.entry(*block).or_default();
            let same = own.iter().zip(text).take_while(|(own, token)| whole && own == token).count();
            own.truncate(same);
            known += same;
            whole &= same == BLOCK;
        }
        known.min(tokens.len().saturating_sub(1))
    }

    /// Guesses ahead of all lines at once, as long as that pays. Of texts that it is more than a block
    /// behind with it computes about `slice` tokens; where that is not enough, nothing is guessed yet.
    pub fn draft(
        &mut self,
        lines: &mut [Line],
        slice: usize,
        prices: &Prices,
        clock: &dyn ClockRng,
    ) -> Result<(), String> {
        let mut left = slice;
        for line in &mut *lines {
            line.start = self.start(&line.tokens, &line.blocks);
            let behind = line.text - line.start;
            line.count = if behind > BLOCK { behind.min(left) } else { behind };
            left = left.saturating_sub(line.count);
            line.trial.late = if line.begun { line.count.saturating_sub(1) } else { 0 };
            // Whoever has the same text finds it computed, in this very step.
            self.note(line);
        }
        while lines.iter().any(|line| line.count > 0) {
            let tokens = lines.iter().map(|line| line.count).sum();
            let began = clock.uptime();
            let mut logits = self.forward(lines)?;
            let took = clock.uptime().saturating_sub(began);
            self.costs.measure(tokens, took.as_secs_f64(), prices);
            self.advance(lines, logits.rows().into_iter().flatten(), prices);
            self.model.reuse(logits);
        }
        Ok(())
    }

    /// What a step computes of a line is in its blocks from then on.
    fn note(&mut self, line: &Line) {
        for position in line.start..line.start + line.count {
            let (Some(block), Some(token)) = (line.blocks.get(position / BLOCK), line.tokens.get(position)) else {
                return;
            };
            self.arena.ensure(*block);
            let own = self.computed.entry(*block).or_default();
            own.truncate(position % BLOCK);
            own.push(*token);
        }
    }

    /// The logits of those lines that are computed to their end, in their order.
    fn forward(&mut self, lines: &[Line]) -> Result<Logits, String> {
        let rows: Vec<BatchRow<'_>> = lines.iter().filter(|line| line.count > 0).map(Line::row).collect();
        self.model.forward(&rows, &mut self.arena)
    }

    /// Takes the guesses that a step made, and says of which lines the next one makes more.
    fn advance<'a>(&mut self, lines: &mut [Line], mut logits: impl Iterator<Item = &'a mut [f32]>, prices: &Prices) {
        for line in lines.iter_mut().filter(|line| line.count > 0) {
            line.start += line.count;
            line.count = 0;
            if line.start < line.tokens.len() {
                continue;
            }
            let known: &[f32] = logits.next().unwrap_or_default();
            let Some((token, sure)) = likeliest(known.get(..self.vocabulary).unwrap_or(known)) else { continue };
            let more = line.take(token, sure, prices) && !self.model.ends_with(token);
            line.count = usize::from(more);
        }
        let cost = self.costs.known(prices);
        for line in lines.iter_mut().filter(|line| line.hope(prices) <= cost.further) {
            line.count = 0;
        }
        let going = || lines.iter().filter(|line| line.count > 0);
        if going().map(|line| line.hope(prices)).sum::<f64>() <= cost.of(going().count()) {
            lines.iter_mut().for_each(|line| line.count = 0);
        }
        lines.iter().for_each(|line| self.note(line));
    }
}

/// The likeliest token and its probability.
fn likeliest(logits: &[f32]) -> Option<(u32, f32)> {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let token = logits.iter().position(|logit| *logit == best)?;
    let near = logits.iter().filter(|logit| **logit > best - NEGLIGIBLE);
    let sum: f32 = near.map(|logit| (logit - best).exp()).sum();
    Some((u32::try_from(token).ok()?, 1. / sum))
}

/// Where a served model's drafter is, if it has one. The worker holds it for a round at most.
#[derive(Default)]
pub struct Slot {
    drafter: Mutex<Option<Drafter>>,
    /// Bytes of a block of it; nothing while there is none.
    block_bytes: AtomicU64,
    /// Milliseconds of uptime before which none is looked for.
    next: AtomicU64,
}

impl Slot {
    pub fn lock(&self) -> MutexGuard<'_, Option<Drafter>> {
        self.drafter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_taken(&self) -> bool {
        self.block_bytes() > 0
    }

    /// Nobody holds the block of the served model any more.
    pub fn release(&self, block: BlockId) {
        if self.is_taken()
            && let Some(drafter) = self.lock().as_mut()
        {
            drafter.release(block);
        }
    }

    /// Forgets all keys and values.
    pub fn clear(&self) {
        if let Some(drafter) = self.lock().as_mut() {
            drafter.clear();
        }
    }

    pub fn block_bytes(&self) -> u64 {
        self.block_bytes.load(Ordering::SeqCst)
    }

    pub fn put(&self, drafter: Drafter) {
        let mut slot = self.lock();
        self.block_bytes.store(drafter.arena.shape().block_bytes(), Ordering::SeqCst);
        *slot = Some(drafter);
    }

    /// Takes the drafter out, with all that it has computed. The next may come `after` so long, or never.
    pub fn take(&self, after: Option<Duration>) -> Option<Drafter> {
        let mut slot = self.lock();
        self.block_bytes.store(0, Ordering::SeqCst);
        self.next.store(after.map_or(u64::MAX, millis), Ordering::SeqCst);
        slot.take()
    }

    /// Whether to look for a drafter now. Says so once, to one caller.
    pub fn is_due(&self, now: Duration) -> bool {
        let claim = |next: u64| (next <= millis(now)).then_some(u64::MAX);
        self.next.fetch_update(Ordering::SeqCst, Ordering::SeqCst, claim).is_ok()
    }

    /// Looks again at that uptime.
    pub fn retry(&self, at: Duration) {
        self.next.store(millis(at), Ordering::SeqCst);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
