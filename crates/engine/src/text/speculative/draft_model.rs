//! Proposes draft tokens with a smaller network of the same vocabulary.
//!
//! (Leviathan et al. 2023, <https://arxiv.org/abs/2211.17192>.) The draft model takes its most likely token in each
//! step. Its tokens are verified like those of [`crate::text::speculative::ngram`], so the output does not
//! change.
//!
//! Its keys and values are in separate arenas with the block IDs of the target model's first group: all blocks of an ID
//! cover the same positions of the same text, so the scheduler's sharing, caching and release apply to both. Each draft block
//! records the tokens it was computed from. Where these differ from the text, draft tokens were rejected or nothing was
//! computed yet, and the draft model catches up, in chunks, before it drafts.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::settings::MAX_DRAFT_TOKENS;
use crate::text::scheduler::{DraftContext, SequenceId, SequenceTokens};
use crate::text::speculative::draft_payoff::{DraftPayoff, DraftProgress, Round, RoundStats};
use crate::text::step_cost_model::SpeculationCosts;
use outpost_common::clock_rng::ClockRng;
use outpost_models::causal_lm::{BatchRow, Logits, LogitsAt};
use outpost_models::kv::{BLOCK, BlockId, KvType};
use outpost_models::state_arenas::StateArenas;

/// Logits this far below the best do not contribute to a sum of probabilities.
const NEGLIGIBLE: f32 = 16.;

/// The network of a draft model.
pub trait DraftNetwork: Send + Sync {
    fn id(&self) -> &str;

    /// Max positions of a sequence.
    fn context_window(&self) -> u32;

    /// Empty arenas for its keys and values.
    fn new_arenas(&self, kind: KvType) -> StateArenas;

    /// Bytes of its weights.
    fn weight_bytes(&self) -> u64;

    /// True for end-of-sequence tokens, after which nothing is drafted.
    fn ends_with(&self, token: u32) -> bool;

    fn forward(&self, rows: &[BatchRow<'_>], arenas: &mut StateArenas) -> Result<Logits, String>;

    /// Takes back the buffer that [`Self::forward`] returned, so that the next step can reuse it.
    fn reuse(&self, logits: Logits);
}

pub struct DraftModel {
    model: Arc<dyn DraftNetwork>,
    /// Token IDs below this are the same in both vocabularies.
    vocabulary: usize,
    arenas: StateArenas,
    /// The tokens whose keys and values are in a block.
    computed: HashMap<BlockId, Vec<u32>>,
    pub payoff: DraftPayoff,
}

/// A sequence that is drafted for.
#[derive(Debug)]
pub struct DraftSequence {
    pub id: SequenceId,
    /// The text, followed by the draft tokens.
    tokens: SequenceTokens,
    /// The tokens that the present step computes.
    step: Vec<u32>,
    /// Number of `tokens` that belong to the text.
    text: usize,
    blocks: Vec<BlockId>,
    long: bool,
    /// The next step computes `count` tokens from position `start` on.
    start: usize,
    count: usize,
    /// Set if there were earlier rounds. Only then does catching up count as a cost of this one.
    has_rounds: bool,
    progress: DraftProgress,
}

impl DraftSequence {
    /// `max_tokens`: draft tokens that `context` has blocks for.
    pub fn new(id: SequenceId, context: DraftContext, max_tokens: usize, stats: RoundStats, has_rounds: bool) -> Self {
        Self {
            id,
            step: Vec::new(),
            text: context.tokens.len(),
            tokens: context.tokens,
            blocks: context.blocks,
            long: context.long,
            start: 0,
            count: 0,
            has_rounds,
            progress: DraftProgress::new(stats, max_tokens),
        }
    }

    /// The draft tokens and their round. `None`: the draft model is still catching up.
    pub fn finish(self) -> Option<(SequenceId, Vec<u32>, Round)> {
        let drafted = self.tokens.slice(self.text, self.tokens.len());
        (self.progress.round.steps > 0).then_some((self.id, drafted, self.progress.round))
    }

    /// Adds the draft model's next token if it is likely enough to be verified. `false`: the draft ends here.
    fn push(&mut self, token: u32, confidence: f32, costs: &SpeculationCosts) -> bool {
        let is_likely = self.progress.push(confidence, costs);
        if is_likely {
            self.tokens.extend(&[token]);
        }
        is_likely && self.progress.has_room()
    }

    fn row(&self) -> BatchRow<'_> {
        let end = self.start + self.count;
        BatchRow {
            tokens: &self.step,
            embedded: &[],
            start: self.start,
            tables: std::slice::from_ref(&self.blocks),
            state: None,
            logits: if end == self.tokens.len() { LogitsAt::Last } else { LogitsAt::None },
            long: self.long,
            adapter: None,
            hidden: None,
        }
    }
}

impl DraftModel {
    /// `vocabulary`: token IDs below this are the same in `model` and the target model, whose
    /// weights take `target_bytes` bytes.
    pub fn new(model: Arc<dyn DraftNetwork>, vocabulary: usize, target_bytes: u64, kind: KvType) -> Self {
        let arenas = model.new_arenas(kind);
        let payoff = DraftPayoff::new(model.weight_bytes() as f64 / target_bytes.max(1) as f64);
        Self { model, vocabulary, arenas, computed: HashMap::new(), payoff }
    }

