//! The thread that computes. Each step the scheduler packs the newest token of every running answer
//! and slices of prompts into a ragged batch a model, so a long prompt delays others by a slice at
//! most, and weights are read once for all.

mod guess;
mod pictures;
mod texts;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::clock_rng::ClockRng;
use crate::engine::error::Failure;
use crate::engine::image::ImageThread;
use crate::engine::runtime::metrics::Step;
use crate::engine::runtime::queue::{Gate, Shared};
use crate::engine::runtime::registry::Registry;
use crate::engine::text::active_request::{Job, Outcome};
use crate::engine::text::model::TextModel;
use crate::engine::text::scheduler::{Batch, ModelId, Plan, RequestId, Row, SequenceId};
use crate::engine::text::speculative::draft_model::Slot;
use crate::engine::text::step_cost::{Pace, Sizes};
use crate::models::kv::{BLOCK, KvArena};
use crate::models::llama::{self, Logits};
use texts::Embedding;

pub struct Worker {
    shared: Arc<Shared>,
    registry: Arc<Registry>,
    clock: Arc<dyn ClockRng>,
    jobs: BTreeMap<RequestId, Job>,
    arenas: HashMap<ModelId, KvArena>,
    /// Where the drafters of the models in use are.
    slots: HashMap<ModelId, Arc<Slot>>,
    /// Whether a model that was idle computes in this step, which takes longer than others.
    warming: bool,
    pace: Pace,
    /// Texts on their way to become vectors.
    embedding: Option<Embedding>,
    /// Who paints; there is none before the first picture.
    image_thread: Option<ImageThread>,
}

/// A row, and what it came to.
type Done = (Row, Result<Outcome, Failure>);
/// A row, and the distributions that it wanted.
type Computed<'a> = (Row, Vec<&'a mut [f32]>);

impl Worker {
    pub fn new(shared: Arc<Shared>, registry: Arc<Registry>, clock: Arc<dyn ClockRng>) -> Self {
        let pace = Pace::new(shared.settings.prefill_chunk);
        let (jobs, arenas, slots) = (BTreeMap::new(), HashMap::new(), HashMap::new());
        Self { shared, registry, clock, jobs, arenas, slots, warming: false, pace, embedding: None, image_thread: None }
    }

    pub fn run(mut self) {
        let mut idle = true;
        loop {
            let gate = self.shared.rest(idle, !self.jobs.is_empty());
            if gate >= Gate::Aborting {
                let all: Vec<_> = self.jobs.keys().copied().collect();
                all.into_iter().for_each(|id| self.fail(id, Failure::ShuttingDown));
            }
            self.clear();
            if gate == Gate::Closed {
                return;
            }
            let stepped = self.step();
            let embedded = self.embed();
            idle = !(self.generate_image(stepped || embedded) || embedded || stepped);
        }
    }

    /// Frees what nobody waits for.
    fn clear(&mut self) {
        let mut inbox = self.shared.lock();
        inbox.sweep();
        let left = self.jobs.extract_if(.., |_, job| job.caller_left());
        left.for_each(|(id, _)| inbox.scheduler.cancel(id));
    }

    fn fail(&mut self, id: RequestId, failure: Failure) {
        self.shared.lock().scheduler.cancel(id);
        if let Some(job) = self.jobs.remove(&id) {
            job.fail(failure);
        } else if let Some(arrival) = self.shared.lock().arrivals.remove(&id) {
            drop(arrival.last.send(Err(failure)));
        }
    }

    /// One step of every model in use. `false`: there was nothing that could be done.
    fn step(&mut self) -> bool {
        self.heed();
        self.guess();
        let began = self.clock.uptime();
        let plan = self.plan(began);
        self.arrange(&plan);
        let mut done: Vec<Done> = Vec::new();
        let busy = !plan.batches.is_empty();
        for batch in plan.batches {
            done.extend(self.compute(batch));
        }
        if busy {
            self.settle(done, began);
        }
        let relieved = plan.pressed && self.relieve(plan.stuck);
        busy || relieved
    }

    /// Gives up answers and pictures that nobody reads, and pauses those whose readers are slow.
    fn heed(&mut self) {
        let (now, patience) = (self.clock.uptime(), self.shared.settings.reader_patience);
        let mut inbox = self.shared.lock();
        let unread = self.jobs.extract_if(.., |id, job| !job.reserve(*id, &mut inbox.scheduler, now, patience));
        let unread: Vec<_> = unread.collect();
        unread.iter().for_each(|(id, _)| inbox.scheduler.cancel(*id));
        inbox.images.drop_stalled(now, patience);
        drop(inbox);
        unread.into_iter().for_each(|(_, job)| job.fail(Failure::Unread));
    }

    fn plan(&mut self, now: Duration) -> Plan {
        let patience = self.shared.settings.reader_patience;
        let mut inbox = self.shared.lock();
        let chunk = self.pace.chunk(inbox.scheduler.decoding(), inbox.scheduler.prefilling());
        let plan = inbox.scheduler.plan(self.shared.budget.room(), chunk);
        for row in plan.batches.iter().flat_map(|batch| &batch.rows) {
            if let Some(arrival) = inbox.arrivals.remove(&row.sequence.request) {
                let mut job = Job::new(arrival);
                let hit = inbox.scheduler.hit(row.sequence);
                job.hit(hit);
                self.shared.metrics.step(job.model.id(), Step { cached: hit as u64, ..Step::default() });
                job.reserve(row.sequence.request, &mut inbox.scheduler, now, patience);
                self.jobs.insert(row.sequence.request, job);
            }
        }
        self.arenas.retain(|model, _| inbox.scheduler.knows(*model));
        self.slots.retain(|model, _| inbox.scheduler.knows(*model));
        drop(inbox);
        self.shared.metrics.preempt(plan.preempted);
        plan
    }

