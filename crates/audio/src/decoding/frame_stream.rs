//! Streams of MP3 or AAC frames, which have neither a container nor a signature.
//!
//! A decoder finds frames by searching for their first bits, which any data contains by chance. So before a stream is
//! decoded, its frames are counted without decoding them. In a stream, a frame begins where the one before ends. If too
//! much lies between the frames, or the row of frames breaks too often, the file is a container that is not known, or it
//! is damaged so much that its text would be made up.
//!
//! In a damaged MP3 file, most frames still follow each other without a gap. In an unknown container they do not.

use std::io::{self, Read, Seek};

use super::source_window::read_at;
use super::tags;
use crate::error::AudioError;

/// Bytes that are searched for the first frame. A file without one in them is not a stream.
const MAX_SEARCH: u64 = 1 << 20;
/// Bytes between frames that are accepted in a stream of any length.
const MAX_FOREIGN: u64 = 16 << 10;
/// Breaks that are accepted in a stream of any length. A longer stream may have one more per this many frames.
const MAX_BREAKS: u64 = 3;
const FRAMES_PER_BREAK: u64 = 50;
/// Frames that a file may have more than it says.
const MAX_UNDECLARED: u64 = 16;
const BLOCK: usize = 64 << 10;

/// Finds the first and the end of the last frame of a stream of this length. Fails if it is none.
pub fn find(source: &mut (impl Read + Seek), length: u64) -> Result<std::ops::Range<u64>, AudioError> {
    let mut blocks = Blocks { source, length, at: 0, block: Vec::new() };
    let found = Frames::count(&mut blocks).map_err(AudioError::unreadable)?;
    if found.frames == 0 {
        return Err(AudioError::NotAudio);
    }
    // A decoder would stop at the end of the first of several files in a row.
    let first = blocks.head(found.start).map_err(AudioError::unreadable)?;
    let is_joined = declared_frames(first).is_some_and(|declared| declared + MAX_UNDECLARED < found.frames);
    let start = if is_joined { found.second } else { found.start };
    let is_foreign = found.foreign > MAX_FOREIGN && found.foreign > found.framed / 2;
    let is_broken = found.breaks > MAX_BREAKS && found.breaks * FRAMES_PER_BREAK >= found.frames;
    if is_foreign || is_broken {
        return Err(AudioError::Interrupted { foreign_bytes: found.foreign, breaks: found.breaks });
    }
    Ok(start..found.end)
}

/// How many frames follow the first one of a file, if that says so (Xing, Info and VBRI headers).
fn declared_frames(first: &[u8]) -> Option<u64> {
    // After the side information, whose length depends on the version and the channels.
    let is_xing = |at: &usize| matches!(first.get(*at..at + 4), Some(b"Xing" | b"Info"));
    let xing = [13, 21, 36].into_iter().find(is_xing);
    let at = match xing {
        Some(at) if first.get(at + 7)? & 1 == 1 => at + 8,
        None if first.get(36..40)? == b"VBRI" => 50,
        _ => return None,
    };
    first.get(at..at + 4)?.try_into().ok().map(|count| u32::from_be_bytes(count).into())
}

#[derive(Default)]
struct Frames {
    frames: u64,
    /// Their lengths; bytes.
    framed: u64,
    /// Bytes that belong to no frame and no tag. Zeros are padding and do not count.
    foreign: u64,
    /// Number of times that frames continue after such bytes.
    breaks: u64,
    /// Where the first frame begins and ends, and where the last one ends.
    start: u64,
    second: u64,
    end: u64,
}

impl Frames {
    fn count(blocks: &mut Blocks<'_, impl Read + Seek>) -> io::Result<Self> {
        let (mut found, mut at, mut format, mut foreign_before) = (Self::default(), 0, None, 0);
        while at < blocks.length && (found.frames > 0 || at < MAX_SEARCH) {
            let frame = Frame::parse(blocks.head(at)?);
            if let Some(frame) = frame
                && (format == Some(frame.format) || Self::is_followed(frame, at, blocks)?)
            {
                if found.frames == 0 {
                    (found.start, found.second) = (at, at + frame.length);
                } else if found.foreign > foreign_before {
                    // Bytes before the first frame do not count as a break.
                    found.breaks += 1;
                }
                found.frames += 1;
                at += frame.length;
                found.end = at.min(blocks.length);
                found.framed += frame.length.min(blocks.length - (at - frame.length));
                (format, foreign_before) = (Some(frame.format), found.foreign);
                continue;
            }
            format = None;
            // Files in a row have tags between them.
            let head = blocks.head(at)?;
            let is_foreign = head.first().is_some_and(|byte| *byte != 0);
            match tags::leading_length(head) {
                Some(length) => at += length,
                None => {
                    found.foreign += u64::from(is_foreign);
                    at += 1;
                }
            }
        }
        Ok(found)
    }

