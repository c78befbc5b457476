//! AU files (Sun, NeXT), also those whose bytes are in the order of DEC.

use std::io::{Read, Seek};

use super::pcm::{A_LAW, FLOAT, MU_LAW, PCM, SampleFormat};
use super::source_window::{SourceWindow, read_at};
use crate::error::AudioError;

const CONTAINER: &str = "AU";
const HEAD: usize = 24;
/// The length of samples that were written to a pipe.
const UNKNOWN: u32 = u32::MAX;

/// Reads the header of an AU file, and returns a plain WAV file with the same samples.
pub fn open<S: Read + Seek>(mut source: S, length: u64) -> Result<SourceWindow<S>, AudioError> {
    let mut head = [0; HEAD];
    if read_at(&mut source, 0, &mut head).map_err(AudioError::unreadable)? < HEAD {
        let reason = "it ends within its header".to_owned();
        return Err(AudioError::InvalidHeader { container: CONTAINER.to_owned(), reason });
    }
    let is_big_endian = head.starts_with(b".snd");
    let word = |index: usize| {
        let bytes = head.get(4 * index..).and_then(|rest| rest.first_chunk()).copied().unwrap_or_default();
        if is_big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    };
    let (tag, bits) = match word(3) {
        1 => (MU_LAW, 8),
        2 => (PCM, 8),
        3 => (PCM, 16),
        4 => (PCM, 24),
        5 => (PCM, 32),
        6 => (FLOAT, 32),
        7 => (FLOAT, 64),
        27 => (A_LAW, 8),
        other => {
            let codec = format!("with the number {other}");
            return Err(AudioError::UnsupportedCodec { container: CONTAINER.to_owned(), codec });
        }
    };
    let channels = u16::try_from(word(5)).unwrap_or(u16::MAX);
    let block = (bits / 8_u16).saturating_mul(channels);
    let format = SampleFormat { tag, channels, rate: word(4), block, bits, is_big_endian, has_signed_bytes: true };
    let start = u64::from(word(1)).min(length);
    let end = match word(2) {
        0 | UNKNOWN => length,
        known => (start + u64::from(known)).min(length),
    };
    format.plain_file(source, &(start..end), CONTAINER)
}
