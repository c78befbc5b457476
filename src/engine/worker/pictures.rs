//! The worker's half of painting: it lets the painter compute between steps of answers and layers of texts.

use std::sync::Arc;
use std::time::Duration;

use super::Worker;
use crate::ambient::Ambient;
use crate::engine::budget::Lease;
use crate::engine::guard::painted;
use crate::engine::painting::{Commission, Lender, Painter, Pause, Stroke};
use crate::engine::queue::Shared;
use crate::engine::registry::Registry;
use crate::engine::request::Failure;
use crate::models::diffusion::pipeline::Interrupted;

/// How long it computes before others have their turn again: where there are others, and where newcomers may come.
const SLICE: Duration = Duration::from_millis(4);
const ALONE: Duration = Duration::from_millis(20);

impl Worker {
    /// Some milliseconds of a picture. `false`: there was nothing to do.
    pub(super) fn paint(&mut self, busy: bool) -> bool {
        if self.painter.as_ref().is_none_or(|painter| !painter.is_busy()) {
            let Some(commission) = self.shared.lock().paintings.take() else { return false };
            if let Err(commission) = self.begin_picture(commission) {
                commission.fail(Failure::Broken("no thread could be started".to_owned()));
                return true;
            }
        }
        let slice = if busy { SLICE } else { ALONE };
        if let Some(painter) = &self.painter {
            painter.go_on(self.ambient.uptime() + slice);
        }
        true
    }

    fn begin_picture(&mut self, commission: Commission) -> Result<(), Box<Commission>> {
        if self.painter.is_none() {
            self.painter = Painter::start(Arc::clone(&self.ambient)).ok();
        }
        let Some(painter) = &self.painter else { return Err(Box::new(commission)) };
        let (shared, registry) = (Arc::clone(&self.shared), Arc::clone(&self.registry));
        let studio = Studio { shared, registry, ambient: Arc::clone(&self.ambient) };
        painter.begin(Box::new(move |pause| studio.work(commission, pause)));
        Ok(())
    }
}

/// What a picture's work needs of the engine.
struct Studio {
    shared: Arc<Shared>,
    registry: Arc<Registry>,
    ambient: Arc<dyn Ambient>,
}

impl Studio {
    /// Paints the next picture of a request.
    fn work(&self, mut commission: Commission, pause: Pause<'_>) {
        let began = self.ambient.uptime();
        let sender = commission.sender.clone();
        let stopped = || sender.is_closed() || self.shared.is_aborting();
        let pause = || if stopped() { Err(Interrupted::Cancelled) } else { pause() };
        let outcome = match self.memory(&commission) {
            Some(_lease) => painted(|| self.paint(&mut commission, &pause)),
            None => Ok(None),
        };
        match outcome {
            Ok(None) => commission.fail(Failure::NoMemory),
            Ok(Some(picture)) => {
                commission.sender.send(Ok(picture));
                self.shared.metrics.picture(commission.model.id());
                let took = self.ambient.uptime().saturating_sub(began).as_secs_f64();
                self.shared.lock().paintings.give_back(commission, took);
            }
            Err(Interrupted::Cancelled) => commission.fail(Failure::ShuttingDown),
            Err(Interrupted::Failed(reason)) => {
                let id = commission.model.id().to_owned();
                tracing::error!(model = id, reason, "a picture could not be painted");
                commission.fail(Failure::Unusable { id, reason });
            }
        }
    }

    /// The memory that a picture takes, for which adapters of other pictures go at last.
    fn memory(&self, commission: &Commission) -> Option<Lease> {
        let bytes = commission.model.picture_bytes(commission.painting.size);
        self.lease(bytes).or_else(|| {
            commission.model.forget_adapters();
            self.lease(bytes)
        })
    }

    /// The next picture; `None`: there is no memory for its adapters.
    fn paint(&self, commission: &mut Commission, pause: Pause<'_>) -> Result<Option<Stroke>, Interrupted> {
        let Commission { model, painting, prompts, words, next, sender, .. } = commission;
        let image = *next;
        let seed = painting.seeds.get(image).copied().unwrap_or_default();
        let cpu = Arc::clone(model.cpu());
        let ctx = model.op_context(cpu.pool(), pause);
        let Some(lora_deltas) = model.lora_deltas(painting, &ctx, self)? else { return Ok(None) };
        let ctx = ctx.with_lora(lora_deltas);
        if words.is_none() {
            *words = Some(model.read(&ctx, prompts, painting.negative_prompt.is_some())?);
        }
        let Some(words) = words.as_ref() else { return Err(Interrupted::Failed("the prompts were lost".to_owned())) };
        let mut told = |step, of, preview| sender.send(Ok(Stroke::Step { image, step, of, preview }));
        let picture = model.paint(&ctx, words, painting, seed, &mut told)?;
        let (held, claimed) = (ctx.peak_bytes(), model.picture_bytes(painting.size));
        tracing::debug!(model = model.id(), held, claimed, "a picture is painted; bytes of memory beside the weights");
        Ok(Some(Stroke::Done { image, picture }))
    }
}

impl Lender for Studio {
    fn spare(&self, bytes: u64) -> Option<Lease> {
        self.shared.lease(bytes, 0)
    }

    fn lease(&self, bytes: u64) -> Option<Lease> {
        loop {
            if let Some(lease) = self.spare(bytes) {
                return Some(lease);
            }
            if !self.registry.unload_idle() {
                return None;
            }
        }
    }
}
