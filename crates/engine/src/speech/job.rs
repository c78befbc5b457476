//! A request for speech and its progress.

use std::sync::Arc;

use super::device_network::PartInput;
use super::model::SpeechModel;
use super::request::{SpeechRequest, SpokenPart};
use crate::error::Refused;
use crate::ids::Tenant;
use crate::jobs::{ComputedJob, Job, Sender};
use crate::runtime::Runtime;
use crate::runtime::metrics::Description;
use crate::settings::Settings;
use outpost_models::ModelError;
use outpost_models::backend::Pause;
use outpost_models::kokoro::Voice;

/// The metric of spoken audio.
pub const SPOKEN: Description = Description { name: "audio_spoken", help: "Audio spoken" };

/// A request and its progress.
pub struct SpeechJob {
    pub model: Arc<SpeechModel>,
    /// The tokens of each part of the text.
    pub parts: Vec<Vec<u32>>,
    pub voice: Voice,
    pub speed: f32,
    pub seed: u64,
    pub tenant: Tenant,
    /// Index of the next part.
    pub next: usize,
}

impl SpeechJob {
    /// Checks the request, and turns its text into phonemes. Takes time in proportion to the text's length.
    ///
    /// # Errors
    /// If the model lacks a voice or the pronunciation of its language, or the text has no words.
    pub fn new(model: &Arc<SpeechModel>, request: &SpeechRequest) -> Result<Self, Refused> {
        let voice = model.mix(&request.voices)?;
        let first = request.voices.first().map_or("", |(name, _)| name);
        let parts = model.parts(&request.text, first)?;
        if parts.is_empty() {
            return Err(Refused::Invalid("the text has no words to speak".to_owned()));
        }
        let SpeechRequest { speed, seed, tenant, .. } = *request;
        Ok(Self { model: Arc::clone(model), parts, voice, speed, seed, tenant, next: 0 })
    }

    /// The tokens of the next part.
    pub fn tokens(&self) -> &[u32] {
        self.parts.get(self.next).map_or(&[], Vec::as_slice)
    }
}

impl Job for SpeechJob {
    type Event = SpokenPart;

    fn tenant(&self) -> Tenant {
        self.tenant
    }

    fn remaining(&self) -> usize {
        self.parts.len().saturating_sub(self.next)
    }

    /// Tokens, over the speed.
    fn work(&self) -> f64 {
        self.tokens().len() as f64 / f64::from(self.speed)
    }

    fn remaining_work(&self) -> f64 {
        let parts = self.parts.get(self.next..).unwrap_or_default();
        parts.iter().map(Vec::len).sum::<usize>() as f64 / f64::from(self.speed)
    }

    fn has_begun(&self) -> bool {
        self.next > 0
    }

    fn advance(&mut self) {
        self.next += 1;
    }
}

impl ComputedJob for SpeechJob {
    const WORKLOAD: &'static str = "speech";
    const FAULT_POINTS: [&'static str; 3] = ["speech.next_job", "speech.work", "speech.requeue"];

    fn queue_limit(settings: &Settings) -> usize {
        settings.max_queued_speech_parts
    }

    fn model_id(&self) -> &str {
        self.model.id()
    }

    fn compute(
        &mut self,
        _: &Sender<SpokenPart>,
        pause: Pause,
        runtime: &Runtime,
    ) -> Result<Option<SpokenPart>, ModelError> {
        let (tokens, seed) = (self.tokens(), self.seed.wrapping_add(self.next as u64));
        // Styles are those of the number of phonemes, without the tokens at both ends.
        let style = self.voice.style(tokens.len().saturating_sub(2));
        let input = PartInput { tokens, style, speed: self.speed, seed, pause, runtime };
        Ok(self.model.network().speak(input)?.map(|samples| SpokenPart { samples }))
    }

    fn record(&self, part: &SpokenPart, runtime: &Runtime) {
        let seconds = part.samples.len() as f64 / f64::from(self.model.sample_rate());
        runtime.metrics.add_seconds(SPOKEN, self.model.id(), seconds);
    }
}
