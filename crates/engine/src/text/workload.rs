//! Text generation on the compute thread.
//!
//! Each step, the scheduler packs the newest token of every decoding sequence and chunks of prompts into one ragged
//! batch per model. A long prompt delays others by one chunk at most, and weights are read once for all rows.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::active_request::{ActiveRequest, Outcome};
use super::model::TextModel;
use super::prefix_writer::PrefixWriter;
use super::queue::TextQueue;
use super::scheduler::{Batch, GroupBlock, ModelId, Row, SequenceId, StepPlan};
use super::speculative::draft_model::DraftSlot;
use super::speculative::mtp::MtpDrafter;
use super::step_cost_model::{StepCostModel, StepSizes};
use crate::error::Failure;
use crate::ids::RequestId;
use crate::kinds::QueuedWorkload;
use crate::runtime::Runtime;
use crate::runtime::metrics::Step;
use crate::runtime::workload::Workload;
use outpost_models::ModelError;
use outpost_models::causal_lm::{BatchRow, Logits};
use outpost_models::kv::BLOCK;
use outpost_models::state_arenas::StateArenas;

pub struct TextWorkload {
    pub(super) queue: Arc<TextQueue>,
    pub(super) runtime: Arc<Runtime>,
    /// Requests that have started.
    pub(super) active: BTreeMap<RequestId, ActiveRequest>,
    pub(super) arenas: HashMap<ModelId, StateArenas>,
    prefix_writer: PrefixWriter,
    /// Requests wait for blocks from disk.
    pub(super) is_restoring: bool,
    /// Draft models of the models in use.
    pub(super) drafts: HashMap<ModelId, Arc<DraftSlot>>,
    /// Drafts with the layers for multi-token prediction of the models in use that have one.
    pub(super) mtp: HashMap<ModelId, MtpDrafter>,
    /// Set if a model that was idle computes in this step. Such a step is slow and not measured.
    warming: bool,
    pub(super) step_costs: StepCostModel,
    /// The queue's reset count when this state last matched its scheduler.
    resets: u64,
}

/// A row and its outcome.
type RowResult = (Row, Result<Outcome, Failure>);
/// A row and its logits.
type Computed<'a> = (Row, Vec<&'a mut [f32]>);

impl Workload for TextWorkload {
    fn name(&self) -> &'static str {
        "text"
    }

    fn sweep(&mut self) {
        let mut state = self.queue.lock();
        self.runtime.faults.point("text.sweep");
        state.sweep();
        let left = self.active.extract_if(.., |_, request| request.is_cancelled());
        left.for_each(|(id, _)| state.scheduler.cancel(id));
        let resets = state.resets;
        drop(state);
        if resets != self.resets {
            self.resets = resets;
            self.drop_active(&Failure::panicked());
        }
    }

    /// Runs one step of every model in use.
    fn step(&mut self, _busy: bool) -> bool {
        self.drop_stalled();
        let restored = self.restore_prefixes();
        self.runtime.faults.point("text.propose");
        self.propose();
        let started = self.runtime.clock.uptime();
        let plan = self.plan(started);
        self.reserve_blocks(&plan);
        let mut done: Vec<RowResult> = Vec::new();
        let busy = !plan.batches.is_empty();
        for batch in plan.batches {
            done.extend(self.compute(batch));
        }
        if busy {
            self.commit_step(done, started);
        }
        let freed = plan.memory_short && self.free_memory(plan.stuck);
        let saved = self.prefix_writer.save(&self.queue, &self.arenas);
        busy || freed || restored || saved
    }

    fn needs_polling(&self) -> bool {
        !self.active.is_empty() || self.is_restoring
    }

    fn fail(&mut self, failure: &Failure, running: bool) {
        let mut state = self.queue.lock();
        state.fail_waiting(failure);
        if running {
            self.active.keys().for_each(|id| state.scheduler.cancel(*id));
            drop(state);
            std::mem::take(&mut self.active).into_values().for_each(|request| request.fail(failure.clone()));
        }
    }

    fn recover(&mut self, failure: &Failure) {
        self.runtime.faults.point("text.recover");
        self.prefix_writer = PrefixWriter::default();
        self.drop_active(failure);
        self.resets = self.queue.reset();
    }
}

