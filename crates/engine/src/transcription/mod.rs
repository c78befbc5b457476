//! Transcription with Whisper models, window by window.
//!
//! Transcription runs on a thread of its own that pauses every few milliseconds, and not in the steps of text
//! generation: encoding a window takes a tenth of a second or more, during which a chat may not wait.

mod alignment;
mod batch;
mod checkpoint;
mod device_network;
mod events;
mod kind;
mod log_probabilities;
mod model;
mod non_speech;
mod prepared_request;
mod queue;
mod repetition;
mod request;
mod running_window;
mod scheduler;
mod segments;
#[cfg(test)]
mod tests;
mod token_rules;
mod vocabulary;
mod window_decoder;
mod words;
mod workload;

pub use events::{Transcription, WindowSender};
pub use model::TranscriptionModel;
pub use queue::TranscriptionQueue;
pub use request::{
    SAMPLE_RATE, Segment, SpeechWindow, SpokenToken, TranscriptionEvent, TranscriptionRequest, TranscriptionTask,
    WINDOW_SAMPLES, Word,
};
