//! Tags before and after the sound: ID3, APE, Lyrics3. Their pictures may be larger than the sound.

use std::io::{self, Read, Seek};

use super::source_window::read_at;

/// More tags in a row are none.
const MAX_TAGS: usize = 16;
const ID3V1: u64 = 128;
const ID3V1_EXTENSION: u64 = 227;
/// The length of an ID3v2 header or footer, and of an APE header or footer.
const ID3V2_HEAD: u64 = 10;
const APE_HEAD: u64 = 32;
/// A Lyrics3 tag ends with its size in six digits and these bytes.
const LYRICS_END: &[u8; 9] = b"LYRICS200";
const LYRICS_TAIL: u64 = 15;

/// The length of the tag that begins with these bytes; `None` if they begin none. It may be longer than the file.
pub fn leading_length(head: &[u8]) -> Option<u64> {
    match head {
        [b'I', b'D', b'3', major, minor, flags, ..] if *major < 0xFF && *minor < 0xFF => {
            let footer = if flags & 0x10 != 0 { ID3V2_HEAD } else { 0 };
            Some(ID3V2_HEAD + id3_size(head.get(6..10)?)? + footer)
        }
        [b'A', b'P', b'E', b'T', b'A', b'G', b'E', b'X', ..] => Some(APE_HEAD + u64::from(ape_size(head)?)),
        [b'T', b'A', b'G', ..] => Some(ID3V1),
        _ => None,
    }
}

/// Where the sound begins, after the tags at the beginning of the file.
pub fn skip_leading(file: &mut (impl Read + Seek), end: u64) -> io::Result<u64> {
    let mut start = 0;
    for _ in 0..MAX_TAGS {
        let mut head = [0; 32];
        let filled = read_at(file, start, &mut head)?;
        match leading_length(&head[..filled]) {
            Some(length) if start + length < end && !head.starts_with(b"TAG") => start += length,
            _ => break,
        }
    }
    Ok(start)
}

/// Where the sound ends, before the tags at the end of the file.
pub fn skip_trailing(file: &mut (impl Read + Seek), start: u64, mut end: u64) -> io::Result<u64> {
    for _ in 0..MAX_TAGS {
        match trailing_length(file, end)? {
            Some(length) if length > 0 && length <= end - start => end -= length,
            _ => break,
        }
    }
    Ok(end)
}

/// The length of the tag that ends at `end`.
fn trailing_length(file: &mut (impl Read + Seek), end: u64) -> io::Result<Option<u64>> {
    let mut before = |length: u64| -> io::Result<Vec<u8>> {
        let Some(at) = end.checked_sub(length) else { return Ok(Vec::new()) };
        let mut bytes = vec![0; usize::try_from(length).unwrap_or_default()];
        let filled = read_at(file, at, &mut bytes)?;
        bytes.truncate(filled);
        Ok(bytes)
    };
    if before(ID3V1)?.starts_with(b"TAG") {
        let has_extension = before(ID3V1 + ID3V1_EXTENSION)?.starts_with(b"TAG+");
        return Ok(Some(ID3V1 + if has_extension { ID3V1_EXTENSION } else { 0 }));
    }
    let footer = before(APE_HEAD)?;
    if footer.starts_with(b"APETAGEX") {
        let has_header = footer.get(23).is_some_and(|flags| flags & 0x80 != 0);
        return Ok(ape_size(&footer).map(|size| u64::from(size) + if has_header { APE_HEAD } else { 0 }));
    }
    let footer = before(ID3V2_HEAD)?;
    if footer.starts_with(b"3DI") {
        return Ok(footer.get(6..10).and_then(id3_size).map(|size| size + 2 * ID3V2_HEAD));
    }
    let tail = before(LYRICS_TAIL)?;
    let size = tail.strip_suffix(LYRICS_END).and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<u64>().ok());
    Ok(size.map(|size| size + LYRICS_TAIL))
}

/// Four bytes of seven bits each.
fn id3_size(bytes: &[u8]) -> Option<u64> {
    bytes.iter().try_fold(0, |size, byte| (*byte < 0x80).then(|| size << 7 | u64::from(*byte)))
}

/// The size in an APE header or footer, which includes the footer.
fn ape_size(bytes: &[u8]) -> Option<u32> {
    bytes.get(12..16)?.try_into().ok().map(u32::from_le_bytes)
}
