//! A batch of windows of one model: each has a slot, and their next tokens are computed together. Windows join the batch
//! when a slot is free.

use std::sync::Arc;

use super::device_network::NetworkBatch;
use super::model::TranscriptionModel;
use super::queue::TranscriptionQueue;
use super::running_window::RunningWindow;
use super::scheduler::WindowJob;
use super::window_decoder::{NextTokens, Progress};
use crate::error::Failure;
use crate::ids::RequestId;
use crate::runtime::catch_panic::catch_compute_panic;
use crate::runtime::memory_budget::Lease;
use crate::runtime::metrics::Description;
use outpost_models::ModelError;
use outpost_models::backend::Pause;
use outpost_models::whisper::DecodeInput;

/// The metric of transcribed audio.
pub const TRANSCRIBED: Description = Description { name: "audio_transcribed", help: "Audio transcribed" };

/// The most windows of a batch.
const MAX_SLOTS: usize = 8;

pub struct WindowBatch {
    queue: Arc<TranscriptionQueue>,
    model: Arc<TranscriptionModel>,
    slots: Vec<Option<RunningWindow>>,
}

impl WindowBatch {
    pub fn new(queue: Arc<TranscriptionQueue>, model: Arc<TranscriptionModel>) -> Self {
        Self { queue, model, slots: Vec::new() }
    }

    /// The requests of the windows that it holds.
    pub fn request_ids(&self) -> impl Iterator<Item = RequestId> {
        self.slots.iter().flatten().map(|window| window.job.request_id)
    }

    /// Transcribes windows of the model, `first` and others that come, until none is left.
    ///
    /// # Errors
    /// The requests of the windows that are still here have failed.
    pub fn run(&mut self, first: WindowJob, pause: Pause) -> Result<(), Failure> {
        self.slots.push(Some(RunningWindow::new(first)));
        let (lease, slots) = self.lease().ok_or(Failure::OutOfMemory)?;
        self.slots.resize_with(slots, || None);
        let model = Arc::clone(&self.model);
        let outcome = catch_compute_panic(|| {
            let mut network = model.network().start_batch(slots, Arc::clone(&pause))?;
            while self.step(&mut *network, &pause)? {}
            Ok(())
        });
        drop(lease);
        outcome.map_err(|error| match error {
            ModelError::Interrupted => Failure::ShuttingDown,
            error => {
                tracing::error!(model = model.id(), reason = %error, "a transcription failed");
                self.queue.runtime().model_failure(model.id(), &error)
            }
        })
    }

    /// Leases memory for as many slots as possible.
    fn lease(&self) -> Option<(Lease, usize)> {
        let runtime = self.queue.runtime();
        let bytes = |slots| self.model.network().batch_bytes(slots);
        let several = (2..=MAX_SLOTS).rev().find_map(|slots| Some((runtime.lease(bytes(slots), 0)?, slots)));
        several.or_else(|| Some((runtime.lease_reclaiming(bytes(1))?, 1)))
    }

    /// Computes the next tokens of all windows. `false`: there are none.
    fn step(&mut self, network: &mut dyn NetworkBatch, pause: &Pause) -> Result<bool, ModelError> {
        self.admit();
        self.encode(network)?;
        let windows = self.slots.iter().enumerate();
        let next: Vec<(usize, NextTokens<'_>)> =
            windows.filter_map(|(slot, window)| Some((slot, window.as_ref()?.decoder.next_tokens()))).collect();
        if next.is_empty() {
            return Ok(false);
        }
        let inputs: Vec<DecodeInput<'_>> = next.iter().map(|(slot, next)| next.input(*slot)).collect();
        let mut logits = network.decode(&inputs)?;
        let rows: Vec<(usize, usize)> = next.iter().map(|(slot, next)| (*slot, next.logits_of.len())).collect();
        let mut rest = logits.chunks_mut(self.model.logits_width());
        for (slot, count) in rows {
            let mut logits: Vec<&mut [f32]> = rest.by_ref().take(count).collect();
            self.advance(slot, &mut logits, network, pause)?;
            pause()?;
        }
        Ok(true)
    }

    /// Drops cancelled windows, and fills free slots.
    fn admit(&mut self) {
        for slot in &mut self.slots {
            if slot.as_ref().is_some_and(|window| window.job.is_cancelled()) {
                *slot = None;
            }
            if slot.is_none() {
                *slot = self.queue.lock().next_window(Some(&self.model)).map(RunningWindow::new);
            }
        }
    }

    fn encode(&mut self, network: &mut dyn NetworkBatch) -> Result<(), ModelError> {
        let windows = self.slots.iter().enumerate();
        let new = windows.filter_map(|(slot, window)| Some((slot, window.as_ref()?.unencoded_samples()?)));
        let new: Vec<(usize, &[f32])> = new.collect();
        if new.is_empty() {
            return Ok(());
        }
        network.encode(&new)?;
        self.slots.iter_mut().flatten().for_each(|window| window.is_encoded = true);
        Ok(())
    }

    /// Takes the logits of a window's tokens.
    fn advance(
        &mut self,
        slot: usize,
        logits: &mut [&mut [f32]],
        network: &mut dyn NetworkBatch,
        pause: &Pause,
    ) -> Result<(), ModelError> {
        let Some(window) = self.slots.get_mut(slot).and_then(Option::as_mut) else { return Ok(()) };
        let id = window.job.request_id;
        match window.decoder.advance(logits) {
            Err(_) => {
                self.queue.lock().fail(id, Failure::not_finite(self.model.id()));
                self.release(slot);
            }
            Ok(Progress::Continue) => {}
            Ok(Progress::Language(token)) => {
                window.set_language(token);
                let code = self.model.vocabulary().language_code(token).unwrap_or("en");
                self.queue.lock().language_detected(id, token, code);
            }
            Ok(Progress::Done(decoded)) => {
                let mut align = |tokens: &[u32]| network.alignment(slot, tokens);
                if window.add_segments(decoded, &mut align, &**pause)? {
                    return Ok(());
                }
                let (number, segments, seconds) =
                    (window.job.number, std::mem::take(&mut window.segments), window.job.seconds());
                self.queue.runtime().metrics.add_seconds(TRANSCRIBED, self.model.id(), seconds);
                self.queue.lock().window_done(id, number, segments, seconds);
                self.release(slot);
            }
        }
        Ok(())
    }

    fn release(&mut self, slot: usize) {
        if let Some(slot) = self.slots.get_mut(slot) {
            *slot = None;
        }
    }
}
