//! Files of samples that each stand for themselves, such as PCM, under any header.
//!
//! symphonia accepts only headers that are exactly right, and few kinds of samples. So the modules `wave`, `aiff`, `au` and
//! `caf` read the headers, and symphonia reads a plain WAV header in front of the same samples.
//!
//! Forking or replacing symphonia's reader would duplicate its decoders. The window over the file repairs the header
//! while it streams, and also converts 64-bit and big-endian samples.

use std::io::{Read, Seek};
use std::ops::Range;

use super::source_window::{SampleBytes, SourceWindow};
use crate::error::AudioError;

/// More channels are not decoded.
const MAX_CHANNELS: u16 = 26;

/// Format tags of WAV.
pub const PCM: u16 = 1;
pub const MICROSOFT_ADPCM: u16 = 2;
pub const FLOAT: u16 = 3;
pub const A_LAW: u16 = 6;
pub const MU_LAW: u16 = 7;
pub const IMA_ADPCM: u16 = 0x11;
pub const EXTENSIBLE: u16 = 0xFFFE;

/// Bytes of the head of a chunk.
const CHUNK_HEAD: u64 = 8;
/// The length of the extension, and coefficients, which symphonia knows.
const MICROSOFT_EXTENSION: [u8; 34] = {
    let mut bytes = [0; 34];
    bytes[0] = 32;
    bytes
};

/// The sample format that a header declares.
#[derive(Clone, Copy, Debug)]
pub struct SampleFormat {
    pub tag: u16,
    pub channels: u16,
    /// Hz.
    pub rate: u32,
    /// Bytes of a block: a sample of each channel, or a block of ADPCM.
    pub block: u16,
    /// Bits of a sample; 0 if the header does not say it.
    pub bits: u16,
    pub is_big_endian: bool,
    /// Set for signed 8-bit PCM. WAV's is unsigned.
    pub has_signed_bytes: bool,
}

impl SampleFormat {
    /// A plain WAV file with the samples in this part of the file. `container`: its name, for errors.
    pub fn plain_file<S: Read + Seek>(
        &self,
        source: S,
        samples: &Range<u64>,
        container: &str,
    ) -> Result<SourceWindow<S>, AudioError> {
        if self.channels == 0 {
            let reason = "it has no channels".to_owned();
            return Err(AudioError::InvalidHeader { container: container.to_owned(), reason });
        }
        let plain = self.plain().ok_or_else(|| AudioError::UnsupportedCodec {
            container: container.to_owned(),
            codec: self.codec_name(),
        })?;
        let stored = samples.end.saturating_sub(samples.start);
        let header = plain.header(self, stored / plain.samples.stored as u64 * plain.samples.kept as u64);
        Ok(SourceWindow::with_header(header, source, samples.start, samples.end, plain.samples))
    }

    /// Bytes of a sample in the file.
    fn sample_bytes(&self) -> u16 {
        let by_block = self.block / self.channels.max(1);
        match self.bits {
            0 => by_block,
            // Samples of 24 bits, each in 32 bits.
            24 if by_block == 4 => 4,
            bits => bits.div_ceil(8),
        }
    }

    /// The format as symphonia reads it; `None` if it cannot.
    fn plain(&self) -> Option<Plain> {
        let stored = match self.tag {
            // Blocks of ADPCM are not divided.
            A_LAW | MU_LAW | MICROSOFT_ADPCM | IMA_ADPCM => 1,
            _ => self.sample_bytes(),
        };
        let kept = match (self.tag, stored) {
            (PCM, 1..=4) | (FLOAT, 4 | 8) | (A_LAW | MU_LAW, _) => stored,
            // Of larger numbers the upper 32 bits suffice.
            (PCM, 5..=8) => 4,
            (MICROSOFT_ADPCM | IMA_ADPCM, _) if !self.is_big_endian && matches!(self.bits, 0 | 4) => stored,
            _ => return None,
        };
        let samples = SampleBytes {
            stored: stored.into(),
            kept: kept.into(),
            is_big_endian: self.is_big_endian && stored > 1,
            is_signed_byte: self.has_signed_bytes && self.tag == PCM && stored == 1,
        };
        (self.channels <= MAX_CHANNELS).then_some(Plain { kept, samples })
    }