impl QueuedWorkload for TextWorkload {
    type Queue = TextQueue;

    fn new(queue: Arc<TextQueue>) -> Self {
        let runtime = Arc::clone(queue.runtime());
        let step_costs = StepCostModel::new(runtime.settings.prefill_chunk);
        Self {
            queue,
            runtime,
            active: BTreeMap::new(),
            arenas: HashMap::new(),
            prefix_writer: PrefixWriter::default(),
            is_restoring: false,
            drafts: HashMap::new(),
            mtp: HashMap::new(),
            warming: false,
            step_costs,
            resets: 0,
        }
    }
}

impl Drop for TextWorkload {
    fn drop(&mut self) {
        self.prefix_writer.finish(&self.queue, &self.arenas);
    }
}

impl TextWorkload {
    /// Fails running requests and drops all keys and values, which the reset scheduler does not know.
    fn drop_active(&mut self, failure: &Failure) {
        self.arenas.clear();
        for (_, draft) in std::mem::take(&mut self.drafts) {
            draft.clear();
        }
        for request in std::mem::take(&mut self.active).into_values() {
            request.fail(failure.clone());
        }
    }

    fn fail_request(&mut self, id: RequestId, failure: Failure) {
        let mut state = self.queue.lock();
        state.scheduler.cancel(id);
        let queued = state.waiting.remove(&id);
        drop(state);
        match (self.active.remove(&id), queued) {
            (Some(request), _) => request.fail(failure),
            (None, Some(queued)) => queued.fail(failure),
            (None, None) => {}
        }
    }

    /// Fails requests whose clients have stalled, and pauses choices whose clients are slow.
    fn drop_stalled(&mut self) {
        let (now, timeout) = (self.runtime.clock.uptime(), self.runtime.settings.client_timeout);
        let mut paused = Vec::new();
        let stalled = self.active.extract_if(.., |id, request| !request.reserve(*id, &mut paused, now, timeout));
        let stalled: Vec<_> = stalled.collect();
        let mut state = self.queue.lock();
        paused.into_iter().for_each(|(id, paused)| state.scheduler.set_paused(id, paused));
        stalled.iter().for_each(|(id, _)| state.scheduler.cancel(*id));
        drop(state);
        stalled.into_iter().for_each(|(_, request)| request.fail(Failure::ClientStalled));
    }

    fn plan(&mut self, now: Duration) -> StepPlan {
        let mut state = self.queue.lock();
        let chunk = self.step_costs.prefill_chunk(state.scheduler.decoding(), state.scheduler.prefilling());
        let plan = state.scheduler.plan(self.runtime.memory.available(), chunk);
        self.runtime.faults.point("text.plan");
        let mut begun = Vec::new();
        for row in plan.batches.iter().flat_map(|batch| &batch.rows) {
            let id = row.sequence.request;
            if let Some(queued) = state.waiting.remove(&id) {
                begun.push((id, queued, state.scheduler.prefix_hit(row.sequence)));
            }
        }
        self.arenas.retain(|model, _| state.scheduler.has_model(*model));
        self.drafts.retain(|model, _| state.scheduler.has_model(*model));
        self.mtp.retain(|model, _| state.scheduler.has_model(*model));
        drop(state);
        for (id, queued, cached) in begun {
            let mut request = ActiveRequest::new(queued, cached);
            let step = Step { cached: cached as u64, ..Step::default() };
            self.runtime.metrics.step(request.model.id(), step);
            // The channel is empty, so no choice pauses.
            request.reserve(id, &mut Vec::new(), now, self.runtime.settings.client_timeout);
            self.active.insert(id, request);
        }
        self.runtime.metrics.preempt(plan.preempted);
        plan
    }

