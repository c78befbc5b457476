//! Embeddings and reranking on the compute thread.
//!
//! A batch is computed layer by layer, so that other workloads wait for at most one layer (in a decoder: one layer of
//! some of the texts).

use std::sync::Arc;
use std::time::Duration;

use super::model::EncoderModel;
use super::network::Pass;
use super::queue::EmbeddingQueue;
use super::scheduler::{Batch, BatchItem};
use crate::engine::error::{Failure, are_finite};
use crate::engine::runtime::Runtime;
use crate::engine::runtime::metrics::Step;
use crate::engine::runtime::workload::Workload;
use crate::models::ModelError;
use crate::models::encoder::Tokenized;

/// How long layers are computed before other workloads run.
const SLICE: Duration = Duration::from_millis(4);

pub struct EmbeddingWorkload {
    queue: Arc<EmbeddingQueue>,
    runtime: Arc<Runtime>,
    batch: Option<RunningBatch>,
}

/// A partly computed batch.
struct RunningBatch {
    model: Arc<EncoderModel>,
    items: Vec<BatchItem>,
    pass: Box<dyn Pass>,
    /// The compute time so far.
    took: Duration,
}

impl Workload for EmbeddingWorkload {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn sweep(&mut self) {
        self.queue.lock().sweep();
    }

    /// Computes some layers of a batch.
    fn step(&mut self, _busy: bool) -> bool {
        let begun = self.batch.take().filter(|batch| self.queue.lock().is_wanted(&batch.items));
        let Some(mut batch) = begun.or_else(|| self.next_batch()) else { return false };
        let began = self.runtime.clock.uptime();
        loop {
            self.runtime.faults.point("embedding.step");
            let advanced = batch.model.advance(&mut *batch.pass);
            let took = self.runtime.clock.uptime().saturating_sub(began);
            match advanced {
                Ok(false) if took < SLICE => {}
                Ok(false) => {
                    batch.took += took;
                    self.batch = Some(batch);
                    return true;
                }
                Ok(true) => {
                    batch.took += took;
                    self.deliver(batch);
                    return true;
                }
                Err(error) => {
                    self.fail_batch(&batch.model, &batch.items, &error);
                    return true;
                }
            }
        }
    }

    fn fail(&mut self, failure: &Failure, running: bool) {
        self.queue.lock().fail_all(failure, running);
    }

    fn recover(&mut self, failure: &Failure) {
        self.batch = None;
        self.queue.lock().fail_computing(failure);
    }
}

impl EmbeddingWorkload {
    pub fn new(queue: Arc<EmbeddingQueue>) -> Self {
        let runtime = Arc::clone(queue.runtime());
        Self { queue, runtime, batch: None }
    }

    /// Starts the next batch. A batch that cannot start fails, and the one after it is tried.
    fn next_batch(&mut self) -> Option<RunningBatch> {
        loop {
            let Batch { model, items } = self.queue.lock().next_batch(EncoderModel::batch_tokens)?;
            let texts: Vec<&Tokenized> = items.iter().map(|item| &item.text).collect();
            match model.begin(&texts) {
                Ok(pass) => return Some(RunningBatch { model, items, pass, took: Duration::ZERO }),
                Err(error) => self.fail_batch(&model, &items, &error),
            }
        }
    }

    fn deliver(&mut self, batch: RunningBatch) {
        let RunningBatch { model, items, pass, took } = batch;
        let vectors = match model.vectors(&*pass) {
            Ok(vectors) => vectors,
            Err(error) => return self.fail_batch(&model, &items, &error),
        };
        let tokens = items.iter().map(|item| item.text.ids.len()).sum();
        model.record_speed(tokens, took);
        self.runtime.metrics.step(model.id(), Step { prompt: tokens as u64, ..Step::default() });
        let mut scheduler = self.queue.lock();
        self.runtime.faults.point("embedding.deliver");
        for (item, vector) in items.iter().zip(vectors) {
            match are_finite(&vector) {
                true => scheduler.complete(item.request, item.index, vector),
                false => scheduler.fail(item.request, Failure::not_finite(model.id())),
            }
        }
    }

    fn fail_batch(&self, model: &EncoderModel, items: &[BatchItem], error: &ModelError) {
        tracing::error!(model = model.id(), reason = %error, "texts could not be embedded");
        let failure = self.runtime.model_failure(model.id(), error);
        let mut scheduler = self.queue.lock();
        items.iter().for_each(|item| scheduler.fail(item.request, failure.clone()));
    }
}