    pub fn id(&self) -> &str {
        self.model.id()
    }

    /// Releases a block that has become free.
    pub fn release(&mut self, block: BlockId) {
        self.arenas.release_positions(block);
        self.computed.remove(&block);
    }

    /// Drops all keys and values.
    fn clear(&mut self) {
        self.arenas = self.model.new_arenas(self.arenas.kv_type());
        self.computed.clear();
    }

    /// True if the rounds of the `left` remaining tokens, which save `gain` seconds each, save more than catching up
    /// costs. Takes time in proportion to the text.
    pub fn is_worthwhile(
        &mut self,
        context: &DraftContext,
        left: u32,
        gain: f64,
        stats: &RoundStats,
        costs: &SpeculationCosts,
    ) -> bool {
        if context.tokens.len() + MAX_DRAFT_TOKENS > self.model.context_window() as usize {
            return false;
        }
        let rounds = f64::from(left) / stats.tokens_per_round();
        let behind = context.tokens.len() - self.first_missing(&context.tokens, &context.blocks);
        (behind - 1) as f64 * self.payoff.costs.estimate(costs).further < gain * rounds
            && context.tokens.iter_from(0).all(|token| (token as usize) < self.vocabulary)
    }

    /// The first position to compute for the logits after `tokens`. Discards block contents that were computed
    /// from other tokens.
    fn first_missing(&mut self, tokens: &SequenceTokens, blocks: &[BlockId]) -> usize {
        let (mut known, mut all_match) = (0, true);
        for (index, block) in blocks.iter().enumerate() {
            let text = tokens.iter_from(index * BLOCK);
            let stored = self.computed.entry(*block).or_default();
            let same = stored.iter().zip(text).take_while(|(stored, token)| all_match && **stored == *token).count();
            stored.truncate(same);
            known += same;
            all_match &= same == BLOCK;
        }
        known.min(tokens.len().saturating_sub(1))
    }

    /// Drafts for all sequences in one batch, as long as that pays. For texts that it is more than a block behind, it
    /// computes about `slice` tokens in total and drafts nothing until it has caught up.
    pub fn draft(
        &mut self,
        sequences: &mut [DraftSequence],
        slice: usize,
        costs: &SpeculationCosts,
        clock: &dyn ClockRng,
    ) -> Result<(), String> {
        let mut left = slice;
        for sequence in &mut *sequences {
            sequence.start = self.first_missing(&sequence.tokens, &sequence.blocks);
            let behind = sequence.text - sequence.start;
            sequence.count = if behind > BLOCK { behind.min(left) } else { behind };
            left = left.saturating_sub(sequence.count);
            sequence.progress.round.catch_up = if sequence.has_rounds { sequence.count.saturating_sub(1) } else { 0 };
            // Sequences with the same text find it computed, even in this step.
            self.record_computed(sequence)?;
        }
        while sequences.iter().any(|sequence| sequence.count > 0) {
            let tokens = sequences.iter().map(|sequence| sequence.count).sum();
            let began = clock.uptime();
            let mut logits = self.forward(sequences)?;
            let took = clock.uptime().saturating_sub(began);
            self.payoff.costs.measure(tokens, took.as_secs_f64(), costs);
            self.advance(sequences, logits.rows().into_iter().flatten(), costs)?;
            self.model.reuse(logits);
        }
        Ok(())
    }

    /// Records the tokens that the next step writes to the sequence's blocks.
    fn record_computed(&mut self, sequence: &DraftSequence) -> Result<(), String> {
        for position in sequence.start..sequence.start + sequence.count {
            let (Some(block), Some(token)) = (sequence.blocks.get(position / BLOCK), sequence.tokens.get(position))
            else {
                break;
            };
            self.arenas.ensure_positions(*block).map_err(|error| error.to_string())?;
            let stored = self.computed.entry(*block).or_default();
            stored.truncate(position % BLOCK);
            stored.push(token);
        }
        Ok(())
    }

