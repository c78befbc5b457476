//! Detects JPEG files that are cut off.
//!
//! The decoder fills the missing end of a file with grey, as browsers do. A model would take the grey for a part of the
//! picture.
//!
//! An end marker proves nothing, because a proxy or a tool may have appended it to half a file. So the file is decoded
//! a second time with 64 other bytes before the marker. A decoder does not read them if the picture is complete, so any
//! difference shows that it is not. This needs no second decoder and covers progressive files. Data that is missing in
//! the middle is not noticed.

const END_OF_IMAGE: u8 = 0xD9;
/// The decoder reads ahead by fewer bytes.
const PADDING: [u8; 64] = [0xAA; 64];

/// The file with other data before its end-of-image marker; `None` if it has no such marker. The decoder leaves the data out
/// if the scans before it are complete, and otherwise takes it for what is missing. So the picture stays the same only if the
/// file is complete.
pub fn padded(bytes: &[u8]) -> Option<Vec<u8>> {
    let (before, from_end) = bytes.split_at_checked(end(bytes)?)?;
    Some([before, &PADDING, from_end].concat())
}

/// Where the end-of-image marker is (ITU-T T.81, B.1). Segments are skipped by their lengths, so that the marker of a preview
/// in the metadata does not count. What follows the marker does not matter. Progressive images have several scans before it.
fn end(bytes: &[u8]) -> Option<usize> {
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|byte| *byte == 0xFF) {
        // A marker follows any number of these bytes.
        let fill = rest[at..].iter().take_while(|byte| **byte == 0xFF).count();
        let [marker, after @ ..] = &rest[at + fill..] else { return None };
        rest = match *marker {
            END_OF_IMAGE => return Some(bytes.len() - rest.len() + at),
            // Within a scan: the byte 0xFF itself and restart markers. They have no length.
            0x00 | 0x01 | 0xD0..=0xD8 => after,
            _ => match after {
                [high, low, ..] => {
                    let length = usize::from(u16::from_be_bytes([*high, *low])).max(2);
                    after.get(length..).unwrap_or_default()
                }
                _ => return None,
            },
        };
    }
    None
}
