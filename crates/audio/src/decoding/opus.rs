//! Opus packets, with their lengths (RFC 6716) and the identification header (RFC 7845).

use ropus::OpusMSDecoder;

/// Opus always decodes to this rate; Hz.
pub const RATE: u32 = 48_000;
/// The longest packet: 120 ms.
const MAX_FRAMES: usize = 5760;
const MAGIC: &[u8] = b"OpusHead";

/// The identification header, which every container stores.
#[derive(Clone, Debug, PartialEq)]
struct Head {
    channels: u8,
    /// Frames to leave out at the beginning.
    pre_skip: u16,
    /// To be applied to the decoded samples; 1/256 dB.
    gain: i16,
    streams: u8,
    coupled: u8,
    /// The decoded channel of each channel of the output.
    mapping: Vec<u8>,
}

impl Head {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.strip_prefix(MAGIC)?;
        let channels = *bytes.get(1)?;
        let pre_skip = u16::from_le_bytes([*bytes.get(2)?, *bytes.get(3)?]);
        let gain = i16::from_le_bytes([*bytes.get(8)?, *bytes.get(9)?]);
        let (streams, coupled, mapping) = match *bytes.get(10)? {
            0 => (1, channels.saturating_sub(1), (0..channels).collect()),
            _ => (*bytes.get(11)?, *bytes.get(12)?, bytes.get(13..13 + usize::from(channels))?.to_vec()),
        };
        Some(Self { channels, pre_skip, gain, streams, coupled, mapping })
    }

    /// For a container that stores no header. A mono stream decodes to two equal channels.
    fn stereo() -> Self {
        Self { channels: 2, pre_skip: 0, gain: 0, streams: 1, coupled: 1, mapping: vec![0, 1] }
    }
}

/// Decodes the packets of one stream.
pub struct OpusDecoder {
    decoder: OpusMSDecoder,
    head: Head,
    /// The factor for the header's gain and for 16-bit samples.
    scale: f32,
    /// A decoded packet; interleaved.
    frames: Vec<i16>,
}

impl OpusDecoder {
    /// Fails if the header is invalid.
    pub fn new(extra_data: Option<&[u8]>) -> Option<Self> {
        let head = match extra_data.filter(|bytes| !bytes.is_empty()) {
            Some(bytes) => Head::parse(bytes)?,
            None => Head::stereo(),
        };
        let rate = i32::try_from(RATE).ok()?;
        let [channels, streams, coupled] = [head.channels, head.streams, head.coupled].map(i32::from);
        let decoder = OpusMSDecoder::new(rate, channels, streams, coupled, &head.mapping).ok()?;
        let scale = 10_f32.powf(f32::from(head.gain) / (20.0 * 256.0)) / 32_768.0;
        let frames = vec![0; MAX_FRAMES * usize::from(head.channels)];
        Some(Self { decoder, head, scale, frames })
    }

    pub fn channels(&self) -> u32 {
        self.head.channels.into()
    }

    /// Frames to leave out at the beginning of the stream.
    pub fn pre_skip(&self) -> u32 {
        self.head.pre_skip.into()
    }

    /// Decodes a packet to interleaved samples. `None` if it is damaged.
    pub fn decode(&mut self, packet: &[u8], samples: &mut Vec<f32>) -> Option<()> {
        let length = i32::try_from(packet.len()).ok().filter(|length| *length > 0)?;
        let most = i32::try_from(MAX_FRAMES).ok()?;
        let frames = self.decoder.decode(Some(packet), length, &mut self.frames, most, false).ok()?;
        let count = usize::try_from(frames).ok()? * usize::from(self.head.channels);
        samples.extend(self.frames.get(..count)?.iter().map(|sample| f32::from(*sample) * self.scale));
        Some(())
    }
}

/// The length of a packet in frames at 48 kHz, from its first bytes (RFC 6716, section 3.1).
pub fn packet_frames(packet: &[u8]) -> u64 {
    let Some(toc) = packet.first() else { return 0 };
    let (config, size) = (toc >> 3, usize::from(toc >> 3) & 3);
    let frame = match config {
        0..12 => [480, 960, 1920, 2880][size],
        12..16 => [480, 960, 480, 960][size],
        _ => [120, 240, 480, 960][size],
    };
    let count = match toc & 3 {
        0 => 1,
        1 | 2 => 2,
        _ => packet.get(1).map_or(0, |count| u64::from(count & 0x3F)),
    };
    let frames = frame * count;
    if frames > MAX_FRAMES as u64 { 0 } else { frames }
}

#[cfg(test)]
mod tests {
    use super::{Head, OpusDecoder, packet_frames};

    #[test]
    fn lengths_of_packets_follow_the_table_of_contents() {
        assert_eq!(packet_frames(&[]), 0);
        assert_eq!(packet_frames(&[1 << 3]), 960, "SILK, 20 ms");
        assert_eq!(packet_frames(&[3 << 3 | 1]), 5760, "SILK, two of 60 ms");
        assert_eq!(packet_frames(&[13 << 3]), 960, "hybrid, 20 ms");
        assert_eq!(packet_frames(&[16 << 3 | 3, 48]), 5760, "CELT, 48 of 2.5 ms");
        assert_eq!(packet_frames(&[31 << 3 | 3, 63]), 0, "more than 120 ms");
    }

    #[test]
    fn headers_are_checked() {
        let head = |tail: &[u8]| [b"OpusHead\x01".as_slice(), tail].concat();
        let mono = head(&[1, 0x38, 1, 0x80, 0xBB, 0, 0, 0, 0, 0]);
        assert_eq!(Head::parse(&mono).unwrap().pre_skip, 312);
        assert_eq!(OpusDecoder::new(Some(&mono)).unwrap().channels(), 1);
        for bad in [
            head(&[]),
            head(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            head(&[3, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            head(&[2, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 0, 1]),
            head(&[2, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 9]),
            b"OpusTail".to_vec(),
        ] {
            assert!(OpusDecoder::new(Some(&bad)).is_none(), "{bad:?}");
        }
    }
}
