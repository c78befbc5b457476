//! Writes speech as an audio file, piece by piece.

mod audio_encoder;
mod bit_writer;
mod flac;
mod mp3;
mod ogg;
mod opus;
mod sample_bytes;
#[cfg(test)]
mod tests;

pub use audio_encoder::{AudioEncoder, AudioFormat};
pub use sample_bytes::ENCODER_RATE;
