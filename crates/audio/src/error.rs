//! What is wrong with an audio file, for the client that sent it.

use serde::{Deserialize, Serialize};

/// The formats that the decoder reads; ends the message of an error about the format.
pub const ACCEPTED_FORMATS: &str = "send WAV, MP3, FLAC, OGG (Vorbis, Opus, FLAC), M4A or MP4 (AAC, ALAC), WebM or \
                                    Matroska, AAC (ADTS), AIFF, AU or CAF";

/// Why a file was not decoded.
#[derive(Clone, Debug, PartialEq, thiserror::Error, Serialize, Deserialize)]
pub enum AudioError {
    #[error("the file is empty; {ACCEPTED_FORMATS}")]
    EmptyFile,
    #[error("the file's content is not audio in a known format; {ACCEPTED_FORMATS}")]
    NotAudio,
    #[error("the container is not supported ({container}); {ACCEPTED_FORMATS}")]
    UnsupportedContainer { container: String },
    #[error("the {container} header is damaged: {reason}; write the file again, for example with ffmpeg")]
    InvalidHeader { container: String, reason: String },
    #[error(
        "the sound is interrupted: between the frames of MP3 or AAC lie {foreign_bytes} other bytes in {breaks} places, so \
         the file is damaged or in a container that is not supported; {ACCEPTED_FORMATS}"
    )]
    Interrupted { foreign_bytes: u64, breaks: u64 },
    #[error("the file has no audio track ({container}); {ACCEPTED_FORMATS}")]
    NoAudioTrack { container: String },
    #[error("the codec {codec} is not supported ({container}); {ACCEPTED_FORMATS}")]
    UnsupportedCodec { container: String, codec: String },
    #[error("a sample rate of {rate} Hz is not supported; resample the audio to 16000 Hz, for example")]
    UnsupportedSampleRate { rate: u32 },
    #[error("the audio has no samples: its length is zero")]
    NoSamples,
    #[error("the audio is damaged: none of it could be decoded")]
    Damaged,
    #[error(
        "the audio is longer than {max_seconds} seconds; split it into shorter files, or the operator can raise the limit with --max-audio-seconds"
    )]
    TooLong { max_seconds: u32 },
    #[error("the audio is damaged, or decoding it needs too much memory; convert it to WAV, FLAC or MP3")]
    DecoderStopped,
    #[error("decoding the audio takes too long; convert it to WAV, FLAC or MP3")]
    TimedOut,
    #[error("the audio decoder cannot be started: {reason}")]
    NotStarted { reason: String },
    #[error("the audio file cannot be read: {reason}")]
    Unreadable { reason: String },
}

impl AudioError {
    /// The error for a file that cannot be read.
    pub fn unreadable(error: std::io::Error) -> Self {
        Self::Unreadable { reason: error.to_string() }
    }

    /// Whether the cause is this machine and not the file.
    pub fn is_internal(&self) -> bool {
        matches!(self, Self::NotStarted { .. } | Self::Unreadable { .. })
    }
}
