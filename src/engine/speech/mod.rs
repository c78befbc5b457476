//! Text to speech: turns texts into phonemes, and speaks them with Kokoro models, part by part.

mod checkpoint;
mod device_network;
mod job;
mod model;
mod phonemes;
mod queue;
mod request;
mod voice_info;
mod workload;

pub use checkpoint::SpeechCheckpoint;
pub use model::SpeechModel;
pub use queue::{SpeechParts, SpeechQueue};
pub use request::{SpeechRequest, SpokenPart};
pub use voice_info::VoiceInfo;
pub use workload::SpeechWorkload;
