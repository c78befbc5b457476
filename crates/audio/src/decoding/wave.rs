//! WAV files as they are in practice, also RF64, BW64 and RIFX.
//!
//! symphonia accepts only headers that are exactly right. Recorders that were switched off, programs that write to a
//! pipe and old programs leave others: lengths of zero or of the largest number, format chunks of other lengths, odd
//! chunks without padding. So this module reads the header, and symphonia reads a plain one (`pcm`).
//! Where a length cannot be true, the samples reach to the end of the file, as in ffmpeg and libsndfile.

use std::io::{self, Read, Seek};

use super::pcm::{EXTENSIBLE, SampleFormat};
use super::source_window::{SourceWindow, read_at};
use crate::error::AudioError;

/// Chunks before the samples.
pub const MAX_CHUNKS: usize = 4096;
/// Bytes of a format chunk that are looked at: those of the longest kind.
const MAX_FORMAT: u64 = 40;
/// MPEG layers 1 and 2, layer 3, and AAC in ADTS: streams that need no header.
const STREAMS: [u16; 3] = [0x50, 0x55, 0x1600];

/// The content of a WAV file.
pub enum WaveContent<S> {
    /// A plain WAV file with the same samples.
    Samples(SourceWindow<S>),
    /// Frames of MP3 or AAC.
    Frames(SourceWindow<S>),
}

/// Reads the header of a WAV file.
pub fn open<S: Read + Seek>(mut source: S, length: u64) -> Result<WaveContent<S>, AudioError> {
    let header = Header::read(&mut source, length).map_err(AudioError::unreadable)?;
    let invalid = |reason: &str| AudioError::InvalidHeader { container: "WAV".to_owned(), reason: reason.to_owned() };
    let format = header.format.ok_or_else(|| invalid("it has no complete format chunk before its samples"))?;
    let samples = header.samples.ok_or_else(|| invalid("it has no 'data' chunk"))?;
    if STREAMS.contains(&format.tag) {
        return Ok(WaveContent::Frames(SourceWindow::new(source, samples.start, samples.end)));
    }
    Ok(WaveContent::Samples(format.plain_file(source, &samples, "WAV")?))
}

/// The contents of the chunks.
#[derive(Default)]
struct Header {
    format: Option<SampleFormat>,
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
                    found.format = parse_format(&bytes[..filled], is_big_endian);
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
pub struct Chunk {
    pub kind: [u8; 4],
    pub length: u64,
}

impl Chunk {
    pub const HEAD: u64 = 8;
    /// The length of a chunk whose length was not known, or that does not fit.
    pub const UNKNOWN: u64 = 0xFFFF_FFFF;
    /// Chunks that may follow an odd one without padding.
    const KINDS: [&[u8; 4]; 8] = [b"fmt ", b"data", b"fact", b"LIST", b"PEAK", b"bext", b"cue ", b"JUNK"];

    /// `None` at the end of the file.
    pub fn read(source: &mut (impl Read + Seek), at: u64, is_big_endian: bool) -> io::Result<Option<Self>> {
        let mut head = [0; 8];
        if read_at(source, at, &mut head)? < head.len() {
            return Ok(None);
        }
        let [kind @ .., a, b, c, d] = head;
        let length = if is_big_endian { u32::from_be_bytes([a, b, c, d]) } else { u32::from_le_bytes([a, b, c, d]) };
        Ok(Some(Self { kind, length: length.into() }))
    }

    /// Checks for the start of a chunk of a well-known kind.
    fn is_known(source: &mut (impl Read + Seek), at: u64) -> io::Result<bool> {
        let mut kind = [0; 4];
        read_at(source, at, &mut kind)?;
        Ok(Self::KINDS.contains(&&kind))
    }

    /// Checks that chunks fill the file from here to its end.
    pub fn fill(source: &mut (impl Read + Seek), mut at: u64, length: u64, is_big_endian: bool) -> io::Result<bool> {
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

/// Reads a format chunk. `None` if it is too short.
fn parse_format(bytes: &[u8], is_big_endian: bool) -> Option<SampleFormat> {
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
    let (channels, rate, block, bits) = (short(2)?, wide(4)?, short(12)?, short(14).unwrap_or(0));
    Some(SampleFormat { tag, channels, rate, block, bits, is_big_endian, has_signed_bytes: false })
}
