//! What the demuxer leaves out of the `moov` box of an MP4 file: edit lists, and codecs that it does not know.
//!
//! The edit list of a track says which part of its media is played. Encoders delay the signal (AAC by 1024 or 2112 samples). MP4 files tell it with an edit that begins after the delay.
//! The demuxer does not apply edits. See ISO/IEC 14496-12, 8.6.6 and 8.5.2.

use std::io::{self, Read, Seek, SeekFrom};

use super::source_window::read_at;

/// The longest `moov` box that is read; bytes. It is some megabytes for hours of audio.
const MAX_MOOV_BYTES: u64 = 64 << 20;
/// The most boxes of a file and of a box that are looked at.
const MAX_BOXES: usize = 4096;

/// The part of a track that is played.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Edit {
    /// The pause before it; seconds. Sound that begins after the picture has one.
    pub delay: f64,
    /// Where it begins; seconds of the media.
    pub start: f64,
    /// How long it is; seconds. `None` to the end.
    pub length: Option<f64>,
}

/// The content of the box `moov`.
pub struct Movie(Vec<u8>);

impl Movie {
    /// Reads a file. `None` if it is no MP4.
    pub fn read(file: &mut (impl Read + Seek)) -> io::Result<Option<Self>> {
        let mut head = [0; 8];
        read_at(file, 0, &mut head)?;
        if !head.ends_with(b"ftyp") {
            return Ok(None);
        }
        Ok(find_moov(file)?.map(Self))
    }

    /// The edit of the track with this ID. `None` if it has none or several.
    pub fn edit(&self, track: u32) -> Option<Edit> {
        edit(&self.0, track)
    }

    /// The codec of the first track with sound. `None` if there is no such track.
    pub fn audio_codec(&self) -> Option<String> {
        let entry = audio_sample_entry(&self.0)?;
        let name = NAMES.iter().find(|(kind, _)| **kind == entry).map(|(_, name)| (*name).to_owned());
        Some(name.unwrap_or_else(|| format!("'{}'", entry.escape_ascii())))
    }
}

/// Kinds of sample entries that the demuxer does not know.
const NAMES: [(&[u8; 4], &str); 18] = [
    (b"ulaw", "µ-law of QuickTime"),
    (b"alaw", "A-law of QuickTime"),
    (b"alac", "ALAC of QuickTime"),
    (b"agsm", "GSM 6.10"),
    (b"samr", "AMR"),
    (b"sawb", "AMR-WB"),
    (b"sawp", "AMR-WB+"),
    (b"sevc", "EVRC"),
    (b"sqcp", "QCELP"),
    (b"ac-4", "AC-4"),
    (b"dtsc", "DTS"),
    (b"mlpa", "TrueHD"),
    (b"mha1", "MPEG-H"),
    (b"QDM2", "QDesign Music 2"),
    (b"ima4", "IMA ADPCM of QuickTime"),
    (b"enca", "of an encrypted track"),
    (b"drms", "of an encrypted track"),
    (b"aavd", "of an encrypted track"),
];

/// The content of the box `moov`.
fn find_moov(file: &mut (impl Read + Seek)) -> io::Result<Option<Vec<u8>>> {
    let end = file.seek(SeekFrom::End(0))?;
    let mut at = 0_u64;
    for _ in 0..MAX_BOXES {
        let mut head = [0; 16];
        let filled = read_at(file, at, &mut head)?;
        let Some((kind, head_length, length)) = box_head(&head[..filled], end.saturating_sub(at)) else {
            return Ok(None);
        };
        if &kind == b"moov" {
            let content = length - head_length;
            if content > MAX_MOOV_BYTES {
                return Ok(None);
            }
            file.seek(SeekFrom::Start(at + head_length))?;
            let mut moov = Vec::new();
            file.take(content).read_to_end(&mut moov)?;
            return Ok(Some(moov));
        }
        at += length;
    }
    Ok(None)
}

/// The kind of the box, the length of its head and its whole length, at most `rest`.
fn box_head(bytes: &[u8], rest: u64) -> Option<([u8; 4], u64, u64)> {
    let length = u64::from(u32_at(bytes, 0)?);
    let kind = bytes.get(4..8)?.try_into().ok()?;
    let (head, length) = match length {
        0 => (8, rest),
        1 => (16, u64_at(bytes, 8)?),
        length => (8, length),
    };
    let length = length.min(rest);
    (length >= head).then_some((kind, head, length))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes)
}

/// The contents of all children of this kind.
fn children<'a>(mut bytes: &'a [u8], kind: &'a [u8; 4]) -> impl Iterator<Item = &'a [u8]> {
    let boxes = std::iter::from_fn(move || {
        let (kind, head, length) = box_head(bytes, bytes.len() as u64)?;
        let (head, length) = (usize::try_from(head).ok()?, usize::try_from(length).ok()?);
        let (whole, rest) = bytes.split_at_checked(length)?;
        bytes = rest;
        Some((kind, whole.get(head..)?))
    });
    boxes.take(MAX_BOXES).filter(move |(found, _)| found == kind).map(|(_, content)| content)
}

