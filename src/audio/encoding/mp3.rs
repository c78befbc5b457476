//! MP3, by the fixed-point encoder shine.

use shine_rs::{Mp3Encoder as Shine, Mp3EncoderConfig, StereoMode};

use super::sample_bytes::{ENCODER_RATE, to_i16};

/// kbit/s. The encoder has no psychoacoustic model, so it gets more than LAME would need.
const BITRATE: u32 = 96;
/// The delay of encoder and decoder together is 1105 samples. So many samples of silence follow the audio, to get its
/// end out of them.
const FLUSH: usize = 1152;

pub struct Mp3Encoder {
    shine: Shine,
}

impl Mp3Encoder {
    pub fn new() -> Result<Self, String> {
        let config = Mp3EncoderConfig::new();
        let config = config.sample_rate(ENCODER_RATE).bitrate(BITRATE).channels(1).stereo_mode(StereoMode::Mono);
        Shine::new(config).map(|shine| Self { shine }).map_err(|error| error.to_string())
    }

    pub fn push(&mut self, samples: &[f32]) -> Result<Vec<u8>, String> {
        if samples.is_empty() {
            return Ok(Vec::new());
        }
        let samples: Vec<i16> = to_i16(samples).collect();
        self.shine.encode_interleaved(&samples).map(|frames| frames.concat()).map_err(|error| error.to_string())
    }

    pub fn finish(mut self) -> Result<Vec<u8>, String> {
        let mut bytes = self.push(&[0.0; FLUSH])?;
        bytes.extend(self.shine.finish().map_err(|error| error.to_string())?);
        Ok(bytes)
    }
}
