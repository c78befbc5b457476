//! Guesses what comes next with a smaller network of the same vocabulary.
//!
//! (Leviathan et al. 2023, <https://arxiv.org/abs/2211.17192>.) The draft network takes its likeliest
//! token each time; the drafted are checked like those of [`crate::engine::text::speculative::ngram`], so answers do not change.
//!
//! Its keys and values lie in an arena of their own whose blocks have the numbers of the served
//! model's: a block and its twin are of the same positions of the same text, so sharing, caching and
//! release are the scheduler's, as they are. What a twin holds is estimate by its tokens: where they are
//! not those of the text, drafted were rejected or nothing was computed yet, and the draft network
//! catches up, in slices, when it is wanted.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock_rng::ClockRng;
use crate::engine::settings::MAX_DRAFT_TOKENS;
use crate::engine::text::scheduler::{DraftContext, SequenceId};
use crate::engine::text::speculative::draft_stats::{DraftCosts, Round, RoundStats};
use crate::engine::text::step_cost::SpeculationCosts;
use crate::models::causal_lm::{BatchRow, Logits, LogitsAt};
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

pub struct DraftModel {
    model: Arc<dyn DraftNetwork>,
    /// Ids below this mean the same to both networks.
    vocabulary: usize,
    arena: KvArena,
    /// The tokens whose keys and values are in a block.
    computed: HashMap<BlockId, Vec<u32>>,
    costs: DraftCosts,
    /// What a round comes to, whatever the answer.
    pub average: RoundStats,
}

/// An answer to guess ahead of.
#[derive(Debug)]
pub struct DraftSequence {
    pub id: SequenceId,
    /// The text, then what was guessed.
    tokens: Vec<u32>,
    /// So many of `tokens` are the text.
    text: usize,
    blocks: Vec<BlockId>,
    long: bool,
    /// Guesses that there is room for.
    max_tokens: usize,
    /// What the next step computes: so many tokens from this position on.
    start: usize,
    count: usize,
    /// How likely all drafted so far are to come true.
    acceptance: f64,
    stats: RoundStats,
    /// Whether there were rounds before: what it takes to catch up is part of this one then.
    has_rounds: bool,
    round: Round,
}

impl DraftSequence {
    /// `max_tokens`: drafted that `stem` has blocks for.
    pub fn new(
        id: SequenceId,
        stem: &DraftContext<'_>,
        max_tokens: usize,
        stats: RoundStats,
        has_rounds: bool,
    ) -> Self {
        Self {
            id,
            tokens: stem.tokens.to_vec(),
            text: stem.tokens.len(),
            blocks: stem.blocks.to_vec(),
            long: stem.long,
            max_tokens,
            start: 0,
            count: 0,
            acceptance: 1.,
            stats,
            has_rounds,
            round: Round::default(),
        }
    }

    /// The drafted and what they took. `None`: the draft network is still catching up.
    pub fn finish(mut self) -> Option<(SequenceId, Vec<u32>, Round)> {
        let drafted = self.tokens.split_off(self.text);
        (self.round.steps > 0).then_some((self.id, drafted, self.round))
    }

    /// Seconds that one more guess is likely to save, its check paid.
    fn expected_gain(&self, costs: &SpeculationCosts) -> f64 {
        self.acceptance * self.stats.acceptance() * costs.token - costs.check
    }

