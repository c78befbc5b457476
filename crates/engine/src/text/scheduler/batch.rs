//! Plans the batches of one step.

use std::collections::BTreeMap;

use super::block_pool::{BlockTable, GroupBlock};
use super::prefix_cache::{Parent, PrefixRoot};
use super::recurrent_state::RecurrentState;
use super::{AdapterId, ModelId, Phase, Scheduler, Sequence, SequenceId};
use outpost_models::causal_lm::LogitsAt;
use outpost_models::kv::{BlockId, blocks_for};
use outpost_models::state_layout::StateUpdate;

/// What one step computes.
#[derive(Debug, Default)]
pub struct StepPlan {
    pub batches: Vec<Batch>,
    /// Blocks whose memory can be released before the step.
    pub released: Vec<(ModelId, GroupBlock)>,
    /// Sequences preempted since the last plan.
    pub preempted: u64,
    /// Memory was short: a sequence waits for it or was preempted.
    pub memory_short: bool,
    /// Nothing runs and the first waiting sequence still does not fit in memory.
    pub stuck: Option<SequenceId>,
}

/// Rows that one model computes in one forward pass.
#[derive(Debug)]
pub struct Batch {
    pub model: ModelId,
    /// Rows with the same adapter are neighbours.
    pub rows: Vec<Row>,
}

/// One sequence's part of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub sequence: SequenceId,
    pub tokens: Vec<u32>,
    /// Position of the first token.
    pub start: usize,
    /// The block table of each group of attention.
    pub tables: Vec<Vec<BlockId>>,
    /// The states of the recurrent layers, if there are any.
    pub state: Option<StateUpdate>,
    pub logits: LogitsAt,
    /// Number of leading logits for the prompt's own next tokens. Nothing is sampled from them.
    pub prompt_logits: usize,
    /// Number of draft tokens at the end.
    pub draft: usize,
    /// Number of tokens at the beginning that an earlier step computed together with a draft that was rejected.
    pub again: usize,
    pub long: bool,
    pub adapter: Option<AdapterId>,
}

impl Row {
    /// True for a row of prompt tokens, which yields no token yet, or the first one.
    pub fn is_prefill(&self) -> bool {
        self.logits == LogitsAt::None || self.prompt_logits > 0 || self.tokens.len() > self.again + 1 + self.draft
    }
}

impl Scheduler {
    /// Plans the next step. All blocks together take at most `max_bytes` bytes, and at most `chunk` prompt
    /// tokens are computed beside the decoding sequences.
    pub fn plan(&mut self, max_bytes: u64, chunk: usize) -> StepPlan {
        self.shrink(max_bytes);
        let mut memory_short = false;
        while self.used_bytes() > max_bytes
            && let Some(id) = self.newest_running(|_| true)
        {
            memory_short = true;
            self.preempt(id);
            self.shrink(max_bytes);
        }
        let admitted_all = self.admit(max_bytes, chunk);
        let rows = loop {
            let before = self.preempted;
            let (rows, all_built) = self.build_rows(max_bytes, chunk);
            memory_short |= !all_built;
            // The sequence that got the whole chunk may have preempted itself. Then the others get it.
            if !rows.is_empty() || self.preempted == before {
                break rows;
            }
        };
        let stuck = if admitted_all || self.running().next().is_some() { None } else { self.next_waiting() };
        StepPlan {
            batches: rows.into_iter().map(|(model, rows)| Batch { model, rows }).collect(),
            released: self.take_released(),
            preempted: std::mem::take(&mut self.preempted),
            memory_short: memory_short || !admitted_all,
            stuck,
        }
    }

    /// The rows of the running sequences by model, none of them empty. `false`: memory was short for a row.
    fn build_rows(&mut self, max_bytes: u64, chunk: usize) -> (BTreeMap<ModelId, Vec<Row>>, bool) {
        let (mut rows, mut all_built) = (BTreeMap::<ModelId, Vec<Row>>::new(), true);
        for (id, count) in self.tokens_per_sequence(chunk) {
            let Some(model) = self.sequences.get(&id).map(|one| one.model) else { continue };
            match self.build_row(id, count, max_bytes) {
                Some(row) => rows.entry(model).or_default().push(row),
                None => all_built = false,
            }
        }
        // A later row may have preempted a sequence whose row is already built.
        for rows in rows.values_mut() {
            rows.retain(|row| self.sequences.get(&row.sequence).is_some_and(Sequence::is_running));
            rows.sort_by_key(|row| row.adapter);
        }
        rows.retain(|_, rows| !rows.is_empty());
        (rows, all_built)
    }