    /// Checks that a frame of the same format begins at the end of this one. Nothing follows the last frame, and a
    /// single frame may be cut off.
    fn is_followed(frame: Frame, at: u64, blocks: &mut Blocks<'_, impl Read + Seek>) -> io::Result<bool> {
        let end = at + frame.length;
        let is_last = end == blocks.length || (end > blocks.length && at == 0);
        Ok(is_last || Frame::parse(blocks.head(end)?).is_some_and(|next| next.format == frame.format))
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Frame {
    /// The bits of the header that are the same in all frames of a stream.
    format: u32,
    /// The length of the frame with its header; bytes.
    length: u64,
}

impl Frame {
    fn parse(head: &[u8]) -> Option<Self> {
        let word = u32::from_be_bytes(head.get(..4)?.try_into().ok()?);
        if word >> 20 == 0xFFF && word >> 17 & 3 == 0 { Self::aac(word, head) } else { Self::mpeg(word) }
    }

    /// MPEG-1, 2 and 2.5 audio (ISO 11172-3, ISO 13818-3), layers 1 to 3.
    fn mpeg(word: u32) -> Option<Self> {
        const FORMAT: u32 = 0xFFFE_0C00;
        if word >> 21 != 0x7FF {
            return None;
        }
        // Version 2.5 is 0, version 2 is 2, version 1 is 3; layer 3 is 1, layer 1 is 3.
        let (version, layer) = (word >> 19 & 3, word >> 17 & 3);
        let rates: [u64; 3] = match version {
            0 => [11_025, 12_000, 8_000],
            2 => [22_050, 24_000, 16_000],
            3 => [44_100, 48_000, 32_000],
            _ => return None,
        };
        let kilobits: [u64; 14] = match (version, layer) {
            (3, 3) => [32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448],
            (3, 2) => [32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384],
            (3, 1) => [32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320],
            (_, 3) => [32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256],
            (_, 1 | 2) => [8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160],
            _ => return None,
        };
        let index = |shift: u32, mask: u32| usize::try_from(word >> shift & mask).ok();
        let bits = kilobits.get(index(12, 15)?.checked_sub(1)?)? * 1000;
        let rate = *rates.get(index(10, 3)?)?;
        let padding = u64::from(word >> 9 & 1);
        let length = match (version, layer) {
            (_, 3) => (12 * bits / rate + padding) * 4,
            (0 | 2, 1) => 72 * bits / rate + padding,
            _ => 144 * bits / rate + padding,
        };
        Some(Self { format: word & FORMAT, length })
    }

    /// ADTS (ISO 13818-7).
    fn aac(word: u32, head: &[u8]) -> Option<Self> {
        // Neither the check bytes nor the private bit belong to the format.
        const FORMAT: u32 = 0xFFFE_FDC0;
        const HEADER: u64 = 7;
        let [high, middle, low] = head.get(3..6)?.try_into().ok()?;
        let length = u64::from(high & 3) << 11 | u64::from(middle) << 3 | u64::from(low >> 5);
        // The indices 13 to 15 are no rates.
        let is_valid = word >> 10 & 15 < 13 && length > HEADER;
        is_valid.then_some(Self { format: word & FORMAT, length })
    }
}

/// Reads a file in blocks.
struct Blocks<'a, S> {
    source: &'a mut S,
    length: u64,
    /// Where the block begins.
    at: u64,
    block: Vec<u8>,
}

impl<S: Read + Seek> Blocks<'_, S> {
    /// Up to 64 bytes from a position on, fewer at the end of the file.
    fn head(&mut self, position: u64) -> io::Result<&[u8]> {
        const HEAD: usize = 64;
        let within = |blocks: &Self| {
            let offset = usize::try_from(position.checked_sub(blocks.at)?).ok()?;
            (offset + HEAD <= blocks.block.len()).then_some(offset)
        };
        let offset = match within(self) {
            Some(offset) => offset,
            None => {
                self.block.resize(BLOCK, 0);
                let filled = read_at(self.source, position, &mut self.block)?;
                self.block.truncate(filled);
                self.at = position;
                0
            }
        };
        Ok(&self.block[offset..self.block.len().min(offset + HEAD)])
    }
}
