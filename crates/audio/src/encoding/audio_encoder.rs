//! One encoder for all formats.

use std::str::FromStr;

use super::flac::FlacEncoder;
use super::mp3::Mp3Encoder;
use super::opus::OpusEncoder;
use super::sample_bytes::{ENCODER_RATE, to_bytes};

/// The length of a WAV file whose end is not known yet, as ffmpeg and others write it.
const UNKNOWN: u32 = u32::MAX;
/// Bytes of a WAV header after the field of the file's length.
const WAV_HEADER: u32 = 36;

/// A format of the API's field `response_format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AudioFormat {
    /// MPEG-1 layer III, 48 kHz, 96 kbit/s.
    Mp3,
    /// Opus in OGG, 32 kbit/s.
    Opus,
    /// FLAC, 16 bits.
    Flac,
    /// WAV, 16 bits.
    Wav,
    /// 16-bit little-endian samples without a header.
    Pcm,
}

impl AudioFormat {
    /// In the order of the documentation.
    pub const ALL: [Self; 5] = [Self::Mp3, Self::Opus, Self::Flac, Self::Wav, Self::Pcm];

    pub fn name(self) -> &'static str {
        match self {
            Self::Mp3 => "mp3",
            Self::Opus => "opus",
            Self::Flac => "flac",
            Self::Wav => "wav",
            Self::Pcm => "pcm",
        }
    }

    /// The media type for the header `Content-Type`.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Mp3 => "audio/mpeg",
            Self::Opus => "audio/ogg",
            Self::Flac => "audio/flac",
            Self::Wav => "audio/wav",
            Self::Pcm => "audio/pcm",
        }
    }
}

impl FromStr for AudioFormat {
    /// What is supported.
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|format| format.name() == name);
        found.ok_or_else(|| format!("must be one of {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// Writes mono audio of [`ENCODER_RATE`]. Each call returns the bytes that are complete.
pub struct AudioEncoder {
    codec: Codec,
    /// The header, until it is returned.
    header: Vec<u8>,
}

enum Codec {
    Raw,
    Flac(FlacEncoder),
    Mp3(Box<Mp3Encoder>),
    Opus(Box<OpusEncoder>),
}

impl AudioEncoder {
    /// `samples` is the length of the audio if it is known: WAV and FLAC tell it in their headers. Fails only if a codec
    /// cannot be set up.
    pub fn new(format: AudioFormat, samples: Option<u64>) -> Result<Self, String> {
        let (codec, header) = match format {
            AudioFormat::Pcm => (Codec::Raw, Vec::new()),
            AudioFormat::Wav => (Codec::Raw, wav_header(samples)),
            AudioFormat::Flac => (Codec::Flac(FlacEncoder::default()), FlacEncoder::header(samples)),
            AudioFormat::Mp3 => (Codec::Mp3(Box::new(Mp3Encoder::new()?)), Vec::new()),
            AudioFormat::Opus => {
                let mut encoder = OpusEncoder::new()?;
                let header = encoder.header();
                (Codec::Opus(Box::new(encoder)), header)
            }
        };
        Ok(Self { codec, header })
    }

    /// Encodes samples in ±1.
    pub fn push(&mut self, samples: &[f32]) -> Result<Vec<u8>, String> {
        let mut bytes = std::mem::take(&mut self.header);
        bytes.extend(match &mut self.codec {
            Codec::Raw => to_bytes(samples),
            Codec::Flac(encoder) => encoder.push(samples),
            Codec::Mp3(encoder) => encoder.push(samples)?,
            Codec::Opus(encoder) => encoder.push(samples)?,
        });
        Ok(bytes)
    }

    /// Returns the end of the file.
    pub fn finish(self) -> Result<Vec<u8>, String> {
        let mut bytes = self.header;
        bytes.extend(match self.codec {
            Codec::Raw => Vec::new(),
            Codec::Flac(encoder) => encoder.finish(),
            Codec::Mp3(encoder) => encoder.finish()?,
            Codec::Opus(encoder) => encoder.finish()?,
        });
        Ok(bytes)
    }
}

/// The 44 bytes before the samples.
fn wav_header(samples: Option<u64>) -> Vec<u8> {
    let data = samples.and_then(|samples| u32::try_from(samples.checked_mul(2)?).ok());
    let whole = data.and_then(|data| data.checked_add(WAV_HEADER)).unwrap_or(UNKNOWN);
    let mut header = b"RIFF".to_vec();
    header.extend(whole.to_le_bytes());
    header.extend(b"WAVEfmt \x10\0\0\0\x01\0\x01\0");
    header.extend(ENCODER_RATE.to_le_bytes());
    header.extend((2 * ENCODER_RATE).to_le_bytes());
    header.extend(b"\x02\0\x10\0data");
    header.extend(data.unwrap_or(UNKNOWN).to_le_bytes());
    header
}
