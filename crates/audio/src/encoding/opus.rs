//! Opus in OGG (RFC 7845).
//!
//! ropus decodes and encodes Opus, which symphonia lacks. It is a port of libopus in nearly safe Rust that is compared
//! with it bit by bit, under BSD. unsafe-libopus is a machine translation with raw pointers, opus-decoder has no
//! encoder, and bindings need a C compiler.

use ropus::{Application, Bitrate, Channels, Encoder, FrameDuration, Signal};

use super::ogg::{PageWriter, Place};
use super::sample_bytes::{ENCODER_RATE, to_i16};

const BITRATE: u32 = 32_000;
/// Samples of a packet: 20 ms.
const PACKET: usize = 480;
/// Packets of a page: 0.2 seconds.
const PACKETS_PER_PAGE: usize = 10;
/// Positions are counted at 48 kHz.
const POSITIONS_PER_SAMPLE: u64 = 2;
/// The longest packet; bytes.
const MAX_PACKET: usize = 1275;

pub struct OpusEncoder {
    encoder: Encoder,
    pages: PageWriter,
    /// The delay of the encoder, in positions.
    pre_skip: u16,
    /// Samples that do not fill a packet yet.
    pending: Vec<i16>,
    /// Packets that do not fill a page yet.
    packets: Vec<Vec<u8>>,
    /// All samples that were pushed, without silence at the end.
    samples: u64,
    /// Packets on written pages.
    written: u64,
}

impl OpusEncoder {
    pub fn new() -> Result<Self, String> {
        let bitrate = Bitrate::try_bits(BITRATE).map_err(|error| format!("{error:?}"))?;
        let builder = Encoder::builder(ENCODER_RATE, Channels::Mono, Application::Voip);
        let builder = builder.bitrate(bitrate).signal(Signal::Voice).vbr(true).frame_duration(FrameDuration::Ms20);
        let encoder = builder.build().map_err(|error| format!("{error:?}"))?;
        let pre_skip = u64::from(encoder.lookahead()) * POSITIONS_PER_SAMPLE;
        let pre_skip = u16::try_from(pre_skip).map_err(|error| error.to_string())?;
        let (pages, pending, packets) = (PageWriter::default(), Vec::new(), Vec::new());
        Ok(Self { encoder, pages, pre_skip, pending, packets, samples: 0, written: 0 })
    }

    /// The two header pages.
    pub fn header(&mut self) -> Vec<u8> {
        let mut head = b"OpusHead\x01\x01".to_vec();
        head.extend(self.pre_skip.to_le_bytes());
        head.extend(ENCODER_RATE.to_le_bytes());
        head.extend([0, 0, 0]);
        let vendor = b"outpost";
        let mut tags = b"OpusTags".to_vec();
        tags.extend([7, 0, 0, 0]);
        tags.extend(vendor);
        tags.extend([0; 4]);
        let mut pages = self.pages.page(Place::First, 0, &[head]);
        pages.extend(self.pages.page(Place::Middle, 0, &[tags]));
        pages
    }

    pub fn push(&mut self, samples: &[f32]) -> Result<Vec<u8>, String> {
        self.samples += samples.len() as u64;
        self.pending.extend(to_i16(samples));
        self.encode_pending()?;
        let mut bytes = Vec::new();
        // The last packet is held back for the last page.
        while self.packets.len() > PACKETS_PER_PAGE {
            let rest = self.packets.split_off(PACKETS_PER_PAGE);
            let packets = std::mem::replace(&mut self.packets, rest);
            self.written += packets.len() as u64;
            let position = self.written * PACKET as u64 * POSITIONS_PER_SAMPLE;
            bytes.extend(self.pages.page(Place::Middle, position, &packets));
        }
        Ok(bytes)
    }

    pub fn finish(mut self) -> Result<Vec<u8>, String> {
        let end = self.samples * POSITIONS_PER_SAMPLE + u64::from(self.pre_skip);
        let packet = PACKET as u64 * POSITIONS_PER_SAMPLE;
        // Silence gets the end out of the encoder.
        while (self.written + self.packets.len() as u64) * packet < end {
            self.pending.resize(PACKET, 0);
            self.encode_pending()?;
        }
        Ok(self.pages.page(Place::Last, end, &self.packets))
    }

    fn encode_pending(&mut self) -> Result<(), String> {
        let (blocks, _) = self.pending.as_chunks::<PACKET>();
        let encoded = blocks.len() * PACKET;
        for samples in blocks {
            let mut packet = vec![0; MAX_PACKET];
            let length = self.encoder.encode(samples, &mut packet).map_err(|error| format!("{error:?}"))?;
            packet.truncate(length);
            self.packets.push(packet);
        }
        self.pending.drain(..encoded);
        Ok(())
    }
}
