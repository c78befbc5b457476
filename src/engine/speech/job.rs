//! A request for speech and its progress.

use std::sync::Arc;

use super::model::SpeechModel;
use super::request::SpokenPart;
use crate::engine::jobs::Job;
use crate::engine::text::scheduler::Tenant;
use crate::models::kokoro::Voice;

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
