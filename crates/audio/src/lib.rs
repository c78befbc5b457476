//! Audio files: what they contain, their samples, the speech in them, and writing them.

pub mod decoding;
pub mod encoding;
pub mod error;
pub mod info;
mod priority;
pub mod process;
mod resampler;
pub mod windows;

pub use encoding::{AudioEncoder, AudioFormat, ENCODER_RATE};
pub use error::AudioError;
pub use info::{AudioInfo, SAMPLE_RATE};
pub use priority::lower_thread_priority;
pub use process::{AudioDecoder, Pass, Samples};
pub use windows::{Window, WindowSplitter};
