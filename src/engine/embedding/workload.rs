//! Embeddings and reranking on the compute thread.
//!
//! A batch goes layer by layer, so that other workloads wait for one layer at most, and of a decoder for one layer of
//! some of its texts.

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
use crate::models::encoder::Tokenized;

/// How long layers are computed before other workloads have their turn.
const SLICE: Duration = Duration::from_millis(4);

pub struct EmbeddingWorkload {
    queue: Arc<EmbeddingQueue>,
    runtime: Arc<Runtime>,
    batch: Option<RunningBatch>,
}

/// A batch of which some layers are computed.
struct RunningBatch {
    model: Arc<EncoderModel>,
    members: Vec<BatchItem>,
    pass: Pass,
    /// Time that its layers have taken.
    took: Duration,
}

impl Workload for EmbeddingWorkload {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn sweep(&mut self) {
        self.queue.lock().sweep();
    }

    /// Some layers of a batch of texts.
    fn step(&mut self, _busy: bool) -> bool {
        let begun = self.batch.take().filter(|batch| self.queue.lock().wants(&batch.members));
        let Some(mut batch) = begun.or_else(|| self.next_batch()) else { return false };
        let began = self.runtime.clock.uptime();
        loop {
            self.runtime.faults.point("embedding.step");
            let advanced = batch.model.advance(&mut batch.pass);
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
                Err(reason) => {
                    self.fail_batch(&batch.model, &batch.members, &reason);
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

    /// The next batch, begun. One that cannot begin fails, and then the one after it is tried.
    fn next_batch(&mut self) -> Option<RunningBatch> {
        loop {
            let Batch { model, members } = self.queue.lock().take(EncoderModel::batch)?;
            let texts: Vec<&Tokenized> = members.iter().map(|member| &member.text).collect();
            match model.begin(&texts) {
                Ok(pass) => return Some(RunningBatch { model, members, pass, took: Duration::ZERO }),
                Err(reason) => self.fail_batch(&model, &members, &reason),
            }
        }
    }

    fn deliver(&mut self, batch: RunningBatch) {
        let RunningBatch { model, members, pass, took } = batch;
        let vectors = match model.vectors(&pass) {
            Ok(vectors) => vectors,
            Err(reason) => return self.fail_batch(&model, &members, &reason),
        };
        let tokens = members.iter().map(|member| member.text.ids.len()).sum();
        model.measure(tokens, took);
        self.runtime.metrics.step(model.id(), Step { prompt: tokens as u64, ..Step::default() });
        let mut scheduler = self.queue.lock();
        self.runtime.faults.point("embedding.deliver");
        for (member, vector) in members.iter().zip(vectors) {
            match are_finite(&vector) {
                true => scheduler.done(member.request, member.place, vector),
                false => scheduler.fail(member.request, Failure::not_finite(model.id())),
            }
        }
    }

    fn fail_batch(&self, model: &EncoderModel, members: &[BatchItem], reason: &str) {
        tracing::error!(model = model.id(), reason, "texts could not be embedded");
        let mut scheduler = self.queue.lock();
        let failure = || Failure::ModelUnusable { id: model.id().to_owned(), reason: reason.to_owned() };
        members.iter().for_each(|member| scheduler.fail(member.request, failure()));
    }
}
