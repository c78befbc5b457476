//! CAF files with PCM, A-law or µ-law, as they are in practice: also those that break off, or that have more after their last
//! chunk. symphonia reads those with other codecs.

use std::io::{self, Read, Seek};
use std::ops::Range;

use super::pcm::{A_LAW, FLOAT, MU_LAW, PCM, SampleFormat};
use super::source_window::{SourceWindow, read_at};
use super::wave::MAX_CHUNKS;
use crate::error::AudioError;

const CONTAINER: &str = "CAF";
/// Bytes before the first chunk.
const FILE_HEAD: u64 = 8;
/// Bytes of the head of a chunk.
const CHUNK_HEAD: usize = 12;
/// Bytes of the chunk `desc`.
const DESCRIPTION: usize = 32;
/// The number of edits in front of the samples.
const EDIT_COUNT: u64 = 4;
/// Flags of PCM.
const IS_FLOAT: u32 = 1;
const IS_LITTLE_ENDIAN: u32 = 2;

/// Reads the header of a CAF file, and returns a plain WAV file with the same samples. `None` if it has another codec, or no
/// complete header.
pub fn open<S: Read + Seek>(mut source: S, length: u64) -> Result<Option<SourceWindow<S>>, AudioError> {
    match samples(&mut source, length).map_err(AudioError::unreadable)? {
        Some((format, samples)) => format.plain_file(source, &samples, CONTAINER).map(Some),
        None => Ok(None),
    }
}

fn samples(source: &mut (impl Read + Seek), length: u64) -> io::Result<Option<(SampleFormat, Range<u64>)>> {
    let (mut format, mut at) = (None, FILE_HEAD);
    for _ in 0..MAX_CHUNKS {
        let mut head = [0; CHUNK_HEAD];
        if read_at(source, at, &mut head)? < CHUNK_HEAD {
            break;
        }
        let [kind @ .., a, b, c, d, e, f, g, h] = head;
        let content = at + CHUNK_HEAD as u64;
        // Samples of an unknown length (-1) are the last chunk.
        let end = u64::try_from(i64::from_be_bytes([a, b, c, d, e, f, g, h]))
            .map_or(length, |known| content.saturating_add(known));
        match &kind {
            b"desc" => {
                let mut bytes = [0; DESCRIPTION];
                let filled = read_at(source, content, &mut bytes)?;
                format = describe(&bytes[..filled]);
            }
            b"data" => {
                // Without samples, it is a recording that was cut off.
                let end = if end <= content + EDIT_COUNT { length } else { end };
                return Ok(format.map(|format| (format, (content + EDIT_COUNT).min(length)..end.min(length))));
            }
            _ => {}
        }
        at = end;
    }
    Ok(None)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates; such rates are refused")]
fn whole(rate: f64) -> u32 {
    rate.round() as u32
}

/// Reads the chunk `desc`. `None` if it is too short, or if symphonia reads the codec.
fn describe(bytes: &[u8]) -> Option<SampleFormat> {
    let rate = f64::from_be_bytes(*bytes.first_chunk()?);
    let word = |index: usize| Some(u32::from_be_bytes(*bytes.get(4 * index..)?.first_chunk()?));
    let [flags, block, channels, bits] = [word(3)?, word(4)?, word(6)?, word(7)?];
    let short = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
    let tag = match bytes.get(8..12)? {
        b"lpcm" if flags & IS_FLOAT != 0 => FLOAT,
        b"lpcm" => PCM,
        b"ulaw" => MU_LAW,
        b"alaw" => A_LAW,
        _ => return None,
    };
    Some(SampleFormat {
        tag,
        channels: short(channels),
        rate: whole(rate),
        block: short(block),
        bits: short(bits),
        is_big_endian: flags & IS_LITTLE_ENDIAN == 0,
        has_signed_bytes: true,
    })
}
