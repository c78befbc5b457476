//! The length of a file, from all its packets but without decoding them.
//!
//! A request is admitted by its length before anything is decoded, and a container can claim any. Reading all packets
//! takes milliseconds per hour of audio. If more is decoded than the packets claim, that counts; refusing such files
//! would also refuse harmless ones with wrong times.

use symphonia::core::io::MediaSource;
use symphonia::core::packet::Packet;

use super::audio_file::{AudioFile, AudioTrack, Next};
use super::signal::check_rate;
use crate::error::AudioError;
use crate::info::AudioInfo;

/// A longer gap between two packets is a gap in the file and not the length of the first; seconds.
const MAX_PACKET_SECONDS: f64 = 2.0;
/// The length of a packet without a length that is alone in its file; seconds.
const ONLY_PACKET_SECONDS: f64 = 0.02;

/// Says what a file is and how long. Fails with [`AudioError::TooLong`] if it is longer than `max_seconds`.
///
/// Headers may lie, so the lengths of all packets are added. Matroska tells no lengths for codecs other than Opus. There
/// the distance to the next packet counts, so that the result may be off by one packet.
pub fn measure<'a>(source: impl MediaSource + Clone + 'a, max_seconds: u32) -> Result<AudioInfo, AudioError> {
    let mut file = AudioFile::open(source)?;
    let container = file.container().to_owned();
    let track = file.track();
    let (codec, layout) = (track.codec.clone(), track.decoder.layout());
    check_rate(layout.rate)?;
    let (mut seconds, mut length) = (0.0, TrackLength::default());
    loop {
        match file.next_packet() {
            Next::Packet(packet) => length.add(&packet, file.track()),
            Next::Track => {
                seconds += length.played();
                length = TrackLength::default();
            }
            Next::End => break,
        }
        if seconds + length.played() > f64::from(max_seconds) {
            return Err(AudioError::TooLong { max_seconds });
        }
    }
    seconds += length.played();
    let channels = u32::try_from(layout.channels).unwrap_or(u32::MAX);
    if seconds <= 0.0 {
        return Err(AudioError::NoSamples);
    }
    Ok(AudioInfo { container, codec, sample_rate: layout.rate, channels, seconds })
}

/// The sum of a track's packets; seconds.
#[derive(Default)]
struct TrackLength {
    total: f64,
    delay: f64,
    start: f64,
    max: Option<f64>,
    /// The time and the length of the previous packet, which had no length of its own.
    previous: Option<(f64, f64)>,
}

impl TrackLength {
    fn add(&mut self, packet: &Packet, track: &AudioTrack) {
        self.delay = track.edit.delay;
        self.start = track.edit.start;
        self.max = track.edit.length;
        if let Some(frames) = track.decoder.packet_frames(packet) {
            self.total += seconds(frames) / f64::from(track.decoder.layout().rate.max(1));
            return;
        }
        let trimmed = packet.trim_start.get().saturating_add(packet.trim_end.get());
        let ticks_played = packet.dur.get().saturating_sub(if track.includes_trimmed { trimmed } else { 0 });
        let own = seconds(ticks_played) * track.tick;
        if own > 0.0 {
            self.total += own;
            return;
        }
        let time = ticks(packet.pts.get()) * track.tick;
        let distance = self.previous.map_or(0.0, |(previous, _)| time - previous);
        let is_length = (0.0..MAX_PACKET_SECONDS).contains(&distance);
        let length = if is_length { distance } else { self.previous.map_or(0.0, |(_, length)| length) };
        self.total += length;
        self.previous = Some((time, length));
    }

    /// The length of the part that is played.
    fn played(&self) -> f64 {
        let last = self.previous.map_or(0.0, |(_, length)| if length > 0.0 { length } else { ONLY_PACKET_SECONDS });
        let length = (self.total + last - self.start).max(0.0);
        let length = self.max.map_or(length, |max| length.min(max));
        if length > 0.0 { self.delay + length } else { 0.0 }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a length of 2^53 ticks is longer than any file")]
fn seconds(count: u64) -> f64 {
    count as f64
}

#[expect(clippy::cast_precision_loss, reason = "a time of 2^53 ticks is later than any file's end")]
fn ticks(count: i64) -> f64 {
    count as f64
}