    /// Releases the memory of free blocks and allocates that of blocks to be written.
    fn reserve_blocks(&mut self, plan: &StepPlan) {
        self.release(&plan.released);
        self.runtime.faults.point("text.reserve_blocks");
        self.warming = plan.batches.iter().any(|batch| !self.arenas.contains_key(&batch.model));
        for batch in &plan.batches {
            let Some(model) = self.model(batch) else { continue };
            let kv_type = self.runtime.settings.kv_type;
            let arenas = self.arenas.entry(batch.model).or_insert_with(|| model.network.new_arenas(kv_type));
            self.drafts.entry(batch.model).or_insert_with(|| Arc::clone(&model.draft_slot));
            if let Some(cost) = model.network.mtp_cost() {
                self.mtp.entry(batch.model).or_insert_with(|| MtpDrafter::new(cost));
            }
            for row in &batch.rows {
                let tables = row.tables.iter().enumerate();
                let state = row.state.map(|state| (row.tables.len(), state.write));
                let mut written = tables
                    .flat_map(|(group, table)| table.iter().skip(row.start / BLOCK).map(move |block| (group, *block)))
                    .chain(state);
                if let Err(error) = written.try_for_each(|(group, block)| arenas.ensure(group, block)) {
                    // The step then fails for the rows of these blocks.
                    tracing::error!(model = model.id(), reason = error.to_string(), "a block has no memory");
                }
            }
        }
    }

    /// Releases the memory of free blocks.
    pub(super) fn release(&mut self, released: &[(ModelId, GroupBlock)]) {
        for (model, GroupBlock { group, id }) in released {
            if let Some(arenas) = self.arenas.get_mut(model) {
                arenas.release(*group, *id);
            }
            if *group == 0
                && let Some(draft) = self.drafts.get(model)
            {
                draft.release(*id);
            }
        }
    }

    fn model(&self, batch: &Batch) -> Option<Arc<TextModel>> {
        let row = batch.rows.first()?;
        self.active.get(&row.sequence.request).map(|request| Arc::clone(&request.model))
    }

    /// Runs the batch. If it fails, each row runs alone, so that only the faulty rows fail.
    fn compute(&mut self, batch: Batch) -> Vec<RowResult> {
        let Some(model) = self.model(&batch) else { return Vec::new() };
        match self.forward(&model, batch.model, &batch.rows) {
            Ok(mut logits) => {
                let sequences = batch.rows.iter().map(|row| row.sequence);
                let hidden: HashMap<_, _> = sequences.zip(logits.take_hidden()).collect();
                let done = self.accept(&model, batch.rows, logits.rows());
                self.update_hidden(&done, &hidden);
                model.network.reuse(logits);
                done
            }
            Err(error) if batch.rows.len() == 1 => {
                tracing::error!(model = model.id(), reason = %error, "a generation step failed");
                let failure = self.runtime.model_failure(model.id(), &error);
                batch.rows.into_iter().map(|row| (row, Err(failure.clone()))).collect()
            }
            Err(_) => {
                let single = |row| Batch { model: batch.model, rows: vec![row] };
                batch.rows.into_iter().flat_map(|row| self.compute(single(row))).collect()
            }
        }
    }

    /// Keeps the hidden states that a step has computed for the drafts of the next one.
    fn update_hidden(&mut self, done: &[RowResult], hidden: &HashMap<SequenceId, Vec<f32>>) {
        for (row, outcome) in done {
            if let (Ok(outcome), Some(states)) = (outcome, hidden.get(&row.sequence))
                && let Some(request) = self.active.get_mut(&row.sequence.request)
            {
                request.update_hidden(row, outcome.positions, states);
            }
        }
    }

    /// Samples tokens, requests in parallel.
    fn accept(&mut self, model: &TextModel, rows: Vec<Row>, logits: Vec<Vec<&mut [f32]>>) -> Vec<RowResult> {
        let (now, metrics) = (self.runtime.clock.uptime(), &self.runtime.metrics);
        let mut done: Vec<RowResult> = Vec::new();
        let mut by_request: BTreeMap<RequestId, Vec<Computed<'_>>> = BTreeMap::new();
        for (row, mut logits) in rows.into_iter().zip(logits) {
            let of_prompt: Vec<_> = logits.drain(..row.prompt_logits.min(logits.len())).collect();
            if let Some(request) = self.active.get_mut(&row.sequence.request).filter(|_| !of_prompt.is_empty())
                && let Err(failure) = request.score_prompt(row.start, &of_prompt, model.network.pool())
            {
                done.push((row, Err(failure)));
                continue;
            }
            by_request.entry(row.sequence.request).or_default().push((row, logits));
        }
        let active = self.active.iter_mut().filter_map(|(id, request)| Some((request, by_request.remove(id)?)));
        let tasks: Vec<_> = active.map(|(request, rows)| Mutex::new((request, rows, Vec::new()))).collect();
        model.network.pool().run(tasks.len(), |index| {
            let Some(task) = tasks.get(index) else { return };
            self.runtime.faults.point("text.sample");
            let (request, rows, done) = &mut *task.lock().unwrap_or_else(PoisonError::into_inner);
            for (row, logits) in rows.drain(..) {
                let outcome = request.accept(&row, logits, now, metrics);
                done.push((row, outcome));
            }
        });
        done.extend(tasks.into_iter().flat_map(|task| task.into_inner().unwrap_or_else(PoisonError::into_inner).2));
        // Adapters share a batch but are metered separately.
        for rows in done.chunk_by(|(one, _), (other, _)| one.adapter == other.adapter) {
            let mut step = Step::default();
            for (row, outcome) in rows.iter().filter_map(|(row, outcome)| Some((row, outcome.as_ref().ok()?))) {
                step.prompt += if row.is_prefill() { row.tokens.len() as u64 } else { 0 };
                step.generated += outcome.new.len() as u64;
            }
            let request = rows.first().and_then(|(row, _)| self.active.get(&row.sequence.request));
            metrics.step(request.map_or(model.id(), |request| request.model.id()), step);
        }
        done
    }