/// Ticks per second, of `mvhd` and `mdhd`.
fn timescale(head: &[u8]) -> Option<f64> {
    let at = if head.first() == Some(&1) { 20 } else { 12 };
    u32_at(head, at).filter(|scale| *scale > 0).map(f64::from)
}

fn edit(moov: &[u8], track: u32) -> Option<Edit> {
    let trak = children(moov, b"trak").find(|trak| {
        let head = children(trak, b"tkhd").next();
        head.and_then(|head| u32_at(head, if head.first() == Some(&1) { 20 } else { 12 })) == Some(track)
    })?;
    let movie_scale = timescale(children(moov, b"mvhd").next()?)?;
    let media_scale = children(trak, b"mdia").flat_map(|mdia| children(mdia, b"mdhd")).next().and_then(timescale)?;
    let list = children(trak, b"edts").flat_map(|edts| children(edts, b"elst")).next()?;
    let is_wide = list.first() == Some(&1);
    let (mut played, mut pause) = (None, 0_u64);
    for number in 0..usize::try_from(u32_at(list, 4)?).ok()?.min(MAX_BOXES) {
        let (length, start) = if is_wide {
            let at = 8 + 20 * number;
            (u64_at(list, at)?, u64_at(list, at + 8)?.cast_signed())
        } else {
            let at = 8 + 12 * number;
            (u64::from(u32_at(list, at)?), i64::from(u32_at(list, at + 4)?.cast_signed()))
        };
        // An edit without media is a pause.
        if start < 0 {
            pause = if played.is_none() { pause.saturating_add(length) } else { pause };
            continue;
        }
        if played.replace((length, start)).is_some() {
            return None;
        }
    }
    let (length, start) = played?;
    #[expect(clippy::cast_precision_loss, reason = "a length of 2^53 ticks is longer than any file")]
    let [delay, length] = [pause, length].map(|ticks| ticks as f64 / movie_scale);
    #[expect(clippy::cast_precision_loss, reason = "a start of 2^53 ticks is later than any file's end")]
    let start = start as f64 / media_scale;
    Some(Edit { delay, start, length: (length > 0.0).then_some(length) })
}

/// The kind of the first sample entry of the first track with sound.
fn audio_sample_entry(moov: &[u8]) -> Option<[u8; 4]> {
    children(moov, b"trak").flat_map(|trak| children(trak, b"mdia")).find_map(|mdia| {
        let handler = children(mdia, b"hdlr").next()?;
        if handler.get(8..12) != Some(b"soun") {
            return None;
        }
        let tables = children(mdia, b"minf").flat_map(|minf| children(minf, b"stbl"));
        let descriptions = tables.flat_map(|stbl| children(stbl, b"stsd")).next()?;
        descriptions.get(12..16)?.try_into().ok()
    })
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::{Edit, Movie};

    fn boxed(kind: &[u8; 4], content: &[u8]) -> Vec<u8> {
        let length = u32::try_from(8 + content.len()).unwrap();
        [&length.to_be_bytes(), kind.as_slice(), content].concat()
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    fn file(edits: &[u32]) -> Vec<u8> {
        let track = boxed(b"tkhd", &words(&[0, 0, 0, 7]));
        let media = boxed(b"mdia", &boxed(b"mdhd", &words(&[0, 0, 0, 48_000])));
        let list = [words(&[0, u32::try_from(edits.len() / 3).unwrap()]), words(edits)].concat();
        let trak = boxed(b"trak", &[track, boxed(b"edts", &boxed(b"elst", &list)), media].concat());
        let moov = boxed(b"moov", &[boxed(b"mvhd", &words(&[0, 0, 0, 1000])), trak].concat());
        [boxed(b"ftyp", b"M4A "), boxed(b"mdat", &[0; 99]), moov].concat()
    }

    fn edit(bytes: &[u8], track: u32) -> Option<Edit> {
        Movie::read(&mut Cursor::new(bytes)).unwrap().and_then(|movie| movie.edit(track))
    }

    #[test]
    fn the_only_edit_with_media_is_found() {
        let one = file(&[500, u32::MAX, 1 << 16, 2000, 1024, 1 << 16]);
        assert_eq!(edit(&one, 7), Some(Edit { delay: 0.5, start: 1024.0 / 48_000.0, length: Some(2.0) }));
        assert_eq!(edit(&one, 8), None);
        assert_eq!(edit(&file(&[0, 1024, 1 << 16]), 7).unwrap().length, None);
        assert_eq!(edit(&file(&[9, 0, 1, 9, 9, 1]), 7), None, "several edits");
        assert_eq!(edit(&file(&[]), 7), None);
        assert_eq!(edit(b"RIFF....WAVE", 7), None);
    }

    #[test]
    fn damaged_boxes_are_no_error() {
        let whole = file(&[2000, 1024, 1 << 16]);
        for length in 0..whole.len() {
            edit(&whole[..length], 7);
        }
        for at in 0..whole.len() {
            for value in [0, 1, 0x7F, 0xFF] {
                let mut damaged = whole.clone();
                damaged[at] = value;
                edit(&damaged, 7);
            }
        }
    }
}
