//! Requests for speech, and their results.

use crate::jobs::JobEvent;

/// A request to speak a text.
#[derive(Clone, Debug)]
pub struct SpeechRequest {
    pub text: String,
    /// Voices with their weights. Several are mixed. The first one decides the language.
    pub voices: Vec<(String, f32)>,
    /// 1 is the usual speed.
    pub speed: f32,
    pub seed: u64,
    /// The tenant, for fair scheduling.
    pub tenant: u128,
}

/// A spoken part of a text, such as a sentence. Parts come in the order of the text.
#[derive(Clone, Debug, PartialEq)]
pub struct SpokenPart {
    /// Mono samples at the model's rate, about -1 to 1.
    pub samples: Vec<f32>,
}

impl JobEvent for SpokenPart {
    fn is_result(&self) -> bool {
        true
    }

    fn amount(&self) -> u64 {
        self.samples.len() as u64
    }
}
