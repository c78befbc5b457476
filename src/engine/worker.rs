//! The thread that computes. Each step packs the newest token of every running answer and one
//! chunk of one prompt into a ragged batch a model, so a long prompt delays others by a chunk at
//! most, and weights are read once for all.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::budget::Purpose;
use super::job::{Job, Part};
use super::queue::{Gate, Shared};
use super::registry::Registry;
use super::request::Failure;
use super::text::TextModel;
use crate::ambient::Ambient;

pub(super) struct Worker {
    shared: Arc<Shared>,
    registry: Arc<Registry>,
    ambient: Arc<dyn Ambient>,
    jobs: Vec<Job>,
    turns: u64,
}

/// A part and the index of its job.
type Planned = (usize, Part);

/// How much the newest step counts in the speed of late.
const NEWEST: f64 = 0.1;

impl Worker {
    pub fn new(shared: Arc<Shared>, registry: Arc<Registry>, ambient: Arc<dyn Ambient>) -> Self {
        Self { shared, registry, ambient, jobs: Vec::new(), turns: 0 }
    }

    pub fn run(mut self) {
        let mut idle = true;
        loop {
            let gate = self.shared.rest(idle, !self.jobs.is_empty());
            if gate >= Gate::Aborting {
                self.jobs.iter_mut().for_each(|job| job.fail(Failure::ShuttingDown));
            }
            self.clear();
            if gate == Gate::Closed {
                return;
            }
            self.admit();
            idle = !self.step();
            self.clear();
        }
    }

    /// Frees what ended and what nobody waits for.
    fn clear(&mut self) {
        self.jobs.retain(|job| !job.over && !job.caller_left());
        let places = self.jobs.iter().map(Job::places).sum();
        let remaining = self.jobs.iter().map(Job::remaining).fold(0, u64::saturating_add);
        let mut inbox = self.shared.lock();
        inbox.places = places;
        inbox.remaining = remaining;
        inbox.sweep();
    }

    /// Starts requests while there are places and memory for them.
    fn admit(&mut self) {
        loop {
            let running = self.places_by_tenant();
            let busy: usize = running.values().sum();
            let mut inbox = self.shared.lock();
            let Some(index) = inbox.pick(&running) else { return };
            let Some(next) = inbox.queue.get(index) else { return };
            let places = next.request.choices as usize;
            // A request with more choices than there are places runs alone.
            if busy > 0 && busy + places > self.shared.settings.max_running {
                return;
            }
            let positions = next.request.prompt.len() as u64 + u64::from(next.request.max_tokens);
            let bytes = next.model.kv_bytes(positions, next.request.choices);
            let lease = self.shared.budget.lease(Purpose::Kv, bytes);
            if lease.is_none() && self.jobs.is_empty() && self.registry.unload_idle() {
                continue;
            }
            if lease.is_none() && !self.jobs.is_empty() {
                return; // What runs will give memory back.
            }
            let Some(waiting) = inbox.queue.remove(index) else { return };
            match lease {
                Some(lease) => {
                    inbox.places += places;
                    drop(inbox);
                    self.jobs.push(Job::new(waiting, lease));
                }
                None => {
                    drop(inbox);
                    let reason =
                        format!("{bytes} bytes for the cache are not free: other models in use hold the memory");
                    drop(waiting.last.send(Err(Failure::Broken(reason))));
                }
            }
        }
    }

    fn places_by_tenant(&self) -> HashMap<u128, usize> {
        let mut places = HashMap::new();
        for job in &self.jobs {
            *places.entry(job.tenant()).or_default() += job.places();
        }
        places
    }

    /// One step of every model in use. `false`: there was nothing that could be done.
    fn step(&mut self) -> bool {
        let (chunk, patience) = (self.shared.settings.prefill_chunk, self.shared.settings.reader_patience);
        let began = self.ambient.uptime();
        let prompt = self.next_prompt();
        let mut planned: Vec<Planned> = Vec::new();
        for (index, job) in self.jobs.iter_mut().enumerate().filter(|(_, job)| !job.over) {
            let chunk = (prompt == Some(index)).then_some(chunk);
            let parts = job.plan(chunk);
            job.expect_reader(!parts.is_empty(), began, patience);
            planned.extend(parts.into_iter().map(|part| (index, part)));
        }
        for model in self.models(&planned) {
            let own = |(index, _): &&Planned| self.jobs.get(*index).is_some_and(|job| Arc::ptr_eq(&job.model, &model));
            let part: Vec<Planned> = planned.iter().filter(own).copied().collect();
            self.compute(&model, &part);
        }
        self.measure(&planned, self.ambient.uptime().saturating_sub(began));
        self.jobs.iter_mut().for_each(Job::tidy);
        !planned.is_empty()
    }

    /// The job whose prompt waits longest for its next chunk.
    fn next_prompt(&mut self) -> Option<usize> {
        let prompts = self.jobs.iter_mut().enumerate().filter(|(_, job)| !job.over && job.is_prefilling());
        let (index, job) = prompts.min_by_key(|(_, job)| job.turn)?;
        self.turns += 1;
        job.turn = self.turns;
        Some(index)
    }

    fn models(&self, planned: &[Planned]) -> Vec<Arc<TextModel>> {
        let mut models: Vec<Arc<TextModel>> = Vec::new();
        for job in planned.iter().filter_map(|(index, _)| self.jobs.get(*index)) {
            if !models.iter().any(|model| Arc::ptr_eq(model, &job.model)) {
                models.push(Arc::clone(&job.model));
            }
        }
        models
    }

    /// Runs the batch. When it fails as a whole, each part runs alone, so that only the guilty fail.
    fn compute(&mut self, model: &TextModel, planned: &[Planned]) {
        match (self.forward(model, planned), planned) {
            (Ok(all), _) => {
                for ((index, part), logits) in planned.iter().zip(all) {
                    if let Some(job) = self.jobs.get_mut(*index) {
                        job.accept(*part, logits);
                    }
                }
            }
            (Err(reason), [(index, _)]) => {
                tracing::error!(model = model.id(), reason, "a generation step failed");
                if let Some(job) = self.jobs.get_mut(*index) {
                    job.fail(Failure::Broken(reason));
                }
            }
            (Err(_), _) => planned.iter().for_each(|one| self.compute(model, std::slice::from_ref(one))),
        }
    }

    fn forward(&mut self, model: &TextModel, planned: &[Planned]) -> Result<Vec<Option<Vec<f32>>>, String> {
        let mut rows = Vec::with_capacity(planned.len());
        for (index, job) in self.jobs.iter_mut().enumerate() {
            let parts: Vec<Part> = planned.iter().filter(|(of, _)| *of == index).map(|(_, part)| *part).collect();
            if !parts.is_empty() {
                job.rows(&parts, &mut rows);
            }
        }
        // A panic leaves no cache advanced, like an error; and the worker must live on.
        match catch_unwind(AssertUnwindSafe(|| model.network.forward_rows(&mut rows))) {
            Ok(Ok(logits)) => Ok(logits),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the computation panicked".to_owned()),
        }
    }

    fn measure(&self, planned: &[Planned], took: Duration) {
        let count = |(_, part): &Planned| if let Part::Prompt(count) = part { *count } else { 1 };
        let tokens: usize = planned.iter().map(count).sum();
        if tokens > 0 && !took.is_zero() {
            let speed = tokens as f64 / took.as_secs_f64();
            let mut inbox = self.shared.lock();
            inbox.speed += (speed - inbox.speed) * NEWEST;
        }
    }
}