    fn codec_name(&self) -> String {
        let name = NAMES.iter().find(|(tag, _)| *tag == self.tag).map(|(_, name)| (*name).to_owned());
        let name = name.unwrap_or_else(|| format!("with the number {:#06x}", self.tag));
        if self.channels > MAX_CHANNELS {
            return format!("{name} with {} channels", self.channels);
        }
        match self.tag {
            PCM | FLOAT | MICROSOFT_ADPCM | IMA_ADPCM => format!("{name} of {} bits", self.bits),
            _ => name,
        }
    }
}

/// A plain format.
struct Plain {
    /// Bytes of a sample.
    kept: u16,
    samples: SampleBytes,
}

impl Plain {
    /// A header for so many bytes of samples.
    fn header(&self, format: &SampleFormat, length: u64) -> Vec<u8> {
        let is_adpcm = [MICROSOFT_ADPCM, IMA_ADPCM].contains(&format.tag);
        let (block, bits) = if is_adpcm { (format.block, 4) } else { (self.kept * format.channels, 8 * self.kept) };
        // symphonia expects these lengths and uses none of the bytes.
        let extension: &[u8] = match format.tag {
            PCM | FLOAT => &[],
            IMA_ADPCM => &[2, 0, 0, 0],
            MICROSOFT_ADPCM => &MICROSOFT_EXTENSION,
            _ => &[0, 0],
        };
        let mut chunk = Vec::new();
        chunk.extend(format.tag.to_le_bytes());
        chunk.extend(format.channels.to_le_bytes());
        chunk.extend(format.rate.to_le_bytes());
        chunk.extend(format.rate.saturating_mul(block.into()).to_le_bytes());
        chunk.extend(block.to_le_bytes());
        chunk.extend(bits.to_le_bytes());
        chunk.extend(extension);
        // The greatest number means that the length is not known.
        let size = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX).to_le_bytes();
        let chunk_length = chunk.len() as u64;
        let whole = 4 + CHUNK_HEAD + chunk_length + CHUNK_HEAD + length;
        let parts: [&[u8]; 7] =
            [b"RIFF", &size(whole), b"WAVEfmt ", &size(chunk_length), &chunk, b"data", &size(length)];
        parts.concat()
    }
}

/// Names for messages.
const NAMES: [(u16, &str); 28] = [
    (0x00, "that is not stated"),
    (PCM, "PCM"),
    (MICROSOFT_ADPCM, "Microsoft ADPCM"),
    (FLOAT, "float PCM"),
    (A_LAW, "A-law"),
    (MU_LAW, "µ-law"),
    (IMA_ADPCM, "IMA ADPCM"),
    (EXTENSIBLE, "of an extensible format chunk that ends early"),
    (0x08, "DTS"),
    (0x0A, "WMA Voice"),
    (0x10, "OKI ADPCM"),
    (0x14, "G.723 ADPCM"),
    (0x20, "Yamaha ADPCM"),
    (0x22, "TrueSpeech"),
    (0x31, "GSM 6.10"),
    (0x40, "G.721 ADPCM"),
    (0x45, "G.726"),
    (0x64, "G.726"),
    (0x65, "G.722"),
    (0xFF, "AAC"),
    (0x160, "WMA"),
    (0x161, "WMA"),
    (0x162, "WMA"),
    (0x270, "ATRAC3"),
    (0x2000, "AC-3"),
    (0x674F, "Vorbis"),
    (0xA109, "Speex"),
    (0xF1AC, "FLAC"),
];