    /// Number of tokens that each sequence computes. Decoding sequences compute their newest token and draft; prompts
    /// share `chunk`, the least served tenant first. Prompts whose logits are needed also share the logits that a step
    /// may compute.
    fn tokens_per_sequence(&self, chunk: usize) -> Vec<(SequenceId, usize)> {
        let ready = || self.running().filter(|(_, one)| !one.paused);
        let decode = ready().filter(|(_, one)| one.decodes());
        let decode = decode.map(|(id, one)| (*id, one.pending() + if one.again() > 0 { 0 } else { one.draft.len() }));
        let mut counts: Vec<_> = decode.collect();
        let mut prompts: Vec<_> = ready().filter(|(_, one)| !one.decodes() && one.pending() > 0).collect();
        prompts.sort_by_key(|(id, one)| (self.shares.served(one.tenant), one.admitted_at(), **id));
        // Each prompt has logits for one position at least, which may be its last.
        let sampled = prompts.len() + counts.iter().map(|(_, count)| count).sum::<usize>();
        let (mut left, mut logits) = (chunk.max(1), self.limits.logits.saturating_sub(sampled));
        counts.extend(prompts.into_iter().map_while(|(id, one)| {
            let mut count = one.pending().min(left);
            if one.needs_prompt_logits() {
                // After a preemption, positions are computed again whose logits are not needed.
                let unneeded = one.scored.saturating_sub(one.computed);
                count = count.min(if unneeded > 0 { unneeded } else { 1 + logits });
                logits -= if unneeded > 0 { 0 } else { count.saturating_sub(1) };
            }
            count = one.row_end(count) - one.computed;
            left -= count;
            (count > 0).then_some((*id, count))
        }));
        counts
    }

    /// Allocates the blocks that a row needs. If memory is short, evicts cached blocks, then drops the draft, then
    /// preempts the sequence admitted last. `None`: that was the sequence itself.
    fn build_row(&mut self, id: SequenceId, count: usize, max_bytes: u64) -> Option<Row> {
        loop {
            let sequence = self.sequences.get_mut(&id).filter(|one| one.is_running())?;
            let (start, end) = (sequence.computed, sequence.computed + count);
            let Some(group) = sequence.incomplete_group(end).or_else(|| sequence.lacks_state()) else {
                return Some(sequence.make_row(id, start, end));
            };
            if self.take_block(id, group, max_bytes) || self.evict() {
                continue;
            }
            let sequence = self.sequences.get_mut(&id)?;
            if !std::mem::take(&mut sequence.draft).is_empty() && sequence.pending() == 1 {
                return self.build_row(id, 1, max_bytes);
            }
            let victim = self.newest_running(|_| true)?;
            self.preempt(victim);
        }
    }

    /// Allocates the next block of a sequence in a group. `false`: memory is short.
    pub(super) fn take_block(&mut self, id: SequenceId, group: usize, max_bytes: u64) -> bool {
        let used = self.used_bytes();
        let Some(sequence) = self.sequences.get_mut(&id) else { return false };
        let Some(model) = self.models.get_mut(&sequence.model) else { return false };
        let fits = model.pool.group(group).is_some_and(|layout| used + layout.block_bytes <= max_bytes);
        if fits && let Some(block) = model.pool.allocate(group) {
            match sequence.tables.get_mut(group) {
                Some(table) => table.push(block),
                None => sequence.recurrent.iter_mut().for_each(|state| state.set_next(block)),
            }
        }
        fits
    }
}

impl Sequence {
    /// The root of its prefixes in the cache.
    pub(super) fn prefix_root(&self) -> Parent {
        Parent::Root(PrefixRoot { tenant: self.tenant, adapter: self.adapter, long: self.long })
    }

    /// The first group that lacks a block for one of the positions before `end`.
    pub(super) fn incomplete_group(&self, end: usize) -> Option<usize> {
        self.tables.iter().position(|table| table.len() < blocks_for(end))
    }

    /// The recurrent group if it lacks a block for the next state.
    fn lacks_state(&self) -> Option<usize> {
        self.recurrent.as_ref().filter(|state| state.lacks_next()).map(|_| self.recurrent_group())
    }

    /// The end of a row of prompt tokens that has at most `count` of them.
    fn row_end(&self, count: usize) -> usize {
        let end = self.computed + count;
        self.recurrent.as_ref().map_or(end, |state| state.row_end(self.computed, end, self.tokens.len()))
    }

    fn admitted_at(&self) -> u64 {
        if let Phase::Running(since) = self.phase { since } else { u64::MAX }
    }

    /// The row of the positions `start..end`; positions beyond its tokens come from the draft.
    fn make_row(&mut self, id: SequenceId, start: usize, end: usize) -> Row {
        self.planned = end - start;
        let mut tokens = self.tokens.slice(start, end);
        let mut draft = std::mem::take(&mut self.draft);
        draft.truncate((end - start).saturating_sub(tokens.len()));
        tokens.extend(&draft);
        // The last position of the prompt predicts the first token that is generated.
        let is_scored = self.needs_prompt_logits() && start >= self.scored;
        let predicting = self.tokens.prompt_len().saturating_sub(1);
        let prompt_logits = if is_scored { end.min(predicting).saturating_sub(start) } else { 0 };
        let logits = match end {
            _ if !draft.is_empty() || prompt_logits > 0 => LogitsAt::All,
            end if end >= self.tokens.len() => LogitsAt::Last,
            _ => LogitsAt::None,
        };
        let again = self.again();
        let Self { tables, recurrent, long, adapter, .. } = self;
        let (tables, draft) = (tables.iter().map(BlockTable::for_step).collect(), draft.len());
        let state = recurrent.as_ref().and_then(RecurrentState::update);
        Row {
            sequence: id,
            tokens,
            start,
            tables,
            state,
            logits,
            prompt_logits,
            draft,
            again,
            long: *long,
            adapter: *adapter,
        }
    }
}
