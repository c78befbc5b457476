//! WAV files as they are in practice, also RF64, BW64 and RIFX.
//!
//! symphonia accepts only headers that are exactly right. Recorders that were switched off, programs that write to a
//! pipe and old programs leave others: lengths of zero or of the largest number, format chunks of other lengths, odd
//! chunks without padding. So this module reads the header, and symphonia reads a plain one in front of the same samples.
//! Where a length cannot be true, the samples reach to the end of the file, as in ffmpeg and libsndfile.

use std::io::{self, Read, Seek};

use super::source_window::{SampleBytes, SourceWindow, read_at};
use crate::audio::error::AudioError;

/// Chunks before the samples.
const MAX_CHUNKS: usize = 4096;
/// Bytes of a format chunk that are looked at: those of the longest kind.
const MAX_FORMAT: u64 = 40;
const CONTAINER: &str = "wave";
/// More channels are not decoded.
const MAX_CHANNELS: u16 = 26;

/// Format tags.
const PCM: u16 = 1;
const MICROSOFT_ADPCM: u16 = 2;
const FLOAT: u16 = 3;
const A_LAW: u16 = 6;
const MU_LAW: u16 = 7;
const IMA_ADPCM: u16 = 0x11;
const EXTENSIBLE: u16 = 0xFFFE;
/// The length of the extension, and coefficients, which symphonia knows.
const MICROSOFT_EXTENSION: [u8; 34] = {
    let mut bytes = [0; 34];
    bytes[0] = 32;
    bytes
};
/// MPEG layers 1 and 2, layer 3, and AAC in ADTS: streams that need no header.
const STREAMS: [u16; 3] = [0x50, 0x55, 0x1600];

/// What a WAV file contains.
pub enum WaveContent<S> {
    /// A plain WAV file with the same samples.
    Samples(SourceWindow<S>),
    /// Frames of MP3 or AAC.
    Frames(SourceWindow<S>),
}

/// Reads the header of a WAV file.
pub fn open<S: Read + Seek>(mut source: S, length: u64) -> Result<WaveContent<S>, AudioError> {
    let unreadable = |error: io::Error| AudioError::Unreadable { reason: error.to_string() };
    let header = Header::read(&mut source, length).map_err(unreadable)?;
    let invalid = |reason: &str| AudioError::InvalidHeader { container: "WAV".to_owned(), reason: reason.to_owned() };
    let format = header.format.ok_or_else(|| invalid("it has no complete format chunk before its samples"))?;
    let samples = header.samples.ok_or_else(|| invalid("it has no 'data' chunk"))?;
    if STREAMS.contains(&format.tag) {
        return Ok(WaveContent::Frames(SourceWindow::new(source, samples.start, samples.end)));
    }
    if format.channels == 0 {
        return Err(invalid("it has no channels"));
    }
    let plain = format
        .plain()
        .ok_or_else(|| AudioError::UnsupportedCodec { container: CONTAINER.to_owned(), codec: format.codec_name() })?;
    let stored = samples.end - samples.start;
    let length = stored / plain.samples.stored as u64 * plain.samples.kept as u64;
    let header = plain.header(&format, length);
    let window = SourceWindow::with_header(header, source, samples.start, samples.end, plain.samples);
    Ok(WaveContent::Samples(window))
}

/// What the chunks say.
#[derive(Default)]
struct Header {
    format: Option<Format>,
    /// The samples in the file.
    samples: Option<std::ops::Range<u64>>,
}

impl Header {
    fn read(source: &mut (impl Read + Seek), length: u64) -> io::Result<Self> {
        let mut head = [0; 12];
        read_at(source, 0, &mut head)?;
        let is_big_endian = head.starts_with(b"RIFX");
        let is_wide = head.starts_with(b"RF64") || head.starts_with(b"BW64");
        let (mut found, mut wide_length, mut at) = (Self::default(), None, 12);
        for _ in 0..MAX_CHUNKS {
            let Some(chunk) = Chunk::read(source, at, is_big_endian)? else { break };
            let content = at + Chunk::HEAD;
            match &chunk.kind {
                b"ds64" => {
                    let mut sizes = [0; 16];
                    let filled = read_at(source, content, &mut sizes)?;
                    wide_length = sizes[..filled].get(8..16).and_then(|bytes| bytes.try_into().ok());
                }
                b"fmt " => {
                    let mut bytes = vec![0; usize::try_from(chunk.length.min(MAX_FORMAT)).unwrap_or_default()];
                    let filled = read_at(source, content, &mut bytes)?;
                    found.format = Format::parse(&bytes[..filled], is_big_endian);
                }
                b"data" => {
                    let wide = wide_length.filter(|_| is_wide).map(u64::from_le_bytes);
                    let declared = match (chunk.length, wide) {
                        (Chunk::UNKNOWN | 0, Some(wide)) => wide,
                        (Chunk::UNKNOWN, None) => 0,
                        (length, _) => length,
                    };
                    // A length of zero is that of a recording that was cut off, unless nothing but chunks follows.
                    let is_empty = declared == 0
                        && chunk.length != Chunk::UNKNOWN
                        && Chunk::fill(source, content, length, is_big_endian)?;
                    let end = if declared == 0 && !is_empty { length } else { content.saturating_add(declared) };
                    found.samples = Some(content.min(length)..end.min(length));
                    break;
                }
                _ => {}
            }
            let end = content + chunk.length;
            at = end + u64::from(chunk.length % 2 == 1 && !Chunk::is_known(source, end)?);
            if at >= length {
                break;
            }
        }
        Ok(found)
    }
}

