//! Measures and decodes media files, in this process.
//!
//! Files are hostile input, so the server does it in a child process (`audio::process`).

mod aac_config;
mod aiff;
mod au;
mod audio_file;
mod caf;
mod container;
mod downmix;
mod frame_stream;
mod measuring;
mod movie;
mod opus;
mod packet_decoder;
mod pcm;
mod signal;
mod source_window;
mod tags;
#[cfg(test)]
mod tests;
mod wave;

use symphonia::core::io::MediaSource;

use super::error::AudioError;
use audio_file::{AudioFile, Next};
use downmix::Downmix;
pub use measuring::measure;
use signal::Signal;

/// Decodes a file to mono samples at 16 kHz: the mean of its channels, or one of them where the mean cancels, resampled.
///
/// `sink` takes blocks of samples, and stops the decoding with an error of its own. Packets that are damaged are left
/// out. Returns the number of samples. Fails with [`AudioError::TooLong`] after `max_seconds` of audio, and if there is
/// not a single sample.
pub fn decode<'a>(
    source: impl MediaSource + Clone + 'a,
    max_seconds: u32,
    sink: &mut dyn FnMut(&[f32]) -> Result<(), AudioError>,
) -> Result<u64, AudioError> {
    let mut file = AudioFile::open(source)?;
    let mut signal = Signal::new(max_seconds);
    signal.begin_track(file.track());
    let (mut downmix, mut was_damaged) = (Downmix::default(), false);
    loop {
        match file.next_packet() {
            Next::End => break,
            Next::Track => {
                downmix.finish(&mut |mono, rate| signal.push(mono, rate, sink))?;
                signal.begin_track(file.track());
            }
            Next::Packet(packet) => match file.track().decoder.decode(&packet) {
                Some((layout, frames)) => {
                    downmix.push(frames, layout, &mut |mono, rate| signal.push(mono, rate, sink))?;
                }
                None => was_damaged |= !packet.data.is_empty(),
            },
        }
        if signal.is_complete() {
            break;
        }
    }
    downmix.finish(&mut |mono, rate| signal.push(mono, rate, sink))?;
    match signal.finish(sink)? {
        0 if was_damaged => Err(AudioError::Damaged),
        0 => Err(AudioError::NoSamples),
        samples => Ok(samples),
    }
}