    /// The draft network says what comes next. `false`: that is not likely enough to be checked.
    fn take(&mut self, token: u32, confidence: f32, costs: &SpeculationCosts) -> bool {
        self.round.steps += 1;
        self.acceptance *= self.stats.acceptance_at(confidence);
        let worth = self.acceptance * costs.token > costs.check;
        if worth {
            self.tokens.push(token);
            self.round.confidence.push(confidence);
        }
        worth && self.round.confidence.len() < self.max_tokens
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

impl DraftModel {
    /// `vocabulary`: ids below this mean the same to `model` and to the model that is served, whose
    /// weights take `served` bytes.
    pub fn new(model: Arc<dyn DraftNetwork>, vocabulary: usize, served: u64, kind: KvType) -> Self {
        let arena = KvArena::new(model.kv_shape(kind));
        let costs = DraftCosts::new(model.weight_bytes() as f64 / served.max(1) as f64);
        Self { model, vocabulary, arena, computed: HashMap::new(), costs, average: RoundStats::default() }
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

    /// Whether guessing is_worthwhile for an answer, one of `sequences` at once: a round saves more than `alternative`
    /// seconds, and all of them while `left` tokens come more than it costs to catch up.
    pub fn is_worthwhile(
        &mut self,
        stem: &DraftContext<'_>,
        left: u32,
        stats: &RoundStats,
        sequences: usize,
        costs: &SpeculationCosts,
        alternative: f64,
    ) -> bool {
        let cost = self.costs.estimate(costs);
        let gain = stats.gain(costs, &cost, sequences);
        if gain <= alternative.max(0.) || stem.tokens.len() + MAX_DRAFT_TOKENS > self.model.context_window() as usize {
            return false;
        }
        let rounds = f64::from(left) / stats.tokens_per_round();
        let behind = stem.tokens.len() - self.start(stem.tokens, stem.blocks);
        (behind - 1) as f64 * cost.further < gain * rounds
            && stem.tokens.iter().all(|&token| (token as usize) < self.vocabulary)
    }

    /// The first position that must be computed to know what follows `tokens`. What twins hold of
    /// other tokens is forgotten.
    fn start(&mut self, tokens: &[u32], blocks: &[BlockId]) -> usize {
        let (mut estimate, mut whole) = (0, true);
        for (block, text) in blocks.iter().zip(tokens.chunks(BLOCK).chain(std::iter::repeat(&[][..]))) {
            let own = self.computed.entry(*block).or_default();
            let same = own.iter().zip(text).take_while(|(own, token)| whole && own == token).count();
            own.truncate(same);
            estimate += same;
            whole &= same == BLOCK;
        }
        estimate.min(tokens.len().saturating_sub(1))
    }

    /// Guesses ahead of all sequences at once, as long as that is_worthwhile. Of texts that it is more than a block
    /// behind with it computes about `slice` tokens; where that is not enough, nothing is guessed yet.
    pub fn draft(
        &mut self,
        sequences: &mut [DraftSequence],
        slice: usize,
        costs: &SpeculationCosts,
        clock: &dyn ClockRng,
    ) -> Result<(), String> {
        let mut left = slice;
        for sequence in &mut *sequences {
            sequence.start = self.start(&sequence.tokens, &sequence.blocks);
            let behind = sequence.text - sequence.start;
            sequence.count = if behind > BLOCK { behind.min(left) } else { behind };
            left = left.saturating_sub(sequence.count);
            sequence.round.catch_up = if sequence.has_rounds { sequence.count.saturating_sub(1) } else { 0 };
            // Whoever has the same text finds it computed, in this very step.
            self.record_computed(sequence);
        }
        while sequences.iter().any(|sequence| sequence.count > 0) {
            let tokens = sequences.iter().map(|sequence| sequence.count).sum();
            let began = clock.uptime();
            let mut logits = self.forward(sequences)?;
            let took = clock.uptime().saturating_sub(began);
            self.costs.measure(tokens, took.as_secs_f64(), costs);
            self.advance(sequences, logits.rows().into_iter().flatten(), costs);
            self.model.reuse(logits);
        }
        Ok(())
    }

    /// What a step computes of a sequence is in its blocks from then on.
    fn record_computed(&mut self, sequence: &DraftSequence) {
        for position in sequence.start..sequence.start + sequence.count {
            let (Some(block), Some(token)) = (sequence.blocks.get(position / BLOCK), sequence.tokens.get(position))
            else {
                return;
            };
            self.arena.ensure(*block);
            let own = self.computed.entry(*block).or_default();
            own.truncate(position % BLOCK);
            own.push(*token);
        }
    }

    /// The logits of those sequences that are computed to their end, in their order.
    fn forward(&mut self, sequences: &[DraftSequence]) -> Result<Logits, String> {
        let rows: Vec<BatchRow<'_>> =
            sequences.iter().filter(|sequence| sequence.count > 0).map(DraftSequence::row).collect();
        self.model.forward(&rows, &mut self.arena)
    }

    /// Takes the drafted that a step made, and says of which sequences the next one makes more.
    fn advance<'a>(
        &mut self,
        sequences: &mut [DraftSequence],
        mut logits: impl Iterator<Item = &'a mut [f32]>,
        costs: &SpeculationCosts,
    ) {
        for sequence in sequences.iter_mut().filter(|sequence| sequence.count > 0) {
            sequence.start += sequence.count;
            sequence.count = 0;
            if sequence.start < sequence.tokens.len() {
                continue;
            }
            let estimate: &[f32] = logits.next().unwrap_or_default();
            let Some((token, confidence)) = likeliest(estimate.get(..self.vocabulary).unwrap_or(estimate)) else {
                continue;
            };
            let more = sequence.take(token, confidence, costs) && !self.model.ends_with(token);
            sequence.count = usize::from(more);
        }
        let cost = self.costs.estimate(costs);
        for sequence in sequences.iter_mut().filter(|sequence| sequence.expected_gain(costs) <= cost.further) {
            sequence.count = 0;
        }
        let going = || sequences.iter().filter(|sequence| sequence.count > 0);
        if going().map(|sequence| sequence.expected_gain(costs)).sum::<f64>() <= cost.of(going().count()) {
            sequences.iter_mut().for_each(|sequence| sequence.count = 0);
        }
        sequences.iter().for_each(|sequence| self.record_computed(sequence));
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

/// Where a served model's drafter is, if it has one. The worker holds it for a round at max_tokens.
#[derive(Default)]
pub struct DraftSlot {
    drafter: Mutex<Option<DraftModel>>,
    /// Bytes of a block of it; nothing while there is none.
    block_bytes: AtomicU64,
    /// Milliseconds of uptime before which none is looked for.
    next: AtomicU64,
}

impl DraftSlot {
    pub fn lock(&self) -> MutexGuard<'_, Option<DraftModel>> {
        self.drafter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_loaded(&self) -> bool {
        self.block_bytes() > 0
    }

    /// Nobody holds the block of the served model any more.
    pub fn release(&self, block: BlockId) {
        if self.is_loaded()
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

    pub fn install(&self, drafter: DraftModel) {
        let mut slot = self.lock();
        self.block_bytes.store(drafter.arena.shape().block_bytes(), Ordering::SeqCst);
        *slot = Some(drafter);
    }

    /// Takes the drafter out, with all that it has computed. The next may come `after` so long, or never.
    pub fn take(&self, after: Option<Duration>) -> Option<DraftModel> {
        let mut slot = self.lock();
        self.block_bytes.store(0, Ordering::SeqCst);
        self.next.store(after.map_or(u64::MAX, millis), Ordering::SeqCst);
        slot.take()
    }

    /// Whether to look for a drafter now. Says so once, to one caller.
    pub fn should_load(&self, now: Duration) -> bool {
        let claim = |next: u64| (next <= millis(now)).then_some(u64::MAX);
        self.next.fetch_update(Ordering::SeqCst, Ordering::SeqCst, claim).is_ok()
    }

    /// Looks again at that uptime.
    pub fn retry_at(&self, at: Duration) {
        self.next.store(millis(at), Ordering::SeqCst);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