    /// Gives back the memory of blocks that are free and takes that of blocks to be written.
    fn arrange(&mut self, plan: &Plan) {
        self.release(&plan.released);
        self.warming = plan.batches.iter().any(|batch| !self.arenas.contains_key(&batch.model));
        for batch in &plan.batches {
            let Some(model) = self.model(batch) else { continue };
            let shape = model.kv_shape(self.shared.settings.kv_type);
            let arena = self.arenas.entry(batch.model).or_insert_with(|| KvArena::new(shape));
            self.slots.entry(batch.model).or_insert_with(|| Arc::clone(&model.drafter));
            for row in &batch.rows {
                let written = row.blocks.iter().skip(row.start / BLOCK);
                written.for_each(|block| arena.ensure(*block));
            }
        }
    }

    fn model(&self, batch: &Batch) -> Option<Arc<TextModel>> {
        let row = batch.rows.first()?;
        self.jobs.get(&row.sequence.request).map(|job| Arc::clone(&job.model))
    }

    /// Runs the batch. When it fails as a whole, each row runs alone, so that only the guilty fail.
    fn compute(&mut self, batch: Batch) -> Vec<Done> {
        let Some(model) = self.model(&batch) else { return Vec::new() };
        match self.forward(&model, batch.model, &batch.rows) {
            Ok(mut logits) => {
                let done = self.accept(&model, batch.rows, logits.rows());
                model.network.reuse(logits);
                done
            }
            Err(reason) if batch.rows.len() == 1 => {
                tracing::error!(model = model.id(), reason, "a generation step failed");
                let failure = Failure::Unusable { id: model.id().to_owned(), reason };
                batch.rows.into_iter().map(|row| (row, Err(failure.clone()))).collect()
            }
            Err(_) => {
                let alone = |row| Batch { model: batch.model, rows: vec![row] };
                batch.rows.into_iter().flat_map(|row| self.compute(alone(row))).collect()
            }
        }
    }

    /// Chooses tokens, all requests side by side.
    fn accept(&mut self, model: &TextModel, rows: Vec<Row>, logits: Vec<Vec<&mut [f32]>>) -> Vec<Done> {
        let (now, metrics) = (self.clock.uptime(), &self.shared.metrics);
        let mut parts: BTreeMap<RequestId, Vec<Computed<'_>>> = BTreeMap::new();
        for (row, logits) in rows.into_iter().zip(logits) {
            parts.entry(row.sequence.request).or_default().push((row, logits));
        }
        let jobs = self.jobs.iter_mut().filter_map(|(id, job)| Some((job, parts.remove(id)?)));
        let tasks: Vec<_> = jobs.map(|(job, rows)| Mutex::new((job, rows, Vec::new()))).collect();
        model.network.cpu().pool().run(tasks.len(), |index| {
            let Some(task) = tasks.get(index) else { return };
            let (job, rows, done) = &mut *task.lock().unwrap_or_else(PoisonError::into_inner);
            for (row, logits) in rows.drain(..) {
                let outcome = job.accept(&row, logits, now, metrics);
                done.push((row, outcome));
            }
        });
        let done = tasks.into_iter().flat_map(|task| task.into_inner().unwrap_or_else(PoisonError::into_inner).2);
        let done: Vec<Done> = done.collect();
        let mut step = Step::default();
        for (row, outcome) in done.iter().filter_map(|(row, outcome)| Some((row, outcome.as_ref().ok()?))) {
            step.prompt += if row.is_prefill() { row.tokens.len() as u64 } else { 0 };
            step.generated += outcome.new.len() as u64;
        }
        metrics.step(model.id(), step);
        done
    }

    fn forward(&mut self, model: &TextModel, key: ModelId, rows: &[Row]) -> Result<Logits, String> {
        let Some(arena) = self.arenas.get_mut(&key) else { return Err("the model has no KV arena".to_owned()) };
        let rows: Vec<_> = rows
            .iter()
            .map(|Row { tokens, start, blocks, logits, long, .. }| llama::Row {
                tokens,
                start: *start,
                blocks,
                logits: *logits,
                long: *long,
            })
            .collect();
        model.forward(&rows, arena)
    }

    /// Tells the scheduler what became of the rows, and lets go of what ended.
    fn settle(&mut self, done: Vec<Done>, began: Duration) {
        let took = self.clock.uptime().saturating_sub(began);
        let mut failed: Vec<(SequenceId, Failure)> = Vec::new();
        let mut sizes = Sizes::default();
        let mut inbox = self.shared.lock();
        for (row, outcome) in done {
            let id = row.sequence;
            sizes.add(&row);
            match outcome {
                Ok(Outcome { positions, new, ended }) => {
                    inbox.scheduler.commit(id, positions, &new);
                    if ended {
                        let generated = inbox.scheduler.end(id);
                        inbox.ended(generated);
                    }
                }
                Err(failure) => failed.push((id, failure)),
            }
        }
        if !self.warming {
            inbox.measure(sizes.prompt + sizes.answers + sizes.draft, took);
        }
        drop(inbox);
        self.pace.measure(sizes, took);
        failed.into_iter().for_each(|(id, failure)| self.fail(id.request, failure));
        self.jobs.retain(|_, job| !job.is_over());
    }

    /// Memory was short: an idle model goes, or the one request that cannot be helped. `false`:
    /// there is nothing to be done but wait.
    fn relieve(&mut self, stuck: Option<SequenceId>) -> bool {
        if self.registry.unload_idle() {
            return true;
        }
        let Some(id) = stuck else { return false };
        self.fail(id.request, Failure::NoMemory);
        true
    }
}
