//! AIFF and AIFF-C files as they are in practice.
//!
//! symphonia accepts only lengths that are exactly right. Where the length of the samples cannot be true, they reach to the
//! end of the file, as in ffmpeg and libsndfile.

use std::io::{self, Read, Seek};
use std::ops::Range;

use super::pcm::{A_LAW, FLOAT, MU_LAW, PCM, SampleFormat};
use super::source_window::{SourceWindow, read_at};
use super::wave::{Chunk, MAX_CHUNKS};
use crate::error::AudioError;

const CONTAINER: &str = "AIFF";
/// The offset and the block size in front of the samples.
const SOUND_HEAD: u64 = 8;
/// Bytes of the chunk `COMM` up to the compression.
const COMMON: usize = 18;

/// Reads the header of an AIFF file, and returns a plain WAV file with the same samples.
pub fn open<S: Read + Seek>(mut source: S, length: u64) -> Result<SourceWindow<S>, AudioError> {
    let header = Header::read(&mut source, length).map_err(AudioError::unreadable)?;
    let invalid =
        |reason: &str| AudioError::InvalidHeader { container: CONTAINER.to_owned(), reason: reason.to_owned() };
    let common = header.common.ok_or_else(|| invalid("it has no complete 'COMM' chunk"))?;
    let samples = header.samples.ok_or_else(|| invalid("it has no 'SSND' chunk"))?;
    common.format()?.plain_file(source, &samples, CONTAINER)
}

/// The contents of the chunks.
#[derive(Default)]
struct Header {
    common: Option<Common>,
    /// The samples in the file.
    samples: Option<Range<u64>>,
}

impl Header {
    fn read(source: &mut (impl Read + Seek), length: u64) -> io::Result<Self> {
        let (mut found, mut at) = (Self::default(), 12);
        for _ in 0..MAX_CHUNKS {
            let Some(chunk) = Chunk::read(source, at, true)? else { break };
            let content = at + Chunk::HEAD;
            match &chunk.kind {
                b"COMM" => {
                    let mut bytes = [0; COMMON + 4];
                    let wanted = bytes.len().min(usize::try_from(chunk.length).unwrap_or(usize::MAX));
                    let filled = read_at(source, content, &mut bytes[..wanted])?;
                    found.common = Common::parse(&bytes[..filled]);
                }
                b"SSND" => {
                    let mut offset = [0; 4];
                    read_at(source, content, &mut offset)?;
                    let start = content + SOUND_HEAD + u64::from(u32::from_be_bytes(offset));
                    let after = (content + chunk.length).next_multiple_of(2);
                    let is_empty = chunk.length <= SOUND_HEAD && Chunk::fill(source, after, length, true)?;
                    let end = match chunk.length {
                        0..=SOUND_HEAD | Chunk::UNKNOWN if !is_empty => length,
                        known => content + known,
                    };
                    found.samples = Some(start.min(length)..end.min(length));
                }
                _ => {}
            }
            at = (content + chunk.length).next_multiple_of(2);
            if at >= length || (found.common.is_some() && found.samples.is_some()) {
                break;
            }
        }
        Ok(found)
    }
}

/// The chunk `COMM`.
struct Common {
    channels: u16,
    bits: u16,
    rate: u32,
    /// `NONE` in AIFF.
    compression: [u8; 4],
}

impl Common {
    /// `None` if the chunk is too short.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let short = |at: usize| Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
        let compression = bytes.get(COMMON..).and_then(|rest| rest.first_chunk()).copied();
        Some(Self {
            channels: short(0)?,
            bits: short(6)?,
            rate: extended(bytes.get(8..COMMON)?.try_into().ok()?),
            compression: compression.unwrap_or(*b"NONE"),
        })
    }

    fn format(&self) -> Result<SampleFormat, AudioError> {
        let (tag, bits) = match &self.compression {
            b"NONE" | b"twos" | b"sowt" | b"raw " | b"\0\0\0\0" => (PCM, self.bits),
            b"in24" | b"42ni" => (PCM, 24),
            b"in32" | b"23ni" => (PCM, 32),
            b"fl32" | b"FL32" => (FLOAT, 32),
            b"fl64" | b"FL64" => (FLOAT, 64),
            b"ulaw" | b"ULAW" => (MU_LAW, 8),
            b"alaw" | b"ALAW" => (A_LAW, 8),
            other => {
                let codec = format!("'{}'", other.escape_ascii());
                return Err(AudioError::UnsupportedCodec { container: CONTAINER.to_owned(), codec });
            }
        };
        Ok(SampleFormat {
            tag,
            channels: self.channels,
            rate: self.rate,
            block: bits.div_ceil(8).saturating_mul(self.channels),
            bits,
            is_big_endian: !matches!(&self.compression, b"sowt" | b"42ni" | b"23ni"),
            has_signed_bytes: self.compression != *b"raw ",
        })
    }
}

/// The whole part of a number of 80 bits: the exponent and 64 bits of the mantissa, without a hidden one.
fn extended([high, low, mantissa @ ..]: [u8; 10]) -> u32 {
    const BIAS: i32 = 16_383;
    let exponent = i32::from(u16::from_be_bytes([high, low])) - BIAS;
    let shift = u32::try_from(63 - exponent).unwrap_or_default();
    let whole = u64::from_be_bytes(mantissa).checked_shr(shift).unwrap_or_default();
    u32::try_from(whole).unwrap_or(u32::MAX)
}