/// The head of a chunk.
struct Chunk {
    kind: [u8; 4],
    length: u64,
}

impl Chunk {
    const HEAD: u64 = 8;
    /// The length of a chunk whose length was not known, or that does not fit.
    const UNKNOWN: u64 = 0xFFFF_FFFF;
    /// Chunks that may follow an odd one without padding.
    const KINDS: [&[u8; 4]; 8] = [b"fmt ", b"data", b"fact", b"LIST", b"PEAK", b"bext", b"cue ", b"JUNK"];

    /// `None` at the end of the file.
    fn read(source: &mut (impl Read + Seek), at: u64, is_big_endian: bool) -> io::Result<Option<Self>> {
        let mut head = [0; 8];
        if read_at(source, at, &mut head)? < head.len() {
            return Ok(None);
        }
        let [kind @ .., a, b, c, d] = head;
        let length = if is_big_endian { u32::from_be_bytes([a, b, c, d]) } else { u32::from_le_bytes([a, b, c, d]) };
        Ok(Some(Self { kind, length: length.into() }))
    }

    /// Whether a chunk of a well-known kind begins here.
    fn is_known(source: &mut (impl Read + Seek), at: u64) -> io::Result<bool> {
        let mut kind = [0; 4];
        read_at(source, at, &mut kind)?;
        Ok(Self::KINDS.contains(&&kind))
    }

    /// Whether chunks fill the file from here to its end.
    fn fill(source: &mut (impl Read + Seek), mut at: u64, length: u64, is_big_endian: bool) -> io::Result<bool> {
        for _ in 0..MAX_CHUNKS {
            if at >= length {
                return Ok(at <= length + 1);
            }
            match Self::read(source, at, is_big_endian)? {
                Some(chunk) if chunk.kind.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ') => {
                    at = (at + Self::HEAD + chunk.length).next_multiple_of(2);
                }
                _ => return Ok(false),
            }
        }
        Ok(false)
    }
}

/// A format chunk.
#[derive(Clone, Copy)]
struct Format {
    tag: u16,
    channels: u16,
    rate: u32,
    /// Bytes of a block: a sample of each channel, or a block of ADPCM.
    block: u16,
    /// Bits of a sample; 0 in chunks that are too short to say it.
    bits: u16,
    is_big_endian: bool,
}

impl Format {
    /// `None` if the chunk is too short.
    fn parse(bytes: &[u8], is_big_endian: bool) -> Option<Self> {
        let short = |at: usize| {
            let bytes: [u8; 2] = bytes.get(at..at + 2)?.try_into().ok()?;
            Some(if is_big_endian { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
        };
        let wide = |at: usize| {
            let (first, second) = (u32::from(short(at)?), u32::from(short(at + 2)?));
            Some(if is_big_endian { first << 16 | second } else { second << 16 | first })
        };
        // The sub-format of an extensible format is a UUID, which begins with the tag.
        let tag = match short(0)? {
            EXTENSIBLE => short(24).unwrap_or(EXTENSIBLE),
            tag => tag,
        };
        let bits = short(14).unwrap_or(0);
        Some(Self { tag, channels: short(2)?, rate: wide(4)?, block: short(12)?, bits, is_big_endian })
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
        let samples =
            SampleBytes { stored: stored.into(), kept: kept.into(), is_big_endian: self.is_big_endian && stored > 1 };
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
    fn header(&self, format: &Format, length: u64) -> Vec<u8> {
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
        let whole = 4 + Chunk::HEAD + chunk_length + Chunk::HEAD + length;
        let parts: [&[u8]; 7] =
            [b"RIFF", &size(whole), b"WAVEfmt ", &size(chunk_length), &chunk, b"data", &size(length)];
        parts.concat()
    }
}

/// Names for messages.
const NAMES: [(u16, &str); 27] = [
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
];
