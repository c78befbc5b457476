//! What an audio file is, and how much of it may be decoded.

use serde::{Deserialize, Serialize};

/// Samples per second of decoded audio: what speech models take.
pub const SAMPLE_RATE: u32 = 16_000;

/// What a file contains.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AudioInfo {
    /// The container's short name, such as `wave` or `isomp4`.
    pub container: String,
    /// The codec's short name, such as `mp3` or `opus`.
    pub codec: String,
    /// The sample rate of the encoded audio; Hz.
    pub sample_rate: u32,
    pub channels: u32,
    /// The length of the audio; seconds. It is the sum of the lengths of all packets and not what the header says.
    pub seconds: f64,
}

impl AudioInfo {
    /// The number of samples at 16 kHz that decoding yields, up to rounding and damaged packets.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a length is not negative, and one beyond the range of u64 saturates"
    )]
    pub fn samples(&self) -> u64 {
        (self.seconds * f64::from(SAMPLE_RATE)).round() as u64
    }
}
