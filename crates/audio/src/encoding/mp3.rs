//! MP3, by the fixed-point encoder shine.
//!
//! Decoders that check the Huffman codes refuse some of its frames of MPEG-2 (16 to 24 kHz), so it gets 48 kHz.
//!
//! MP3 is the default of OpenAI's API, so it is required. shine-rs is a Rust port of shine under the LGPL 2.0, which
//! allows use in a program of another licence whose users can replace the library: the source of the whole program is
//! public, and `[patch]` replaces a crate. LAME needs a C compiler. A younger encoder under MIT, and the AAC encoder of
//! its authors, need Rust 1.95, while this project supports 1.91; so there is no `aac`. Neither shine nor a player's
//! decoder knows how many samples to leave out at the beginning, so an MP3 begins 22 ms late. shine amplifies by 1.12,
//! so samples are attenuated first. symphonia refused up to 42 % of shine's frames of 24 kHz, where ffmpeg is more
//! tolerant.

use shine_rs::{Mp3Encoder as Shine, Mp3EncoderConfig, StereoMode};

use super::sample_bytes::{ENCODER_RATE, to_i16};
use crate::resampler::Resampler;

const RATE: u32 = 48_000;
/// kbit/s. The encoder has no psychoacoustic model, so it gets more than LAME would need.
const BITRATE: u32 = 96;
/// The encoder amplifies by 1.12; this restores the level.
const GAIN: f32 = 0.89;
/// The delay of encoder and decoder together is 1057 samples at 48 kHz. So many samples of silence at 24 kHz follow the
/// audio, to get its end out of them.
const FLUSH: usize = 576;

pub struct Mp3Encoder {
    shine: Shine,
    resampler: Resampler,
}

impl Mp3Encoder {
    pub fn new() -> Result<Self, String> {
        let config = Mp3EncoderConfig::new();
        let config = config.sample_rate(RATE).bitrate(BITRATE).channels(1).stereo_mode(StereoMode::Mono);
        let shine = Shine::new(config).map_err(|error| error.to_string())?;
        Ok(Self { shine, resampler: Resampler::new(ENCODER_RATE, RATE)? })
    }

    pub fn push(&mut self, samples: &[f32]) -> Result<Vec<u8>, String> {
        // A NaN would spread over a whole block of the resampler.
        let samples: Vec<f32> =
            samples.iter().map(|sample| if sample.is_nan() { 0.0 } else { sample.clamp(-1.0, 1.0) * GAIN }).collect();
        let mut resampled = Vec::new();
        self.resampler.push(&samples, &mut resampled)?;
        self.encode(&resampled)
    }

    pub fn finish(mut self) -> Result<Vec<u8>, String> {
        let mut bytes = self.push(&[0.0; FLUSH])?;
        let mut rest = Vec::new();
        self.resampler.finish(&mut rest)?;
        bytes.extend(self.encode(&rest)?);
        bytes.extend(self.shine.finish().map_err(|error| error.to_string())?);
        Ok(bytes)
    }

    fn encode(&mut self, samples: &[f32]) -> Result<Vec<u8>, String> {
        if samples.is_empty() {
            return Ok(Vec::new());
        }
        let samples: Vec<i16> = to_i16(samples).collect();
        self.shine.encode_interleaved(&samples).map(|frames| frames.concat()).map_err(|error| error.to_string())
    }
}
