//! Embeddings and reranking on the compute thread.
//!
//! A batch is computed layer by layer, so that other workloads wait for at most one layer (in a decoder: one layer of
//! some of the texts).

use std::sync::Arc;
use std::time::Duration;

use super::model::EncoderModel;
use super::network::Pass;
use super::queue::EmbeddingQueue;
use super::scheduler::BatchItem;
use crate::error::{Failure, are_finite};
use crate::kinds::QueuedWorkload;
use crate::runtime::Runtime;
use crate::runtime::metrics::Step;
use crate::runtime::workload::Workload;
use outpost_models::ModelError;
use outpost_models::encoder::Tokenized;

/// How long layers are computed before other workloads run.
const SLICE: Duration = Duration::from_millis(4);

pub struct EmbeddingWorkload {
    queue: Arc<EmbeddingQueue>,
    runtime: Arc<Runtime>,
    batch: Option<RunningBatch>,
}

/// A partly computed batch. The models of all items have the same network.
struct RunningBatch {
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
            let Some(BatchItem { model, .. }) = batch.items.first() else { return true };
            let advanced = model.advance(&mut *batch.pass);
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
                    self.fail_batch(&batch.items, &error);
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

impl QueuedWorkload for EmbeddingWorkload {
    type Queue = EmbeddingQueue;

    fn new(queue: Arc<EmbeddingQueue>) -> Self {
        let runtime = Arc::clone(queue.runtime());
        Self { queue, runtime, batch: None }
    }
}

impl EmbeddingWorkload {
    /// Starts the next batch. A batch that cannot start fails, and the one after it is tried.
    fn next_batch(&mut self) -> Option<RunningBatch> {
        loop {
            let shares_network = |one: &EncoderModel, other: &EncoderModel| one.shares_network_with(other);
            let items = self.queue.lock().next_batch(EncoderModel::batch_tokens, shares_network);
            let texts: Vec<(&Tokenized, &EncoderModel)> = items.iter().map(|item| (&item.text, &*item.model)).collect();
            match items.first()?.model.begin(&texts) {
                Ok(pass) => return Some(RunningBatch { items, pass, took: Duration::ZERO }),
                Err(error) => self.fail_batch(&items, &error),
            }
        }
    }

    fn deliver(&mut self, batch: RunningBatch) {
        let RunningBatch { items, pass, took } = batch;
        let Some(BatchItem { model: network, .. }) = items.first() else { return };
        let models: Vec<&EncoderModel> = items.iter().map(|item| &*item.model).collect();
        let vectors = match network.vectors(&*pass, &models) {
            Ok(vectors) => vectors,
            Err(error) => return self.fail_batch(&items, &error),
        };
        network.record_speed(items.iter().map(|item| item.text.ids.len()).sum(), took);
        for BatchItem { model, text, .. } in &items {
            self.runtime.metrics.step(model.id(), Step { prompt: text.ids.len() as u64, ..Step::default() });
        }
        let mut scheduler = self.queue.lock();
        self.runtime.faults.point("embedding.deliver");
        for (BatchItem { model, request, index, .. }, vector) in items.iter().zip(vectors) {
            match are_finite(&vector) {
                true => scheduler.complete(*request, *index, vector),
                false => scheduler.fail(*request, Failure::not_finite(model.id())),
            }
        }
    }

    fn fail_batch(&self, items: &[BatchItem], error: &ModelError) {
        let Some(BatchItem { model: network, .. }) = items.first() else { return };
        tracing::error!(model = network.id(), reason = %error, "texts could not be embedded");
        let mut scheduler = self.queue.lock();
        for BatchItem { model, request, .. } in items {
            scheduler.fail(*request, self.runtime.model_failure(model.id(), error));
        }
    }
}
