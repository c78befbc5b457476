//! Text to speech: turns texts into phonemes, and speaks them with Kokoro models, part by part.

mod checkpoint;
mod device_network;
mod job;
mod kind;
mod model;
mod request;
mod voice_info;

use outpost_phonemes as phonemes;

pub use checkpoint::SpeechCheckpoint;
pub use job::SpeechJob;
pub use model::SpeechModel;
pub use request::{SpeechRequest, SpokenPart};
pub use voice_info::VoiceInfo;

use crate::jobs::{Events, JobQueue};

/// The spoken parts of a request. Dropping it cancels those that are not spoken yet.
pub type SpeechParts = Events<SpokenPart>;
pub type SpeechQueue = JobQueue<SpeechJob>;
