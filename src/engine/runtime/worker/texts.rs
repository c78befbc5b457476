//! The worker's half of embedding: a batch goes layer by layer, so that answers being generated wait for one
//! layer at most, of a decoder for a piece of the texts in it.

use std::sync::Arc;
use std::time::Duration;

use super::Worker;
use crate::engine::embedding::{Batch, EncoderModel, Member, Pass};
use crate::engine::error::Failure;
use crate::engine::error::are_finite;
use crate::engine::runtime::metrics::Step;
use crate::models::encoder::Tokenized;

/// How long layers are computed before answers have their turn again.
const SLICE: Duration = Duration::from_millis(4);

/// A batch on its way.
pub(super) struct Embedding {
    model: Arc<EncoderModel>,
    members: Vec<Member>,
    pass: Pass,
    /// Time that its layers have taken.
    took: Duration,
}

impl Worker {
    /// Some layers of a batch of texts. `false`: there was nothing to do.
    pub(super) fn embed(&mut self) -> bool {
        let begun = self.embedding.take().filter(|batch| self.shared.lock().texts.wants(&batch.members));
        let Some(mut batch) = begun.or_else(|| self.next_texts()) else { return false };
        let began = self.clock.uptime();
        loop {
            let advanced = batch.model.advance(&mut batch.pass);
            let took = self.clock.uptime().saturating_sub(began);
            match advanced {
                Ok(false) if took < SLICE => {}
                Ok(false) => {
                    batch.took += took;
                    self.embedding = Some(batch);
                    return true;
                }
                Ok(true) => {
                    batch.took += took;
                    self.deliver(batch);
                    return true;
                }
                Err(reason) => {
                    self.break_off(&batch.model, &batch.members, &reason);
                    return true;
                }
            }
        }
    }

    /// The next batch, begun; one that cannot begin fails, and then the one after it is tried.
    fn next_texts(&mut self) -> Option<Embedding> {
        loop {
            let Batch { model, members } = self.shared.lock().texts.take(EncoderModel::batch)?;
            let texts: Vec<&Tokenized> = members.iter().map(|member| &member.text).collect();
            match model.begin(&texts) {
                Ok(pass) => return Some(Embedding { model, members, pass, took: Duration::ZERO }),
                Err(reason) => self.break_off(&model, &members, &reason),
            }
        }
    }

    fn deliver(&mut self, batch: Embedding) {
        let Embedding { model, members, pass, took } = batch;
        let vectors = match model.vectors(&pass) {
            Ok(vectors) => vectors,
            Err(reason) => return self.break_off(&model, &members, &reason),
        };
        let tokens = members.iter().map(|member| member.text.ids.len()).sum();
        model.measure(tokens, took);
        self.shared.metrics.step(model.id(), Step { prompt: tokens as u64, ..Step::default() });
        let mut inbox = self.shared.lock();
        for (member, vector) in members.iter().zip(vectors) {
            match are_finite(&vector) {
                true => inbox.texts.done(member.request, member.place, vector),
                false => inbox.texts.fail(member.request, Failure::not_finite(model.id())),
            }
        }
    }

    fn break_off(&self, model: &EncoderModel, members: &[Member], reason: &str) {
        tracing::error!(model = model.id(), reason, "texts could not be embedded");
        let mut inbox = self.shared.lock();
        let failure = || Failure::Unusable { id: model.id().to_owned(), reason: reason.to_owned() };
        members.iter().for_each(|member| inbox.texts.fail(member.request, failure()));
    }
}