    /// The logits of the sequences that are computed to their end, in order.
    fn forward(&mut self, sequences: &mut [DraftSequence]) -> Result<Logits, String> {
        for sequence in &mut *sequences {
            sequence.step = sequence.tokens.slice(sequence.start, sequence.start + sequence.count);
        }
        let rows: Vec<BatchRow<'_>> =
            sequences.iter().filter(|sequence| sequence.count > 0).map(DraftSequence::row).collect();
        self.model.forward(&rows, &mut self.arenas)
    }

    /// Takes the draft tokens of a step and decides which sequences the next step continues.
    fn advance<'a>(
        &mut self,
        sequences: &mut [DraftSequence],
        mut logits: impl Iterator<Item = &'a mut [f32]>,
        costs: &SpeculationCosts,
    ) -> Result<(), String> {
        for sequence in sequences.iter_mut().filter(|sequence| sequence.count > 0) {
            sequence.start += sequence.count;
            sequence.count = 0;
            if sequence.start < sequence.tokens.len() {
                continue;
            }
            let Some((token, confidence)) = logits.next().and_then(|row| {
                let vocabulary = self.vocabulary.min(row.len());
                most_likely(&row[..vocabulary])
            }) else {
                return Err("it returned no logits".to_owned());
            };
            let more = sequence.push(token, confidence, costs) && !self.model.ends_with(token);
            sequence.count = usize::from(more);
        }
        let cost = self.payoff.costs.estimate(costs);
        let gain = |sequence: &DraftSequence| sequence.progress.expected_gain(costs);
        for sequence in sequences.iter_mut().filter(|sequence| gain(sequence) <= cost.further) {
            sequence.count = 0;
        }
        if !cost.is_worth(sequences.iter().filter(|sequence| sequence.count > 0).map(gain)) {
            sequences.iter_mut().for_each(|sequence| sequence.count = 0);
        }
        sequences.iter().try_for_each(|sequence| self.record_computed(sequence))
    }
}

/// The most likely token and its probability.
pub(super) fn most_likely(logits: &[f32]) -> Option<(u32, f32)> {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let token = logits.iter().position(|logit| *logit == best)?;
    let near = logits.iter().filter(|logit| **logit > best - NEGLIGIBLE);
    let sum: f32 = near.map(|logit| (logit - best).exp()).sum();
    Some((u32::try_from(token).ok()?, 1. / sum))
}

/// Holds the draft model of a target model, if there is one. The compute thread locks it for one round at most.
#[derive(Default)]
pub struct DraftSlot {
    draft_model: Mutex<Option<DraftModel>>,
    /// Bytes of one draft block; 0 while no draft model is loaded.
    block_bytes: AtomicU64,
    /// Uptime in milliseconds before which no draft model is looked for.
    next_attempt: AtomicU64,
}

impl DraftSlot {
    pub fn lock(&self) -> MutexGuard<'_, Option<DraftModel>> {
        self.draft_model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_loaded(&self) -> bool {
        self.block_bytes() > 0
    }

    /// Releases the draft block of a target block that has become free.
    pub fn release(&self, block: BlockId) {
        if self.is_loaded()
            && let Some(draft_model) = self.lock().as_mut()
        {
            draft_model.release(block);
        }
    }

    /// Drops all keys and values.
    pub fn clear(&self) {
        if let Some(draft_model) = self.lock().as_mut() {
            draft_model.clear();
        }
    }

    pub fn block_bytes(&self) -> u64 {
        self.block_bytes.load(Ordering::SeqCst)
    }

    pub fn install(&self, draft_model: DraftModel) {
        let mut slot = self.lock();
        self.block_bytes.store(draft_model.arenas.position_block_bytes(), Ordering::SeqCst);
        *slot = Some(draft_model);
    }

    /// Removes the draft model with its keys and values. The next one may be loaded from uptime `after` on, or never.
    pub fn unload(&self, after: Option<Duration>) -> Option<DraftModel> {
        let mut slot = self.lock();
        self.block_bytes.store(0, Ordering::SeqCst);
        self.next_attempt.store(after.map_or(u64::MAX, millis), Ordering::SeqCst);
        slot.take()
    }

    /// True if a draft model should be looked for now. Returns true to one caller only.
    pub fn should_load(&self, now: Duration) -> bool {
        let disable = |next: u64| (next <= millis(now)).then_some(u64::MAX);
        self.next_attempt.fetch_update(Ordering::SeqCst, Ordering::SeqCst, disable).is_ok()
    }

    /// Allows the next attempt from uptime `at` on.
    pub fn retry_at(&self, at: Duration) {
        self.next_attempt.store(millis(at), Ordering::SeqCst);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