    fn forward(&mut self, model: &TextModel, key: ModelId, rows: &[Row]) -> Result<Logits, ModelError> {
        let Some(arenas) = self.arenas.get_mut(&key) else { return Err("the model has no arenas".to_owned().into()) };
        let requests: Option<Vec<_>> = rows.iter().map(|row| self.active.get(&row.sequence.request)).collect();
        let Some(requests) = requests else { return Err("a row has no request".to_owned().into()) };
        let embedded = rows.iter().zip(&requests);
        let embedded =
            embedded.map(|(row, request)| request.prompt().embedded(row.start..row.start + row.tokens.len()));
        let embedded: Vec<_> = embedded.collect();
        let rows = rows.iter().zip(&requests).zip(&embedded);
        let rows = rows.map(|((row, request), embedded)| {
            let Row { tokens, start, tables, state, logits, long, .. } = row;
            let adapter = request.model.adapter().map(|adapter| &adapter.weights);
            let hidden = request.hidden(row.sequence.choice, *start);
            let (start, state, logits, long) = (*start, *state, *logits, *long);
            BatchRow { tokens, embedded, start, tables, state, logits, long, adapter, hidden }
        });
        let rows: Vec<_> = rows.collect();
        self.runtime.faults.point("text.forward");
        model.forward(&rows, arenas)
    }

    /// Commits the outcomes to the scheduler and drops requests that have ended.
    fn commit_step(&mut self, done: Vec<RowResult>, started: Duration) {
        let took = self.runtime.clock.uptime().saturating_sub(started);
        let mut failed: Vec<(SequenceId, Failure)> = Vec::new();
        // Logits of prompts make a step slower, which must not make the chunks of other prompts smaller.
        let is_usual = done.iter().all(|(row, _)| row.prompt_logits == 0);
        let mut sizes = StepSizes::default();
        let mut state = self.queue.lock();
        self.runtime.faults.point("text.commit_step");
        for (row, outcome) in done {
            let id = row.sequence;
            sizes.add(&row);
            match outcome {
                Ok(Outcome { positions, new, ended }) => {
                    state.scheduler.commit(id, positions, &new);
                    if ended {
                        let generated = state.scheduler.finish(id);
                        state.record_choice_length(generated);
                    }
                }
                Err(failure) => failed.push((id, failure)),
            }
        }
        if !self.warming {
            state.measure(sizes.prompt + sizes.decoding + sizes.draft, took);
        }
        drop(state);
        if is_usual {
            self.step_costs.measure(sizes, took);
        }
        failed.into_iter().for_each(|(id, failure)| self.fail_request(id.request, failure));
        self.active.retain(|_, request| !request.is_finished());
    }

    /// Memory was short: unloads an idle model, or else fails the request that does not fit. `false`: the caller
    /// can only wait.
    fn free_memory(&mut self, stuck: Option<SequenceId>) -> bool {
        if self.runtime.unload_idle() {
            return true;
        }
        let Some(id) = stuck else { return false };
        self.fail_request(id.request, Failure::OutOfMemory);
        true
    }
}
