//! Pages of OGG (RFC 3533).

/// Any number will do for the only stream of a file.
const SERIAL: u32 = 1;
/// The polynomial of the checksum.
const POLYNOMIAL: u32 = 0x04C1_1DB7;

/// The position of a page in its stream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    First,
    Middle,
    Last,
}

/// Writes the pages of one stream.
#[derive(Default)]
pub struct PageWriter {
    sequence: u32,
}

impl PageWriter {
    /// A page of whole packets, at most 255 × 255 bytes and 255 segments of them. `position` is the granule position at
    /// its end.
    pub fn page(&mut self, place: Place, position: u64, packets: &[Vec<u8>]) -> Vec<u8> {
        let flags = match place {
            Place::First => 2,
            Place::Middle => 0,
            Place::Last => 4,
        };
        let segments: Vec<u8> = packets.iter().flat_map(|packet| lacing(packet.len())).collect();
        let mut page = b"OggS\0".to_vec();
        page.push(flags);
        page.extend(position.to_le_bytes());
        page.extend(SERIAL.to_le_bytes());
        page.extend(self.sequence.to_le_bytes());
        page.extend([0; 4]);
        page.push(u8::try_from(segments.len()).unwrap_or(u8::MAX));
        page.extend(segments);
        page.extend(packets.iter().flatten());
        let checksum = checksum(&page).to_le_bytes();
        page.splice(22..26, checksum);
        self.sequence += 1;
        page
    }
}

/// The lengths of a packet's segments. One of less than 255 bytes ends it.
fn lacing(length: usize) -> impl Iterator<Item = u8> {
    let last = u8::try_from(length % 255).unwrap_or_default();
    std::iter::repeat_n(u8::MAX, length / 255).chain([last])
}

fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |checksum, byte| {
        (0..8).fold(checksum ^ u32::from(*byte) << 24, |checksum, _| {
            if checksum >> 31 == 1 { checksum << 1 ^ POLYNOMIAL } else { checksum << 1 }
        })
    })
}
